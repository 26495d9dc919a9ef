"""Judges that are the base model of the run: the same engine with its adapter off, and their costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model

import verifiers_nb as vf
from verifiers_nb.envs.results import read_rollouts

MODEL = "verifiers_nb/adder-1m"


@pytest.fixture(scope="module")
def engine() -> Any:
    """Return an engine whose policy has an adapter that makes it speak otherwise."""
    with vf.EmbeddedEngine(MODEL) as engine:
        adapter = get_peft_model(vf.get_model(MODEL), vf.lora_defaults())
        generator = torch.Generator().manual_seed(0)
        for name, weight in adapter.named_parameters():
            if "lora_B" in name:
                weight.data = torch.randn(weight.shape, generator=generator) * 0.5
        engine.before = ask(engine)
        engine.push(adapter)
        yield engine


def ask(client: Any) -> str:
    """Return a greedy answer."""
    messages = [{"role": "user", "content": "What is 12 + 30?"}]

    async def answer() -> Any:
        request: dict[str, Any] = dict(messages=messages, temperature=0.0, max_tokens=30)
        return await client.chat.completions.create(model=MODEL, **request)

    return str(asyncio.run(answer()).choices[0].message.content)


def test_the_base_answers_without_the_adapter(engine: Any) -> None:
    assert ask(engine) != engine.before
    assert ask(engine.base) == engine.before
    assert ask(engine) != engine.before  # the policy is back


@pytest.mark.parametrize("kind", [vf.CriteriaJudge, vf.RankingJudge])
def test_the_run_judges_itself_and_pays(engine: Any, kind: Any, tmp_path: Path) -> None:
    """A model of a million parameters is no judge, but it is asked, and held to the schema."""
    rubric = kind(["Is it right?"], judge_sampling_args={"max_tokens": 60})
    env = vf.load_environment("addition")
    env.rubric = rubric
    path = tmp_path / "r.jsonl"
    given: dict[str, Any] = dict(num_examples=2, rollouts_per_example=2, progress=False)
    results = env.evaluate(
        engine, engine.model, {"max_tokens": 20}, save_path=path, **given,
        budget=(budget := vf.Budget(requests=1000)),
    )  # fmt: skip
    records = [*read_rollouts(path)]
    calls = sum(record["usage"].get("judge_requests", 0) for record in records)
    assert 1 <= calls <= 4 and budget.used["requests"] == 4 + calls
    for reward, state in zip(results.reward, results.state, strict=True):
        failed = "no verdict" in str(state.get("reward_errors"))
        assert failed or 0 <= reward <= 1


def test_the_explorer_and_the_report_show_the_reasons(tmp_path: Path) -> None:
    env = vf.load_environment("addition", num_eval_examples=2)
    state = {"judge_reasons": {"correct_answer": "It thanks <b>you</b>."}}
    results = env.generate(env.get_eval_dataset(n=2), vf.ScriptedClient("42"), "m")
    for each in results.state:
        each.update(state)
    meta = vf.ReportMeta("addition", model="m", num_examples=2)
    page = vf.write_html_report(tmp_path, meta, results).read_text()
    assert "the judge on correct_answer: It thanks &lt;b&gt;you" in page
    assert "It thanks &lt;b&gt;you" in vf.RolloutExplorer(results=results).freeze().html
