"""Widgets on stored rollouts of a real model, SmolLM2-135M, which was asked sums and never told a format."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .browsing import LIVE, OUTPUT, live_widget, show

pytestmark = pytest.mark.browser

ROLLOUTS = Path(__file__).with_name("smollm2_rollouts.jsonl")
ENV = """
import json
from pathlib import Path
import verifiers_nb as vf
parser = vf.XMLParser(["think", "answer"])
def correct_answer(completion, answer):
    return float(parser.parse_answer(completion) == answer)
env = vf.SingleTurnEnv(
    dataset=[{"question": "What is 17 * 24?", "answer": "408"}], parser=parser,
    rubric=vf.Rubric(correct_answer, parser=parser),
)
"""
RUN = """
steps = Path("smol") / "rollouts"
steps.mkdir(parents=True)
lines = [json.loads(line) | {"advantage": 0.0} for line in open("smollm2_rollouts.jsonl")]
(steps / "step-00001.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
line = {"step": 1, "reward": 0.0, "groups/zero_variance": 1.0, "rewards/correct_answer": 0.0}
Path("smol/metrics.jsonl").write_text(json.dumps(line) + "\\n")
"""
EXPLORE = 'vf.RolloutExplorer(env, results="smollm2_rollouts.jsonl")'
WATCH = 'vf.TrainingDashboard("smol")'
BROKEN = """
steps = Path("broken") / "rollouts"
steps.mkdir(parents=True)
why = {"reward_errors": {"judge": "KeyError: 'gold'"}, "reward_traces": {"judge": "in judge: info['gold']"}}
for at in range(24):  # of 32
    lines[at]["state"] = why
(steps / "step-00001.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
Path("broken/metrics.jsonl").write_text(json.dumps({**line, "rewards_failed/judge": 24}) + "\\n")
vf.TrainingDashboard("broken")
"""


def test_rewards_of_zero_are_diagnosed_at_once(notebook, page, lab) -> None:
    shutil.copy(ROLLOUTS, lab.folder)
    notebook("real.ipynb", ENV, RUN, EXPLORE, WATCH, BROKEN)
    explorer = live_widget(page, "Rollout explorer")
    verdict = explorer.locator(".vf-verdict")
    words = verdict.inner_text()
    for part in ("Can GRPO learn from this?", "Nothing scored", "0 of 32 have <answer>"):
        assert part in words
    assert "18 were cut off at max_tokens. GRPO learns nothing from this. Try:" in words
    code = [each.inner_text() for each in verdict.locator("li code").all()]
    assert code[0] == "parser.get_format_str()" and code[-1] == "vf.audit(env)"
    assert "trainer.warm_up(examples)" in code and "a larger max_tokens" in words
    show(page, explorer, "real-verdict")

    dashboards = page.locator(f"{LIVE}[aria-label='Training dashboard']")
    dashboards.nth(1).wait_for()
    dashboard, broken = dashboards.all()
    words = dashboard.locator(".vf-verdict").inner_text()  # one step is enough
    assert "Step 1: can GRPO learn from this? Nothing scored" in words and "vf.audit(env)" in words
    assert dashboard.locator(".vf-warnings").count() == 0  # it is said once
    show(page, dashboard, "real-dashboard")

    warning = broken.locator(".vf-warnings li", has_text="judge")
    words = "judge fails and then scores 0.0, 24 times in the last step. KeyError: 'gold'"
    assert f"{words} (in 24 of 32 rollouts of step 1)" in warning.inner_text()
    warning.get_by_text("Trace").click()
    assert "info['gold']" in warning.locator("pre").inner_text()
    show(page, broken, "real-dashboard-failed")


def test_one_path_leads_from_rollouts_to_another_reward(notebook, page, lab) -> None:
    """Each press opens the next widget below, on the same rollouts; the saved picture has them all."""
    shutil.copy(ROLLOUTS, lab.folder)
    notebook("path.ipynb", ENV, EXPLORE)
    explorer = live_widget(page, "Rollout explorer")
    explorer.get_by_label("Go to").fill("2")
    explorer.get_by_label("Go to").press("Enter")
    explorer.get_by_role("article", name="Rollout 2").wait_for()
    explorer.get_by_role("button", name="Inspect the format").click()
    inspector = live_widget(page, "Format inspector")
    inspector.get_by_text("Completion 2 of 32").wait_for()
    inspector.get_by_role("button", name="Try another reward").click()
    bench = live_widget(page, "Reward bench")
    bench.get_by_text("Effects of these weights").wait_for()
    for widget in (inspector, bench):  # each names and links what it shows
        link = widget.locator(".vf-identity a")
        assert link.inner_text() == "smollm2_rollouts.jsonl"
        assert link.get_attribute("href") == "./smollm2_rollouts.jsonl"
    assert bench.get_by_role("button", name="Inspect the format").count() == 0  # it is behind
    assert bench.get_by_role("button", name="Audit").count() == 1
    bench.get_by_role("slider").first.fill("0.5")
    bench.locator("input[type=text][value='0.5']").first.wait_for()
    show(page, page.locator(OUTPUT).filter(has_text="Effects of these weights"), "real-path")
    kept = page.locator(".vf-kept")
    kept.filter(has_text="Effects of these weights").wait_for(state="attached")
