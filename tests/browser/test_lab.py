"""The quick start in a real JupyterLab, and the page that the demo leaves in a browser without a network."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from verifiers_nb.cli.notebook import FIGURE, notebook_page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
QUICK_START = ROOT / "nbs/tutorials/101_quick_start.ipynb"
LAST = "every cell has run"
OUTPUTS = """[...jupyterapp.shell.currentWidget.content.model.cells]
    .flatMap(cell => cell.outputs ? cell.outputs.toJSON() : [])"""
ENDED = f"{OUTPUTS}.some(o => o.output_type == 'error' || String(o.text).includes('{LAST}'))"


def test_quick_start_in_jupyterlab(lab, page) -> None:
    """Run every cell from the menu; the curve is drawn and no cell shows an error."""
    nb = nbformat.read(QUICK_START, 4)
    nb.cells.append(new_code_cell(f"print('{LAST[:5]}' + '{LAST[5:]}')"))
    copy = lab.folder / QUICK_START.name
    nbformat.write(nb, copy)

    page.goto(f"{lab.url}/lab/tree/{copy.name}?reset")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=120_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.wait_for_function(ENDED, timeout=300_000)
    assert [o["evalue"] for o in page.evaluate(OUTPUTS) if o["output_type"] == "error"] == []

    curve = page.locator(".jp-Notebook .js-plotly-plot").first
    curve.scroll_into_view_if_needed()
    page.screenshot(path=ROOT / "outputs" / "browser" / "quick_start.png")
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
