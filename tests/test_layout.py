"""The layout of the house: order of the notebooks, sizes of cells and functions, one meaning for each name."""

from __future__ import annotations

import ast
import gc
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import forked
import pytest
from nbformat import NotebookNode
from rooms import CORE, ROOT, Notebook, read_cells, read_core, read_rooms

import verifiers_nb as vf

NBS, PACKAGE = ROOT / "nbs", ROOT / "verifiers_nb"
PAGES = ("tutorials", "benchmarks")  # notebooks to read, which export nothing
MAY_REPEAT = {"load_environment", "main", "logger", "__all__", "__getattr__", "__dir__"}
# Companions that the core imports.
MAY_STAND_BELOW = {
    "parsers.structural_tags",
    "rubrics.same_function",
    "inference.http",
    "inference.models",
    "envs.records",
    "envs.results",
    "envs.store",
    "envs.tables",
}
# How many classes of ours a class has in its line, itself among them.
LONGEST_LINE = {
    "SingleTurnEnv": 3,
    "Rubric": 1,
    "RubricGroup": 2,
    "XMLParser": 2,
    "GRPOTrainer": 2,
    "GRPOConfig": 1,
}
# What imports a module that its user names, and so no module above it in particular.
BY_NAME = {
    "cli.browser": "the environment of a run",
    "cli.command": "the command",
    "environments.load": "an environment",
    "envs.verifiers": "any public name, as an alias of the package",
    "verifiers.base": "a verifier of the registry",
}
TRUTHS = ("bool", "any", "all", "isinstance", "hasattr")
TEST = re.compile(r"\btest_(eq|fail|close|ne|is|shuffled|stdout|warns)\b|\bassert\b")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@pytest.fixture(autouse=True, scope="module")
def no_search_for_garbage() -> Iterator[None]:
    """All code is kept as syntax here: to search that for garbage takes longer than to read it."""
    gc.disable()
    yield
    gc.enable()


@cache
def rooms() -> dict[str, list[Notebook]]:
    """Return the notebooks of each room."""
    return read_rooms(NBS)


@cache
def exporting() -> dict[str, Notebook]:
    """Return the notebooks that export a module, by module, in the order of reading."""
    found = [each for notebooks in rooms().values() for each in notebooks if each.module]
    return {each.module: each for each in found}


@cache
def tree(module: str) -> ast.Module:
    """Return the syntax of a module, which "parsers.xml" or the like names."""
    return ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


def imports(module: str) -> Iterator[str]:
    """Give what a module imports from us: a module, or "" for the package itself."""
    package = ["verifiers_nb", *module.split(".")[:-1]]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            named = [each.name.split(".") for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = [*base, *(node.module.split(".") if node.module else [])]
            named = [[*source, each.name] for each in node.names]
        elif isinstance(node, ast.Call) and (place := place_in(node)):
            named = [place.replace(":", ".").split(".")]
        else:
            continue
        for parts in named:
            if parts[0] == "verifiers_nb" and parts[1:] != ["__version__"]:
                yield known_module(parts[1:])


def place_in(call: ast.Call) -> str:
    """Return the place of ours that a call imports by a text, such as `import_module("verifiers_nb.types")`.

    What a user names is put into the text: then the place ends before it.
    """
    func = call.func
    name = getattr(func, "attr", getattr(func, "id", ""))
    if name not in ("import_module", "resolve_name", "__import__") or not call.args:
        return ""
    text = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
    place = str(text.value) if isinstance(text, ast.Constant) else ""
    return place.rstrip(".") if place.startswith("verifiers_nb") else ""


def known_module(parts: list[str]) -> str:
    """Return the module that a dotted name begins with, "" for none."""
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in exporting()), "")


@cache
def graph() -> dict[str, set[str]]:
    """Return what each module imports; the table of names, which imports by name, is left out."""
    return {each: {*imports(each)} - {each} for each in exporting() if each != "__init__"}


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Give the statements of a module, those under `if` and `try` among them."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try):
                yield from top_level(getattr(node, part, []))


def defined(module: str) -> Iterator[str]:
    """Give the functions, classes and constants that a module defines."""
    for node in top_level(tree(module).body):
        if isinstance(node, Definition):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not is_type_variable(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def is_type_variable(value: ast.expr | None) -> bool:
    """Say whether a value is a new type variable."""
    made = value.func if isinstance(value, ast.Call) else None
    return isinstance(made, ast.Name) and made.id in ("TypeVar", "ParamSpec", "TypeVarTuple")


cells = cache(read_cells)


@cache
def code_cells(path: Path) -> list[NotebookNode]:
    """Return the code cells of a notebook, without the one that names its module."""
    return [c for c in cells(path) if c.cell_type == "code" and "default_exp" not in c.source]


@cache
def exported_cells() -> list[tuple[Notebook, str]]:
    """Return the cells that notebooks export."""
    return [
        (each, cell.source)
        for each in exporting().values()
        for cell in code_cells(NBS / each.path)
        if re.search(r"^#\| *export\b", cell.source, flags=re.M)
    ]


@cache
def source_cells() -> list[tuple[Notebook, str, list[tuple[str, int]]]]:
    """Return the exported cells that define something, with how many lines their definitions have."""
    made = []
    for each, source in exported_cells():
        nodes = [node for node in ast.parse(source).body if isinstance(node, Definition)]
        if nodes:
            made.append((each, source, [(node.name, lines_of(node)) for node in nodes]))
    return made


def lines_of(node: Definition) -> int:
    """Return how many lines a definition has."""
    return (node.end_lineno or 0) - node.lineno + 1


def our_line(kind: type) -> list[str]:
    """Return the classes of ours that a class consists of, itself first."""
    return [each.__name__ for each in kind.__mro__ if each.__module__.startswith("verifiers_nb.")]


def test_notebooks_are_numbered_by_two_digits_once() -> None:
    for room, notebooks in rooms().items():
        exported = [each.path.stem for each in notebooks if each.module]
        numbered = [name for name in exported if re.match(r"\d\d_[a-z]", name)]
        # An environment has the name that loads it.
        assert room == "environments" or numbered == exported, room
        assert max(Counter(name[:2] for name in numbered).values(), default=1) == 1, room


def test_what_is_left_to_the_week_exists() -> None:
    """A test that was renamed would come back into the daily run unseen."""
    text = (ROOT / "tests/conftest.py").read_text(encoding="utf-8")
    weekly = re.findall(r'^    "(tests/[^":]+)(?:::(\w+))?",$', text, flags=re.M)
    assert len(weekly) > 20
    for path, name in weekly:
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), name


def test_contributing_lists_the_rooms_in_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(?:(00_types)`, `01_init|(\w+)/)` \|", text, flags=re.M)
    assert [room or "foundations" for _, room in listed] == [*rooms()]


def test_contributing_lists_the_core_in_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\d+\. \[[^\]]+\]\(nbs/(\S+\.ipynb)\)$", text, flags=re.M)
    core = read_core(rooms())
    assert [each.module for each in core] == [*CORE]
    assert listed == [each.path.as_posix() for each in core]


def test_the_core_stands_on_few_companions() -> None:
    """Beside the ground floor: the tags of a parser, models by name, the file that keeps rollouts, and a server's door."""
    below = {other for module in CORE for other in graph()[module]} - {*CORE, ""}
    companions = {module for module in below if not module.startswith("support.")}
    assert companions <= MAY_STAND_BELOW, companions - MAY_STAND_BELOW


def test_a_module_has_the_name_of_its_notebook() -> None:
    for module, each in exporting().items():
        if module == "__init__":
            continue
        name = re.sub(r"^\d\d_", "", each.path.stem)
        assert module == ".".join([*each.path.parts[:-1], name]), each.path


def test_every_module_has_its_notebook() -> None:
    """A package's own `__init__` is empty and `_modidx` is nbdev's; all else comes from notebooks."""
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        empty = path.name == "__init__.py" and not ast.parse(path.read_text()).body
        assert module in exporting() or empty or path.name == "_modidx.py", module


def test_a_notebook_opens_with_title_summary_and_reason() -> None:
    for each in exporting().values():
        opening = cells(NBS / each.path)[0].source
        assert re.match(r"# \S[^\n]*\n\n> \S[^\n]*\n\n\S", opening), each.path


def test_an_import_leads_to_a_notebook_above() -> None:
    """At the top of a module, inside functions and for types alike."""
    above = {module: place for place, module in enumerate(exporting())}
    upward = {
        f"{module} imports {other}"
        for module, others in graph().items()
        for other in others
        if other and above[other] > above[module]
    }
    assert not upward, "\n".join(sorted(upward))


def test_names_come_from_their_modules() -> None:
    """Exported code imports from modules, never from the table of names."""
    found = {module for module, others in graph().items() if others & {"", "__init__"}}
    assert found == {*BY_NAME}, found ^ {*BY_NAME}


def test_imports_make_no_circle() -> None:
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("name", LONGEST_LINE)
def test_a_class_is_whole(name: str) -> None:
    line = our_line(getattr(vf, name))
    assert len(line) <= LONGEST_LINE[name], line


def test_a_cell_has_one_definition() -> None:
    """A helper of at most four lines, its docstring among them, may share the cell of its user."""
    for each, source, found in source_cells():
        long = [name for name, lines in found if lines > 4]
        assert len(long) <= 1, (each.path, long, source)


def test_cells_are_short() -> None:
    lengths = [
        sum(bool(line.strip()) and not line.startswith("#|") for line in source.splitlines())
        for _, source, _ in source_cells()
    ]
    assert statistics.median(lengths) <= 12


def test_four_cells_in_ten_are_tests() -> None:
    paths = [each.path for room in rooms().values() for each in room]
    kept = [path for path in paths if path.parts[0] not in PAGES]
    sources = [cell.source for path in kept for cell in code_cells(NBS / path)]
    assert sum(bool(TEST.search(source)) for source in sources) / len(sources) >= 0.4


def test_exported_lines_have_at_most_100_columns() -> None:
    long = [
        f"{each.path}: {line.strip()}"
        for each, source in exported_cells()
        for line in source.splitlines()
        if len(line) > 100
    ]
    assert not long, "\n".join(long)


def splits_words(node: ast.AST) -> bool:
    """Say whether an expression splits a list from a text."""
    func = node.func if isinstance(node, ast.Call) else None
    text = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Constant)
    return text and func.attr == "split" and not node.args


def repeats_by_truth(node: ast.AST) -> bool:
    """Say whether an expression repeats a text or a list by a truth value."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    for repeated, times in ((node.left, node.right), (node.right, node.left)):
        plain = isinstance(repeated, ast.Constant) and isinstance(repeated.value, str)
        decides = isinstance(times, ast.Call) and getattr(times.func, "id", "") in TRUTHS
        if (plain or isinstance(repeated, ast.JoinedStr | ast.List)) and (
            decides or isinstance(times, ast.Compare | ast.BoolOp)
        ):
            return True
    return False


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("'x' * bool(y)", True),
        ("[f'{x}'] * (y > 0)", True),
        ("any(y) * ['x']", True),
        ("'a b'.split()", True),
        ("'x' * y", False),
        ("[0] * len(y)", False),
        ("'a,b'.split(',')", False),
        ("y * (x > 0)", False),
    ],
)
def test_golf_is_found(code: str, found: bool) -> None:
    node = ast.parse(code, mode="eval").body
    assert (repeats_by_truth(node) or splits_words(node)) == found


def test_no_exported_line_splits_a_list_from_a_text() -> None:
    """In tests a text may be the shorter form of a long list of words."""
    found = [
        f"{module}:{node.lineno}: {ast.unparse(node)[:80]}"
        for module in exporting()
        for node in ast.walk(tree(module))
        if splits_words(node)
    ]
    assert not found, "\n".join(found)


def written_code() -> Iterator[tuple[str, str]]:
    """Give all code that a person writes: cells, tests and tools, with their places."""
    for room in rooms().values():
        for each in room:
            for cell in code_cells(NBS / each.path):
                if not re.search(r"^\s*[%!]", cell.source, flags=re.M):
                    yield f"{each.path}, cell {cell.id}", cell.source
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").glob("*.py")]:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_nothing_is_repeated_by_a_truth_value() -> None:
    product = re.compile(
        r"""["'\]] \* |\* f?["'\[]"""
    )  # reading the syntax of all code takes seconds
    found = [
        f"{place}: {ast.unparse(node)[:80]}"
        for place, code in written_code()
        if product.search(code)
        for node in ast.walk(ast.parse(code))
        if repeats_by_truth(node)
    ]
    assert not found, "\n".join(found)


def test_no_function_is_longer_than_40_lines() -> None:
    lengths = {
        f"{module}.{node.name}": lines_of(node)
        for module in exporting()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    long = {name: lines for name, lines in lengths.items() if lines > 40}
    assert not long, long


def test_one_name_has_one_meaning() -> None:
    """No function, class or constant is defined in two modules."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in exporting():
        for name in {*defined(module)} - MAY_REPEAT:
            places[name].add(module)
    twice = {name: sorted(where) for name, where in sorted(places.items()) if len(where) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(where)}" for name, where in twice.items())


def test_the_walk_of_a_training_step_is_short() -> None:
    """From a rollout to the importance weights: at most 70 functions in 16 modules.

    The bound keeps the step readable, so it counts what a reader of the core opens. `support` is not counted: else one would write
    a product of matrices a second time to save a call of it.
    """
    walk = [sys.executable, str(ROOT / "tools/walk.py"), "--check"]
    done = forked.run(walk)
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-1000:]
