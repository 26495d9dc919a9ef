"""The widgets in a page that was exported from a notebook: no kernel, no network, no script of ours."""

from __future__ import annotations

import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output

from verifiers_nb.cli.demo import notebook_page

from .browsing import picture
from .everything import FAINT, dashboard, explorer, inspector

pytestmark = pytest.mark.browser

SAID = {"Format inspector": "of 1.00", "Rollout explorer": "of 24", "Training dashboard": "0.913"}


def exported(outputs) -> dict[str, str]:
    """Return the pages in which a notebook with these outputs may be seen, by name."""
    shown = [new_output("display_data", data) for data in outputs]
    nb = new_notebook(cells=[new_code_cell("", outputs=[each]) for each in shown])
    lab, _ = HTMLExporter(template_name="lab").from_notebook_node(nb)
    body = "".join(f"<p>Out:</p>{data['text/html']}" for data in outputs)

    def code(theme: str, paper: str) -> str:
        style = f"background:{paper};color-scheme:{theme}"
        return f'<!doctype html><body class="vscode-{theme}" style="{style}">{body}'

    return {
        "ours": notebook_page(nb, "Widgets"),
        "nbconvert": lab,
        "vscode-dark": code("dark", "#1f1f1f"),
        "vscode-light": code("light", "#ffffff"),
    }


def test_exported_pages(browser, tmp_path) -> None:
    """Convert a notebook that was saved with live widgets; look at it in both colour schemes."""
    folder = tmp_path / "run"
    folder.mkdir()
    widgets = [inspector(), explorer(), dashboard(folder)]
    pages = exported([widget._repr_mimebundle_() for widget in widgets])
    pages |= {f"alone-{i}": widget.freeze() for i, widget in enumerate(widgets)}
    faint: list[str] = []
    for name, page_text in pages.items():
        saved = tmp_path / f"{name}.html"
        saved.write_text(page_text) if isinstance(page_text, str) else page_text.save(saved)
        for scheme in ("light", "dark"):
            context = browser.new_context(offline=True, color_scheme=scheme)
            page = context.new_page()
            page.goto(saved.as_uri(), wait_until="domcontentloaded")
            drawn = page.locator(".vf")
            assert drawn.count() == (1 if name.startswith("alone") else 3), name
            for i in range(drawn.count()):
                widget = drawn.nth(i)
                assert SAID[widget.get_attribute("aria-label")] in widget.inner_text()
                assert widget.locator("button, input, textarea, [data-act]").count() == 0
                faint += [f"{name}, {scheme}: {text}" for text in widget.evaluate(FAINT)]
            picture(page, f"exported-{name}-{scheme}", full_page=True)
            context.close()
    assert faint == []
