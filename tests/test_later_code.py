"""Environments written for `verifiers` 0.1.5 to 0.1.14, each in a way that public packages of that time have."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import verifiers_nb as vf
from verifiers_nb.envs.records import rollout_record
from verifiers_nb.types import Rollout

HEAD = """
import verifiers as vf
from datasets import Dataset

def rows(*pairs):
    return Dataset.from_list([{"question": q, "answer": a} for q, a in pairs])
"""
# Of each environment: its code, what the model says, and the reward, metrics and last words that come of it.
ENVIRONMENTS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "maybe_thinks": (
        """
def load_environment(**kwargs):
    parser = vf.MaybeThinkParser(vf.extract_boxed_answer)
    async def right(parser, completion, answer):
        return 1.0 if parser.parse_answer(completion) == answer else 0.0
    async def long(completion):
        return float(len(completion[-1].content))
    rubric = vf.Rubric(funcs=[right], parser=parser)
    rubric.add_metric(long)
    return vf.SingleTurnEnv(dataset=lambda: rows(("2 + 2?", "4")), parser=parser, rubric=rubric, env_id="sums", **kwargs)
""",
        ["\\boxed{4}"],
        {"reward": 1.0, "right": 1.0, "long": 9.0},
    ),
    "checks_sums": (
        """
from verifiers.rubrics.math_rubric import MathRubric

class Checks(vf.MultiTurnEnv):
    @vf.stop
    async def checked(self, state):
        return len(state["trajectory"]) == 2
    async def env_response(self, messages, state):
        return "Check it."

def load_environment():
    return Checks(dataset=rows(("2 + 2?", "4")), rubric=MathRubric())
""",
        ["\\boxed{5}", "\\boxed{4}"],
        {"reward": 1.0, "correct_answer_reward_func": 1.0, "stop": "checked", "turns": 2},
    ),
    "checks_sums_as_before": (
        """
class Checks(vf.MultiTurnEnv):
    def is_completed(self, messages, state, **kwargs):
        return state["turn"] == 1
    def env_response(self, messages, state, **kwargs):
        return [], state

def load_environment():
    return Checks(dataset=rows(("2 + 2?", "4")), rubric=vf.RubricGroup([vf.MathRubric(), vf.Rubric()]))
""",
        ["\\boxed{4}"],
        {"reward": 0.0, "correct_answer_reward_func": 0.0},
    ),
    "runs_code": (
        """
class RunsCode(vf.StatefulToolEnv):
    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}

async def run(code: str, state: dict) -> str:
    "Run code."
    state["final_env_response"] = "It works."
    return "It works."

def load_environment():
    def works(state):
        return float(state["final_env_response"] == "It works.")
    env = RunsCode(dataset=rows(("?", "")), tools=[], rubric=vf.Rubric([works]))
    env.add_tool(run, args_to_skip=["state"])
    return env
""",
        [[vf.tool_call("run", code="1")]],
        {"reward": 1.0, "said": "It works.", "stop": "has_final_env_response"},
    ),
    "asks_in_a_text": (
        """
class Asks(vf.ToolEnv):
    async def env_response(self, messages, state, **kwargs):
        try:
            return [await self.call_tool(call.name, {}, call.id) for call in messages[-1].tool_calls]
        except vf.ToolError as error:
            state["final_env_response"] = "Stop." if self._should_stop_for_error(error) else "Go."
            return state["final_env_response"]

def look():
    "Look."
    raise ValueError("nothing to see")

def load_environment():
    data = Dataset.from_list([{"prompt": "Which?", "answer": "Stop."}])
    def right(state, answer):
        return float(state["prompt"][0] == vf.UserMessage(content="Which?") and state["final_env_response"] == answer)
    return Asks(dataset=data, tools=[look], stop_errors=[ValueError], rubric=vf.Rubric([right]))
""",
        [[vf.tool_call("look")]],
        {"reward": 1.0, "said": "Stop."},
    ),
    "keeps_to_a_form": (
        """
from verifiers.parsers.xml_parser import XMLParser

def load_environment():
    parser = XMLParser(["think", "answer"])
    return vf.SingleTurnEnv(dataset=rows(("?", "")), rubric=vf.Rubric([parser.get_format_reward_func()]), parser=parser)
""",
        ["<think></think><answer>4"],
        {"reward": 0.8, "format_reward_func": 0.8, "stop": "max_turns_reached"},
    ),
    "asks_twice": (
        """
from verifiers.types import Messages, State

class AsksTwice(vf.MultiTurnEnv):
    @vf.stop
    async def asked_twice(self, state: State) -> bool:
        return len(state["trajectory"]) == 2
    async def env_response(self, messages: Messages, state: State, **kwargs) -> Messages:
        return [{"role": "user", "content": "Sure?"}]

def load_environment():
    async def last(completion, answer):
        return float(completion[-1]["content"] == answer)
    return AsksTwice(dataset=rows(("2 + 2?", "4")), rubric=vf.Rubric([last]))
""",
        ["5", "4", "3"],
        {"reward": 1.0, "stop": "asked_twice", "said": "4"},
    ),
    "game": (
        """
class Game(vf.MultiTurnEnv):
    def __init__(self, **kwargs):
        super().__init__(max_turns=5, **kwargs)
    async def setup_state(self, state: vf.State, **kwargs) -> vf.State:
        state["tries"] = 0
        return await super().setup_state(state, **kwargs)
    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs) -> vf.Messages:
        state["tries"] += 1
        assert isinstance(messages[-1], vf.AssistantMessage)
        if messages[-1].content == state["answer"]:
            state["final_env_response"] = [vf.UserMessage(content="Won.")]
            return state["final_env_response"]
        state["trajectory"][-1]["reward"] = -0.25
        return [vf.UserMessage(content="No.")]
    @vf.cleanup
    async def close(self, state):
        state["is_closed"] = True

def load_environment():
    def steps(state):
        return 1.0 + sum(step["reward"] or 0.0 for step in state["trajectory"]) if state["is_closed"] else 0.0
    return Game(dataset=rows(("Which?", "3")), rubric=vf.Rubric([steps]))
""",
        ["1", "2", "3", "4"],
        {"reward": 0.5, "said": "Won.", "turns": 3},
    ),
    "state_alone": (
        """
class StateAlone(vf.MultiTurnEnv):
    def setup_state(self, state):
        state["lives"] = 2
    async def is_completed(self, state):
        return state["lives"] == 0 or await super().is_completed(state)
    async def env_response(self, messages, state):
        state["lives"] -= 1
        return [{"role": "user", "content": f"{state['lives']} left"}]

def load_environment():
    async def turns(state):
        return len(state["trajectory"])
    return StateAlone(dataset=rows(("?", "")), rubric=vf.Rubric([turns]), max_turns=10)
""",
        ["a", "b", "c", "d"],
        {"reward": 3.0, "said": "c"},
    ),
    "both_arguments": (
        """
from typing import Tuple
from verifiers.types import Messages, State

class Both(vf.MultiTurnEnv):
    async def is_completed(self, messages: Messages, state: State, **kwargs) -> bool:
        if await self.max_turns_reached(state) or await self.prompt_too_long(state):
            return True
        return state.get("solved", False) or await super().is_completed(messages, state, **kwargs)
    async def env_response(self, messages: Messages, state: State, **kwargs) -> Tuple[Messages, State]:
        state["solved"] = messages[-1]["content"] == state["answer"]
        return [{"role": "user", "content": "Go on." if not state["solved"] else "Right."}], state

def load_environment():
    def solved(state):
        return float(state["solved"])
    return Both(dataset=rows(("?", "b")), rubric=vf.Rubric([solved]), max_turns=6)
""",
        ["a", "b", "c", "d"],
        {"reward": 1.0, "said": "Right.", "turns": 2},
    ),
    "hidden_arguments": (
        """
def put(title: str, shelf: list) -> str:
    "Put a book on the shelf."
    shelf.append(title)
    return f"{len(shelf)} there"

class Shelf(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(tools=[], **kwargs)
        self.add_tool(put, args_to_skip=["shelf"])
    async def setup_state(self, state, **kwargs):
        state["shelf"] = []
        return await super().setup_state(state, **kwargs)
    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "shelf": state["shelf"]} if tool_name == "put" else tool_args
    @vf.stop
    async def no_tools_called(self, state):
        return False
    @vf.stop(priority=10)
    async def full(self, state):
        return len(state["shelf"]) == 2

def load_environment():
    def books(state):
        return len(state["shelf"])
    return Shelf(dataset=rows(("Fill it.", "")), rubric=vf.Rubric([books]))
""",
        [
            [vf.tool_call("put", title="Emma")],
            "Hm.",
            [vf.tool_call("put", title="Ulysses")],
            "x",
            "y",
        ],
        {"reward": 2.0, "stop": "full"},
    ),
    "nudges": (
        """
def look(place: str) -> str:
    "Look somewhere."
    return f"nothing at {place}"

class Nudges(vf.ToolEnv):
    @vf.stop
    async def no_tools_called(self, state: vf.State) -> bool:
        last = state["trajectory"][-1]["completion"][-1] if state["trajectory"] else None
        return last is not None and not last.tool_calls and state.get("nudged", False)
    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs) -> vf.Messages:
        if messages[-1].tool_calls:
            assert messages[-1].tool_calls[0].name == "look"
            return await super().env_response(messages, state, **kwargs)
        state["nudged"] = True
        return [vf.UserMessage(content="Use a tool.")]

def load_environment():
    def looked(completion):
        return float(sum(message["role"] == "tool" for message in completion))
    return Nudges(tools=[look], dataset=rows(("Where?", "")), rubric=vf.Rubric([looked]), max_turns=8)
""",
        ["Here.", [vf.tool_call("look", place="home")], "Not there.", "x"],
        {"reward": 1.0, "said": "Not there."},
    ),
    "plain_tools": (
        """
def add(a: int, b: int) -> int:
    "Add."
    return a + b

def load_environment():
    def turns(state):
        return len(state["trajectory"]) + (state["trajectory"][-1]["completion"][-1]["content"] == "4")
    return vf.ToolEnv(tools=[add], dataset=rows(("2 + 2?", "4")), rubric=vf.Rubric([turns]), stop_errors=[vf.Error])
""",
        [[vf.tool_call("add", a=2, b=2)], "4"],
        {"reward": 3.0, "said": "4"},
    ),
    "messages_only": (
        """
class MessagesOnly(vf.MultiTurnEnv):
    async def is_completed(self, messages, state, **kwargs):
        return state["turn"] == 2
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "Go on."}]

def load_environment():
    return MessagesOnly(dataset=rows(("?", "")), rubric=vf.Rubric([lambda state: state["turn"]]))
""",
        ["a", "b", "c"],
        {"reward": 2.0, "said": "b"},
    ),
    "breaks": (
        """
closed = []

class Breaks(vf.MultiTurnEnv):
    async def env_response(self, messages: vf.Messages, state: vf.State) -> vf.Messages:
        raise vf.InfraError("the server is gone")
    @vf.cleanup(priority=1)
    async def close(self, state: vf.State):
        closed.append(len(state["trajectory"]))

def load_environment():
    return Breaks(dataset=rows(("?", "")), rubric=vf.Rubric([lambda state: 1.0]))
""",
        ["a", "b"],
        {"reward": 0.0, "error": "InfraError: the server is gone"},
    ),
    "calls_wrongly": (
        """
def dig(command: str) -> str:
    "Dig."
    if command == "twice":
        raise ValueError("only once")
    return "dug"

class Digs(vf.ToolEnv):
    @vf.cleanup
    async def close(self, state):
        state["is_closed"] = True

def load_environment():
    def careful(state, completion):
        assert isinstance(state["error"], vf.ToolCallError) and state.get("error")
        return -1.0 * len(completion) * state["is_closed"]
    return Digs([dig], dataset=rows(("?", "")), rubric=vf.Rubric([careful]), stop_errors=[ValueError])
""",
        [[vf.tool_call("dig", command="once")], [vf.tool_call("dig", command="twice")], "x"],
        {"reward": -3.0, "stop": "has_error", "turns": 2},
    ),
    "too_long": (
        """
class TooLong(vf.MultiTurnEnv):
    async def env_response(self, messages: vf.Messages, state: vf.State) -> vf.Messages:
        raise vf.OverlongPromptError

def load_environment():
    return TooLong(dataset=rows(("?", "")), rubric=vf.Rubric([lambda state: float(state["is_truncated"])]))
""",
        ["a"],
        {"reward": 1.0, "said": "a", "stop": "prompt_too_long"},
    ),
    "shows_less": (
        """
class ShowsLess(vf.MultiTurnEnv):
    async def get_prompt_messages(self, state: vf.State) -> vf.Messages:
        turn = len(state["trajectory"])
        assert state["input"]["answer"] == "a"
        return [*state["prompt"], {"role": "user", "content": f"Step {turn}, alone."}]
    async def add_model_response(self, state, prompt_messages, response):
        await super().add_model_response(state, prompt_messages, response)
        state["trajectory"][-1]["reward"] = float(prompt_messages[-1].content == f"Step {len(state['responses']) - 1}, alone.")
    async def env_response(self, messages, state, **kwargs):
        raise AssertionError("its prompts are its own")

def load_environment():
    def steps(state, completion, answer):
        assert state["client"].chat and state["model"] == "scripted"
        seen = [len(step["prompt"]) for step in state["trajectory"]]
        right = completion[-1]["content"] == answer and len(completion) == 2
        return sum(step["reward"] for step in state["trajectory"]) + 10 * right + 100 * (seen == [2, 2, 2])
    return ShowsLess(dataset=rows(("?", "a")), rubric=vf.Rubric([steps]), max_turns=3, system_prompt=None)
""",
        ["a"],
        {"reward": 113.0, "said": "a", "stop": "max_turns_reached"},
    ),
    "asks_for_objects": (
        """
from verifiers.utils.message_utils import concat_messages

class Repeats(vf.MultiTurnEnv):
    async def get_prompt_messages(self, state):
        if not state["trajectory"]:
            return state["prompt"]
        last = state["trajectory"][-1]
        asked = await self.env_response(last["completion"], state)
        return concat_messages([last["prompt"], last["completion"], asked])
    async def env_response(self, messages, state, **kwargs):
        return [vf.UserMessage(content="Again.")]

async def right(completion, parser_obj):
    return float(parser_obj.parse_answer(completion) == "4")

def load_environment():
    rubric = vf.Rubric(funcs=[right])
    rubric.add_class_object("parser_obj", vf.XMLParser(["answer"]))
    group = vf.RubricGroup([rubric])
    group.add_metric(lambda completion, size: float(len(completion) == size))
    group.add_class_object("size", 3)
    return Repeats(dataset=rows(("2 + 2?", "4")), rubric=group, max_turns=2)
""",
        ["5", "<answer>4</answer>"],
        {"reward": 1.0, "right": 1.0, "<lambda>": 1.0, "said": "<answer>4</answer>"},
    ),
    "ranks": (
        """
def load_environment():
    async def shortest(completions):
        sizes = [len(completion[-1]["content"]) for completion in completions]
        return [float(size == min(sizes)) for size in sizes]
    group = vf.EnvGroup([vf.SingleTurnEnv(dataset=rows(("?", "")), rubric=vf.Rubric([shortest]))], env_names=["one"])
    return group
""",
        ["a"],
        {"reward": 1.0, "shortest": 1.0},
    ),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder of modules, which are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    known = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - known:
        if name.startswith("later_"):
            del sys.modules[name]


def load(folder: Path, name: str, code: str, **arguments: Any) -> Any:
    """Load an environment from a module that is written for it."""
    (folder / f"later_{name}.py").write_text(HEAD + code)
    return vf.load_environment(f"later-{name}", **arguments)


def test_evaluate_calls_an_override_of_generate(here: Path) -> None:
    env = load(
        here,
        "doubles",
        """
class Doubles(vf.SingleTurnEnv):
    async def generate(self, inputs, client, model, sampling_args=None, **kwargs):
        assert [row["answer"] for row in inputs] == ["4", "4"]
        results = await super().generate(inputs, client, model, sampling_args, **kwargs)
        results.reward = [2 * reward for reward in results.reward]
        return results

async def right(completion, answer):
    return float(answer in completion[-1]["content"])

def load_environment():
    return Doubles(dataset=rows(("2 + 2?", "4")), rubric=vf.Rubric(funcs=[right]))
""",
    )
    client, kept = vf.ScriptedClient("4"), here / "kept.jsonl"
    options: dict[str, Any] = dict(rollouts_per_example=2, progress=False)
    assert env.evaluate(client, "m", save_path=kept, **options).reward == [2.0, 2.0]
    assert env.evaluate_sync(client, "m", **options).reward == [2.0, 2.0]
    assert len(kept.read_text().splitlines()) == 2
    both = env.get_dataset().select([0, 0])
    assert asyncio.run(env.generate(both, client, "m")).reward == [2.0, 2.0]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_of_a_later_version_runs(here: Path, name: str) -> None:
    code, turns, expected = ENVIRONMENTS[name]
    env = load(here, name, code)
    results = env.evaluate(vf.ScriptedClient(turns), "scripted", progress=False)
    state = results.state[0]
    assert state.get("error") == expected.get("error"), state.get("error")
    assert results.reward == [expected["reward"]], state.get("reward_errors")
    assert not state.get("reward_errors")
    assert {n: results.metrics[n][0] for n in expected if n in results.metrics} == {
        n: value for n, value in expected.items() if n in results.metrics
    }
    if "said" in expected:
        assert results.completion[0][-1]["content"] == expected["said"]
    if "stop" in expected:
        assert state["stop_condition"] == expected["stop"]
    if "turns" in expected:
        assert len(state["trajectory"]) == expected["turns"]
    if name == "breaks":
        assert sys.modules["later_breaks"].closed == [1]


def test_a_group_has_the_later_names_of_sync_calls(here: Path) -> None:
    env = load(here, "ranks", ENVIRONMENTS["ranks"][0])
    given: dict[str, Any] = dict(client=vf.ScriptedClient("a"), model="m")
    assert env.evaluate_sync(**given, progress=False).reward == [1.0]
    assert env.generate_sync(env.get_dataset(), **given).reward == [1.0]
    assert isinstance(env, vf.EnvGroup)


def test_their_rollouts_are_stored_and_read(here: Path) -> None:
    """Turns and clients are no part of a file, whatever the state holds."""
    env = load(here, "game", ENVIRONMENTS["game"][0])
    file = here / "results.jsonl"
    client = vf.ScriptedClient(["1", "3"])
    env.evaluate(client, "scripted", progress=False, save_path=file)
    read = vf.load_results(file)
    assert (read.reward, read.completion[0][-1]["content"]) == ([0.75], "Won.")
    assert not {"trajectory", "client"} & {*read.state[0]} and len(file.read_text()) < 2000


FEWEST_TURNS = """
class Counts(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [vf.UserMessage(content="Go on.")]
    @vf.stop
    async def is_done(self, state):
        return bool(state["trajectory"]) and state["trajectory"][-1]["completion"][-1].content == "done"

def load_environment():
    async def fewest(states):
        turns = [len(state["trajectory"]) for state in states]
        return [float(each == min(turns)) for each in turns]
    return Counts(dataset=rows(("?", "")), rubric=vf.Rubric([fewest]))
"""


def test_a_half_stored_group_is_played_again(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A record has no trajectory, so a reward for a group can't be computed from records."""
    env, file = load(here, "fewest_turns", FEWEST_TURNS), here / "results.jsonl"

    def evaluate(*turns: str, count: int = 3) -> Any:
        said = iter(turns)
        client = vf.ScriptedClient(lambda conversation: next(said))
        settings = dict(rollouts_per_example=count, max_concurrent=1, progress=False)
        return env.evaluate(client, "scripted", save_path=file, **settings)

    assert evaluate("a", "done", "done", "b", "c", "done").reward == [0.0, 1.0, 0.0]
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]))
    assert evaluate("a", "done", "b", "done", "c", "done").reward == [1.0, 1.0, 1.0]
    assert "2 stored rollouts are played again" in caplog.text
    assert len(file.read_text().splitlines()) == 3
    before = file.read_text()
    assert evaluate().reward == [1.0, 1.0, 1.0] and file.read_text() == before
    file.write_text(before.replace('"content": "?"', '"content": "Which?"'))
    with pytest.raises(ValueError, match="has rollouts of other inputs"):
        evaluate(count=4)
    assert len(file.read_text().splitlines()) == 3  # nothing of another run is removed


CHANGES_REQUESTS = """
class Budget(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["sampling_args"] = {**(state["sampling_args"] or {}), "temperature": 0.2}
        state["sampling_args"].setdefault("extra_body", {})["min_p"] = 0.5
        return await super().setup_state(state)

    async def get_model_response(self, state, prompt, client=None, model=None, tool_defs=None, sampling_args=None):
        own = dict(sampling_args or state["sampling_args"], max_tokens=7 - len(state["trajectory"]))
        return await super().get_model_response(state, prompt, client=client, model=model, tool_defs=tool_defs, sampling_args=own)

    async def env_response(self, messages, state):
        if len(state["trajectory"]) == 2:
            state["error"] = vf.Error("the budget is spent")
        return [vf.UserMessage(content="More.")]

def load_environment():
    def whole(state):
        steps = {step["trajectory_id"] for step in state["trajectory"]}
        return float(steps == {state["trajectory_id"]} and state["is_completed"] and not state["is_truncated"])
    async def seconds(state):
        return state["timing"]["total_ms"] / 1000
    env = Budget(dataset=rows(("?", "")), rubric=vf.Rubric([whole]))
    env.add_rubric(vf.Rubric([seconds], weights=[0.0]))
    return env
"""


def test_an_environment_changes_its_requests(here: Path) -> None:
    """In its state or for one request; the run's other sampling arguments stay, and are not changed."""
    env, client = load(here, "changes_requests", CHANGES_REQUESTS), vf.ScriptedClient("a")
    given = {"temperature": 1.0, "top_p": 0.9, "extra_body": {"top_k": 5}}
    results = env.evaluate(client, "scripted", given, progress=False)
    asked = [(each["temperature"], each["max_completion_tokens"]) for each in client.requests]
    assert asked == [(0.2, 7), (0.2, 6), (0.2, 5)]
    assert {each["top_p"] for each in client.requests} == {0.9}
    assert client.requests[0]["extra_body"] == {"top_k": 5, "min_p": 0.5}
    assert given["extra_body"] == {"top_k": 5}
    assert (results.reward, results.state[0]["stop_condition"]) == ([1.0], "has_error")
    assert len(results.state[0]["trajectory"]) == 3 and 0 < results.metrics["seconds"][0] < 5
    assert "sampling_args" not in rollout_record(Rollout("?", state=results.state[0]))["state"]


def test_later_names_of_calls(here: Path) -> None:
    env = load(here, "maybe_thinks", ENVIRONMENTS["maybe_thinks"][0], env_args={"a": 1})
    assert (env.env_id, env.env_args) == ("sums", {"a": 1})
    row = env.get_dataset()[0]
    client = vf.ScriptedClient("<think>2 + 2</think>\\boxed{4}")
    states = asyncio.run(env.run_group([row, row], client, "scripted", {"temperature": 1.0}))
    assert [state["reward"] for state in states] == [1.0, 1.0]
    assert env.evaluate_sync(client, "scripted", progress=False).reward == [1.0]

    async def awaits() -> Any:
        return await env.evaluate(client, "scripted", progress=False)

    assert asyncio.run(awaits()).reward == [1.0]
    assert len(states[0]["trajectory"]) == 1


def test_our_own_classes_are_not_touched(here: Path) -> None:
    load(here, "asks_twice", ENVIRONMENTS["asks_twice"][0])
    env = vf.SingleTurnEnv(dataset=[{"question": "?", "answer": ""}])
    state = env.evaluate(vf.ScriptedClient("a"), "scripted", progress=False).state[0]
    assert type(env).__mro__[1] is vf.MultiTurnEnv and "trajectory" not in state


STEPS = """
class Steps(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [vf.UserMessage(content="Go on.")]
    async def add_trajectory_step(self, state, trajectory_step):
        trajectory_step["reward"] = 0.5
        await super().add_trajectory_step(state, trajectory_step)
    async def render_completion(self, state):
        await super().render_completion(state)
        state["completion"] = state["completion"][-1:]

def load_environment():
    def steps(state, completion):
        return sum(step["reward"] for step in state["trajectory"]) + 10 * len(completion)
    return Steps(dataset=rows(("?", "")), rubric=vf.Rubric([steps]), max_turns=2)
"""


def test_turns_and_completions_can_be_changed(here: Path) -> None:
    results = load(here, "steps", STEPS).evaluate(
        vf.ScriptedClient(["a", "b", "c"]), "scripted", progress=False
    )
    assert (results.reward, results.errors) == ([11.0], [None])
    assert [m["content"] for m in results.completion[0]] == ["b"]


TEARDOWN = """
class Closes(vf.SingleTurnEnv):
    @vf.teardown
    async def last(self):
        print("last", flush=True)
    @vf.teardown(priority=5)
    async def first(self):
        print("first", flush=True)

def load_environment():
    return Closes(dataset=rows(("?", "")))
"""


def test_teardown_is_called_when_python_ends(tmp_path: Path) -> None:
    (tmp_path / "closes.py").write_text(HEAD + TEARDOWN)
    play = (
        "import verifiers_nb as vf\nenv = vf.load_environment('closes')\n"
        "print(env.evaluate(vf.ScriptedClient('a'), 'm', progress=False).errors)"
    )
    environ = {**os.environ, "PYTHONPATH": f"{Path(vf.__file__).parents[1]}:{tmp_path}"}
    command = [sys.executable, "-c", play]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[None]\nfirst\nlast\n", done.stderr


@pytest.mark.parametrize("to", ["prime", "openenv"])
def test_an_environment_that_imports_verifiers_is_not_shipped(here: Path, to: str) -> None:
    env = load(here, "asks_twice", ENVIRONMENTS["asks_twice"][0])
    with pytest.raises(ValueError, match="imports verifiers, .*: import verifiers_nb instead"):
        vf.ship("later-asks_twice", here / "shipped", to=to)
    for each in (env, vf.EnvGroup([env])):
        with pytest.raises(ValueError, match="imports verifiers"):
            vf.ship(each, here / "shipped", to=to)
    assert not (here / "shipped").exists()


BARE = """
from verifiers.envs.environment import Environment

class Bare(Environment):
    async def rollout(self, client, model, prompt, **kwargs):
        return [], {"prompt": prompt, "completion": [], "responses": []}

def load_environment():
    return Bare(dataset=rows(("?", "")))
"""
SUMS = """
from verifiers_nb.environments.addition import load_environment as make

def load_environment():
    return make(num_examples=4)
"""


def test_an_environment_that_is_no_multi_turn_one_is_recognised_too(here: Path) -> None:
    env = load(here, "bare", BARE)
    assert type(env).__mro__[1] is vf.Environment
    load(here, "sums", SUMS)
    for each in ("later-bare", env, vf.EnvGroup([env]), "later-sums"):
        with pytest.raises(ValueError, match="imports verifiers"):
            vf.ship(each, here / "shipped", to="prime")
    (here / "later_own_sums.py").write_text(SUMS)
    assert vf.ship("later-own_sums", here / "shipped", to="prime").exists()


# What changed between versions: the version, the environment, and the reward and metrics of two rows.
OWN_NUMBERS = """
def load_environment():
    data = rows(("?", "a"), ("!", "b")).add_column("example_id", [7, 9])
    named = rows(("?", "a"), ("!", "b")).add_column("example_id", ["x", "y"])
    def number(state):
        return float(state["example_id"])
    return vf.SingleTurnEnv(dataset=named, eval_dataset=data, rubric=vf.Rubric([number]))
"""
STYLES: dict[str, tuple[str, str, list[float], set[str]]] = {
    "columns_and_state": (
        "0.1.6",
        """
class Columns(vf.MultiTurnEnv):
    async def init_state(self, prompt, completion, answer, task, info, example_id, **kwargs):
        state = await super().init_state(prompt, completion, answer, task, info, example_id, **kwargs)
        return {**state, "started": example_id}
    async def get_context_messages(self, state):
        return (await super().get_context_messages(state))[-1:]
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": str(len(messages))}], state
    async def rollout(self, client, model, prompt, completion=None, answer="", state={}, task="", info=None, example_id=0, sampling_args=None, **kwargs):
        state["seen"] = state["started"] == example_id
        completion, state = await super().rollout(client, model, prompt, completion, answer, state, task, info, example_id, sampling_args, **kwargs)
        return [*completion, {"role": "user", "content": "Thanks."}], state

def load_environment():
    def numbers(example_id, state, completion):
        return 10 * example_id + state["seen"] + 100 * (completion[1]["content"] == "1")
    return Columns(dataset=rows(("?", "a"), ("!", "b")), rubric=vf.Rubric([numbers]), max_turns=2)
""",
        [101.0, 111.0],
        {"numbers"},
    ),
    "columns_of_results": (
        "0.1.8",
        """
class Adds(vf.SingleTurnEnv):
    async def generate(self, inputs, client, model, **kwargs):
        results = await super().generate(inputs, client, model, **kwargs)
        results["reward"] = [r + row["example_id"] for r, row in zip(results["reward"], inputs)]
        return results

class Doubles(vf.Rubric):
    async def score_group(self, states, score_sem):
        await super().score_group(states, score_sem=score_sem)
        for state in states:
            state["reward"] *= 2
    async def score_rollout(self, state, **kwargs):
        raise AssertionError("it is not called there")

def load_environment():
    return Adds(dataset=rows(("?", "a"), ("!", "b")), rubric=Doubles([lambda state: state["input"]["example_id"]]))
""",
        [0.0, 3.0],
        {"<lambda>"},
    ),
    "own_numbers_6": (
        "0.1.6",
        OWN_NUMBERS,
        [7.0, 9.0],
        {"number"},
    ),
    "own_numbers_9": (
        "0.1.9",
        OWN_NUMBERS,
        [7.0, 9.0],
        {"number", "num_turns"},
    ),
    "rows_of_results": (
        "0.1.11",
        """
class Adds(vf.ToolEnv):
    async def generate(self, *args, **kwargs):
        results = await super().generate(*args, **kwargs)
        for output in results["outputs"]:
            output["reward"] += output["example_id"]
            output["metrics"]["bonus"] = 0.5
        return results

def look():
    "Look."

def load_environment():
    return Adds(tools=[look], dataset=rows(("?", "a"), ("!", "b")), rubric=vf.Rubric([lambda answer: 1.0]))
""",
        [1.0, 2.0],
        {"<lambda>", "num_turns", "total_tool_calls", "look_calls", "bonus"},
    ),
}


@pytest.mark.parametrize("name", STYLES)
def test_each_version_has_its_style(here: Path, name: str) -> None:
    """Rewards and metrics are those of the version's own package."""
    version, code, rewards, metrics = STYLES[name]
    with vf.as_verifiers(version):
        env = load(here, name, code)
    results = env.evaluate(vf.ScriptedClient(["x", "y"]), "scripted", progress=False)
    assert (results.reward, {*results.metrics}) == (rewards, metrics), results.errors
