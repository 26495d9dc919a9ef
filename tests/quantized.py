"""A base in 4 or 8 bits under an adapter, with bitsandbytes; test_quantized.py runs these tests."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import verifiers_nb as vf
from verifiers_nb.inference.engine import EmbeddedEngine

NAME = "verifiers_nb/adder-1m"


FOUR, EIGHT = {"load_in_4bit": True}, {"load_in_8bit": True, "llm_int8_threshold": 0.0}


@pytest.mark.parametrize(("quantization", "gap"), [(FOUR, 0.02), (EIGHT, 0.05)])
def test_a_run_on_a_quantised_base(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, quantization: dict[str, Any], gap: float
) -> None:
    """The engine answers with the same weights; only the adapter learns; it loads like any other."""
    args = vf.GRPOConfig(
        str(tmp_path), max_steps=2, per_device_train_batch_size=16, num_generations=4, max_tokens=40,
        learning_rate=1e-3, use_cpu=True, disable_tqdm=True, num_batches_ahead=0,
        model_init_kwargs={"quantization_config": quantization},
    )  # fmt: skip
    env = vf.load_environment("addition")
    with caplog.at_level(logging.WARNING):
        trainer = vf.GRPOTrainer(NAME, env, args, peft_config=vf.lora_defaults())
    assert "The base is quantised" in caplog.text and "same weights" in caplog.text
    base: Any = trainer.model.get_base_model()
    assert base.is_quantized and isinstance(trainer.client, EmbeddedEngine)
    trainer.train()
    gaps = [row["gap"] for row in trainer.state.log_history if "gap" in row]
    assert gaps and max(gaps) < gap
    learnt = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert learnt and all("lora_" in name for name in learnt)
    adapter = trainer.save_adapter(tmp_path / "adapter")
    trainer.close()
    with EmbeddedEngine(NAME) as engine:  # the full model serves it, too
        assert engine.push(adapter) == 1


def test_an_adapter_on_a_quantised_base_needs_a_client(tmp_path: Path) -> None:
    """PEFT can't take an adapter off a copy in 4 bits exactly, so that is refused with what to do."""
    from peft import get_peft_model

    base = vf.get_model(NAME, quantization_config={"load_in_4bit": True})
    policy = get_peft_model(base, vf.lora_defaults())
    args = vf.GRPOConfig(
        str(tmp_path), per_device_train_batch_size=4, num_generations=4, use_cpu=True
    )
    with pytest.raises(ValueError, match="pass the base and peft_config"):
        vf.GRPOTrainer(policy, vf.load_environment("addition"), args, vf.get_tokenizer(NAME))


def test_outliers_of_the_whole_batch_are_refused(tmp_path: Path) -> None:
    """In 8 bits with outliers the tokens of one sequence change what another computes."""
    kwargs = {"quantization_config": {"load_in_8bit": True}}
    args = vf.GRPOConfig(
        str(tmp_path), per_device_train_batch_size=4, num_generations=4, use_cpu=True, model_init_kwargs=kwargs
    )  # fmt: skip
    with pytest.raises(ValueError, match="llm_int8_threshold"):
        vf.GRPOTrainer(NAME, vf.load_environment("addition"), args, peft_config=vf.lora_defaults())
