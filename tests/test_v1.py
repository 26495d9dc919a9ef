"""Tasksets of verifiers.v1 in the real package: our rollouts, and the package's own on the same replies."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from install import pip_settings
from wheels import EmptyEnvironment, run

import verifiers_nb as vf

VERSION = "verifiers==0.4.0"
TASKSETS = Path(__file__).parent / "peers" / "tasksets"
# One turn, tools, several turns: the agent's name, and what each task earns for the replies below.
CASES = {
    "reverse_words": ("agent", [0.5, 0.0]),
    "sums_tools": ("agent", [1.25, 0.0]),
    "guess_turns": ("player", [0.75, 0.0, 0.25]),
}


def reply(asked: Any) -> Any:
    """Return what the model says: a call to add, "olleh", or a falling guess."""
    text, turns = asked[-1]["content"], sum(each["role"] == "assistant" for each in asked)
    if "Guess a number" in str(asked):
        return ["5", "3", "2", "1"][min(turns, 3)]
    if text == "2 + 3?":
        return [vf.tool_call("add", a=2, b=3)]
    return text if asked[-1]["role"] == "tool" else "olleh"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has the package and nothing of ours."""
    empty = EmptyEnvironment(tmp_path_factory.mktemp("v1") / "venv")
    call = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(empty.python)]
    call += ["--index-strategy", "unsafe-best-match", VERSION, "uv"]
    done = run(*call, env=pip_settings())
    if done.returncode:
        pytest.skip(f"{VERSION} cannot be installed: {done.stderr[-200:]}")
    return empty.python


async def played_by_the_package(python: Path, name: str, agent: str, folder: Path) -> list[Any]:
    """Return rewards and metrics of the package's own evaluation, which would upload them by default."""
    seat = f"--env.{agent}"
    async with vf.record(vf.ScriptedClient(reply), "any") as tape:
        command = [python.parent / "vf-eval", name, "--no-push", "--no-rich", "-m", "any"]
        command += [f"{seat}.harness.id", "null", f"{seat}.runtime.type", "subprocess"]
        command += ["-n", "3", "-o", folder, "--client.base-url", tape.url]
        command += ["--client.api-key-var", "TAPE"]
        paths = {"PATH": f"{python.parent}:/usr/bin:/bin", "PYTHONPATH": str(TASKSETS)}
        env = {**pip_settings(), **paths, "TAPE": tape.key, "HOME": str(folder)}
        done = await asyncio.to_thread(run, *command, env=env)
    files = list(folder.rglob("traces.jsonl"))
    assert files, (done.stdout + done.stderr)[-2000:]
    episodes = [json.loads(line) for line in files[0].read_text().splitlines()]
    traces = [(episode.get("traces") or [episode])[0] for episode in episodes]
    traces.sort(key=lambda trace: trace["task"]["data"]["idx"])
    found = []
    for trace in traces:
        parts = {key: each for key, each in trace["rewards"].items() if each}
        reward = sum(each["score"] * each["weight"] for each in parts.values())
        scores = {key: each["score"] for key, each in parts.items()}
        found.append((reward, {**scores, **trace["metrics"]}))
    return found


@pytest.mark.parametrize("name", CASES)
def test_rewards_are_those_of_the_package(
    name: str, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in pip_settings().items():  # for the programs that the package prepares
        monkeypatch.setenv(key, value)
    agent, expected = CASES[name]
    env = vf.V1Env(TASKSETS / f"{name}.py", python=python)
    results = env.evaluate(vf.ScriptedClient(reply), "any", progress=False)
    assert results.errors == [None] * len(expected)
    assert results.reward == expected
    rows = range(len(expected))
    ours = [(results.reward[i], {k: v[i] for k, v in results.metrics.items()}) for i in rows]
    assert ours == asyncio.run(played_by_the_package(python, name, agent, tmp_path))


def test_a_policy_learns_from_a_taskset(python: Path, tmp_path: Path) -> None:
    """One step of GRPO on exact tokens of the shipped model."""
    env = vf.V1Env(TASKSETS / "reverse_words.py", python=python)
    args = vf.grpo_defaults("reverse")
    args.output_dir, args.max_steps = str(tmp_path), 1
    args.per_device_train_batch_size = args.num_generations = 4
    args.max_tokens, args.use_cpu = 8, True
    trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
    trainer.train()
    (row,) = [row for row in trainer.state.log_history if "gap" in row or "reward" in row][:1]
    assert row["rewards/errors"] == 0 if "rewards/errors" in row else True


def test_a_taskset_that_is_not_there_is_one_sentence(python: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no_such_taskset"):
        vf.V1Env("no_such_taskset", python=python)
