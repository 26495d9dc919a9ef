"""Processes that begin where the imports have ended: forks of one that has imported and done nothing else.

Each is a process of its own, with its own folder, variables, output, signals and status. Only the seconds are
saved in which it would load PyTorch and its company. What a library reads from the environment when it is imported
is that of this process; tests of such variables, of memory and of imports start real ones.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

KIND = socket.AF_UNIX, socket.SOCK_SEQPACKET  # what is sent at once arrives at once
IMPORTED = ["verifiers_nb.cli.eval", "verifiers_nb.cli.train", "verifiers_nb.trainer.grpo"]
IMPORTED += ["verifiers_nb.inference.engine", "verifiers_nb.environments.addition", "datasets"]
IMPORTED += ["verifiers_nb.bridges.later_environments"]  # for environments that import verifiers
# What the workers of pytest import besides, if it is there.
BY_TESTS = ["openai.types.chat", "nbdev.test", "playwright.sync_api", "textual.app", "trl"]


class Origin:
    """The process that is forked. It starts when it is first asked for a fork, and ends with this one."""

    def __init__(self, script: str = __file__, env: Mapping[str, str] = os.environ) -> None:
        self.address = f"{tempfile.mkdtemp()}/origin"
        self.call, self.env = [sys.executable, script], {**env, "OMP_NUM_THREADS": "1"}
        self.listener = socket.socket(*KIND)
        self.listener.bind(self.address)
        self.listener.listen(100)
        threading.Thread(target=self.start_when_asked, daemon=True).start()

    def start_when_asked(self) -> None:
        """Start the process when somebody connects; it accepts the connection when it has imported."""
        select.select([self.listener], [], [])
        number, pipe = self.listener.fileno(), subprocess.PIPE
        pipes = dict(stdin=pipe, stdout=pipe, pass_fds=[number])  # nothing comes through them
        self.process = subprocess.Popen([*self.call, str(number)], env=self.env, **pipes)
        atexit.register(self.process.wait)  # so that its time counts; calls come last first
        atexit.register(self.process.kill)


@cache
def address() -> str:
    """Return where forks are asked for. All workers of pytest share one process (conftest.py)."""
    return os.environ.get("FORKED_ORIGIN") or Origin().address


def ask(address: str, asked: dict[str, Any], files: Sequence[int]) -> socket.socket:
    """Ask for a fork with these files; return the connection, which tells its number, then its status."""
    connection = socket.socket(*KIND)
    connection.connect(address)
    socket.send_fds(connection, [json.dumps(asked).encode()], files)
    return connection


class Popen:
    """As much of `subprocess.Popen` as tests need, for a command that begins with this Python."""

    address = staticmethod(address)

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
    ) -> None:
        assert command[0] == sys.executable
        self.args, self.folder = command, tempfile.TemporaryDirectory()
        self.out, self.err = (
            Path(file.name if file else f"{self.folder.name}/{name}")
            for file, name in ((stdout, "out"), (stderr, "err"))
        )
        asked = dict(command=[*map(str, command[1:])], cwd=str(cwd or Path.cwd()))
        asked |= dict(env=dict(os.environ if env is None else env))
        with open(os.devnull, "rb") as none, self.out.open("ab") as out, self.err.open("ab") as err:
            self.connection = ask(
                self.address(), asked, [each.fileno() for each in (none, out, err)]
            )
        self.pid = int(self.connection.recv(20))
        self.returncode: int | None = None
        self.lock = threading.Lock()  # a server is watched by a thread

    def read(self, seconds: float) -> None:
        """Note the status, if the process ends within some time."""
        with self.lock:
            if self.returncode is None and select.select([self.connection], [], [], seconds)[0]:
                self.returncode = int(self.connection.recv(20))
                self.connection.close()

    def poll(self) -> int | None:
        """Return the status, None if the process runs."""
        self.read(0)
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        """Wait for the end."""
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.read(0.2)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for the end, and return what was written; kill a process that is late."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.out.read_text(), self.err.read_text()


# Its fork has its files and its signals, ends when it is killed, and starts `executable` as "this Python".
PROGRAM = """#!{python} -IS
import json, os, resource, signal, socket, sys

origin = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
origin.connect({address!r})
asked = dict(command=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ), program={executable!r})
asked["file_size"] = resource.getrlimit(resource.RLIMIT_FSIZE)
socket.send_fds(origin, [json.dumps(asked).encode()], [0, 1, 2])
pid = int(origin.recv(20))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
status = int(origin.recv(20))
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if status != -signal.SIGKILL else None
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@cache
def program(executable: str = "") -> str:
    """Return a program that does what this Python does, in a fork: for what is started by a path, as kernels are.

    Its "this Python" is `executable`, by default the program.
    """
    path = Path(tempfile.mkdtemp()) / "python"
    names = dict(python=sys.executable, address=address(), executable=executable or str(path))
    path.write_text(PROGRAM.format(**names))
    path.chmod(0o700)
    return str(path)


@cache
def kernels() -> str:
    """Return a folder for JUPYTER_PATH, in which Jupyter finds kernels that begin where the imports have ended.

    A kernel named "plain" imports for itself.
    """
    folder = Path(tempfile.mkdtemp())
    for name, python in {"python3": program(), "plain": sys.executable}.items():
        argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        about = dict(argv=argv, display_name="Python 3 (ipykernel)", language="python")
        (folder / "kernels" / name).mkdir(parents=True)
        (folder / "kernels" / name / "kernel.json").write_text(json.dumps(about))
    return str(folder)


def free_port() -> int:
    """Return a port that nobody takes by chance: it is below those of connections and of who asks for any port."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def run(
    command: Sequence[str],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Do what `subprocess.run` does that captures texts."""
    process = Popen(command, cwd, env)
    said = process.communicate(timeout)
    return subprocess.CompletedProcess(command, process.wait(), *said)


def begin(asked: dict[str, Any], files: Sequence[int]) -> int:
    """Be the process that was asked for, in a fork; return its status."""
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0)  # noqa: SIM115
    if "program" in asked:
        os.setsid()  # what it signals as a group is its own
        sys.executable = asked["program"]
        resource.setrlimit(resource.RLIMIT_FSIZE, asked["file_size"])
    return execute(asked["command"])


def execute(command: Sequence[str]) -> int:
    """Do what Python does with these words, and return its status."""
    how, *sys.argv = command
    if how == "-u":
        how, *sys.argv = sys.argv
        sys.stdout.reconfigure(write_through=True)
    sys.path[0] = os.getcwd()  # as python -m and python -c have it
    importlib.invalidate_caches()
    sys.modules["__main__"] = own = ModuleType("__main__")
    try:
        if how == "-m":
            if main := getattr(importlib.import_module(name := sys.argv[0]), "main", None):
                return main() or 0
            runpy.run_module(name, run_name="__main__")
            return 0
        if how == "-c":
            code, sys.argv[0] = sys.argv[0], "-c"
            exec(compile(code, "<string>", "exec"), own.__dict__)
            return 0
        sys.argv, sys.path[0] = [how, *sys.argv], str(Path(how).parent)
        runpy.run_path(how, run_name="__main__")
        return 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        traceback.print_exc()
        return 130 if isinstance(error, KeyboardInterrupt) else 1


def end(status: int) -> NoReturn:
    """End as Python does, but without taking apart what was imported, which takes as long as a short command."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def is_gone(connection: socket.socket) -> bool:
    """Return whether who connected was killed before it said what it asks for."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def fork(connection: socket.socket, others: Sequence[socket.socket]) -> tuple[int, bool]:
    """Start the process that a connection asks for; return its number, and whether it ends with who asked."""
    text, files, *_ = socket.recv_fds(connection, 2**20, 3)
    asked = json.loads(text)
    if not (pid := os.fork()):
        for each in (connection, *others):
            each.close()
        end(begin(asked, files))
    for file in files:
        os.close(file)
    with suppress(OSError):  # who asked may be killed by now, which `serve` sees next
        connection.send(b"%d" % pid)
    return pid, "program" in asked


def serve() -> None:
    """Fork for each connection; tell it the number of the process, and its status when it has ended."""
    gc.collect()
    gc.freeze()  # the forks need not search what was imported for garbage
    listener = socket.socket(fileno=int(sys.argv[1]))
    forks: dict[
        int, tuple[int, socket.socket]
    ] = {}  # by descriptor: a process, and who asked for it
    callers: dict[socket.socket, int] = {}  # programs, and their forks
    while True:
        for ready in select.select([0, listener, *forks, *callers], [], [])[0]:
            if ready == 0:  # who started this process has ended
                return
            if ready is listener:
                connection, others = listener.accept()[0], [each for _, each in forks.values()]
                if is_gone(connection):
                    connection.close()
                    continue
                pid, ends = fork(connection, [listener, *others])
                forks[os.pidfd_open(pid)] = pid, connection
                if ends:
                    callers[connection] = pid
            elif ready in forks:
                pid, connection = forks.pop(ready)
                os.close(ready)
                callers.pop(connection, None)
                with connection, suppress(OSError):
                    connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            elif ready in callers:
                os.kill(callers.pop(ready), signal.SIGKILL)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    for name in BY_TESTS:
        with suppress(ImportError):
            importlib.import_module(name)
    serve()
