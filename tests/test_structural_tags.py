"""Structural tags: parsers and tags agree in both directions, matching is exact, linear and safe, streams add up."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from functools import cache
from random import Random
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from verifiers_nb.parsers import structural_tags
from verifiers_nb.parsers.action_parsers import action_parser
from verifiers_nb.parsers.commands import BASH_COMMAND, Argument, Command
from verifiers_nb.parsers.function_calls import tools_tag
from verifiers_nb.parsers.structural_tags import (
    StructuralTag,
    allowed_bytes,
    exact_class,
    json_tag,
    regex_tag,
)
from verifiers_nb.parsers.think import ThinkParser
from verifiers_nb.parsers.xml import XMLParser
from verifiers_nb.verifiers.regex_and_bleu import StructuralTagVerifier

# A random walk may end before its text is complete.
unfinished = [HealthCheck.filter_too_much]
quick = settings(max_examples=80, deadline=None, suppress_health_check=unfinished)
few = settings(quick, max_examples=40)
seeds = st.integers(0, 2**32)
names = st.text(st.sampled_from("abé-.]^\\"), min_size=1, max_size=3)
fields = st.lists(names, min_size=1, max_size=4, unique=True).flatmap(
    lambda words: st.integers(1, len(words)).map(
        lambda n: [*words[: n - 1], tuple(words[n - 1 :])]  # the last field has the rest as names
    )
)
BITS = [
    "7",
    "a ",
    "\n",
    " ",
    "<",
    "</",
    ">",
    "é",
    "\x00",
    "\ud800",
    "\u2003",
    "`",
    "```",
    '"',
    "[1, 2]",
    "bash",
]

PATH = Argument(name="path", type="string", description="", required=True)
RANGE = Argument(
    name="view_range",
    type="array",
    items={"type": "integer"},
    description="",
    required=False,
    argument_format="--lines {{value|join(' ')}}",
)
COMMANDS = [
    BASH_COMMAND,
    Command(
        name="view", docstring="", signature="view <path> [<view_range>]", arguments=[PATH, RANGE]
    ),
    Command(name="submit", docstring=""),
]
MARKS = ["```", "```bash\n", "\n```", "\n", "<command>", "</command>", "<function=view>\n", "</function>",
         "<parameter=path>", "</parameter>", "bash", "view", " ", "`", "é", "\u2003", "\x00", "\ud800"]  # fmt: skip
CLOSERS = ['"', "]", "}", "\n```", "</command>", "</parameter>", "</function>"]
WORDS = ["7", "a", "é", "<", ","]  # no white space, of which JSON can take any amount
EXACT = ["action", "action_only", "identity"]
BASH = ["all_bash_code_blocks", "single_bash_code_block"]
STRICTER = [
    "thought_action",
    "edit_format",
    "xml_thought_action",
    "xml_function_calling",
    "json",
    *BASH,
]


def full(parser: Any, text: Any, *commands: Any) -> bool:
    """Say whether all checks of a parser are full, but for a quotation that no tag of a bash block can close."""
    lost = [check for check in parser.checks(text, *commands) if check.score < 1.0]
    return all("ends within" in check.message for check in lost)


def walk(tag: StructuralTag, seed: int, bits: list[str], closers: list[str]) -> str:
    """Write a text that fits a tag, of bits where they fit and of what has to come next."""
    random, matcher, text = Random(seed), tag.matcher(), ""
    for _ in range(60):
        if matcher.is_completed() and random.random() < 0.3:
            break
        first = closers if random.random() < 0.4 else []
        forced = matcher.find_jump_forward_string()
        for bit in [forced] if forced else [*first, *random.sample(bits, len(bits))]:
            if matcher.accept_string(bit.encode("utf-8", "surrogatepass")):
                text += bit
                break
        else:
            choices = [byte for byte in allowed_bytes(matcher) if 32 < byte < 128]
            if not choices:
                break
            text += chr(random.choice(choices))
            assert matcher.accept_string(text[-1])
    assume(matcher.is_completed())
    assert tag.matches(text)
    return text


@cache
def action_tag(kind: str) -> StructuralTag:
    """Return the tag of an action parser, which is the same for all texts."""
    return action_parser(kind).to_structural_tag(COMMANDS)


def closings(parser: XMLParser) -> list[str]:
    """List the closing tags of a format."""
    return [tag[2] for tag in parser._tags]


# Tag to parser: what is let through scores full.


@few
@given(fields, seeds)
def test_xml_tag_gives_full_scores(form: list[Any], seed: int) -> None:
    parser = XMLParser(form)
    openings = [tag[1] for tag in parser._tags]
    text = walk(parser.to_structural_tag(), seed, [*BITS, *openings], closings(parser))
    assert full(parser, text) and parser.format_score(text) == 1.0


@quick
@given(seeds)
def test_think_tag_gives_full_scores(seed: int) -> None:
    parser = ThinkParser()
    assert full(parser, walk(parser.to_structural_tag(), seed, BITS, ["</think>"]))


@pytest.mark.parametrize("kind", EXACT + STRICTER)
@few
@given(seed=seeds)
def test_action_tag_gives_full_scores(kind: str, seed: int) -> None:
    parser = action_parser(kind)
    bits = WORDS if kind == "json" else BITS + MARKS
    text = walk(action_tag(kind), seed, bits, CLOSERS)
    assert full(parser, text, COMMANDS), text


@few
@given(seed=seeds)
def test_tool_call_tag_gives_full_scores(seed: int) -> None:
    """The endpoint parses what stands in the tag into a tool call, which the parser then accepts."""
    parser = action_parser("function_calling")
    text = walk(action_tag("function_calling"), seed, WORDS, ["<tool_call>\n", *CLOSERS])
    (call,) = re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.DOTALL)
    function = json.loads(call, strict=False)
    assert full(parser, {"message": text, "tool_calls": [{"function": function}]}, COMMANDS)


def pick(color: Literal["red", "blue"], times: int = 1, note: str | None = None) -> None:
    """Serve as a tool."""


@few
@given(seed=seeds)
def test_tools_tag_gives_valid_calls(seed: int) -> None:
    text = walk(tools_tag([pick]), seed, WORDS, ["<tool_call>\n", *CLOSERS])
    for call in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.DOTALL):
        given_arguments = json.loads(call)["arguments"]
        assert given_arguments["color"] in ("red", "blue")
        assert set(given_arguments) <= {"color", "times", "note"}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "note": {"type": "string"},
    },
    "required": ["kind", "sizes"],
}


@quick
@given(seed=seeds)
def test_json_tag_gives_valid_json(seed: int) -> None:
    closed = {**SCHEMA, "additionalProperties": False}
    text = walk(json_tag(closed), seed, WORDS, CLOSERS)
    jsonschema.validate(json.loads(text), SCHEMA)


# Parser to tag: what scores full is let through.

free_text = st.text(st.sampled_from([*"ab<>/é \n`\x00\u2003"]), max_size=12)


@quick
@given(fields, st.data())
def test_formatted_values_match_the_xml_tag(form: list[Any], data: st.DataObject) -> None:
    parser = XMLParser(form)
    inside = st.lists(st.sampled_from([*BITS, *closings(parser)]), max_size=5).map("".join)
    values = {name: data.draw(inside) for name in parser.get_fields()}
    text = parser.format(**values)
    clean = not any(tag in value for value in values.values() for tag in closings(parser))
    filled = all(value.strip() for value in values.values())
    if clean:
        assert parser.to_structural_tag().matches(text) == filled == full(parser, text)
    elif not full(parser, text):
        assert not parser.to_structural_tag().matches(text)


@quick
@given(st.lists(st.sampled_from(["<think>", "</think>", *BITS]), max_size=9).map("".join))
def test_think_tag_is_the_parsers_format(text: str) -> None:
    parser = ThinkParser()
    assert parser.to_structural_tag().matches(text) == full(parser, text)


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=100, deadline=None)
@given(bits=st.lists(st.sampled_from(MARKS), max_size=9))
def test_exact_action_tags(kind: str, bits: list[str]) -> None:
    parser, text = action_parser(kind), "".join(bits)
    assert action_tag(kind).matches(text) == full(parser, text, COMMANDS)


@pytest.mark.parametrize("kind", STRICTER)
@few
@given(thought=free_text, value=free_text, after=free_text, optional=st.booleans())
def test_honest_turns_match(
    kind: str, thought: str, value: str, after: str, optional: bool
) -> None:
    """A thought, one action in the form that the parser asks for, and more text."""
    assume("```" not in thought + after and not value.startswith("```") and "\n```" not in value)
    lines = "<parameter=view_range>\n[1, 50]\n</parameter>\n" * optional
    arguments = {"path": value, "view_range": [1, 50]}
    block = f"{thought}\n```\n{value}\n```\n{after}"
    text = {
        "thought_action": block,
        "edit_format": block.replace("```\n", "```python\n", 1),
        "all_bash_code_blocks": block.replace("```\n", "```bash\n", 1),
        "single_bash_code_block": block.replace("```\n", "```bash\n", 1),
        "xml_thought_action": f"{thought}<command>\n{value}\n</command>{after}",
        "xml_function_calling": f"{thought}<function=view>\n<parameter=path>{value}</parameter>\n{lines}</function>{after}",
        "json": json.dumps(
            {"thought": thought, "command": {"name": "view", "arguments": arguments}}
        ),
    }[kind]
    parser = action_parser(kind)
    assert full(parser, text, COMMANDS)
    assert action_tag(kind).matches(text)


@quick
@given(
    st.fixed_dictionaries(
        {"kind": st.sampled_from("ab"), "sizes": st.lists(st.integers(), max_size=3)},
        optional={"note": st.text(st.characters(exclude_categories=["Cs"]), max_size=4)},
    ),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
)
def test_valid_json_matches(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    ordered = {key: value[key] for key in SCHEMA["properties"] if key in value}
    assert json_tag(SCHEMA).matches(json.dumps(ordered, indent=indent, ensure_ascii=ascii_only))


PATTERNS = [
    r"\d{3}-\d{4}",
    r"[A-Z]\w*(?: [A-Z]\w*)*",
    r"-?(?:0|[1-9]\d*)(?:\.\d+)?",
    r"(?P<a>\S+)\s*=\s*.+",
    r"[^\W\d_]{2,3}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@few
@given(data=st.data())
def test_patterns_match_as_in_re(pattern: str, data: st.DataObject) -> None:
    tag = regex_tag(pattern)
    text = data.draw(st.from_regex(pattern, fullmatch=True) | st.text(max_size=4))
    assert tag.matches(text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize("each", [r"\w", r"\D", r"[^é]", r"[\u1ffd-\u206f]", r"[^\s<]"])
def test_classes_are_exact(each: str) -> None:
    tag = StructuralTag.from_json(
        {"type": "structural_tag", "format": {"type": "regex", "pattern": exact_class(each)}}
    )
    every = [*range(0, 0x3100), *range(0x3100, 0x110000, 997)]
    wrong = [n for n in every if tag.matches(chr(n)) != bool(re.fullmatch(each, chr(n)))]
    assert not wrong


# Matching.

TAG = XMLParser(["think", "answer"]).to_structural_tag()
LENIENT = {"type": "triggered_tags", "triggers": ["<f"], "tags": [{"begin": "<f>", "content": {"type": "regex", "pattern": "[é7]+"}, "end": "</f>"}]}  # fmt: skip


@quick
@given(st.lists(st.sampled_from(["<f>", "</f>", "<f", *BITS]), max_size=8).map("".join))
def test_matched_prefix_is_the_longest(text: str) -> None:
    tag = StructuralTag.from_json({"type": "structural_tag", "format": LENIENT})
    at = tag.matched_prefix(text)
    assert tag.matched_prefix(text[:at]) == at
    assert at == len(text) or tag.matched_prefix(text[: at + 1]) == at
    assert tag.expected_at(text)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 191, 192, 193, 8191, 70_000])
@pytest.mark.parametrize("character", ["a", "é", "€", "😀", "\ud800", "\x00"])
def test_prefix_around_the_edges_of_slices(length: int, character: str) -> None:
    good = f"<think>{character * length}</think>"
    assert TAG.matched_prefix(good + "x") == len(good)
    assert TAG.matched_prefix(good) == len(good)
    assert TAG.matches(good + "<answer>7</answer>")


HOSTILE = [
    "<think>",
    "</think",
    "<",
    "</",
    "<answer></think>",
    " ",
    "\u2003",
    "a < b ",
    "😀",
    "\ud800",
    "\x00",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear(unit: str) -> None:
    def best_of_three(length: int) -> float:
        text, took = "<think>x" + unit * (length // len(unit)), []
        for _ in range(3):
            began = time.thread_time()
            TAG.matched_prefix(text)
            took.append(time.thread_time() - began)
        return min(took)

    # Ten times the text may take 10 ** 1.1 times the time; three times that is left to the machine.
    assert best_of_three(200_000) < max(3 * 10**1.1 * best_of_three(20_000), 0.05)


def test_ten_megabytes_that_do_not_fit_are_refused_at_once() -> None:
    began = time.thread_time()
    assert TAG.matched_prefix("x" * 10_000_000) == 0
    assert not TAG.matches("<think>" + "x" * 100 + "</think>" + "<" * 10_000_000)
    assert time.thread_time() - began < 5


def test_three_kilobytes_take_a_millisecond_at_most_on_a_quiet_machine() -> None:
    text = f"<think>{'7 + 68 < 80, and so on. ' * 125}</think><answer>75</answer>"
    took = []
    for _ in range(100):
        began = time.thread_time()
        assert TAG.matches(text)
        took.append(time.thread_time() - began)
    assert len(text) > 3000 and sorted(took)[50] < 5e-3


@pytest.mark.parametrize("pattern", ["(a*)*b", "(.*?a){12}x"])
def test_ambiguous_patterns_are_stopped(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structural_tags, "MATCHING_LIMIT", 0.2)
    verifier = StructuralTagVerifier({"type": "regex", "pattern": pattern})
    began = time.thread_time()
    verdict = verifier.verify("a" * 30_000)
    assert time.thread_time() - began < 10
    assert (verdict.reward, verdict.success) == (0.0, False)
    assert "too many ways" in str(verdict.error)


@quick
@given(
    st.one_of(
        st.text(),
        st.none(),
        st.integers(),
        st.binary(),
        st.lists(st.dictionaries(st.text(), st.text())),
    )
)
def test_verifier_judges_anything(text: Any) -> None:
    verdict = StructuralTagVerifier(TAG).verify(text)
    assert not verdict.success and 0.0 <= verdict.reward < 1.0 and verdict.error


# Imports.


def test_parsers_load_neither_torch_nor_xgrammar() -> None:
    code = (
        "import sys, verifiers_nb.parsers.function_calls, verifiers_nb.parsers.think, verifiers_nb.parsers.xml\n"
        "print([name for name in ('torch', 'xgrammar') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
