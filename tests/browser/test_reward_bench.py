"""The reward bench in a real notebook: a weight is moved, and the figures change; pictures of it in both themes."""

from __future__ import annotations

import json
import re
import time

import pytest

from .browsing import live_widget, show, steps_logged

SETUP = """
import itertools
from datasets import Dataset
import verifiers_nb as vf

def right(completion, answer):
    return float(answer in completion[-1]["content"])

def brief(completion):
    return max(0.0, 1 - len(completion[-1]["content"]) / 30)

texts = itertools.cycle(["I add one to it, so it is 4 5 6 7", "", "I add one, and it is 9", "7"])
rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(3, 7) for _ in range(4)]
env = vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric([right, brief]))
client = vf.ScriptedClient(lambda messages: next(texts))
results = env.evaluate(client, "script", max_concurrent=1, progress=False)
"""


def test_a_weight_is_moved_and_the_figures_change(notebook, page) -> None:
    notebook("bench.ipynb", SETUP, "bench = vf.RewardBench(results, env)\nbench")
    widget = live_widget(page, "Reward bench")
    figures = widget.get_by_role("table", name="Effects of these weights")
    figures.get_by_text("0 of 4 (0%)").wait_for()
    assert "0 of 16" in figures.inner_text()
    slider = widget.get_by_role("slider", name="right")
    slider.focus()
    assert widget.locator(".vf-chart").count() == 0  # one step is no curve
    page.keyboard.press("Home")  # the least weight: a wrong answer is paid
    figures.get_by_text("1 of 4 (25%)").wait_for()
    widget.get_by_role("article").first.click()
    widget.get_by_text("is stored without tokens").wait_for()
    assert widget.get_by_text("short or empty rollouts earn").is_visible()
    show(page, widget, "reward-bench", widths=(1280, 700))


TRAIN = """
import verifiers_nb as vf
args = vf.GRPOConfig(
    "run", per_device_train_batch_size=16, num_generations=4, max_tokens=40, max_steps=4, save_steps=2,
    learning_rate=1e-3, use_cpu=True, disable_tqdm=True,
)
env = vf.load_environment("addition", num_train_examples=32, num_eval_examples=4)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
trainer.train()
"""


def test_train_on_is_pressed_and_a_run_of_its_own_begins(notebook, page, lab) -> None:
    notebook("fork.ipynb", TRAIN, "bench = vf.RewardBench(trainer)\nbench")
    widget = live_widget(page, "Reward bench")
    assert widget.get_by_role("button", name=re.compile("Train on from")).count() == 2
    widget.locator(".vf-plot img").wait_for()
    assert widget.evaluate("node => node.scrollWidth <= node.clientWidth")  # else a bar below it
    files = [path for path in (lab.folder / "run").rglob("*.*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    widget.get_by_role("slider", name="correct_answer").focus()
    page.keyboard.press("Home")  # the least weight: a right answer costs 2
    widget.locator("input[type=text][data-func=correct_answer][value='-2']").wait_for()
    widget.get_by_text("share of the most, 1.2 and 0.2").wait_for()  # on one axis
    widget.get_by_role("button", name="Train on from step 2").click()
    said = widget.get_by_text("run-fork-1 trains on from step 2")
    said.wait_for()
    assert said.evaluate("line => getComputedStyle(line).whiteSpace") == "normal"  # not cut off
    forked = lab.folder / "run-fork-1"
    deadline = time.monotonic() + 90
    while steps_logged(forked) < 4:  # the two before it, and those of its own
        assert time.monotonic() < deadline, "the forked run does not go on"
        page.wait_for_timeout(50)
    lines = [json.loads(line) for line in (forked / "rollouts" / "step-00003.jsonl").open()]
    assert any(line["metrics"]["correct_answer"] for line in lines)
    for line in lines:  # scored by the rubric that was on the bench
        assert line["reward"] == pytest.approx(
            -2 * line["metrics"]["correct_answer"] + 0.2 * line["metrics"]["format_reward_func"]
        )
    assert {path: path.read_bytes() for path in files} == before  # the first run is as it was
    show(page, widget, "reward-bench-forked", widths=(1280,))
