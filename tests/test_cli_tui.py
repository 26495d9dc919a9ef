"""vf-tui in a real terminal: a hundred thousand rollouts, opened, searched, sorted, compared."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest

from verifiers_nb.cli.browser import RolloutList, TerminalBrowser
from verifiers_nb.cli.saved_runs import (
    ORDERS,
    find_rollouts,
    ordered_places,
    read_rollout,
    search_rollouts,
)

COUNT = 100_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an evaluation with many rollouts of more than a kilobyte."""
    folder = (
        tmp_path_factory.mktemp("tui") / "outputs/evals/addition--some--model/20260101-120000-abcd"
    )
    folder.mkdir(parents=True)
    with (folder / "results.jsonl").open("w") as file:
        for i in range(COUNT):
            said = f"<think>\n{i}\n</think>\n<answer>\n{i}\n</answer>"
            record = {
                "index": i,
                "prompt": [{"role": "user", "content": f"question {i}"}],
                "answer": str(i),
                "task": "default",
                "info": {},
                "completion": [{"role": "assistant", "content": said}],
                "reward": (i * 7919 % COUNT) / COUNT,
                "metrics": {"correct": 1.0},
                "error": None,
                "state": {"notes": "x" * 900},
                "turns": [],
            }
            file.write(json.dumps(record) + "\n")
    (folder / "metadata.json").write_text(
        '{"env_id": "addition", "finished": true, "rollouts": 100000}'
    )
    yield folder
    shutil.rmtree(folder)


def test_finding_rollouts_is_quick_and_right(large: Path) -> None:
    began = time.process_time()
    places = find_rollouts([large / "results.jsonl"])
    assert time.process_time() - began < 3.0  # measured: 0.3 s on a quiet machine
    best, *_, worst = ordered_places(places, ORDERS[1])
    assert read_rollout(worst)["reward"] == 0.0
    assert read_rollout(best)["reward"] == (COUNT - 1) / COUNT
    (found,) = search_rollouts(places, "QUESTION 99999")
    assert read_rollout(found)["answer"] == "99999"


async def drive(large: Path) -> None:
    """Press keys, and look at what they did."""
    app = TerminalBrowser([large])
    async with app.run_test(size=(120, 30)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        rollouts = app.screen.query_one(RolloutList)
        assert len(rollouts.places) == COUNT
        began = time.process_time()
        await pilot.press("G")
        await pilot.pause()
        assert rollouts.cursor == COUNT - 1
        assert time.process_time() - began < 1.0
        await pilot.press("s", "g", "n", "c", "n", "p")
        await pilot.pause()
        assert rollouts.cursor == 1 and app.screen.query_one("#kept").display
        await pilot.press("slash", *"question 77777", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert [read_rollout(place)["index"] for place in rollouts.places] == [77777]
        await pilot.press("y")
        assert app.clipboard.startswith("assistant: <think>\n77777")
        await pilot.press("slash", "escape", "escape")


def test_the_app(large: Path) -> None:
    asyncio.run(drive(large))


class Terminal:
    """A terminal of tmux in which a command runs."""

    def __init__(self, name: str, command: str) -> None:
        self.name = name
        self.tmux("new-session", "-d", "-s", name, "-x", "110", "-y", "30", command)

    def tmux(self, *arguments: str) -> str:
        line = ["tmux", "-L", self.name, *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=False).stdout

    def type(self, *keys: str) -> None:
        self.tmux("send-keys", "-t", self.name, *keys)

    def wait(self, seen: Callable[[str], bool], seconds: float = 90) -> str:
        deadline = time.monotonic() + seconds
        while not seen(screen := self.tmux("capture-pane", "-p", "-t", self.name)):
            assert time.monotonic() < deadline, screen
            time.sleep(0.1)
        return screen


@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux, a terminal to look at")
def test_in_a_terminal(large: Path) -> None:
    root = large.parents[3]
    command = f"cd {root} && OMP_NUM_THREADS=1 {sys.executable} -m verifiers_nb.cli.tui"
    terminal = Terminal(f"vf-tui-{os.getpid()}", command)
    try:
        terminal.wait(lambda screen: "20260101-120000-abcd" in screen)
        terminal.type("Down", "Down", "Down", "Enter")
        screen = terminal.wait(lambda screen: "1 of 100,000" in screen and "✓ start" in screen)
        assert "question 0" in screen and "checks of addition" in screen
        terminal.type("s")
        terminal.wait(lambda screen: "highest reward first" in screen and "1.000" in screen)
        terminal.type("q")
        terminal.wait(lambda screen: "Enter opens a run" in screen)
        terminal.type("q")
        terminal.wait(lambda screen: not screen.strip())
    finally:
        terminal.tmux("kill-server")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing"], "nothing at missing"),
        (["."], "no rollouts below"),
        (["--evn", "a"], "did you mean --env?"),
        (["one.jsonl"], "needs a terminal"),
    ],
)
def test_a_wrong_call_costs_one_sentence(tmp_path: Path, arguments: list[str], said: str) -> None:
    if said == "needs a terminal":
        (tmp_path / "one.jsonl").write_text('{"index": 0}\n')
    command = [sys.executable, "-m", "verifiers_nb.cli.tui", *arguments]
    failed = forked.run(command, tmp_path)
    assert failed.returncode == 2 and said in failed.stderr
    assert "Traceback" not in failed.stderr and len(failed.stderr.strip().splitlines()) == 1
