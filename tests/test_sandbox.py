"""What a program of a model can see and do, in each situation that the sandbox's table names."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from verifiers_nb.support.sandbox import FOLDER_PREFIX

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="namespaces and Landlock are Linux's"
)

CANARY = "canary-4f1d"
UNSHARE, LANDLOCK, MOUNT = (272, 97), (444, 444), (165, 40)
SITUATIONS = {
    "all there": (),
    "no namespaces": (UNSHARE,),
    "no mounts": (MOUNT,),  # a user namespace without rights, as on Ubuntu
    "no Landlock": (LANDLOCK,),
}
PEOPLE = ["root", "user"] if os.getuid() == 0 else ["user"]

# Runs in place of a notebook: as somebody, where some calls are refused, with secrets in its memory.
NOTEBOOK = """
import ctypes, json, os, struct, sys, tempfile
from verifiers_nb.support import confine
refused, uid, closed, programs, unconfined = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
if uid and closed:  # this Python is in root's home: show the user that home with Python only
    confine.check(libc.unshare(confine.NEWNS))
    room = tempfile.mkdtemp(dir="/dev/shm")
    for command in (f"mount --make-rprivate /", f"mount --bind {sys.base_prefix} {room}",
                    f"mount -t tmpfs -o mode=755 tmpfs {closed}", f"mkdir -p {sys.base_prefix}",
                    f"mount --bind {room} {sys.base_prefix}", f"umount {room}", f"rmdir {room}"):
        assert os.system(command) == 0, command
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
    libc.prctl(4, 1, 0, 0, 0)  # dumpable, as a program is that a user started
from verifiers_nb.support.sandbox import Limits, Unconfined, run_python, sandbox_guards
if refused:
    column = confine.ARCHITECTURES[os.uname().machine][0]
    steps = [(confine.LOAD, 0, 0, 0)]
    for numbers in refused:
        steps += [(confine.EQUAL, 0, 1, numbers[column]), (confine.RETURN, 0, 0, confine.NOT_PERMITTED)]
    steps += [(confine.RETURN, 0, 0, confine.ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    confine.check(libc.prctl(38, 1, 0, 0, 0))
    confine.check(libc.prctl(22, 2, struct.pack("HP", len(steps), ctypes.addressof(code)), 0, 0))
memory = ctypes.create_string_buffer(("canary" + "-4f1d in memory").encode())
found = {"guards": sorted(sandbox_guards()), "pid": os.getpid()}
for name, program in programs.items():
    program = f"ADDRESS = {ctypes.addressof(memory)}; PARENT = {os.getpid()}\\n" + program
    try:
        found[name] = str(run_python(program, Limits(seconds=8, memory_mb=512), allow_unconfined=unconfined))
    except Unconfined as error:
        found[name] = f"Unconfined: {error}"
print(json.dumps(found))
"""

HELP = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result == -1: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def attempt(name, act):
    try: print(name, "GOT", str(act())[:200])
    except Exception as error: print(name, "refused", type(error).__name__)
def read(path):
    with open(path, "rb") as file: return file.read(200)
def memory():
    with open(f"/proc/{PARENT}/mem", "rb", 0) as file:
        file.seek(ADDRESS); return file.read(30)
def vm_read():
    class iovec(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    room = ctypes.create_string_buffer(30)
    mine, theirs = iovec(ctypes.addressof(room), 30), iovec(ADDRESS, 30)
    call(libc.process_vm_readv(PARENT, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)); return room.raw
"""
READS = """
for path in {paths!r}: attempt(path, lambda: read(path))
for path in (f"/proc/{{PARENT}}/environ", f"/proc/{{PARENT}}/cmdline", f"/proc/{{PARENT}}/maps", "/proc/1/cmdline", "/proc/self/environ"):
    attempt(path, lambda: read(path))
attempt("memory", memory)
attempt("vm_read", vm_read)
attempt("ptrace", lambda: call(libc.ptrace(16, PARENT, 0, 0)))
for path in ("/", "/proc", "/home", "/root", "/tmp", os.path.dirname({paths!r}[0])): attempt("list " + path, lambda: os.listdir(path))
"""
ACTS = """
import fcntl, resource, socket
def own(command, value):
    a, b = os.pipe(); return fcntl.fcntl(a, command, value)
attempt("F_SETOWN", lambda: own(8, PARENT))
attempt("F_SETSIG", lambda: own(10, 9))
attempt("F_SETOWN_EX", lambda: own(15, bytes(8)))
attempt("kill", lambda: os.kill(PARENT, 0))
attempt("pin", lambda: os.sched_setaffinity(PARENT, {0}))
attempt("idle", lambda: os.sched_setscheduler(PARENT, os.SCHED_IDLE, os.sched_param(0)))
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, PARENT, 19))
for look in (os.getpgid, os.getsid, os.sched_getaffinity, os.sched_getscheduler, os.sched_getparam):
    attempt(look.__name__, lambda: look(PARENT)); look(0)
attempt("getpriority", lambda: os.getpriority(os.PRIO_PROCESS, PARENT))
attempt("limit", lambda: resource.prlimit(PARENT, resource.RLIMIT_NOFILE, (3, 3)))
attempt("shmget", lambda: call(libc.shmget(0, 1 << 30, 0o1600)))
attempt("memfd", lambda: os.memfd_create("x"))
attempt("shm", lambda: os.open("/dev/shm/x", os.O_CREAT | os.O_WRONLY))
attempt("socket", lambda: socket.socket())
attempt("fork", lambda: os.fork())
attempt("outlive", lambda: call(libc.prctl(1, 0, 0, 0, 0)))
attempt("mkfifo", lambda: os.mkfifo("fifo"))
attempt("mknod", lambda: os.mknod("disk", 0o60600, os.makedev(7, 0)))
for device in ("/dev/tty", "/dev/loop0", "/dev/loop-control", "/dev/kvm", "/dev/ttyS0", "/dev/mem", "/dev/vda", "/dev/pts/ptmx", {terminal!r}, "/dev/ptmx"):
    attempt(device, lambda: os.open(device, os.O_RDWR))
victim, fifo = {victim!r}, {fifo!r}
attempt("write", lambda: open(victim, "w"))
attempt("append", lambda: open(victim, "a"))
attempt("truncate", lambda: os.truncate(victim, 0))
attempt("cut", lambda: os.open(victim, os.O_TRUNC))
attempt("unlink", lambda: os.unlink(victim))
attempt("rename", lambda: os.rename(victim, "mine"))
attempt("link", lambda: os.link(victim, "mine"))
attempt("chmod", lambda: os.chmod(victim, 0o777))
attempt("utime", lambda: os.utime(victim, (0, 0)))
attempt("fifo", lambda: os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
attempt("library", lambda: open(os.__file__, "a"))
attempt("library's rights", lambda: os.chmod(os.__file__, 0o777))
"""
WORKS = """
import decimal, fractions, json, math, random, re, statistics, threading, asyncio, tempfile
open("mine", "w").write("kept"); assert open("mine").read() == "kept" and os.listdir(".") == ["mine"]
os.unlink("mine")
open("/dev/null", "w").write("x"); assert len(open("/dev/urandom", "rb").read(9)) == 9
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
assert asyncio.run(asyncio.sleep(0, 42)) == 42
with tempfile.TemporaryFile() as file: file.write(b"x")
try: import numpy; assert numpy.linalg.inv(numpy.eye(3)).sum() == 3
except ModuleNotFoundError: pass
print("all well")
"""
FILLS = "for i in range(10**6): open(str(i), 'wb').write(bytes(10**6))"


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with keys, and a cache with the gold answers; pytest closes its own folders to other users."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        for name in (".ssh/id_rsa", ".cache/huggingface/datasets/gsm8k/gold.arrow", ".netrc"):
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{CANARY} in {name}")
        os.mkfifo(home / "fifo")
        (home / "temporary").mkdir()
        yield home


def give(folder: Path, uid: int) -> None:
    """Give a folder with all that is in it to a user, who can reach it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid)
    for parent in [p for p in folder.parents if p.stat().st_uid == 0 and p != Path("/")]:
        parent.chmod(parent.stat().st_mode | 0o055)


def play(
    home: Path, person: str, refused: tuple, programs: dict[str, str], unconfined: bool = False
) -> dict[str, str]:
    """Run programs in a notebook of somebody, where some system calls are refused."""
    uid = pwd.getpwnam("nobody").pw_uid - 4 if person == "user" and os.getuid() == 0 else 0
    if uid:
        give(home, uid)
    closed = [str(p) for p in Path(sys.base_prefix).parents if not p.stat().st_mode & 0o001]
    wish = json.dumps([refused, uid, (closed or [""])[0], programs, unconfined])
    env = {**os.environ, "HOME": str(home), "SECRET_KEY": f"{CANARY} in the environment"}
    env["TMPDIR"] = str(home / "temporary")
    call = [sys.executable, "-c", NOTEBOOK, wish]
    done = subprocess.run(call, env=env, cwd=home, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("person", PEOPLE)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_table(home: Path, person: str, situation: str) -> None:
    paths = [str(p) for p in home.rglob("*") if p.is_file()] + ["/etc/passwd", "/etc/shadow"]
    data = Path(__file__).parents[1] / "verifiers_nb" / "environments" / "data"
    paths += [str(path) for path in data.rglob("*") if path.is_file()][:3]
    places = {"victim": str(home / ".ssh/id_rsa"), "fifo": str(home / "fifo")}
    reads = HELP + READS.format(paths=paths)
    terminal = os.openpty()
    os.chmod(os.ttyname(terminal[1]), 0o666)
    acts = HELP + ACTS
    for name, path in {**places, "terminal": os.ttyname(terminal[1])}.items():
        acts = acts.replace(f"{{{name}!r}}", repr(path))
    programs = {"works": HELP + WORKS, "reads": reads, "acts": acts, "fills": FILLS}
    reader = os.open(home / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    found = play(home, person, SITUATIONS[situation], programs)
    for number in (reader, *terminal):
        os.close(number)
    assert found["works"].endswith("all well"), found["works"]
    for name in ("reads", "acts"):
        tried = found[name].splitlines()
        assert CANARY not in found[name], found[name]
        allowed = [line for line in tried if " refused " not in line]
        if situation == "no Landlock":  # its own root, in which there is nothing
            own = [
                "/",
                "/tmp",
                "/root",
                "/home",
                str(home),
            ]  # of the last only its own folder's parent
            allowed = [
                x for x in allowed if not any(x.startswith(f"list {path} GOT") for path in own)
            ]
            assert not [x for x in tried if x.startswith(f"list {home} GOT") and ".ssh" in x]
        assert not allowed, (found["guards"], allowed)
    assert len(found["acts"].splitlines()) >= 43 and len(found["reads"].splitlines()) >= 15
    assert "No space left" in found["fills"] or "its files take more than" in found["fills"]
    assert (home / ".ssh/id_rsa").read_text() == f"{CANARY} in .ssh/id_rsa"
    assert not list((home / "temporary").iterdir())
    print(person, situation, found["guards"], len(found["acts"].splitlines()), "acts refused")


@pytest.mark.parametrize("person", PEOPLE)
def test_where_nothing_holds_nothing_runs(home: Path, person: str) -> None:
    refused = (UNSHARE, LANDLOCK)
    found = play(home, person, refused, {"run": "print(6 * 7)"})
    assert found["run"].startswith("Unconfined: Programs of a model are not run here")
    assert "allow_unconfined=True" in found["run"] and "its own files" in found["run"]


@pytest.mark.parametrize("person", PEOPLE)
def test_an_unconfined_program_reads_files_and_not_our_memory(home: Path, person: str) -> None:
    """Where nothing holds and the caller allows it; the key in a file shows that files are open."""
    reads = HELP + READS.format(paths=[str(home / ".netrc")])
    found = play(home, person, (UNSHARE, LANDLOCK), {"reads": reads}, unconfined=True)
    tried = found["reads"].splitlines()
    print(*tried[:9], sep="\n")
    assert f"{CANARY} in .netrc" in tried[0]
    assert CANARY not in "".join(tried[1:])
    for what in (
        f"/proc/{found['pid']}/environ",
        f"/proc/{found['pid']}/maps",
        "memory",
        "vm_read",
    ):
        assert any(line.startswith(f"{what} refused") for line in tried), what


@pytest.mark.parametrize("refused", [(), (UNSHARE,)])
def test_folders_of_a_killed_notebook_are_gone_with_the_next(home: Path, refused: tuple) -> None:
    env = {**os.environ, "TMPDIR": str(home / "temporary")}
    script = "from verifiers_nb.support.sandbox import run_python\n"
    wait = script + 'run_python(\'open("left", "w").write("x"); import time; time.sleep(60)\')'
    notebook = subprocess.Popen([sys.executable, "-c", wait], env=env)
    deadline = time.monotonic() + 30
    while not (left := list((home / "temporary").glob(f"{FOLDER_PREFIX}*"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    left = list((home / "temporary").glob(f"{FOLDER_PREFIX}*"))
    notebook.send_signal(signal.SIGKILL)
    notebook.wait()
    time.sleep(0.5)
    assert left and all(path.exists() for path in left)
    for path in left:
        os.utime(path, (0, 0))  # a minute later
    subprocess.run(
        [sys.executable, "-c", f"{script}print(run_python('print(1)'))"], env=env, check=True
    )
    assert not list((home / "temporary").iterdir())
