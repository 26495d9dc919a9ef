"""What can be said of a public name without its notebook."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import verifiers_nb as vf


def is_ours(value: Any) -> bool:
    """Say whether the library defines something."""
    return str(getattr(value, "__module__", "")).startswith("verifiers_nb")


def spelled(name: str) -> str:
    """Return how a public name is written: `vf.Rubric`, or in a namespace `vf.formats.TagFormat`."""
    spaces = [space for space, names in vf._NAMESPACES.items() if name in names.split()]
    return f"vf.{name}" if name in dir(vf) or not spaces else f"vf.{spaces[0]}.{name}"


def public_bases(kind: type) -> list[type]:
    """Return the classes that a class extends and that are public names themselves."""
    return [base for base in kind.__mro__[1:] if is_ours(base) and base.__name__ in vf._HOME]


def settings(kind: type) -> list[tuple[str, str]]:
    """Return the fields of a class of settings that say what they are for, as (name = default, what for)."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    ours = {
        name for base in filter(is_ours, kind.__mro__) for name in inspect.get_annotations(base)
    }
    return [
        (f"{field.name} = {field.default!r}", field.metadata["help"])
        for field in fields
        if field.name in ours and "help" in field.metadata
    ]
