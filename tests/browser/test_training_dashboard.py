"""A real training run, watched and driven from a notebook by mouse and keyboard; and looked at when it is over."""

from __future__ import annotations

import time

from .browsing import KERNEL, live_widget, save, show

SETUP = """
import tempfile, time
import transformers
import verifiers_nb as vf
args = vf.GRPOConfig(
    tempfile.mkdtemp(), per_device_train_batch_size=16, num_generations=4, max_tokens=40, max_steps=2000, save_steps=4,
    learning_rate=1e-3, lr_scheduler_type="linear", use_cpu=True, disable_tqdm=True,
)
env = vf.load_environment("addition", num_eval_examples=8)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())

class Rest(transformers.TrainerCallback):
    "Leave the processor to the page: the run goes on as long as the page is looked at."
    def on_step_end(self, *args, **kwargs):
        time.sleep(0.3)

trainer.add_callback(Rest())
"""
ASK = f"""async source => {{
    const began = performance.now();
    let said = "";
    const future = {KERNEL}.requestExecute({{code: source, silent: false, store_history: false}});
    future.onIOPub = message => {{ said += message.content.text || ""; }};
    await future.done;
    return [said.trim(), performance.now() - began];
}}"""


TOP = "document.querySelector('.jp-Notebook')?.scrollTop + document.querySelector('.vf-settings').getBoundingClientRect().top"


def widget_of(page):
    """Return the dashboard's drawing once it is there."""
    widget = live_widget(page, "Training dashboard")
    widget.get_by_role("status").wait_for()
    return widget


def step_shown(widget) -> int:
    """Read the step."""
    shown = widget.locator(".vf-figures dd").first.inner_text()
    return int(shown.split(" of ")[0].replace(",", ""))


def wait_for_step(page, widget, step: int, exactly: bool = False) -> None:
    """Wait until a step or a later one is shown."""
    deadline = time.monotonic() + 60
    while (shown := step_shown(widget)) < step or (exactly and shown > step):
        assert time.monotonic() < deadline, f"still at step {shown}"
        page.wait_for_timeout(100)


def test_a_run_is_driven_from_its_dashboard(notebook, page, lab) -> None:
    """Start, pause, change, resume, come back to the page, stop, evaluate, roll back."""
    page.set_viewport_size({"width": 1280, "height": 2300})  # all of it in one picture
    patch = "import nest_asyncio\nnest_asyncio.apply()"  # as many notebooks begin
    notebook("training.ipynb", patch, SETUP, "dashboard = vf.TrainingDashboard(trainer)\ndashboard")
    widget = widget_of(page)
    widget.get_by_text("Not started").wait_for()
    widget.get_by_role("button", name="Start").click()
    widget.get_by_text("Running").wait_for()
    wait_for_step(page, widget, 3)
    line = widget.locator(".js-plotly-plot .trace path.js-line").nth(1)
    line.wait_for()
    before = line.get_attribute("d")
    for _ in range(3):
        answered, milliseconds = page.evaluate(ASK, "print(6 * 7)")
        assert answered == "42" and milliseconds < 10_000  # of a run that takes its minutes
    wait_for_step(page, widget, 8)
    page.wait_for_timeout(1000)
    assert line.get_attribute("d") != before

    widget.get_by_text("(peak, now 0.000").wait_for()  # the schedule falls from the field's value
    temperature = widget.get_by_label("Temperature")
    beta = widget.get_by_label("Beta")
    beta.fill("0.02")
    assert beta.input_value() == "0.02"
    widget.get_by_role("button", name="Apply from the next step on").click()
    widget.locator("[data-act=apply]:disabled").wait_for()
    temperature.fill("0.9")
    temperature.press("Enter")  # applies what is typed in all fields
    widget.get_by_text("s per step").wait_for()
    temperature.press("Tab")  # out of the field: from here on keys are the widget's
    widget.get_by_role("button", name="Pause after this step").focus()
    page.keyboard.press("p")
    widget.get_by_text("Paused", exact=True).wait_for()
    paused_at = step_shown(widget)
    assert page.evaluate(ASK, "print(trainer.run.state.phase)")[0] == "paused"
    widget.locator(".vf-marks").filter(has_text="paused at").wait_for()  # while it is
    show(page, widget, "dashboard-paused", widths=(1280, 700))
    assert step_shown(widget) == paused_at
    place = page.evaluate(TOP)
    temperature.fill("hot")
    temperature.press("Enter")
    note = widget.get_by_role("alert").filter(has_text="Temperature is 'hot'; write a number.")
    note.wait_for()
    field, told = temperature.bounding_box(), note.bounding_box()
    assert 0 < told["y"] - field["y"] < 150  # in sight
    assert page.evaluate(TOP) == place  # and nothing has moved
    temperature.fill("0.9")
    widget.get_by_role("button", name="Stop").focus()
    page.keyboard.press("p")
    widget.get_by_text("Running").wait_for()
    wait_for_step(page, widget, paused_at + 2)
    widget.get_by_role("button", name="Pause now").click()
    widget.get_by_text("Paused", exact=True).wait_for()
    state = "trainer.run.state"
    phase, rollouts = page.evaluate(ASK, f"print({state}.phase, {state}.rollouts)")[0].split(" ", 1)
    assert (phase, rollouts) == ("paused", "(0, 0)")  # nothing is generated meanwhile
    widget.get_by_role("button", name="Resume").click()
    widget.get_by_text("Running").wait_for()
    save(page)
    page.on("dialog", lambda dialog: dialog.accept())
    page.reload()  # as one who closes the page and comes back
    widget = widget_of(page)
    wait_for_step(page, widget, step_shown(widget) + 2)
    widget.get_by_role("button", name="Stop").click()
    widget.get_by_text("Stopped").wait_for(timeout=120_000)
    widget.get_by_text("Run the cell again to freeze this view.").wait_for()
    assert not widget.get_by_role("button", name="Freeze").is_visible()
    args = "trainer.wait(); print(trainer.args.beta, trainer.args.temperature)"
    assert page.evaluate(ASK, args)[0] == "0.02 0.9"

    oldest = widget.locator(".vf-checkpoints tbody tr").last
    oldest.get_by_role("button", name="Evaluate").click()
    oldest.get_by_text("correct_answer").wait_for()
    oldest.get_by_role("button", name="Roll back").click()
    widget.get_by_role("button", name="Continue from step 4").wait_for()
    wait_for_step(
        page, widget, 4, exactly=True
    )  # the metrics go back a moment after the checkpoints
    assert widget.locator(".vf-checkpoints tbody tr").count() == 1
    show(page, widget, "dashboard-stopped")
