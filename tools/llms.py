"""Write llms.txt, the library for an assistant that reads one file; with --check, only say whether it is up to date."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from names import is_ours, public_bases, settings, spelled
from rooms import (
    CORE,
    CORE_PURPOSE,
    CORE_TITLE,
    ROOMS,
    ROOT,
    Notebook,
    read_core,
    read_rooms,
    repository,
)

import verifiers_nb as vf
from verifiers_nb.cli.command import command_summaries, help_parts

GUIDE = ROOT / "docs/llms.md"
TARGET = ROOT / "llms.txt"
LONG = 60  # characters of a default


class Source:
    """Show an annotation or a default as its source."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def shown(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter that is written as its source has it."""
    note, default = parameter.annotation, parameter.default
    if isinstance(note, str):
        note = Source(note)
    if callable(default) and default is not parameter.empty:
        default = Source(getattr(default, "__name__", type(default).__name__))
    elif default is not parameter.empty and len(repr(default)) > LONG:
        default = Source("...")
    return parameter.replace(annotation=note, default=default)


def signature(func: Callable[..., Any], bound: bool = False) -> str:
    """Return a signature as its source has it; `bound` leaves out the first parameter."""
    found = inspect.signature(func)
    returned = found.return_annotation
    written = found.replace(
        parameters=[shown(each) for each in found.parameters.values()][bound:],
        return_annotation=Source(returned) if isinstance(returned, str) else returned,
    )
    return re.sub(r"\b(typing|xgrammar|verifiers_nb)\.([a-z_]+\.)*", "", str(written))


def call(name: str, func: Callable[..., Any], bound: bool = False) -> str:
    """Return the line about a function: how it is called, and the first line of its docstring."""
    wait = "await " if inspect.iscoroutinefunction(func) else ""
    first = (func.__doc__ or "").strip().partition("\n")[0]
    return f"- `{wait}{name}{signature(func, bound)}`: {first}"


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Give the public methods of a class that no entry of a base has."""
    found: dict[str, Any] = {}
    for base in filter(is_ours, kind.__mro__):
        found = {**vars(base), **found}
    for name, value in found.items():
        inherited = any(getattr(base, name, None) is value for base in public_bases(kind))
        if (
            not name.startswith("_")
            and inspect.isfunction(value)
            and value.__doc__
            and not inherited
        ):
            yield name, value


def entry(name: str) -> list[str]:
    """Return the lines about a public name, none about one that is another library's."""
    value = getattr(vf, name)
    if not is_ours(value) or not callable(value):
        return []
    if not isinstance(value, type):
        return [call(spelled(name), value)]
    first = (value.__doc__ or "").strip().partition("\n")[0]
    if said := settings(value):
        lines = [f"  - `{setting}`: {purpose}" for setting, purpose in said]
        return [f"- `class {spelled(name)}(**settings)`: {first}", *lines]
    form = signature(value).partition(" -> ")[0]
    if bases := public_bases(value):
        first = f"{first} Extends `{spelled(bases[0].__name__)}`."
    lines = [f"  {call('.' + method, func, bound=True)}" for method, func in methods(value)]
    return [f"- `class {spelled(name)}{form}`: {first}", *lines]


def names_of(notebook: Notebook) -> list[str]:
    """Return the lines about the public names of a notebook's module."""
    names = vf._EXPORTS.get(notebook.module, "").split()
    lines = [line for name in names for line in entry(name)]
    return [f"\n### {notebook.module}: {notebook.summary}\n", *lines] if lines else []


def list_commands() -> Iterator[str]:
    """Give a line for each command: its first usage, and the first sentence of its help."""
    for name, about in command_summaries().items():
        usage = help_parts(name)[0].strip().partition("\n")[0]
        yield f"- `{usage}`: {about}"


def list_notebooks(title: str, notebooks: Iterable[Notebook]) -> list[str]:
    """Return a heading with a line per notebook, nothing where there is none."""
    lines = [
        f"- [{each.title}]({repository(f'nbs/{each.path.as_posix()}')}): {each.summary}"
        for each in notebooks
    ]
    return [f"\n### {title}\n", *lines] if lines else []


def main() -> None:
    """Write the file, or with --check end with status 1 when it is not what would be written."""
    rooms = read_rooms(ROOT / "nbs")
    parts = [GUIDE.read_text(encoding="utf-8").rstrip(), "\n## Public names"]
    parts += [line for notebooks in rooms.values() for each in notebooks for line in names_of(each)]
    parts += ["\n## Commands\n", *list_commands(), "\n## Notebooks"]
    parts += list_notebooks(f"{CORE_TITLE}. {CORE_PURPOSE}", read_core(rooms))
    for room, notebooks in rooms.items():
        companions = [each for each in notebooks if each.module not in CORE]
        parts += list_notebooks(ROOMS[room][0], companions)
    text = "\n".join(parts) + "\n"
    if "--check" not in sys.argv:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        sys.exit("llms.txt is not what docs/llms.md and the notebooks give: run make export")


if __name__ == "__main__":
    main()
