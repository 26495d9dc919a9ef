"""Answers of a real vLLM that are shown while they grow are, in the end, those that it gives without streaming."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from policies import Policy, frozen, running, wait_for
from test_adapters import client, policy  # noqa: F401

import verifiers_nb as vf
from verifiers_nb.inference import http
from verifiers_nb.inference.vllm_policy import VLLMClient
from verifiers_nb.widgets.live_run import LiveRun, choose_inputs

NEW_EACH_TIME = {"id", "created"}
CHAT = {"messages": [{"role": "user", "content": "What is 12 + 30?"}], "max_tokens": 40}
TEXT = {"prompt": "What is 12 + 30?", "max_tokens": 24}
REQUESTS: list[dict[str, Any]] = [
    CHAT,
    CHAT | {"max_tokens": 5},
    CHAT | {"stop": ["</think>"], "n": 2, "top_logprobs": 3},
    CHAT | {"extra_body": {"ignore_eos": True, "skip_special_tokens": False}},
    CHAT | {"max_tokens": 1, "logprobs": False},
    TEXT,
    TEXT | {"prompt": [5, 6, 7], "n": 2, "logprobs": 2},
]


def stated(value: Any) -> Any:
    """Return a response without fields that are null or that are new each time."""
    if isinstance(value, list):
        return [stated(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: stated(each) for name, each in value.items() if name not in NEW_EACH_TIME}
    return {name: each for name, each in kept.items() if each is not None}


def ask_each(client: VLLMClient) -> list[Any]:  # noqa: F811
    """Return the responses to all requests, one after the other: in a batch the last bits may differ."""

    async def ask() -> list[Any]:
        create = client.chat.completions.create, client.completions.create
        asked = (create["prompt" in each](seed=7, temperature=1.0, **each) for each in REQUESTS)
        return [stated((await each).model_dump()) for each in asked]

    return asyncio.run(ask())


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[http.Stream]:
    """Return a list that gets each stream when it begins."""
    streams: list[http.Stream] = []

    class NotedStream(http.Stream):
        def __init__(self) -> None:
            super().__init__()
            streams.append(self)

    monkeypatch.setattr(http, "Stream", NotedStream)
    return streams


@pytest.mark.parametrize("version", [0, 1])
def test_a_streamed_answer_is_the_whole_one(
    client: VLLMClient,  # noqa: F811
    policy: Policy,  # noqa: F811
    version: int,
    begun: list[http.Stream],
) -> None:
    if version:
        client.push(policy.train(1))
    whole = ask_each(client)
    assert not begun  # nobody watches
    client.growing()
    streamed = ask_each(client)
    assert len(begun) == len(REQUESTS) and client.can_stream and not client.streams
    for request, one, other in zip(REQUESTS, whole, streamed, strict=True):
        assert one == other, request
        assert one["choices"][0]["policy_version"] == version and one["choices"][0]["token_ids"]


def test_a_watched_run_shows_text_and_is_stopped(
    client: VLLMClient,  # noqa: F811
    vllm_server: Any,
    begun: list[http.Stream],
) -> None:
    env = vf.load_environment("addition")
    inputs, asked = (
        choose_inputs(env, 2, 1),
        {"max_tokens": 400, "extra_body": {"ignore_eos": True}},
    )
    run: LiveRun
    run = LiveRun(
        env, inputs, lambda: client, None, asked, 2, lambda *_: None, lambda: run.progress()
    )
    with frozen(client):
        run.start()
        wait_for(lambda: len(run.progress().growing) == 2)
    wait_for(lambda: run.progress().tokens > 0)
    run.stop()
    assert any(each.end for each in begun)
    assert not client.streams and not run.running
    wait_for(lambda: running(vllm_server) == 0)  # the server has heard of it


def test_a_wrong_request_is_refused_as_without_streaming(client: VLLMClient) -> None:  # noqa: F811
    client.growing()
    with pytest.raises(openai.BadRequestError, match="max_tokens|maximum context"):
        asyncio.run(client.completions.create(prompt=[5], max_tokens=10**6))
    assert client.can_stream and not client.streams
