"""Environments in the style of `verifiers` 0.1.3."""

from __future__ import annotations

import json
from typing import Any

import verifiers as vf
from datasets import Dataset
from openai.types.chat import ChatCompletionMessageToolCall

SUMS = Dataset.from_list(
    [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(2)]
)


def length(completion: Any) -> float:
    """Score the number of messages."""
    return float(len(completion))


def length_of_task(completion: Any, task: str) -> float:
    """Score the name of the task."""
    return float(len(task))


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    if a == 13:
        raise ValueError("unlucky")
    return a + b


async def shout(text: str) -> str:
    """Write a text in capitals.

    Args:
        text: the text
    """
    return text.upper()


class ToolInTags(vf.MultiTurnEnv):
    """A tag calls a tool, and another one of the same field ends the rollout."""

    async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        return self.parser.parse(messages[-1]["content"]).answer is not None

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        called = self.parser.parse(messages[-1]["content"]).tool
        return [{"role": "user", "content": (called or "no tool").upper()}], state


class Game(vf.MultiTurnEnv):
    """Two guesses."""

    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        state["left"] = 2
        return state

    async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        return state["left"] <= 0 or state.get("won", False)

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        state["left"] -= 1
        state["won"] = state["answer"] in messages[-1]["content"]
        return [{"role": "user", "content": "Right." if state["won"] else "Wrong."}], state


def tool_in_tags() -> Any:
    """Return an environment whose format has two names for a field."""
    parser = vf.XMLParser(["think", ("tool", "answer")])

    def right(completion: Any, answer: str, parser: Any) -> float:
        return float(parser.parse_answer(completion) == answer)

    funcs = [right, length, parser.get_format_reward_func()]
    rubric = vf.Rubric(funcs, weights=[1.0, 0.1, 0.2], parser=parser)
    return ToolInTags(dataset=SUMS, parser=parser, rubric=rubric, max_turns=4)


def game() -> Any:
    """Return an environment that has the last word."""

    def won(state: Any) -> float:
        return state["left"] + 2.0 * state["won"]

    def last(completion: Any, prompt: Any, parser: Any) -> float:
        return len(prompt) + len(parser.parse_answer(completion) or "")

    rubric = vf.Rubric([won, last, length], weights=[1.0, 0.1, 0.01], parser=vf.Parser())
    shots = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    return Game(dataset=SUMS, rubric=rubric, system_prompt="Guess.", few_shot=shots)


def group() -> Any:
    """Return two environments in a group."""
    first = vf.SingleTurnEnv(dataset=SUMS, rubric=vf.Rubric([length_of_task]), system_prompt="A")
    rubric = vf.RubricGroup(
        [vf.Rubric([length], weights=[0.5]), vf.Rubric([length_of_task, length])]
    )
    second = vf.SingleTurnEnv(dataset=SUMS, rubric=rubric)
    return vf.EnvGroup(envs=[first, second], env_names=["one", "another"])


def tools() -> Any:
    """Return an environment with tools, one of which fails."""

    def heard(completion: Any) -> float:
        return sum(len(str(m["content"])) for m in completion if m["role"] == "tool")

    return vf.ToolEnv(tools=[add, shout], dataset=SUMS, max_turns=5, rubric=vf.Rubric([heard]))


def own_prompts() -> Any:
    """Return an environment whose dataset has prompts."""

    def asked(prompt: Any) -> float:
        return float(len(prompt))

    data = Dataset.from_list([{"prompt": [{"role": "user", "content": "Hi"}], "answer": "1"}] * 2)
    return vf.SingleTurnEnv(dataset=data, system_prompt="Be brief.", rubric=vf.Rubric([asked]))


def boxed() -> Any:
    """Return an environment that scores whether its parser reads an answer without thinking."""

    def is_read(parser: Any) -> float:
        return float(parser.parse_answer([{"role": "assistant", "content": "\\boxed{4}"}]) == "4")

    rubric = vf.MathRubric()
    rubric.add_reward_func(is_read)
    return vf.SingleTurnEnv(dataset=SUMS, rubric=rubric)


def parsers() -> Any:
    """Return an environment whose parser is not its rubric's."""

    def is_plain(completion: Any, parser: Any) -> float:
        return float(parser.parse_answer(completion) == completion[-1]["content"])

    shouting = vf.Parser(extract_fn=str.upper)
    return vf.SingleTurnEnv(dataset=SUMS, parser=shouting, rubric=vf.Rubric([is_plain]))


def unknown() -> Any:
    """Return an environment with a reward function that asks for what nobody has."""

    def efficiency(state: Any, max_turns: int) -> float:
        return 1.0 / max_turns

    return vf.SingleTurnEnv(dataset=SUMS, rubric=vf.Rubric([efficiency, length]))


def answered(completion: Any) -> float:
    """Score the number of characters that tools have answered."""
    return float(sum(len(m["content"]) for m in completion if m["role"] == "tool"))


class Found(vf.ToolEnv):
    """Find the tools when the first rollout begins."""

    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> str:
            return f"found {sorted(kwargs)}"

        self.tool_map = {"add": call}
        return await super().setup_state(state, **kwargs)


class Left(vf.ToolEnv):
    """Answer also the calls of a tool that has left."""

    async def call_tool(self, tool_name: str, tool_args: Any, tool_call_id: str, **kw: Any) -> Any:
        if tool_name in self.tool_map:
            return await super().call_tool(tool_name, tool_args, tool_call_id, **kw)
        text = f"{tool_name} has left with {tool_args}"
        return {"role": "tool", "content": text, "tool_call_id": tool_call_id}


class Renames(vf.SingleTurnEnv):
    """Read the rows of a run before it is played."""

    async def a_generate(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.sizes = [len(row["prompt"]) for row in inputs]
        results = await super().a_generate(inputs, *args, **kwargs)
        results.reward = [a + b for a, b in zip(results.reward, self.sizes, strict=True)]
        return results


def renames() -> Any:
    """Return an environment that changes the rewards of a run by its rows."""
    return Renames(dataset=SUMS, system_prompt="Add.", rubric=vf.Rubric([length]))


def paid() -> Any:
    """Return an environment that pays for the calls that the base class counts."""

    class Paid(vf.ToolRubric):  # in here, because versions without it read this file, too
        def __init__(self, tools: Any) -> None:
            super().__init__(tools=tools)
            self.add_reward_func(self.paid)

        async def paid(self, completion: Any) -> float:
            of_one = await self.get_tool_call_count_func("add")(completion)
            return 0.5 * of_one + await self.total_tool_calls(completion)

    given = [add, shout]
    return vf.ToolEnv(tools=given, dataset=SUMS, max_turns=4, rubric=Paid(given))


def counted() -> Any:
    """Return an environment whose rubric counts in its own way."""

    class Counted(vf.ToolRubric):
        async def total_tool_calls(self, completion: Any) -> float:
            return 2.0 * await super().total_tool_calls(completion)

    rubric = Counted(tools=[add, shout])
    rubric.reward_weights = [1.0, 0.1, 0.01]
    return vf.ToolEnv(tools=[add, shout], dataset=SUMS, max_turns=4, rubric=rubric)


def left() -> Any:
    """Return an environment whose tool has left."""
    env = Left(tools=[add], dataset=SUMS, max_turns=4, rubric=vf.Rubric([answered]))
    env.tool_map = {}
    return env


def odd(kind: Any = vf.ToolEnv) -> Any:
    """Return an environment with a tool that is called with arguments of other types and names."""

    def add(a: str) -> str:
        """Add.

        Args:
            a: a number
        """
        return f"{a!r} of {type(a)}"

    def shout(words: str) -> str:
        """Shout.

        Args:
            words: what
        """
        return words

    return kind(tools=[add, shout], dataset=SUMS, max_turns=4, rubric=vf.Rubric([answered]))


class Own(vf.ToolEnv):
    """Offer only the first tool, and call it without the help of the base."""

    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        state = await super().setup_state(state, **kwargs)
        state["info"]["oai_tools"] = state["info"]["oai_tools"][:1]
        return state

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        answers = []
        for call in messages[-1]["tool_calls"]:
            arguments = json.loads(call.function.arguments)
            answers.append(await self.call_tool(call.function.name, arguments, call.id))
        return answers, state


def own() -> Any:
    """Return an environment that calls its tool itself, with a number where a text is declared."""
    return odd(Own)


def found() -> Any:
    """Return an environment that puts a function into its map of tools."""

    return Found(tools=[add], dataset=SUMS, max_turns=4, rubric=vf.Rubric([answered, length]))


class Checked(vf.MultiTurnEnv):
    """Count how often the end is checked."""

    async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        state["checks"] = state.get("checks", 0) + 1
        return False

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return [{"role": "user", "content": "Go on."}], state


def checked() -> Any:
    """Return an environment that only its number of turns ends."""

    def checks(state: Any) -> float:
        return float(state["checks"])

    return Checked(dataset=SUMS, max_turns=2, rubric=vf.Rubric([checks, length]))


class Spent(vf.ToolEnv):
    """Tools that may be called once."""

    async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        return state.get("spent", False)

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        state["spent"] = True
        return await super().env_response(messages, state, **kwargs)


def spent() -> Any:
    """Return an environment that ends with the answer of a tool, and has OpenAI's objects in its messages."""

    def calls(completion: Any) -> float:
        called = [call for m in completion for call in m.get("tool_calls") or ()]
        return sum(isinstance(call, ChatCompletionMessageToolCall) for call in called)

    return Spent(tools=[add], dataset=SUMS, max_turns=5, rubric=vf.Rubric([calls, length]))


class Short(vf.MultiTurnEnv):
    """Show the model only the last message, and name each new one."""

    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        state["prompt"] = state["prompt"] + [{"role": "user", "content": "not shown"}]
        return {**state, "extra": 1}

    async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        if state["turn"] == 2:
            messages.append({"role": "user", "content": "Almost."})
        return state["turn"] >= 3

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        messages[-1]["content"] += f" ({state['turn']})"
        messages[:] = messages[-1:]
        return [{"role": "user", "content": "Go on."}], {**state, "extra": state["extra"] + 1}


def short() -> Any:
    """Return an environment that changes the conversation in place."""

    def extra(state: Any) -> float:
        return float(state["extra"])

    return Short(dataset=SUMS, rubric=vf.Rubric([extra, length]))


class Grown(vf.Rubric):
    """Find its functions when it scores."""

    def get_reward_funcs(self) -> Any:
        return [*super().get_reward_funcs(), length]

    def get_reward_weights(self) -> Any:
        return [*super().get_reward_weights(), 0.5]


def passed() -> Any:
    """Return an environment whose functions change what they get, and of which two have one name."""

    def cut(completion: Any, prompt: Any, **kwargs: Any) -> float:
        completion[-1]["content"] = completion[-1]["content"].split("</think>")[-1]
        prompt.append({"role": "user", "content": "?"})
        return float(len(kwargs))

    def seen(completion: Any, prompt: Any, apply_weights: bool = False) -> float:
        return len(completion[-1]["content"]) + 100.0 * len(prompt) + 0.5 * apply_weights

    def other(completion: Any) -> float:
        return 7.0

    other.__name__ = "cut"
    return vf.SingleTurnEnv(dataset=SUMS, rubric=Grown([cut, seen, other]))


class Thought(vf.XMLParser):
    """Read a tag under another name."""

    def parse(self, text: str, strip: bool = True, last: bool = False) -> Any:
        return super().parse(text.replace("think>", "thought>"), strip, last)


def thought() -> Any:
    """Return an environment whose parser has its own way."""
    parser = Thought(["think", "answer"])

    def stripped(parser: Any) -> float:
        read = vf.XMLParser(["a", "b"]).parse("<a>\n x y </a><b> </b>", strip=False)
        return len(read.a) + 10.0 * len(read.b)

    funcs = [parser.get_format_reward_func(), stripped]
    return vf.SingleTurnEnv(dataset=SUMS, parser=parser, rubric=vf.Rubric(funcs, parser=parser))


def offered() -> Any:
    """Return an environment whose reward sees the tools."""

    def tools(info: Any) -> float:
        return float(len(info["oai_tools"]))

    return vf.ToolEnv(tools=[add, shout], dataset=SUMS, rubric=vf.Rubric([tools]))


ENVIRONMENTS = {
    each.__name__: each
    for each in (
        tool_in_tags,
        game,
        group,
        tools,
        own_prompts,
        boxed,
        spent,
        checked,
        parsers,
        unknown,
        odd,
        own,
        found,
        left,
        paid,
        counted,
        renames,
        short,
        passed,
        thought,
        offered,
    )
}
