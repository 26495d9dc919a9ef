"""Notebooks that run with other values."""

from __future__ import annotations

from typing import Any

import nbformat


def set_parameters(nb: nbformat.NotebookNode, **values: Any) -> None:
    """Insert a cell that sets `values` after the notebook's cell that is tagged `parameters`."""
    tagged = [i for i, c in enumerate(nb.cells) if "parameters" in c.metadata.get("tags", [])]
    source = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    nb.cells.insert(tagged[0] + 1, nbformat.v4.new_code_cell(source))
