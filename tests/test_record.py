"""Agents that know nothing of this library, recorded: real programs with OpenAI's own package, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import torch

import verifiers_nb as vf
from verifiers_nb.bridges.record import Tape
from verifiers_nb.envs.store import RolloutStore
from verifiers_nb.inference.tokens import merge_turns, rollout_turns
from verifiers_nb.trainer.samples import make_samples

MODEL = "verifiers_nb/adder-1m"
# An agent with a tool, written for OpenAI's endpoint. It knows its task from its input only.
AGENT = """
import json, sys
from openai import OpenAI

client, row = OpenAI(max_retries=0), json.load(sys.stdin)
tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
messages = [{"role": "system", "content": "Add."}, *row["prompt"]]
for _ in range(5):
    answer = client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools)
    said = answer.choices[0].message
    messages.append(said.model_dump())
    for call in said.tool_calls or ():
        total = sum(json.loads(call.function.arguments).values())
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})
    if not said.tool_calls:
        break
print(said.content)
"""
# One that asks for a stream, as frameworks with a screen do.
STREAMS = """
import json, sys
from openai import OpenAI

messages = json.load(sys.stdin)["prompt"]
with OpenAI(max_retries=0).chat.completions.stream(model="gpt-4o", messages=messages) as stream:
    for event in stream:
        if event.type == "content.delta":
            print(event.delta, end="")
"""
ROWS = [{"question": f"{n} + 2?", "answer": str(n + 2)} for n in range(3)]


def program(code: str) -> list[str]:
    """Return the command that runs a program."""
    return [sys.executable, "-c", code]


def said_last(completion: Any, answer: str) -> float:
    """Score 1.0 if the last message holds the answer."""
    return float(answer in completion[-1]["content"])


def adds(conversation: Any) -> Any:
    """Call the tool, then say what it gave."""
    if conversation[-1]["role"] == "tool":
        return f"It is {conversation[-1]['content']}."
    number = int(conversation[-1]["content"].split()[0])
    return [vf.tool_call("add", a=number, b=2)]


def agent_env(agent: Any, **settings: Any) -> vf.AgentEnv:
    """Return the environment of an agent."""
    given: dict[str, Any] = {"dataset": ROWS, "rubric": vf.Rubric(said_last), **settings}
    return vf.AgentEnv(agent, **given)


def test_programs_with_a_tool_become_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    client = vf.ScriptedClient(adds)
    results = agent_env(program(AGENT)).evaluate(client, "m", save_path=path, progress=False)
    assert results.errors == [None] * 3 and results.reward == [1.0] * 3
    assert [m["role"] for m in results.completion[1]] == ["assistant", "tool", "assistant"]
    assert results.completion[1][0]["tool_calls"][0]["function"]["name"] == "add"
    assert {request["model"] for request in client.requests} == {"m"}
    assert all(request["tools"][0]["function"]["name"] == "add" for request in client.requests)
    stored = vf.load_results(path)
    assert stored.reward == [1.0] * 3 and stored.state[2]["result"] == "It is 4.\n"
    assert stored.state[0]["agent_prompt"][0] == {"role": "system", "content": "Add."}


def test_a_stream_is_answered_in_one_chunk() -> None:
    results = agent_env(program(STREAMS)).evaluate(vf.ScriptedClient("4"), "m", progress=False)
    assert [state["result"] for state in results.state] == ["4"] * 3, results.errors


def test_a_stream_can_call_tools() -> None:
    async def streams(base_url: str, api_key: str) -> Any:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
        asked: Any = dict(model="m", messages=[{"role": "user", "content": "1 2"}])
        async with client.chat.completions.stream(**asked) as stream:
            return (await stream.get_final_completion()).choices[0].message.tool_calls

    results = agent_env(streams).evaluate(vf.ScriptedClient(adds), "m", progress=False)
    (call,) = results.state[0]["result"]
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1, "b": 2}')


TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}


async def asks_with_items(base_url: str, api_key: str, prompt: Any) -> Any:
    """Send the whole conversation with each request, as items."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    asked: Any = dict(model="gpt-5", instructions="Add.", tools=[TOOL], store=False)
    items = list(prompt)
    while True:
        response = await client.responses.create(input=items, **asked)
        items += [item.model_dump(exclude_none=True) for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        for call in calls:
            total = str(sum(json.loads(call.arguments).values()))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": total})


async def asks_with_names(base_url: str, api_key: str, prompt: Any) -> Any:
    """Name the response that each request continues, and read it from a stream."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    asked: Any = dict(model="gpt-5", instructions="Add.", tools=[TOOL])
    items, text = list(prompt), ""
    while not text:
        async with client.responses.stream(input=items, **asked) as stream:
            async for event in stream:
                text += event.delta if event.type == "response.output_text.delta" else ""
            response = await stream.get_final_response()
        assert text == response.output_text and response.status == "completed"
        asked["previous_response_id"] = response.id
        items = [
            {
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": str(sum(json.loads(item.arguments).values())),
            }
            for item in response.output
            if item.type == "function_call"
        ]
    return text


@pytest.mark.parametrize("agent", [asks_with_items, asks_with_names])
def test_agents_of_the_responses_api(agent: Any) -> None:
    """They are recorded as agents that ask for chat completions are: one conversation each."""
    client = vf.ScriptedClient(adds)
    results = agent_env(agent).evaluate(client, "m", progress=False)
    assert results.errors == [None] * 3 and results.reward == [1.0] * 3
    state = results.state[2]
    assert (state["conversations"], state["turn"], state["result"]) == (1, 2, "It is 4.")
    assert [m["role"] for m in results.completion[2]] == ["assistant", "tool", "assistant"]
    assert state["agent_prompt"][0] == {"role": "system", "content": "Add."}
    assert client.requests[0]["tools"][0]["function"]["name"] == "add"


def test_exact_tokens_of_the_responses_api() -> None:
    """The tokens of a response are those that the engine sampled, and its counts are theirs."""

    async def asks(base_url: str, api_key: str, prompt: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
        return await client.responses.create(model="m", input=prompt, max_output_tokens=9)

    with vf.serve(MODEL, progress=False) as served:
        env = agent_env(asks, dataset=ROWS[:1])
        results = env.evaluate(served.client, MODEL, {"seed": 1}, progress=False)
    (turn,) = rollout_turns(results.state[0])
    response = results.state[0]["result"]
    assert response.usage.output_tokens == len(turn.completion_ids) == len(turn.logprobs) == 9
    assert response.usage.input_tokens == len(turn.prompt_ids)
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("from openai import OpenAI\nOpenAI().chat.completions.nothing()", "has no attribute"),
        ("import os; os.kill(os.getpid(), 9)", "ended with status 137"),
        (
            "print('I know it: 2')",
            "The agent got no answer: it must send its requests to base_url.",
        ),
        (AGENT.replace("OpenAI(", "OpenAI(api_key='stolen', "), "This is not the key of this"),
        (
            "from openai import OpenAI\n"
            "tools = [{'type': 'web_search'}]\n"
            "try: OpenAI(max_retries=0).responses.create(model='m', input='?', tools=tools)\n"
            "except Exception: pass",
            "The last error was: tools: The tool 'web_search' is not supported: only functions are.",
        ),
    ],
)
def test_an_agent_that_fails_is_one_failed_rollout(code: str, words: str) -> None:
    env = agent_env(program(code), dataset=ROWS[:1])
    results = env.evaluate(vf.ScriptedClient(adds), "m", progress=False)
    assert results.reward == [0.0] and words in str(results.errors[0])


def test_a_command_that_is_not_there() -> None:
    results = agent_env(["no-such-agent"]).evaluate(vf.ScriptedClient("4"), "m", progress=False)
    assert "no-such-agent" in str(results.errors[0])


def children(mark: str) -> list[Path]:
    """Return the processes whose command holds a mark."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in each.read_bytes():
                found.append(each)
        except OSError:
            continue
    return found


class Hangs:
    """A client that never answers, and notes when it was called off."""

    def __init__(self, note: Path) -> None:
        self.asked, self.ended, self.note = 0, 0, note
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    async def create(self, **request: Any) -> Any:
        """Wait for ever."""
        self.asked += 1
        self.note.touch()
        try:
            await asyncio.sleep(600)
        finally:
            self.ended += 1


def test_an_agent_that_dies_calls_its_request_off(tmp_path: Path) -> None:
    """It dies when its request has been asked of the model."""
    die = f"import os, threading, time\nasked = {str(tmp_path / 'asked')!r}\ndef die():\n"
    die += "    while not os.path.exists(asked): time.sleep(0.01)\n    os._exit(3)\n"
    code = f"{die}threading.Thread(target=die).start()\n{AGENT}"
    client, started = Hangs(tmp_path / "asked"), time.monotonic()
    results = agent_env(program(code), dataset=ROWS[:1]).evaluate(client, "m", progress=False)
    assert "ended with status 3" in str(results.errors[0])
    assert (client.asked, client.ended) == (1, 1) and time.monotonic() - started < 300


def test_a_rollout_that_takes_too_long_ends_the_program_and_what_it_started() -> None:
    mark = f"sleep 98.{os.getpid()}"
    code = f"import subprocess; subprocess.run('{mark}; true', shell=True)"
    env = agent_env(program(code), rollout_timeout=2.0)
    results = env.evaluate(vf.ScriptedClient("4"), "m", progress=False)
    assert [str(error)[:12] for error in results.errors] == ["TimeoutError"] * 3
    deadline = time.monotonic() + 30
    while children(mark):
        assert time.monotonic() < deadline, "the program is still running"
        time.sleep(0.1)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
class TestConversations:
    """Which requests belong together."""

    @pytest.fixture
    def messages(self) -> list[Any]:
        return [{"role": "user", "content": "1 + 1?"}]

    async def ask(self, tape: Tape, messages: Any, **more: Any) -> Any:
        """Ask at a tape's address, and return the message."""
        async with openai.AsyncOpenAI(base_url=tape.url, api_key=tape.key, max_retries=0) as client:
            answer = await client.chat.completions.create(model="m", messages=messages, **more)
        return answer.choices[0].message

    async def test_several_tapes_at_once(self, messages: Any, anyio_backend: str) -> None:
        async def one(number: int) -> list[Any]:
            client = vf.ScriptedClient([f"{number}", f"{number}!"])
            async with vf.record(client, "m") as tape:
                said = await self.ask(tape, messages)
                await self.ask(tape, [*messages, said.model_dump(), *messages])
            (state,) = tape.conversations
            return [m["content"] for m in state["completion"]]

        runs = await asyncio.gather(*map(one, range(40)))
        assert runs == [[f"{n}", "1 + 1?", f"{n}!"] for n in range(40)]

    async def test_parallel_and_branching_requests(self, messages: Any, anyio_backend: str) -> None:
        async with vf.record(vf.ScriptedClient(["2", "yes"]), "m") as tape:
            await asyncio.gather(*(self.ask(tape, messages) for _ in range(3)))
            assert len(tape.conversations) == 3  # each its own try
            whole = [*messages, {"role": "assistant", "content": "2"}]
            branches = [[*whole, {"role": "user", "content": text}] for text in ("why?", "sure?")]
            await asyncio.gather(*(self.ask(tape, branch) for branch in branches))
            await self.ask(tape, [{"role": "user", "content": "in short: 1 + 1"}])
        said = [[m["content"] for m in state["completion"]] for state in tape.conversations]
        assert sorted(map(len, said)) == [1, 1, 3, 3]
        assert {tuple(s[1:]) for s in said if s[1:]} == {("why?", "yes"), ("sure?", "yes")}
        rollouts = await tape.score(vf.Rubric(said_last), answer="2")
        assert [each.reward for each in rollouts].count(1.0) == 2

    async def test_what_the_model_refuses_reaches_the_agent(
        self, messages: Any, anyio_backend: str
    ) -> None:
        with vf.EmbeddedEngine(MODEL, max_model_len=64) as engine:
            async with vf.record(engine) as tape:
                with pytest.raises(openai.BadRequestError, match="63|64"):
                    await self.ask(tape, [{"role": "user", "content": "1 + 1? " * 100}])
                with pytest.raises(openai.BadRequestError, match="logit_bias"):
                    await self.ask(tape, messages, logit_bias={"5": 1})
                await self.ask(tape, messages)
        assert (len(tape.conversations), len(tape.refused)) == (1, 2)

    async def test_a_filtered_answer_is_no_turn(self, messages: Any, anyio_backend: str) -> None:
        async def create(**request: Any) -> Any:
            message = SimpleNamespace(role="assistant", content="")
            choice = SimpleNamespace(message=message, finish_reason="content_filter")
            return SimpleNamespace(choices=[choice])

        chat = SimpleNamespace(completions=SimpleNamespace(create=create))
        async with vf.record(SimpleNamespace(chat=chat), "m") as tape:
            with pytest.raises(openai.BadRequestError, match="was filtered"):
                await self.ask(tape, messages)
        assert tape.conversations == []

    async def test_only_the_key_opens_it(self, messages: Any, anyio_backend: str) -> None:
        async with vf.record(vf.ScriptedClient("2"), "m") as tape:
            async with openai.AsyncOpenAI(base_url=tape.url, api_key="none") as client:
                with pytest.raises(openai.AuthenticationError, match="not the key"):
                    await client.chat.completions.create(model="m", messages=messages)
            assert tape.url.startswith("http://127.0.0.1:") and tape.conversations == []
            port = int(tape.url.rsplit(":", 1)[1].removesuffix("/v1"))
            with pytest.raises(OSError, match=f"{port}.*address already in use"):
                async with vf.record(vf.ScriptedClient("2"), "m", port=port):
                    pass
        with pytest.raises(openai.APIConnectionError):
            await self.ask(tape, messages)

    async def test_tokens_are_those_of_the_policy(self, anyio_backend: str, tmp_path: Path) -> None:
        sums = vf.load_environment("addition", num_examples=2)
        row, rollouts = sums.get_dataset()[0], []
        with vf.EmbeddedEngine(MODEL) as engine:
            for number in range(4):
                async with vf.record(engine, sampling_args={"seed": number}) as tape:
                    said = await self.ask(tape, row["prompt"], temperature=0.0, max_tokens=60)
                    await self.ask(tape, [*row["prompt"], said, *row["prompt"]], max_tokens=60)
                (rollout,) = await tape.score(sums, answer=row["answer"])
                text = engine.served.decode(rollout.turns[0].completion_ids)
                assert text == rollout.completion[0]["content"]
                rollout.index = number
                rollouts.append(rollout)
        assert len({each.completion[0]["content"] for each in rollouts}) > 1  # not at 0.0
        for rollout in rollouts:
            (sequence,) = merge_turns(rollout.turns)  # the second turn read the first as it was
            assert sum(sequence.mask) == sum(len(turn.completion_ids) for turn in rollout.turns)
        args = vf.GRPOConfig(str(tmp_path), num_generations=4, per_device_train_batch_size=4)
        rollouts[0].reward, rollouts[1].reward = 1.0, 0.0
        batch = make_samples(rollouts, args)
        assert len(batch.samples) == 4 and batch.advantages[0] > batch.advantages[1]
        store = RolloutStore(tmp_path / "recorded.jsonl")
        for rollout in rollouts:
            store.append(rollout)
        store.close()
        (first, *_) = vf.read_rollouts(tmp_path / "recorded.jsonl")
        assert first["turns"][0]["completion_ids"] == rollouts[0].turns[0].completion_ids


# Ask, then ask a colleague of the same model: two conversations that share the reward.
TWO = """
import json, sys
from openai import OpenAI

client, prompt = OpenAI(max_retries=0), json.load(sys.stdin)["prompt"]
ask = lambda messages: client.chat.completions.create(model="gpt-4o", messages=messages)
first = ask(prompt).choices[0].message.content
print(ask(prompt).choices[0].message.content)
"""


def test_a_step_of_grpo_learns_from_a_program(tmp_path: Path) -> None:
    sums = vf.load_environment("addition")
    dataset, seen = sums.get_dataset(n=1), []

    class Watched(vf.AgentEnv):
        async def rollout(self, *given: Any, **named: Any) -> Any:
            completion, state = await super().rollout(*given, **named)
            seen.append(state)
            return completion, state

    env = Watched(program(TWO), dataset=dataset, parser=sums.parser, rubric=sums.rubric)
    args = vf.GRPOConfig(
        str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=4,
        max_tokens=40,
        max_steps=1,
        learning_rate=1e-3,
        beta=0.0,
        num_batches_ahead=0,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    )
    trainer = vf.GRPOTrainer(MODEL, env, args, peft_config=vf.lora_defaults())
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if "lora_B" in n}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    assert any(not torch.equal(value, after[name]) for name, value in before.items())
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert logged["rollouts/failed"] == 0 and len(seen) == 4
    assert all((state["conversations"], state["turn"]) == (2, 2) for state in seen)
    written = [r.usage.completion_tokens for state in seen for r in state["responses"]]
    assert logged["tokens"] == sum(written)  # of both conversations
