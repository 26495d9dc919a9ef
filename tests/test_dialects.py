"""OpenAI and OpenRouter as they speak: what they refuse, how they fail, and what they never send."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.inference.endpoints import PROVIDERS
from verifiers_nb.inference.http import HTTPClient
from verifiers_nb.inference.tokens import turn_from_response

Answer = tuple[int, dict[str, Any], dict[str, str]]  # status, body, headers

# What OpenAI's chat completions know, of what anybody here might send; it refuses the rest.
OPENAI_KNOWS = {
    "model",
    "messages",
    "n",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "tools",
}


class Provider(ThreadingHTTPServer):
    """A provider at `/v1`, whose `answers` come first, one for each request, and then completions."""

    daemon_threads = True

    def __init__(self, completion: Callable[[dict[str, Any]], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), ProviderHandler)
        self.completion, self.asked = completion, list[dict[str, Any]]()
        self.answers: list[Answer] = []
        self.name = ""
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class ProviderHandler(BaseHTTPRequestHandler):
    """Check the key, list the models, complete."""

    server: Provider
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """List the models, which takes no key at OpenRouter and here."""
        self.send(200, {"object": "list", "data": [{"id": "large", "owned_by": "system"}]}, {})

    def do_POST(self) -> None:
        """Complete a chat."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != "Bearer sk-right":
            self.send(*failure(401, "Incorrect API key provided: sk-wr***.", "invalid_api_key"))
            return
        self.server.asked.append(body)
        self.send(
            *(self.server.answers.pop(0) if self.server.answers else self.server.completion(body))
        )

    def send(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        """Send JSON."""
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def failure(status: int, message: str, code: Any = None, **headers: str) -> Answer:
    """Return an error as both of them write it."""
    error = {"message": message, "type": code, "param": None, "code": code}
    return status, {"error": error}, {name.replace("_", "-"): v for name, v in headers.items()}


def openai_completion(body: dict[str, Any]) -> Answer:
    """Answer as OpenAI: no token ids, and log-probabilities only for those who ask."""
    if unknown := set(body) - OPENAI_KNOWS:
        return failure(400, f"Unrecognized request argument supplied: {', '.join(unknown)}")
    said = {"token": "4", "logprob": -0.1, "bytes": [52], "top_logprobs": []}
    logprobs = {"content": [said], "refusal": None} if body.get("logprobs") else None
    message = {"role": "assistant", "content": "4", "refusal": None, "annotations": []}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
    about = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "large-2026"}
    return 200, {**about, "choices": [choice], "service_tier": "default"}, {}


def openrouter_completion(body: dict[str, Any]) -> Answer:
    """Answer as OpenRouter: with the name of who computed it, and what the model thought."""
    message = {"role": "assistant", "content": "4", "refusal": None, "reasoning": "2 and 2."}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    choice["native_finish_reason"] = "STOP"
    about = {"id": "gen-1", "provider": "Somebody", "object": "chat.completion", "created": 1}
    return 200, {**about, "model": "a/large", "choices": [choice], "usage": {"cost": 0.01}}, {}


COMPLETIONS = {"openai": openai_completion, "openrouter": openrouter_completion}


@pytest.fixture(params=COMPLETIONS)
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Put a stand-in in the place of a provider."""
    server = Provider(COMPLETIONS[request.param])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variable = PROVIDERS[request.param][1]
    monkeypatch.setitem(PROVIDERS, request.param, (server.url, variable))
    monkeypatch.setenv(variable, "sk-right")
    server.name = request.param
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses of our own between tries short; those that a server asks for stay."""
    monkeypatch.setattr("random.uniform", lambda low, high: 0.001)


def sums(count: int) -> vf.SingleTurnEnv:
    """Return an environment that pays 1.0 for a 4."""
    rows = Dataset.from_dict({"question": ["2 + 2?"] * count, "answer": ["4"] * count})

    def right(completion: Any, answer: str) -> float:
        return float(completion[-1]["content"] == answer)

    return vf.SingleTurnEnv(eval_dataset=rows, rubric=vf.Rubric([right]))


def evaluate(provider: Provider, count: int = 4, **settings: Any) -> vf.GenerateOutputs:
    """Evaluate the model, with sampling arguments that everyone uses."""
    client = vf.connect(provider.name, model="large", **settings)
    assert type(client) is HTTPClient
    sampling = {"max_tokens": 8, "temperature": 0.5, "seed": 1, "top_p": 0.9}
    return sums(count).evaluate(client, "large", sampling, progress=False)


def test_an_evaluation_asks_for_nothing_that_they_refuse(provider: Provider) -> None:
    results = evaluate(provider)
    assert results.reward == [1.0] * 4
    assert not [state["error"] for state in results.state if state.get("error")]
    assert {name for body in provider.asked for name in body} <= OPENAI_KNOWS


def test_training_says_what_is_missing(provider: Provider) -> None:
    """The answers are good for an evaluation; only who wants to train on one needs its tokens."""
    [response] = evaluate(provider, count=1).state[0]["responses"]
    with pytest.raises(ValueError, match="has no token ids .* from a server that supports this"):
        turn_from_response(response)


LIMIT = "Rate limit reached for large on requests per min (RPM): Limit 3, Used 3"


def test_a_rate_limit_is_waited_out(provider: Provider) -> None:
    for headers in ({"Retry_After": "0.01"}, {"retry_after_ms": "10"}, {"Retry_After": "soon"}):
        provider.answers = [failure(429, LIMIT, "rate_limit_exceeded", **headers)] * 2
        assert evaluate(provider, count=2, retries=8).reward == [1.0] * 2
    assert len(provider.asked) == 3 * (2 + 2)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (
            429,
            "insufficient_quota",
            "You exceeded your current quota, check your plan and billing.",
        ),
        (402, 402, "Insufficient credits. Add more using https://openrouter.ai/settings/credits"),
        (400, "context_length_exceeded", "This model's maximum context length is 8192 tokens."),
        (
            404,
            "model_not_found",
            "The model `large` does not exist or you do not have access to it.",
        ),
        (403, 403, "Your input was flagged"),
    ],
)
def test_what_no_second_try_helps_is_not_tried_again(
    provider: Provider, status: int, code: Any, message: str
) -> None:
    provider.answers = [failure(status, message, code)] * 2
    results = evaluate(provider, count=3)
    errors = [str(state["error"]) for state in results.state if state.get("error")]
    assert len(errors) == 2 and all(message in error for error in errors)
    assert len(provider.asked) == 3 and sorted(results.reward) == [0.0, 0.0, 1.0]


def test_a_wrong_key_is_said_before_anything_is_played(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = PROVIDERS[provider.name][1]
    monkeypatch.setenv(variable, "sk-wrong")
    errors = {str(state["error"]) for state in evaluate(provider, count=2).state}
    assert len(errors) == 1 and "401" in errors.pop() and provider.asked == []
    monkeypatch.delenv(variable)
    with pytest.raises(ValueError, match=f"set {variable}"):
        vf.connect(provider.name, model="large")


def broken_choice(code: int) -> Answer:
    """Return OpenRouter's answer where the model broke off: a success with a failure inside."""
    status, body, headers = openrouter_completion({})
    [choice] = body["choices"]
    choice["message"]["content"] = ""
    error = {"code": code, "message": "Provider returned error"}
    return (
        status,
        {**body, "choices": [{**choice, "finish_reason": "error", "error": error}]},
        headers,
    )


@pytest.mark.parametrize(
    "broken",
    [
        (200, {"error": {"code": 502, "message": "Provider returned error"}}, {}),
        broken_choice(502),
    ],
    ids=["instead of choices", "in a choice"],
)
def test_a_failure_in_the_guise_of_a_success_is_one(provider: Provider, broken: Answer) -> None:
    """It is tried again; if it stays, the rollout has failed, and no empty answer is scored."""
    provider.answers = [broken]
    assert evaluate(provider, count=1).reward == [1.0]
    provider.answers = [broken] * 100
    [state] = evaluate(provider, count=1).state
    assert "Provider returned error" in str(state["error"]) and len(provider.answers) > 80
