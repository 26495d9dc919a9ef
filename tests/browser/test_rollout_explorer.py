"""The rollout explorer as a person uses it: rollouts run, stopped and opened, by mouse and by keyboard, and saved."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbformat.sign import NotebookNotary

from verifiers_nb import load_results

from .browsing import OUTPUT, live_widget, save, show

pytestmark = pytest.mark.browser

SETUP = """
import verifiers_nb as vf
env = vf.load_environment("addition")
explorer = vf.RolloutExplorer(env)
explorer
"""
MANY = """
import time
import verifiers_nb as vf
attacks = [
    "<script>window.attacked = 1</script>",
    "<img src=x onerror='window.attacked = 1'><svg onload='window.attacked = 1'>",
    "</textarea></pre></bdi></article></div><h1>out</h1>",
    "\\x1b[31mred\\x1b[0m \\x07\\x00",
    "<answer>" * 10_000,
    "\\u202egnp.exe\\u2066 \\u05e9\\u05dc\\u05d5\\u05dd",
    "x" * 1_000_000,
    "\\ud800",
]
call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}
picture = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/seen.png"}}
n = 10_000
results = vf.GenerateOutputs(
    prompt=[[{"role": "user", "content": [{"type": "text", "text": f"Question {i // 8}"}, picture]}] for i in range(n)],
    completion=[
        [
            {"role": "assistant", "content": attacks[i] if i < 8 else f"Answer {i}", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "three"},
        ]
        for i in range(n)
    ],
    answer=["3"] * n, info=[{}] * n, task=["t"] * n, state=[{"error": "late" if i % 1000 == 9 else None} for i in range(n)],
    reward=[i % 11 / 10 for i in range(n)], metrics={"exact": [i % 11 / 10 for i in range(n)]},
)
"""
OPEN = """
began = time.process_time()
explorer = vf.RolloutExplorer(results=results)
explorer._repr_mimebundle_()
print(f"opened in {time.process_time() - began:.2f} s")
explorer
"""


def widget_of(page):
    """Return the explorer's drawing once it is there."""
    return live_widget(page, "Rollout explorer")


def output_of(page):
    """Return the output of the cell that the explorer stands in."""
    return page.locator(OUTPUT).filter(has=page.locator(".vf"))


def heap(page) -> int:
    """Return the bytes of objects that the page holds, after its garbage is collected."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"]


def test_rollouts_run_and_are_looked_at(notebook, page, lab) -> None:
    notebook("explorer.ipynb", "import nest_asyncio\nnest_asyncio.apply()", SETUP)
    widget = widget_of(page)
    widget.get_by_label("Examples").fill("all")
    widget.get_by_label("Samples").fill("40")
    widget.get_by_role("button", name="Run", exact=True).click()
    widget.locator(".vf-rollouts tbody tr").nth(5).wait_for(
        timeout=60_000
    )  # while others are running
    show(page, output_of(page), "explorer-running")
    widget.get_by_role("button", name="Stop", exact=True).click()
    widget.get_by_text("stopped").wait_for()
    count = widget.locator("[data-only=all]").inner_text()
    page.wait_for_timeout(700)
    assert widget.locator("[data-only=all]").inner_text() == count != "All 8,000"
    widget.get_by_role("button", name="Edit").last.click()
    widget.get_by_role("button", name="Sample on from here").click()
    branched = widget.locator(".vf-rollouts tr[aria-current=true] .vf-flag-branch")
    branched.wait_for()  # on the page that is shown
    widget.get_by_role("button", name="Compare", exact=True).click()  # beside none from here on
    widget.locator("article").nth(1).wait_for(state="detached")
    count = widget.locator("[data-only=all]").inner_text()
    widget.get_by_role("button", name="Continue").click()
    widget.get_by_role("button", name=count, exact=True).wait_for(state="detached")
    page.keyboard.press("s")
    widget.get_by_text("stopped").wait_for()

    widget.get_by_label("Examples").fill("0-3, 9")
    widget.get_by_label("Samples").fill("4")
    widget.get_by_label("Temperature").fill("1.4")
    widget.get_by_role("button", name="Run", exact=True).click()
    widget.get_by_text("20 of 20 rollouts").wait_for(timeout=60_000)

    widget.get_by_role("button", name="Reward", exact=True).click()
    widget.get_by_role("button", name="Reward", pressed=True).wait_for()  # they are sorted
    widget.locator(".vf-rollouts tbody tr").first.focus()
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    number = page.evaluate("document.activeElement.dataset.row")
    page.keyboard.press("Enter")
    article = widget.get_by_role("article")
    widget.locator(f"article[aria-label='Rollout {int(number) + 1}']").wait_for()
    assert "correct_answer" in article.inner_text()
    show(page, output_of(page), "explorer-rollout", widths=(1280, 760))

    page.keyboard.press("c")
    page.keyboard.press("n")
    widget.locator("article").nth(1).wait_for()
    widget.get_by_role("button", name="Log-probability").click()
    widget.get_by_text("Least likely").nth(1).wait_for()
    show(page, output_of(page), "explorer-compare", widths=(1280,))
    widget.get_by_role("button", name="Advantage").click()
    widget.get_by_text("the advantage is").first.wait_for()
    page.keyboard.press("c")
    widget.locator("article").nth(1).wait_for(state="detached")

    widget.get_by_role("button", name="Conversation").click()
    shown = "".join(article.inner_text().split())
    widget.get_by_role("button", name="Edit").last.click()
    editor = widget.get_by_label("Edit message 2")
    assert "".join(editor.input_value().split()) in shown  # what it says is drawn by chance
    editor.fill("<think>\nIt is easy")
    show(page, output_of(page), "explorer-edit")
    widget.get_by_role("button", name="Sample on from here").click()
    widget.locator("article .vf-flag-branch").wait_for()
    assert "It is easy" in widget.locator("article").last.inner_text()

    page.keyboard.press("g")
    widget.get_by_text("Worst").wait_for()
    widget.locator(".vf-rollouts tbody tr").nth(2).click()
    widget.locator("article").nth(1).wait_for()
    show(page, output_of(page), "explorer-prompts", widths=(1280, 760))
    page.keyboard.press("/")
    page.keyboard.type("easy")
    widget.get_by_role("button", name="Export 1 as JSONL").click()
    widget.get_by_text("1 rollout is written").wait_for()
    assert "It is easy" in load_results(lab.folder / "rollouts.jsonl").completion[0][0]["content"]
    widget.get_by_label("Samples").fill("many")
    widget.get_by_role("button", name="Run", exact=True).click()
    error = widget.locator(".vf-note.vf-error")
    error.wait_for()  # near the button, not below everything
    assert error.bounding_box()["y"] < widget.get_by_label("Search").bounding_box()["y"]


GROW = """
explorer = vf.RolloutExplorer(env)
explorer.run(4, 2, max_tokens=230, sampling_args={"ignore_eos": True})
explorer
"""
GONE = """
gone = vf.RolloutExplorer(env, vf.HTTPClient("http://127.0.0.1:9/v1"), "any")
gone
"""


def test_answers_grow_and_a_server_that_is_gone_is_asked_twice(notebook, page) -> None:
    load = "import verifiers_nb as vf\nenv = vf.load_environment('addition')"
    slow = "import time\nfrom verifiers_nb.inference import scheduler\nstep = scheduler.Batch.advance\n"
    slow += "scheduler.Batch.advance = lambda batch: (time.sleep(0.05), step(batch))[1]"
    notebook("grow.ipynb", load, slow, GROW, GONE)
    page.wait_for_function("!document.querySelector('[data-waiting]')")
    widget, gone = page.locator("[tabindex='-1'] > .vf[aria-label='Rollout explorer']").all()
    text = widget.locator(".vf-growing code").first
    text.wait_for()
    before = text.inner_text()
    page.wait_for_function(
        "([node, said]) => node.textContent !== said", arg=[text.element_handle(), before]
    )
    assert "0 of 8 rollouts" in widget.inner_text()  # none has ended, and yet there is
    assert re.search(r"[\d,]+ tokens, \d+ a second · \d+ s left", widget.inner_text())
    show(page, widget, "explorer-growing")
    widget.get_by_text("8 of 8 rollouts").wait_for()
    text.wait_for(state="detached")

    place = gone.get_by_label("Most tokens")
    place.fill("many")
    below = gone.get_by_role("button", name="Run", exact=True)
    tall = gone.bounding_box()["height"]
    below.click()
    note = gone.locator(".vf-note.vf-error")
    note.wait_for()
    assert note.inner_text() == "Most tokens is 'many'; write a number."
    box, pressed = note.bounding_box(), below.bounding_box()
    assert 0 <= box["y"] - pressed["y"] - pressed["height"] < 20  # beside what was pressed
    assert gone.bounding_box()["height"] == tall  # and nothing below has moved
    show(page, gone, "explorer-bad-input")
    place.fill("8")
    below.click()
    gone.get_by_text("32 failed").wait_for()
    assert gone.get_by_text("Several tries in a row failed").count() == 1
    show(page, gone, "explorer-gone")


def test_ten_thousand_hostile_rollouts_opened_and_saved(notebook, page, lab) -> None:
    notebook("opened.ipynb", MANY, "print('before')")
    before = heap(page)
    notebook("opened.ipynb", MANY, OPEN)
    widget = widget_of(page)
    assert heap(page) - before < 20 * 2**20
    opened = float(page.get_by_text("opened in").last.inner_text().split()[2])
    assert opened < 8  # seconds of the processor

    asked = []
    page.on("request", lambda request: asked.append(request.url))
    rows = widget.locator(".vf-rollouts tbody tr")
    for at in range(8):
        rows.nth(at).click()
        widget.locator(f"article[aria-label='Rollout {at + 1}']").wait_for()
        assert page.evaluate("window.attacked") is None
        assert widget.locator("script, img, h1, [onerror], [onload]").count() == 0
    assert page.get_by_role("heading", name="out", exact=True).count() == 0
    assert not [url for url in asked if "seen.png" in url]
    rows.nth(1).click()
    widget.get_by_text("which is not fetched").wait_for()
    show(page, output_of(page), "explorer-hostile", widths=(1280, 700))

    page.keyboard.press("/")
    page.keyboard.type("answer 77")
    widget.get_by_role("button", name="Failed 10").click()
    widget.get_by_text("none of 0").wait_for()
    widget.get_by_role("button", name="All 10,000").click()
    widget.get_by_text("1–10 of 111").wait_for()

    widget.get_by_role("button", name="Freeze for the saved notebook").click()
    page.wait_for_function("document.querySelectorAll('.vf button').length === 0")
    save(page)
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    saved = nbformat.read(lab.folder / "opened.ipynb", 4)
    saved.metadata["kernelspec"] = {"name": "none", "display_name": "No such kernel"}
    nbformat.write(saved, lab.folder / "frozen.ipynb")
    NotebookNotary(data_dir=str(lab.home / "data")).sign(saved)
    page.goto(f"{lab.url}/lab/tree/frozen.ipynb?reset")
    page.get_by_text("1–10 of 111").first.wait_for()
    page.get_by_text("which is not fetched").wait_for()
    show(page, output_of(page), "explorer-frozen")


BROKEN = """
import verifiers_nb as vf


def reads_a_missing_key(completion, info):
    return float(info["gold"] in completion[-1]["content"])


env = vf.SingleTurnEnv(
    dataset=[{"question": "1 + 1?", "answer": "2"}], rubric=vf.Rubric([reads_a_missing_key])
)
explorer = vf.RolloutExplorer(env)
explorer.run(samples=2).wait(60)
explorer.export("grown.jsonl")
explorer
"""
GROWN = 'growing = vf.RolloutExplorer(results="grown.jsonl")\ngrowing'


def test_a_reward_that_fails_is_no_wrong_answer(notebook, page, lab) -> None:
    notebook("broken.ipynb", BROKEN)
    widget = widget_of(page)
    widget.get_by_role("button", name="Reward failed 2").click()
    assert widget.locator(".vf-rollouts .vf-flag", has_text="reward failed").count() == 2
    widget.get_by_text("The reward function failed: KeyError: 'gold'").wait_for()
    trace = widget.locator("details", has_text="Trace")
    trace.locator("summary").click()
    assert 'info["gold"]' in trace.locator("pre").inner_text()
    show(page, output_of(page), "explorer-reward-failed")


def test_a_file_that_grows_is_followed(notebook, page, lab) -> None:
    notebook("follow.ipynb", BROKEN.removesuffix("explorer\n") + GROWN)
    widget = widget_of(page)
    widget.get_by_text("Follows grown.jsonl while it grows").wait_for()
    file = lab.folder / "grown.jsonl"
    line = file.read_text().splitlines(keepends=True)[0]
    with file.open("a") as growing:
        growing.write(line.replace('"index": 0', '"index": 2'))
    widget.get_by_role("button", name="All 3").wait_for()
    lines = file.read_text().splitlines(keepends=True)
    file.unlink()
    widget.get_by_text("grown.jsonl is gone").wait_for()
    widget.locator(".vf-rollouts tbody tr").nth(1).click()
    widget.get_by_role("article", name="Rollout 2").wait_for()
    file.write_text("".join(lines[:2]))
    widget.get_by_role("button", name="All 2").wait_for()
    widget.get_by_text("Follows grown.jsonl").wait_for()
