"""Tasksets of verifiers.v1 in the real package: our rollouts, and the package's own on the same replies."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from install import pip_settings
from wheels import EmptyEnvironment, run, uv

import verifiers_nb as vf
from verifiers_nb.bridges.v1 import NEEDED

HERE = Path(__file__).parent / "peers"
# Tools and a single turn, several turns: the agent's name, and what each task earns for the replies below.
CASES = {
    "sums_tools": ("agent", [1.25, 0.0]),
    "guess_turns": ("player", [0.75, 0.0, 0.25]),
}
# Each address that a Python of the taskset connects to or looks up, that of its programs too.
WATCH = """
import sys
def note(event, given):
    if event in ("socket.connect", "socket.sendto"):
        address = given[1]
    elif event == "socket.getaddrinfo":
        address = given[:2]
    else:
        return
    with open({log!r}, "a") as log:
        log.write(str(address[0] if isinstance(address, tuple) else address) + "\\n")
sys.addaudithook(note)
"""
# Settings of tasksets that can't be played, and what the reason says; the last can be played.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a name that nobody has": ({"taskset": "no_such_taskset"}, "'no_such_taskset' not found"),
    "a module without a taskset": ({"taskset": "json"}, "exports no Taskset"),
    "a misspelt setting": (
        {"config": {"tsak": {}}},
        "config['tsak'] is not a setting: did you mean 'task'?",
    ),
    "a misspelt setting of the tasks": (
        {"config": {"task": {"zzz": 1}}},
        "config['task']['zzz'] is not a setting: there are ",
    ),
    "a setting of another type": (
        {"config": {"task": 3}},
        "config['task'] is 3: Input should be ",
    ),
    "a prompt that is no file": (
        {"config": {"system_prompt": "Be kind."}},
        "no file 'Be kind.': give the text to V1Env as system_prompt=",
    ),
    "a prompt that is a number": (
        {"config": {"system_prompt": 3}},
        "no file 3: give the text to V1Env as system_prompt=",
    ),
    "a folder that is a number": (
        {"taskset": "with_folder", "config": {"folder": 3}},
        "config['folder'] is 3: Input is not a valid path",
    ),
    "a misspelt harness": ({"harness": "nul"}, "no harness 'nul': did you mean 'null'?"),
    "a harness that runs code": ({"harness": "bash"}, "'bash' runs what the model writes"),
    "a cloud sandbox": ({"taskset": "in_a_sandbox"}, "need a container or a cloud sandbox"),
    "an image": ({"taskset": "with_image"}, "need the container image 'ubuntu:24.04'"),
    "tools that nothing runs": ({"taskset": "no_main"}, "end it with `if __name__"),
    "an endless taskset": ({"taskset": "endless"}, "It is endless: pass num_examples."),
    "a taskset that can be played": ({}, ""),
}
# A taskset of one task; the others change a line of it.
TASKSET = """
from pathlib import Path

import verifiers.v1 as vf

class Settings(vf.TasksetConfig):
    folder: Path | None = None

class Greeting(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    NEEDS_CONTAINER = False

class Greetings(vf.Taskset[Greeting, vf.TasksetConfig]):
    INFINITE = False

    def load(self):
        yield Greeting(vf.TaskData(prompt="Hello"), self.config.task)

__all__ = ["Greetings"]
"""
CHANGED = {
    "in_a_sandbox": ("NEEDS_CONTAINER = False", "NEEDS_CONTAINER = True"),
    "with_image": ('prompt="Hello"', 'prompt="Hello", image="ubuntu:24.04"'),
    "endless": ("INFINITE = False", "INFINITE = True"),
    "with_folder": (
        "Greetings(vf.Taskset[Greeting, vf.TasksetConfig]):",
        "Greetings(vf.Taskset[Greeting, Settings]):",
    ),
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
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the Python of an environment that has the package and nothing of ours."""
    empty = EmptyEnvironment(tmp_path_factory.mktemp("v1") / "venv")
    done = uv("--python", empty.python, "verifiers==0.4.0", *NEEDED[1:], tested=False)
    if done.returncode:
        pytest.skip(f"verifiers 0.4.0 cannot be installed: {done.stderr[-200:]}")
    with pytest.MonkeyPatch.context() as patch:  # for the programs that the package prepares
        for key, value in {**pip_settings(), "UV_INDEX_STRATEGY": "unsafe-best-match"}.items():
            patch.setenv(key, value)
        yield empty.python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of tasksets, whose processes note what they connect to in `watched.txt`."""
    folder = tmp_path_factory.mktemp("tasksets")
    shutil.copytree(HERE / "tasksets", folder, dirs_exist_ok=True)
    (folder / "sitecustomize.py").write_text(WATCH.format(log=str(folder / "watched.txt")))
    for name, (old, new) in CHANGED.items():
        (folder / f"{name}.py").write_text(TASKSET.replace(old, new))
    tools = (HERE / "tasksets" / "sums_tools.py").read_text()
    (folder / "no_main.py").write_text(tools.partition("if __name__")[0])
    return folder


@pytest.fixture(scope="module")
def environments(python: Path, folder: Path) -> Iterator[Callable[[str], vf.V1Env]]:
    """Give a function that returns the environment of a taskset; its process stays for all tests."""
    made: dict[str, vf.V1Env] = {}

    def environment(name: str) -> vf.V1Env:
        if name not in made:
            made[name] = vf.V1Env(folder / f"{name}.py", python=python)
        return made[name]

    yield environment
    for env in made.values():
        env.close()


def scores_of(episode: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Return the reward and the metrics of an episode that the package stored."""
    (trace,) = episode.get("traces") or [episode]
    parts = {key: each for key, each in trace["rewards"].items() if each}
    reward = sum(each["score"] * each["weight"] for each in parts.values())
    return reward, {**{key: each["score"] for key, each in parts.items()}, **trace["metrics"]}


def evaluation(name: str, out: Path, url: str) -> list[str]:
    """Return arguments of the package's own evaluation, which would upload its results by default."""
    arguments = [name, "--no-push", "--no-rich", "-m", "any", "-o", str(out / name)]
    arguments += ["--client.base-url", url, "--client.api-key-var", "TAPE"]
    agent = f"--env.{CASES[name][0]}"
    return [*arguments, f"{agent}.harness.id", "null", f"{agent}.runtime.type", "subprocess"]


@pytest.fixture(scope="module")
def theirs(
    python: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """Return what the package's own evaluation gives to each case, and the `refusals`."""
    out = tmp_path_factory.mktemp("theirs")
    default = {"taskset": "sums_tools", "paths": [], "config": {}, "harness": None, "most": None}
    settings = json.dumps([{**default, **given} for given, _ in REFUSED.values()])

    async def evaluate() -> str:
        async with vf.record(vf.ScriptedClient(reply), "any") as tape:
            evaluations = json.dumps([evaluation(name, out, tape.url) for name in CASES])
            given = [vf.V1Env.script, out / "refusals.json", settings, evaluations]
            path = f"{python.parent}:/usr/bin:/bin"
            env = {"PATH": path, "PYTHONPATH": str(folder), "TAPE": tape.key}
            done = await asyncio.to_thread(run, python, HERE / "check_v1.py", *given, env=env)
            return done.stdout + done.stderr

    said = asyncio.run(evaluate())
    assert (out / "refusals.json").exists(), said[-2000:]
    found = {"refusals": json.loads((out / "refusals.json").read_text())}
    for name in CASES:
        files = list((out / name).rglob("traces.jsonl"))
        assert files, said[-2000:]
        episodes = [json.loads(line) for line in files[0].read_text().splitlines()]
        episodes.sort(key=lambda each: (each.get("traces") or [each])[0]["task"]["data"]["idx"])
        found[name] = [scores_of(episode) for episode in episodes]
    return found


@pytest.mark.parametrize("name", CASES)
def test_rewards_are_those_of_the_package(
    name: str, environments: Callable[[str], vf.V1Env], theirs: dict[str, list[Any]]
) -> None:
    expected = CASES[name][1]
    results = environments(name).evaluate(vf.ScriptedClient(reply), "any", progress=False)
    assert results.errors == [None] * len(expected)
    assert results.reward == expected
    rows = range(len(expected))
    ours = [(results.reward[i], {k: v[i] for k, v in results.metrics.items()}) for i in rows]
    assert ours == theirs[name]


def test_the_system_prompt_is_that_of_the_call(python: Path, folder: Path) -> None:
    heard = []

    def listen(asked: Any) -> str:
        heard.extend([each["role"], each["content"]] for each in asked)
        return "olleh"

    env = vf.V1Env(
        folder / "sums_tools.py", python=python, num_examples=1, system_prompt="Be kind."
    )
    env.evaluate(vf.ScriptedClient(listen), "any", progress=False)
    env.close()
    asked = [[each["role"], each["content"]] for each in env.get_dataset()[0]["prompt"]]
    assert heard == asked and heard[0] == ["system", "Be kind."]


def test_a_policy_learns_from_a_taskset(
    environments: Callable[[str], vf.V1Env], tmp_path: Path
) -> None:
    """A step of GRPO on the exact tokens of the shipped model."""
    env = environments("guess_turns")
    args = vf.grpo_defaults("guesses")
    args.output_dir, args.max_steps = str(tmp_path), 1
    args.per_device_train_batch_size = args.num_generations = 2
    args.max_tokens, args.use_cpu, args.mask_truncated_completions = 8, True, False
    trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
    trainer.train()
    (row,) = [row for row in trainer.state.log_history if "reward" in row]
    assert row["rollouts/failed"] == 0
    assert row["gap"] < 1e-3  # the tokens that the policy sampled are those it learns from
    assert row["rewards/turns"] > 1


def test_the_explorer_shows_and_plays_a_task(environments: Callable[[str], vf.V1Env]) -> None:
    env = environments("guess_turns")
    results = env.evaluate(vf.ScriptedClient(reply), "any", num_examples=1, progress=False)
    explorer = vf.RolloutExplorer(env, vf.ScriptedClient(reply), "any", results=results)
    html = explorer.freeze()._repr_html_()
    assert "Guess a number from 1 to 9." in html
    assert "lower" in html
    assert "guessed" in html


def test_a_taskset_connects_to_this_machine_only(
    environments: Callable[[str], vf.V1Env], folder: Path
) -> None:
    env, log = environments("sums_tools"), folder / "watched.txt"
    log.write_text("")
    env.evaluate(vf.ScriptedClient(reply), "any", progress=False)
    seen = set(log.read_text().split())
    assert "127.0.0.1" in seen
    assert seen <= {"127.0.0.1", "localhost", "::1"}, seen


def test_what_cannot_be_had_is_refused_with_the_reason(theirs: dict[str, list[Any]]) -> None:
    for (case, (_, part)), said in zip(REFUSED.items(), theirs["refusals"], strict=True):
        assert part in said, case
        assert bool(part) == bool(said), case
