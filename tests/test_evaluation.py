"""Evaluations that are killed, or whose disk is full, lose nothing and run nothing twice."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.envs.store import read_rollouts

ROLLOUTS = 300
SCRIPT = f"""
import asyncio, resource, sys
from types import SimpleNamespace
from datasets import Dataset
import verifiers_nb as vf

class Client:
    def __init__(self):
        self.chat = self.completions = self
    async def create(self, **request):
        await asyncio.sleep(0.01)
        message = SimpleNamespace(content="x" * 200)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

path, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
questions = [f"question {{i}}" for i in range({ROLLOUTS})]
env = vf.SingleTurnEnv(eval_dataset=Dataset.from_dict(dict(question=questions, answer=questions)))
env.evaluate(Client(), "m", max_concurrent=8, save_path=path, progress=False)
"""


def start(path: Path, limit: int = 0) -> subprocess.Popen[str]:
    """Start the evaluation in a process of its own, with a largest file size in bytes."""
    command = [sys.executable, "-c", SCRIPT, str(path), str(limit)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def indices(path: Path) -> list[int]:
    """Return which rollouts a file holds; every line but a half-written last one must be whole."""
    return [record["index"] for record in read_rollouts(path)]


def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    path, draw = tmp_path / "rollouts.jsonl", random.Random(0)
    for _ in range(20):
        before = set(indices(path)) if path.exists() else set()
        process = start(path)
        while process.poll() is None and (not path.exists() or set(indices(path)) == before):
            time.sleep(0.005)  # until it has got somewhere
        time.sleep(draw.uniform(0, 0.03))
        process.kill()
        process.communicate()
        assert before <= set(indices(path))
    process = start(path)
    assert process.wait(60) == 0
    assert sorted(indices(path)) == list(range(ROLLOUTS))


def test_a_full_disk_stops_clearly_and_leaves_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    process = start(path, limit=20_000)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0 and "OSError" in said
    kept = indices(path)
    assert 0 < len(kept) < ROLLOUTS
    assert start(path).wait(60) == 0
    assert sorted(indices(path)) == list(range(ROLLOUTS))
    assert path.read_bytes().endswith(b"\n")


class Flaky:
    """Answer, after failing one request in ten with a passing or a lasting error."""

    def __init__(self, seed: int = 0) -> None:
        self.chat = self.completions = self
        self.draw, self.requests = random.Random(seed), 0

    async def create(self, **request: Any) -> Any:
        self.requests += 1
        await asyncio.sleep(0)
        if self.draw.random() < 0.1:
            kind = self.draw.choice([429, 500, 503, "drop", "garbage"])
            if kind == "drop":
                raise ConnectionResetError
            if kind == "garbage":
                json.loads("<html>")
            error = RuntimeError("busy")
            error.status_code = kind  # type: ignore[attr-defined]
            raise error
        message = SimpleNamespace(content="yes")
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses between tries short."""
    real = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds, *rest: real(min(seconds, 0.001), *rest))


def test_every_rollout_ends_once_in_a_storm(quick_pauses: None) -> None:
    questions = [f"question {i}" for i in range(500)]
    env = vf.SingleTurnEnv(
        dataset=Dataset.from_dict({"question": questions, "answer": questions}),
        rubric=vf.Rubric([lambda completion: 1.0]),
    )
    client = Flaky()
    outputs = env.generate(env.get_dataset(), client, "m", max_concurrent=64)
    failed = [state for state in outputs.state if state.get("error")]
    assert len(outputs.reward) == 500 and client.requests > 500
    assert all("JSONDecodeError" in state["error"] for state in failed)  # not worth trying again
    assert sum(outputs.reward) == 500 - len(failed) > 450
