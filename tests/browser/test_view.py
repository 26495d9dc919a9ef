"""The live half of every widget: it draws, keeps the focus, and takes a mouse and a keyboard."""

from __future__ import annotations

import pytest

from .browsing import close_notebooks, command, live_widget, save

pytestmark = pytest.mark.browser

ROWS = """
from verifiers_nb.widgets.html import button, table
from verifiers_nb.widgets.view import Panel

class Rows(Panel):
    label = "Rows"
    chosen, deleted, found = [], 0, ""

    def drawing(self, live):
        rows = [[{"tabindex": 0, "data-act": "choose", "data-row": i}, str(i)] for i in range(5)]
        search = "<input aria-label='Search' data-act='find' aria-keyshortcuts='/'>"
        said = f"<p role='status'>chosen {self.chosen}, found {self.found}</p>"
        more = button("More", "choose", live, shortcut="m", row="more")
        return f"<div data-list>{table(['row'], rows, 'Rows')}</div>{search}{said}{more}"

    def on_find(self, data):
        self.change(found=data["value"])

    def on_choose(self, data):
        self.change(chosen=[*self.chosen, data["row"]])

Rows()
"""


def test_mouse_and_keyboard(notebook, page) -> None:
    notebook("view.ipynb", ROWS)
    widget = page.get_by_role("region", name="Rows")
    cells = page.locator(".jp-Cell").count()

    widget.locator("tr[data-row='3']").click()
    widget.get_by_text("chosen ['3']").wait_for()
    widget.locator("tr[data-row='0']").focus()
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    widget.get_by_text("chosen ['3', '1']").wait_for()
    assert page.evaluate("document.activeElement.dataset.row") == "1"  # the focus has stayed
    for key in "mdd":  # JupyterLab deletes a cell at dd
        page.keyboard.press(key)
    widget.get_by_text("chosen ['3', '1', 'more']").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("jam")
    widget.get_by_text("found jam").wait_for()
    assert widget.get_by_label("Search").input_value() == "jam"
    assert page.locator(".jp-Cell").count() == cells


def test_nothing_is_pressed_before_the_kernel_answers(notebook, page) -> None:
    notebook(
        "waiting.ipynb", ROWS, "deaf = Rows()\ndeaf.view._msg_callbacks.callbacks.clear()\ndeaf"
    )
    page.wait_for_function("document.querySelectorAll('[data-waiting]').length === 1")
    deaf = page.locator("[data-waiting]")  # the other one has been answered
    assert deaf.evaluate("node => node.inert")
    said = "node => getComputedStyle(node, '::before').content"
    assert "Waiting for the kernel" in deaf.evaluate(said)


def test_widget_survives_a_reload(notebook, page, lab) -> None:
    notebook("reload.ipynb", ROWS)
    widget = page.get_by_role("region", name="Rows")
    widget.locator("tr[data-row='2']").click()
    widget.get_by_text("chosen ['2']").wait_for()
    command(page, "docmanager:save")
    page.reload()
    widget = live_widget(page, "Rows")
    widget.get_by_text("chosen ['2']").wait_for(timeout=60_000)
    widget.locator("tr[data-row='4']").click()
    widget.get_by_text("chosen ['2', '4']").wait_for()
    kept = "document.querySelector('.vf-kept').textContent.includes(\"chosen ['2', '4']\")"
    page.wait_for_function(kept)  # the picture follows
    assert page.locator(".vf-kept").count() == 1 and not page.locator(".vf-kept").is_visible()
    save(page)
    assert "chosen ['2', '4']" in (lab.folder / "reload.ipynb").read_text()


def test_a_notebook_that_is_closed_and_opened_again_keeps_its_pictures(notebook, page, lab) -> None:
    notebook("closed.ipynb", ROWS)
    live_widget(page, "Rows")
    save(page)
    close_notebooks(page)
    command(page, "docmanager:open", path="closed.ipynb")
    widget = live_widget(page, "Rows")
    widget.locator("tr[data-row='3']").click()
    widget.get_by_text("chosen ['3']").wait_for()
    page.wait_for_timeout(6000)  # a picture is made every 5 seconds
    save(page)
    assert "chosen ['3']" in (lab.folder / "closed.ipynb").read_text()


# anywidget gives up after two seconds, which a busy page may take: here it does before the script can arrive, for the
# next view.
GIVE_UP = """() => {
  const timeout = AbortSignal.timeout;
  globalThis.gaveUp = false;
  AbortSignal.timeout = (ms) => {
    if (ms !== 2000) return timeout.call(AbortSignal, ms);
    AbortSignal.timeout = timeout;
    const given = new AbortController();
    queueMicrotask(() => { given.abort(); globalThis.gaveUp = true; });
    return given.signal;
  };
}"""


def test_a_view_that_the_page_gave_up_to_load_is_replaced(notebook, page) -> None:
    notebook("warm.ipynb", "1")
    page.evaluate(GIVE_UP)
    notebook("late.ipynb", ROWS)
    page.wait_for_function("gaveUp")
    widget = live_widget(page, "Rows")
    widget.locator("tr[data-row='2']").click()
    widget.get_by_text("chosen ['2']").wait_for()
    assert not page.locator(".vf-kept").is_visible()

    save(page)
    close_notebooks(page)
    page.evaluate(GIVE_UP)
    command(page, "docmanager:open", path="late.ipynb")
    page.wait_for_function("gaveUp")
    widget = live_widget(page, "Rows")
    widget.locator("tr[data-row='3']").click()
    widget.get_by_text("chosen ['2', '3']").wait_for()
    assert page.locator("[data-restored]").count() == 1  # which can't be frozen in place
