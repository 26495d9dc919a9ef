"""The quick start in a real JupyterLab, and the page that the demo leaves in a browser without a network."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from test_quick_start import check_run

from verifiers_nb.cli.demo import FIGURE, notebook_page

from .browsing import (
    command,
    live_widget,
    picture,
    start_all,
    steps_logged,
    wait_for_end,
    wait_for_steps,
)

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
QUICK_START = ROOT / "nbs/tutorials/101_quick_start.ipynb"


def test_quick_start_in_jupyterlab(lab, page) -> None:
    """Run every cell from the menu and pause the run four times: each time within two steps; it learns, and the curve is drawn."""
    nb, folder, after = nbformat.read(QUICK_START, 4), lab.folder / "outputs" / "quickstart", []
    start_all(lab, page, QUICK_START.name, nb)
    for turn in range(4):
        wait_for_steps(page, folder, 2 + 3 * turn)
        widget = live_widget(page, "Training dashboard")
        widget.get_by_role("button", name="Pause after this step").click()
        pressed_at = steps_logged(folder)  # it may have taken a while to find and press it
        widget.get_by_text("Paused", exact=True).wait_for()
        after.append(steps_logged(folder) - pressed_at)
        if turn == 0:
            left = widget.locator(".vf-figures").inner_text()
            page.wait_for_timeout(1500)
            assert widget.locator(".vf-figures").inner_text() == left  # the time left does not grow
        widget.get_by_role("button", name="Resume").click()
        widget.get_by_text("Running").wait_for()
    assert max(after) <= 2, after
    command(page, "notebook:hide-all-cell-outputs")  # to draw them takes as long as to train
    wait_for_end(page, 300)
    command(page, "notebook:show-all-cell-outputs")
    check_run(folder)
    curve = page.locator(".jp-Notebook > * .js-plotly-plot").last
    curve.scroll_into_view_if_needed()
    picture(page, "quick_start")
    assert curve.locator(".scatterlayer .trace path.js-line").first.get_attribute("d")


def test_saved_page_draws_its_curve_offline(browser, tmp_path) -> None:
    figure = {
        "data": [{"type": "scatter", "y": [0.4, 0.7, 1.0]}],
        "layout": {"title": {"text": "reward"}},
    }
    shown = [new_output("display_data", {FIGURE: figure, "text/plain": "Figure"}) for _ in range(2)]
    saved = tmp_path / "quick_start.html"
    saved.write_text(
        notebook_page(new_notebook(cells=[new_code_cell("fig", outputs=shown)]), "Quick start")
    )

    offline = browser.new_context(offline=True)
    page = offline.new_page()
    page.goto(saved.as_uri(), wait_until="domcontentloaded")
    page.locator(".js-plotly-plot .scatterlayer .trace").nth(1).wait_for(timeout=30_000)
    assert page.locator(".js-plotly-plot").count() == 2
    offline.close()
