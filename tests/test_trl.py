"""Advantages and gradients are those of TRL's GRPOTrainer with equal settings, on the same rollouts."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

import verifiers_nb as vf
from verifiers_nb.inference.tokens import TokenSequence
from verifiers_nb.trainer.advantage import rollout_advantages
from verifiers_nb.trainer.batching import Sample, micro_batches
from verifiers_nb.trainer.loss import token_weights
from verifiers_nb.trainer.objective import micro_batch_loss

trl = pytest.importorskip("trl")
GROUP, PROMPT, LIMIT, HEAT, CAP = 4, 5, 12, 0.8, 1.5
LENGTHS = [12, 3, 7, 1, 5, 9, 12, 4]
CUT = 6  # the rollout that is cut off, and masked
REWARDS = torch.tensor([1.0, 0, 0.5, 0, 0.2, 1, 0, 0.7])
DRAW = random.Random(0)
PROMPTS = [[DRAW.randrange(300) for _ in range(PROMPT)] for _ in range(2)]
ANSWERS = [[DRAW.randrange(300) for _ in range(n)] for n in LENGTHS]
MASK = torch.tensor([[i != CUT and at < n for at in range(LIMIT)] for i, n in enumerate(LENGTHS)])


@pytest.fixture(scope="module")
def policy() -> PeftModel:
    """Return a small policy whose adapter changes something."""
    torch.manual_seed(0)
    shape = dict(vocab_size=300, hidden_size=64, intermediate_size=64, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    policy = get_peft_model(Qwen3ForCausalLM(Qwen3Config(**shape, **heads)), vf.lora_defaults())
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(3 if weight.dim() > 1 else 1)
    move(policy, 0.1)
    return policy


def learnt(policy: PeftModel) -> dict[str, torch.nn.Parameter]:
    return {name: weight for name, weight in policy.named_parameters() if ".default." in name}


@torch.no_grad()
def move(policy: PeftModel, size: float) -> None:
    """Move the adapter a little, as a step would."""
    for weight in learnt(policy).values():
        weight += size * torch.randn_like(weight)


@torch.no_grad()
def token_logprobs(policy: PeftModel) -> torch.Tensor:
    """Return the log-probability of each token of the answers, [rollouts, LIMIT]."""
    found = torch.zeros(MASK.shape)
    for i, answer in enumerate(ANSWERS):
        logits = policy(torch.tensor([PROMPTS[i // GROUP] + answer])).logits[0, PROMPT - 1 : -1]
        found[i, : len(answer)] = (logits / HEAT).log_softmax(-1)[range(len(answer)), answer]
    return found


def our_batches(args: vf.GRPOConfig, advantages: torch.Tensor, sampled: torch.Tensor) -> list[Any]:
    weights = token_weights(MASK.sum(1), args.loss_type, LIMIT)
    samples = []
    for i, answer in enumerate(ANSWERS):
        mask = [0] * PROMPT + [1] * len(answer)
        logprobs = [0.0] * PROMPT + sampled[i, : len(answer)].tolist()
        sequence = TokenSequence(PROMPTS[i // GROUP] + answer, mask, logprobs)
        samples.append(Sample(sequence, float(advantages[i]), float(weights[i])))
    del samples[CUT]
    return list(micro_batches(samples, 30 if args.top_entropy_quantile == 1 else 1000))


def their_trainer(policy: PeftModel, folder: Path, **settings: Any) -> Any:
    """Return TRL's trainer of a copy of the policy; its reward function fails for rollout CUT."""
    plain = dict(report_to="none", bf16=False, gradient_checkpointing=False, use_cpu=True)
    settings = plain | dict(num_generations=GROUP, max_completion_length=LIMIT) | settings
    rewards = [None if i == CUT else reward for i, reward in enumerate(REWARDS.tolist())]
    return trl.GRPOTrainer(
        copy.deepcopy(policy),
        lambda **_: rewards,
        trl.GRPOConfig(str(folder), per_device_train_batch_size=len(ANSWERS), **settings),
        Dataset.from_list([{"prompt": "?"}] * len(ANSWERS)),
        processing_class=vf.get_tokenizer("verifiers_nb/adder-1m"),
    )


def their_inputs(advantages: torch.Tensor, old: torch.Tensor, sampled: torch.Tensor) -> dict:
    ids = torch.tensor([answer + [0] * (LIMIT - len(answer)) for answer in ANSWERS])
    prompts = torch.tensor([PROMPTS[i // GROUP] for i in range(len(ANSWERS))])
    return {
        "prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": ids,
        "completion_mask": MASK.long(), "advantages": advantages, "old_per_token_logps": old,
        "num_items_in_batch": MASK.sum(), "importance_sampling_ratio": (old - sampled).exp().clamp(max=CAP),
    }  # fmt: skip


SAME: list[dict[str, Any]] = [
    *(dict(loss_type=each) for each in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo")),
    *(dict(loss_type=each, importance_sampling_level="sequence") for each in ("grpo", "luspo")),
    dict(epsilon_high=0.1),
    dict(epsilon=0.01, delta=1.2),
    dict(use_bias_correction_kl=True),
    dict(top_entropy_quantile=0.3),
    dict(loss_type="dapo", entropy_coef=0.05),
    dict(loss_type="cispo", epsilon_high=0.04),
]


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_the_advantages_are_those_of_trl(scale: str, policy: PeftModel, tmp_path: Path) -> None:
    trainer = their_trainer(policy, tmp_path, scale_rewards=scale)
    found = trainer._generate_and_score_completions([{"prompt": "?"}] * len(ANSWERS))
    ours = rollout_advantages(REWARDS, GROUP, torch.arange(len(ANSWERS)) != CUT, scale=scale)
    torch.testing.assert_close(ours, found["advantages"])


@pytest.mark.parametrize("changes", SAME, ids=str)
def test_the_gradient_is_that_of_trl(
    changes: dict[str, Any], policy: PeftModel, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    kept = {name: weight.detach().clone() for name, weight in learnt(policy).items()}
    settings = dict(
        beta=0.1, temperature=HEAT, epsilon=0.05, loss_type="dr_grpo", use_bias_correction_kl=False
    )
    settings |= changes
    args = vf.GRPOConfig(
        str(tmp_path), **settings, num_generations=GROUP, per_device_train_batch_size=len(ANSWERS),
        max_tokens=LIMIT, importance_cap=CAP, use_cpu=True,
    )  # fmt: skip
    if args.loss_type == "cispo":  # TRL's is the cap itself
        settings["epsilon_high"] = 1 + float(changes["epsilon_high"])
    trainer = their_trainer(policy, tmp_path, **settings)
    trainer.current_gradient_accumulation_steps, trainer.use_vllm = 1, True
    advantages = rollout_advantages(REWARDS, GROUP)
    old = token_logprobs(policy)
    with policy.disable_adapter():
        reference = token_logprobs(policy)
    sampled = old + 0.3 * torch.randn(old.shape)
    batches = our_batches(args, advantages, sampled)
    with torch.no_grad():
        for batch in batches:
            micro_batch_loss(policy, batch, args)
    move(policy, 0.02)
    policy.zero_grad()
    for batch in batches:
        micro_batch_loss(policy, batch, args)[0].backward()
    theirs = learnt(trainer.model)
    for name, weight in learnt(policy).items():
        theirs[name].data = weight.data.clone()
    inputs = their_inputs(advantages, old, sampled) | {"ref_per_token_logps": reference}
    trainer._compute_loss(trainer.model.train(), inputs).backward()
    for name, weight in learnt(policy).items():
        torch.testing.assert_close(weight.grad, theirs[name].grad, rtol=1e-3, atol=1e-5)
        weight.data = kept[name]
