"""The reward bench in a real notebook: a weight is moved, and the figures change; pictures of it in both themes."""

from __future__ import annotations

from browsing import live_widget, show

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
    figures = widget.get_by_role("table", name="What it would have taught")
    figures.get_by_text("0 of 4 (0%)").wait_for()
    assert "0 of 16" in figures.inner_text()
    slider = widget.get_by_role("slider", name="right")
    slider.focus()
    page.keyboard.press("Home")  # the least weight: a wrong answer is paid
    figures.get_by_text("1 of 4 (25%)").wait_for()
    flips = widget.get_by_role("table", name="Pulled the other way")
    flips.get_by_role("row").nth(1).click()
    widget.get_by_text("It is stored without tokens").wait_for()
    assert widget.get_by_text("short or empty rollouts earn").is_visible()
    show(page, widget, "reward-bench", widths=(1280, 700))
