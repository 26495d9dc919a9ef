"""Shapes of real models with random weights, on whatever device is here; on a GPU in half precision.

Without a GPU the same tests run on a tiny shape, so that every line of them is known to run.
"""

from __future__ import annotations

import asyncio
import copy
import random
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

import verifiers_nb as vf
from verifiers_nb.inference.decode import CachedDecoder
from verifiers_nb.inference.engine import EmbeddedEngine
from verifiers_nb.inference.graph import GraphDecoder, fastest_decoder
from verifiers_nb.inference.tokens import TokenSequence
from verifiers_nb.support.fused_layers import use_fused_layers
from verifiers_nb.support.memory import best_device, read_shape, step_bytes
from verifiers_nb.trainer import shared_prompts
from verifiers_nb.trainer.batching import Sample, build_micro_batch, build_shared_batch
from verifiers_nb.trainer.logprobs import batch_logprobs, check_packing

DEVICE = best_device()
ON_GPU = DEVICE == "cuda"
QWEN = dict(vocab_size=151_936, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {**QWEN, **dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16)},
    "Qwen3-4B": {**QWEN, **dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32)},
}  # fmt: skip
TINY = dict(
    vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
)  # fmt: skip
KINDS = [torch.bfloat16, torch.float16] if ON_GPU else [torch.float32]
MODELS = [(name, dtype) for name in SHAPES for dtype in KINDS] if ON_GPU else [("tiny", KINDS[0])]

# Of log-probabilities, in nats. The numbers of bfloat16 have three bits less than those of float16.
NOISE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.08}


@pytest.fixture(params=MODELS, ids=lambda each: f"{each[0]} {each[1]}".replace("torch.", ""))
def model(request: pytest.FixtureRequest) -> Any:
    """Return a model of random weights on the device."""
    name, dtype = request.param
    torch.manual_seed(0)
    with torch.device(DEVICE):
        made = Qwen3ForCausalLM._from_config(Qwen3Config(**SHAPES.get(name, TINY)), dtype=dtype)
    yield made.eval().requires_grad_(False)
    del made
    if ON_GPU:
        torch.cuda.empty_cache()


def groups(model: Any, prompt: int, answers: tuple[int, ...]) -> list[Sample]:
    """Return sequences of random tokens that share a prompt."""
    chance, samples = random.Random(1), []
    start = [chance.randrange(len(model.get_output_embeddings().weight)) for _ in range(prompt)]
    for length in answers:
        ids = start + [chance.randrange(300) for _ in range(length)]
        mask, logprobs = [0] * prompt + [1] * length, [0.0] * (prompt + length)
        samples.append(Sample(TokenSequence(ids, mask, logprobs), 1.0, 1.0))
    return samples


def test_packed_sequences_do_not_see_each_other(model: Any) -> None:
    """To the last bit, in any precision."""
    check_packing(model, groups(model, 40, (60, 90, 30)))


@torch.no_grad()
def test_shared_prompts_are_exact(model: Any) -> None:
    """As near to packed rows as packed rows are to sequences alone."""
    samples = groups(model, 100, (60, 90, 30))
    alone = [build_micro_batch([each], [[0]]).to(DEVICE) for each in samples]
    expected = torch.cat([batch_logprobs(model, each)[0] for each in alone])
    packed = batch_logprobs(model, build_micro_batch(samples, [[0, 1, 2]]).to(DEVICE))[0]
    order = build_micro_batch(samples, [[0, 1, 2]]).sequences.argsort(stable=True)
    check_packing(model, samples, share_prompts=True)
    shared = batch_logprobs(model, build_shared_batch(samples).to(DEVICE))[0]
    noise = float((packed.cpu()[order] - expected.cpu()).abs().mean())
    limit = max(3 * noise, 1e-4 if model.dtype == torch.float32 else 0.02)
    assert float((shared - expected).abs().mean()) <= limit


def test_one_call_a_layer_computes_what_spans_do(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities and gradients of prompts and completions of many lengths."""
    samples = [s for n in (40, 57, 90) for s in groups(model, n, (60, 90, 31))]
    policy = get_peft_model(copy.deepcopy(model), vf.lora_defaults(r=16)).eval()
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    base, able, found, taken = policy.get_base_model(), shared_prompts.takes_all_lengths, [], []
    check_packing(base, samples, share_prompts=True)
    for at_once in (False, True):

        def choose(*tensors: Any, wanted: bool = at_once) -> bool:
            taken.append(able(*tensors))
            return wanted and taken[-1]

        monkeypatch.setattr(shared_prompts, "takes_all_lengths", choose)
        policy.zero_grad()
        logprobs, _ = batch_logprobs(base, build_shared_batch(samples).to(DEVICE))
        (logprobs.sum() / len(logprobs)).backward()
        learnt = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
        found.append((logprobs.detach(), torch.cat(learnt).float()))
    modern = ON_GPU and torch.cuda.get_device_capability() >= (8, 0)
    assert set(taken) == {modern and shared_prompts.varlen_takes("window_size")}
    close = NOISE[model.dtype]
    difference = float((found[0][0] - found[1][0]).abs().mean())
    direction = float(torch.cosine_similarity(found[0][1], found[1][1], dim=0))
    print(f"difference {difference:.4f}, cosine {direction:.4f}")
    assert difference < close and direction > (0.95 if model.dtype == torch.bfloat16 else 0.99)


@torch.no_grad()
def test_the_loss_in_chunks_is_that_of_whole_logits(model: Any) -> None:
    """Against logits in float32, computed from the same hidden states."""
    [sample] = groups(model, 20, (50,))
    batch = build_micro_batch([sample], [[0]]).to(DEVICE)
    logprobs, entropy = batch_logprobs(model, batch)
    hidden = model.get_decoder()(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    logits = (
        hidden.flatten(0, 1)[batch.places].float() @ model.get_output_embeddings().weight.float().T
    )
    whole = logits.log_softmax(-1)
    close = 1e-4 if model.dtype == torch.float32 else 0.02
    assert float((logprobs - whole.gather(1, batch.targets[:, None])[:, 0]).abs().max()) < close
    assert float((entropy + (whole.exp() * whole).sum(-1)).abs().max()) < close


def test_the_engine_says_what_generate_says(model: Any) -> None:
    """Greedy answers of two prompts at once, until rounding decides between two tokens."""
    prompts = [[5, 6, 7, 8], list(range(20, 60))]
    with EmbeddedEngine(model, device=DEVICE, dtype=model.dtype) as engine:

        async def ask() -> list[Any]:
            create = engine.completions.create
            asked = (
                create(prompt=p, max_tokens=12, temperature=0, logprobs=0, ignore_eos=True)
                for p in prompts
            )
            return await asyncio.gather(*asked)

        answers = asyncio.run(ask())
    limit = 2.5 * NOISE[model.dtype]
    for prompt, answer in zip(prompts, answers, strict=True):
        [choice] = answer.choices
        ids = torch.tensor([prompt], device=DEVICE)
        settings = dict(do_sample=False, max_new_tokens=12, min_new_tokens=12, pad_token_id=0)
        greedy = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[
            0, ids.shape[1] :
        ]
        logits = model(torch.tensor([prompt + choice.token_ids], device=DEVICE)).logits[
            0, len(prompt) - 1 : -1
        ]
        logprobs = logits.float().log_softmax(-1)
        for place, (mine, theirs) in enumerate(zip(choice.token_ids, greedy.tolist(), strict=True)):
            if mine != theirs:
                assert float((logprobs[place, mine] - logprobs[place, theirs]).abs()) < limit
                break
        said = torch.tensor(choice.logprobs.token_logprobs)
        gap = (logprobs.cpu()[range(12), choice.token_ids] - said).abs()
        assert float(gap.mean()) < limit


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU: CUDA records the graphs")
@torch.inference_mode()
def test_recorded_steps_say_what_usual_ones_do(model: Any) -> None:
    """While sequences join and leave, while the cache grows, and after other weights."""
    decoder, usual = fastest_decoder(copy.deepcopy(model)), CachedDecoder(copy.deepcopy(model))
    assert isinstance(decoder, GraphDecoder)
    chance, found, made, rows = random.Random(1), [], 0, 0

    def play(steps: int) -> None:
        nonlocal made
        for _ in range(steps):
            tokens = [chance.randrange(300) for _ in range(rows)]
            both = [each.step(tokens).log_softmax(-1) for each in (decoder, usual)]
            found.append(float((both[0] - both[1]).abs().mean()))
        made += len(decoder.recorded)

    for joining in ([40, 7, 300], [5] * 6):
        prompts = [[chance.randrange(300) for _ in range(length)] for length in joining]
        rows += len(prompts)
        for each in (decoder, usual):
            each.join(prompts)
        play(45)
    for order in ([0, 8, 2, 7], [3]):
        rows = len(order)
        for each in (decoder, usual):
            each.keep(order)
        play(45)
    for each in (decoder, usual):
        norm = each.model.model.norm.weight
        norm.data = 0.5 * norm.data
    play(4)
    assert decoder.can_record and made >= 5
    assert max(found) < NOISE[model.dtype], [round(each, 4) for each in found]


def test_fused_layers_learn_what_those_of_peft_learn(model: Any) -> None:
    """Log-probabilities and gradients in half precision; layers alone are exact up to rounding."""
    samples = groups(model, 40, (60, 90, 31))
    batch = build_micro_batch(samples, [[0, 1, 2]]).to(DEVICE)
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        lora = vf.lora_defaults(r=16)
        policy = get_peft_model(copy.deepcopy(model), lora).eval()
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.02)
        if fused:
            use_fused_layers(policy)
        half = torch.float16 if model.dtype == torch.float16 else torch.bfloat16
        with torch.autocast(DEVICE, half):
            logprobs, _ = batch_logprobs(policy.get_base_model(), batch)
        (logprobs.sum() / len(logprobs)).backward()
        learnt = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
        found.append((logprobs.detach(), torch.cat(learnt).float()))
    assert float((found[0][0] - found[1][0]).abs().mean()) < NOISE[torch.bfloat16]
    assert torch.cosine_similarity(found[0][1], found[1][1], dim=0) > 0.99


def test_a_step_takes_what_the_plan_says(model: Any) -> None:
    """Forward and backward with gradient checkpointing, at the plan's number of tokens."""
    if model.dtype == torch.float16:
        pytest.skip("the plan knows half precision, of either kind")
    policy = get_peft_model(copy.deepcopy(model), vf.lora_defaults(r=16, alpha=32)).train()
    policy.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = 8192 if ON_GPU else 256
    samples = groups(model, 16, (tokens // 4 - 16,) * 4)
    batch = build_micro_batch(samples, [[0, 1, 2, 3]]).to(DEVICE)
    if ON_GPU:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if ON_GPU else 0
    with torch.autocast(DEVICE, torch.bfloat16, enabled=ON_GPU):
        logprobs, _ = batch_logprobs(policy.get_base_model(), batch)
    logprobs.sum().backward()
    assert any(weight.grad is not None for weight in policy.parameters())
    if ON_GPU:
        used = torch.cuda.max_memory_allocated() - before
        planned = step_bytes(read_shape(model.config), tokens)
        print(f"used {used / 2**30:.2f} GiB, planned {planned / 2**30:.2f} GiB")
        assert used <= planned <= 2.5 * used


def test_the_figures_are_those_of_the_gpu() -> None:
    """The cells for the CPU, which follow in the notebook, need TRL and would take the GPU's time."""
    space: dict[str, Any] = {"__name__": "benchmark"}
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools/gpu.py"))
    exec(tool["benchmark_cells"](), space)
    assert callable(space["jobs_of_card"]) and "gradients" not in space and "kept" not in space


def test_a_real_model_comes_in_parts_and_the_tutorial_fits_the_gpu(tmp_path: Path) -> None:
    """The tool changes a few words of the tutorial: it stops when they are no longer there."""
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools/gpu.py"))
    parts = [tmp_path / f"model.gguf.{letter}" for letter in "ba"]
    for part in parts:
        part.write_bytes(part.suffix.encode())
    assert tool["whole_model"](" ".join(map(str, parts))).read_bytes() == b".a.b"
    assert tool["whole_model"](str(parts[0])) == parts[0] and tool["whole_model"]("") is None
    for half in ("bfloat16", "float16"):
        code = tool["tutorial_cells"](parts[0], half, str(tmp_path))
        compile(code, "tutorial", "exec")
        assert 'model.to("cuda")' in code and f"dtype=torch.{half}" in code
        assert "plotly" not in code and "use_cpu" not in code
