"""Results of a stranger import nothing, and web pages neither hang nor lead to this machine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import forked
import pytest

from verifiers_nb.cli.browser import RunScreen, TerminalBrowser
from verifiers_nb.envs import tools

# Results of a stranger.


def test_looking_at_results_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by an absolute path, nor by a folder of environments beside the results."""
    monkeypatch.chdir(tmp_path)
    evil = f"open({str(tmp_path / 'ran')!r}, 'w')\ndef load_environment(**kw): raise ValueError\n"
    for name in ("evil", "addition"):
        folder = tmp_path / "environments" / name
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(evil)
    record = dict(index=0, prompt="p", answer="", task="", info={}, completion="c", reward=0.0)
    record |= dict(metrics={}, error=None, state={}, turns=[])
    for number, env in enumerate(("evil", str(tmp_path / "environments/evil"), "addition")):
        folder = tmp_path / f"outputs/evals/x--m/2026010{number + 1}-000000-abcd"
        folder.mkdir(parents=True)
        (folder / "results.jsonl").write_text(json.dumps(record) + "\n")
        about = {"env_id": env, "env_args": {"dataset": "/etc/passwd"}, "finished": True}
        (folder / "metadata.json").write_text(json.dumps(about))

    async def look() -> list[str]:
        from verifiers_nb.cli.saved_runs import find_runs

        said = []
        for run in find_runs(tmp_path):
            app = TerminalBrowser([tmp_path])
            async with app.run_test() as pilot:
                screen = RunScreen(run)
                await app.push_screen(screen)
                await app.workers.wait_for_complete()
                await pilot.pause()
                said.append(screen.formats)
        return said

    said = asyncio.run(look())
    assert len(said) == 3 and not (tmp_path / "ran").exists()
    assert (
        "checks of addition" in said
        and sum("no checks (import them with --env" in each for each in said) == 2
    )
    call = [
        sys.executable,
        "-m",
        "verifiers_nb.cli.eval",
        str(tmp_path / "environments/evil"),
        "--offline",
    ]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 2 and "is not the name of an environment" in done.stderr
    assert not (tmp_path / "ran").exists()


class Catcher(BaseHTTPRequestHandler):
    """A server of a stranger, which notes the keys that it is sent."""

    keys: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.keys.append(self.headers.get("Authorization", ""))
        self.send_error(400)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


def call(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Call a command of ours, with a key in the environment."""
    module, *flags = command
    env = {**os.environ, "OPENAI_API_KEY": "sk-mine", "OTHER_KEY": "s3cret", "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-m", f"verifiers_nb.cli.{module}", *flags)
    return forked.run(command, cwd, env)


@pytest.fixture
def catcher() -> Iterator[str]:
    """Serve in this process; give the address."""
    Catcher.keys.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Catcher) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.mark.parametrize("name", ["endpoints_path", "api_base_url", "endpoint", "env_args", "both"])
def test_resuming_a_strangers_evaluation_runs_and_sends_nothing(
    name: str, tmp_path: Path, catcher: str
) -> None:
    (tmp_path / "evil.py").write_text("open('ran', 'w')\nENDPOINTS = {}\n")
    saved: dict[str, Any] = {
        "endpoints_path": "evil.py",
        "api_base_url": catcher,
        "endpoint": catcher,
        "env_args": {"judge_base_url": catcher, "judge_api_key_var": "OTHER_KEY", "offline": True},
    }
    settings = {
        k: saved[k] for k in (["api_base_url", "endpoints_path"] if name == "both" else [name])
    }
    (tmp_path / "gift").mkdir()
    about = {
        "finished": False,
        "settings": {"num_examples": 1, "rollouts_per_example": 1, **settings},
    }
    (tmp_path / "gift/metadata.json").write_text(json.dumps(about))
    env = "simpleqa" if name == "env_args" else "addition"
    done = call("eval", env, "--resume", "gift", cwd=tmp_path)
    assert done.returncode == 2 and "so pass these flags again" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists() and not Catcher.keys
    print(done.stderr)


RUNS = {
    "env": 'env = "evil_env"',
    "env_dir_path": 'env = "addition"\nenv_dir_path = "elsewhere"',
    "endpoints_path": 'env = "addition"\nendpoints_path = "evil.py"\nendpoint = ["x"]',
    "endpoint": 'env = "addition"\nendpoint = ["URL"]\napi_key_var = "OTHER_KEY"',
    "vllm_server_host": 'env = "addition"\n[grpo]\nvllm_server_host = "127.0.0.1"\nvllm_server_port = PORT',
    "model_init_kwargs": 'env = "addition"\n[grpo]\nmodel_init_kwargs = {trust_remote_code = true}',
    "megatron_core": 'env = "addition"\n[lora]\nmegatron_core = "evil"\nmegatron_config = {}',
    "push_to_hub": 'env = "addition"\n[grpo]\npush_to_hub = true',
}


@pytest.mark.parametrize("name", RUNS)
def test_resuming_a_strangers_training_runs_and_sends_nothing(
    name: str, tmp_path: Path, catcher: str
) -> None:
    for path in ("evil.py", "evil_env.py", "elsewhere/addition/addition.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("open('ran', 'w')\nENDPOINTS = {}\n")
    (tmp_path / "gift").mkdir()
    port = catcher.rpartition(":")[2].removesuffix("/v1")
    told = RUNS[name].replace("URL", catcher).replace("PORT", port)
    (tmp_path / "gift/run.toml").write_text(told)
    done = call("train", "--resume", "gift", cwd=tmp_path)
    assert (
        done.returncode == 2
        and "gift/run.toml may come from somebody else and sets " in done.stderr
    )
    assert name in done.stderr and "add --config gift/run.toml" in done.stderr
    assert not (tmp_path / "ran").exists() and not Catcher.keys
    print(done.stderr)


# The page reader of `ask`.


@pytest.fixture
def drip() -> Iterator[tuple[int, list[bytes]]]:
    """A server on this machine that sends a byte every 0.2 s, without end; its port, and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                    asked.append(connection.recv(4096))
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\n\r\n"
                        if b"/body" in asked[-1]
                        else b"HTTP/1.1 200 OK\r\n"
                    )
                    while True:
                        connection.sendall(b"x")
                        time.sleep(0.2)
                except OSError:
                    if server.fileno() == -1:
                        return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], asked


@pytest.mark.parametrize("path", ["body", "head"])
def test_a_page_that_drips_ends_in_time(
    drip: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(tools, "public_socket", lambda found: socket.socket(*found[:3]))
    monkeypatch.setattr(tools, "PAGE_SECONDS", 1.5)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        tools.read_page(f"http://127.0.0.1:{drip[0]}/{path}")
    assert time.monotonic() - began < 30 and drip[1]  # it would drip for ever


@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["127.0.0.1", "1.1.1.1"]]
)
def test_a_name_that_leads_to_this_machine(
    drip: Any, monkeypatch: pytest.MonkeyPatch, answers: list[str]
) -> None:
    """Each look-up gives the next answer, as in DNS rebinding; what counts is where we connect."""
    monkeypatch.setattr(tools, "PAGE_SECONDS", 3.0)
    turns = iter(answers * 20)

    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(turns), port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for _ in range(2):
        with pytest.raises((ValueError, OSError)):
            tools.read_page(f"http://rebind.example:{drip[0]}/body")
    assert not drip[1]
