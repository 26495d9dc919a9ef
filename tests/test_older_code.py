"""Code that was written for `verifiers` 0.1.3 does here what it does there."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from datasets import Dataset
from openai.types.chat import ChatCompletionMessageToolCall

import verifiers_nb as vf
from verifiers_nb.bridges.ship import completion_of, serve_json
from verifiers_nb.cli.command import CommandError
from verifiers_nb.cli.settings import choose_endpoint
from verifiers_nb.envs import prompts, tools
from verifiers_nb.envs.records import rollout_record, to_line
from verifiers_nb.envs.tool_env import XMLToolEnv
from verifiers_nb.inference.requests import Options
from verifiers_nb.inference.tokens import template_ids
from verifiers_nb.trainer.samples import reward_metrics

ROWS = [{"question": "1 + 1?", "answer": "2"}]


def one(completion: Any) -> float:
    """Score 1.0."""
    return 1.0


def half(completion: Any) -> float:
    """Score 0.5."""
    return 0.5


def play(env: vf.Environment, *turns: Any) -> vf.types.GenerateOutputs:
    """Play one rollout with a scripted model."""
    return env.evaluate(vf.ScriptedClient(list(turns)), "scripted", progress=False)


class Awaits(vf.MultiTurnEnv):
    """Override hooks by coroutines that await those of the base."""

    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        state = await super().setup_state(state, **kwargs)
        state["seen"] = 0
        return state

    async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        return state["turn"] > 1

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return [{"role": "user", "content": "Go on."}], {**state, "seen": state["seen"] + 1}


class AwaitsTools(vf.ToolEnv):
    """The same, of a tool environment; its `call_tool` takes nothing more than it needs."""

    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        return {**await super().setup_state(state, **kwargs), "calls": 0}

    async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        return await super().is_completed(messages, state, **kwargs) or state["turn"] > 5

    async def call_tool(self, tool_name: str, tool_args: Any, tool_call_id: Any) -> Any:  # type: ignore[override]
        message = await super().call_tool(tool_name, tool_args, tool_call_id, why="to see")
        return {**message, "content": f"<{message['content']}>"}


class AwaitsOnce(vf.SingleTurnEnv):
    """The same, of a single turn."""

    async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        return await super().is_completed(messages, state, **kwargs)


class Plain(vf.ToolEnv):
    """Override hooks by plain functions."""

    def setup_state(self, state: Any, **kwargs: Any) -> Any:
        state = super().setup_state(state, **kwargs)
        state["calls"] = 0
        return state

    def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        return super().is_completed(messages, state, **kwargs) and state["calls"] == 0


def facts(name: str) -> dict[str, Any]:
    """Return what is known of somebody.

    Args:
        name: who
    """
    return {"name": name, "age": None}


@pytest.mark.parametrize("kind", [AwaitsTools, Plain])
def test_base_hooks_of_tools_can_be_awaited_or_not(kind: Any) -> None:
    env = kind(tools=[facts], dataset=ROWS, rubric=vf.Rubric(one))
    results = play(env, [vf.tool_call("facts", name="Ada")], "2")
    answer = results.completion[0][1]["content"]
    plain = "{'name': 'Ada', 'age': None}"  # as str writes a dict, not as JSON
    assert answer == (f"<{plain}>" if kind is AwaitsTools else plain)
    assert results.reward == [1.0] and results.state[0]["calls"] == 0
    assert results.state[0]["tools_called"] == ["facts"]


def test_base_hooks_can_be_awaited() -> None:
    results = play(Awaits(dataset=ROWS, rubric=vf.Rubric(one)), "1", "2")
    assert results.state[0]["seen"] == 1 and results.reward == [1.0]
    results = play(AwaitsOnce(dataset=ROWS, rubric=vf.Rubric(one)), "2")
    assert results.state[0]["turn"] == 1


def test_a_single_turn_is_over_when_there_is_a_response() -> None:
    env = vf.SingleTurnEnv(dataset=ROWS)
    assert not env.is_completed([], {"responses": []})
    assert env.is_completed([], {"responses": [SimpleNamespace()]})


def test_no_limit_of_turns() -> None:
    class Long(vf.MultiTurnEnv):
        def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
            return state["turn"] == 15

        def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return [{"role": "user", "content": "Go on."}], state

    turns = [str(n) for n in range(20)]
    assert play(Long(max_turns=-1, dataset=ROWS), *turns).state[0]["turn"] == 15
    assert play(Long(dataset=ROWS), *turns).state[0]["turn"] == 10
    with pytest.raises(ValueError, match="or -1 for no limit"):
        Long(max_turns=-2, dataset=ROWS)


@pytest.mark.parametrize(
    ("weights", "reward"), [([1.0], 1.0), ([], 1.5), ([1.0, 2.0, 3.0], 2.0), (None, 1.5)]
)
def test_functions_and_weights_of_unequal_length(weights: Any, reward: float) -> None:
    """As there: a function beyond the weights is a metric, a weight beyond the functions is nothing."""
    results = play(vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric([one, half], weights)), "2")
    assert results.reward == [reward]
    assert {name: each[0] for name, each in results.metrics.items()} == {"one": 1.0, "half": 0.5}


def test_weights_that_are_cut_in_mid_run_end_nothing() -> None:
    rubric = vf.Rubric([one, half])
    rubric.reward_weights = [2.0]
    assert play(vf.SingleTurnEnv(dataset=ROWS, rubric=rubric), "2").reward == [2.0]


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hear what tools and prompts warn of, wherever another test has sent the log."""
    said: list[str] = []
    for module in (tools, prompts):
        monkeypatch.setattr(
            module.logger, "warning", lambda text, *given: said.append(text % given)
        )
    return said


def test_tools_without_a_docstring(warned: list[str]) -> None:
    def mute(x: int) -> int:
        return x

    env = vf.ToolEnv(tools=[mute], dataset=ROWS, rubric=vf.Rubric(one))
    assert [text.partition(",")[0] for text in warned] == ["Tool 'mute' has no docstring"]
    assert "write one that describes the tool" in warned[0]
    assert play(env, [vf.tool_call("mute", x=3)], "2").completion[0][1]["content"] == "3"


def test_names_that_were_there() -> None:
    parser, rubric = vf.XMLParser(["answer"]), vf.ToolRubric([facts])
    env = vf.SingleTurnEnv(dataset=ROWS, parser=parser)
    assert all(isinstance(each.logger, logging.Logger) for each in (parser, rubric, env))
    call = {"id": "a", "type": "function", "function": vf.tool_call("facts", name="A")}
    called = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    assert rubric.total_tool_calls(called) == 1.0
    assert rubric.get_tool_call_count_func("facts")(called) == 1.0
    assert rubric.get_tool_call_count_func("facts").__name__ == "facts_calls"
    assert vf.RubricGroup([rubric], note="kept").note == "kept"
    assert [tool["function"]["name"] for tool in rubric.oai_tools] == ["facts"]


def awaiting(kind: Any) -> Any:
    """Return a subclass whose hooks are coroutines that await those of `kind`."""

    class Awaiting(kind):  # type: ignore[misc]
        async def setup_state(self, state: Any, **kwargs: Any) -> Any:
            state = await super().setup_state({**state}, **kwargs)
            return {**state, "seen": 0}

        async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
            return await super().is_completed(messages, state, **kwargs)

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            state["seen"] += 1
            return await super().env_response(messages, state, **kwargs)

    return Awaiting


def test_base_hooks_of_every_class_can_be_awaited() -> None:
    def act(action: str, state: Any) -> str:
        return "done"

    words = {"game": "Hangman-v0", "num_train_examples": 1, "words": ["apple"]}
    commands = [vf.Command(name="submit", docstring="End it.")]
    made = [
        (vf.ToolEnv, {"tools": [facts]}, [[vf.tool_call("facts", name="Ada")], "2"]),
        (vf.ActionEnv, {"parser": "action", "commands": commands, "execute": act}, ["submit"]),
        (XMLToolEnv, {"tools": [facts]}, ['<tool>{"name": "facts"}</tool>', "<answer>2</answer>"]),
    ]
    for kind, given, turns in made:
        results = play(awaiting(kind)(dataset=ROWS, rubric=vf.Rubric(one), **given), *turns)
        assert results.errors == [None] and results.state[0]["seen"] == 1, (kind, results.errors)
    results = play(awaiting(vf.TextArenaEnv)(**words), *["<guess>[a]</guess>"] * 40)
    assert results.errors == [None] and results.state[0]["seen"] >= 1

    class Ends(vf.MultiTurnEnv):  # asks the base first, as many do
        async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
            return await super().is_completed(messages, state, **kwargs) or state["turn"] > 1

        def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return [{"role": "user", "content": "Go on."}], state

    assert play(Ends(dataset=ROWS), "1", "2", "3").state[0]["turn"] == 2


def test_format_rewards_have_the_peers_name(tmp_path: Path) -> None:
    for parser in (vf.Parser(), vf.ThinkParser(), vf.XMLParser(["answer"])):
        rubric = vf.Rubric([parser.get_format_reward_func()], parser=parser)
        results = play(vf.SingleTurnEnv(dataset=ROWS, rubric=rubric), "2")
        assert [*results.metrics] == ["format_reward_func"]
    older = {"format_reward": 0.5}  # as files of an earlier time have it
    rollout = vf.types.Rollout("2?", completion="2", metrics=older)
    file = tmp_path / "results.jsonl"
    file.write_bytes(to_line(rollout_record(rollout)))
    assert vf.load_results(file).metrics == {"format_reward": [0.5]}
    assert reward_metrics([rollout])["completions/well_formed"] == 0.0


@pytest.mark.parametrize("kind", [openai.AsyncOpenAI, vf.HTTPClient])
def test_tool_calls_are_openais_own_objects(kind: Any) -> None:
    call = {"id": "c", "type": "function", "function": vf.tool_call("facts", name="Ada")}

    def answer(asked: Any) -> tuple[int, Any]:
        over = asked["messages"][-1]["role"] == "tool"
        said = {"content": "2"} if over else {"content": None, "tool_calls": [call]}
        return 200, completion_of({"role": "assistant", **said}, "m")

    def asks(completion: Any) -> float:
        (made,) = completion[0]["tool_calls"]
        return float(isinstance(made, ChatCompletionMessageToolCall))

    env = vf.ToolEnv(tools=[facts], dataset=ROWS, rubric=vf.Rubric(asks))
    with serve_json(answer) as url:
        results = env.evaluate(kind(base_url=url, api_key="none"), "m", progress=False)
    assert (results.reward, results.errors) == ([1.0], [None])
    scripted = play(env, [vf.tool_call("facts", name="Ada")], "2")
    assert scripted.reward == [1.0]


def test_rows_with_neither_answer_nor_info(warned: list[str]) -> None:
    env = vf.SingleTurnEnv(
        dataset=Dataset.from_list([{"question": "Say hi."}]),
        rubric=vf.Rubric(lambda completion, answer: float(answer == "")),
    )
    assert play(env, "hi").reward == [1.0]
    assert ["no 'answer' or 'info'" in text for text in warned] == [True]
    prompts = {"prompt": [[{"role": "user", "content": "Say hi."}]]}
    assert env.generate(prompts, vf.ScriptedClient("hi"), "m").answer == [""]


def test_no_rewards_where_scoring_was_off(tmp_path: Path) -> None:
    env, client = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(one)), vf.ScriptedClient("2")
    for where in (None, tmp_path / "results.jsonl"):
        given = dict(score_rollouts=False, save_path=where, progress=False)
        results = env.evaluate(client, "m", **given)
        assert (results.reward, results.metrics, len(results.completion)) == ([], {}, 1)
        assert "1 rollouts" in repr(results)


def test_a_scoring_method_that_is_set_on_a_rubric_is_the_one_called() -> None:
    async def quarter(prompts: Any, *columns: Any, **kwargs: Any) -> Any:
        return vf.types.RolloutScores(reward=[0.25] * len(prompts), metrics={})

    rubric = vf.Rubric(one)
    rubric.score_rollouts = quarter  # type: ignore[method-assign]
    assert play(vf.SingleTurnEnv(dataset=ROWS, rubric=rubric), "2").reward == [0.25]
    group = vf.RubricGroup([rubric, vf.Rubric(half)])
    assert play(vf.SingleTurnEnv(dataset=ROWS, rubric=group), "2").reward == [0.75]


def test_groups_of_rubrics_need_no_answer_and_no_state() -> None:
    alone = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(one))
    said: Any = [{"role": "assistant", "content": "2"}]
    for rubric in (vf.RubricGroup([vf.Rubric(one)]), vf.EnvGroup([alone], ["default"]).rubric):
        assert asyncio.run(rubric.score_rollout([], said)).reward == 1.0


def test_get_model_response_takes_more_than_it_knows() -> None:
    class Asks(vf.SingleTurnEnv):
        async def get_model_response(
            self, client: Any, model: str, prompt: Any, **kwargs: Any
        ) -> Any:
            return await super().get_model_response(client, model, prompt, turn=1, **kwargs)

        async def rollout(
            self, client: Any, model: str, prompt: Any, *rest: Any, **kwargs: Any
        ) -> Any:
            response = await self.get_model_response(client, model, prompt, oai_tools=None)
            state = {"responses": [response], "completion": []}
            return [{"role": "assistant", "content": response.choices[0].message.content}], state

    assert play(Asks(dataset=ROWS, rubric=vf.Rubric(one)), "2").errors == [None]


def test_templates_see_tools_only_where_there_are_some() -> None:
    class Strict:
        def apply_chat_template(self, messages: Any, tokenize: bool = True, **named: Any) -> Any:
            assert named.get("tools", [facts])  # as templates that know no tools
            return [len(messages)] if tokenize else str(len(messages))

    for offered in (None, [], [facts]):
        assert template_ids(Strict(), [{"role": "user", "content": "1"}], offered, True) == [1]
    with vf.EmbeddedEngine("verifiers_nb/adder-1m") as engine:
        ids = engine.served.encode("1")
        engine.served.tokenizer = Strict()
        assert engine.served.encode_chat([{"role": "user", "content": "1"}], Options()) == ids


def test_a_key_variable_may_be_unset_where_an_address_is_given() -> None:
    address = "http://10.0.0.5:8000/v1"
    for given in ({"base_url": address}, {"endpoint": address}):
        named = {"base_url": None, "endpoint": None, **given}
        chosen = choose_endpoint("m", key_variable="NOT_SET", endpoints={}, environ={}, **named)
        assert (chosen.url, chosen.key) == (address, None)
    with pytest.raises(CommandError, match="names the variable NOT_SET"):
        choose_endpoint("m", None, None, "NOT_SET", {}, {})


SIGNALS = """
import signal, threading
import verifiers_nb as vf
from verifiers_nb.envs.tool_env import XMLToolEnv
from math_verify import parse, verify

def quiet(completion, answer):  # as many write it: whatever goes wrong scores 0.0
    try:
        return float(verify(parse(answer), parse(completion[-1]["content"])))
    except BaseException:
        return 0.0

def alarm(completion):
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(0)
    return 1.0

rows = [{"question": "?", "answer": r"$\\frac{1}{2}$"}]
env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([quiet, alarm]))
results = env.evaluate(vf.ScriptedClient("$0.5$"), "scripted", progress=False)
print(results.reward, env.generate(rows and env.get_dataset(), vf.ScriptedClient("$0.5$"), "m").reward)
"""


def test_rewards_of_sync_calls_may_use_signals() -> None:
    command = [sys.executable, "-c", SIGNALS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[2.0] [2.0]\n", done.stderr


HANGS = """
import asyncio, sys
import verifiers_nb as vf
from verifiers_nb.envs.tool_env import XMLToolEnv

class Hangs(vf.SingleTurnEnv):
    async def rollout(self, *args, **kwargs):
        print("begun", flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            print("ended", flush=True)

try:
    Hangs(dataset=[{"question": "?", "answer": ""}]).evaluate(object(), "m", progress=False)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_a_sync_call_and_its_rollouts() -> None:
    command = [sys.executable, "-c", HANGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=50)[0] == "ended\ninterrupted\n"


SIGNATURES = [
    line
    for line in Path(__file__).with_name("public_names.txt").read_text().splitlines()
    if not line.startswith("#")
]
# What differs on purpose, and why.
DIFFERENCES = {
    "MultiTurnEnv max_turns": "10 by the public contract; through the door -1, as there",
    "Rubric.score_rollouts max_concurrent": "taken and not needed: rollouts are scored as they end",
    "Rubric.score_rollout_with_semaphore": "for the same reason nobody calls it",
    "Environment.make_dataset kwargs": "nothing was read from them: a wrong name is an error",
    "Environment.run_rollout_with_semaphore": "hands all its arguments on to rollout",
    "StatefulToolEnv.update_tool_args kwargs": "nothing was ever given in them",
    "Environment.parse_chat_completion_logprobs chat_completion": "called by position",
    "Environment.parse_chat_completion_tokens chat_completion": "called by position",
    "Environment.parse_completion_logprobs completion": "called by position",
    "Environment.parse_completion_tokens completion": "called by position",
}


def found_differences(line: str) -> set[str]:
    """Return what of a signature, written as `name(a, b=1)`, is otherwise here."""
    name, _, arguments = line.partition("(")
    kind, _, method = name.partition(".")
    value = getattr(vf, kind)
    if method and not hasattr(value, method):
        return {name}
    ours = inspect.signature(getattr(value, method) if method else value).parameters
    node = ast.parse(f"def f({arguments}: pass").body[0]
    assert isinstance(node, ast.FunctionDef)
    plain, loose, given = node.args.args, node.args.kwonlyargs, node.args
    missing = [None] * (len(plain) - len(given.defaults))
    defaults = [*missing, *given.defaults, *given.kw_defaults]
    differ = set()
    for argument, default in zip([*plain, *loose], defaults, strict=True):
        known = ours.get(argument.arg)
        wanted = inspect.Parameter.empty if default is None else ast.literal_eval(default)
        required = wanted is inspect.Parameter.empty  # what may be left out here may also be given
        if known is None or not (required or wanted is ... or known.default == wanted):
            differ.add(f"{name} {argument.arg}")
    order = [each.arg for each in plain if each.arg in ours]
    if [each for each in ours if each in order] != order:
        differ.add(f"{name} order")
    if given.kwarg and not any(p.kind is p.VAR_KEYWORD for p in ours.values()):
        differ.add(f"{name} {given.kwarg.arg}")
    return differ


@pytest.mark.parametrize("line", SIGNATURES, ids=lambda line: line.partition("(")[0])
def test_public_names_have_their_arguments_and_defaults(line: str) -> None:
    name = line.partition("(")[0]
    listed = {each for each in DIFFERENCES if each.split()[0] == name}
    assert found_differences(line) == listed or name in listed
