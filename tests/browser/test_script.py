"""The view's script alone, in a page whose model does what the test says: what it sends, and when it may be pressed."""

from __future__ import annotations

import pytest

from verifiers_nb.widgets.html import widget_file
from verifiers_nb.widgets.view import SCRIPT

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><style>{css}</style><div id=place></div>"""
MODEL = """async source => {
  const listeners = {}, url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  window.sent = []; window.values = { html: "<div class=vf><button data-act=go data-row=3>Go</button>" +
    "<button data-act=freeze>Freeze</button><span class=vf-again>again</span></div>", page: "" };
  const model = {
    get: (name) => window.values[name], set: (name, value) => { window.values[name] = value; }, save_changes() {},
    send: (content) => window.sent.push(content),
    on: (name, call) => { (listeners[name] ??= []).push(call); },
    off: (name, call) => { listeners[name] = (listeners[name] || []).filter((each) => each !== call); },
  };
  window.tell = (name, ...more) => (listeners[name] || []).forEach((call) => call(...more));
  const { default: widget } = await import(url);
  window.show = () => { window.leave = widget.render({ model, el: document.querySelector("#place") }); };
  window.listening = () => Object.values(listeners).flat().length;
  window.show();
}"""


@pytest.fixture
def drawn(page):
    """Return a page in which the script has drawn two buttons."""
    page.goto("about:blank")  # ends the timers of the test before
    page.set_content(PAGE.format(css=widget_file("view.css")))
    page.evaluate(MODEL, SCRIPT)
    return page


def test_nothing_can_be_pressed_before_an_answer(drawn) -> None:
    root = drawn.locator("#place > div")
    assert root.evaluate("node => node.inert") and drawn.evaluate("sent.length") >= 1
    drawn.wait_for_function("sent.length >= 2")  # it asks again
    drawn.evaluate("document.querySelector('[data-act=go]').focus()")
    assert drawn.evaluate("document.activeElement === document.body")
    said = "node => getComputedStyle(node, '::before').content"
    assert "Waiting for the kernel" in root.evaluate(said)

    drawn.evaluate("tell('msg:custom', { answer: 'here' })")
    asked = drawn.evaluate("sent.length")
    drawn.wait_for_timeout(1500)
    assert drawn.evaluate("sent.length") == asked  # and no longer asks
    drawn.get_by_role("button", name="Go").click()
    assert drawn.evaluate("sent.at(-1)") == {"act": "go", "row": "3"}
    assert root.evaluate(said) == "none"


def test_a_press_is_followed_by_questions_until_an_answer(drawn) -> None:
    """Before 7.4 ipykernel may leave a message unread until the next one comes, however late."""
    drawn.evaluate("tell('msg:custom', {})")
    drawn.get_by_role("button", name="Go").click()
    asked = drawn.evaluate("sent.length")
    assert drawn.evaluate("sent.at(-1).act") == "go"
    drawn.wait_for_function(f"sent.length >= {asked} + 2")
    assert drawn.evaluate("sent.at(-1)") == {"ask": "are you there?"}
    drawn.evaluate("tell('msg:custom', { answer: 'here' })")
    asked = drawn.evaluate("sent.length")
    drawn.wait_for_timeout(1500)
    assert drawn.evaluate("sent.length") == asked


def test_only_the_first_page_can_freeze(drawn) -> None:
    drawn.evaluate("tell('msg:custom', {})")
    assert drawn.get_by_role("button", name="Freeze").is_visible()
    assert not drawn.get_by_text("again").is_visible()
    drawn.evaluate("leave(); document.querySelector('#place').replaceChildren()")
    assert drawn.evaluate("listening()") == 0
    drawn.evaluate("values.page = 'another'; show(); tell('msg:custom', {})")
    assert not drawn.get_by_role("button", name="Freeze").is_visible()
    assert drawn.get_by_text("again").is_visible()
