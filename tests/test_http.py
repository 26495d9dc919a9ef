"""Rollouts against servers that misbehave, over real sockets: every rollout ends exactly once."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import openai
import pytest
from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.inference.http import HTTPClient

GARBAGE = b"\x00\xffthis is not HTTP at all\r\n\r\n"


def answer(text: str, status: int = 200, headers: str = "") -> bytes:
    """Return a whole HTTP response with a completion that says `text`."""
    message = {"role": "assistant", "content": text}
    body: Any = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    if status != 200:
        body = {"error": {"message": f"as told, {status}", "type": "test"}}
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


class Server:
    """A server in a thread; `behave(question)` says what to do with each request.

    What it says: bytes to send, and whether to hang up after them; None: never answer.
    """

    def __init__(self, behave: Callable[[str], tuple[bytes, bool] | None], port: int = 0) -> None:
        self.behave, self.requests = behave, Counter[str]()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.writers: set[asyncio.StreamWriter] = set()
        start = asyncio.start_server(self.serve, "127.0.0.1", port)
        self.server = asyncio.run_coroutine_threadsafe(start, self.loop).result()
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                question = body["messages"][-1]["content"]
                self.requests[question] += 1
                if (said := self.behave(question)) is None:
                    await asyncio.sleep(3600)
                    continue
                writer.write(said[0])
                await writer.drain()
                if said[1]:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    def stop(self) -> None:
        """Hang up on everyone, and take no more connections."""

        async def end() -> None:
            self.server.close()
            for writer in list(self.writers):
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)


@pytest.fixture
def serving() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*args: Any) -> Server:
        servers.append(Server(*args))
        return servers[-1]

    yield start
    for server in servers:
        if server.thread.is_alive():
            server.stop()


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses between tries short."""
    monkeypatch.setattr("random.uniform", lambda low, high: 0.001)


def environment(count: int, **settings: Any) -> vf.SingleTurnEnv:
    """Return an environment of `count` questions whose rubric pays 1.0 for any answer."""
    questions = [f"question {i}" for i in range(count)]
    return vf.SingleTurnEnv(
        eval_dataset=Dataset.from_dict({"question": questions, "answer": questions}),
        rubric=vf.Rubric([lambda completion, answer: float(completion[0]["content"] == answer)]),
        **settings,
    )


def clients(url: str, **settings: Any) -> list[Any]:
    """Return clients of all kinds for a server."""
    mine = type("Mine", (openai.AsyncOpenAI,), {})  # a subclass is used as it is
    kinds = (openai.AsyncOpenAI, openai.OpenAI, mine)
    return [HTTPClient(url, **settings), *(k(base_url=url, api_key="k", **settings) for k in kinds)]


def test_every_kind_of_client_gets_the_same(serving: Callable[..., Server]) -> None:
    server = serving(lambda question: (answer(question), False))
    for client in clients(server.url):
        assert environment(20).evaluate(client, "m", progress=False).reward == [1.0] * 20
    assert set(server.requests.values()) == {4}


FAULTS: dict[str, tuple[bytes, bool] | None] = {
    "429": (answer("", 429), False),
    "429 with a pause": (answer("", 429, "Retry-After: 0.01\r\n"), False),
    "500": (answer("", 500), False),
    "503": (answer("", 503), False),
    "nothing": (b"", True),
    "half a body": (answer("x" * 500)[:-200], True),
    "half a head": (answer("x")[:20], True),
    "not HTTP": (GARBAGE, True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_costs_nothing(
    fault: str, serving: Callable[..., Server], quick_pauses: None
) -> None:
    def behave(question: str) -> tuple[bytes, bool] | None:
        return FAULTS[fault] if server.requests[question] < 3 else (answer(question), False)

    server = serving(behave)
    outputs = environment(30).evaluate(HTTPClient(server.url), "m", progress=False)
    assert outputs.reward == [1.0] * 30
    assert set(server.requests.values()) == {3}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_fails_one_rollout(
    fault: str, serving: Callable[..., Server], quick_pauses: None
) -> None:
    def behave(question: str) -> tuple[bytes, bool] | None:
        return FAULTS[fault] if question == "question 7" else (answer(question), False)

    server = serving(behave)
    client = openai.AsyncOpenAI(base_url=server.url, api_key="k")
    outputs = environment(30, max_retries=2).evaluate(client, "m", progress=False)
    assert outputs.reward == [float(i != 7) for i in range(30)]
    assert server.requests.pop("question 7") == 3  # not two tries of ours for each of the client's
    assert set(server.requests.values()) == {1}
    assert "/v1/chat/completions" in outputs.state[7]["error"]


@pytest.mark.parametrize(
    "body", [b"<html>busy</html>", b'{"choices": "none"}', b"[]", b"", b"\xff\xfe"]
)
def test_an_answer_that_makes_no_sense_is_not_asked_for_again(
    body: bytes, serving: Callable[..., Server]
) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    server = serving(lambda question: (head + body, False))
    outputs = environment(5).evaluate(HTTPClient(server.url), "m", progress=False)
    assert outputs.reward == [0.0] * 5
    assert all("not a completion" in state["error"] for state in outputs.state)
    assert set(server.requests.values()) == {1}


def test_a_body_that_is_cut_within_its_compression_is_named(
    serving: Callable[..., Server],
) -> None:
    whole = gzip.compress(answer("x" * 900).partition(b"\r\n\r\n")[2])
    body = whole[:-20]
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    server = serving(lambda question: (head.encode() + body, False))
    outputs = environment(1).evaluate(HTTPClient(server.url, retries=0), "m", progress=False)
    assert "cut off" in outputs.state[0]["error"]


def test_a_server_that_never_answers(serving: Callable[..., Server], quick_pauses: None) -> None:
    server = serving(
        lambda question: None if question == "question 3" else (answer(question), False)
    )
    client = HTTPClient(server.url, timeout=2.0, retries=1)
    outputs = environment(10).evaluate(client, "m", progress=False)
    assert outputs.reward == [float(i != 3) for i in range(10)]
    assert "no answer within 2.0 s" in outputs.state[3]["error"]
    assert server.requests["question 3"] == 2


def test_one_request_in_ten_fails(serving: Callable[..., Server], quick_pauses: None) -> None:
    draw = random.Random(0)

    def behave(question: str) -> tuple[bytes, bool] | None:
        return (
            draw.choice(list(FAULTS.values())) if draw.random() < 0.1 else (answer(question), False)
        )

    server = serving(behave)
    outputs = environment(1000).evaluate(
        openai.AsyncOpenAI(base_url=server.url, api_key="k"), "m", max_concurrent=64, progress=False
    )
    assert outputs.reward == [1.0] * 1000  # six in a row are one in a million
    assert 1050 < server.requests.total() < 1200


def test_a_server_that_dies_and_comes_back(serving: Callable[..., Server], tmp_path: Path) -> None:
    def behave(question: str) -> tuple[bytes, bool] | None:
        time.sleep(0.002)
        return answer(question), False

    def dying(question: str) -> tuple[bytes, bool] | None:
        return behave(question) if first.requests.total() <= 100 else None

    first = serving(dying, forked.free_port())  # which nobody takes while it is away

    def restart() -> None:
        while first.requests.total() < 100:
            time.sleep(0.01)
        first.stop()
        time.sleep(0.7)
        second.append(serving(behave, first.port))

    second: list[Server] = []
    watcher = threading.Thread(target=restart)
    watcher.start()
    path = tmp_path / "rollouts.jsonl"
    outputs = environment(300).evaluate(
        HTTPClient(first.url), "m", max_concurrent=32, save_path=path, progress=False
    )
    watcher.join()
    assert outputs.reward == [1.0] * 300
    assert sorted(r["index"] for r in vf.read_rollouts(path)) == list(range(300))
    assert second[0].requests.total() >= 200


def test_a_server_that_is_gone_ends_every_rollout_once(quick_pauses: None, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    outputs = environment(50).evaluate(
        HTTPClient("http://127.0.0.1:9/v1"), "m", save_path=path, progress=False
    )
    assert outputs.reward == [0.0] * 50
    assert all("Cannot connect to host 127.0.0.1:9" in state["error"] for state in outputs.state)
    assert len(list(vf.read_rollouts(path))) == 50


def test_nothing_is_said_about_connections_at_the_end(serving: Callable[..., Server]) -> None:
    """Of a client that stays open, of one that is closed in each way, and of one of openai's."""
    server = serving(lambda question: (answer(question), False))
    script = f"""
import asyncio, gc, sys, threading
import openai
import verifiers_nb as vf
sys.path.insert(0, "tests")
from test_http import environment
opened, closed, aclosed = (vf.HTTPClient("{server.url}") for _ in range(3))
env = environment(20)
for each in (opened, closed, aclosed, openai.AsyncOpenAI(base_url="{server.url}", api_key="k")):
    assert env.evaluate(each, "m", progress=False).reward == [1.0] * 20
    assert asyncio.run(env.a_evaluate(each, "m", progress=False)).reward == [1.0] * 20
    thread = threading.Thread(target=lambda: asyncio.run(env.a_evaluate(each, "m", progress=False)))
    thread.start(); thread.join()
loop = asyncio.new_event_loop()
for each in (opened, closed, aclosed):
    loop.run_until_complete(env.a_evaluate(each, "m", progress=False))
closed.close()
asyncio.run(aclosed.aclose())
gc.collect()
"""
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    said = [line for line in run.stderr.splitlines() if "eval_dataset" not in line]
    assert run.returncode == 0 and not any("nclosed" in line or "Error" in line for line in said), (
        said
    )


def test_reward_functions_that_hang_raise_or_return_nan_cost_their_own_score(
    serving: Callable[..., Server], tmp_path: Path
) -> None:
    over = threading.Event()

    def hangs(answer: str) -> float:
        return 1.0 if answer != "question 2" else float(over.wait())

    def raises(answer: str) -> float:
        return 1 / int(answer != "question 4")

    def is_nan(answer: str) -> float:
        return float("nan") if answer == "question 6" else 1.0

    server = serving(lambda question: (answer(question), False))
    funcs = [hangs, raises, is_nan]
    env = environment(10)
    env.rubric = vf.Rubric(funcs, timeout=5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "rollouts.jsonl"
    outputs = env.evaluate(HTTPClient(server.url), "m", save_path=path, progress=False)
    over.set()
    failing = {"hangs": 2, "raises": 4, "is_nan": 6}
    for name, column in outputs.metrics.items():
        assert column == [float(i != failing.get(name)) for i in range(10)], name
    assert env.rubric.failures == {"hangs": 1, "raises": 1, "is_nan": 1}
    assert path.stat().st_size < 100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


MEMORY = """
import asyncio, resource, sys
from datasets import Dataset
import verifiers_nb as vf
from verifiers_nb.inference.http import Reply

class Client:
    def __init__(self):
        self.chat = self.completions = self
    async def create(self, messages, **request):
        await asyncio.sleep(0)
        message = {"role": "assistant", "content": "x" * LENGTH}  # a string of its own each time
        return Reply(choices=[{"index": 0, "message": message, "finish_reason": "stop"}])

LENGTH = 6000
questions = [f"question {i}" for i in range(4000)]
env = vf.SingleTurnEnv(
    eval_dataset=Dataset.from_dict(dict(question=questions, answer=questions)),
    rubric=vf.Rubric([lambda completions: [float(len(c)) for c in completions]]),
)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
outputs = env.evaluate(
    Client(), "m", rollouts_per_example=2, max_concurrent=64, save_path=sys.argv[1], progress=False
)
assert outputs.reward == [1.0] * 8000 and outputs.completion[7999][0]["content"] == "x" * LENGTH
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_stored_rollouts_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    assert path.stat().st_size > 50e6
    # KiB: less than half of the file; of what is finished only numbers stay
    assert int(run.stdout) < 25_000
