"""A sixth check of `XMLParser` is one function and one row: in a subclass, and in a copy of the library."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import verifiers_nb as vf
from verifiers_nb.bridges.later_parsers import LaterXMLParser
from verifiers_nb.parsers import xml
from verifiers_nb.parsers.xml import FieldSpans, OneAnswerParser, Rule, Verdict, XMLParser
from verifiers_nb.widgets.inspection import inspect_text, survey_completions

GOOD = "<think>7 + 68</think><answer>75</answer>"
LONG = GOOD.replace("68", "68" * 30)


def judge_length(text: str, spans: FieldSpans) -> Verdict:
    """Judge whether a text is short."""
    past = (min(50, len(text)), len(text))
    return (1.0 if len(text) <= 50 else 0.0), (past, f"{len(text)} characters")


@pytest.mark.parametrize("base", [XMLParser, OneAnswerParser, LaterXMLParser])
def test_a_subclass_adds_a_row(base: type[XMLParser]) -> None:
    class Short(base):  # type: ignore[misc,valid-type]
        def make_rules(self) -> list[Rule]:
            return [*super().make_rules(), Rule("brevity", 0.5, judge_length)]

    parser = Short(["think", "answer"])
    reward = parser.get_format_reward_func()
    assert (reward(GOOD), reward(LONG)) == (1.5, 1.0)
    assert [check.name for check in parser.checks(LONG) if check.lost] == ["brevity"]
    line = f"0.00 of 0.50  brevity             {len(LONG)} characters"
    assert line in str(parser.explain(LONG))
    seen = inspect_text(parser, LONG, quick=True)
    assert (seen.score, seen.most, seen.checks[-1].span) == (1.0, 1.5, (50, len(LONG)))
    survey = survey_completions(parser, [GOOD, LONG])
    survey.read()
    assert survey.losers("brevity") == [1] and survey.weights["brevity"] == 0.5


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (Rule("brevity", None, judge_length), "its weight is None"),  # type: ignore[arg-type]
        (Rule("brevity", 0.5, None), "can't judge an empty text"),  # type: ignore[arg-type]
        (Rule("brevity", 0.5, lambda text: 1.0), "takes a text and spans"),  # type: ignore[arg-type,misc]
        (Rule("spacing", 0.5, judge_length), "another rule has that name"),
        (("brevity", 0.5, judge_length), "must return a list of Rules"),
    ],
)
def test_a_faulty_row_is_refused_when_the_parser_is_made(row: Rule, sentence: str) -> None:
    class Short(XMLParser):
        def make_rules(self) -> list[Rule]:
            return [*super().make_rules(), row]

    with pytest.raises(ValueError, match=sentence):
        Short(["think", "answer"])


DEFINITION = '''
def judge_sixth(text: str, spans: FieldSpans) -> Verdict:
    """Judge whether a text is short."""
    return float(len(text) <= 50), (None, "the sixth check")
'''
ROW = '        Rule("sixth", 0.5, judge_sixth),\n'
LAST_ROW = '        Rule("end", 0.2, bind(judge_end, end_note, closings)),\n'
PROGRAM = f"""
import verifiers_nb as vf
from verifiers_nb.bridges.later_parsers import LaterXMLParser
from verifiers_nb.widgets.inspection import inspect_text
for kind in (vf.XMLParser, vf.OneAnswerParser, LaterXMLParser):
    parser = kind(["think", "answer"])
    assert parser.get_format_reward_func()({GOOD!r}) == 1.5
    assert parser.get_format_reward_func()({LONG!r}) == 1.0
    assert "the sixth check" in str(parser.explain({LONG!r}))
    assert "sixth" in [check.name for check in inspect_text(parser, {LONG!r}, quick=True).checks]
"""


def test_a_copy_of_the_library_adds_a_row(tmp_path: Path) -> None:
    shutil.copytree(Path(vf.__file__).parent, tmp_path / "verifiers_nb")
    module = tmp_path / "verifiers_nb" / "parsers" / "xml.py"
    source = module.read_text()
    assert source.count(LAST_ROW) == 1
    before, table = source.split("def xml_rules(")
    table = table.replace(LAST_ROW, LAST_ROW + ROW)
    module.write_text(f"{before}{DEFINITION}\n\ndef xml_rules({table}")
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_no_judge_of_the_module_lacks_a_row() -> None:
    source = Path(xml.__file__).read_text()
    for judge in re.findall(r"^def (judge_\w+)", source, re.MULTILINE):
        assert re.search(rf"(Rule\(|bind\().*\b{judge}\b", source), f"{judge} has no row"
