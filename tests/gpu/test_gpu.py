"""vLLM and a trainer on one GPU, as a person with one starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

import verifiers_nb as vf
from verifiers_nb.inference.serve import Served, unsupported_gpus
from verifiers_nb.inference.tokens import turn_from_response
from verifiers_nb.inference.vllm_memory import has_cpu_build, visible_gpus
from verifiers_nb.inference.vllm_options import vllm_missing
from verifiers_nb.inference.vllm_policy import VLLMClient

NAME = "verifiers_nb/adder-1m"
# A process that looks for GPUs loads PyTorch again, in each worker; without a driver there are none.
GPUS = visible_gpus() if torch.cuda.is_available() else []
LACKING = "needs an NVIDIA GPU" if not GPUS else vllm_missing() or unsupported_gpus(GPUS)
if LACKING is None and has_cpu_build():
    LACKING = "needs vLLM's build for GPUs (pip install 'verifiers_nb[vllm]')"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(LACKING is not None, reason=str(LACKING))]


def used() -> float:
    """Return how much memory of the first GPU is in use, in GiB."""
    [gpu, *_] = visible_gpus()
    return gpu.total - gpu.free


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Serve the shipped model beside a trainer, able to sleep. vLLM's LoRA kernels have no float32."""
    with vf.serve(NAME, kv_cache_gb=2, sleep_mode=True) as served:
        yield served


def ask(served: Served, **options: Any) -> Any:
    """Ask for a sum."""
    messages = [{"role": "user", "content": "What is 27 + 48?"}]
    options = {"max_tokens": 48, "seed": 7, **options}
    return asyncio.run(served.client.chat.completions.create(messages=messages, **options))


@torch.inference_mode()
def gap(model: Any, response: Any) -> float:
    """Return the mean difference of a log-probability between an answer and a forward pass."""
    turn = turn_from_response(response)
    ids = torch.tensor([turn.prompt_ids + turn.completion_ids], device=model.device)
    logprobs = model(ids).logits[0, len(turn.prompt_ids) - 1 : -1].float().log_softmax(-1)
    mine = logprobs[range(len(turn.completion_ids)), turn.completion_ids].cpu()
    return float((mine - torch.tensor(turn.logprobs)).abs().mean())


def test_vllm_is_chosen_and_leaves_room(served: Served) -> None:
    assert served.engine == "vllm" and isinstance(served.client, VLLMClient)
    assert used() < GPUS[0].total - GPUS[0].free + 2 + 6  # the cache, CUDA itself and its graphs


def test_tokens_are_exact(served: Served) -> None:
    model = vf.get_model(NAME).eval().cuda()
    assert gap(model, ask(served, temperature=1.0)) < 0.1  # of half precision


def test_an_adapter_is_what_peft_computes(served: Served) -> None:
    torch.manual_seed(0)
    strong = dict(lora_alpha=32, init_lora_weights=False)
    lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], **strong)
    policy = get_peft_model(vf.get_model(NAME), lora).eval().cuda()
    version = served.push(policy)
    answer = ask(served, temperature=1.0)
    assert answer.choices[0].policy_version == version and gap(policy, answer) < 0.1
    with policy.disable_adapter():
        assert gap(policy, answer) > 0.5


@pytest.mark.parametrize("weights", [False, True])
def test_a_server_that_sleeps_frees_the_gpu(served: Served, weights: bool) -> None:
    assert isinstance(served.client, VLLMClient)
    before, awake = ask(served, temperature=0), used()
    served.client.sleep(weights)
    asleep = used()
    served.client.wake(weights)
    after = ask(served, temperature=0)
    assert asleep < awake - 1.5  # of the cache's 2 GiB
    assert turn_from_response(after).completion_ids == turn_from_response(before).completion_ids


def test_training_beside_the_server(served: Served, tmp_path: Path) -> None:
    args = vf.grpo_defaults("gpu")
    args.output_dir, args.max_steps = str(tmp_path), 4
    env = vf.load_environment("addition")
    trainer = vf.GRPOTrainer(NAME, env, args, peft_config=vf.lora_defaults(), client=served.client)
    trainer.train()
    gaps = [row["gap"] for row in trainer.state.log_history if "gap" in row]
    assert len(gaps) == 4 and max(gaps) < 0.1
