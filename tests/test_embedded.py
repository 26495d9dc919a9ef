"""The embedded engine under load: many loops, cancelled requests, failures, other architectures."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import verifiers_nb as vf
from verifiers_nb.inference.engine import EmbeddedEngine
from verifiers_nb.inference.models import get_model

NAME = "verifiers_nb/adder-1m"
SIZES: dict[str, Any] = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.3,
    bos_token_id=None,
    eos_token_id=7,
)


def ask(engine: EmbeddedEngine, a: int = 1, b: int = 2, **arguments: Any) -> Any:
    messages = [{"role": "user", "content": f"What is {a} + {b}?"}]
    return engine.chat.completions.create(messages=messages, logprobs=True, **arguments)


@torch.inference_mode()
def largest_gap(model: Any, answer: Any) -> float:
    """Compare an answer's log-probabilities with one plain forward over it."""
    prompt, [choice] = answer.prompt_token_ids, answer.choices
    logits = model(torch.tensor([prompt + choice.token_ids])).logits[0, len(prompt) - 1 : -1]
    plain = logits.log_softmax(-1)[range(len(choice.token_ids)), choice.token_ids]
    return (plain - torch.tensor(choice.logprobs.token_logprobs)).abs().max().item()


def models() -> dict[str, Any]:
    torch.manual_seed(0)
    windows = dict(use_sliding_window=True, sliding_window=4, max_window_layers=1)
    return {
        "qwen3": Qwen3ForCausalLM(Qwen3Config(head_dim=8, **SIZES)),
        "sliding window": Qwen3ForCausalLM(Qwen3Config(head_dim=8, **SIZES, **windows)),
        "llama": LlamaForCausalLM(LlamaConfig(**SIZES)),
        "gpt2": GPT2LMHeadModel(
            GPT2Config(
                vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=128, eos_token_id=7
            )
        ),
        "mamba": MambaForCausalLM(MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2)),
    }


@pytest.mark.parametrize("family", ["qwen3", "sliding window", "llama", "gpt2", "mamba"])
@pytest.mark.filterwarnings("ignore:.*decoded without a cache")
def test_each_architecture_is_exact(family: str) -> None:
    """Mixed lengths, late joiners, shared prompts, early ends; plain ones and a batch that is full."""
    model = models()[family].eval()
    luck = random.Random(0)
    prompts = [[luck.randrange(96) for _ in range(luck.randrange(1, 30))] for _ in range(12)] * 2

    async def run(engine: EmbeddedEngine) -> list[Any]:
        async def one(number: int, prompt: list[int]) -> Any:
            await asyncio.sleep(0.01 * (number % 5))
            return await engine.completions.create(
                prompt=prompt, max_tokens=1 + 3 * number, logprobs=0, seed=number
            )

        return await asyncio.gather(*map(one, range(len(prompts)), prompts))

    with EmbeddedEngine(model, max_batch_size=9) as engine:
        answers = asyncio.run(run(engine))
    assert max(largest_gap(model, answer) for answer in answers) < 1e-4
    assert {answer.choices[0].finish_reason for answer in answers} == {"stop", "length"} or (
        family == "mamba"
    )


def test_event_loops_in_several_threads_share_an_engine() -> None:
    answers: list[Any] = []

    def thread(number: int) -> None:
        async def run() -> list[Any]:
            return await asyncio.gather(*(ask(engine, number, b) for b in range(8)))

        answers.extend(asyncio.run(run()))

    with EmbeddedEngine(NAME, seed=0) as engine:
        threads = [threading.Thread(target=thread, args=(number,)) for number in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(answers) == 48
    model = get_model(NAME)
    assert max(largest_gap(model, answer) for answer in answers) < 1e-4


def test_one_loop_after_another() -> None:
    with EmbeddedEngine(NAME, seed=0) as engine:
        texts = [asyncio.run(ask(engine, temperature=0)).choices[0].message.content for _ in "ab"]
    assert texts[0] == texts[1]


def test_a_cancelled_request_leaves_the_batch() -> None:
    async def run() -> None:
        long = asyncio.create_task(ask(engine, max_tokens=1500, ignore_eos=True))
        other = asyncio.create_task(ask(engine, 3, 4, max_tokens=20, ignore_eos=True))
        while not engine.tokens_generated:
            await asyncio.sleep(0.001)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        assert len((await other).choices[0].token_ids) == 20
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask(engine, max_tokens=1500, ignore_eos=True), 0.02)
        await ask(engine)
        assert engine.scheduler.batch.running == []

    with EmbeddedEngine(NAME, seed=0) as engine:
        asyncio.run(run())
        assert engine.tokens_generated < 1500


def test_cancelled_before_it_was_sent() -> None:
    async def run() -> None:
        task = asyncio.create_task(ask(engine))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await ask(engine, max_tokens=3)

    with EmbeddedEngine(NAME) as engine:
        asyncio.run(run())
        assert engine.tokens_generated <= 3


def test_a_loop_that_ends_with_requests_open() -> None:
    async def leave() -> None:
        for _ in range(3):
            asyncio.ensure_future(ask(engine, max_tokens=200, ignore_eos=True))
        await asyncio.sleep(0.01)

    with EmbeddedEngine(NAME) as engine:
        asyncio.run(leave())
        assert asyncio.run(ask(engine)).choices[0].finish_reason in ("stop", "length")


def test_close_fails_what_is_open_and_ends_the_thread() -> None:
    async def run() -> list[Any]:
        open_requests = [asyncio.create_task(ask(engine, a, max_tokens=1000)) for a in range(4)]
        while not engine.tokens_generated:
            await asyncio.sleep(0.001)
        unsent = asyncio.create_task(ask(engine, 9))
        await asyncio.sleep(0)
        engine.close()
        return await asyncio.gather(*open_requests, unsent, return_exceptions=True)

    engine = EmbeddedEngine(models()["qwen3"], max_batch_size=2)
    engine.chat.completions.create = lambda messages, **arguments: engine.completions.create(
        prompt=[3, 4, 5], ignore_eos=True, **{**arguments, "logprobs": 0}
    )
    results = asyncio.run(run())
    errors = [result for result in results if isinstance(result, RuntimeError)]
    assert errors and all("closed" in str(error) for error in errors)
    assert isinstance(results[-1], RuntimeError)
    assert not engine.scheduler.thread.is_alive()
    engine.close()
    with pytest.raises(RuntimeError, match="is closed"):
        asyncio.run(engine.completions.create(prompt=[3]))
    with pytest.raises(RuntimeError, match="is closed"):
        engine.push(None)


def test_an_engine_that_nobody_holds_ends_its_thread() -> None:
    engine = EmbeddedEngine(models()["qwen3"])
    asyncio.run(engine.completions.create(prompt=[3, 4], max_tokens=2))
    thread = engine.scheduler.thread
    assert thread.is_alive()
    del engine
    gc.collect()
    thread.join(timeout=10)
    assert not thread.is_alive()


def failing_step(
    engine: EmbeddedEngine, fails: Callable[[int, int], bool], error: Exception
) -> Any:
    """Return a decoder's step that fails where `fails(number of the step, sequences)` says so."""
    step, steps = engine.scheduler.batch.decoder.step, []

    def failing(tokens: list[int]) -> Any:
        steps.append(len(tokens))
        if fails(len(steps), len(tokens)):
            raise error
        return step(tokens)

    return failing


async def ask_five(engine: EmbeddedEngine) -> list[Any]:
    return await asyncio.gather(*(ask(engine, a) for a in range(5)), return_exceptions=True)


def test_a_failure_fails_its_batch_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedEngine(NAME, seed=0) as engine:
        failing = failing_step(engine, lambda step, _: step == 3, ArithmeticError("no number"))
        monkeypatch.setattr(engine.scheduler.batch.decoder, "step", failing)
        lost = asyncio.run(ask_five(engine))
        assert len(lost) == 5
        assert all("ArithmeticError: no number" in str(error) for error in lost)
        answers = asyncio.run(ask_five(engine))
        assert max(largest_gap(get_model(NAME), answer) for answer in answers) < 1e-4


@pytest.mark.parametrize("room", [3, 1, 0])
def test_sequences_wait_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """With room for some, all are answered, exactly; with room for none, each is told why."""
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with EmbeddedEngine(NAME, seed=0) as engine:
        failing = failing_step(engine, lambda _, sequences: sequences > room, error)
        monkeypatch.setattr(engine.scheduler.batch.decoder, "step", failing)
        answers = asyncio.run(ask_five(engine))
        assert len(answers) == 5
        if room:
            assert max(largest_gap(get_model(NAME), answer) for answer in answers) < 1e-4
        else:
            assert all("ran out for a single sequence of" in str(each) for each in answers)


def test_an_answer_that_does_not_fit_is_in_no_mean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is a failed rollout that says why; the others run together again, and they alone are averaged."""
    rows = [{"question": f"What is {a} + 5?", "answer": str(a + 5)} for a in range(8)]
    rows[3]["question"] *= 12
    env = vf.load_environment("addition")
    env.eval_dataset = env.dataset = env.format_dataset(Dataset.from_list(rows))
    sizes = dict(per_device_train_batch_size=4, num_generations=4, max_tokens=40)
    args = vf.GRPOConfig(str(tmp_path), use_cpu=True, **sizes)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with EmbeddedEngine(NAME) as engine:
        batch = engine.scheduler.batch

        def fails(*_: int) -> bool:
            return any(each.length > 100 for each in batch.running)

        whole = env.evaluate(engine, NAME, {"temperature": 0.0, "max_tokens": 40}, progress=False)
        monkeypatch.setattr(batch.decoder, "step", failing_step(engine, fails, error))
        trainer = vf.GRPOTrainer(NAME, env, args, peft_config=vf.lora_defaults(), client=engine)
        metrics = trainer.evaluate()
        lost = env.evaluate(engine, NAME, {"temperature": 0.0, "max_tokens": 40}, progress=False)
        assert engine.scheduler.max_batch_size == 256
    others = [reward for row, reward in enumerate(whole.reward) if row != 3]
    assert sum(others) > 0 and metrics["eval_failed"] == 1
    assert metrics["eval_reward"] == pytest.approx(sum(others) / 7)
    assert [bool(each) for each in lost.errors] == [row == 3 for row in range(8)]
    assert "memory ran out for a single sequence of" in str(lost.errors[3])
    assert "1 failed" in repr(lost) and f"reward {sum(others) / 7:.3f}" in repr(lost)


def test_more_requests_than_fit_are_all_answered_in_a_repeatable_way() -> None:
    async def run(engine: EmbeddedEngine) -> list[Any]:
        answers = await asyncio.gather(*(ask(engine, a % 7, n=3) for a in range(20)))
        return [(each.token_ids, each.logprobs) for answer in answers for each in answer.choices]

    runs = []
    for _ in range(2):
        with EmbeddedEngine(NAME, seed=3, max_batch_size=16) as engine:
            runs.append(asyncio.run(run(engine)))
    assert len(runs[0]) == 60
    assert runs[0] == runs[1]


def test_pushes_under_load_answer_each_request_by_one_version() -> None:
    """A hundred pushes between requests; each answer fits the adapter of the version it names."""
    torch.manual_seed(0)
    base = models()["qwen3"].eval()
    settings = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    policy = get_peft_model(models()["qwen3"], settings).eval()
    adapters = [
        {name: torch.randn_like(p) / 4 for name, p in policy.named_parameters() if p.requires_grad}
        for _ in range(3)
    ]

    def load(version: int) -> None:
        for name, weight in adapters[version % 3].items():
            policy.get_parameter(name).data.copy_(weight)

    async def run(engine: EmbeddedEngine) -> list[Any]:
        tasks = []
        for version in range(1, 40):
            load(version)
            assert engine.push(policy) == version
            tasks += [
                asyncio.create_task(
                    engine.completions.create(prompt=[3, 4, version], max_tokens=9, logprobs=0)
                )
            ]
            await asyncio.sleep(0.002 * (version % 3))
        return await asyncio.gather(*tasks)

    with EmbeddedEngine(base, seed=0) as engine:
        answers = asyncio.run(run(engine))
        for answer in answers:
            load(answer.choices[0].policy_version)
            assert largest_gap(policy, answer) < 1e-4
        engine.push(None)
        last = asyncio.run(engine.completions.create(prompt=[3, 4], logprobs=0))
        assert largest_gap(base, last) < 1e-5  # no rounding is left over from 39 adapters


def test_threads_of_others_are_left_alone() -> None:
    before = torch.get_num_threads()
    with EmbeddedEngine(NAME, threads=before + 1) as engine:
        asyncio.run(ask(engine, max_tokens=2))
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [torch.get_num_threads(), *seen] == [before, before]


def test_a_long_answer_with_a_stop_string_costs_no_more_at_its_end() -> None:
    """The same number of characters is decoded for the last tokens as for the first."""
    with EmbeddedEngine(NAME, seed=0) as engine:
        tokenizer, lengths = engine.served.tokenizer, []
        decode = tokenizer.decode

        def counted(ids: list[int], **arguments: Any) -> str:
            lengths.append(len(ids))
            return decode(ids, **arguments)

        tokenizer.decode = counted
        answer = asyncio.run(ask(engine, max_tokens=150, ignore_eos=True, stop=["never said"]))
    assert len(answer.choices[0].token_ids) == 150
    assert max(lengths[:-1]) < 40


def test_the_thread_waits_without_work() -> None:
    with EmbeddedEngine(NAME) as engine:
        asyncio.run(ask(engine, max_tokens=2))
        start = time.process_time()
        time.sleep(1)
        assert time.process_time() - start < 0.5
