"""The policy slider in a real JupyterLab: dragged, played and asked; and frozen, in a page that has no kernel and no network."""

from __future__ import annotations

import re
import time
from pathlib import Path
from statistics import median

import pytest
import torch
from peft import get_peft_model

import verifiers_nb as vf
from verifiers_nb.trainer.adapters import save_adapter

from .browsing import beyond_the_edges, live_widget, picture, save, show
from .everything import SIZES, TEXT_SIZES

pytestmark = pytest.mark.browser

NAME = "verifiers_nb/adder-1m"
SETUP = """
import verifiers_nb as vf
args = vf.GRPOConfig(
    "slid", per_device_train_batch_size=16, num_generations=4, max_tokens=40, max_steps=12, save_strategy="no",
    learning_rate=1e-2, lr_scheduler_type="constant", use_cpu=True, disable_tqdm=True,
)
env = vf.load_environment("addition", num_eval_examples=8)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
trainer.train()
"""
SHOW = """
slider = vf.PolicySlider(trainer, 3)
slider.freeze().save("slider.html")
slider
"""
# What a drag takes, from the event until the page is painted, in milliseconds.
DRAG = """async place => {
  const range = place.querySelector("input[type=range]"), times = [];
  const painted = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  for (let at = 0; at <= Number(range.max); at += 1) {
    await painted();
    const began = performance.now();
    range.value = at;
    range.dispatchEvent(new Event("input", { bubbles: true }));
    await painted();
    times.push(performance.now() - began);
  }
  return times.sort((one, other) => one - other);
}"""


WHOLE = """() => [...document.querySelectorAll(".vf-kept")].every(
    each => !each.textContent.includes("answers are still to come") && each.textContent.includes("12 + 12"))"""
LOOK = "node => ['color', 'backgroundColor', 'border'].map(name => getComputedStyle(node)[name])"


def check_drag(slider) -> None:
    """Drag through all steps: on a quiet machine each is painted within 100 ms."""
    times = slider.evaluate(DRAG)
    assert median(times) < 400, times


def jump_by_changes(page, slider) -> None:
    """Go by keys from the last step to the last two changes before it, and to the end."""
    ticks = slider.locator(".vf-slide-ticks i")
    places = [float(tick.evaluate("node => node.style.left").rstrip("%")) for tick in ticks.all()]
    changed = [round(12 * place / 100) for place in places]
    assert changed == sorted({*changed}) and changed
    before = [step for step in changed if step < 12]
    page.keyboard.press("[")
    slider.get_by_text(f"Step {before[-1] if before else 12} of 12").wait_for()
    page.keyboard.press("]")
    slider.get_by_text(f"Step {12 if 12 in changed or not before else before[-1]} of 12").wait_for()
    page.keyboard.press("End")
    slider.get_by_text("Step 12 of 12").wait_for()


def drag_and_play(page, slider) -> None:
    """Go through the steps by keys and by Play; the token where two answers part lights up, with its chances."""
    steps = slider.get_by_role("slider", name="Step")
    steps.focus()
    page.keyboard.press("Home")
    slider.get_by_text("Step 0 of 12").wait_for()
    assert slider.locator("mark").count() == 0  # there is no step before
    slider.get_by_label("Compare with").select_option("0")
    steps.focus()
    page.keyboard.press("End")
    slider.get_by_text("Step 12 of 12").wait_for()
    marks = slider.locator("mark")
    assert 1 <= marks.count() <= slider.locator("section").count()
    table = slider.locator("table", has=page.get_by_text("chance at step 12")).first
    assert table.locator("tbody tr").count() == 2 and table.locator("tbody td").nth(
        1
    ).inner_text().endswith("%")
    jump_by_changes(page, slider)
    reward = slider.locator(".vf-lines-key b").first.inner_text()
    page.keyboard.press("ArrowLeft")
    slider.get_by_text("Step 11 of 12").wait_for()
    check_drag(slider)
    slider.get_by_text("Step 12 of 12").wait_for()
    assert slider.locator(".vf-lines-key b").first.inner_text() == reward
    slider.get_by_label("Compare with").select_option("before")
    slider.get_by_role("button", name="Play").click()
    slider.get_by_text(re.compile("Step ([1-9]|1[01]) of 12")).wait_for()
    slider.get_by_role("button", name="Pause").click()
    slider.get_by_role("button", name="Play").wait_for()


STEPS = 30


def many_adapters(folder: Path) -> Path:
    """Keep the adapters of many steps as a run does, each a little other than the one before."""
    model = get_peft_model(vf.get_model(NAME, dtype=torch.float32), vf.lora_defaults())
    learnt = [weight for name, weight in model.named_parameters() if "lora_B" in name]
    torch.manual_seed(0)
    for step in range(STEPS):
        for weight in learnt:
            weight.data += 6e-2 * torch.randn_like(weight)
        save_adapter(model, folder / "adapters" / f"step-{step:05}")
    return folder


def test_many_steps_are_answered_together_and_dragged(tmp_path, browser) -> None:
    folder, env = many_adapters(tmp_path / "run"), vf.load_environment("addition")
    began = time.process_time()
    slider = vf.PolicySlider(folder, 4, env, max_tokens=40)
    slider.wait(300)
    spent = time.process_time() - began
    assert [len(answers) for answers in slider.answers] == [STEPS] * 4
    assert max(len({tuple(a.ids) for a in answers.values()}) for answers in slider.answers) > 5
    assert spent < 20, f"{spent:.1f} s of processor time"  # 2 on a quiet machine
    frozen = slider.freeze().save(tmp_path / "slider.html")

    page = browser.new_context(offline=True).new_page()
    page.goto(frozen.as_uri())
    place = page.locator(".vf-slide")
    place.get_by_text(f"Step {STEPS - 1} of {STEPS - 1}").wait_for()
    assert place.locator("section").count() == 4
    check_drag(place)


def test_a_slider_with_and_without_a_kernel(notebook, page, lab, browser) -> None:
    page.set_viewport_size({"width": 1280, "height": 1800})
    notebook("slider.ipynb", SETUP, SHOW)
    widget = live_widget(page, "Policy slider")
    widget.get_by_text("Step 12 of 12").wait_for()
    assert {*widget.evaluate(TEXT_SIZES)} <= SIZES
    assert widget.locator(".vf-primary").count() <= 1
    assert widget.get_by_role("heading", name="Policy slider").count() == 1
    assert beyond_the_edges(page) == []
    drag_and_play(page, widget.locator(".vf-slide"))
    asked = widget.get_by_label("Another prompt")
    assert widget.get_by_label("Compare with").evaluate(LOOK) == asked.evaluate(LOOK)
    asked.fill("What is 12 + 12?")
    asked.press("Enter")
    widget.get_by_role("heading", name="4. What is 12 + 12?").wait_for()
    save(page)  # as one does after Run All: some answers are still to come
    widget.get_by_text("still to come").first.wait_for(state="detached")
    page.wait_for_function(WHOLE)  # the picture follows at once, not seconds later
    save(page)
    assert "answers are still to come" not in (lab.folder / "slider.ipynb").read_text()
    assert widget.locator(".vf-slide section").count() == 4
    show(page, widget, "policy-slider", widths=(1280, 600))
    save(page)

    offline = browser.new_context(offline=True).new_page()
    offline.goto((lab.folder / "slider.html").as_uri())
    drag_and_play(offline, offline.locator(".vf-slide"))
    for scheme in ("dark", "light"):
        offline.emulate_media(color_scheme=scheme)
        picture(offline, f"policy-slider-frozen-{scheme}")

    page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    page.goto(
        f"{lab.url}/lab/tree/slider.ipynb?reset"
    )  # the saved notebook, by the one who trusts it
    kept = page.locator(".vf-kept .vf-slide")
    kept.get_by_text("Step 12 of 12").wait_for()
    drag_and_play(page, kept)
