"""The demo as a process: stopped, continued, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from verifiers_nb.cli.demo import QUICK_START

TRAINING = """
import os, time
from pathlib import Path

checkpoint, kernel = Path("checkpoint"), Path("kernel")
kernel.write_text(str(os.getpid()))
start = int(checkpoint.read_text()) if checkpoint.exists() else 0
try:
    for step in range(start, start + 600):
        print("step", step, flush=True)
        if start:
            break
        time.sleep(0.1)
except KeyboardInterrupt:
    checkpoint.write_text("7")
    if Path("hang").exists():
        time.sleep(60)
    print("checkpoint saved", flush=True)
    raise
"""
ENDING = """
import json

figures = dict(steps=600, reward_first5=0.4, reward_last5=1.1, greedy_before=0.4, greedy_after=1.0)
Path("outputs/quickstart/summary.json").write_text(json.dumps(figures))
"the end"
"""


def wait_until(happened: Callable[[], bool], seconds: float = 60) -> None:
    """Return when it happened; an assertion error when it takes longer."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Say whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Demo:
    """A demo of a stand-in notebook that trains for a minute, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / QUICK_START.notebook).parent.mkdir(parents=True)
        cells = [new_markdown_cell("# Train"), new_code_cell(TRAINING), new_code_cell(ENDING)]
        nbformat.write(new_notebook(cells=cells), folder / QUICK_START.notebook)
        self.folder = folder
        self.log = folder / "log"

    def start(self, python: str) -> subprocess.Popen:
        """Call the demo in a session of its own and return when it trains."""
        (self.folder / "kernel").unlink(missing_ok=True)
        command = [python, "-m", "verifiers_nb.cli.demo"]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=out, stderr=out, start_new_session=True
            )
        # A step is printed inside `try`, so that a signal after it always finds the cell's handler.
        wait_until(lambda: "\nstep " in self.log.read_text())
        return self.process

    def kernel(self) -> int:
        """Return the process id of the kernel."""
        return int((self.folder / "kernel").read_text())


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_stop_saves_and_the_same_command_continues(demo: Demo, kind: signal.Signals) -> None:
    process = demo.start(forked.program())
    process.send_signal(kind)
    assert process.wait(60) == 130
    assert demo.log.read_text().endswith(
        "checkpoint saved\nstopped; run the same command to continue\n"
    )
    saved = nbformat.read(demo.folder / "outputs/quickstart/quick_start.ipynb", 4)
    assert "step 0" in saved.cells[1].outputs[0].text
    assert not alive(demo.kernel())

    assert demo.start(forked.program()).wait(60) == 0
    assert "\nstep 7\n" in demo.log.read_text() and "the end" in demo.log.read_text()


def test_second_press_ends_at_once(demo: Demo) -> None:
    (demo.folder / "hang").touch()
    process = demo.start(forked.program())
    process.send_signal(signal.SIGINT)
    wait_until((demo.folder / "checkpoint").exists)
    time.sleep(0.6)
    process.send_signal(signal.SIGINT)
    assert process.wait(50) == 130  # of the 60 s of its `hang`
    assert not alive(demo.kernel())


def test_killed_demo_leaves_no_kernel(demo: Demo) -> None:
    process = demo.start(sys.executable)  # which the kernel itself watches
    process.kill()
    process.wait()
    wait_until(lambda: not alive(demo.kernel()), seconds=50)
