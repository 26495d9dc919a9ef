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
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import IO, Any
from unittest.mock import patch

import forked

from verifiers_nb.inference import vllm_options, vllm_server
from verifiers_nb.support import processes

FORK = multiprocessing.get_context("fork")
ENTRY = "vllm.entrypoints.launchers.api_server.entry"
IMPORTED = [ENTRY, "vllm.entrypoints.openai.api_server", "vllm.v1.worker.cpu_worker"]
IMPORTED += ["vllm.v1.engine.core", "vllm.v1.executor.uniproc_executor", *forked.IMPORTED]


@cache
def address() -> str:
    """Return where forks are asked for, of a process that has the variables of a server."""
    return forked.Origin(__file__, vllm_options.server_env(os.devnull, [], {})).address


class Popen(forked.Popen):
    """A process that has imported vLLM, and starts its own servers in the same way."""

    address = staticmethod(address)


class Guard(Popen):
    """A guard of vLLM, in place of the one that `start_guarded` returns."""

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


class Child:
    """A guard of vLLM in a process that is a fork itself: its child, as the guard has to be."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], stdout: IO[Any], stderr: IO[Any]
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            os.environ.clear()
            os.environ.update(env)
            for number, file in enumerate((stdout, stderr), 1):
                os.dup2(file.fileno(), number)
            sys.argv = ["preloaded", "10", *command]
            forked.end(main())

    def poll(self) -> int | None:
        """Return the status, None if the guard runs."""
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self) -> int:
        """Wait for the end."""
        while (status := self.poll()) is None:
            time.sleep(0.02)
        return status

    def terminate(self) -> None:
        """End vLLM with everything that it started."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


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
    for module in ("vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor"):
        importlib.import_module(module).get_mp_context = lambda: FORK
    vllm_server.start_guarded = Child
    # Once here, before the variables of a fork are others: else it has no effect there.
    rename("vLLM, loaded")
    sys.modules["preloaded"] = sys.modules["__main__"]
    forked.serve()
