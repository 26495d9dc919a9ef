"""Evaluations that are killed, or whose disk is full, lose nothing and run nothing twice."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import random
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.envs.results import read_rollouts

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
        await asyncio.sleep(float(pause))
        message = SimpleNamespace(content="x" * 200)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

path, limit, pause = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
questions = [f"question {{i}}" for i in range({ROLLOUTS})]
env = vf.SingleTurnEnv(eval_dataset=Dataset.from_dict(dict(question=questions, answer=questions)))
env.evaluate(Client(), "m", max_concurrent=8, save_path=path, progress=False)
"""


def start(path: Path, limit: int = 0, pause: float = 0.01) -> forked.Popen:
    """Start the evaluation in a process of its own, with a largest file size in bytes and the seconds of an answer."""
    command = [sys.executable, "-c", SCRIPT, str(path), str(limit), str(pause)]
    return forked.Popen(command)


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


CLOSING = """
import os, sys
import verifiers_nb as vf

def closing(completion):
    for number in (1, 2):
        os.close(number)
    return 1.0

env = vf.SingleTurnEnv(eval_dataset=[{"question": "6 * 7?", "answer": "42"}], rubric=vf.Rubric(closing))
for path in (None, sys.argv[1]):
    results = env.evaluate(vf.ScriptedClient("42"), "m", save_path=path)
    print("rewards", results.reward)
"""


def test_a_reward_that_closes_the_output_ends_a_quick_run_with_its_results(tmp_path: Path) -> None:
    """The progress bar writes its last line to standard error, which must be there again."""
    path = tmp_path / "results.jsonl"
    done = forked.run([sys.executable, "-c", CLOSING, str(path)])
    assert done.stdout == "rewards [1.0]\n" * 2, done.stderr
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert done.stderr.count("closed or redirected standard output") == 2 and indices(path) == [0]


CLOSING_ALL = """
import asyncio, os, sys
import verifiers_nb as vf

calls = []

class Slow(vf.ScriptedClient):
    async def answer_chat(self, messages, **request):
        await asyncio.sleep(0.001)
        return await super().answer_chat(messages, **request)

def closing(completion):
    calls.append(1)
    if len(calls) == 20:
        os.closerange(3, 64)
    return 1.0

rows = [{"question": str(i), "answer": "42"} for i in range(100)]
env = vf.SingleTurnEnv(eval_dataset=rows, rubric=vf.Rubric(closing))
for _ in range(2):
    try:
        print(env.evaluate(Slow("42"), "m", save_path=sys.argv[1], max_concurrent=4).reward == [1.0] * 100)
    except OSError as error:
        print(len(open(sys.argv[1]).readlines()) == len(calls), error)
"""


def test_a_reward_that_closes_everything_loses_no_finished_rollout(tmp_path: Path) -> None:
    """The run can't go on, because the event loop has lost its descriptor, but the next call can."""
    path = tmp_path / "results.jsonl"
    done = forked.run([sys.executable, "-c", CLOSING_ALL, str(path)])
    first, second = done.stdout.splitlines()
    assert first.startswith("True ") and "closed descriptors that the run needs" in first
    assert (second, sorted(indices(path))) == ("True", list(range(100)))


def test_a_second_process_on_one_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    first = start(path, pause=0.1)  # in all 4 s
    while not path.exists():
        assert first.poll() is None
        time.sleep(0.005)
    first.send_signal(signal.SIGSTOP)  # or it would be done before the second one begins
    second = start(path)
    said = second.communicate(timeout=60)[1]
    first.send_signal(signal.SIGCONT)
    assert second.returncode != 0
    assert f"rollouts.jsonl is in use by process {first.pid} on " in said.splitlines()[-1]
    assert first.wait(60) == 0
    assert sorted(indices(path)) == list(range(ROLLOUTS))
    assert list(tmp_path.iterdir()) == [path]  # the lock is gone


def test_a_limit_on_file_sizes_is_named_and_leaves_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    process = start(path, limit=20_000)
    _, said = process.communicate(timeout=60)
    reason = said.strip().splitlines()[-1]
    assert process.returncode != 0 and "`ulimit -f`" in reason and str(path) in reason
    kept = indices(path)
    assert 0 < len(kept) < ROLLOUTS
    assert start(path).wait(60) == 0
    assert sorted(indices(path)) == list(range(ROLLOUTS))
    assert path.read_bytes().endswith(b"\n")


def mounted(folder: Path, size: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command while `folder` is a file system of that size, which is gone afterwards."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("needs unshare -rm, to mount a small file system")
    folder.mkdir()
    mount = f"mount -t tmpfs -o size={size} tmpfs {folder} && {shlex.join(command)}"
    command = ["unshare", "-rm", "sh", "-c", mount]
    return subprocess.run(command, capture_output=True, text=True)


FILLED = """
import errno, os, sys
from pathlib import Path
import verifiers_nb as vf

folder = Path(sys.argv[1])
path, asked = folder / "rollouts.jsonl", []
rows = [{"question": str(i), "answer": "42"} for i in range(60)]

class Client(vf.ScriptedClient):
    async def answer_chat(self, messages, **request):
        asked.append(1)
        return await super().answer_chat(messages, **request)

def change(completion):
    if len(asked) == 20 and not again:
        with open(folder / "other", "wb", buffering=0) as other:
            try:
                while other.write(bytes(100)):
                    pass
            except OSError:
                pass
    return 1.0

for again in range(2):
    asked.clear()
    env = vf.SingleTurnEnv(eval_dataset=rows, rubric=vf.Rubric(change))
    try:
        env.evaluate(Client("x" * 2000), "m", max_concurrent=4, save_path=path)
    except OSError as error:
        print(errno.errorcode[error.errno], error.filename == str(path))
    print(len(asked), path.read_bytes().count(b"\\n"), sorted(os.listdir(folder)))
    (folder / "other").unlink(missing_ok=True)
"""


def test_a_disk_that_fills_is_named_and_the_missing_rollouts_are_played(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    done = mounted(folder, "400k", [sys.executable, "-c", FILLED, str(folder)])
    said, first, second = done.stdout.splitlines()
    assert done.returncode == 0 and said == "ENOSPC True", done.stderr
    asked, kept, names = first.split(" ", 2)
    assert 0 < int(kept) <= int(asked) < 60 and names == "['other', 'rollouts.jsonl']"
    assert second == f"{60 - int(kept)} 60 ['rollouts.jsonl']"


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


# Rows that a function makes


class Rows:
    """A function that makes the rows of a split, counts its calls, and takes its time."""

    def __init__(self, split: str, count: int = 4) -> None:
        self.questions = [f"{split} {i}" for i in range(count)]
        self.calls = 0

    def __call__(self) -> Dataset:
        self.calls += 1
        time.sleep(0.05)  # so that all who ask are there before it returns
        return Dataset.from_dict({"question": self.questions, "answer": self.questions})


def echo(completion: Any, answer: str) -> float:
    """Score 1.0 for saying the answer."""
    return float(completion[-1]["content"] == answer)


def lazy_env(train: Rows, held_out: Rows) -> vf.SingleTurnEnv:
    return vf.SingleTurnEnv(dataset=train, eval_dataset=held_out, rubric=vf.Rubric([echo]))


parrot = vf.ScriptedClient(lambda messages: messages[-1]["content"])


def test_rows_of_a_function_are_made_once_for_all_threads() -> None:
    train, held_out = Rows("train"), Rows("held out")
    env = lazy_env(train, held_out)
    with ThreadPoolExecutor(8) as pool:
        runs = [
            pool.submit(env.evaluate, parrot, "parrot", num_examples=n, progress=False)
            for n in (1, 2, 3, 4) * 2
        ]
        assert [run.result().reward for run in runs] == [[1.0] * n for n in (1, 2, 3, 4) * 2]
    assert (train.calls, held_out.calls) == (0, 1)
    assert env.generate(env.dataset, parrot, "parrot").answer == train.questions
    assert (train.calls, held_out.calls) == (1, 1)


def test_a_group_makes_its_rows_when_they_are_wanted() -> None:
    train, held_out = Rows("train"), Rows("held out", 2)
    plain = vf.SingleTurnEnv(dataset=Rows("plain", 1)(), rubric=vf.Rubric([echo]))
    group = vf.EnvGroup([lazy_env(train, held_out), plain], ["lazy", "plain"])
    assert (train.calls, held_out.calls) == (0, 0)
    results = group.evaluate(parrot, "parrot", progress=False)
    assert (results.task, results.reward) == (["lazy", "lazy", "plain"], [1.0] * 3)
    assert (train.calls, held_out.calls) == (0, 1)
    assert group.dataset["task"][:] == ["lazy"] * 4 + ["plain"]
    assert (train.calls, held_out.calls) == (1, 1)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("looked_at", [False, True])
def test_a_copy_has_the_rows_too(duplicate: Any, looked_at: bool) -> None:
    train = Rows("train")
    env = vf.EnvGroup([lazy_env(train, Rows("held out"))])
    assert not looked_at or len(env.dataset) == 4
    again = duplicate(env)
    assert again.dataset["answer"][:] == train.questions
    assert again.evaluate(parrot, "parrot", progress=False).reward == [1.0] * 4
    assert train.calls == looked_at  # the copy called a function of its own


def test_a_function_that_fails_is_called_again() -> None:
    rows, fails = Rows("train"), [OSError("the network is down"), KeyError("question")]

    def make() -> Dataset:
        if fails:
            raise fails.pop(0)
        return rows()

    env = vf.SingleTurnEnv(dataset=make, rubric=vf.Rubric([echo]))
    with pytest.raises(OSError, match="the network is down"):
        env.get_dataset()
    with pytest.raises(KeyError, match="question"):
        env.evaluate(parrot, "parrot", progress=False)
    assert env.evaluate(parrot, "parrot", num_examples=2, progress=False).reward == [1.0] * 2


def test_sampling_arguments_are_checked_wherever_they_are_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of the environment and of a call, once each; what belongs to the template is moved there."""
    rows = Dataset.from_dict({"question": ["?"] * 4, "answer": ["7"] * 4})
    env = vf.SingleTurnEnv(dataset=rows, sampling_args={"max_token": 9})
    client = vf.ScriptedClient("7")
    for _ in range(2):
        env.evaluate(client, "m", {"temprature": 0.5, "enable_thinking": True}, progress=False)
    told = [record.getMessage() for record in caplog.records]
    for meant in ("did you mean max_tokens?", "did you mean temperature?"):
        assert sum(meant in each for each in told) == 1
    env.evaluate(client, "m", {"temperature": 0.5, "top_k": 5, "max_tokens": 9}, progress=False)
    assert [record.getMessage() for record in caplog.records] == told


@pytest.mark.parametrize("kind", [vf.XMLParser, vf.OneAnswerParser])
def test_a_parser_that_was_used_is_the_same_parser(kind: Any, tmp_path: Path) -> None:
    """A file is continued by its rewards' code and settings, which no use of them changes."""
    parser = kind(["think", "answer"])
    rubric = vf.Rubric([parser.get_format_reward_func()], parser=parser)
    env = vf.SingleTurnEnv(eval_dataset=[{"question": "?", "answer": "1"}], rubric=rubric)
    known = []
    for name in ("before", "after"):
        path = tmp_path / f"{name}.jsonl"
        env.evaluate(vf.ScriptedClient("<answer>1</answer>"), "m", progress=False, save_path=path)
        parser.parse_answer("<answer>1</answer>")
        known.append(json.loads(path.read_text())["run"]["functions"])
    assert known[0] == known[1]


def paid(completion: Any) -> float:
    """Pay one."""
    return 1.0


def paid_less(completion: Any) -> float:
    """Pay less."""
    return 0.25


paid_less.__name__ = "paid"  # as if its code had been changed


def test_what_has_changed_since_rollouts_were_stored_is_said(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Another reward function by a warning, since the file keeps its scores; tools and turns by an error."""
    rows = [{"question": "?", "answer": "1"}]

    def rewards(func: Any = paid, **settings: Any) -> list[float]:
        env = vf.ToolEnv(eval_dataset=rows, rubric=vf.Rubric([func]), **settings)
        client, path = vf.ScriptedClient("1"), tmp_path / "rollouts.jsonl"
        return env.evaluate(client, "m", progress=False, save_path=path).reward

    assert rewards(tools=[vf.calculator]) == rewards(tools=[vf.calculator]) == [1.0]
    assert not caplog.records
    assert rewards(paid_less, tools=[vf.calculator]) == [1.0]
    assert "paid has changed since it scored the stored rollouts" in caplog.text
    for settings, named in (
        ({"tools": [vf.calculator], "max_turns": 3}, "max_turns was 10 and is 3"),
        ({"tools": []}, "other settings: tools"),
    ):
        with pytest.raises(ValueError, match=named):
            rewards(**settings)
