"""Environments of ours in TRL's own trainers: rewards, rollouts of several turns, and a supervised start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback

import verifiers_nb as vf

trl = pytest.importorskip("trl", reason="needs trl, which the extra 'dev' installs")

MODEL = "verifiers_nb/adder-1m"
LORA = LoraConfig(r=8, target_modules="all-linear")


class AskTwice(vf.MultiTurnEnv):
    """Ask the same question again, and end after the second answer."""

    def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
        return state["turn"] == 2

    def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return [messages[0]], state


def both_right(completion: Any, answer: str) -> float:
    """Score how many of the two answers are right."""
    spoken = [m["content"] for m in completion if m["role"] == "assistant"]
    assert len(spoken) == 2, completion
    return sum(f"<answer>\n{answer}\n</answer>" in text for text in spoken) / 2


def ask_twice(fail: bool = False) -> AskTwice:
    """Return the environment, whose setup fails for every fourth rollout if it is told to."""
    sums = vf.load_environment("addition")
    env = AskTwice(
        dataset=sums.get_dataset(n=8), parser=sums.parser, rubric=vf.Rubric([both_right], [2.0])
    )
    if fail:
        begun: list[int] = []

        def setup_state(state: Any, **kwargs: Any) -> Any:
            begun.append(1)
            if len(begun) % 4 == 0:
                raise RuntimeError("the world did not start")
            return state

        env.setup_state = setup_state  # type: ignore[method-assign]
    return env


def watch(keywords: Any) -> list[dict[str, Any]]:
    """Note every call of the reward function: its arguments and what it returned."""
    calls: list[dict[str, Any]] = []
    reward = keywords["reward_funcs"]

    async def rubric(**columns: Any) -> Any:
        rewards = await reward(**columns)
        calls.append({**columns, "rewards": rewards})
        return rewards

    keywords["reward_funcs"] = rubric
    return calls


def grpo(folder: Path, keywords: Any, peft_config: Any = None, **settings: Any) -> Any:
    """Return TRL's trainer of the shipped model, for two steps of four prompts, four times each."""
    network, tokenizer = vf.get_model_and_tokenizer(MODEL)
    defaults = dict(
        output_dir=str(folder),
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=60,
        max_steps=2,
        learning_rate=1e-3,
        beta=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    return trl.GRPOTrainer(
        model=network,
        processing_class=tokenizer,
        args=trl.GRPOConfig(**{**defaults, **settings}),
        peft_config=peft_config,
        **keywords,
    )


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    """Return copies of the trainer's weights."""
    return {name: each.detach().clone() for name, each in trainer.model.named_parameters()}


async def rubric_scores(env: Any, calls: list[dict[str, Any]]) -> list[float]:
    """Score what TRL sampled with the environment's rubric itself."""
    return [
        (await env.rubric.score_rollout(prompt, completion, answer, {})).reward
        for call in calls
        for prompt, completion, answer in zip(
            call["prompts"], call["completions"], call["answer"], strict=True
        )
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_trl_rewards_are_the_rubrics(tmp_path: Path, anyio_backend: str) -> None:
    env = vf.load_environment("addition")
    keywords = vf.to_trl(env)
    calls = watch(keywords)
    trainer = grpo(tmp_path, keywords)
    before = weights(trainer)
    trainer.train()
    after = weights(trainer)
    rewards = [reward for call in calls for reward in call["rewards"]]
    assert len(calls) == 2 and len(rewards) == 32
    assert len(set(rewards)) > 1 and rewards == await rubric_scores(env, calls)
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    for entry, call in zip(logged, calls, strict=True):
        assert entry["reward"] == pytest.approx(sum(call["rewards"]) / 16)
        parts = entry["rubric/correct_answer"] + 0.2 * entry["rubric/format_reward_func"]
        assert entry["reward"] == pytest.approx(parts)
    assert any(not torch.equal(before[name], after[name]) for name in before)


class LearntTokens:
    """Keep the batches that the trainer learns from."""

    def __init__(self, trainer: Any) -> None:
        self.batches: list[dict[str, Any]] = []
        compute = trainer._compute_loss

        def noted(model: Any, inputs: dict[str, Any]) -> Any:
            self.batches.append(inputs)
            return compute(model, inputs)

        trainer._compute_loss = noted


@pytest.mark.parametrize("peft_config", [None, LORA], ids=["whole", "lora"])
def test_rollouts_of_two_turns_come_from_the_policy_in_training(
    tmp_path: Path, peft_config: Any
) -> None:
    keywords = vf.to_trl(ask_twice())
    play = keywords["rollout_func"]
    assert play is not None
    calls = watch(keywords)
    trainer = grpo(tmp_path, keywords, peft_config)
    learnt = LearntTokens(trainer)
    measured: list[float] = []

    class Compare(TrainerCallback):
        """Compare the sampler's log-probabilities with the trainer's before each step."""

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            prompt = keywords["train_dataset"]["prompt"][:2]
            rollouts = play(prompt, trainer)
            for prompt_ids, ids, logprobs, mask in zip(
                *(rollouts[k] for k in ("prompt_ids", "completion_ids", "logprobs", "env_mask")),
                strict=True,
            ):
                with torch.no_grad():
                    logits = trainer.model(torch.tensor([prompt_ids + ids])).logits[0]
                own = logits[len(prompt_ids) - 1 : -1].log_softmax(-1)
                own = own.gather(1, torch.tensor(ids)[:, None])[:, 0]
                gap = (own - torch.tensor(logprobs)).abs() * torch.tensor(mask)
                measured.append(float(gap.max()))

    trainer.add_callback(Compare())
    trainer.train()
    assert len(measured) == 4 and max(measured) < 1e-3, measured
    assert play.client.version == 2  # the weights before the first step, and before the second
    tokenizer = trainer.processing_class
    for batch, call in zip(learnt.batches, calls, strict=True):
        said = [completion[0]["content"] for completion in call["completions"]]
        right = [f"<answer>\n{answer}\n</answer>" for answer in call["answer"]]
        assert call["rewards"] == [t.count(r) for t, r in zip(said, right, strict=True)]
        assert len(set(call["rewards"])) > 1
        mask = batch["tool_mask"].bool()
        for ids, own, real in zip(
            batch["completion_ids"], mask, batch["completion_mask"].bool(), strict=True
        ):
            assert "What is" not in tokenizer.decode(ids[own & real])
            assert "What is" in tokenizer.decode(ids[~own & real])
    play.client.close()


def test_a_failed_rollout_is_left_out_of_its_group(tmp_path: Path) -> None:
    keywords = vf.to_trl(ask_twice(fail=True))
    calls = watch(keywords)
    trainer = grpo(tmp_path, keywords)
    learnt = LearntTokens(trainer)
    trainer.train()
    for batch, call in zip(learnt.batches, calls, strict=True):
        learnt_of = (batch["tool_mask"] * batch["completion_mask"]).sum(1)
        masked = learnt_of == 0  # not in the order of the call: TRL shuffles what it learns from
        assert call["rewards"].count(None) == masked.sum() == 4
        assert not batch["advantages"][masked].any() and batch["advantages"].any()
    logged = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert all(0 <= reward <= 2 for reward in logged)
    keywords["rollout_func"].client.close()


def test_a_client_of_ones_own_gets_the_adapter(tmp_path: Path) -> None:
    with vf.EmbeddedEngine(MODEL) as engine:
        keywords = vf.to_trl(vf.load_environment("addition"), engine)
        trainer = grpo(tmp_path, keywords, LORA)
        trainer.train()
        assert engine.version == 2 and engine.tokens_generated > 32 * 5


def test_a_supervised_start_from_the_best_rollouts(tmp_path: Path) -> None:
    env = vf.load_environment("addition")
    path = tmp_path / "results.jsonl"
    with vf.EmbeddedEngine(MODEL, seed=1) as engine:
        data = Dataset.from_list(list(env.get_dataset(n=16)) * 4)
        env.generate(data, engine, engine.model, {"max_tokens": 60}, save_path=path)
    warm = vf.sft_dataset(path, min_reward=1.2)
    assert 0 < len(warm) <= 16
    network, tokenizer = vf.get_model_and_tokenizer(MODEL)
    args = trl.SFTConfig(
        output_dir=str(tmp_path),
        max_steps=6,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    trainer = trl.SFTTrainer(network, args, train_dataset=warm, processing_class=tokenizer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 6 and losses[-1] < losses[0]
