"""What a model only thinks about is not run, and a value of another type than declared is refused; on generated texts and values."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import verifiers_nb as vf
from verifiers_nb.inference.client import Reply
from verifiers_nb.inference.engine import move_tool_calls
from verifiers_nb.parsers.action_parsers import action_parser
from verifiers_nb.parsers.actions import FormatError
from verifiers_nb.parsers.commands import Argument, Command
from verifiers_nb.support.thinking_marks import ANY_MARK, compiled, first_outside, outside_thinking

quick = settings(max_examples=150, deadline=None)
WORD = Argument(name="word", type="string", description="", required=True)
SAY = Command(name="say", docstring="", arguments=[WORD])
CALLS = {
    "xml_function_calling": "<function=say>\n<parameter=word>{}</parameter>\n</function>",
    "all_bash_code_blocks": "\n```bash\nsay {}\n```\n",
    "thought_action": "\n```\nsay {}\n```\n",
    "edit_format": "\n```\nsay {}\n```\n",
    "xml_thought_action": "<command>say {}</command>",
    "engine": '<tool_call>{{"name": "say", "arguments": {{"word": "{}"}}}}</tool_call>',
}
PIECES = ["open", "close", "open", "close", "call", "I could say it.", "\n", " a < b "]
MARKS = [
    ("<think>", "</think>"),
    ("<Thinking>", "</Thinking>"),
    ("< REASONING >", "</ REASONING>"),
    ("<analysis>", "</analysis>"),
    ('<details type="reasoning">', "</details>"),
    ("<|im_start|>think\n", "<|im_start|>answer"),
    ("[THINK]", "[/THINK]"),
    ("[THINKING]", "[/THINKING]"),
    ("<planning>", "</planning>"),
    ("<think_fast>", "</think_fast>"),
    ("<COT>", "</cot>"),
    ("<|thought|>", "<|/thought|>"),
    ("◁think▷", "◁/think▷"),
    ("＜think＞", "＜/think＞"),
    ("<scratch_pad>", "</scratch_pad>"),
    ("<Chain-of-thought>", "</chain_of_thought>"),
    ("<DEEP THINK>", "</DEEP THINK>"),
    ("<|thinking_start|>", "<|thinking_end|>"),
    ("<|begin_think|>", "<|end_think|>"),
    ("<ifm|think>", "</ifm|think>"),
    ("<think:6124c78e>", "</think:6124c78e>"),
    ("<|content_thinking|>", "<|end_message|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<antThinking>", "</antThinking>"),
    ("<start_working_out>", "<end_working_out>"),
]
NO_LONE_CLOSING = ("<channel|>", "<|end|>", "<|end_message|>", "</details>", "<|im_start|>answer")


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    """Draw pieces of a text with marks of one kind or two."""
    kinds = draw(st.lists(st.sampled_from(MARKS), min_size=1, max_size=2))
    pieces = draw(st.lists(st.sampled_from(PIECES), max_size=10))
    place = {"open": 0, "close": 1}
    return [draw(st.sampled_from(kinds))[place[p]] if p in place else p for p in pieces]


def said_aloud(pieces: list[str]) -> list[int]:
    """Return which pieces are outside thinking, found by walking over them."""
    aloud: list[int] = []
    closing_of, closing = dict(MARKS), ""
    for number, piece in enumerate(pieces):
        if closing:
            closing = "" if piece == closing else closing
        elif piece in closing_of:
            closing = closing_of[piece]
        elif piece in closing_of.values():
            aloud = aloud if piece in NO_LONE_CLOSING else []  # the prompt opened it
        else:
            aloud.append(number)
    return aloud


ONLY_ONE = ("xml_function_calling", "xml_thought_action")  # where a second call costs a point


def run(kind: str, text: str) -> str:
    """Return what a parser or the engine would run."""
    if kind == "engine":
        choice = Reply(message=Reply(role="assistant", content=text), finish_reason="stop")
        move_tool_calls(choice, "call")
        return " ".join(c.function.arguments for c in choice.message.tool_calls or ())
    try:
        return action_parser(kind)({"message": text}, [SAY])[1]
    except FormatError:
        return ""


@pytest.mark.parametrize("kind", CALLS)
@quick
@given(texts())
def test_only_calls_outside_thinking_are_run(kind: str, pieces: list[str]) -> None:
    made = [
        CALLS[kind].format(f"w{number}w") if piece == "call" else piece
        for number, piece in enumerate(pieces)
    ]
    text = "".join(made)
    aloud = [f"w{number}w" for number in said_aloud(pieces) if pieces[number] == "call"]
    expected = {"all_bash_code_blocks": aloud, "engine": aloud, "xml_function_calling": aloud[:1]}
    assert re.findall(r"w\d+w", run(kind, text)) == expected.get(kind, aloud[-1:])
    if kind != "engine":
        score = action_parser(kind).format_score(text, [SAY])
        is_right = len(aloud) == 1 if kind in ONLY_ONE else bool(aloud)
        assert (score == 1.0) == is_right, text


@quick
@given(texts())
def test_the_text_outside_thinking(pieces: list[str]) -> None:
    text = "".join(pieces)
    outside = "".join(pieces[number] for number in said_aloud(pieces))
    found = outside_thinking(text)
    for closing in NO_LONE_CLOSING:
        found = found.replace(closing, "")
    assert found == outside
    assert 0 <= first_outside(text, compiled(ANY_MARK)) <= len(text)


@pytest.mark.parametrize("kind", CALLS)
def test_a_fence_of_thinking(kind: str) -> None:
    call = CALLS[kind].format
    for fence, word in (("~~~", "think"), ("~~~", "reasoning"), ("```", "thought")):
        thought = f"{fence}{word}\nI could {call('w1w')} it\n"
        assert "w1w" not in run(kind, thought)
        if fence[0] == "~" or "```" not in call(""):  # else the call ends the fence
            thought += f"{fence}\n"
            assert "w1w" not in run(kind, f"{thought}I leave it.")
            assert re.findall(r"w\d+w", run(kind, f"{thought}So {call('w2w')}")) == ["w2w"]


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("name", ["plan", "reason", "rationale", "internal"])
def test_names_that_are_placeholders_too(kind: str, name: str) -> None:
    call = CALLS[kind].format
    for before in ("", "Hm. ", "I see.\n", "<b>so</b>", "Then "):
        thought = f"{before}<{name}>I could {call('w1w')} it"
        assert "w1w" not in run(kind, thought)
        text = f"{thought}</{name}>\n{call('w2w')}"
        assert re.findall(r"w\d+w", run(kind, text)) == ["w2w"]
    for said in (f"I run apply <{name}> now.", f"`<{name}>` stays.", f"Usage: undo <{name}>"):
        assert re.findall(r"w\d+w", run(kind, f"{said}\n{call('w1w')}")) == ["w1w"]


@pytest.mark.parametrize("kind", CALLS)
def test_thinking_that_names_its_own_end(kind: str) -> None:
    call = CALLS[kind].format
    thought = f"<think>It ends at `</think>`, so I could {call('w1w')} it"
    assert run(kind, thought) == ""
    assert re.findall(r"w\d+w", run(kind, f"{thought}</think>\n{call('w2w')}")) == ["w2w"]


@pytest.mark.parametrize("kind", CALLS)
def test_thinking_that_a_command_contains_belongs_to_it(kind: str) -> None:
    assert "<think>" in run(kind, "Look: " + CALLS[kind].format("<think>"))


@pytest.mark.parametrize("kind", ["action_only", "identity", "action"])
def test_a_check_says_that_the_action_includes_thinking(kind: str) -> None:
    (check,) = action_parser(kind).checks("say <think>rm</think>", [SAY])
    assert check.score == 1.0 and "thinking" in check.message


def test_an_answer_within_another_field() -> None:
    parser = vf.XMLParser(["think", "answer"])
    inside = "<think>Is it <answer>42</answer>?</think>"
    assert parser.parse_answer(inside) == "42"  # as its page says
    assert "<answer> is there, inside <think>" in str(parser.explain(inside))
    assert "inside" not in str(parser.explain(inside + "<answer>42</answer>"))
    assert "inside <think>" in str(parser.explain(inside.removesuffix("?</think>")))


scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=4)
values = (
    scalars
    | st.lists(scalars, max_size=3)
    | st.dictionaries(st.text(max_size=2), scalars, max_size=2)
)
kinds = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
items = st.none() | kinds.map(lambda kind: {"type": kind})
items |= st.just({"type": "string", "maxLength": 2}) | st.just({"type": ["integer", "null"]})


@settings(max_examples=500, deadline=None)
@given(kinds, items, values, st.sampled_from(["function_calling", "json", "xml_function_calling"]))
def test_a_value_passes_if_it_fits_the_declared_schema(
    kind: str, item: dict[str, Any] | None, value: Any, parser: str
) -> None:
    wanted = Argument(name="x", type=kind, description="", required=True, items=item)
    command = Command(name="do", docstring="", arguments=[wanted])
    written = json.dumps({"x": value})
    arguments = json.loads(written)
    if parser == "function_calling":
        given_call = {"name": "do", "arguments": written}
        response: dict[str, Any] = {"message": "", "tool_calls": [{"function": given_call}]}
    elif parser == "json":
        call = {"name": "do", "arguments": arguments}
        response = {"message": json.dumps({"thought": "", "command": call})}
    else:
        text = value if isinstance(value, str) else json.dumps(value)
        if "<" in text or text != text.strip() or (kind == "boolean" and isinstance(value, str)):
            return
        response = {"message": f"<function=do>\n<parameter=x>{text}</parameter>\n</function>"}
        try:
            arguments = {"x": text if kind == "string" else json.loads(text)}
        except ValueError:
            arguments = {"x": text}
    infinite = "NaN" in written or "Infinity" in written
    expected = Draft202012Validator(wanted.tool_property()).is_valid(arguments["x"])
    reader = action_parser(parser)
    try:
        _, action = reader(response, [command])
        assert expected
        if isinstance(arguments["x"], str):
            assert "\x00" in action or shlex.split(action) == ["do", arguments["x"]]
        if isinstance(arguments["x"], (list, dict)) and "\x00" not in action:
            assert [json.loads(word) for word in shlex.split(action)[1:]] == [
                arguments["x"]
            ] or infinite
        assert reader.format_score(response, [command]) == 1.0
    except FormatError as error:
        assert not expected or infinite
        assert error.extra_info["error_code"] == "incorrect_args"
        assert reader.format_score(response, [command]) < 1.0


HOSTILE = ["$(touch x)", "`touch x`", "'; touch x; '", '"; touch x; "', "a\ntouch x", "it's $(touch x)", "a\\", "$HOME"]  # fmt: skip
SIGNATURES = ["show <word>", 'show "<word>"', "show '<word>'", "show --word=<word>"]
FORMATS = ["{{value}}", '"{{value}}"', "--word {{value}}", "--word '{{value}}'"]
MARK = re.compile("['\"]")
# No quotation marks within quotation marks.
WRITTEN = [
    (signature, form)
    for signature in SIGNATURES
    for form in FORMATS
    if not (MARK.search(signature) and MARK.search(form))
]


@pytest.mark.parametrize(("signature", "form"), WRITTEN)
def test_a_hostile_value_stays_one_word_of_bash(signature: str, form: str, tmp_path: Path) -> None:
    wanted = WORD.model_copy(update={"argument_format": form})
    many = Argument(name="word", type="array", description="", required=True, argument_format=form)
    script = "show() { for each; do printf '%s\\0' \"$each\"; done; }\n"
    for value in [*HOSTILE, HOSTILE]:
        argument = many if isinstance(value, list) else wanted
        command = Command(name="show", docstring="", signature=signature, arguments=[argument])
        call = {"name": "show", "arguments": {"word": value}}
        try:
            _, action = action_parser("function_calling")(
                {"message": "", "tool_calls": [{"function": call}]}, [command]
            )
        except FormatError:
            assert isinstance(value, list)  # refused, as it can't be written
            continue
        done = subprocess.run(
            ["bash", "-c", script + action], cwd=tmp_path, capture_output=True, text=True
        )
        word = json.dumps(value) if isinstance(value, list) else value
        shown = done.stdout.split("\0")[:-1][-1].removeprefix("--word=").removeprefix("--word ")
        assert shown == word, (action, done.stderr)
        assert not list(tmp_path.iterdir())
