"""Reasoning that a server sends beside the content: kept, sent back, stored, counted, shown, and taken as thinking."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import openai
import pytest
from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.cli.report_page import ReportMeta, report_html
from verifiers_nb.cli.rollout_text import rollout_text
from verifiers_nb.envs.results import load_results
from verifiers_nb.envs.tables import results_dataset
from verifiers_nb.inference.http import HTTPClient
from verifiers_nb.types import REASONING_FIELDS, reasoning_length

DETAILS = [
    {"type": "reasoning.summary", "summary": "Multiply."},
    {"type": "reasoning.encrypted", "data": "c28=", "index": 1, "signature": None},
]
FIELDS: list[dict[str, Any]] = [
    {"reasoning_content": "6 times 7"},
    {"reasoning": "6 times 7", "reasoning_content": None},
    {"reasoning": "6 times 7", "reasoning_details": DETAILS},
    {"thinking_blocks": [{"type": "thinking", "thinking": "6 times 7", "signature": "c28="}]},
    {"thinking": "6 times 7"},
    {"reasoning_text": "6 times 7", "reasoning_summary": ""},
    {"thought": ["6 times 7"]},
    {"reasoning_items": [{"type": "reasoning", "summary": [{"text": "6 times 7"}]}]},
    {
        "reasoning": {"content": "6 times 7", "effort": "low"},
        "extra_content": {"google": {"thought_signature": "c28="}},
    },
]


def sent(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null."""
    return {name: value for name, value in fields.items() if value is not None}


class Server(BaseHTTPRequestHandler):
    """Answer like DeepSeek: refuse a conversation whose tool calls have lost their reasoning."""

    fields: ClassVar[dict[str, Any]] = {}
    content: ClassVar[Any] = "42"

    def do_POST(self) -> None:
        """Call the tool once if there is one, then answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = [m for m in body["messages"] if m["role"] == "assistant"]
        if any(
            {name: m.get(name) for name in sent(self.fields)} != sent(self.fields) for m in said
        ):
            return self.reply(400, {"error": {"message": "Missing reasoning_content"}})
        message: dict[str, Any] = {"role": "assistant", "content": self.content, **self.fields}
        if body.get("tools") and not said:
            call = {"name": "calculator", "arguments": '{"expression": "6 * 7"}'}
            message |= {"content": None}
            message["tool_calls"] = [{"id": "c1", "type": "function", "function": call}]
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        made = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        self.reply(200, {**made, "choices": [choice]})

    def reply(self, status: int, body: dict[str, Any]) -> None:
        """Send a body as JSON."""
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *given: Any) -> None:
        """Print nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    """Give the address of a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def wrapped(client: Any) -> Any:
    """Return OpenAI's client with a hook, which `HTTPClient` can't replace."""
    client._client.event_hooks = {"request": [lambda request: None], "response": []}
    return client


CLIENTS = {
    "sync": lambda url: openai.OpenAI(base_url=url, api_key="k"),
    "async": lambda url: openai.AsyncOpenAI(base_url=url, api_key="k"),
    "sync, OpenAI's objects": lambda url: wrapped(openai.OpenAI(base_url=url, api_key="k")),
    "ours": lambda url: HTTPClient(url),
}
TEXT = {"type": "text", "text": "It is \\boxed{42}."}
CONTENTS: list[list[dict[str, Any]]] = [
    [{"type": "thinking", "thinking": [{"type": "text", "text": "6 times 7"}]}, TEXT],
    [{"type": "thinking", "thinking": "6 times 7", "signature": "c28="}, TEXT],
    [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "6 times 7"}]}, TEXT],
    [{"type": "reasoning_content", "reasoningText": {"text": "6 times 7"}}, TEXT],
    [{"type": "text", "text": "6 times 7", "thought": True}, TEXT],
]
ROWS = Dataset.from_list([{"question": "6 * 7?", "answer": "42"}])


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("client", CLIENTS)
def test_reasoning_goes_back_with_tools(
    url: str, client: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool rollout reaches its end, and the file, the table and the pages have the reasoning."""
    monkeypatch.setattr(Server, "fields", fields)
    rubric = vf.MathRubric()
    env = vf.ToolEnv([vf.calculator], dataset=ROWS, rubric=rubric)
    saved = tmp_path / "results.jsonl"
    results = env.generate(env.get_dataset(), CLIENTS[client](url), "m", save_path=saved)
    assert results.errors == [None]
    assert results.reward == [1.0]
    for completion in (results.completion[0], load_results(saved).completion[0]):
        assistant = [m for m in completion if m["role"] == "assistant"]
        assert len(assistant) == 2
        for message in assistant:
            assert {name: message.get(name) for name in REASONING_FIELDS} == {
                name: fields.get(name) for name in REASONING_FIELDS
            }
        assert reasoning_length(completion) == 2 * len("6 times 7")
    assert results_dataset(saved)[0]["completion"][0]["role"] == "assistant"
    page = report_html(ReportMeta("tools"), load_results(saved))
    assert page.count("<summary>reasoning, 9 characters</summary>") == 2
    explorer = vf.RolloutExplorer(results=saved)
    assert "reasoning, 9 characters" in explorer.freeze().html
    record = json.loads(saved.read_text().splitlines()[0])
    assert "▸ reasoning, 9 characters" in rollout_text(record).plain
    assert "6 times 7" in rollout_text(record, unfolded=True).plain


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_reasoning_that_is_a_part_of_the_content(
    url: str, client: str, content: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistral, Anthropic and Databricks send it so."""
    monkeypatch.setattr(Server, "fields", {})
    monkeypatch.setattr(Server, "content", content)
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.MathRubric())
    results = env.generate(env.get_dataset(), CLIENTS[client](url), "m")
    assert results.reward == [1.0]
    assert results.completion[0][0]["content"] == content
    assert reasoning_length(results.completion[0]) == len("6 times 7")


@pytest.mark.parametrize("fields", FIELDS)
def test_an_answer_earns_the_same_in_both_forms(
    url: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GSM8K pays 1.2 for a right answer, with the thinking in the text or beside it."""
    env = vf.load_environment("gsm8k", dataset=ROWS, eval_dataset=ROWS)
    rewards = []
    for beside, text in ((fields, ""), ({}, "<think>6 times 7</think>"), ({}, "")):
        monkeypatch.setattr(Server, "fields", beside)
        monkeypatch.setattr(Server, "content", text + "It is \\boxed{42}.")
        results = env.evaluate(HTTPClient(url), "m", progress=False)
        rewards.append(round(results.reward[0], 6))
    assert rewards == [1.2, 1.2, 0.1]


@pytest.mark.parametrize(
    "env_id", ["addition", "reverse-text", "gpqa", "summarize-text", "xlam-function-calling"]
)
def test_environments_that_ask_for_thinking_take_it(env_id: str) -> None:
    """The format reward of our environments is the same in both forms."""
    given: dict[str, Any] = {} if env_id == "addition" else {"offline": True}
    given |= {"use_think": True} if env_id == "gpqa" else {}
    parser = vf.load_environment(env_id, **given).parser
    reward = parser.get_format_reward_func()
    field = getattr(parser, "answer_field", None)
    answer = f"<{field}>\nabc\n</{field}>" if field else "A"
    for text in (answer, "", "no"):
        whole = {"role": "assistant", "content": f"<think>\nso\n</think>\n\n{text}"}
        split = {"role": "assistant", "content": text, "reasoning": "so"}
        assert reward([split]) == reward([whole])
        assert parser.parse_answer([split]) == parser.parse_answer([whole])
    assert reward([split | {"content": answer}]) == 1.0


def test_mixed_details_make_a_dataset() -> None:
    """Details of different kinds in different rows are one column."""
    odd = [DETAILS, [{"type": "reasoning.text", "text": "a", "index": "0"}], "a text", {"a": 1}]
    messages = [{"role": "assistant", "content": "42", "reasoning_details": each} for each in odd]
    count = len(odd)
    results = vf.GenerateOutputs(
        prompt=[[]] * count, completion=[[m] for m in messages], answer=[""] * count,
        state=[{}] * count, info=[{}] * count, task=[""] * count, reward=[0.0] * count,
    )  # fmt: skip
    assert len(results_dataset(results)) == count
