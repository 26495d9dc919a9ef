"""What a notebook shows of widgets whose kernel was restarted, has died, or is another one."""

from __future__ import annotations

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.sign import NotebookNotary

from .browsing import KERNEL, NOTEBOOK, command, live_widget, open_notebook, picture, save

pytestmark = pytest.mark.browser

COUNTER = """
import os, ipywidgets
from verifiers_nb.widgets.html import button, table
from verifiers_nb.widgets.view import Panel

class Counter(Panel):
    label, count = "Counter", 0

    def drawing(self, live):
        rows = table(["pressed", "by"], [[str(self.count), "a mouse"]], "Count", numbers=[0])
        return f"<p role='status'>pressed {self.count} times</p>{rows}" + button("More", "more", live)

    def on_more(self, data):
        self.change(count=self.count + 1)

counter = Counter((ipywidgets.Text(description="Typed"),))
counter
"""
GONE = "node => getComputedStyle(node.parentElement, '::before').content"
ENDS = {
    "restart": f"{KERNEL}.restart()",
    "death": f"{KERNEL}.requestExecute({{code: 'os._exit(1)'}}) && 0",
    "shutdown": f"{NOTEBOOK}.context.sessionContext.shutdown()",
}


@pytest.mark.parametrize("end", ENDS)
def test_widgets_say_that_the_kernel_is_gone(notebook, page, end: str) -> None:
    """End the kernel in each way: within seconds the widget says so, and nothing can be pressed."""
    notebook(f"gone-{end}.ipynb", COUNTER)
    widget = live_widget(page, "Counter")
    widget.get_by_role("button", name="More").click()
    widget.get_by_text("pressed 1 times").wait_for()
    page.evaluate(ENDS[end])
    page.wait_for_function("document.querySelector('[data-gone]')", timeout=30_000)
    assert "The kernel is gone: this is how it last looked" in widget.evaluate(GONE)
    assert widget.get_by_role("button", name="More").is_disabled()
    assert page.get_by_label("Typed").is_disabled()
    widget.get_by_text("pressed 1 times").wait_for()
    picture(page, f"gone-{end}")
    if end == "death":
        page.get_by_role("button", name="Ok").click()  # JupyterLab says it, too


@pytest.fixture
def pressed_and_saved(notebook, page, lab):
    """Return a notebook that was saved after its widget was pressed twice; its kernel is shut down."""
    notebook("pressed.ipynb", COUNTER)
    widget = live_widget(page, "Counter")
    for times in (1, 2):
        widget.get_by_role("button", name="More").click()
        widget.get_by_text(f"pressed {times} times").wait_for()
    page.wait_for_function(
        "document.querySelector('.vf-kept')?.textContent.includes('pressed 2 times')"
    )
    assert page.locator(".vf-kept").count() == 1 and not page.locator(".vf-kept").is_visible()
    save(page)
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    return nbformat.read(lab.folder / "pressed.ipynb", 4)


def test_the_last_picture_is_saved(pressed_and_saved, page, lab, browser, tmp_path) -> None:
    """Reopen it in a new kernel, trusted and not; convert it: each shows the widget as last drawn."""
    notary = NotebookNotary(data_dir=str(lab.home / "data"))
    for name, trust in (("mine", notary.sign), ("someone-elses", notary.unsign)):
        nbformat.write(pressed_and_saved, lab.folder / f"reopened-{name}.ipynb")
        trust(pressed_and_saved)
        open_notebook(lab, page, f"reopened-{name}.ipynb")
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
        page.get_by_text("run its cell to have it live").wait_for()
        page.wait_for_timeout(3000)  # by now JupyterLab has looked for the view
        assert page.get_by_text("pressed 2 times").is_visible()
        assert not page.get_by_text("model not found").is_visible()
        assert not page.get_by_text("Loading widget").is_visible()
        picture(page, f"reopened-{name}")
        page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    saved = tmp_path / "page.html"
    saved.write_text(HTMLExporter().from_notebook_node(pressed_and_saved)[0])
    offline = browser.new_context(offline=True).new_page()
    offline.goto(saved.as_uri(), wait_until="domcontentloaded")
    offline.get_by_text("pressed 2 times").wait_for()
    assert offline.get_by_text("pressed 0 times").count() == 0
    assert not offline.get_by_text("run its cell to have it live").is_visible()


def test_widget_state_that_was_saved(notebook, page, lab) -> None:
    """With JupyterLab's own setting, the view comes back as it was, and says that it has no kernel."""
    toggle = "@jupyter-widgets/jupyterlab-manager:saveWidgetState"
    notebook("state.ipynb", COUNTER)
    live_widget(page, "Counter").get_by_role("button", name="More").click()
    page.get_by_role("region", name="Counter").get_by_text("pressed 1 times").wait_for()
    command(page, toggle)
    save(page)
    command(page, toggle)
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    open_notebook(lab, page, "state.ipynb")
    widget = page.get_by_role("region", name="Counter")
    page.wait_for_function("document.querySelector('[data-gone]')")
    widget.get_by_text("pressed 1 times").wait_for()
    assert widget.get_by_role("button", name="More").is_disabled()
    assert page.get_by_role("region", name="Counter").count() == 1
