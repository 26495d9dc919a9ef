"""Action parsers on text of every kind: known results, the defining patterns, hostile and malformed input."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers_nb.parsers.action_parsers import ParseFunction, action_parser
from verifiers_nb.parsers.actions import FormatError
from verifiers_nb.parsers.bash_actions import read_blocks
from verifiers_nb.parsers.commands import BASH_COMMAND, Argument, Command, invoke
from verifiers_nb.parsers.fenced_actions import last_block
from verifiers_nb.parsers.function_calls import (
    FunctionCallingFormatError,
    find_call,
    find_parameters,
)
from verifiers_nb.parsers.shell import (
    is_plainly_whole,
    open_part,
    unfinished_part,
)

PARSERS = {parser.type: parser for parser in (kind() for kind in get_args(ParseFunction))}
quick = settings(max_examples=100, deadline=None)


def argument(
    name: str, required: bool = True, form: str = "{{value}}", kind: str = "string"
) -> Argument:
    """Return an argument, by default of text."""
    return Argument(name=name, type=kind, description=name, required=required, argument_format=form)


LIST_FORM = "--view_range {{value|join(' ')}}"
COMMANDS = [
    BASH_COMMAND,
    Command(name="submit", docstring="Hand in."),
    Command(
        name="open",
        docstring="Open a file.",
        signature='open "<path>" [<line_number>]',
        arguments=[argument("path"), argument("line_number", False, kind="integer")],
    ),
    Command(
        name="view",
        docstring="View a file.",
        signature="view <path> [<view_range>]",
        arguments=[argument("path"), argument("view_range", False, LIST_FORM, "array")],
    ),
    Command(
        name="edit",
        docstring="Replace lines.",
        signature="edit <start>:<end>\n<text>\nend_of_edit",
        end_name="end_of_edit",
        arguments=[
            argument("start", kind="integer"),
            argument("end", kind="integer"),
            argument("text"),
        ],
    ),
    Command(
        name="find-file",
        docstring="Find a file.",
        arguments=[argument("file-name"), argument("dir", False, "--dir {{value}}")],
    ),
]


def tags(name: str, *parameters: tuple[str, str], around: tuple[str, str] = ("", "")) -> str:
    """Return a function call in tags."""
    body = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in parameters)
    return f"{around[0]}<function={name}>\n{body}</function>{around[1]}"


def as_json(name: Any, arguments: Any, thought: Any = "t") -> str:
    """Return a response of the JSON form."""
    return json.dumps({"thought": thought, "command": {"name": name, "arguments": arguments}})


# What SWE-agent 1.1 makes of a message: (thought, action), or None for a FormatError. Unlike there, a value must have
# its type, and one with a quotation mark is escaped within quotation marks.
KNOWN: list[tuple[str, str, tuple[Any, str] | None]] = [
    ("action", "submit", ("submit", "submit")),
    ("action", "\topen\n x ", ("\topen\n x ",) * 2),
    ("action", "openx", None),
    ("action", " \n", None),
    ("action_only", " x\n", ("", " x\n")),
    ("identity", "", ("", "")),
    ("thought_action", "a\n```\nls\n```\nb\n", ("a\nb\n", "ls\n")),
    ("thought_action", "```\na\n```\n```\nb\n```", ("```\na\n```\n", "b\n")),
    ("thought_action", "```py\n```sh\na\n```\n```\n", ("", "```sh\na\n```\n")),
    ("thought_action", "```\n```py\na\n```\n", None),
    ("thought_action", "```\n\n \n  a\n```\n \n b", (" b", "  a\n")),
    ("thought_action", "```\na\n```  ", ("", "a\n")),
    ("thought_action", "```\na\n```\n  ", ("  ", "a\n")),
    ("thought_action", "````\na\n````\n```\n", None),
    ("thought_action", "```two words\na\n```\n", None),
    ("thought_action", "x```\na\n```\n", None),
    ("thought_action", "```\na", None),
    ("edit_format", "c\n```\n    x = 1\n```", ("c\n", "    x = 1\n")),
    ("xml_thought_action", " a <command> ls </command> b ", ("a  b", "ls")),
    ("xml_thought_action", "<command>a</command><command>b</command>", ("<command>a</command>", "b")),
    ("xml_thought_action", "<command>a<command>b</command>", ("<command>a", "b")),
    ("xml_thought_action", "</command>a<command>", ("</command>aa<command>", "")),
    ("xml_thought_action", "<command>a", None),
    ("all_bash_code_blocks", "```bash\na\n```b```bash\nc\n```", ("<extracted_code_block>b<extracted_code_block>", "a\nc")),
    ("all_bash_code_blocks", "```bash\n```", None),
    ("all_bash_code_blocks", "```sh\na\n```", None),
    ("single_bash_code_block", "x```bash\n\n```", ("x<extracted_code_block>", "")),
    ("single_bash_code_block", "```bash\na\n```\n```bash\nb\n```", None),
    ("xml_function_calling", tags("execute_bash", ("command", "a\n"), around=(" t", "\n")), ("t", "a")),
    ("xml_function_calling", tags(" finish "), ("", "submit")),
    ("xml_function_calling", tags("open", ("path", "a'b")), ("", "open \"a'b\"")),
    ("xml_function_calling", tags("open", ("path", "a"), ("path", "b")), ("", 'open "b"')),
    ("xml_function_calling", tags("view", ("path", "\na\n\n"), ("view_range", "[1, 9]")), ("", "view a --view_range 1 9")),
    ("xml_function_calling", tags("view", ("path", "\n\na\n\n\n")), ("", "view '\na\n'")),
    ("xml_function_calling", tags("edit", ("start", "1"), ("end", "2"), ("text", "a b"), ("end_of_edit", "")), ("", "edit 1:2\na b\nend_of_edit")),
    ("xml_function_calling", tags("find-file", ("file-name", "a"), ("dir", "")), ("", "find-file a --dir ''")),
    ("xml_function_calling", tags("submit", ("path", "a")), None),
    ("xml_function_calling", tags("view", ("path", "a"), ("view_range", "1, 9")), None),
    ("xml_function_calling", tags("open"), None),
    ("xml_function_calling", "<function=submit></function>", None),
    ("json", as_json("open", {"path": "a b", "line_number": 7}), ("t", "open \"'a b'\" 7")),
    ("json", as_json("find-file", {"file-name": "a", "dir": None}), None),
    ("json", as_json("grep", {"x": "a b", "y": "c"}), ("t", "grep a b c")),
    ("json", as_json("submit", None, thought=None), (None, "submit")),
    ("json", as_json("bash", {"command": " ls | wc ", "more": 1}), ("t", "ls | wc")),
    ("json", '{"thought": "t", "command": {"name": "submit"}, "command": {"name": "bash"}}', None),
    ("json", as_json("edit", {"start": 1, "end": 2, "text": "end_of_edit\nrm a"}), None),
    ("json", '{"thought": "t", "command": "ls"}', None),
    ("json", '["thought", "command"]', None),
    ("json", "{'thought': 't'}", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "expected"), KNOWN)
def test_known_result(kind: str, message: str, expected: tuple[Any, str] | None) -> None:
    if expected is None:
        with pytest.raises(FormatError) as caught:
            PARSERS[kind]({"message": message}, COMMANDS)
        assert type(caught.value) is FormatError
    else:
        assert PARSERS[kind]({"message": message}, COMMANDS) == expected


# Markdown files with code, as models write them: the format takes the first inner fence as the end.
NESTED = [
    "cat > a.md <<'EOF'\n# Use\n{fence}\nmake\n{end}\nEOF",
    "cat <<EOF > a.md\n{fence}\nmake\n{end}\nEOF\nls",
    'cat >a.md <<-"END OF"\n{fence}\nmake\n{end}\n\tEND OF',
    "echo '\n{fence}\nmake\n{end}\n' >> a.md",
    'printf "%s" "\n{fence}\nmake\n{end}\n" | tee a.md',
    'python - <<\'PY\'\nopen(\'a\').write("""\n{fence}\nmake\n{end}\n""")\nPY',
    "git commit -m \"$(cat <<'EOF'\nDocs\n{fence}\nmake\n{end}\nEOF\n)\"",
]


@pytest.mark.parametrize("kind", ["all_bash_code_blocks", "single_bash_code_block"])
@pytest.mark.parametrize("command", NESTED)
@pytest.mark.parametrize("fence", ["```", "```python", "```c++ ", "````", "```sh\r"])
def test_a_command_that_a_fence_cuts_loses_a_rule(kind: str, command: str, fence: str) -> None:
    whole = command.format(fence=fence, end="`" * fence.count("`"))
    text = f"I write.\n```bash\n{whole}\n```\nDone."
    parser = PARSERS[kind]
    (lost,) = [check for check in parser.checks(text, COMMANDS) if check.lost]
    assert lost.name == "whole command" and "fence" in lost.message and lost.span
    assert parser.format_score(text, COMMANDS) == pytest.approx(0.8)
    assert parser({"message": text}, COMMANDS)[1] == whole.partition("\n```")[0]
    assert unfinished_part(whole) == ""
    fenceless = text.replace(whole, command.format(fence="~~~", end="~~~"))
    assert parser.format_score(fenceless, COMMANDS) == 1.0


@pytest.mark.parametrize("command", NESTED)
def test_a_bare_fence_cuts_the_command_of_a_block_without_a_word(command: str) -> None:
    parser = PARSERS["thought_action"]
    for inner in (
        "{fence}\nmake\n{end}",
        "{fence}",
        "{fence}\nmake\n{end}\nOr\n{fence}\nls\n{end}",
    ):
        nested = command.replace("{fence}\nmake\n{end}", inner)
        text = f"I'll write.\n```\n{nested.format(fence='```', end='```')}\n```\nThat's all."
        (lost,) = [check for check in parser.checks(text, COMMANDS) if check.lost]
        assert lost.name == "whole command" and "fence" in lost.message and lost.span
        assert parser.format_score(text, COMMANDS) == pytest.approx(0.8)
        fenceless = f"I'll write.\n```\n{nested.format(fence='~~~', end='~~~')}\n```\nThat's all."
        assert parser.format_score(fenceless, COMMANDS) == 1.0


def test_an_apostrophe_in_the_lines_of_an_edit_is_no_cut() -> None:
    for text in (
        "It's\n```\nit's\n```\n```\nedit 1:1\nit's\nend_of_edit\n```",
        "```\nedit 1:1\nit's\nend_of_edit\n```\nThen it's this.\n```\nedit 2:2\nwe're\nend_of_edit\n```",
        "<think>\n```\necho '\n```\n</think>\n```\necho 'a'\n```",
        "Not\n```\necho '\n```\nbut\n```\necho 'a'\n```",
    ):
        assert PARSERS["thought_action"].format_score(text, COMMANDS) == 1.0, text


SHELL_BITS = [
    *["'", '"', "(", ")", "#", "\\", " ", "\n", "a", ";", "`", "<", ">", "|", "&&", "$(", "$'"],
    *["<<E", "\nE\n", "<<-'E F'", "\tE F\n", "<<<", "it's", "echo ", "`a`", "f()"],
    *["${", "${x:-", "}", "${x}"],
]
SHELL_PARTS = [
    *["if true; then", "elif x; then", "else", "fi", "for f in *; do", "for ((i=0;i<3;i++)); do"],
    *["while read l\ndo", "done < f", "case $x in", "a) echo;;", "if) b;;", "esac", "f() {", "}"],
    *["function f() {", "{", "ls |", "a &&", "echo if {", "x=(a if)", "x=1", "find . -exec a {} +"],
    *["# if a; then", "'if a; then'", 'a "$(if b; then c; fi)"', "[[ a && b ]]", "(ls)", "$(ls)"],
    *["cat <<E\nif a; then\nE", "2>&1", "time ls", "!", "select o in a; do", "until a; do", "\\\n"],
    *[
        "cat <<-E\n\tfi\n\tE",
        "echo done",
        "for i do",
        "for i",
        "in a",
        "do",
        "then",
        "time -p",
        "! if a; then",
    ],
    *[
        "done) b;;",
        "done|x) y;;",
        "(c) d;;",
        "((x++))",
        "[[ a =~ ^(a|b)$ ]]",
        "| sort",
        "> x",
        "a$",
        "esac)",
    ],
    *["${x:-'a b'}", '"${x:-$(date)}"', "$(case x in x) echo;; esac)", "$(a $(b $(c)))", "${x:-"],
    *["(a; (b))", "$(( (1+2)*3 ))", "}"],
]
WAITING = ("delimited by end-of-file", "unexpected EOF while looking for", "unexpected end of file")
SHELL_LISTS = st.tuples(st.sampled_from(["\n", "; ", " "]), st.lists(st.sampled_from(SHELL_PARTS), max_size=5))  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(SHELL_BITS), max_size=9).map("".join)
    | SHELL_LISTS.map(lambda drawn: drawn[0].join(drawn[1]))
)
def test_commands_that_bash_waits_to_go_on(command: str) -> None:
    said = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True).stderr
    if any(reason in said.partition("\n")[0] for reason in WAITING):
        assert unfinished_part(command)
    elif not said:
        assert unfinished_part(command) == ""


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from([*SHELL_BITS, "é", "\\\n"]), max_size=9).map("".join)
    | SHELL_LISTS.map(lambda drawn: drawn[0].join(drawn[1]))
)
def test_the_fast_look_at_commands_accepts_no_open_one(command: str) -> None:
    if is_plainly_whole(command) and (part := open_part(command)):
        said = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True).stderr
        assert not any(reason in said.partition("\n")[0] for reason in WAITING), part


PLAIN_COMMANDS = [
    "ls -la | head -5 && echo it",
    'for f in $(ls *.txt); do\n  wc -l "$f"\ndone',
    "for f in *; do if [ -f $f ]; then cat $f; fi; done",
    "case $x in\n a) b;;\nesac < f",
    "f() {\n  ls $1\n}\nf a  # it's",
    "cat > a.py <<'EOF'\nprint('it')\nEOF\npython a.py",
    "find . -name '*.py' -exec grep -l foo {} \\; > é 2>&1",
    '(cd a && ls) || echo $((i+1)) "$(git log)"',
    "echo done > if && git checkout -b for",
    "cat <<-'EOF' > a\n\tit's\n\tEOF\nls",
    "for a in 1; do for b in 1; do while c; do case $d in 1) if e; then f; fi;; esac; done; done; done",
    "case $1 in\n  -h|--help)\n    usage\n    ;;\n  (*)\n    if a; then b; fi\n    ;;\nesac",
    "for ((i=0; i<3; i++)); do echo $((1<<i)); done",
    "[[ $a =~ ^(x|y)$ ]] && echo $'it\\'s' \"`date`\"",
    "if ! time -p a; then { b; } 2>&1 | c; fi",
    "$(a $(b $(c $(d)))) && (a; (b; (c)))",
    'echo ${x:-\'a b\'} ${x:-$(date)} "${x:-${y:-z}}" ${x:?"no x"}',
    "echo $(case x in x) echo;; esac)",
    "echo $(( (1+2)*3 )) $((y + $(wc -l < f)))",
]


@pytest.mark.parametrize("command", PLAIN_COMMANDS)
def test_the_fast_look_at_commands_accepts_what_is_plain(command: str) -> None:
    assert is_plainly_whole(command)
    assert unfinished_part(command) == ""


ODD_ACTIONS = [
    ("xml_thought_action", "</command>a<command>", 0.5, "comes before"),
    ("xml_thought_action", "<command>a</command>b</command>", 0.5, "reaches to the last one"),
    ("xml_thought_action", "<command>a</command><command>b</command>", 0.8, "only the last is run"),
    ("xml_thought_action", "<think><command>a</command></think><command>b</command>", 1.0, ""),
    ("xml_function_calling", tags("open", ("path", "a"), ("path", "b")), 0.7, "Repeated argument(s)"),
    ("xml_function_calling", tags("open", ("path", "a"), ("line_number", "7")), 1.0, ""),
    ("xml_function_calling", 2 * tags("open", ("path", "a")), 0.9, "is not run"),
    ("xml_function_calling", f"{tags('open', ('path', 'a'))}<think>{tags('submit')}</think>", 1.0, ""),
    ("json", as_json("submit", {"x": 1}), 0.7, "Unexpected argument(s): 'x'"),
    ("json", as_json("submit", None), 1.0, ""),
    ("json", as_json("grep", {"x": "a"}), 1.0, ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "score", "reason"), ODD_ACTIONS)
def test_an_odd_action_is_run_and_costs_points(
    kind: str, text: str, score: float, reason: str
) -> None:
    parser = PARSERS[kind]
    parser({"message": text}, COMMANDS)
    assert parser.format_score(text, COMMANDS) == pytest.approx(score)
    lost = [check.message for check in parser.checks(text, COMMANDS) if check.lost]
    assert reason in lost[0] if reason else lost == []


LS = "```bash\nls\n```\n"
SUBMIT = "<function=submit>\n</function>"
NOTED_ACTIONS = [
    ("all_bash_code_blocks", f"<!--\n{LS}-->\n", "'<!--' is around it"),
    ("all_bash_code_blocks", f"~~~text\n{LS}~~~\n", "'~~~text' is around it"),
    ("all_bash_code_blocks", f"```md\nUse:\n{LS}```\n", "'```md' is around it"),
    ("single_bash_code_block", f"````markdown\n{LS}````\n", "'````markdown' is around it"),
    ("single_bash_code_block", f"```\nout\n```\n<!-- so -->\n{LS}", "as it should be"),
    ("all_bash_code_blocks", f"{LS}```bash \npwd\n```", "is not run"),
    ("thought_action", "```\nls\n```\nor\n```\npwd\n```", "the blocks before it"),
    ("thought_action", "I look.\n```\nls\n```\nor", "as it should be"),
    ("all_bash_code_blocks", f"```ls``` or `<!--`\n{LS}", "as it should be"),
    ("thought_action", "<!--\n```\nls\n```\n-->\nI leave it.", "'<!--' is around it"),
    ("thought_action", "<!-- no\n```\nls\n```", "'<!--' is around it"),
    ("edit_format", "<!-- a --><!--\n```\nls\n```\n-->", "'<!--' is around it"),
    ("edit_format", "~~~\n```\nls\n```\n~~~", "'~~~' is around it"),
    ("thought_action", "<!-- a -->\n```\nls\n```\n<!-- b -->", "as it should be"),
    ("thought_action", "<think><!--</think>\n```\nls\n```\n", "as it should be"),
    ("xml_thought_action", "<!-- <command>ls</command> -->", "'<!--' is around it"),
    ("xml_thought_action", "I'd say:\n```xml\n<command>ls</command>\n```", "'```xml' is around it"),
    ("xml_thought_action", "a --> <command>ls</command> <!-- b", "as it should be"),
    ("xml_function_calling", f"<!-- {SUBMIT} --> I leave it.", "'<!--' is around it"),
    ("xml_function_calling", f"\n\n<!--\n-- {SUBMIT}", "'<!--' is around it"),
    ("xml_function_calling", f"```\n{SUBMIT}\n```", "'```' is around it"),
    ("xml_function_calling", f"<!-- a -->{SUBMIT}<!-- b -->", "as it should be"),
    ("xml_function_calling", f"```html\n<!--\n```\n{SUBMIT}", "as it should be"),
    ("xml_function_calling", f"<think><!--</think>{SUBMIT}-->", "as it should be"),
]


@pytest.mark.parametrize(("kind", "text", "note"), NOTED_ACTIONS)
def test_a_check_says_what_is_run_against_expectation(kind: str, text: str, note: str) -> None:
    for check in PARSERS[kind].checks(text, COMMANDS):
        assert check.score == 1.0 and note in check.message


TOOL_CALLS: list[tuple[str, Any, str]] = [
    ("open", '{"path": "a b"}', "open \"'a b'\""),
    ("open", {"path": "a", "line_number": None}, "incorrect_args"),
    ("open", {"path": "a", "line_number": 7}, 'open "a" 7'),
    ("view", '{"path": "a", "view_range": [1, 9]}', "view a --view_range 1 9"),
    ("find-file", '{"file-name": true, "dir": ""}', "incorrect_args"),
    ("edit", '{"start": 1, "end": 2, "text": "a\\nb", "end_of_edit": 1}', "edit 1:2\na\nb\nend_of_edit"),
    ("submit", "{}", "submit"),
    ("open", {"path": "a", "line_number": 7.0}, 'open "a" 7'),
    ("open", '{"path": "a", "path": "b"}', "invalid_json"),
    ("edit", {"start": 1, "end": 2, "text": "a\nend_of_edit \nrm b"}, "incorrect_args"),
    ("edit", {"start": 1, "end": 2, "text": "a end_of_edit"}, "edit 1:2\na end_of_edit\nend_of_edit"),
    ("open", "{}", "missing_arg"),
    ("open", '{"path": "a", "x": 1}', "unexpected_arg"),
    ("open", "{", "invalid_json"),
    ("execute_bash", '{"command": "ls"}', "invalid_command"),
    ("view", '{"path": "a", "view_range": 1}', "incorrect_args"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "expected"), TOOL_CALLS)
def test_known_tool_call(name: str, arguments: Any, expected: str) -> None:
    response = {
        "message": "m",
        "tool_calls": [{"function": {"name": name, "arguments": arguments}}],
    }
    try:
        assert PARSERS["function_calling"](response, COMMANDS) == ("m", expected)
    except FunctionCallingFormatError as error:
        assert error.extra_info == {"error_code": expected}
        assert str(error).endswith(f"[error_code={expected}]")


def texts(*pieces: str) -> st.SearchStrategy[str]:
    """Return texts made of pieces of a format and of anything else."""
    return st.lists(st.sampled_from(pieces) | st.text(max_size=3), max_size=16).map("".join)


CALL_TEXTS = texts(
    "<function=", "<function=view>\n", "<parameter=path>", "<parameter=", ">", "\n",
    "</parameter>", "</function>", "a",
)  # fmt: skip
FENCE_TEXTS = texts("```", "```\n", "```bash\n", "\n```", "\n", " ", "```a", "ls")
TAG_TEXTS = texts("<command>", "</command>", "<think>", "</think>", "ls")


@quick
@given(CALL_TEXTS)
def test_calls_are_found_as_the_patterns_find_them(text: str) -> None:
    match = re.search(r"<function=([^>]+)>\n(.*?)</function>", text, re.DOTALL)
    call = find_call(text)
    assert (call and (call.span(), call.groups())) == (match and (match.span(), match.groups()))
    found = re.findall(r"<parameter=([^>]+)>(.*?)</parameter>", text, re.DOTALL)
    assert find_parameters(text) == {key: re.sub(r"^\n|\n$", "", value) for key, value in found}


@quick
@given(FENCE_TEXTS)
def test_bash_blocks_are_found_as_their_pattern_finds_them(text: str) -> None:
    pieces = re.split(r"```bash\n(.*?)\n```", text, flags=re.DOTALL)
    if len(pieces) == 1:
        with pytest.raises(FormatError):
            read_blocks(text)
    else:
        count, turn = read_blocks(text)
        assert (count, turn.action) == (len(pieces) // 2, "\n".join(pieces[1::2]))
        assert turn.thought == "<extracted_code_block>".join(pieces[::2])


prose = st.text(alphabet="ab `<\t", max_size=6).filter(lambda line: not line.startswith("```"))
lines = st.lists(prose.map(lambda line: f"x{line}\n"), max_size=3).map("".join)


@quick
@given(st.lists(st.tuples(lines, st.sampled_from(["", "sh", "`"]), lines), min_size=1), lines)
def test_the_last_of_many_blocks(blocks: list[tuple[str, str, str]], rest: str) -> None:
    text = "".join(f"{before}```{name}\n{inside}```\n" for before, name, inside in blocks) + rest
    outer, inner = last_block(text) or ((0, 0), (0, 0))
    assert text[slice(*inner)] == blocks[-1][2]
    assert text[outer[1] :] == rest


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from([command.name for command in COMMANDS]) | json_values
argument_names = st.sampled_from(["path", "view_range", "start", "command", "x"]) | st.text(
    max_size=2
)
arguments = st.dictionaries(argument_names, json_values, max_size=3)
functions = st.fixed_dictionaries(
    {}, optional={"name": names, "arguments": arguments | arguments.map(json.dumps) | json_values}
)
tool_calls = st.lists(
    st.fixed_dictionaries({}, optional={"function": functions}) | json_values, max_size=2
)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}) | json_values)
messages = (
    CALL_TEXTS | FENCE_TEXTS | TAG_TEXTS | parts | json_values | st.binary(max_size=3)
    | st.builds(as_json, names, arguments | json_values, json_values)
    | st.fixed_dictionaries({}, optional={"thought": json_values, "command": functions}).map(json.dumps)
)  # fmt: skip
responses = (
    st.fixed_dictionaries(
        {}, optional={"message": messages, "tool_calls": tool_calls | json_values}
    )
    | json_values
)


@settings(max_examples=200, deadline=None)
@given(responses, st.booleans())
def test_any_response_is_a_turn_or_a_format_error(response: Any, strict: bool) -> None:
    for kind, parser in PARSERS.items():
        try:
            _, action = parser(response, COMMANDS, strict)
            assert isinstance(action, str)
            read = True
        except FormatError as error:
            read = False
            assert type(error) is FormatError or kind == "function_calling"
            assert error.message and parser.render_error(error, COMMANDS)
            assert len(str(error)) < 2000
        if not strict and not isinstance(response, str):
            checks = parser.checks(response, COMMANDS)
            lost = [check.name for check in checks if check.lost]
            costly = ("whole command", "arguments", "closing tag", "only one")
            assert not lost or lost[0] in costly if read else lost
            assert math.isclose(sum(check.weight for check in checks), 1)


@quick
@given(st.text())
def test_a_text_value_stays_one_word(value: str) -> None:
    line = invoke(COMMANDS[5], {"file-name": value, "dir": value})
    # shlex takes NUL for the end of its input.
    if "\x00" not in value:
        assert shlex.split(line) == ["find-file", value, "--dir", value]


@pytest.mark.parametrize("kind", PARSERS)
def test_round_trip(kind: str) -> None:
    parser = PARSERS[kind]
    assert action_parser(parser.model_dump()) == parser
    assert type(parser).model_validate_json(parser.model_dump_json()) == parser


UNITS = [
    "```", "```\n", "```a\n", "```bash\n", "\n```", "```a \t", "``` \n ", "<command>", "</command>",
    "<function=", "<function=a>", "<function=a>\n", "<function=>", "<parameter=a>", "<parameter=",
    "</function>", "[", '{"a":', '{"a":0,', "\\", "\n", " ", "'", "\x00", "\ud800",
]  # fmt: skip


def seconds(job: Callable[[], Any], runs: int) -> float:
    """Return the least processor time of some runs, at least 2 ms."""
    spent = []
    for _ in range(runs):
        began = time.thread_time()
        job()
        spent.append(time.thread_time() - began)
    return max(min(spent), 0.002)


def hostile(unit: str, length: int) -> list[dict[str, Any]]:
    """Return responses of about `length` characters that repeat a unit, in text and in calls."""
    many = unit * (length // len(unit))
    inside = tags("find-file", ("file-name", many))
    prefixes = ("", "```\n", "```bash\n", "<command>", "<function=bash>\n", '{"thought": "')
    call = {"function": {"name": "find-file", "arguments": many}}
    quoted = {"function": {"name": "find-file", "arguments": {"file-name": many}}}
    said = [{"message": prefix + many} for prefix in prefixes] + [{"message": inside}]
    return said + [{"message": many, "tool_calls": [made]} for made in (call, quoted)]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str) -> None:
    """Eight times the text takes about eight times as long: an exponent of 1, with room for noise."""

    def run(length: int) -> Callable[[], Any]:
        made = hostile(unit, length)
        return lambda: [p.checks(r, COMMANDS) for p in PARSERS.values() for r in made]

    def exponent(runs: int) -> float:
        return math.log(seconds(run(80_000), runs) / seconds(run(10_000), runs), 8)

    assert exponent(1) < 1.5 or exponent(3) < 1.5


@pytest.mark.parametrize("kind", PARSERS)
def test_ten_megabytes(kind: str) -> None:
    for text in ("a" * 10_000_000, "```bash\n" + "ls\n" * 3_333_333, "[" * 10_000_000):
        checks = PARSERS[kind].checks(
            {"message": text, "tool_calls": [{"function": {"name": text}}]}
        )
        assert sum(len(check.message) for check in checks) < 2000
