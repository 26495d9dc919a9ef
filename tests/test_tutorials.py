"""Tutorials keep their limits: short cells, outputs that show anywhere, links that lead somewhere, a way on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

TUTORIALS = sorted((Path(__file__).parents[1] / "nbs/tutorials").glob("[0-9]*.ipynb"))
FIGURE = "application/vnd.plotly.v1+json"


@pytest.fixture(params=TUTORIALS, ids=lambda path: path.stem)
def tutorial(request: pytest.FixtureRequest) -> tuple[Path, list[nbformat.NotebookNode]]:
    """Return a tutorial's path and cells."""
    return request.param, nbformat.read(request.param, 4).cells


def test_cells_are_short(tutorial: tuple[Path, list[nbformat.NotebookNode]]) -> None:
    _, cells = tutorial
    # The cell that installs on Colab is the same everywhere, and tools/colab.py writes it.
    code = [c for c in cells if c.cell_type == "code" and c.id != "colab-setup"]
    lengths = {c.source: len(c.source.splitlines()) for c in code}
    assert [source for source, length in lengths.items() if length > 25] == []


def test_it_opens_with_a_summary_and_ends_with_what_to_change(
    tutorial: tuple[Path, list[nbformat.NotebookNode]],
) -> None:
    _, cells = tutorial
    text = [c.source for c in cells if c.cell_type == "markdown"]
    assert re.match(r"# .+\n\n> .+", text[0])
    assert re.search(r"## What to (change|try) next\n\n- ", text[-1])


def test_outputs_are_small_and_every_figure_has_a_picture(
    tutorial: tuple[Path, list[nbformat.NotebookNode]],
) -> None:
    """A figure without one: python tools/pictures.py nbs/tutorials/*.ipynb."""
    path, cells = tutorial
    outputs = [output for c in cells for output in c.get("outputs", [])]
    assert outputs and not any(output.output_type == "error" for output in outputs)
    kept = [output.get("data", {}) for output in outputs]
    assert all("image/png" in data for data in kept if FIGURE in data)
    assert path.stat().st_size < 400_000


def test_links_lead_somewhere(tutorial: tuple[Path, list[nbformat.NotebookNode]]) -> None:
    path, cells = tutorial
    text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_saved_quick_start_took_about_a_minute_as_its_summary_says() -> None:
    path = next(path for path in TUTORIALS if path.stem == "101_quick_start")
    cells = nbformat.read(path, 4).cells
    bars = [o.text for c in cells for o in c.get("outputs", []) if "60/60" in o.get("text", "")]
    minutes, seconds = re.findall(r"60/60 \[(\d+):(\d+)<", bars[0])[-1]
    assert "in about a minute" in cells[0].source
    assert len(bars) == 1 and 60 * int(minutes) + int(seconds) <= 90


def test_the_widget_tour_leaves_a_run_that_its_dashboard_can_continue() -> None:
    """People run all cells first, and press the buttons then."""
    path = next(path for path in TUTORIALS if path.stem == "111_widget_tour")
    cells = [c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    assert not any(".close()" in source for source in cells)


def test_the_widget_tour_leaves_its_first_inspector_as_the_text_describes_it() -> None:
    """Live widgets show what they are at the end, whatever they were when their cell ran."""
    path = next(path for path in TUTORIALS if path.stem == "111_widget_tour")
    cells = [c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    names: dict[str, Any] = {}
    for source in cells[: next(i for i, s in enumerate(cells) if "RolloutExplorer(" in s)]:
        exec(source, names)  # noqa: S102
    seen = names["inspector"].inspection
    assert seen.text.endswith("</answe") and seen.score == pytest.approx(0.6)
    assert seen.fix is not None
