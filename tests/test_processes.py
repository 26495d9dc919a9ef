"""Two processes, each with the whole model or half of it, train as one does; one writes the files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import forked
import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file

import verifiers_nb as vf
from verifiers_nb.envs.results import read_rollouts

ROOT = Path(__file__).parents[1]
STEPS = 5
FIELDS = ("reward", "loss", "grad_norm", "entropy", "gap", "kl", "completions/mean_length")
HELD = {"alone": "1.00 of the model", "ddp": "1.00 of the model", "fsdp": "0.52 of the model"}
KINDS = ["ddp", "fsdp"]
SCRIPT = """
import sys, torch, verifiers_nb as vf
from torch.nn.utils import parameters_to_vector
torch.set_num_threads(1)
folder, device_batch, extra = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3], {'nan': float('nan')})
exec(extra.pop("change", ""))
settings = dict(
    per_device_train_batch_size=device_batch, num_generations=4, max_tokens=40, max_steps=5,
    learning_rate=1e-3, num_batches_ahead=0, save_steps=3, use_cpu=True, tokens_per_micro_batch=512,
    eval_strategy="steps", eval_steps=5, disable_tqdm=True,
)
args = vf.GRPOConfig(folder, **{**settings, **extra})
env = vf.load_environment("addition", num_train_examples=100, num_eval_examples=8)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
trainer.train(resume_from_checkpoint=True)
trainer.save_adapter(folder + "/adapter")
weights = list(trainer.model.parameters())
held = sum(getattr(p, "_local_tensor", p).numel() for p in weights) / sum(p.numel() for p in weights)
adapter = parameters_to_vector([p for p in weights if p.requires_grad])
print(f"process {args.process_index} holds {held:.2f} of the model and an adapter of norm {adapter.norm():.8f}")
trainer.accelerator.end_training()
"""


def launch(folder: Path, how: str | None = None, **settings: object) -> CompletedProcess[str]:
    """Train with 16 rollouts a step in one process, or in two that are told what accelerate's launcher tells them."""
    script = folder.parent / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(folder), "8" if how else "16", repr(settings)]
    if not how:
        return forked.run(command, timeout=600)
    asked = ["--config_file", str(vf.launch_config(how)), str(script)]
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(asked))
    env = {**os.environ, **prepare_multi_gpu_env(args), "MASTER_ADDR": "127.0.0.1"}
    env |= {"MASTER_PORT": str(forked.free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    both = [forked.Popen(command, env={**env, **rank}) for rank in ranks]
    said = [process.communicate(600) for process in both]
    status = max((process.wait() for process in both), key=abs)
    return CompletedProcess(command, status, *map("".join, zip(*said, strict=True)))


def launch_by_command(folder: Path, how: str) -> CompletedProcess[str]:
    """Train in two processes by accelerate's own command and a launch configuration of ours, as tutorial 109 does.

    All three begin as forks. In test_cli_train.py the command and its processes import for themselves, each week.
    """
    script = folder.parent / "train.py"
    script.write_text(SCRIPT)
    config = ["--config_file", str(vf.launch_config(how))]
    command = [forked.program(), "-m", "accelerate.commands.launch", *config, str(script)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    asked = [*command, str(folder), "8", "{}"]
    return subprocess.run(asked, env=env, capture_output=True, text=True, timeout=600)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return the logged metrics of the training steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "reward" in line]


def check_adapter(one: Path, other: Path) -> None:
    """Check that two runs ended with the same weights."""
    weights = "adapter/adapter_model.safetensors"
    first, second = load_file(one / weights), load_file(other / weights)
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)


class Runs(dict[str, Path]):
    """Folders of the same run in one process, and in two of each kind; each is made when it is asked for."""

    def __init__(self, root: pytest.TempPathFactory) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, how: str) -> Path:
        """Make a run, and look at what its processes held."""
        folder = self.root.mktemp("runs") / how
        kind = how if how in KINDS else None
        done = launch_by_command(folder, how) if how == "fsdp" else launch(folder, kind)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("holds") == (1 if how == "alone" else 2)
        lines = [line for line in done.stdout.splitlines() if "holds" in line]
        held = {line.partition("holds ")[2] for line in lines}  # each the same adapter
        assert len(held) == 1 and held.pop().startswith(HELD[how]), done.stdout
        self[how] = folder
        return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory)


@pytest.mark.parametrize("how", KINDS)
def test_two_processes_see_the_same_rewards(how: str, folders: Runs) -> None:
    one, two = read_metrics(folders["alone"]), read_metrics(folders[how])
    assert [m["step"] for m in two] == [1, 2, 3, 4, 5]
    for name in FIELDS:
        assert [m[name] for m in two] == pytest.approx([m[name] for m in one], abs=1e-4), name
    check_adapter(folders["alone"], folders[how])


@pytest.mark.parametrize("how", KINDS)
def test_one_process_writes(how: str, folders: Runs) -> None:
    for step in range(1, STEPS + 1):
        records = read_rollouts(folders[how] / f"rollouts/step-{step:05d}.jsonl")
        assert sorted(record["index"] for record in records) == list(range(16))
    lines = [json.loads(line) for line in (folders[how] / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "eval_reward" in line]) == 1
    checkpoint = folders[how] / "checkpoint-3"
    assert {"rng_state_0.pth", "rng_state_1.pth", "optimizer.pt"} <= set(os.listdir(checkpoint))
    assert not (folders[how] / "unfinished").exists()


def test_a_sharded_run_goes_on_whole_and_a_whole_one_sharded(folders: Runs, tmp_path: Path) -> None:
    for start, how in (("fsdp", None), ("alone", "fsdp")):
        folder = tmp_path / f"from-{start}"
        shutil.copytree(folders[start], folder)
        shutil.rmtree(folder / "checkpoint-5")
        done = launch(folder, how)
        assert done.returncode == 0, done.stderr[-3000:]
        expected, found = read_metrics(folders["alone"]), read_metrics(folder)
        assert [m["step"] for m in found] == [1, 2, 3, 4, 5]
        for name in FIELDS:
            wanted = [m[name] for m in expected]
            assert [m[name] for m in found] == pytest.approx(wanted, abs=1e-4), name
        check_adapter(folders["alone"], folder)


def test_shards_with_iterations_and_checkpointing(tmp_path: Path) -> None:
    # One rollout of a process may need a micro-batch more than the other process has.
    settings = dict(
        num_iterations=2, gradient_checkpointing=True, max_steps=4, ref_model_sync_steps=1
    )
    small = dict(tokens_per_micro_batch=128, eval_strategy="no", beta=0.01)
    runs = []
    for how in (None, "fsdp"):
        done = launch(tmp_path / f"run-{how}", how, **settings, **small)
        assert done.returncode == 0, done.stderr[-3000:]
        runs.append(read_metrics(tmp_path / f"run-{how}"))
    for name in FIELDS:
        assert [m[name] for m in runs[1]] == pytest.approx([m[name] for m in runs[0]], abs=1e-4), (
            name
        )


FEWER = """
import verifiers_nb.trainer.grpo as rollouts
make_samples, step = rollouts.make_samples, 0
def make_fewer(outputs, *args):
    global step
    batch, step = make_samples(outputs, *args), step + 1
    order = sorted(range(len(batch.samples)), key=lambda i: -len(batch.samples[i].sequence.ids))
    for i in {1: order[0::2], 2: order[1::2], 3: order[1:]}.get(step, []):
        batch.samples[i].sequence.mask = [0] * len(batch.samples[i].sequence.mask)
    if step == 4:
        batch.samples = batch.samples[:1]
    if step == 5:
        batch.samples = []
    return batch
rollouts.make_samples = make_fewer
"""


def test_a_process_may_have_nothing_to_learn_from(tmp_path: Path) -> None:
    # No sampled token for the first process, then for the second; one in all; one sample; none.
    runs = []
    for how in (None, "fsdp"):
        done = launch(tmp_path / f"run-{how}", how, change=FEWER, eval_strategy="no")
        assert done.returncode == 0, done.stderr[-3000:]
        runs.append(read_metrics(tmp_path / f"run-{how}"))
    assert [m["step"] for m in runs[1]] == [1, 2, 3, 4, 5]
    for name in ("reward", "loss", "grad_norm"):
        assert [m[name] for m in runs[1]] == pytest.approx([m[name] for m in runs[0]], abs=1e-4), (
            name
        )
    done = launch(tmp_path / "run", "fsdp", change=FEWER, beta=float("nan"))
    assert "FloatingPointError: The loss of micro-batch 1 of" in done.stderr, done.stderr[-3000:]


OWN_SEED = """
import os, verifiers_nb.trainer.grpo
verifiers_nb.trainer.grpo.set_seed = lambda seed: torch.manual_seed(int(os.environ["RANK"]))
"""


@pytest.mark.parametrize("how", KINDS)
def test_adapters_that_differ_become_the_first_one(how: str, tmp_path: Path) -> None:
    done = launch(tmp_path / "run", how, change=OWN_SEED, max_steps=1, eval_strategy="no")
    assert done.returncode == 0, done.stderr[-3000:]
    held = [line.partition("holds ")[2] for line in done.stdout.splitlines() if "holds" in line]
    assert len(held) == 2 and held[0] == held[1]


FULL_DISK = """
save = vf.GRPOTrainer._save_rng_state
def save_or_fail(self, folder):
    if self.args.process_index == 1 and self.state.global_step == 3:
        raise OSError(28, "No space left on device")
    save(self, folder)
vf.GRPOTrainer._save_rng_state = save_or_fail
"""


def test_a_checkpoint_that_the_second_process_cannot_write(tmp_path: Path) -> None:
    done = launch(tmp_path / "run", "ddp", change=FULL_DISK, max_steps=4, eval_strategy="no")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "checkpoint-3 could not be written" in done.stderr
    assert "No space left on device" in done.stderr
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-4"]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_an_error_of_one_is_an_error_of_all(how: str, tmp_path: Path) -> None:
    done = launch(tmp_path / "run", how, presence_penalty=1.0)  # the embedded engine has none
    assert done.returncode != 0
    assert "All 16 rollouts of the step failed" in done.stderr


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_a_loss_that_is_not_a_number_ends_all(how: str, tmp_path: Path) -> None:
    done = launch(tmp_path / "run", how, beta=float("nan"))
    assert done.returncode != 0
    assert done.stderr.count("FloatingPointError: The loss of micro-batch 1 of") >= 2, done.stderr[
        -3000:
    ]
