"""A warm start: supervised steps before GRPO, which stop, go on, are shown, and are refused once it has begun."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig

import verifiers_nb as vf
from verifiers_nb.trainer.checkpoints import learnt_weights

MODULES = ["gate_proj", "up_proj", "down_proj"]
FORMAT = "<think>\n{think}\n</think>\n<answer>\n{answer}\n</answer>"


def examples(count: int = 24, first: int = 11) -> list[dict[str, str]]:
    """Return worked sums that always carry, in the environment's format."""
    return [
        {
            "question": f"What is {n} + {n + 8}?",
            "completion": FORMAT.format(think="sum", answer=2 * n + 8),
        }
        for n in range(first, first + count)
    ]


def make_trainer(folder: Path, **settings: Any) -> vf.GRPOTrainer:
    usual = dict(
        output_dir=str(folder), max_steps=2, per_device_train_batch_size=8, num_generations=4, max_tokens=24,
        learning_rate=1e-3, num_batches_ahead=0, save_steps=2, seed=0, use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=MODULES, task_type="CAUSAL_LM")
    args = vf.GRPOConfig(**usual | settings)
    return vf.GRPOTrainer(
        "verifiers_nb/adder-1m", vf.load_environment("addition"), args, peft_config=lora
    )


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_it_learns_and_grpo_goes_on_from_there(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.warm_up(examples(), steps=10, learning_rate=3e-3)
    warmed = learnt_weights(trainer.model)
    logged = metrics(tmp_path)
    assert [line["step"] for line in logged] == [*range(-9, 1)]
    losses = [line["warm_up/loss"] for line in logged]
    assert losses[-1] < 0.7 * losses[0]

    dashboard = vf.TrainingDashboard(trainer)
    assert "warm_up/loss" in dashboard.freeze().body
    trainer.train()
    assert [line["step"] for line in metrics(tmp_path) if "reward" in line] == [1, 2]
    assert [line["step"] for line in metrics(tmp_path)][:10] == [*range(-9, 1)]
    assert not [*tmp_path.glob("previous-*")]
    assert same(warmed, trainer.first_weights)
    assert trainer.reference.weights  # the KL penalty is to the warmed model
    with pytest.raises(ValueError, match=r"before the first step, and the run in .* is at step 2"):
        trainer.warm_up(examples(), steps=10)
    trainer.close()


def test_gradients_are_scaled_and_scaled_back_by_one_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16 each accelerator has a scale of its own; a processor has no float16 to see it with."""
    trainer, used = make_trainer(tmp_path), set()
    for name in ("backward", "clip_grad_norm_"):
        usual = getattr(Accelerator, name)

        def noted(self: Any, *args: Any, usual: Any = usual, **kwargs: Any) -> Any:
            used.add(id(self))
            return usual(self, *args, **kwargs)

        monkeypatch.setattr(Accelerator, name, noted)
    trainer.warm_up(examples(), steps=1)
    trainer.close()
    assert len(used) == 1


def test_a_script_that_runs_again_finds_its_warm_up(tmp_path: Path) -> None:
    first = make_trainer(tmp_path)
    first.warm_up(examples(), steps=4)
    warmed = learnt_weights(first.model)
    first.train()
    first.close()
    again = make_trainer(tmp_path)
    again.warm_up(examples(), steps=4)
    assert same(warmed, learnt_weights(again.model))
    assert [line["step"] for line in metrics(tmp_path) if "reward" in line] == [1, 2]
    with pytest.raises(ValueError, match="Warm up a new run"):
        again.warm_up(examples(first=12), steps=4)
    again.close()


def test_a_stopped_warm_up_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole")
    whole.warm_up(examples(), steps=12)
    stopped = make_trainer(tmp_path / "stopped")

    def stop() -> None:
        while stopped.run.step < 3:
            time.sleep(0.002)
        stopped.pause()
        while stopped.run.state.phase != "paused":
            time.sleep(0.002)
        stopped.stop()

    watching = threading.Thread(target=stop)
    watching.start()
    stopped.warm_up(examples(), steps=12)
    watching.join()
    assert stopped.run.state.phase == "stopped" and 3 <= stopped.run.step < 12
    stopped.close()

    again = make_trainer(tmp_path / "stopped")
    again.warm_up(examples(), steps=12)
    assert same(learnt_weights(whole.model), learnt_weights(again.model))
    assert [line["step"] for line in metrics(tmp_path / "stopped")] == [*range(-11, 1)]
    again.warm_up(examples(first=12), steps=3)  # another one begins from the first weights
    fresh = make_trainer(tmp_path / "fresh")
    fresh.warm_up(examples(first=12), steps=3)
    assert same(learnt_weights(fresh.model), learnt_weights(again.model))
    for trainer in (whole, again, fresh):
        trainer.close()


def test_it_learns_from_the_best_rollouts_of_results(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    sampling_args = {
        "temperature": 1.0, "max_tokens": 40, "logprobs": True, "extra_body": {"return_token_ids": True}
    }  # fmt: skip
    results = trainer.env.evaluate(
        trainer.client,
        trainer.client.model,
        sampling_args,
        num_examples=8,
        rollouts_per_example=4,
        progress=False,
    )
    trainer.warm_up(results, steps=3)
    assert metrics(tmp_path)[-1]["step"] == 0
    with pytest.raises(ValueError, match=r"examples\[24\] has no answer of the assistant"):
        trainer.warm_up([*examples(), {"question": "What is 1 + 1?", "answer": "2"}], steps=3)
    long = {"question": "What is 1 + 1?", "completion": "2 " * trainer.args.max_seq_len}
    with pytest.raises(ValueError, match=r"examples\[0\] has [\d,]+ tokens, more than max_seq_len"):
        trainer.warm_up([long], steps=3)
    with pytest.raises(ValueError, match=r"steps must be a whole number of 1 or more, not 0"):
        trainer.warm_up(examples(), steps=0)
    with pytest.raises(ValueError, match="batch_size must be a whole number of 1 or more, not 0"):
        trainer.warm_up(examples(), batch_size=0)
    with pytest.raises(ValueError, match="learning_rate must be at least 0, not -1"):
        trainer.warm_up(examples(), learning_rate=-1.0)
    trainer.close()
