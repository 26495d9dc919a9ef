"""Verifiers on any text: they never raise, say why, take their time and no more, and mean what they say."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verifiers_nb.rubrics.rubric import Rubric
from verifiers_nb.verifiers import base
from verifiers_nb.verifiers.base import (
    ChainedVerifier,
    Verifier,
    get_verifier,
    verifier_from_config,
)
from verifiers_nb.verifiers.json import (
    JSONSchemaVerifier,
    JSONStructureVerifier,
    read_json,
    value_span,
)
from verifiers_nb.verifiers.regex_and_bleu import (
    RegexFormatVerifier,
    XMLFormatVerifier,
    compile_pattern,
    find_pattern,
)

TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": r"^\w+$", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "multipleOf": 1},
        "share": {"type": "number", "multipleOf": 0.1},
        "children": {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True},
        "either": {"oneOf": [{"type": "string"}, {"type": "null"}, {"$ref": "#"}]},
    },
    "patternProperties": {"^x-": {"enum": [1, "a", None]}},
    "additionalProperties": False,
    "required": ["name"],
}
BOMB = r"^(.*?,){25}x"
HOSTILE = "1," * 60


def verifiers() -> dict[str, Verifier]:
    """Return one verifier of each kind that needs no further package."""
    return {
        "json_structure": JSONStructureVerifier(),
        "json_schema": JSONSchemaVerifier(TREE),
        "strict": JSONSchemaVerifier(TREE, partial_credit=False),
        "regex": RegexFormatVerifier(r"(?s)\bFinal answer:\s*(\d+)\b"),
        "full": RegexFormatVerifier(r"\w+(?: \w+)*", full_match=True, partial_credit=True),
        "xml": XMLFormatVerifier(["think", ("answer", "code")]),
        "chain": ChainedVerifier(["json_structure", XMLFormatVerifier(["a"])], [2, 1], False),
    }


ALL = verifiers()
# Characters of every kind, lone surrogates and NUL among them.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
TOKENS = """
    { } [ ] " : , \\ \\" \\ud800 1 -1 1e999 1.5 NaN -Infinity true null
    "name" "age" "children" "share" "either" "x-a"
    ``` ```json <think> </think> <answer> </answer> <code> <a> </a> Final answer: 42 é
"""
ODD = [" ", "\n", "\x00", "\ud800", "\ufeff", '{"name": "a"}', "7" * 4301, "[" * 600, "]" * 600]
PIECES = st.sampled_from(TOKENS.split() + ODD)
TORN = st.lists(PIECES, max_size=15).map("".join)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*TREE["properties"], "x-1"]) | ANY_TEXT, inner, max_size=4
        )
    ),
    max_leaves=12,
)
CONTENT = st.one_of(
    st.none(),
    st.integers(),
    st.lists(
        st.one_of(
            st.none(),
            ANY_TEXT,
            st.fixed_dictionaries({"type": st.just("text"), "text": st.none() | ANY_TEXT}),
            st.just({"type": "image_url", "image_url": {"url": ""}}),
            st.just({"text": "no type"}),
            st.just({"type": "text", "text": 7}),
        ),
        max_size=3,
    ),
)


def check_promises(verifier: Verifier, content: Any) -> None:
    """Assert what holds for every verdict."""
    result = verifier.verify(content)
    assert 0.0 <= result.reward <= 1.0
    assert result.success == (result.error is None) == (result.reward == 1.0)
    total = sum(check.weight * check.score for check in result.checks)
    assert abs(total - result.reward) < 1e-9
    assert abs(sum(check.weight for check in result.checks) - 1.0) < 1e-9
    assert all(check.message for check in result.checks)
    (result.details + (result.error or "")).encode()  # a log can take it
    if isinstance(content, str):
        assert list(result.checks) == verifier.checks(content)
        spans = [check.span for check in result.checks if check.span is not None]
        assert all(0 <= start <= end <= len(content) for start, end in spans)


def fuzz(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the settings of a fuzz test: reproducible, and without a limit per example."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=slow
    )


def test_twenty_five_thousand_torn_texts() -> None:
    """Cheaper than hypothesis, and so many more: pieces of JSON and oddities in random order."""
    draw, pieces = random.Random(0), [*TOKENS.split(), *ODD[:6]]
    kinds = list(ALL.values())
    for count in range(25_000):
        text = "".join(draw.choices(pieces, k=draw.randrange(12)))
        result = kinds[count % len(kinds)].verify(text)
        assert 0.0 <= result.reward <= 1.0 and result.details, repr(text)


@fuzz(500)
@given(ANY_TEXT | TORN | CONTENT)
def test_verify_never_raises(content: Any) -> None:
    for verifier in ALL.values():
        check_promises(verifier, content)


@fuzz(200)
@given(VALUES, st.sampled_from(["{}", " {}\n", "```json\n{}\n```", "```{}```"]), st.booleans())
def test_json_is_read_through_its_wrapping(value: Any, wrapping: str, ascii_only: bool) -> None:
    text = wrapping.replace("{}", json.dumps(value, ensure_ascii=ascii_only))
    assert read_json(text)[0] == value
    assert ALL["json_structure"].verify(text).reward == 1.0
    check_promises(ALL["json_schema"], text)


@fuzz(150)
@given(VALUES)
def test_spans_point_at_the_values(value: Any) -> None:
    text = " " + json.dumps(value, indent=1)
    paths: list[tuple[list[str | int], Any]] = [([], value)]
    while paths:
        path, part = paths.pop()
        start, end = value_span(text, 1, path)
        assert json.loads(text[start:end]) == part
        inner = (
            part.items()
            if isinstance(part, dict)
            else enumerate(part)
            if isinstance(part, list)
            else ()
        )
        paths += [([*path, key], item) for key, item in inner]


@fuzz(200)
@given(VALUES | st.just({"name": "a"}))
def test_schema_agrees_with_jsonschema(value: Any) -> None:
    """The keywords that are written anew accept what the original ones accept."""
    from jsonschema import Draft202012Validator

    expected = Draft202012Validator(TREE).is_valid(value)
    assert ALL["json_schema"].verify(json.dumps(value)).success == expected


PATTERN_PARTS = r"""
    \w \W \s \S \d \D \b . a é ² _ { } {e} {2} {,2} {1,} [^\W_] [^\S\n] [\w-] [a{]
    (?:a|é) (?=a) (?<!a) (a) \1 ^ $ * + ? | \{ ]
"""


@fuzz(500)
@given(
    st.lists(st.sampled_from(PATTERN_PARTS.split()), max_size=6).map("".join),
    st.text("aé\u0301²_{}e2, \n\x1c\u203f-", min_size=1),
)
def test_patterns_mean_what_they_mean_to_re(pattern: str, text: str) -> None:
    try:
        expected = re.compile(pattern)
    except re.error:
        return
    compiled = compile_pattern(pattern)
    assert bool(find_pattern(compiled, text)) == bool(expected.search(text))
    assert bool(find_pattern(compiled, text, full=True)) == bool(expected.fullmatch(text))


@pytest.mark.parametrize("name", ALL)
def test_three_megabytes(name: str) -> None:
    for text in (
        "x" * 3_000_000,
        "[" * 3_000_000,
        '"' * 3_000_000,
        "\x00\ud800" * 1_500_000,
        json.dumps({"name": "a" * 3_000_000}),
        "<think>" * 420_000,
    ):
        start = time.perf_counter()
        check_promises(ALL[name], text)
        assert time.perf_counter() - start < 20


def test_time_grows_with_the_text() -> None:
    """Twice the text takes about twice the time, on texts made to be hard."""
    hard = {
        "json_structure": ['"\\', "[[],", '{"a":', "``` ", "NaN,"],
        "json_schema": ['"\\', "[[],", "``` "],
        "regex": ["Final answer: ", "Final ", "1"],
        "xml": ["<think>", "<think></think>", "</answer>"],
    }
    for name, pieces in hard.items():
        for piece in pieces:
            short, long = (
                min(timed(ALL[name], piece * (size // len(piece))) for _ in range(3))
                for size in (250_000, 1_000_000)
            )
            assert long < 0.1 or long / short < 8, (name, piece, short, long)


def timed(verifier: Verifier, text: str) -> float:
    """Return the processor seconds that a verification takes of this thread."""
    start = time.thread_time()
    verifier.verify(text)
    return time.thread_time() - start


@pytest.mark.parametrize(
    "verifier",
    [
        RegexFormatVerifier(BOMB),
        RegexFormatVerifier(BOMB, full_match=True, partial_credit=True),
        JSONSchemaVerifier({"pattern": BOMB}, partial_credit=False),
        JSONSchemaVerifier({"propertyNames": {"pattern": BOMB}}, partial_credit=False),
        JSONSchemaVerifier(
            {"patternProperties": {BOMB: True}, "additionalProperties": False}, partial_credit=False
        ),
    ],
)
def test_a_bomb_is_stopped_in_any_thread(
    verifier: RegexFormatVerifier | JSONSchemaVerifier,
) -> None:
    verifier.timeout = 0.2
    texts = [HOSTILE, json.dumps(HOSTILE), json.dumps({HOSTILE: 1})]
    rewards: list[float] = []
    threads = [
        threading.Thread(target=lambda: rewards.extend(verifier.verify(t).reward for t in texts))
        for _ in range(2)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert time.perf_counter() - start < 30
    assert len(rewards) == 6 and 0.0 in rewards
    assert any("stopped" in (verifier.verify(text).error or "") for text in texts)


def test_a_raised_recursion_limit_is_no_danger() -> None:
    """A process with a high limit reads deep nesting until its stack is gone: ours does not try."""
    code = """
import sys
sys.setrecursionlimit(10**9)
from verifiers_nb.verifiers.json import JSONSchemaVerifier
for text in ("[" * 1_000_000, '{"a":' * 1_000_000):
    print(JSONSchemaVerifier({"items": {"$ref": "#"}}).verify(text).reward)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["0.0", "0.0"]), done.stderr[-2000:]


def test_names_load_nothing() -> None:
    code = """
import sys, verifiers_nb.verifiers.base as base
print(*(name in sys.modules for name in ("jsonschema", "regex", "sacrebleu", "xgrammar")), sep="\\n")
print(base.get_verifier("bleu").name, "sacrebleu" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 4 + ["bleu", "False"]


PACKAGE = """
from verifiers_nb.parsers.base import Check
from verifiers_nb.verifiers.base import Verifier

class ShortVerifier(Verifier):
    "Pass short texts."

    def __init__(self, limit=10):
        self.limit = limit

    def checks(self, text):
        return [Check("short", 1.0, float(len(text) <= self.limit), (0, len(text)), f"{len(text)} characters")]
"""
ENTRY_POINTS = """
[verifiers_nb.verifiers]
short = short_texts:ShortVerifier
json_schema = short_texts:ShortVerifier
broken = short_texts:Nothing
module = short_texts
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Put a package that offers verifiers into a folder of its own, as pip does."""
    folder = tmp_path_factory.mktemp("site")
    about = folder / "short_texts-1.0.dist-info"
    about.mkdir()
    (folder / "short_texts.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: short-texts\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def test_an_installed_package_adds_verifiers(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_registered", {})
    with pytest.raises(ValueError, match="No verifier 'short'"):
        get_verifier("short")
    monkeypatch.syspath_prepend(installed)
    cls = get_verifier("short")
    assert cls is get_verifier("short") and cls.name == "short"
    made = verifier_from_config({"verifier": "short", "limit": 3})
    assert [made.verify(text).reward for text in ("abc", "abcd")] == [1.0, 0.0]
    assert get_verifier("json_schema") is JSONSchemaVerifier  # ours can't be taken
    with pytest.raises(AttributeError, match="'short_texts' has no attribute 'Nothing'"):
        get_verifier("broken")
    with pytest.raises(TypeError, match="must be a class"):
        get_verifier("module")
    with pytest.raises(ValueError, match="json_schema, .*short"):
        get_verifier("sort")
    with pytest.raises(TypeError, match="unexpected keyword argument 'limt'"):
        verifier_from_config({"verifier": "short", "limt": 3})


def test_in_a_rubric() -> None:
    """Two verifiers as reward functions: each under its name, the last assistant message counts."""
    rubric = Rubric(
        [ALL["json_schema"].as_reward_func(), ALL["regex"].as_reward_func("answered")],
        weights=[1.0, 0.5],
    )
    completion = [
        {"role": "assistant", "content": "Final answer: 1"},
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "content": [{"type": "text", "text": '{"name": "Ada"}'}]},
    ]
    score = asyncio.run(rubric.score_rollout("?", completion, "", {}))
    assert score.metrics == {"json_schema": 1.0, "answered": 0.0}
    assert score.reward == 1.0


def test_errors_of_reading_point_into_the_text() -> None:
    text = '```json\n{"a": [1, 2,, 3]}\n```'
    _, span, fault = read_json(text)
    assert "character 20: expecting value, found ', 3]}'" in fault
    assert text[slice(*span)] == ","


def test_bleu_is_sacrebleus() -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    references = ["The cat sat on the mat.", "A cat was on the mat."]
    bleu = get_verifier("bleu")(references)
    words = [*references[0].split(), "was", "a", ".", "\ud800", "\x00", "é"]
    for n in range(200):
        text = " ".join(words[(n * k) % len(words)] for k in range(1, 2 + n % 9))
        expected = min(1.0, sacrebleu.sentence_bleu(text, references).score / 100)
        assert bleu.verify(text).reward == pytest.approx(expected)
        assert bleu.verify(text).success == (expected >= 0.5)
