"""vLLM that begins where its imports have ended: a fork of a process that has imported it and done nothing else.

It is vLLM with its guard, its engine and its log; only the fifteen seconds are saved in which its two processes
would load PyTorch and themselves. What is said of imports, and of a whole start, is tested with a real one.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path[:1] += [str(Path(__file__).parents[1])]

import forked  # noqa: E402

from verifiers_nb.inference import vllm_server  # noqa: E402
from verifiers_nb.support import processes  # noqa: E402

ENTRY = "vllm.entrypoints.launchers.api_server.entry"
IMPORTED = [ENTRY, "vllm.entrypoints.openai.api_server", "vllm.v1.worker.cpu_worker"]
IMPORTED += ["vllm.v1.engine.core", "vllm.v1.executor.uniproc_executor"]


@cache
def origin() -> forked.Origin:
    """Return the process that is forked, which has the variables of a server."""
    return forked.Origin(__file__, vllm_server.server_env(os.devnull, []))


class Guard(forked.Popen):
    """A guard of vLLM, in place of the one that `start_guarded` returns."""

    origin = staticmethod(origin)

    def __init__(self, command: Sequence[str], grace: float = 10.0, **options: Any) -> None:
        super().__init__([sys.executable, "-m", "preloaded", str(grace), *command], **options)

    def terminate(self) -> None:
        """End vLLM with everything that it started."""
        self.send_signal(signal.SIGTERM)


def starts() -> Any:
    """Return a context in which `start_vllm` begins like this."""
    return patch.object(vllm_server, "start_guarded", Guard)


def main() -> int:
    """Be the guard of a command, in a fork."""
    grace, *command = sys.argv[1:]
    subprocess.Popen = Program  # type: ignore[assignment,misc]
    status = processes.guard(os.getppid(), float(grace), command)
    return status if status >= 0 else 128 - status


POPEN = subprocess.Popen


class Program:
    """vLLM's own process, in place of the one that a guard would start."""

    def __init__(
        self, command: Sequence[str], start_new_session: bool, preexec_fn: Callable[[], None]
    ) -> None:
        self.pid = os.fork()
        if not self.pid:
            subprocess.Popen = POPEN  # type: ignore[misc]
            os.setsid()
            preexec_fn()
            rename(" ".join(command))
            forked.end(forked.execute(["-m", ENTRY, *command[3:]]))


def rename(title: str) -> None:
    """Have this process called like this where processes are listed."""
    from setproctitle import setproctitle

    setproctitle(title)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    import vllm.v1.engine.utils

    vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    rename(
        "vLLM, loaded"
    )  # once before the variables of a fork are others, else it has no effect there
    sys.modules["preloaded"] = sys.modules["__main__"]
    forked.serve()
