"""A JSON schema means one thing: its verifier and its structural tag agree on generated schemas and values."""

from __future__ import annotations

import json
import warnings
from itertools import islice, permutations, product
from random import Random
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from verifiers_nb.parsers.function_calls import tools_tag
from verifiers_nb.parsers.structural_tags import StructuralTag, allowed_bytes, json_tag
from verifiers_nb.support.json_scalars import NO_EXPONENT
from verifiers_nb.verifiers.json import JSONSchemaVerifier

NAMES = ["a", "b", "ab", "é"]
TEXTS = ["", "a", "b", "ab", "abcdef", "é", "a\nb", 'he said "hi"', "\\", "😀", "A b", "12"]
PATTERNS = ["^[a-z]+$", "a", "b$", r"^\d+$", "^a|b", "[^a]", "^.{2}$", r"\ba\b", r"^\S*$"]
NUMBERS = [0, 1, 2, 3, 5, 10, -1, 100, 0.5, 2.5, -0.3, 0.1, 3.75, 2.0, 10.0]
TYPES = ["string", "integer", "number", "array", "object", "boolean", "null", ["string", "null"]]
DEFINED = {
    "x": {"type": "integer", "minimum": 2},
    "y": {"anyOf": [{"type": "string"}, {"properties": {"a": {"$ref": "#/$defs/y"}}}]},
}


class Generator:
    """Make schemas and values at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def value(self, depth: int = 0) -> Any:
        """Make a JSON value."""
        kind = self.random.choice("nbiissao" if depth < 2 else "nbiiss")
        if kind == "a":
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        if kind == "o":
            chosen = [name for name in [*NAMES, "z"] if self.random.random() < 0.5]
            return {name: self.value(depth + 1) for name in chosen}
        simple = {"n": [None], "b": [True, False], "i": NUMBERS, "s": TEXTS}
        return self.random.choice(simple[kind])

    def schema(self, depth: int = 0) -> Any:
        """Make a JSON schema."""
        if self.random.random() < 0.05:
            return self.random.random() < 0.7
        schema: dict[str, Any] = {}
        if self.random.random() < 0.7:
            schema["type"] = self.random.choice(TYPES)
        makers = [self.plain_keyword, self.nested_keyword] if depth < 3 else [self.plain_keyword]
        for _ in range(self.random.randrange(4 - min(depth, 2))):
            schema.update(self.random.choice(makers)(depth + 1))
        return schema

    def plain_keyword(self, depth: int) -> dict[str, Any]:
        """Make a keyword without schemas inside."""
        choice, small = self.random.choice, self.random.randrange(4)
        bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
        counts = ["minLength", "maxLength", "minItems", "maxItems", "minProperties"]
        values = {json.dumps(each): each for each in [self.value(1) for _ in range(3)]}
        options: list[dict[str, Any]] = [
            {choice(bounds): choice(NUMBERS)},
            {choice([*counts, "maxProperties"]): small},
            {"multipleOf": choice([1, 2, 3, 0.5, 0.1])},
            {"pattern": choice(PATTERNS)},
            {"required": self.random.sample(NAMES, 2)},
            {"dependentRequired": {choice(NAMES): [choice(NAMES)]}},
            {"enum": [*values.values()]},
            {"const": self.value(1)},
            {"$ref": choice(["#/$defs/x", "#/$defs/y"])},
            {"uniqueItems": True},
        ]
        return choice(options)

    def nested_keyword(self, depth: int) -> dict[str, Any]:
        """Make a keyword with schemas inside."""
        choice = self.random.choice
        one, two, three = (self.schema(depth) for _ in range(3))
        options: list[dict[str, Any]] = [
            {"items": one},
            {"prefixItems": [one, two]},
            {"contains": one},
            {"properties": dict(zip(self.random.sample(NAMES, 2), [one, two], strict=True))},
            {"additionalProperties": choice([one, False])},
            {"patternProperties": {choice(["^a", "b$", "."]): one}},
            {"propertyNames": choice([{"pattern": "^a"}, {"maxLength": 1}, {"enum": ["a", "é"]}])},
            {choice(["anyOf", "oneOf", "allOf"]): [one, two]},
            {"not": one},
            {"if": one, "then": two, "else": three},
            {"dependentSchemas": {choice(NAMES): one}},
        ]
        return choice(options)


def orders(value: Any) -> Any:
    """Give the same value with its properties in other orders."""
    if isinstance(value, dict):
        for names in permutations(value):
            for values in product(*([*islice(orders(value[name]), 6)] for name in names)):
                yield dict(zip(names, values, strict=True))
    elif isinstance(value, list):
        yield from map(list, product(*([*islice(orders(each), 6)] for each in value)))
    else:
        yield value


def walked(tag: StructuralTag, random: Random) -> str | None:
    """Write a text that the tag lets through, or give up."""
    matcher, written = tag.matcher(), b""
    for _ in range(60):
        if matcher.is_completed() and random.random() < 0.4:
            break
        allowed = [byte for byte in allowed_bytes(matcher) if byte < 256]
        plain = [byte for byte in allowed if 32 < byte < 127] or allowed
        closing = [byte for byte in plain if chr(byte) in '"]}']
        if not plain:
            break
        byte = random.choice(closing if closing and random.random() < 0.4 else plain)
        assert matcher.accept_string(bytes([byte]))
        written += bytes([byte])
    return written.decode() if matcher.is_completed() else None


def tag_and_lost(schema: Any) -> tuple[StructuralTag | None, str]:
    """Make a tag; return it, or None if it is refused, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            tag = json_tag(schema)
        except ValueError as error:
            return None, str(error)
    return tag, " ".join(str(each.message) for each in caught)


def beyond_exponents(lost: str) -> str:
    """Return what was lost, or nothing if that is only that numbers have no exponent."""
    return lost if lost.count("(") > lost.count(f"({NO_EXPONENT})") else ""


@pytest.mark.parametrize("seed", range(60))
def test_verifier_and_tag_agree(seed: int) -> None:
    generator = Generator(seed)
    schema = generator.schema()
    if isinstance(schema, dict):
        schema["$defs"] = DEFINED
    verifier = JSONSchemaVerifier(schema)
    tag, lost = tag_and_lost(schema)
    lost = beyond_exponents(lost) if tag else lost
    assert tag or "no value fits" in lost or "nested too deeply" in lost
    for _ in range(30):
        value = generator.value()
        text = json.dumps(value, ensure_ascii=generator.random.random() < 0.5)
        passes = verifier.verify(text).success
        if tag is None:
            assert not passes or "nested" in lost, (schema, text)
        elif passes:
            same = (json.dumps(each) for each in islice(orders(value), 300))
            assert tag.matches(text) or any(map(tag.matches, same)), (schema, text)
        else:
            assert lost or not tag.matches(text), (schema, text)
    for _ in range(4 if tag and not lost else 0):
        assert tag is not None
        written = walked(tag, generator.random)
        assert written is None or verifier.verify(written).success, (schema, written)


def test_most_schemas_are_enforced_whole() -> None:
    outcomes = [tag_and_lost(Generator(seed).schema() or {}) for seed in range(120)]
    assert sum(tag is not None and not beyond_exponents(lost) for tag, lost in outcomes) > 70


EXPRESSED = [
    {"type": "string", "maxLength": 40},
    {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    {"type": "string", "pattern": "b"},
    {"type": "string", "format": "date", "maxLength": 3},
    {"type": "number", "multipleOf": 0.1},
    {"not": {"type": "string"}},
    {"type": "string", "not": {"pattern": "a"}},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"type": "array", "contains": {"type": "string"}, "maxItems": 2},
    {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "null"}},
    {"type": "object", "properties": {"a": {}}, "dependentRequired": {"a": ["b"]}},
    {"allOf": [{"type": "integer"}, {"minimum": 3}]},
    {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"type": "string"}]},
    {"$ref": "#/$defs/x", "maximum": 3, "$defs": DEFINED},
    {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]},
]


@pytest.mark.parametrize("schema", EXPRESSED, ids=json.dumps)
def test_these_are_expressed(schema: dict[str, Any]) -> None:
    tag, lost = tag_and_lost(schema)
    assert tag is not None and not beyond_exponents(lost)
    verifier, generator = JSONSchemaVerifier(schema), Generator(0)
    for value in [*(generator.value() for _ in range(200)), *NUMBERS, *TEXTS, [1, "a"], 0.3]:
        text = json.dumps(value)
        assert tag.matches(text) == verifier.verify(text).success, (schema, text)


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("uniqueItems", {"type": "array", "uniqueItems": True}),
        ("multipleOf", {"type": "integer", "multipleOf": 5}),
        ("not", {"type": "number", "not": {"multipleOf": 2}}),
        ("not", {"not": {"type": "integer"}}),
        ("pattern", {"type": "string", "pattern": "^(?=a)"}),
        ("pattern", {"type": "string", "pattern": "(?i)a"}),
        ("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}),
        ("maxContains", {"contains": {"type": "null"}, "maxContains": 1}),
        ("minProperties", {"type": "object", "minProperties": 2}),
        ("not", {"not": {"uniqueItems": True}}),
    ],
)
def test_what_no_grammar_has_is_named(keyword: str, schema: dict[str, Any]) -> None:
    tag, lost = tag_and_lost(schema)
    assert tag is not None and keyword in lost


def test_a_schema_that_takes_minutes_is_refused() -> None:
    """Combined patterns multiply; a sentence says so instead of a grammar of any size."""
    patterns = ["^[a-z]+@[a-z]+$", "^[0-9]{3,5}$", "^(fo|ba)+$", "[A-Z][a-z]*", "^x.*y$", "^\\D*$"]

    def combined(lists: int, ending: str) -> dict[str, Any]:
        """Return a schema of a string that fits one pattern of each list."""
        options = [[{"pattern": f"{p}{'|q' * n}|{ending}"} for p in patterns] for n in range(lists)]
        return {"type": "string", "allOf": [{"anyOf": each} for each in options]}

    with pytest.raises(ValueError, match="more than 300 combinations"):
        json_tag(combined(6, ""))
    with pytest.raises(ValueError, match="more than 50,000 rules"):
        json_tag({"properties": {f"p{n}": combined(3, f"a{{{n}}}") for n in range(30)}})


def test_a_reference_to_another_file_is_refused() -> None:
    tag, why = tag_and_lost({"$ref": "https://example.com/a.json"})
    assert tag is None and "https://example.com/a.json" in why


class Order(BaseModel):
    """Hold an order, with bounds as people write them."""

    note: str = Field(min_length=1, max_length=20)
    code: str = Field(pattern="^[A-Z]{2}-[0-9]+$", max_length=6)
    share: float = Field(ge=0, le=1)
    count: Annotated[int, Field(gt=0, multiple_of=5)] = 5
    kind: Literal["new", "old"] | None = None


@pytest.mark.parametrize("value", [{}, {"note": ""}, {"note": 'say "hi"\n'}, {"code": "AB-1234"}, {"share": 1.5}, {"count": 12}, {"kind": "no"}, {"kind": None}, {"more": 1}, {"share": 1e-05}])  # fmt: skip
def test_pydantic_models_and_tools(value: dict[str, Any]) -> None:
    order = {"note": "ä", "code": "AB-12", "share": 0.5, "count": 10, "kind": "old"} | value

    def place(order: Order) -> None:
        """Place an order."""

    text = json.dumps(order)
    fits = JSONSchemaVerifier(Order).verify(text).success
    call = f'<tool_call>\n{{"name": "place", "arguments": {{"order": {text}}}}}\n</tool_call>'
    assert json_tag(Order).matches(text) == fits == tools_tag([place]).matches(call)


NUMBER_SCHEMAS = [
    {"type": "integer", "minimum": -20, "maximum": 300},
    {"type": "integer", "exclusiveMinimum": 3},
    {"type": ["integer", "null"], "maximum": 7},
    {"type": "integer"},
    {"type": "number", "minimum": 2, "exclusiveMaximum": 200},
    {"enum": [100, -3, 0, 1.5, [2000], 120]},
    {"const": -300},
    {"enum": [10**20, 1.5e-7]},
    {"const": 1e20},
]


@pytest.mark.parametrize("schema", NUMBER_SCHEMAS)
def test_the_spellings_of_a_number(schema: dict[str, Any]) -> None:
    texts = "0 -0 0.0 7 7.0 1e2 1E+2 2e2 100 100.0 5e0 5e00 -3e0 -3e2 -1e1 [2e3] 120 1.50 1.5 1e-1 0e3 -0E-5 1e20 1.5e-7"
    tag, verifier = json_tag(schema), JSONSchemaVerifier(schema)
    for text in texts.split():
        assert tag.matches(text) == verifier.verify(text).success, text


def test_what_a_whole_number_with_an_exponent_may_be() -> None:
    inside = {"type": "array", "items": {"type": ["integer", "null"]}}
    for schema, form in (({"type": "integer"}, "{}"), (inside, "[{}, null]")):
        tag, verifier = json_tag(schema), JSONSchemaVerifier(schema)
        for number in ("10e1", "-12E+03", "1e2", "1234567890e9", "5e0", "0e3"):
            text = form.format(number)
            assert tag.matches(text) and verifier.verify(text).success, text
        for number in ("01e1", "10e", "1.25e1", "12e-1", "1e400"):
            text = form.format(number)
            assert not tag.matches(text) and not verifier.verify(text).success, text
        for number in ("1.2e2", "1200e-1"):  # these alone are narrower, as the docstring says
            text = form.format(number)
            assert not tag.matches(text) and verifier.verify(text).success, text
    bounded = json_tag({"type": "integer", "minimum": 5})
    assert [bounded.matches(text) for text in ("1e2", "10e1")] == [True, False]


LARGE = 2**53 + 1  # the first whole number that no float holds
EXACT_NUMBERS = [
    ({"const": LARGE}, f"{LARGE}", True),
    ({"const": LARGE - 1}, f"{LARGE - 1}.5", False),
    ({"const": LARGE + 1}, f"{LARGE}.5", False),
    ({"type": "integer"}, f"{LARGE}.5", False),
    ({"type": "integer"}, f"-{LARGE}.0000001", False),
    ({"type": "integer"}, f"{LARGE}.0", True),
    ({"type": "integer"}, "123456789.00000000000000001", False),
    ({"type": "number", "not": {"type": "integer"}}, f"{LARGE}.5", True),
    ({"type": "number", "minimum": LARGE}, f"{LARGE - 1}.9", False),
    ({"type": "number", "exclusiveMinimum": LARGE}, f"{LARGE}.5", True),
    ({"type": "number", "minimum": LARGE}, "9.007199254740993e15", True),
    ({"type": "number", "minimum": LARGE}, "9.0071992547409929e15", False),
    ({"type": "number", "minimum": 0.1}, "0.09999999999999999999999", False),
    ({"type": "number", "maximum": 0.1}, "0.1000000000000000000000001", False),
    ({"const": 0.1}, "0.1000000000000000000000001", False),
    ({"const": 1e23}, f"{10**23}", True),
    ({"type": "array", "items": {"type": "number"}}, f"[{LARGE}.5]", True),
]


@pytest.mark.parametrize(("schema", "text", "fits"), EXACT_NUMBERS)
def test_a_number_is_the_one_that_is_written(schema: Any, text: str, fits: bool) -> None:
    verifier = JSONSchemaVerifier(schema)
    assert verifier.verify(text).success is fits
    assert verifier.to_structural_tag().matches(text) is fits


def test_items_that_only_floats_take_for_the_same() -> None:
    verifier = JSONSchemaVerifier({"uniqueItems": True})
    assert verifier.verify(f"[{LARGE - 1}.5, {LARGE - 1}, 0.1, 0.10000000000000000001]").success
    assert not verifier.verify(f"[{LARGE}.5, {LARGE}.50]").success
