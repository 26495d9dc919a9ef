"""Answers of a real vLLM in the explorer: they grow, thinking too, and a press on a token asks for its alternatives."""

from __future__ import annotations

import re

import pytest

from verifiers_nb.inference.vllm_options import vllm_missing

from .browsing import live_widget, show

MISSING = vllm_missing()
pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=str(MISSING))]

ENV = """
import verifiers_nb as vf
env = vf.SingleTurnEnv(
    dataset=[{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(4)],
    rubric=vf.Rubric(lambda completion, answer: float(answer in completion[-1]["content"])),
)
"""
SERVE = 'server = vf.serve("smollm2-135m", engine="vllm", kv_cache_gb=0.5, max_model_len=512)'
EXPLORE = "vf.RolloutExplorer(env, server.client)"
LEAST = """tokens => {
    const tints = tokens.map(node => Number(node.style.getPropertyValue('--tint')));
    return tints.indexOf(Math.max(...tints));
}"""


def test_answers_of_vllm_grow_and_go_on_from_another_token(notebook, page) -> None:
    notebook("vllm.ipynb", ENV, SERVE, EXPLORE, seconds=400)
    widget = live_widget(page, "Rollout explorer")
    widget.get_by_label("Most tokens").fill("150")
    widget.get_by_role("button", name="Run", exact=True).click()
    widget.locator(".vf-growing code").first.wait_for()
    widget.get_by_text(re.compile(r"16 of 16 rollouts.*[\d,]+ tokens.*done", re.S)).wait_for()

    widget.get_by_role("button", name="Log-probability").click()
    widget.locator("[data-act=token]").nth(3).click()
    details = widget.locator(".vf-token-details")
    details.get_by_text("What else was likely here").wait_for()
    assert re.search(r"Token 4 of [\d,]+ .*chance [\d.e-]+, rank", details.inner_text(), re.S)
    assert details.locator("tbody tr").count() == 5
    show(page, widget, "vllm-token")
    # The least likely of all: vLLM tells its rank, too.
    widget.locator("[data-act=token]").nth(
        widget.locator("[data-act=token]").evaluate_all(LEAST)
    ).click()
    details.get_by_text(re.compile(r"rank [\d,]{2,}, advantage")).wait_for()
    show(page, widget, "vllm-token-rare")
    details.get_by_role("button", name="Continue from this").first.click()
    widget.get_by_text("branch of 1").first.wait_for()
    show(page, widget, "vllm-branch")


THINK = """
import verifiers_nb as vf
env = vf.load_environment("addition", num_eval_examples=8)
server = vf.serve("verifiers_nb/adder-1m", engine="vllm", kv_cache_gb=0.2, max_model_len=512, reasoning_parser="deepseek_r1")
"""


def test_thinking_beside_the_content_grows_and_is_folded(notebook, page) -> None:
    """A reasoning parser streams thinking beside the content: it is kept, folded and counted with the tokens."""
    notebook("thinking.ipynb", THINK, EXPLORE, seconds=400)
    widget = live_widget(page, "Rollout explorer")
    widget.get_by_label("At once").fill("4")
    widget.get_by_label("Most tokens").fill("200")
    widget.get_by_role("button", name="Run", exact=True).click()
    widget.get_by_text(re.compile(r"32 of 32 rollouts.*[\d,]+ tokens.*done", re.S)).wait_for()
    answer = widget.locator(".vf-role-assistant")
    thought = answer.get_by_label("Reasoning")
    assert not thought.is_visible()
    answer.get_by_text(re.compile(r"reasoning, \d+ characters")).click()
    assert re.search(r"\d", thought.inner_text()) and not thought.locator(".vf-differs").count()
    facts = widget.locator(".vf-facts").inner_text()
    assert re.search(r"[1-9]\d* tokens · .* · [1-9]\d* characters of reasoning", facts), facts
