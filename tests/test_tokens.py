"""Exact tokens through real templates: what the trainer computes is what the sampler reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.inference.tokens import (
    TokenSequence,
    merge_turns,
    process_env_results,
    rollout_turns,
)
from verifiers_nb.trainer.batching import Sample, micro_batches
from verifiers_nb.trainer.logprobs import batch_logprobs

CHATML = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# As Qwen3 does, an assistant message of the past loses its thinking.
FORGETS = CHATML.replace(
    "{{ m.content }}",
    "{{ m.content if loop.last else m.content.split('</think>')[-1].lstrip() }}",
)
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}


class Twice(vf.MultiTurnEnv):
    """Ask a second question after the first answer."""

    def is_completed(self, messages: Any, state: vf.State, **kwargs: Any) -> bool:
        return state["turn"] == 2

    def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
        return [{"role": "user", "content": "What is 8 + 5?"}], state


def roll_out(template: str, tools: list[Any] | None) -> tuple[vf.GenerateOutputs, Any, Any]:
    """Return eight rollouts of two turns, the model and the tokenizer with this template."""
    model, tokenizer = vf.get_model_and_tokenizer("verifiers_nb/adder-1m")
    tokenizer.chat_template = template
    questions = [f"What is {a} + 17?" for a in range(8)]
    env = Twice(
        dataset=Dataset.from_dict({"question": questions, "answer": [""] * 8}), oai_tools=tools
    )
    sampling_args = {
        "max_tokens": 40,
        "logprobs": True,
        "seed": 0,
        "extra_body": {"return_token_ids": True},
    }
    with vf.EmbeddedEngine(model, tokenizer) as engine:
        run = env.a_generate(env.get_dataset(), engine, engine.model, sampling_args)
        return asyncio.run(run), model, tokenizer


def trainer_gap(model: Any, sequences: list[TokenSequence]) -> float:
    """Return how far the trainer's log-probabilities are from the sampler's at most."""
    samples = [Sample(sequence, 1.0, 1.0) for sequence in sequences]
    with torch.no_grad():
        gaps = [
            (batch_logprobs(model, batch)[0] - batch.sampler_logprobs).abs().max()
            for batch in micro_batches(samples, 512)
        ]
    return float(max(gaps))


@pytest.mark.parametrize(
    ("template", "tools"),
    [(CHATML, None), (CHATML, [TOOL]), (FORGETS, None)],
    ids=["chatml", "tools", "forgets-thinking"],
)
def test_trained_tokens_are_the_sampled_ones(template: str, tools: Any) -> None:
    outputs, model, _ = roll_out(template, tools)
    merged = [merge_turns(rollout_turns(state)) for state in outputs.state]
    if template == CHATML:
        # Only an answer that was cut off, and has no end token, is not what the next prompt begins with.
        assert all(len(m) == 1 or any(s.truncated for s in m) for m in merged)
    else:
        thought = ["</think>" in completion[0]["content"] for completion in outputs.completion]
        assert {len(m) for m, deep in zip(merged, thought, strict=True) if deep} == {2}
    for state, parts in zip(outputs.state, merged, strict=True):
        sampled = [i for r in state["responses"] for i in r.choices[0].token_ids]
        trained = [i for part in parts for i, m in zip(part.ids, part.mask, strict=True) if m]
        assert trained == sampled
    assert trainer_gap(model, [part for parts in merged for part in parts]) < 1e-4


def test_columns_refuse_a_template_that_rewrites_history() -> None:
    outputs, _, tokenizer = roll_out(FORGETS, None)
    arguments = (outputs.prompt, outputs.completion, outputs.state, outputs.reward, tokenizer)
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        process_env_results(*arguments)
    tokenizer.chat_template = CHATML
    columns = process_env_results(*arguments, mask_env_responses=True)
    for ids, mask, state in zip(
        columns.completion_ids, columns.completion_mask, outputs.state, strict=True
    ):
        sampled = [i for r in state["responses"] for i in r.choices[0].token_ids]
        assert [i for i, m in zip(ids, mask, strict=True) if m] == sampled
