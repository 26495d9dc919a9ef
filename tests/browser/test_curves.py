"""The curves and completions of runs that are read from their folders, in a real JupyterLab without a network."""

from __future__ import annotations

import json
import math
import os
import time
from itertools import pairwise

import nbformat
from nbformat.sign import NotebookNotary

from .browsing import SHOTS, live_widget, notebook_of, run_again, save, show, write_and_open

RUNS = """
import json, math, pathlib, random
import verifiers_nb as vf
NAMES = ("reward", "rewards/correct", "completions/mean_length", "entropy", "kl", "gap", "loss", "grad_norm",
         "learning_rate", "completions/truncated", "groups/zero_variance", "clip/high", "staleness/max", "memory/peak_gib", "time/training")
dice = random.Random(0)
def rollout(step, index, ok):
    said = f"<think>\\nAt step {step} I add {index // 4} and {step % 3}.\\n</think>\\n<answer>\\n{index // 4 + step % 3 + (not ok)}\\n</answer>"
    return {"index": index, "prompt": [{"role": "user", "content": f"What is {index // 4} + {step % 3}?"}], "answer": "", "task": "", "info": {},
            "completion": [{"role": "assistant", "content": said}], "reward": float(ok), "metrics": {"correct": float(ok)}, "error": None,
            "state": {}, "turns": [], "advantage": 0.1}
def make(name, speed, steps):
    folder = pathlib.Path(name)
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            value = 1 - math.exp(-step / speed) + dice.gauss(0, 0.05)
            line = {"step": step, "time": 1.7e9 + step, **dict.fromkeys(NAMES, value)}
            line |= {"kl": 1e6 if step == 700 else value, "loss": math.nan if step == 9 else value}
            print(json.dumps(line), file=file)
    for step in range(max(steps - 30, 1), steps + 1):
        text = "".join(json.dumps(rollout(step, i, i % 4 > 1)) + "\\n" for i in range(16))
        (folder / "rollouts" / f"step-{step:05d}.jsonl").write_text(text)
make("fast", 300, 5000)
make("slow", 900, 5000)
with pathlib.Path("fast/metrics.jsonl").open("a") as file:
    for event in ({"event": "changed", "note": "learning rate 0.0001"}, {"event": "paused"}, {"event": "forked", "note": "from <b>"}):
        print(json.dumps({"step": 2500, "time": 1.7e9, **event}), file=file)
for step in range(50, 5001, 50):
    checkpoint = pathlib.Path(f"fast/checkpoint-{step}")
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "trainer_state.json").write_text("{}")
"""
LINE = ".js-plotly-plot .trace path.js-line"
FIGURE = "document.querySelector('.js-plotly-plot')"


def dashboard(page):
    """Return the dashboard's drawing, with plotly's curves in it."""
    widget = live_widget(page, "Training dashboard")
    widget.locator(LINE).first.wait_for()
    return widget


def x_range(page) -> list[float]:
    """Return the steps that are shown."""
    return page.evaluate(f"{FIGURE}._fullLayout.xaxis.range")


def test_five_thousand_steps_of_two_runs(page, lab, tmp_path) -> None:
    """Drawn in two seconds; hover, zoom by mouse and keys, log axis, outliers, metrics, smoothing, PNG; nothing fetched."""
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.set_viewport_size({"width": 1280, "height": 2300})
    measured = """
        new MutationObserver(() => {
            if (document.querySelector("[data-plot], [data-waiting]")) window.began ??= performance.now();
            if (document.querySelector("[data-plot] img")) window.seen ??= performance.now();
            if (document.querySelector(".js-plotly-plot path.js-line")) window.drawn ??= performance.now();
        }).observe(document, {childList: true, subtree: true, attributes: true});"""
    show_it = """import time
began = time.process_time()
dashboard = vf.TrainingDashboard(["fast", "slow"])
print(f"made in {time.process_time() - began:.2f} s")
dashboard"""
    cells = notebook_of(RUNS, "vf.TrainingDashboard('slow').close()", show_it)
    write_and_open(lab, page, "curves.ipynb", cells)
    page.evaluate(measured)
    run_again(page)
    widget = dashboard(page)
    made = float(page.get_by_text("made in").last.inner_text().split()[2])
    seen, drawn = page.evaluate("[window.seen - window.began, window.drawn - window.began]")
    sent = page.evaluate(f"JSON.stringify({FIGURE}.data).length")
    points = page.evaluate(f"{FIGURE}.data.reduce((sum, trace) => sum + trace.x.length, 0)")
    print(
        f"made in {made:.2f} s, seen after {seen:.0f} ms, live after {drawn:.0f}: {points:,} points, {sent:,} bytes"
    )
    assert made < 3  # seconds of the processor, 0.3 on a quiet machine
    assert points < 16_000 and sent < 250_000  # 24 lines, of 600 points each
    # On a quiet machine 10 and 1,500: plotly's script takes half of it. The picture does not wait for that.
    assert seen < max(5_000, drawn / 2) and drawn < 60_000
    assert widget.locator(".js-plotly-plot .subplot").count() == 6
    assert widget.locator(".legend .traces").count() == 2

    box = widget.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    x, y = box["x"], box["y"] + box["height"] / 2
    page.mouse.move(x + box["width"] / 2, y)
    hover = widget.locator("span.vf-cross")  # in each chart, over no other
    hover.first.wait_for()
    assert hover.count() == widget.locator("i.vf-cross").count() == 6
    said = hover.first.text_content()
    assert all(name in said for name in ("step 2,", "fast 1", "slow 0", " (smoothed ")), said
    told = " · ".join(hover.locator("em").all_text_contents())
    happened = "checkpoint at 2,500 · changed learning rate 0.0001 at 2,500"
    assert told == f"{happened} · forked from <b> at 2,500 · paused at 2,500", told
    assert page.evaluate(f"{FIGURE}.layout.shapes.length") == 24  # one of each kind in each chart
    assert widget.locator(".shapelayer path").count() == 24
    widget.get_by_text("changed at 2,500 (learning rate 0.0001)").wait_for()
    widget.get_by_text("checkpoint 100 times, last at 4,850, 4,900, 4,950, 5,000").wait_for()
    assert widget.get_by_role("link", name="fast").get_attribute("href") == "./fast"
    assert "in training" not in said and widget.locator(".hoverlayer .legend").count() == 0
    for value, plot in zip(hover.all(), widget.locator(".nsewdrag").all(), strict=True):
        inner, outer = value.bounding_box(), plot.bounding_box()  # over no title, no other chart
        assert inner["x"] >= outer["x"] and inner["y"] >= outer["y"]
        assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]
    if os.environ.get("PICTURES"):
        widget.locator("[data-plot]").screenshot(path=SHOTS / "curves-crosshair.png")

    page.mouse.down()
    page.mouse.move(x + box["width"] * 0.6, y, steps=8)
    page.mouse.up()
    page.wait_for_function(f"{FIGURE}._fullLayout.xaxis.range[0] > 2000")
    start, end = x_range(page)
    fine = f"{FIGURE}.data[1].x.filter(x => x >= {start} && x <= {end}).length"
    page.wait_for_function(f"{fine} >= {math.floor(end - start)}")  # every step
    assert page.evaluate(f"{FIGURE}._fullLayout.xaxis5.range") == [start, end]  # of all charts
    place = widget.locator("[data-plot]")
    place.focus()
    page.keyboard.press("0")
    page.wait_for_function(f"{FIGURE}._fullLayout.xaxis.range[1] >= 5000")
    page.keyboard.press("+")
    page.wait_for_function(f"{FIGURE}._fullLayout.xaxis.range[0] > 1000")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"{FIGURE}._fullLayout.xaxis.range[0] < 1000")
    page.keyboard.press("0")

    heights = f"{FIGURE}.layout.yaxis5.range"  # of the KL divergence, with its outlier
    assert page.evaluate(heights)[1] < 2
    widget.locator(".annotation").nth(4).filter(has_text="2 outside the picture").wait_for()
    page.keyboard.press("o")
    page.wait_for_function(f"{heights}[1] > 1e6")
    page.keyboard.press("o")
    page.keyboard.press("l")
    page.wait_for_function(f"{FIGURE}.layout.yaxis.type === 'log'")
    page.keyboard.press("l")
    page.wait_for_function(f"{FIGURE}.layout.yaxis.type === 'linear'")

    widget.get_by_text("Metrics", exact=True).click()
    for name in ("loss", "zero_variance", "high", "training"):
        widget.get_by_role("button", name=name, exact=True).click()
    page.wait_for_function(f"{FIGURE}.layout.annotations.length === 10")
    page.wait_for_function(f"{FIGURE}.layout.grid.columns === 2")  # three would leave one alone
    widget.get_by_text("loss is no usable number in 1 of 5,000 lines").wait_for()

    line = widget.locator(LINE).nth(1)
    before = line.get_attribute("d")
    widget.get_by_label("Smoothing").focus()
    page.keyboard.press("End")
    widget.get_by_text("0.98", exact=True).wait_for()
    page.wait_for_timeout(1000)
    assert line.get_attribute("d") != before
    with page.expect_download() as saved:
        widget.get_by_role("button", name="Save as PNG").click()
    picture = tmp_path / "curves.png"
    saved.value.save_as(picture)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 50_000
    show(page, widget, "curves", widths=(1280, 600, 1900))
    assert [url for url in fetched if not url.startswith((lab.url, "blob:", "data:"))] == []

    widget.get_by_role("button", name="Freeze for the saved notebook").click()
    page.wait_for_function("document.querySelectorAll('.vf button').length === 0")
    save(page)
    assert (lab.folder / "curves.ipynb").stat().st_size < 300_000
    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    saved = nbformat.read(lab.folder / "curves.ipynb", 4)
    saved.metadata["kernelspec"] = {"name": "none", "display_name": "No such kernel"}
    notary = NotebookNotary(data_dir=str(lab.home / "data"))
    for name, trust in (("mine", notary.sign), ("someone-elses", notary.unsign)):
        nbformat.write(saved, lab.folder / f"dashboard-{name}.ipynb")
        trust(saved)
        page.goto(f"{lab.url}/lab/tree/dashboard-{name}.ipynb?reset")
        frozen = page.locator(".jp-OutputArea-output").filter(has_text="smoothed by 0.98").last
        frozen.get_by_text("Read from its files").wait_for()
        frozen.get_by_text("fast: from").first.wait_for(state="attached")
        curves = frozen.locator("img")
        sizes = [each.bounding_box() for each in curves.all()]
        assert len(sizes) == 10 and all(s["width"] > 250 and s["height"] > 100 for s in sizes)
        assert curves.evaluate_all("images => images.every(image => image.naturalWidth > 0)")
        show(page, frozen, f"dashboard-frozen-{name}")


def test_completions_of_any_step(notebook, page) -> None:
    """Go through the steps by slider and keys; follow a prompt; the best are of different prompts."""
    page.set_viewport_size({"width": 1280, "height": 2300})
    notebook("steps.ipynb", RUNS, "vf.TrainingDashboard('fast')")
    widget = dashboard(page)
    widget.get_by_text("Completions of step 5,000").wait_for()
    best = widget.locator(".vf-samples > div").first.locator(".vf-prompt")
    assert len(set(best.all_inner_texts())) == best.count() == 4
    assert widget.locator(".vf-scores svg").count() == 2
    slider = widget.get_by_label("Step 5,000")
    slider.focus()
    page.keyboard.press("Home")
    widget.get_by_text("Completions of step 4,970").wait_for()
    page.keyboard.press("ArrowRight")
    widget.get_by_text("Completions of step 4,971").wait_for()
    widget.locator("[data-plot]").focus()
    page.keyboard.press("]")
    widget.get_by_text("Completions of step 4,972").wait_for()
    assert widget.locator("[data-act=latest]").get_attribute("aria-pressed") == "false"
    page.keyboard.press("e")
    widget.get_by_text("Completions of step 5,000").wait_for()

    widget.get_by_role("button", name="Follow this prompt").first.click()
    widget.get_by_text("asked in 11 of 31 steps").wait_for()
    assert widget.locator(".vf-sample").count() == 2
    widget.get_by_role("button", name="4,973: 0.5").click()
    widget.get_by_text("Step 4,973: best of 4, mean 0.5").wait_for()
    assert widget.locator(".vf-differs").first.inner_text().strip()
    show(page, widget, "followed-prompt", widths=(1280, 600))
    widget.locator("[data-plot]").focus()
    page.keyboard.press("b")
    widget.get_by_text("Worst, of different prompts").wait_for()


def test_a_folder_that_another_process_writes(notebook, page, lab) -> None:
    """The dashboard follows it; a step whose rollouts are not all there is not shown as whole."""
    show_both = "vf.TrainingDashboard('growing')", "vf.RolloutExplorer(results='growing')"
    page.set_viewport_size({"width": 1280, "height": 3000})
    notebook("growing.ipynb", RUNS, "make('growing', 20, 40)", *show_both)
    widget, explorer = dashboard(page), live_widget(page, "Rollout explorer")
    explorer.get_by_text("Step 40 of 40").wait_for()
    assert explorer.get_by_role("button", name="Next step").is_disabled()
    widget.get_by_text("Completions of step 40").wait_for()
    folder = lab.folder / "growing"
    lines = (folder / "rollouts" / "step-00040.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 41, "reward": 0.77, "time": time.time()}) + "\n")
    with (folder / "rollouts" / "step-00041.jsonl").open("w") as file:
        for record in records[:9]:
            file.write(json.dumps({k: v for k, v in record.items() if k != "advantage"}) + "\n")
    widget.get_by_text("Step 41 is still to be trained: 9 rollouts so far").wait_for()
    widget.get_by_text("0.770").wait_for()
    assert widget.get_by_text("Completions of step 40").is_visible()
    explorer.get_by_text("Step 40 of 41").wait_for()
    explorer.get_by_role("button", name="Next step").click()
    explorer.get_by_text("not whole: more rollouts may come").wait_for()
    explorer.get_by_text("1–9 of 9").wait_for()
    fresh = folder / "rollouts" / "step-00041.new"
    fresh.write_text("".join(json.dumps(record) + "\n" for record in records))
    fresh.rename(fresh.with_suffix(".jsonl"))
    widget.get_by_text("Completions of step 41").wait_for()
    assert widget.get_by_text("still to be trained").count() == 0
    explorer.get_by_text("of 16", exact=False).first.wait_for()
    assert explorer.get_by_text("not whole").count() == 0


DECADE = """
folder = pathlib.Path("decade")
folder.mkdir()
with (folder / "metrics.jsonl").open("w") as file:
    for step in range(1, 41):
        print(json.dumps({"step": step, "reward": 0.06 + 0.023 * step, "entropy": 1 / step}), file=file)
vf.TrainingDashboard(folder)
"""


def test_labels_of_a_log_axis_and_steps_that_go_back(notebook, page, lab) -> None:
    """Labels do not overlap; a second run writes into the folder, and no curve runs backwards."""
    notebook("decade.ipynb", "import json, pathlib\nimport verifiers_nb as vf", DECADE)
    widget = dashboard(page)
    widget.get_by_role("button", name="Log axis").click()
    page.wait_for_function(f"{FIGURE}._fullLayout.yaxis.type === 'log'")
    for axis in ("y", "y2"):
        labels = widget.locator(f".{axis}tick text")
        boxes = sorted(
            (box["y"], box["height"]) for box in (label.bounding_box() for label in labels.all())
        )
        assert len(boxes) > 1
        assert all(a + height <= b + 3 for (a, height), (b, _) in pairwise(boxes)), boxes

    lines = [{"step": step, "reward": 0.5, "entropy": 0.5} for step in range(20, 44)]
    with (lab.folder / "decade" / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    widget.get_by_text("decade/metrics.jsonl go back once").wait_for()
    page.wait_for_function(f"{FIGURE}.data[0].x.at(-1) === 43")
    for steps in page.evaluate(f"{FIGURE}.data.map(trace => trace.x)"):
        assert steps == [*range(1, 44)]
    measured = page.evaluate(f"{FIGURE}.data[0].y")
    assert measured[18] < 0.5
    assert measured[19:] == [0.5] * 24  # what was written last

    widget.locator("[data-plot]").focus()
    for _ in range(5):
        page.keyboard.press("+")
    page.wait_for_function(f"{FIGURE}._fullLayout.xaxis.dtick === 1")  # no ticks at half steps
    start, end = x_range(page)
    assert end - start < 3
