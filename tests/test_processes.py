"""Two processes train as one does: same rollouts, same gradient, one writer of files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from verifiers_nb.envs.store import read_rollouts

STEPS = 5
SCRIPT = """
import sys, torch, verifiers_nb as vf
torch.set_num_threads(1)
folder, device_batch, extra = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])
args = vf.GRPOConfig(
    folder, max_steps=5, per_device_train_batch_size=device_batch, num_generations=4, max_tokens=40,
    learning_rate=1e-3, num_batches_ahead=0, save_steps=3, use_cpu=True, tokens_per_micro_batch=512,
    eval_strategy="steps", eval_steps=5, disable_tqdm=True, **extra,
)
env = vf.load_environment("addition", num_eval_examples=20)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
trainer.train(resume_from_checkpoint=True)
trainer.save_adapter(folder + "/adapter")
"""


def launch(folder: Path, processes: int, **settings: object) -> subprocess.CompletedProcess[str]:
    """Train with 32 rollouts a step on so many processes."""
    script = folder.parent / "train.py"
    script.write_text(SCRIPT)
    # Without MPI, accelerate starts several processes under this name only, whatever they compute on.
    several = "--multi_gpu --main_process_port 0" if processes > 1 else "--cpu"
    options = f"{several} --num_processes {processes} --num_machines 1 --mixed_precision no"
    command = [sys.executable, "-m", "accelerate.commands.launch", *options.split()]
    return subprocess.run(
        [*command, str(script), str(folder), str(32 // processes), repr(settings)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return the logged metrics of the training steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "reward" in line]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return the folders of the same run on one and on two processes."""
    made = {}
    for processes in (1, 2):
        made[processes] = tmp_path_factory.mktemp("runs") / f"run-{processes}"
        done = launch(made[processes], processes)
        assert done.returncode == 0, done.stderr[-3000:]
    return made


def test_two_processes_see_the_same_rewards(folders: dict[int, Path]) -> None:
    one, two = read_metrics(folders[1]), read_metrics(folders[2])
    assert [m["step"] for m in two] == [1, 2, 3, 4, 5]
    for name in ("reward", "loss", "grad_norm", "entropy", "gap", "kl", "completions/mean_length"):
        assert [m[name] for m in two] == pytest.approx([m[name] for m in one], abs=1e-4), name
    first, second = (load_file(folders[n] / "adapter/adapter_model.safetensors") for n in (1, 2))
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)


def test_one_process_writes(folders: dict[int, Path]) -> None:
    for step in range(1, STEPS + 1):
        indices = [
            r["index"] for r in read_rollouts(folders[2] / f"rollouts/step-{step:05d}.jsonl")
        ]
        assert sorted(indices) == list(range(32))
    evaluation = [
        json.loads(line)
        for line in (folders[2] / "metrics.jsonl").read_text().splitlines()
        if "eval_reward" in line
    ]
    assert len(evaluation) == 1
    checkpoint = folders[2] / "checkpoint-3"
    assert {"rng_state_0.pth", "rng_state_1.pth", "optimizer.pt"} <= set(os.listdir(checkpoint))
    assert not (folders[2] / "unfinished").exists()


def test_an_error_of_one_is_an_error_of_all(tmp_path: Path) -> None:
    done = launch(tmp_path / "run", 2, presence_penalty=1.0)  # the embedded engine has none
    assert done.returncode != 0
    assert "All 32 rollouts of the step failed" in done.stderr
