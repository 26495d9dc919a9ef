"""Folders whose pyproject names a version of `verifiers` are played as that version plays them.

The expected rewards and metrics are those of the real packages 0.1.9.post3, 0.1.10, 0.1.11, 0.1.12 and 0.1.14, which
played the same code against a server with the same answers. A version without an entry plays as the one before it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import verifiers_nb as vf

HEAD = """
import asyncio
import json
import verifiers as vf
from datasets import Dataset

def rows(*answers, **columns):
    more = [{name: values[at] for name, values in columns.items()} for at in range(len(answers))]
    return Dataset.from_list([{"question": "?", "answer": a, **m} for a, m in zip(answers, more)])

class Turns(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "more"}]
"""
# Ways to name a version in the dependencies of a folder.
PINS = [
    "verifiers=={}",
    "verifiers>={}",
    "Verifiers[rl] ~= {}",
    "verifiers>={},<0.2; python_version >= '3.10'",
    "verifiers @ git+https://github.com/willccbb/verifiers.git@v{}",
]
# Of each environment: its code, the turns of the model, and the reward and metrics of its first row by version.
Scores = tuple[float, dict[str, float]]
PLAYED: dict[str, tuple[str, list[Any], dict[str, Scores]]] = {
    "answers_without_a_box": (
        """
def load_environment():
    rubric = vf.MathRubric()
    if "strict" in vf.extract_boxed_answer.__code__.co_varnames:  # from 0.1.12 on
        assert vf.extract_boxed_answer("4") == "4"
    return vf.SingleTurnEnv(dataset=rows("12"), rubric=rubric)
""",
        ["12"],
        {
            "0.1.11": (1.0, {"correct_answer": 1.0, "num_turns": 1.0}),
            "0.1.12": (0.0, {"correct_answer": 0.0, "num_turns": 1.0}),
        },
    ),
    "rollouts_of_its_own": (
        """
class Echo(vf.Environment):
    async def rollout(self, input, client, model, sampling_args=None):
        state = await self.init_state(input, client, model, sampling_args)
        state["response"] = await self.get_model_response(state, state["prompt"])
        state["completion"] = [{"role": "assistant", "content": input["answer"]}]
        state["is_completed"] = True
        return state

def load_environment():
    def says(completion, answer):
        return float(completion[0]["content"] == answer)
    return Echo(dataset=rows("b"), rubric=vf.Rubric([says]))
""",
        ["a"],
        {"0.1.9": (1.0, {"says": 1.0})},
    ),
    "what_an_environment_has": (
        """
def load_environment():
    env = vf.SingleTurnEnv(dataset=rows(""), rubric=vf.Rubric([lambda completion: 1.0]))
    known = [env.max_turns == 1, isinstance(env.rubric, vf.RubricGroup), isinstance(env, vf.Environment)]
    group = vf.EnvGroup([vf.SingleTurnEnv(dataset=rows(""), rubric=vf.Rubric())])
    def all_known(state):
        return float(all(known) and isinstance(group, vf.Environment) and not isinstance(group, vf.MultiTurnEnv))
    env.add_rubric(vf.Rubric([all_known]))
    return env
""",
        ["a"],
        {"0.1.9": (2.0, {"<lambda>": 1.0, "all_known": 1.0, "num_turns": 1.0})},
    ),
    "functions_in_order": (
        """
def load_environment():
    async def first(state):
        await asyncio.sleep(0.01)
        state["found"] = 3.0
        return 1.0
    async def second(state):
        return state["found"]
    return vf.SingleTurnEnv(dataset=rows(""), rubric=vf.Rubric([first, second]))
""",
        ["a"],
        {"0.1.9": (4.0, {"first": 1.0, "second": 3.0, "num_turns": 1.0})},
    ),
    "errors_of_calls": (
        """
def add(a: int) -> int:
    "Add."
    return a

def load_environment():
    def says(completion):
        said = [m["content"] for m in completion if m["role"] == "tool"]
        return float(said == ["JSONDecodeError", "KeyError", "TypeError"])
    form = lambda error: type(error).__name__
    return vf.ToolEnv(tools=[add], dataset=rows(""), error_formatter=form, rubric=vf.Rubric([says]))
""",
        [
            [{"name": "add", "arguments": "{bad"}],
            [{"name": "gone", "arguments": "{}"}],
            [{"name": "add", "arguments": "[1]"}],
            "end",
        ],
        {
            "0.1.9": (
                1.0,
                {"says": 1.0, "num_turns": 4.0, "total_tool_calls": 3.0, "add_calls": 2.0},
            )
        },
    ),
    "stops_at_unknown_tools": (
        """
def add(a: int) -> int:
    "Add."
    return a

def load_environment():
    def ended(state):
        return float(type(state["error"]) is vf.ToolCallError)
    return vf.ToolEnv(tools=[add], dataset=rows(""), stop_errors=[KeyError], rubric=vf.Rubric([ended]))
""",
        [[{"name": "gone", "arguments": "{}"}], "end"],
        {
            "0.1.9": (
                1.0,
                {"ended": 1.0, "num_turns": 1.0, "total_tool_calls": 1.0, "add_calls": 0.0},
            )
        },
    ),
    "stops_at_broken_calls": (
        """
def add(a: int) -> int:
    "Add."
    return a

def load_environment():
    def ended(state):
        return float(type(state["error"]) is vf.ToolParseError)
    return vf.ToolEnv(tools=[add], dataset=rows(""), stop_errors=[ValueError], rubric=vf.Rubric([ended]))
""",
        [[{"name": "add", "arguments": "{bad"}], "end"],
        {
            "0.1.9": (
                1.0,
                {"ended": 1.0, "num_turns": 1.0, "total_tool_calls": 1.0, "add_calls": 1.0},
            )
        },
    ),
    "results_in_parts": (
        """
def draw() -> list:
    "Draw."
    return [{"type": "text", "text": "here"}]

def load_environment():
    def parts(completion):
        return float(isinstance(completion[1]["content"], list))
    return vf.ToolEnv(tools=[draw], dataset=rows(""), rubric=vf.Rubric([parts]))
""",
        [[{"name": "draw", "arguments": "{}"}], "end"],
        {
            "0.1.9": (
                0.0,
                {"parts": 0.0, "num_turns": 2.0, "total_tool_calls": 1.0, "draw_calls": 1.0},
            ),
            "0.1.10": (
                1.0,
                {"parts": 1.0, "num_turns": 2.0, "total_tool_calls": 1.0, "draw_calls": 1.0},
            ),
        },
    ),
    "evaluated_members": (
        """
def load_environment():
    def right(completion, answer):
        return float(completion[-1]["content"] == answer)
    trained = vf.SingleTurnEnv(dataset=rows("b"), rubric=vf.Rubric([right]))
    tested = vf.SingleTurnEnv(dataset=rows("b"), eval_dataset=rows("a"), rubric=vf.Rubric([right]))
    return vf.EnvGroup([trained, tested])
""",
        ["a"],
        {
            "0.1.9": (0.0, {"right": 0.0, "num_turns": 1.0}),
            "0.1.10": (1.0, {"right": 1.0, "num_turns": 1.0}),
        },
    ),
    "counts_tokens": (
        """
def load_environment():
    def known(state):
        return float(list(state["usage"]) == ["input_tokens", "output_tokens"])
    return vf.SingleTurnEnv(dataset=rows(""), rubric=vf.Rubric([known]))
""",
        ["a"],
        {
            "0.1.9": (0.0, {"known": 0.0, "num_turns": 1.0}),
            "0.1.10": (1.0, {"known": 1.0, "num_turns": 1.0}),
        },
    ),
    "limit_of_tokens": (
        """
class Counts(Turns):
    async def env_response(self, messages, state, **kwargs):
        self.increment_state_usage(state, output_tokens=1000)
        return [{"role": "user", "content": "more"}]

def load_environment():
    def stopped(state):
        return float(state["stop_condition"] == "max_total_completion_tokens_reached")
    env = Counts(dataset=rows(""), rubric=vf.Rubric([stopped]), max_turns=4)
    env.set_kwargs(max_total_completion_tokens=1500)
    return env
""",
        ["a"],
        {
            "0.1.11": (0.0, {"stopped": 0.0, "num_turns": 4.0}),
            "0.1.12": (1.0, {"stopped": 1.0, "num_turns": 3.0}),
        },
    ),
    "tools_of_a_row": (
        """
def load_environment():
    def named(state):
        return float(state["tool_defs"][0].name == "look")
    info = {"tool_defs": [{"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}]}
    return vf.SingleTurnEnv(dataset=rows("", info=[json.dumps(info)]), rubric=vf.Rubric([named]))
""",
        ["a"],
        {"0.1.11": (1.0, {"named": 1.0, "num_turns": 1.0})},
    ),
    "tools_of_an_environment": (
        """
def load_environment():
    def named(state):
        return float(state["tool_defs"][0].name == "look")
    tool = vf.Tool(name="look", description="Look.", parameters={"type": "object", "properties": {}})
    env = Turns(dataset=rows(""), tool_defs=[tool], rubric=vf.Rubric([named]), max_turns=1)
    assert env.tool_defs[0].name == "look"
    return env
""",
        ["a"],
        {"0.1.11": (1.0, {"named": 1.0, "num_turns": 1.0})},
    ),
    "hooks_of_a_rubric": (
        """
class Doubles(vf.Rubric):
    @vf.cleanup
    async def double(self, state):
        state["reward"] *= 2
        state["metrics"]["doubled"] = 1.0

def load_environment():
    def one(completion):
        return 1.0
    return vf.SingleTurnEnv(dataset=rows(""), rubric=Doubles([one]))
""",
        ["a"],
        {
            "0.1.11": (1.0, {"one": 1.0, "num_turns": 1.0}),
            "0.1.12": (2.0, {"one": 1.0, "num_turns": 1.0, "doubled": 1.0}),
        },
    ),
    "columns_of_the_row": (
        """
def load_environment():
    def level_of(level):
        return float(level)
    def number(task, example_id):
        return float(task["level"]) + example_id
    return vf.SingleTurnEnv(dataset=rows("", level=[2]), rubric=vf.Rubric([level_of, number]))
""",
        ["a"],
        {
            "0.1.12": (0.0, {"level_of": 0.0, "number": 0.0, "num_turns": 1.0}),
            "0.1.14": (4.0, {"level_of": 2.0, "number": 2.0, "num_turns": 1.0}),
        },
    ),
    "objects_of_functions": (
        """
class Offers(vf.Rubric):
    def score_objects(self, state):
        return {**super().score_objects(state), "offered": 5.0}

def load_environment():
    def mine(offered):
        return offered
    def given(provided):
        return provided
    def ranked(states, ranks):
        return [ranks[at] for at, _ in enumerate(states)]
    rubric = Offers([mine, given, ranked])
    rubric.add_score_object_provider(lambda state: {"provided": 7.0})
    rubric.add_group_score_object_provider(lambda states: {"ranks": [1.0 for _ in states]})
    return vf.SingleTurnEnv(dataset=rows(""), rubric=rubric)
""",
        ["a"],
        {"0.1.14": (13.0, {"mine": 5.0, "given": 7.0, "ranked": 1.0, "num_turns": 1.0})},
    ),
    "completion_before_cleanup": (
        """
class Renders(Turns):
    async def render_completion(self, state):
        await super().render_completion(state)
        state["completion"] = state["completion"][-1:]
    @vf.cleanup
    async def note(self, state):
        state["noted"] = len(state.get("completion") or [])

def load_environment():
    def noted(state):
        return float(state["noted"] == 1)
    return Renders(dataset=rows(""), rubric=vf.Rubric([noted]), max_turns=2)
""",
        ["a"],
        {
            "0.1.12": (0.0, {"noted": 0.0, "num_turns": 2.0}),
            "0.1.14": (1.0, {"noted": 1.0, "num_turns": 2.0}),
        },
    ),
    "asks_a_judge": (
        """
from types import SimpleNamespace

class Echoes:
    def create(self, messages, **request):
        text = messages[0]["content"].replace("\\n", " ").replace("```", "|")
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text))])

def load_environment():
    rubric = vf.JudgeRubric(judge_client=SimpleNamespace(chat=SimpleNamespace(completions=Echoes())))
    async def shown(judge, prompt, completion, answer):
        asked = await judge(prompt, completion, answer)
        return float("b" in asked.split() and "a" in asked.split())
    async def with_state(judge, prompt, completion, answer, state):
        return float(await judge(prompt, completion, answer, state) in state["judge_response"].values())
    rubric.add_reward_func(shown)
    rubric.add_reward_func(with_state)
    return vf.SingleTurnEnv(dataset=rows("b"), rubric=rubric)
""",
        ["a"],
        {
            "0.1.9": (2.0, {"shown": 1.0, "with_state": 1.0, "num_turns": 1.0}),
            "0.1.11": (2.0, {"shown": 1.0, "with_state": 1.0, "num_turns": 1.0}),
        },
    ),
    "arguments_by_name": (
        """
def load_environment():
    def all_of_them(**given):
        known = ("prompt", "completion", "answer", "state", "task", "info", "example_id", "level")
        return float(len([name for name in known if name in given]))
    def defaults(answer="c", missing=7):
        return float(missing) + (answer == "b")
    def shared(counter):
        return float(counter["n"])
    rubric = vf.Rubric([all_of_them, defaults])
    rubric.add_class_object("counter", {"n": 1})
    rubric.add_reward_func(shared, weight=2.0)
    rubric.add_metric(lambda state: float(len(state["trajectory"])))
    return vf.SingleTurnEnv(dataset=rows("b", level=[1]), rubric=rubric)
""",
        ["a"],
        {
            "0.1.9": (
                16.0,
                {
                    "all_of_them": 6.0,
                    "defaults": 8.0,
                    "shared": 1.0,
                    "<lambda>": 1.0,
                    "num_turns": 1.0,
                },
            ),
            "0.1.14": (
                18.0,
                {
                    "all_of_them": 8.0,
                    "defaults": 8.0,
                    "shared": 1.0,
                    "<lambda>": 1.0,
                    "num_turns": 1.0,
                },
            ),
        },
    ),
    "rubrics_with_one_name": (
        """
def load_environment():
    def one(completion):
        return 1.0
    def two(completion):
        return 2.0
    first = vf.Rubric(funcs=[one], weights=[0.5])
    first.add_metric(two)
    group = vf.RubricGroup([first, vf.Rubric(funcs=[two, two], weights=[1.0, 0.25])])
    group.add_reward_func(one, weight=3.0)
    return vf.SingleTurnEnv(dataset=rows(""), rubric=group)
""",
        ["a"],
        {"0.1.9": (6.0, {"one": 1.0, "two": 4.0, "num_turns": 1.0})},
    ),
    "hooks_by_priority": (
        """
class Ordered(Turns):
    @vf.stop(priority=-5)
    async def low(self, state):
        return len(state["trajectory"]) >= 1
    @vf.stop(priority=50)
    async def high(self, state):
        return len(state["trajectory"]) >= 1
    @vf.cleanup(priority=1)
    async def last(self, state):
        state["order"] = state.get("order", "") + "1"
    @vf.cleanup(priority=9)
    async def first(self, state):
        state["order"] = state.get("order", "") + "9"

def load_environment():
    def order(state):
        return float(state["order"]) + 100 * (state["stop_condition"] == "high")
    return Ordered(dataset=rows(""), rubric=vf.Rubric([order]))
""",
        ["a"],
        {"0.1.9": (191.0, {"order": 191.0, "num_turns": 1.0})},
    ),
    "names_of_calls": (
        """
def look(x: str) -> str:
    "Look."
    return x

class Once(vf.ToolEnv):
    async def env_response(self, messages, state, **kwargs):
        answered = await super().env_response(messages, state, **kwargs)
        state["called"] = state.get("called", 0) + len(messages[-1].get("tool_calls") or [])
        return answered
    @vf.stop
    async def was_called(self, state):
        return state.get("called", 0) > 0

def load_environment():
    def last(completion):
        return float(completion[-1]["role"] == "tool" and completion[-1]["content"] == "b")
    def calls(completion, state):
        return float(sum(len(m.get("tool_calls") or []) for m in completion)) + state["called"]
    return Once(tools=[look], dataset=rows(""), rubric=vf.Rubric([last, calls], [1.0, 0.5]))
""",
        [[{"name": "look", "arguments": '{"x": "b"}'}], "ok"],
        {
            "0.1.9": (
                1.0,
                {
                    "last": 0.0,
                    "calls": 2.0,
                    "look_calls": 1.0,
                    "num_turns": 2.0,
                    "total_tool_calls": 1.0,
                },
            )
        },
    ),
    "completion_of_a_text": (
        """
class Goes(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return " and" if isinstance(messages, str) else [{"role": "user", "content": "and"}]

def load_environment():
    def length(prompt, completion):
        return float(len(completion)) + 100.0 * isinstance(prompt, str)
    data = Dataset.from_list([{"prompt": "?", "answer": ""}])
    return Goes(dataset=data, message_type="completion", rubric=vf.Rubric([length]), max_turns=2)
""",
        ["ab"],
        {
            "0.1.9": (108.0, {"length": 108.0, "num_turns": 2.0}),
            "0.1.11": (3.0, {"length": 3.0, "num_turns": 2.0}),
        },
    ),
    "optional_arguments": (
        """
from typing import Literal, Optional

def find(kind: Literal["a", "b"], limit: Optional[int] = None, deep: bool = False) -> str:
    \"\"\"Find things.

    Args:
        limit: How many.
    \"\"\"
    return f"{kind} {limit} {deep}"

def load_environment():
    env = vf.ToolEnv(tools=[find], dataset=rows(""))
    tool = env.tool_defs[0] if getattr(env, "tool_defs", None) else env.oai_tools[0]["function"]
    schema = dict(tool)["parameters"]
    kinds = schema["properties"]["limit"]["anyOf"]
    def nullable(completion):
        return float(kinds == [{"type": "integer"}, {"type": "null"}])
    def required(completion):
        return float(schema["required"] == ["kind", "limit", "deep"]) + (schema["title"] == "find_args")
    env.add_rubric(vf.Rubric([nullable, required]))
    return env
""",
        [[{"name": "find", "arguments": '{"kind": "a", "limit": null}'}], "end"],
        {
            "0.1.9": (
                3.0,
                {
                    "nullable": 1.0,
                    "required": 2.0,
                    "num_turns": 2.0,
                    "total_tool_calls": 1.0,
                    "find_calls": 1.0,
                },
            )
        },
    ),
    "task_of_a_member": (
        """
def load_environment():
    def named(task, state, info):
        has_row = not isinstance(state["task"], str) and state["task"]["answer"] == "b"
        return float(task == "second") + 2 * has_row + 4 * ("env_id" in info if info else 0)
    member = vf.SingleTurnEnv(dataset=rows("b"), rubric=vf.Rubric([named]))
    return vf.EnvGroup([member], env_names=["second"])
""",
        ["b"],
        {
            "0.1.9": (1.0, {"named": 1.0, "num_turns": 1.0}),
            "0.1.14": (2.0, {"named": 2.0, "num_turns": 1.0}),
        },
    ),
    "groups_in_a_group": (
        """
def load_environment():
    def right(completion, answer):
        return float(completion[-1]["content"] == answer)
    members = [vf.SingleTurnEnv(dataset=rows(a), rubric=vf.Rubric([right])) for a in "bbc"]
    inner = vf.EnvGroup(members[:2], env_names=["a", "b"])
    return vf.EnvGroup([inner, vf.EnvGroup(members[2:] * 2)], env_names=["in", "last"])
""",
        ["b"],
        {"0.1.14": (1.0, {"right": 1.0, "num_turns": 1.0})},
    ),
    "spans_of_time": (
        """
def load_environment():
    def spans(state):
        times = state["timing"]
        known = times.generation.duration > 0 and times.setup.end >= times.setup.start > 0
        return known * (10.0 * len(times.model.spans) + len(times.env.spans)) + times.total
    return Turns(dataset=rows(""), rubric=vf.Rubric([spans]), max_turns=2)
""",
        ["a"],
        {"0.1.14": (21.0, {"spans": 21.0, "num_turns": 2.0})},
    ),
    "limit_of_time": (
        """
class Waits(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        await asyncio.sleep(1)
        return [{"role": "user", "content": "more"}]

def load_environment():
    def late(state):
        return float(state["stop_condition"] == "timeout_reached" and state["timed_out"])
    return Waits(dataset=rows(""), rubric=vf.Rubric([late]), max_turns=2, timeout_seconds=0.5)
""",
        ["a"],
        {
            "0.1.12": (0.0, {"late": 0.0, "num_turns": 2.0}),
            "0.1.14": (1.0, {"late": 1.0, "num_turns": 1.0}),
        },
    ),
}
CASES = [(name, version) for name, (_, _, scores) in PLAYED.items() for version in scores]
Load = Callable[[str, str, str], Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Give a function that loads an environment from a folder with a pyproject."""
    known = {*sys.modules}

    def load(name: str, code: str, required: str) -> Any:
        module, folder = f"folder_{name}", tmp_path / name
        folder.mkdir()
        (folder / f"{module}.py").write_text(HEAD + code)
        about = f'[project]\nname = "{module}"\nversion = "0.1.0"\ndependencies = ["{required}"]\n'
        (folder / "pyproject.toml").write_text(about)
        monkeypatch.syspath_prepend(str(folder))
        return vf.load_environment(module)

    yield load
    for name in {*sys.modules} - known:
        if name.startswith("folder_"):
            del sys.modules[name]


@pytest.mark.parametrize(("name", "version"), CASES)
def test_a_folder_is_played_as_its_version(load: Load, name: str, version: str) -> None:
    code, turns, scores = PLAYED[name]
    env = load(name, code, PINS[CASES.index((name, version)) % len(PINS)].format(version))
    results = env.evaluate(vf.ScriptedClient(turns), "scripted", progress=False)
    metrics = {each: column[0] for each, column in results.metrics.items()}
    assert (results.reward[0], metrics) == scores[version], results.state[0].get("reward_errors")


def test_the_requests_have_the_tools_of_a_row(load: Load) -> None:
    """The row's tools are sent in the form of OpenAI, as 0.1.11 sends them."""
    code, turns, _ = PLAYED["tools_of_a_row"]
    client = vf.ScriptedClient(turns)
    load("tools_of_a_row", code, "verifiers==0.1.11").evaluate(client, "m", progress=False)
    (tool,) = client.requests[0]["tools"]
    assert (tool["type"], tool["function"]["name"]) == ("function", "look")


OWN_ARGUMENTS = """
class Cools(Turns):
    async def env_response(self, messages, state, **kwargs):
        state["sampling_args"] = {"temperature": 0.1}
        return [{"role": "user", "content": "more"}]

def load_environment():
    return Cools(dataset=rows(""), max_turns=2, sampling_args={"stop": ["END"]})
"""


def test_sampling_arguments_of_a_state_replace_those_of_the_run(load: Load) -> None:
    """As in 0.1.9 to 0.1.14; but what asks for log-probabilities, for training, is kept."""
    client = vf.ScriptedClient("a")
    env = load("cools", OWN_ARGUMENTS, "verifiers>=0.1.9")
    env.evaluate(client, "m", {"top_p": 0.5, "logprobs": True}, progress=False)
    first, second = client.requests
    assert (first["stop"], first["top_p"], first["logprobs"]) == (["END"], 0.5, True)
    assert (second["temperature"], second["logprobs"]) == (0.1, True)
    assert not {"stop", "top_p"} & {*second}


TWO_WEIGHTS = """
def load_environment():
    return vf.SingleTurnEnv(dataset=rows(""), rubric=vf.Rubric([lambda answer: 1.0], weights=[1.0, 2.0]))
"""


def test_each_function_needs_a_weight_from_0_1_8_on(load: Load) -> None:
    with pytest.raises(RuntimeError, match="2 weights for 1 functions: give one for each"):
        load("two_weights", TWO_WEIGHTS, "verifiers~=0.1.8")
    before = load("two_weights_before", TWO_WEIGHTS, "verifiers==0.1.3")
    assert before.evaluate(vf.ScriptedClient("a"), "m", progress=False).reward == [1.0]


NOT_SCORED = """
class Adds(vf.SingleTurnEnv):
    async def generate(self, *args, **kwargs):
        results = await super().generate(*args, **kwargs)
        assert [output["reward"] for output in results["outputs"]] == [0.0]
        return results

def load_environment():
    return Adds(dataset=rows(""), rubric=vf.Rubric([lambda answer: 1.0]), score_rollouts=False)
"""


def test_outputs_that_are_not_scored_have_the_reward_zero(load: Load) -> None:
    env = load("not_scored", NOT_SCORED, "verifiers==0.1.11")
    results = asyncio.run(env.a_evaluate(vf.ScriptedClient("a"), "m", progress=False))
    assert results.reward == [0.0]


MEMBERS = """
def load_environment():
    def right(completion, answer):
        return float(completion[-1]["content"] == answer)
    def brief(completion):
        return 0.5
    members = [vf.SingleTurnEnv(dataset=rows("a"), rubric=vf.Rubric([each])) for each in (right, brief)]
    return vf.EnvGroup(members)
"""


@pytest.mark.parametrize(("version", "others"), [("0.1.9", {"right": 0.0}), ("0.1.10", {})])
def test_a_record_has_the_metrics_of_its_member(
    load: Load, tmp_path: Path, version: str, others: dict[str, float]
) -> None:
    """From 0.1.10 on, only these; the columns have 0.0 for the rest."""
    env = load("members", MEMBERS, f"verifiers=={version}")
    file = tmp_path / "results.jsonl"
    results = env.evaluate(vf.ScriptedClient("a"), "m", save_path=file, progress=False)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    metrics = {record["task"]: record["metrics"] for record in records if "metrics" in record}
    assert metrics["env_1"] == {"brief": 0.5, "num_turns": 1.0, **others}
    assert results.metrics["right"] == vf.load_results(file).metrics["right"] == [1.0, 0.0]
