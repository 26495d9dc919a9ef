"""Tools of real MCP servers: two from PyPI, one of the protocol's older versions, and one behind an address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from install import pip_settings

import verifiers_nb as vf
from verifiers_nb.envs.multiturn import ScriptedClient, tool_call
from verifiers_nb.envs.results import read_rollouts
from verifiers_nb.support.processes import descendants

pytestmark = pytest.mark.skipif(not find_spec("mcp"), reason="needs the package mcp")
# Each with what it needs beside our own packages. The calculator speaks the protocol of 2025.
TIME = ("mcp-server-time==2026.10.19", "tzlocal==5.4.5")
CALCULATOR = ("mcp-server-calculator==0.2.1", "mcp==1.30.0", "httpx-sse==0.4.3")


def server(folder: Path, *packages: str) -> dict[str, Any]:
    """Install a server from PyPI in a folder of its own; return how to start it."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--target", folder]
    uv += ["--index-strategy", "unsafe-best-match"]
    settings = {**os.environ, **pip_settings()}
    done = subprocess.run([*uv, *packages], capture_output=True, text=True, env=settings)
    if done.returncode:
        pytest.skip(f"{packages[0]} cannot be installed: {done.stderr[-200:]}")
    module = packages[0].partition("==")[0].replace("-", "_")
    return {"command": sys.executable, "args": ["-m", module], "env": {"PYTHONPATH": str(folder)}}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return how to start the two servers."""
    folder = tmp_path_factory.mktemp("servers")
    return [server(folder / "time", *TIME), server(folder / "calculator", *CALCULATOR)]


def command_of(pid: int) -> str:
    """Return the command line of a process, or "" if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def ours() -> list[int]:
    """Return the processes of MCP servers that this process has started, guards included."""
    return [pid for pid in descendants(os.getpid()) if "mcp_server_" in command_of(pid)]


def rows(*questions: str) -> list[dict[str, str]]:
    return [{"question": question, "answer": "42"} for question in questions]


CONVERT = tool_call(
    "convert_time",
    source_timezone="Asia/Tokyo",
    time="12:00",
    target_timezone="UTC",
)


def test_real_servers(servers: list[dict[str, Any]]) -> None:
    """A run starts each server once, for all rollouts, and ends it; their mistakes are answers."""
    counts, killed = [], []

    def look(seconds: int = 0) -> str:
        "Count the processes, and kill a server for a positive number."
        counts.append(len(ours()))
        if seconds:
            killed.append(max(p for p in ours() if "mcp_server_time" in command_of(p)))
            os.kill(killed[0], signal.SIGKILL)
            while command_of(killed[0]):
                time.sleep(0.01)
        return "done"

    def play(messages: Any) -> Any:
        question, turn = messages[0]["content"], sum(m["role"] == "assistant" for m in messages)
        calls = [
            CONVERT,
            tool_call("calculate", expression="6 * 7"),
            tool_call("calculate", wrong=1),
        ]
        kill = [[tool_call("look", seconds=1)], [CONVERT], "42"]
        return (kill if question == "kill" else [calls, [tool_call("look")], "42"])[turn]

    env = vf.ToolEnv([look], mcp=servers, dataset=rows("a", "b", "kill", "c"))
    assert ours() == []
    names = [tool["function"]["name"] for tool in env.oai_tools]
    assert names == ["look", "get_current_time", "convert_time", "calculate"]
    parameters = env.oai_tools[2]["function"]["parameters"]
    assert parameters["required"] == ["source_timezone", "time", "target_timezone"]
    results = env.generate(env.get_dataset(), ScriptedClient(play), "script", max_concurrent=1)
    assert ours() == [] and len(killed) == 1 and set(counts[:2]) == {4}  # each with its guard
    errors = [state.get("error") for state in results.state]
    assert [bool(error) for error in errors] == [False, False, True, False]
    assert "ServerFailed" in errors[2] and "ended" in errors[2]
    tools = [m["content"] for m in results.completion[0] if m["role"] == "tool"]
    assert json.loads(tools[0])["time_difference"] == "-9.0h"
    assert tools[1] == "42" and "wrong" in tools[2]


@pytest.fixture
def address() -> Iterator[str]:
    """Serve two tools by HTTP, one of which raises."""
    import uvicorn
    from mcp.server.mcpserver import MCPServer

    made = MCPServer("shop")

    @made.tool()
    def price(item: str) -> float:
        "Return the price of an item."
        return {"tea": 3.5}[item]

    @made.tool(name="look/up")
    def look_up(items: list[str], limit: int = 1) -> dict[str, int]:
        "Look up items."
        return dict.fromkeys(items[:limit], 1)

    config = uvicorn.Config(made.streamable_http_app(), port=0, log_level="error")
    web = uvicorn.Server(config)
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}/mcp"
    web.should_exit = True
    thread.join(10)


def test_an_address(address: str) -> None:
    """A server behind an address is used and left running; one that is gone fails its rollouts."""
    script = [
        [tool_call("price", item="tea"), tool_call("price", item="gin")],
        [tool_call("look_up", items=["a", "b"], limit=2), tool_call("look_up", items=5)],
        "3.5",
    ]
    env = vf.ToolEnv(mcp=address, dataset=rows("a", "b", "c"))
    results = env.generate(env.get_dataset(), ScriptedClient(script), "script")
    assert not any(state.get("error") for state in results.state)
    tools = [m["content"] for m in results.completion[2] if m["role"] == "tool"]
    assert tools[0] == "3.5" and json.loads(tools[2]) == {"a": 1, "b": 1}
    assert "Error executing tool price" in tools[1] and "items" in tools[3]
    assert results.state[0]["tool_errors"] == 2
    with pytest.raises(RuntimeError, match="can't be reached"):
        vf.ToolEnv(mcp=address.replace("/mcp", "/nothing"), dataset=rows("a"))


COUNTER = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, result = asked["method"], {}
    if method == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": "counter", "version": "1"}}
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"die": {"type": "boolean"}}}
        result = {"tools": [{"name": "count", "inputSchema": schema}]}
    elif method == "tools/call":
        if asked["params"]["arguments"].get("die"):
            os._exit(1)
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


class Counting(vf.ToolEnv):
    """Ask the server for its process in each rollout; `die` are the calls that kill it."""

    def __init__(self, script: Path, die: tuple[int, ...] = ()) -> None:
        script.write_text(COUNTER)
        self.script, self.die, self.calls, self.pids = script, die, 0, list[str]()
        server = {"command": sys.executable, "args": ["-S", str(script)]}
        right = vf.Rubric([lambda completion: float(len(completion[-1]["content"]))])
        super().__init__(mcp=server, dataset=rows(*"abcd"), rubric=right)

    async def rollout(self, client: Any, model: str, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        arguments = {"die": self.calls in self.die}
        answer = await self.call_tool("count", arguments, "call", {"tool_errors": 0})
        self.pids.append(str(answer["content"]))
        return await super().rollout(client, model, prompt, *args, **kwargs)

    def servers(self) -> list[int]:
        """Return the processes of its server, with guards."""
        return [pid for pid in descendants(os.getpid()) if str(self.script) in command_of(pid)]


def train(env: Counting, folder: Path, **settings: Any) -> vf.GRPOTrainer:
    """Return a trainer of the shipped model, two prompts a step, one rollout after the other."""
    sizes = dict(per_device_train_batch_size=4, num_generations=2, max_tokens=8, max_concurrent=1)
    off = dict(beta=0.0, save_strategy="no", use_cpu=True, disable_tqdm=True, num_batches_ahead=0)
    args = vf.GRPOConfig(str(folder), **sizes, **off, **settings)
    return vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())


@pytest.mark.filterwarnings("ignore:The chat template has no tool calls")
def test_training_keeps_one_server(tmp_path: Path) -> None:
    """A training run starts a server once; one that is killed costs one rollout, and the run goes on."""
    env = Counting(tmp_path / "counter.py", die=(6, 7))  # a rollout of step 2, and its second try
    trainer = train(env, tmp_path, max_steps=3)
    trainer.train()
    assert trainer.state.global_step == 3 and env.calls == 13
    assert env.servers() == []
    before, after = env.pids[:5], env.pids[5:]
    assert [len({*before}), len({*after})] == [1, 1] and len(env.pids) == 11
    files = sorted((tmp_path / "rollouts").glob("*.jsonl"))
    errors = [[r["error"] for r in read_rollouts(file) if r.get("error")] for file in files]
    assert [len(each) for each in errors] == [0, 1, 0]
    assert "ServerFailed" in errors[1][0] and "ended before it answered" in errors[1][0]


@pytest.mark.filterwarnings("ignore:The chat template has no tool calls")
def test_stopped_training_ends_its_server(tmp_path: Path) -> None:
    """A pause keeps the server, and the end of the run in mid-generation ends it."""
    env = Counting(tmp_path / "counter.py")
    trainer = train(env, tmp_path, max_steps=10_000)
    run = trainer.start()
    while env.calls < 5:
        time.sleep(0.01)
    trainer.pause(hard=True)
    while run.state.phase != "paused":
        time.sleep(0.01)
    assert len(env.servers()) == 2  # with its guard
    trainer.resume()
    played = env.calls
    while env.calls < played + 5:
        time.sleep(0.01)
    trainer.stop()
    trainer.wait(60)
    assert env.servers() == [] and len({*env.pids}) == 1
