"""The format inspector as a person uses it: typed into, by mouse and by keyboard, on hostile texts, and saved."""

from __future__ import annotations

import time

import nbformat
import pytest
from nbformat.sign import NotebookNotary

from .browsing import OUTPUT, live_widget, save, show

pytestmark = pytest.mark.browser

SETUP = """
import time
import verifiers_nb as vf
from verifiers_nb.environments.addition import target
parser = vf.XMLParser(["think", "answer"])
texts = [target(a, b) for a in range(100) for b in range(100)]
texts[1::2] = [text[: -1 - i % 12] for i, text in enumerate(texts[1::2])]
"""
MANY = (
    SETUP
    + """
from verifiers_nb import FormatInspector
began = time.process_time()
inspector = FormatInspector(parser, texts)
inspector._repr_mimebundle_()
print(f"opened in {time.process_time() - began:.2f} s")
inspector
"""
)
HOSTILE = """
import verifiers_nb as vf
texts = {
    "script": "<script>window.attacked = 1</script>",
    "handler": "<img src=x onerror='window.attacked = 1'><svg onload='window.attacked = 1'>",
    "breakout": "</textarea></pre></bdi></div><h1>out</h1>",
    "colours": "\\x1b[31mred\\x1b[0m \\x07\\x00",
    "tags": "<answer>" * 10_000,
    "right to left": "\\u202egnp.exe\\u2066 \\u05e9\\u05dc\\u05d5\\u05dd",
    "a megabyte": "x" * 1_000_000,
    "half a character": "\\ud800",
}
inspector = vf.FormatInspector(vf.XMLParser(["think", "answer"]), list(texts.values()))
inspector
"""

SPAN = "document.querySelector('.vf-surface .vf-field').textContent"
# By how many pixels the heights of the two layers' texts differ.
LAYERS = """(() => {
    const layers = [...document.querySelector('.vf-surface').children];
    if (layers[0].textContent !== layers[1].value) return 'their texts differ';
    for (const each of layers) each.style.cssText = 'min-height: 0; align-self: start';
    layers[1].style.height = '0';
    const differs = layers[0].offsetHeight - layers[1].scrollHeight;
    for (const each of layers) each.style.cssText = '';
    return differs;
})()"""


def widget_of(page):
    """Return the inspector's drawing once it is there."""
    widget = live_widget(page, "Format inspector")
    widget.get_by_role("status").first.wait_for()
    return widget


def output_of(page):
    """Return the output of the cell that the inspector stands in."""
    return page.locator(OUTPUT).filter(has_text="Checks")


def test_typing_changes_the_score(notebook, page) -> None:
    patch = "import nest_asyncio\nnest_asyncio.apply()"  # as many notebooks begin
    notebook("typing.ipynb", patch, SETUP, "vf.FormatInspector(parser)", kernel="plain")
    widget, editor = widget_of(page), page.get_by_label("Text", exact=True)
    assert "1.00 of 1.00" in widget.get_by_role("status").first.inner_text()

    editor.fill("<think>3+4=7</think><answer>7</answe")
    widget.get_by_text("2 of 5 checks lose points").wait_for()
    assert "0.60" in widget.get_by_role("status").first.inner_text()
    named = [each.get_attribute("data-over") for each in widget.locator(".vf-name").all()]
    assert named == ["think", "answer"]
    assert widget.locator(".vf-caret").count() == 0  # not before it is asked for: that loads torch
    widget.get_by_role("button", name="Find what would fix it").click()
    widget.locator(".vf-caret").wait_for(state="attached")
    show(page, output_of(page), "inspector-typing", widths=(1280, 760))

    editor.press("Control+End")
    editor.press_sequentially("r>")
    widget.get_by_text("every check is met").wait_for()

    editor.fill("7")
    widget.get_by_role("button", name="Insert it").click()
    widget.get_by_text("every check is met").wait_for()
    assert editor.input_value() == "<think>…</think><answer>7</answer>"

    # In the middle of the text the marks move with it before the kernel has read it.
    editor.fill("<think>1</think><answer>7</answer>")
    widget.get_by_text("every check is met").wait_for()
    editor.evaluate("area => area.setSelectionRange(7, 8)")
    editor.press_sequentially("two\nlines")
    assert page.evaluate(SPAN) == "two\nlines"
    assert page.evaluate(LAYERS) == 0
    editor.press("Control+z")  # JupyterLab would undo a change of a cell
    assert editor.input_value() != "<think>two\nlines</think><answer>7</answer>"
    editor.press("Control+Shift+z")
    editor.press("Control+a")
    editor.press("Control+x")
    assert editor.input_value() == ""
    widget.get_by_text("checks lose points").wait_for()
    editor.press("Control+v")
    assert editor.input_value() == "<think>two\nlines</think><answer>7</answer>"
    widget.get_by_text("every check is met").wait_for()


def test_a_hundred_thousand_characters_are_typed_into(notebook, page) -> None:
    """What is typed is seen in less than half a second, and both layers have the same lines."""
    long = "i.text = '<think>' + 'We add 3 and 4, carry\\tnothing. ' * 3500 + '</think>\\n<answer>7</answe'"
    notebook("long.ipynb", SETUP, f"i = vf.FormatInspector(parser); {long}; i")
    widget, editor = widget_of(page), page.get_by_label("Text", exact=True)
    assert len(editor.input_value()) > 100_000
    assert page.evaluate(LAYERS) == 0
    editor.focus()
    seconds = []
    for key in "r>":
        began = time.perf_counter()
        editor.press(key)
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        seconds.append(time.perf_counter() - began)
    widget.get_by_text("every check is met").wait_for(timeout=10_000)
    assert page.evaluate(LAYERS) == 0
    assert max(seconds) < 0.5  # measured: 0.05


def test_a_focused_check_lights_up_what_it_speaks_of(notebook, page) -> None:
    notebook(
        "focus.ipynb", SETUP, "i = vf.FormatInspector(parser); i.text = 'so <think>1</think>'; i"
    )
    widget = widget_of(page)
    answer = widget.locator(".vf-checks tr[data-for='1']")
    spoken = widget.locator(".vf-text [data-mark~='0']").first
    plain = spoken.evaluate("node => getComputedStyle(node).boxShadow")
    widget.locator(".vf-checks tr[data-for='0']").focus()
    assert spoken.evaluate("node => getComputedStyle(node).boxShadow") != plain
    page.keyboard.press("ArrowDown")
    assert answer.evaluate("node => node === document.activeElement")
    assert spoken.evaluate("node => getComputedStyle(node).boxShadow") == plain


def test_ten_thousand_completions_by_keyboard(notebook, page) -> None:
    notebook("many.ipynb", MANY)
    widget = widget_of(page)
    opened = float(page.get_by_text("opened in").last.inner_text().split()[2])
    assert opened < 4  # seconds of the processor
    assert len(page.evaluate("document.querySelector('.vf').outerHTML")) < 2**20

    losers = widget.get_by_role("button", name="5,000 (50%)").last
    losers.focus()
    page.keyboard.press("Enter")
    widget.get_by_text("5,000 lose points at “end”").wait_for()
    widget.locator(".vf-list tbody tr").first.focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    widget.get_by_text("Completion 4 of 10,000").wait_for()
    page.keyboard.press("n")
    widget.get_by_text("Completion 6 of 10,000").wait_for()
    page.keyboard.press("p")
    widget.get_by_text("Completion 4 of 10,000").wait_for()
    page.keyboard.press("f")
    widget.get_by_role("button", name="Insert it").wait_for()
    page.keyboard.press("i")
    widget.get_by_text("Completion 4 of 10,000 (edited)").wait_for()
    assert "1.00 of 1.00" in widget.get_by_role("status").first.inner_text()

    widget.locator(".vf-histogram [data-act]").first.focus()
    page.keyboard.press("Enter")
    widget.get_by_text("10,000 with full score at “presence of think”").wait_for()
    page.keyboard.press("n")
    show(page, output_of(page), "inspector-many", widths=(1280, 760))


def test_hostile_completions(notebook, page) -> None:
    notebook("hostile.ipynb", HOSTILE)
    widget = widget_of(page)
    for count in range(2, 9):
        widget.get_by_role("button", name="Next").first.click()
        widget.get_by_text(f"Completion {count} of 8").wait_for()
        assert page.evaluate("window.attacked") is None
        assert widget.locator("script, img, h1, [onerror], [onload]").count() == 0
    assert page.get_by_role("heading", name="out", exact=True).count() == 0
    widget.get_by_role("button", name="Previous").first.click()
    widget.get_by_text("characters are not drawn").wait_for()
    assert page.get_by_label("Text", exact=True).count() == 0  # too long to edit
    show(page, output_of(page), "inspector-hostile")


def test_saved_notebook_shows_the_frozen_view(notebook, page, lab) -> None:
    """Freeze by the button and by code, save, and open the file again without a kernel."""
    show_it = "inspector = vf.FormatInspector(parser, texts)\ninspector.show(1)\ninspector"
    notebook("saved.ipynb", SETUP, show_it, "inspector.freeze()")
    page.get_by_role("button", name="Freeze for the saved notebook").click()
    page.wait_for_function("document.querySelectorAll('.vf button').length === 0")
    save(page)

    saved = nbformat.read(lab.folder / "saved.ipynb", 4)
    kinds = [set(o.data) for cell in saved.cells for o in cell.outputs if "data" in o]
    assert kinds == [{"text/html", "text/plain"}] * 3  # the second is an empty picture
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    saved.metadata["kernelspec"] = {"name": "none", "display_name": "No such kernel"}
    for name, trusted in (("mine.ipynb", True), ("from_someone_else.ipynb", False)):
        nbformat.write(saved, lab.folder / name)
        if trusted:
            NotebookNotary(data_dir=str(lab.home / "data")).sign(saved)
        else:
            NotebookNotary(data_dir=str(lab.home / "data")).unsign(saved)
        page.goto(f"{lab.url}/lab/tree/{name}?reset")
        frozen = output_of(page).last
        frozen.get_by_text("Completion 2 of 10,000").wait_for()
        frozen.get_by_text("1–10 of 10,000").wait_for()
        frozen.get_by_text("never closed").wait_for()
        show(page, frozen, f"inspector-frozen-{name.partition('.')[0]}")
