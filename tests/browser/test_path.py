"""From rollouts to a training, by the buttons that open the next widget below."""

from __future__ import annotations

import re

import pytest

from .browsing import live_widget

pytestmark = pytest.mark.browser

PLAYED = """
import verifiers_nb as vf
env = vf.load_environment("addition")
engine = vf.EmbeddedEngine("verifiers_nb/adder-1m", seed=1)
results = await env.a_evaluate(engine, engine.model, num_examples=4, rollouts_per_example=4)
"""
EXPLORE = "vf.RolloutExplorer(env, results=results, model='verifiers_nb/adder-1m')"


def test_each_button_of_the_path_opens_the_next_widget_and_the_last_one_trains(
    notebook, page
) -> None:
    notebook("whole_path.ipynb", PLAYED, EXPLORE)
    live_widget(page, "Rollout explorer").get_by_role("button", name="Inspect the format").click()
    live_widget(page, "Format inspector").get_by_role("button", name="Try another reward").click()
    live_widget(page, "Reward bench").get_by_role("button", name="Audit").click()
    live_widget(page, "Audit").get_by_role("button", name="Train", exact=True).click()
    dashboard = live_widget(page, "Training dashboard")
    assert "adder-1m · addition" in dashboard.locator(".vf-identity").inner_text()
    dashboard.get_by_role("button", name="Start", exact=True).click()
    dashboard.get_by_text(re.compile("[1-9][0-9]* of 100")).wait_for()
    dashboard.get_by_role("button", name="Stop", exact=True).click()
    dashboard.get_by_text("Stopped").first.wait_for()
