"""A fuzzer that is guided by coverage looks for a text that a verifier or a parser can't take.

    python tests/fuzz_formats.py verifiers FOLDER -runs=100000 -seed=1

The second word may be `parsers` too, the folder is for its corpus, and what follows goes to libFuzzer. A text that breaks
a promise ends it with a traceback; the text is left in the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

import atheris

with atheris.instrument_imports(include=["verifiers_nb"]):
    from verifiers_nb.parsers.action_parsers import ParseFunction
    from verifiers_nb.parsers.actions import FormatError
    from verifiers_nb.parsers.commands import BASH_COMMAND, Argument, Command
    from verifiers_nb.parsers.think import ThinkParser
    from verifiers_nb.parsers.xml import XMLParser
    from verifiers_nb.verifiers.base import ChainedVerifier, Verifier
    from verifiers_nb.verifiers.json import JSONSchemaVerifier, JSONStructureVerifier
    from verifiers_nb.verifiers.regex_and_bleu import (
        BLEUVerifier,
        RegexFormatVerifier,
        StructuralTagVerifier,
        XMLFormatVerifier,
    )

TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": r"^\w+$", "maxLength": 20},
        "share": {"type": "number", "minimum": 0, "multipleOf": 0.1},
        "children": {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True},
        "either": {"oneOf": [{"type": "string"}, {"type": "null"}, {"$ref": "#"}]},
    },
    "patternProperties": {"^x-": {"enum": [1, "a", None]}},
    "additionalProperties": False,
    "required": ["name"],
}
PATH, LINES = (
    Argument(name="path", type="string", description="a file", required=True),
    Argument(
        name="view_range",
        type="array",
        description="two lines",
        required=False,
        argument_format="--lines {{value|join(' ')}}",
    ),
)
VIEW = Command(
    name="view", docstring="", signature="view <path> [<view_range>]", arguments=[PATH, LINES]
)
COMMANDS = [BASH_COMMAND, VIEW, Command(name="submit", docstring="")]
FIELDS = XMLParser(["think", ("code", "answer")])
FORMATS = [FIELDS, ThinkParser()]
ACTIONS = [kind() for kind in get_args(ParseFunction)]
VERIFIERS: list[Verifier] = [
    JSONStructureVerifier(),
    JSONSchemaVerifier(TREE),
    JSONSchemaVerifier(TREE, partial_credit=False),
    RegexFormatVerifier(r"(?s)\bFinal answer:\s*(\d+)\b"),
    RegexFormatVerifier(r"\w+(?: \w+)*", full_match=True, partial_credit=True),
    XMLFormatVerifier(["think", ("answer", "code")]),
    BLEUVerifier(["The cat sat on the mat.", "A cat was on the mat."]),
    StructuralTagVerifier(FIELDS),
    StructuralTagVerifier({"type": "json_schema", "json_schema": {"type": "object"}}),
    ChainedVerifier(["json_structure", XMLFormatVerifier(["a"])], [2, 1], False),
]
SEEDS = [
    json.dumps({"name": "a", "share": 0.5, "children": [{"name": "b"}], "x-a": None}),
    '```json\n{"name": "\\ud800", "either": {"name": "c"}}\n```',
    "<think>7 + 68</think><answer>75</answer>",
    "Final answer: 42, the cat was on the mat.",
    "Look.\n```bash\nls -l\n```\nthen\n```python\nprint()\n```\n",
    "Look. <command>ls</command>",
    "Look.\n<function=view>\n<parameter=path>a b</parameter>\n<parameter=view_range>[1, 9]</parameter>\n</function>",
    '{"thought": "Look.", "command": {"name": "view", "arguments": {"path": "a", "view_range": [1, 9]}}}',
    '{"path": "a", "view_range": null}',
    "view a\x00\ud800\ufeff",
]
WORDS = """
    <think> </think> <answer> </answer> <code> ``` ```json ```bash\\x0a <command> </command> <function=view>\\x0a
    </function> <parameter=path> <parameter=view_range> </parameter> \\"name\\": \\"thought\\": \\"command\\": \\"path\\": 1e999
"""


def check_verifiers(text: str) -> None:
    """Every verifier gives a verdict of its own, and not the one for what went wrong in it."""
    for verifier in VERIFIERS:
        result = verifier.verify(text)
        assert result.checks and result.checks[0].name != "verifier", (verifier.name, result.error)
        assert 0.0 <= result.reward <= 1.0 and (result.error is None) == result.success
        result.details.encode()
        spans = [check.span for check in result.checks if check.span]
        assert all(0 <= start <= end <= len(text) for start, end in spans), (verifier.name, spans)


def read(job: Any) -> Any:
    """Return what a job gives, or the error that it may end with."""
    try:
        return job()
    except FormatError as error:
        return type(error), error.message


def check_parsers(text: str) -> None:
    """Every parser returns fields or a turn, or raises a `FormatError`, as its checks say."""
    for form in FORMATS:
        form.parse(text)
        assert 0.0 <= form.format_score(text) <= 1.0 + 1e-9
        str(form.explain(text)).encode()
    FIELDS.parse(text, last=True)
    FIELDS.parse_answer([{"role": "assistant", "content": text}])
    for parser in ACTIONS:
        made = [{"function": {"name": "view", "arguments": text}}]
        response = {"message": text, "tool_calls": made}
        outcome = read(lambda: parser(response, COMMANDS))  # noqa: B023
        # A command that is cut, or an action with a fault, is still returned, with a lower score.
        checks = [c for c in parser.checks(response, COMMANDS) if c.name != "whole command"]
        full = all(check.lost == 0 for check in checks)
        if isinstance(outcome[0], type):
            assert not full, parser.type
        else:
            assert full or parser.read(response, COMMANDS).fault is not None, parser.type


def main() -> None:
    """Write the corpus and the dictionary, and hand over to libFuzzer, which ends the process."""
    kind, folder, *options = sys.argv[1:]
    check = {"verifiers": check_verifiers, "parsers": check_parsers}[kind]
    corpus = Path(folder) / "corpus"
    corpus.mkdir(parents=True)
    for i, seed in enumerate(SEEDS):
        (corpus / str(i)).write_bytes(seed.encode("utf-8", "surrogatepass"))
    words = Path(folder) / "words"
    words.write_text("".join(f'"{word}"\n' for word in WORDS.split()))

    def test_one(data: bytes) -> None:
        # Bytes that are no UTF-8 become lone surrogates.
        check(data.decode("utf-8", "surrogateescape"))

    files = [f"-dict={words}", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], str(corpus), *files, "-max_len=150", *options], test_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
