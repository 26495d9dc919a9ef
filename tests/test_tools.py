"""Tools in the hands of a hostile policy: programs, expressions, calls; and rollouts that are cancelled."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Optional

import httpx
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai import AsyncOpenAI

from verifiers_nb.envs.tool_env import ToolEnv
from verifiers_nb.envs.tools import calculator, convert_func_to_oai_tool, make_tool, python
from verifiers_nb.rubrics.rubric import Rubric
from verifiers_nb.support import sandbox
from verifiers_nb.support.sandbox import Limits, run_python, sandbox_guards

SMALL = Limits(seconds=10, memory_mb=256, file_mb=2, output_bytes=2000)
SHORT = Limits(seconds=1, memory_mb=256, file_mb=2, output_bytes=2000)
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
DATA = Dataset.from_dict({"question": ["What is 6 * 7?"], "answer": ["42"]})


def needs(guard: str) -> pytest.MarkDecorator:
    """Skip a test where the kernel does not allow the guard that it is about."""
    return pytest.mark.skipif(guard not in sandbox_guards(), reason=f"no guard {guard!r} here")


def children(pid: int | str = "self") -> list[int]:
    """Return the child processes of all threads of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end just now
            found += map(int, task.read_text().split())
    return found


def run_alone(script: str, *arguments: str) -> str:
    """Run a script in a Python of its own and return what it prints."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Expect that no program outlives its test, and that no folder is left behind."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = set(children()) if sys.platform == "linux" else set()
    yield
    assert not list(folder.iterdir())
    if sys.platform == "linux":
        assert set(children()) <= before


# Programs that use too much.


def test_an_endless_loop_ends_in_time() -> None:
    began = time.monotonic()
    limits = Limits(seconds=3, memory_mb=256, file_mb=2, output_bytes=2000)
    run = run_python("print('on', flush=True)\nwhile True: pass", limits)
    assert str(run) == "on\n[stopped after 3 s]"
    assert time.monotonic() - began < 30


def test_signals_can_be_ignored_but_not_the_last() -> None:
    code = """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: time.sleep(1)
"""
    assert run_python(code, SHORT).stopped == "stopped after 1 s"


@pytest.mark.parametrize(
    "code", ["x = bytearray(10**9)", "x = []\nwhile True: x.append(bytearray(10**6))", "9**9**9"]
)
def test_memory_is_bounded(code: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    run = run_python(code, SHORT)
    assert "MemoryError" in run.output or run.stopped or run.status < 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert max(0, after - before) < 300 * 1024 or before > 300 * 1024


def test_a_gigabyte_of_output_costs_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = run_python("for i in range(10**6): print('spam' * 256)", SMALL)
    assert len(run.output) < 2200
    assert "bytes cut" in run.output
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def test_a_hole_in_the_output_is_no_way_around() -> None:
    run = run_python("import os; os.lseek(1, 1 << 40, 0); os.write(1, b'x')", SMALL)
    assert len(run.output) < 2200
    assert run.status != 0


def test_a_thread_bomb_ends() -> None:
    code = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()"
    run = run_python(code, SHORT)
    assert run.stopped or "can't start new thread" in run.output


def test_deep_recursion_is_a_crash_of_its_own() -> None:
    code = "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()"
    run = run_python(code, SHORT)
    assert run.status != 0


# Programs that reach out.


@needs("calls")
def test_a_fork_bomb_never_starts() -> None:
    run = run_python("import os\nwhile True: os.fork()", SMALL)
    assert "Operation not permitted" in run.output
    spawning = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'])"
    assert "Operation not permitted" in run_python(spawning, SMALL).output


@linux
def test_a_daemon_does_not_outlive_its_program(tmp_path: Path) -> None:
    """Orphans of this script become its children, so that it sees whoever escaped."""
    script = """
import ctypes, os, sys, time
from verifiers_nb.support.sandbox import Limits, run_python
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
code = '''
import os, time
for attempt in (os.fork, os.forkpty):
    try:
        if attempt() == 0:
            os.setsid()
            time.sleep(60)
    except OSError as error:
        print(error)
'''
print(run_python(code, Limits(seconds=20)))
time.sleep(0.2)
print("left:", [open(p).read() for p in [f"/proc/self/task/{os.getpid()}/children"]])
"""
    out = run_alone(script)
    assert "Operation not permitted" in out or "calls" not in sandbox_guards()
    if "calls" in sandbox_guards():
        assert "left: ['']" in out


@needs("calls")
@pytest.mark.parametrize(
    "attack",
    [
        "os.kill(os.getppid(), 0)",
        "os.kill(-1, 0)",
        "os.killpg(os.getpgid(os.getppid()), 0)",
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
        "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)",
    ],
)
def test_other_processes_are_out_of_reach(attack: str) -> None:
    """With signal 0, which only asks whether a signal would be allowed."""
    run = run_python(f"import os, resource, signal\n{attack}", SMALL)
    assert "Error" in run.output.splitlines()[-1]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 3


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    assert "s3cret" not in run_python("import os; print(os.environ, os.environb)", SMALL).output


@needs("user")
def test_the_environment_of_its_parent_is_closed() -> None:
    env = {**os.environ, "SECRET_KEY": "s3cret"}
    script = """
from verifiers_nb.support.sandbox import run_python
for what in ("environ", "mem", "fd/0", "maps"):
    print(run_python(f"import os; print(open(f'/proc/{{os.getppid()}}/{what}', 'rb').read(99))"))
"""
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert "s3cret" not in done.stdout
    assert done.stdout.count("Error: [Errno") == 4, done.stdout


def test_there_is_no_network() -> None:
    if not {"network", "calls"} & sandbox_guards():
        pytest.skip("no guard against it here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1).send(b'x')"
        assert "Error" in run_python(code, SMALL).output
        with pytest.raises(TimeoutError):
            server.accept()


@needs("root")
def test_files_are_written_in_its_own_folder_only(tmp_path: Path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("whole")
    code = f"""
import os, pathlib, shutil
victim = pathlib.Path({str(victim)!r})
for attack in (victim.unlink, lambda: victim.write_text("x"), lambda: os.chmod(victim, 0), lambda: os.symlink(victim, "link") or open("link", "w"),
               lambda: shutil.rmtree(victim.parent), lambda: os.open("/dev/shm/x", os.O_CREAT | os.O_WRONLY)):
    try: print("done", attack())
    except OSError as error: print(type(error).__name__, error.errno)
pathlib.Path("mine").write_text("ok"); print(pathlib.Path("mine").read_text())
"""
    run = run_python(code, SMALL)
    assert len(re.findall(r"^\w+Error (2|13|30)$", run.output, re.M)) == 6, run.output
    assert run.output.endswith("ok")
    assert victim.read_text() == "whole"


def test_files_are_bounded() -> None:
    big = run_python("open('a', 'wb').write(bytes(10**7))", SMALL).output
    assert "File too large" in big or "No space left" in big
    if "root" in sandbox_guards():
        many = "for i in range(9): open(str(i), 'wb').write(bytes(10**6))"
        assert "No space left" in run_python(many, SMALL).output


def test_a_folder_that_resists_is_removed() -> None:
    code = "import os; os.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a/b', 0); os.chmod('a', 0)"
    assert run_python(code, SMALL).status == 0


@linux
def test_programs_die_with_a_killed_notebook(tmp_path: Path) -> None:
    script = "from verifiers_nb.support.sandbox import run_python\nrun_python('import time; time.sleep(60)')"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    notebook = subprocess.Popen([sys.executable, "-c", script], env=env)
    wait_until(lambda: children(notebook.pid))
    time.sleep(0.3)
    started = children(notebook.pid)
    notebook.kill()
    notebook.wait()
    wait_until(lambda: not any(alive(pid) for pid in started))


LATE = """
import os, signal, sys, time
from verifiers_nb.support import sandbox
start, control = sandbox.start_confined, sandbox.process_control

def start_and_hold(*given):
    process = start(*given)
    os.kill(process.pid, signal.SIGSTOP)  # before Python has begun there
    print(process.pid, flush=True)
    return process

def control_when_alone(*given):
    print(os.getpid(), flush=True)
    while os.getppid() == notebook:
        time.sleep(0.01)
    control(*given)

sandbox.sandbox_guards()
notebook = os.getpid()
sandbox.start_confined, sandbox.process_control = start_and_hold, control_when_alone
if sys.argv[1] == "program":
    sandbox.run_confined("import time; time.sleep(60)", sandbox.Limits(seconds=60), "any")
else:
    sandbox.call_apart(lambda: time.sleep(60), {}, 60)
"""


@linux
@pytest.mark.parametrize("what", ["program", "function"])
def test_what_has_only_been_started_dies_with_a_killed_notebook(what: str, tmp_path: Path) -> None:
    """It is not yet known to Linux as one that ends with its parent when the parent ends."""
    command, env = [sys.executable, "-c", LATE, what], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as notebook:
        assert notebook.stdout is not None
        started = int(notebook.stdout.readline())
        notebook.kill()
    os.kill(started, signal.SIGCONT)
    wait_until(lambda: not alive(started))


def test_a_test_of_the_sandbox_that_is_stopped_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the rollout that asked first is cancelled; the machine has its guards all the same."""
    before = sandbox_guards()

    def held(*given: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"], start_new_session=True)

    sandbox_guards.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(sandbox, "start_confined", held)
        patched.setattr(sandbox, "cancelled", lambda: True)
        with pytest.raises(RuntimeError, match="stopped: the rollout was cancelled"):
            sandbox_guards()
    assert sandbox_guards() == before


def alive(pid: int) -> bool:
    """Say whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@needs("calls")
def test_where_namespaces_are_forbidden_the_filter_still_stands() -> None:
    """As in most containers: here a filter of our own refuses `unshare` beforehand."""
    script = """
import os
from verifiers_nb.support import confine
from verifiers_nb.support.sandbox import run_python, sandbox_guards
import ctypes, struct
machine, column = os.uname().machine, confine.ARCHITECTURES[os.uname().machine][0]
number = confine.REFUSED["unshare"][column]
steps = [(confine.LOAD, 0, 0, 0), (confine.EQUAL, 0, 1, number), (confine.RETURN, 0, 0, confine.NOT_PERMITTED), (confine.RETURN, 0, 0, confine.ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
libc = ctypes.CDLL(None, use_errno=True)
confine.check(libc.prctl(38, 1, 0, 0, 0))
confine.check(libc.prctl(22, 2, struct.pack("HP", 4, ctypes.addressof(code)), 0, 0))
print(sorted(sandbox_guards()))
print(run_python("print(6 * 7)"))
for attack in ("os.fork()", "socket.socket()", "os.kill(os.getppid(), 0)"):
    print(run_python(f"import os, socket; {attack}").output.splitlines()[-1])
"""
    lines = run_alone(script).splitlines()
    assert lines[:2] == ["['calls', 'landlock', 'limits', 'powers']", "42"]
    assert lines[2:] == ["PermissionError: [Errno 1] Operation not permitted"] * 3


def test_many_programs_in_threads() -> None:
    with ThreadPoolExecutor(16) as pool:
        runs = list(pool.map(lambda i: run_python(f"print({i})", SMALL), range(32)))
    assert [run.output for run in runs] == [str(i) for i in range(32)]


# Expressions.

atoms = st.sampled_from(
    [*"0123456789", "9" * 50, "1e300", "0.5", "pi", "e", "x", "1j", "True", "''"]
)
signs = st.sampled_from(
    ["+", "-", "*", "/", "//", "%", "**", "^", "<<", " if ", ",", "(", ")", ":="]
)
names = st.sampled_from(["factorial(", "pow(", "exp(", "round(", "max(", "log(", "open(", "gcd("])


def timed(expression: str) -> tuple[str, float]:
    """Return an answer and the processor seconds of this thread: others of this process may be at work."""
    began = time.thread_time()
    answer = calculator(expression)
    return answer, time.thread_time() - began


@given(st.lists(st.one_of(atoms, signs, names, st.text(max_size=3)), max_size=40).map("".join))
@settings(max_examples=400, deadline=None)
def test_the_calculator_answers_anything_at_once(expression: str) -> None:
    answer, seconds = timed(expression)
    assert seconds < 1 or min(timed(expression)[1] for _ in range(3)) < 1
    assert isinstance(answer, str)
    assert len(answer) < 4000
    if not answer.startswith("Error: "):
        float(answer)


@pytest.mark.parametrize("sign", ["**", "*", "+"])
def test_no_chain_of_operators_gets_expensive(sign: str) -> None:
    chains = (
        sign.join(["99"] * 100),
        sign.join(["factorial(900)"] * 30),
        f"(({sign.join('9999')}))",
    )
    for chain in chains:
        assert len(calculator(chain)) < 4000
    assert sum(min(timed(chain)[1] for _ in range(3)) for chain in chains) < 1


# Schemas.


def nested(
    points: list[dict[str, tuple[int, float]]],
    mode: Literal["fast", 3] = "fast",
    limit: Optional[list[int]] = None,  # noqa: UP045
    more: dict[str, list[str]] | None = None,
) -> str:
    """Do something.

    Args:
        points: named points
    """
    return ""


def test_schemas_are_valid_and_say_what_is_accepted() -> None:
    schema = convert_func_to_oai_tool(nested)["function"]["parameters"]
    Draft202012Validator.check_schema(schema)
    accepts = Draft202012Validator(schema).is_valid
    tool = make_tool(nested)
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"points": [{"a": [1, 2.5]}]}, True),
        ({"points": [], "mode": 3, "limit": [1], "more": {"a": []}}, True),
        ({"points": [{"a": [1]}]}, False),
        ({"points": [], "mode": "slow"}, False),
        ({"mode": 3}, False),
        ({"points": [], "other": 1}, False),
    ]
    for arguments, fine in cases:
        assert accepts(arguments) == fine
        try:
            tool.check_names(arguments)
            tool.read(arguments)
            read = True
        except ValueError:
            read = False
        assert read == fine, arguments


# Rollouts.


def call(name: str, id_: str = "a", **arguments: Any) -> SimpleNamespace:
    """Return a tool call as a client gives it."""
    function = SimpleNamespace(name=name, arguments=json.dumps(arguments))
    return SimpleNamespace(id=id_, type="function", function=function)


class Script:
    """A client that says the given turns, in every rollout from the start."""

    def __init__(self, *turns: Any) -> None:
        self.turns = turns
        self.chat = self.completions = self

    async def create(self, messages: list[dict[str, Any]], **request: Any) -> Any:
        turn = self.turns[sum(message["role"] == "assistant" for message in messages)]
        said = SimpleNamespace(content=turn if isinstance(turn, str) else None)
        if not isinstance(turn, str):
            said.tool_calls = turn
        return SimpleNamespace(choices=[SimpleNamespace(message=said)])


@linux
def test_a_cancelled_run_leaves_no_program_behind() -> None:
    env = ToolEnv([python], dataset=DATA)
    sleeping = [call("python", id_, code="import time; time.sleep(60)") for id_ in "ab"]
    inputs = {"prompt": [[{"role": "user", "content": "?"}]] * 4, "answer": [""] * 4}
    before = set(children())  # what other tests of this process keep running

    def started() -> set[int]:
        return set(children()) - before

    async def cancel_soon() -> None:
        run = asyncio.create_task(env.a_generate(inputs, Script(sleeping), "script"))
        while len(started()) < 4:
            await asyncio.sleep(0.02)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        began = time.monotonic()
        while started() and time.monotonic() - began < 30:
            await asyncio.sleep(0.02)

    asyncio.run(cancel_soon())
    assert not started()


def test_a_cancelled_async_tool_is_cancelled() -> None:
    begun, ended = [], []

    async def wait() -> str:
        """Wait."""
        begun.append(True)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
        return ""

    async def cancel_soon() -> None:
        env = ToolEnv([wait], dataset=DATA)
        run = asyncio.create_task(env.a_generate(env.dataset, Script([call("wait")] * 3), "script"))
        async with asyncio.timeout(60):
            while len(begun) < 3:
                await asyncio.sleep(0.01)
        run.cancel()
        await asyncio.wait([run])

    asyncio.run(cancel_soon())
    assert ended == [True] * 3


def test_blocking_tools_of_many_rollouts_overlap() -> None:
    def slow() -> str:
        """Wait."""
        time.sleep(0.2)
        return "42"

    env = ToolEnv([slow], dataset=DATA)
    inputs = {"prompt": [[{"role": "user", "content": "?"}]] * 100, "answer": ["42"] * 100}
    began = time.monotonic()
    results = env.generate(inputs, Script([call("slow"), call("slow", "b")], "42"), "script")
    assert time.monotonic() - began < 20  # 40 s one after the other
    assert all(state["tools_called"] == ["slow", "slow"] for state in results.state)
    began = time.monotonic()
    while [t for t in threading.enumerate() if t.name == "verifiers_nb-tool"]:
        assert time.monotonic() - began < 30
        time.sleep(0.05)


def test_tool_calls_go_through_the_openai_client_and_back() -> None:
    """The next request carries the calls and their answers, in the form that a server takes."""
    requests: list[dict[str, Any]] = []
    first = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": "calculator", "arguments": a}}
            for i, a in (("x", '{"expression": "6 * 7"}'), ("y", "not json"))
        ],
    }

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(json.loads(request.content))
        message = first if len(requests) == 1 else {"role": "assistant", "content": "42"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        return httpx.Response(200, json={**body, "choices": [choice]})

    async def play() -> Any:
        transport = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        client = AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=transport)
        env = ToolEnv([calculator], dataset=DATA, rubric=Rubric([lambda completion: 1.0]))
        return await env.a_generate(env.dataset, client, "m")

    results = asyncio.run(play())
    assert results.completion[0][-1]["content"] == "42", results.state[0].get("error")
    assert requests[0]["tools"] == [convert_func_to_oai_tool(calculator)]
    _, assistant, *answers = requests[1]["messages"]
    assert [c["function"]["arguments"] for c in assistant["tool_calls"]][
        0
    ] == '{"expression": "6 * 7"}'
    assert [(a["tool_call_id"], a["content"][:32]) for a in answers] == [
        ("x", "42"),
        ("y", "The arguments of calculator are "),
    ]


def test_a_process_group_dies_where_there_is_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that started others, as macOS would allow, is ended with them."""

    def start(
        limits: Limits, folder: str, program: Any, output: Any, mode: str
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-"]
        streams = {"stdin": program, "stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, **streams, cwd=folder, env={}, start_new_session=True)

    monkeypatch.setattr(sandbox, "start_confined", start)
    code = "import os, time\npid = os.fork()\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    run = run_python(code, Limits(seconds=6))
    pids = [int(line) for line in run.output.split()]
    assert len(pids) == 2
    if sys.platform == "linux":
        wait_until(lambda: not any(alive(pid) for pid in pids))


def wait_until(happened: Callable[[], Any]) -> None:
    """Return when it happened; an assertion error when it takes half a minute."""
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < 30
        time.sleep(0.02)


@linux
def test_an_interrupted_call_ends_its_program() -> None:
    before, began = set(children()), time.monotonic()

    def interrupt() -> None:
        wait_until(lambda: set(children()) - before)
        time.sleep(1)  # it has been started when this thread knows of it, not only forked
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        python("import time; time.sleep(60)")
    thread.join()
    assert time.monotonic() - began < 30  # of 60
    wait_until(lambda: set(children()) <= before)
