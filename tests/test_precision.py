"""Half precision, other attention kernels and peaks of memory, each on the processor."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers import modeling_flash_attention_utils as flash_attention

import verifiers_nb as vf
from verifiers_nb.inference.tokens import TokenSequence
from verifiers_nb.trainer import shared_prompts
from verifiers_nb.trainer.batching import Sample, build_micro_batch, build_shared_batch
from verifiers_nb.trainer.logprobs import batch_logprobs, check_packing, sequences_leak
from verifiers_nb.trainer.loop import OneProcess, train_step
from verifiers_nb.trainer.objective import micro_batch_loss
from verifiers_nb.trainer.samples import StepBatch
from verifiers_nb.trainer.shared_prompts import (
    SHARED,
    enable_shared_prompts,
    shared_prompt_attention,
)

MODEL = "verifiers_nb/adder-1m"
GIB = 2**30


def sample(prompt: int, answer: int, seed: int = 0, advantage: float = 1.0) -> Sample:
    """Return a sample of so many tokens of prompt and answer."""
    draw = torch.Generator().manual_seed(seed)
    ids = [*range(5, 5 + prompt), *torch.randint(5, 200, (answer,), generator=draw).tolist()]
    mask = [0] * prompt + [1] * answer
    return Sample(TokenSequence(ids, mask, [-1.0] * len(ids)), advantage, 0.01)


class Memory(TorchDispatchMode):
    """Count the bytes of all tensors that are made, as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.alive:
                    self.alive[storage._cdata] = storage.nbytes()
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self.gone, storage._cdata)
                    self.peak = max(self.peak, self.now)
                    self.largest = max(self.largest, storage.nbytes())
        return made

    def gone(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


def fused(query: Any, key: Any, value: Any, attn_mask: Any = None, **settings: Any) -> Any:
    """Stand in for a fused kernel, which takes as many key heads as query heads, on the meta device."""
    if settings.get("enable_gqa"):
        return scaled_dot_product_attention(query, key, value, enable_gqa=True)  # all scores
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(query, key, value, 0.0, True)[0]


def patch_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make masks of no size, which no mode can follow, outside of modes."""
    bias = shared_prompts.causal_lower_right

    def outside(*shape: int) -> Any:
        with _disable_current_modes():
            return bias(*shape)

    monkeypatch.setattr(shared_prompts, "causal_lower_right", outside)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of the meta device be computed like those of a card without flash attention."""
    patch_bias(monkeypatch)
    monkeypatch.setattr(shared_prompts, "scaled_dot_product_attention", fused)


def qwen3(**changes: Any) -> Any:
    """Return a policy of the shape of Qwen3-0.6B in bfloat16 that takes no memory."""
    shape = dict(
        vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
        max_position_embeddings=40_960,
    )  # fmt: skip
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**{**shape, **changes})).to(torch.bfloat16)
    policy = get_peft_model(model, vf.lora_defaults(r=16)).train()
    policy.get_base_model().gradient_checkpointing_enable()
    enable_shared_prompts(policy.get_base_model())
    return policy


@pytest.mark.parametrize(
    "samples", [[sample(400, 16_000)], [sample(256, 400, i) for i in range(40)]]
)
def test_a_step_of_16k_tokens_takes_little_memory(
    samples: list[Sample], card: None, tmp_path: Path
) -> None:
    """Beside weights and adapter: activations with checkpointing, and blocks of logits."""
    policy = qwen3()
    batch = build_shared_batch(samples).to("meta")
    assert batch.input_ids.numel() > 16_000
    args = vf.GRPOConfig(str(tmp_path), use_cpu=True, beta=0.01)
    weights = sum(p.numel() * p.element_size() for p in policy.parameters())
    with Memory() as memory:
        loss, _ = micro_batch_loss(policy, batch, args)
        loss.backward()
    assert memory.largest < 0.3 * GIB  # neither all logits nor all scores
    assert memory.peak + weights < 5 * GIB


@pytest.mark.skipif(
    shared_prompts.varlen_attn is None,
    reason="PyTorch knows sequences of many lengths from 2.10 on",
)
def test_one_call_a_layer_where_a_card_takes_all_lengths(
    monkeypatch: pytest.MonkeyPatch, card: None, tmp_path: Path
) -> None:
    """PyTorch's own operator, on tensors without memory: one call forward, and no more memory than in spans."""
    samples = [sample(200 + i % 7, 100 + 9 * i, i) for i in range(60)]
    args = vf.GRPOConfig(str(tmp_path), use_cpu=True, beta=0.0)
    peaks, calls = [], Counter[str]()

    class Calls(Memory):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls[str(func)] += 1
            return super().__torch_dispatch__(func, types, args, kwargs)

    for at_once in (False, True):
        monkeypatch.setattr(shared_prompts, "takes_all_lengths", lambda *_, yes=at_once: yes)
        policy, batch = qwen3(num_hidden_layers=3), build_shared_batch(samples).to("meta")
        assert batch.input_ids.numel() > 16_000 and batch.shared and len(batch.shared.queries) > 30
        with Calls() as memory:
            loss, _ = micro_batch_loss(policy, batch, args)
            loss.backward()
        peaks.append(memory.peak)
    assert calls["torch_attn._varlen_attn.default"] == 2 * 3  # forward, and again for checkpoints
    assert calls["torch_attn._varlen_attn_backward.default"] == 3
    assert peaks[1] <= peaks[0]


def varlen(query: Any, key: Any, value: Any, *sizes: Any, **settings: Any) -> Any:
    """Stand in for the card's operator: sequences one after the other."""
    starts, key_starts, parts = sizes[0].tolist(), sizes[1].tolist(), []
    for own, its in zip(pairwise(starts), pairwise(key_starts), strict=True):
        rows = (
            e[slice(*b)].transpose(0, 1)[None] for e, b in ((query, own), (key, its), (value, its))
        )
        parts.append(shared_prompts.attend(*rows, None, scale=settings["scale"])[0].transpose(0, 1))
    return torch.cat(parts)


def test_one_call_computes_what_spans_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities and gradients, and the check of packing accepts it; a card that refuses shares nothing."""
    samples = [sample(5 + i % 3, 4 + 3 * i, i) for i in range(9)]
    found = []
    for at_once in (False, True):
        monkeypatch.setattr(shared_prompts, "takes_all_lengths", lambda *_, yes=at_once: yes)
        monkeypatch.setattr(shared_prompts, "varlen_attn", varlen)
        policy = policy_of()
        check_packing(policy.get_base_model(), samples, share_prompts=True)
        assert policy.get_base_model().config._attn_implementation == SHARED
        logprobs, _ = batch_logprobs(policy.get_base_model(), build_shared_batch(samples))
        logprobs.sum().backward()
        learnt = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
        found.append((logprobs.detach(), torch.cat(learnt)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel for this head")

    monkeypatch.setattr(shared_prompts, "varlen_attn", refuse)
    model = vf.get_model(MODEL)
    with pytest.warns(UserWarning, match="not shared: no kernel for this head"):
        check_packing(model, samples, share_prompts=True)
    assert model.config._attn_implementation == "sdpa"


def test_the_packing_check_makes_no_full_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = dict(vocab_size=151_936, hidden_size=32, intermediate_size=32, head_dim=16)
    heads = dict(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    model = Qwen3ForCausalLM(Qwen3Config(**shape, **heads)).eval()
    patch_bias(monkeypatch)
    with Memory() as memory:
        check_packing(model, [sample(20, 200, i) for i in range(3)], share_prompts=True)
    assert model.config._attn_implementation == SHARED
    assert memory.largest < 130 * 151_936 * 4  # of 660 tokens


def flash_func(query: Any, key: Any, value: Any, *args: Any, **settings: Any) -> Any:
    """Attend as flash attention does: [B, T, heads, D], causal."""
    parts = (each.transpose(1, 2) for each in (query, key, value))
    causal = settings.get("causal", True)
    out = scaled_dot_product_attention(*parts, is_causal=causal, enable_gqa=True)
    return out.transpose(1, 2)


def flash_varlen_func(
    query: Any, key: Any, value: Any, cu_seqlens_q: Any = None, *args: Any, **settings: Any
) -> Any:
    """Attend as flash attention does to sequences laid end to end: [T, heads, D]."""
    bounds = zip(cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:], strict=False)
    parts = [[each[None, a:b] for each in (query, key, value)] for a, b in bounds]
    return torch.cat([flash_func(*each)[0] for each in parts])


@pytest.fixture
def flash_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a model with transformers' own path to flash attention, whose kernel is ours."""
    kernels = (flash_func, flash_varlen_func, None, None, None)
    monkeypatch.setattr(flash_attention, "_lazy_imports", lambda *args, **kwargs: kernels)
    monkeypatch.setattr(flash_attention, "_loaded_implementation", None)
    model = vf.get_model(MODEL)
    model.config._attn_implementation = "flash_attention_2"
    yield model.eval()


def test_flash_attention_gets_one_row(flash_model: Any) -> None:
    samples = [sample(4, n, n) for n in (9, 5, 7, 3, 8)]
    rows = [[0, 1], [2]]
    assert sequences_leak(flash_model, samples[:3], lambda three: build_micro_batch(three, rows))
    assert not sequences_leak(
        flash_model, samples[:3], lambda three: build_micro_batch(three, [[0, 1, 2]])
    )
    check_packing(flash_model, samples)
    plain, alone = vf.get_model(MODEL).eval(), []
    for each in samples:
        alone.append(batch_logprobs(plain, build_micro_batch([each], [[0]]))[0])
    policy = get_peft_model(flash_model, vf.lora_defaults())
    step = StepBatch(samples, [1.0] * 5, {})
    args = vf.GRPOConfig("unused", use_cpu=True, beta=0.0, tokens_per_micro_batch=40)
    train_step(policy, step, args)
    assert [batch.input_ids.shape[0] for batch in step.micro_batches or []] == [1, 1]
    for batch in step.micro_batches or []:
        logprobs = batch_logprobs(flash_model, batch)[0]
        for number in range(int(batch.sequences.max()) + 1):
            own = batch.sequences == number
            [same] = [a for a in alone if len(a) == int(own.sum())]
            torch.testing.assert_close(logprobs[own], same, atol=1e-4, rtol=0)


class HalfPrecision(OneProcess):
    """A process that computes as Trainer does with `fp16=True` or `bf16=True`: autocast, scaled gradients."""

    def __init__(self, dtype: torch.dtype, scale: float) -> None:
        self.dtype = dtype
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1)
        self.scales_gradients = scale != 1

    def run(self, policy: Any, work: Any, *arguments: Any) -> Any:
        """Return `work(policy, *arguments)`, computed in half precision."""
        with torch.autocast("cpu", dtype=self.dtype):
            return work(policy, *arguments)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of the scaled loss."""
        self.scaler.scale(loss).backward()


def policy_of(seed: int = 0) -> Any:
    """Return a policy with an adapter that changes something."""
    torch.manual_seed(seed)
    policy = get_peft_model(vf.get_model(MODEL), vf.lora_defaults(r=16)).eval()
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return policy


def steps_of(dtype: torch.dtype | None, scale: float, steps: int) -> tuple[Any, Any, Any]:
    """Return the policy, its last gradient and its loss after some steps on fixed samples."""
    policy = policy_of()
    check_packing(policy.get_base_model(), [sample(9, 30, i) for i in range(3)], share_prompts=True)
    samples = [sample(9, 30, i, advantage=(-1) ** i * 1e-4) for i in range(8)]
    args = vf.GRPOConfig("unused", use_cpu=True, beta=0.01, learning_rate=1e-3)
    process = OneProcess() if dtype is None else HalfPrecision(dtype, scale)
    scaler = getattr(process, "scaler", torch.amp.GradScaler("cpu", enabled=False))
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        batch = StepBatch(samples, [0.0] * 8, {})
        loss, metrics = train_step(policy, batch, args, process)
        scaler.unscale_(optimizer)
        learnt = [p for p in policy.parameters() if p.grad is not None]
        gradient = torch.cat([p.grad.flatten() for p in learnt])
        scaler.step(optimizer)
        scaler.update()
    return policy, gradient, (loss, metrics)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 2.0**16), (torch.bfloat16, 1)])
def test_half_precision_learns_what_float32_does(dtype: torch.dtype, scale: float) -> None:
    """What a T4 computes, on the processor: float16 autocast over float32 weights, with a GradScaler."""
    policy, gradient, (loss, metrics) = steps_of(dtype, scale, steps=1)
    _, exact, (exact_loss, exact_metrics) = steps_of(None, 1, steps=1)
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    allowed = 0.02 if dtype == torch.float16 else 0.1
    assert (gradient - exact).norm() < allowed * exact.norm()
    assert abs(float(loss - exact_loss)) < allowed * abs(float(exact_loss))
    assert abs(metrics["entropy"] - exact_metrics["entropy"]) < 2e-3
    policy, gradient, _ = steps_of(dtype, scale, steps=5)
    assert gradient.isfinite().all() and bool(gradient.any())


def test_a_gradient_that_overflows_skips_the_step() -> None:
    """A scale that is too large is lowered, as GradScaler does, and ends nothing."""
    policy, gradient, (loss, _) = steps_of(torch.float16, 2.0**60, steps=1)
    assert loss.isfinite() and not gradient.isfinite().all()
    for before, after in zip(policy_of().parameters(), policy.parameters(), strict=True):
        assert torch.equal(before, after)


def test_dropout_in_the_adapter_trains_and_resumes(tmp_path: Path) -> None:
    lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.3)
    sizes = dict(per_device_train_batch_size=8, num_generations=4, max_tokens=24)

    def run(steps: int, resume: bool) -> Any:
        args = vf.GRPOConfig(
            str(tmp_path), use_cpu=True, disable_tqdm=True, max_steps=steps, save_steps=1,
            learning_rate=1e-3, sync_ref_model=True, ref_model_sync_steps=1, **sizes,
        )  # fmt: skip
        env = vf.load_environment("addition")
        trainer = vf.GRPOTrainer(MODEL, env, args, peft_config=lora)
        try:
            trainer.train(resume_from_checkpoint=resume)
        finally:
            trainer.close()
        return trainer

    run(2, resume=False)
    resumed = run(4, resume=True)
    assert resumed.state.global_step == 4
    assert resumed.model.get_base_model().config._attn_implementation == SHARED


def test_one_sequence_in_a_row_has_no_matrix_of_scores(
    card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers leaves the mask out there, and would ask for shared heads on every card."""
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused)
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    query, key = (torch.empty(1, n, 16_000, 128, device="meta") for n in (16, 8))
    with Memory() as memory:
        shared_prompt_attention(module, query, key, key, None)
    assert memory.largest == query.numel() * 4
    with Memory() as memory:  # where flash attention can be used, transformers' way is the best
        monkeypatch.setattr(shared_prompts, "can_use_flash_attention", lambda params: True)
        shared_prompt_attention(module, query, key, key, None)
    assert memory.largest >= 16 * 16_000**2 * 4  # the stand-in has no flash attention
