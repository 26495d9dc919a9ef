"""The quick start in a real JupyterLab, and the page that the demo leaves in a browser without a network."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from browsing import SHOTS, run_all
from nbformat.v4 import new_code_cell, new_notebook, new_output

from verifiers_nb.cli.demo import FIGURE, notebook_page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
QUICK_START = ROOT / "nbs/tutorials/101_quick_start.ipynb"


def test_quick_start_in_jupyterlab(lab, page) -> None:
    """Run every cell from the menu; the curve is drawn and no cell shows an error."""
    nb = nbformat.read(QUICK_START, 4)
    run_all(lab, page, QUICK_START.name, nb, seconds=300)
    curve = page.locator(".jp-Notebook .js-plotly-plot").first
    curve.scroll_into_view_if_needed()
    page.screenshot(path=SHOTS / "quick_start.png")
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
