"""Gradients of every objective agree with a naive reference: loops over sequences and single tokens."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

import verifiers_nb as vf
from verifiers_nb.inference.tokens import TokenSequence
from verifiers_nb.trainer.batching import Sample, micro_batches
from verifiers_nb.trainer.config import CHOICES
from verifiers_nb.trainer.logprobs import check_packing
from verifiers_nb.trainer.loss import (
    CORRECTIONS,
    LOSSES,
    cispo_loss,
    mask_weights,
    policy_loss,
    sapo_loss,
    token_weights,
    truncate_weights,
    unit_weights,
    vespo_loss,
)
from verifiers_nb.trainer.objective import micro_batch_loss
from verifiers_nb.trainer.shared_prompts import SHARED

# What the naive reference below writes out; a further function has its test beside it.
WRITTEN_OUT = {policy_loss, cispo_loss, sapo_loss, vespo_loss}
COMPARED = [name for name, row in LOSSES.items() if row.of_tokens in WRITTEN_OUT]
BOUNDS = {unit_weights, truncate_weights, mask_weights}
CORRECTED = [name for name, row in CORRECTIONS.items() if row.bound in BOUNDS]

SIZES = dict(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def make_policy(family: str = "qwen3") -> PeftModel:
    torch.manual_seed(0)
    if family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8))
    else:
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
    policy = get_peft_model(model.double(), vf.lora_defaults())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(8.0) if parameter.requires_grad else parameter.mul_(3.0)
        shift(policy, 0.05)
    return policy


@torch.no_grad()
def shift(policy: PeftModel, size: float) -> None:
    """Move the adapter a little, as a step would."""
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter += size * torch.randn_like(parameter)


def make_samples(loss_type: str) -> list[Sample]:
    """Two prompts, three answers each; one has an observation in the middle, one a single token."""
    draw = random.Random(1)
    masks = [[1] * 5, [1, 1, 0, 0, 1, 1, 0], [1], [1] * 3, [1] * 9, [1, 0, 1]]
    lengths = torch.tensor([sum(mask) for mask in masks])
    weights = token_weights(lengths, loss_type, max_tokens=10).tolist()
    advantages = [1.0, -0.5, 0.3, -1.0, 0.7, -0.2]
    samples = []
    for number, mask in enumerate(masks):
        prompt = [number // 3, 7, 8, 9, 10][: 3 + number // 3]
        ids = prompt + [draw.randrange(50) for _ in mask]
        sequence = TokenSequence(ids, [0] * len(prompt) + mask, [0.0] * len(ids))
        samples.append(Sample(sequence, advantages[number], weights[number]))
    return samples


def sequence_tokens(
    policy: PeftModel, sample: Sample, temperature: float
) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """Log-probability, entropy and the sampler's log-probability of each sampled token, one by one."""
    sequence = sample.sequence
    logits = policy(input_ids=torch.tensor([sequence.ids])).logits[0] / temperature
    tokens = []
    for place in range(1, len(sequence.ids)):
        if sequence.mask[place]:
            every = torch.log_softmax(logits[place - 1], -1)
            entropy = -(every.exp() * every).sum()
            tokens.append((every[sequence.ids[place]], entropy, sequence.logprobs[place]))
    return tokens


def all_tokens(policy: PeftModel, samples: list[Sample], args: vf.GRPOConfig) -> list:
    return [sequence_tokens(policy, sample, args.temperature) for sample in samples]


def let_sampler_differ(samples: list[Sample], tokens: list) -> None:
    """Give the samples log-probabilities of a sampler that computes a little differently."""
    draw = random.Random(3)
    for sample, own in zip(samples, tokens, strict=True):
        sequence, values = sample.sequence, iter(own)
        for place, sampled in enumerate(sequence.mask):
            if sampled:
                sequence.logprobs[place] = float(next(values)[0]) + draw.gauss(0, 0.3)


def naive_correction(old: list[float], sampled: list[float], args: vf.GRPOConfig) -> list[float]:
    row = CORRECTIONS[args.importance_sampling_mode]
    if row.bound is unit_weights:
        return [1.0] * len(old)
    ratios = [math.exp(a - b) for a, b in zip(old, sampled, strict=True)]
    if row.over is not None:
        ratios = [math.prod(ratios)] * len(ratios)
    if row.bound is truncate_weights:
        return [min(max(r, args.importance_floor), args.importance_cap) for r in ratios]
    return [r if args.importance_floor <= r <= args.importance_cap else 0.0 for r in ratios]


def quantile(ordered: list[float], share: float) -> float:
    """Between the two values at the place, as far as the place is between them."""
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place)) - 1e-7


def naive_loss(
    policy: PeftModel, samples: list[Sample], old: list, reference: list, args: vf.GRPOConfig
) -> torch.Tensor:
    """The objective as its papers write it: a sum over sequences of a sum over tokens."""
    total = torch.zeros((), dtype=torch.float64)
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    every = sorted(
        float(t[1].detach()) for s in samples for t in sequence_tokens(policy, s, args.temperature)
    )
    threshold = quantile(every, 1 - args.top_entropy_quantile)
    for number, sample in enumerate(samples):
        tokens = sequence_tokens(policy, sample, args.temperature)
        before = [float(token[0]) for token in old[number]]
        corrections = naive_correction(before, [token[2] for token in tokens], args)
        log_ratios = [token[0] - b for token, b in zip(tokens, before, strict=True)]
        sampled = [token[2] for token in tokens]
        weight = math.exp(
            sum(float(t[0].detach()) - b for t, b in zip(tokens, sampled, strict=True))
        )
        row = LOSSES[args.loss_type]
        if args.importance_sampling_level == "sequence" or row.by_sequence:
            log_ratios = [sum(log_ratios) / len(log_ratios)] * len(log_ratios)
        for i, (logprob, entropy, _) in enumerate(tokens):
            ratio, a = log_ratios[i].exp(), sample.advantage
            if row.of_tokens is cispo_loss:
                loss = -min(float(ratio.detach()), 1 + high) * a * logprob
            elif row.of_tokens is vespo_loss:
                k, decay = (2, 3) if a >= 0 else (3, 2)
                loss = -(weight**k) * math.exp(decay - decay * weight) * a * logprob
                corrections[i] = 1.0
            elif row.of_tokens is sapo_loss:
                t = 1.0 if a > 0 else 1.05
                loss = -4 / t / (1 + (-t * (ratio - 1)).exp()) * a
            elif a > 0:
                loss = -a * (ratio if ratio < 1 + high else torch.tensor(1 + high))
            else:
                capped = (
                    ratio if args.delta is None or ratio < args.delta else torch.tensor(args.delta)
                )
                loss = -a * (capped if ratio > 1 - args.epsilon else torch.tensor(1 - args.epsilon))
            difference = float(reference[number][i][0]) - logprob
            kl = difference.exp() - difference - 1
            if args.use_bias_correction_kl:
                kl = kl * (logprob - before[i]).exp()
            corrections[i] *= float(entropy.detach()) >= threshold
            token = corrections[i] * loss + args.beta * kl - args.entropy_coef * entropy
            total = total + sample.weight * token
    return total


def flat_gradient(policy: PeftModel, losses: Iterator[torch.Tensor]) -> torch.Tensor:
    policy.zero_grad()
    for loss in losses:
        loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def difference(policy: PeftModel, args: vf.GRPOConfig, shared: bool, budget: int = 30) -> float:
    """The relative distance of our gradient from the naive one, in the second pass over a batch."""
    torch.manual_seed(2)
    samples = make_samples(args.loss_type)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    with torch.no_grad():
        old = all_tokens(policy, samples, args)
        with policy.disable_adapter():
            reference = all_tokens(policy, samples, args)
        let_sampler_differ(samples, old)
        batches = list(micro_batches(samples, budget, shared))
        for batch in batches:
            micro_batch_loss(policy, batch, args)
    shift(policy, 0.02)
    ours = flat_gradient(policy, (micro_batch_loss(policy, batch, args)[0] for batch in batches))
    naive = flat_gradient(policy, iter([naive_loss(policy, samples, old, reference, args)]))
    policy.load_state_dict(before)
    assert float(naive.norm()) > 1e-4
    return float((ours - naive).norm() / naive.norm())


def settings(tmp_path: Path, **changes: object) -> vf.GRPOConfig:
    base = dict(beta=0.0, epsilon=0.05, temperature=0.8, use_cpu=True)
    return vf.GRPOConfig(str(tmp_path), **{**base, **changes})


@pytest.fixture(scope="module")
def policies() -> dict[bool, PeftModel]:
    """Two equal policies: packed rows, and shared prompts."""
    rows, shared = make_policy(), make_policy()
    check_packing(shared.get_base_model(), make_samples("grpo"), 1e-4, share_prompts=True)
    kinds = [each.get_base_model().config._attn_implementation for each in (shared, rows)]
    assert kinds == [SHARED, "sdpa"]
    return {False: rows, True: shared}


@pytest.mark.parametrize("loss_type", COMPARED)
@pytest.mark.parametrize("level", CHOICES["importance_sampling_level"])
@pytest.mark.parametrize("mode", CORRECTED)
def test_gradient_is_the_naive_one(
    loss_type: str, level: str, mode: str, policies: dict[bool, PeftModel], tmp_path: Path
) -> None:
    args = settings(
        tmp_path,
        loss_type=loss_type,
        importance_sampling_level=level,
        importance_sampling_mode=mode,
        importance_cap=1.5,
        importance_floor=0.6,
    )
    for shared, policy in policies.items():
        assert difference(policy, args, shared) < 1e-5


@pytest.mark.parametrize("level", CHOICES["importance_sampling_level"])
@pytest.mark.parametrize(
    "changes",
    [
        dict(beta=0.3),
        dict(beta=0.3, use_bias_correction_kl=True),
        dict(entropy_coef=0.2),
        dict(epsilon_high=0.3),
        dict(epsilon=0.01, delta=1.05),
        dict(loss_type="cispo", epsilon_high=0.0, beta=0.1, entropy_coef=0.1),
        dict(top_entropy_quantile=0.3, beta=0.1),
    ],
    ids=str,
)
def test_every_term_is_the_naive_one(
    level: str, changes: dict, policies: dict[bool, PeftModel], tmp_path: Path
) -> None:
    args = settings(tmp_path, importance_sampling_level=level, **changes)
    for shared, policy in policies.items():  # the highest entropies are those of a micro-batch
        budget = 300 if "top_entropy_quantile" in changes else 30
        assert difference(policy, args, shared, budget) < 1e-5


def test_something_is_clipped_and_something_is_not(
    policies: dict[bool, PeftModel], tmp_path: Path
) -> None:
    """The comparisons above would prove little if no ratio left the clip range."""
    args, policy = settings(tmp_path), policies[False]
    (batch,) = micro_batches(make_samples("grpo"), 200)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    with torch.no_grad():
        micro_batch_loss(policy, batch, args)
        torch.manual_seed(2)
        shift(policy, 0.02)
        clipped = micro_batch_loss(policy, batch, args)[1]["clipped"]
    policy.load_state_dict(before)
    assert 0.1 < float(clipped.mean()) < 0.9


def test_another_family_and_gradient_checkpointing(tmp_path: Path) -> None:
    args = settings(tmp_path, beta=0.1)
    policy = make_policy("llama").train()
    check_packing(policy.get_base_model(), make_samples("grpo"), 1e-4, share_prompts=True)
    assert policy.get_base_model().config._attn_implementation == SHARED
    policy.gradient_checkpointing_enable({"use_reentrant": False})
    for shared, budget in itertools.product((False, True), (1, 12, 200)):
        assert difference(policy, args, shared, budget) < 1e-5


def test_bf16_gradient_is_near_the_exact_one(tmp_path: Path) -> None:
    args = settings(tmp_path, epsilon=0.2)
    exact, rounded = make_policy(), make_policy().to(torch.bfloat16)
    gradients = []
    for policy in (exact, rounded):
        batches = micro_batches(make_samples("grpo"), 200)
        gradients.append(
            flat_gradient(policy, (micro_batch_loss(policy, b, args)[0] for b in batches))
        )
    cosine = torch.cosine_similarity(gradients[0].double(), gradients[1].double(), dim=0)
    assert float(cosine) > 0.99
