"""A training run that is stopped or killed goes on, and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from operator import itemgetter
from pathlib import Path

import forked
import pytest
from safetensors.torch import load_file
from torch import equal

from verifiers_nb.envs.results import read_rollouts
from verifiers_nb.trainer.run_folder import check_whole, last_checkpoint, write_manifest

STEPS, ADAPTER = 5, "adapter/adapter_model.safetensors"
SCRIPT = f"""
import sys, verifiers_nb as vf
args = vf.GRPOConfig(
    sys.argv[1], max_steps={STEPS}, per_device_train_batch_size=16, num_generations=4, max_tokens=40,
    learning_rate=1e-3, beta=0.0,
    num_batches_ahead=0, save_steps=2, use_cpu=True,
)
trainer = vf.GRPOTrainer(
    "verifiers_nb/adder-1m", vf.load_environment("addition", num_train_examples=64), args,
    peft_config=vf.lora_defaults(),
)
trainer.train(resume_from_checkpoint=True)
trainer.save_adapter(sys.argv[1] + "/adapter")
"""


def start(folder: Path, script: str = SCRIPT) -> forked.Popen:
    """Start the run in a process of its own."""
    command = [sys.executable, "-c", script, str(folder)]
    log = (folder.parent / f"{folder.name}.log").open("a")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return forked.Popen(command, env=env, stdout=log, stderr=log)


def run_to_end(folder: Path, script: str = SCRIPT) -> None:
    """Run, or go on, and expect success."""
    log = folder.parent / f"{folder.name}.log"
    assert start(folder, script).wait(300) == 0, log.read_text()[-3000:]


def wait_for(path: Path, process: forked.Popen) -> None:
    """Wait until the run has written `path`."""
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    run_to_end(folder)
    return folder


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_goes_on(kind: signal.Signals, straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    wait_for(folder / "rollouts/step-00004.jsonl", process)
    process.send_signal(kind)
    assert process.wait(60) != 0
    kept = {p.name: len(list(read_rollouts(p))) for p in (folder / "rollouts").glob("*.jsonl")}
    assert all(kept[f"step-{step:05d}.jsonl"] == 16 for step in (1, 2, 3))
    checkpoints = {int(p.name.split("-")[1]) for p in folder.glob("checkpoint-*")}
    assert max(checkpoints) >= (3 if kind == signal.SIGINT else 2)

    run_to_end(folder)
    ours, theirs = (load_file(f / "adapter/adapter_model.safetensors") for f in (folder, straight))
    apart = max((ours[name] - theirs[name]).abs().max().item() for name in theirs)
    assert apart <= (1e-6 if 15 in kept.values() else 0.0)  # one rollout alone is another batch
    for step in range(1, STEPS + 1):
        indices = [r["index"] for r in read_rollouts(folder / f"rollouts/step-{step:05d}.jsonl")]
        assert sorted(indices) == list(range(16)), f"step {step}"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward" in line] == [*range(1, STEPS + 1)]
    assert len(lines) == STEPS + 1 and lines[-1]["train_runtime"] > 0


def test_prompts_that_lose_their_turns_are_the_same_ones(tmp_path: Path) -> None:
    """A checkpoint knows which prompts were always or never solved; a fork goes on with them, too."""
    script = SCRIPT.replace("num_train_examples=64", "num_train_examples=8")
    script = script.replace("=4,", "=4, temperature=0.5, ")
    script = script.replace("beta=0.0", "beta=0.0, skip_zero_variance=0.8")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_to_end(whole, script)
    process = start(killed, script)
    wait_for(killed / "rollouts/step-00004.jsonl", process)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    last = max(killed.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    for path in killed.glob("rollouts/step-*.jsonl"):
        if int(path.stem.split("-")[1]) > int(last.name.split("-")[1]):
            path.unlink()  # so that nothing but the checkpoint knows the prompts
    run_to_end(killed, script)
    fork = (
        script.split("trainer.train")[0] + "trainer.fork(2, folder=sys.argv[1] + '-fork').train()"
    )
    run_to_end(whole, fork)
    asked = {
        folder.name: [
            [
                r["prompt"][-1]["content"]
                for r in sorted(read_rollouts(path), key=itemgetter("index"))
            ]
            for path in sorted(folder.glob("rollouts/step-*.jsonl"))
        ]
        for folder in (whole, killed, tmp_path / "whole-fork")
    }
    assert asked["killed"] == asked["whole"] and asked["whole-fork"] == asked["whole"][2:]
    first, second = load_file(killed / ADAPTER), load_file(whole / ADAPTER)
    assert all(equal(first[name], second[name]) for name in second)
    lines = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    skipped = [line["prompts/skipped"] for line in lines if "reward" in line]
    assert skipped[:2] == [0.0, 0.0] and sum(skipped[2:]) > 0  # every prompt has a first turn


@pytest.mark.parametrize(("stored", "difference"), [(8, 0.0), (15, 1e-6)])
def test_a_step_that_is_half_stored_goes_on(
    stored: int, difference: float, straight: Path, tmp_path: Path
) -> None:
    """One rollout alone is a batch of another shape, so that last bits differ: as much as is documented."""
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    for path in (*folder.glob("checkpoint-[45]"), *folder.glob("rollouts/step-0000[45].jsonl")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    step = folder / "rollouts/step-00003.jsonl"
    step.write_text("".join(step.read_text().splitlines(keepends=True)[:stored]))
    run_to_end(folder)
    ours, theirs = (load_file(f / "adapter/adapter_model.safetensors") for f in (folder, straight))
    apart = max((ours[name] - theirs[name]).abs().max().item() for name in theirs)
    print(f"{stored} of 16 stored: weights differ by at most {apart:.1e}")
    assert apart <= difference


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change(path: Path) -> None:
    """Turn one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "cut": cut,
    "emptied": lambda p: p.write_bytes(b""),
    "missing": Path.unlink,
    "changed": change,
}
FILES = (
    "adapter_model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "changes.json",
    "trainer_state.json",
    "manifest.json",
)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_passed_over(
    kind: str, file: str, straight: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The one before it is the last one; whoever names the damaged one is told what is wrong."""
    if file == "manifest.json" and kind in ("missing", "changed"):
        pytest.skip(
            "needs a manifest: one without is of another program, one changed has no witness"
        )
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    damaged = folder / f"checkpoint-{STEPS}"
    DAMAGES[kind](damaged / file)
    assert last_checkpoint(folder) == str(folder / "checkpoint-4")
    assert str(damaged) in caplog.text and "is damaged and is skipped" in caplog.text
    with pytest.raises(ValueError, match=rf"checkpoint-{STEPS} can't be loaded: .*steps 2, 4"):
        check_whole(damaged)


def test_a_whole_checkpoint_is_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of it, the manifest and the folder, so that a power cut takes none of them."""
    flushed: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    (tmp_path / "optimizer.pt").write_bytes(b"weights")
    write_manifest(tmp_path)
    assert [Path(path).name for path in flushed] == ["optimizer.pt", "manifest.json", tmp_path.name]


def test_a_run_goes_on_from_the_checkpoint_before(straight: Path, tmp_path: Path) -> None:
    """Without its optimizer the last checkpoint is not used, and the result is the same to the last bit."""
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    last = folder / f"checkpoint-{STEPS}"
    (last / "optimizer.pt").unlink()
    run_to_end(folder)
    assert "optimizer.pt is missing" in (tmp_path / "run.log").read_text()
    ours, theirs = (load_file(f / "adapter/adapter_model.safetensors") for f in (folder, straight))
    assert all(equal(ours[name], theirs[name]) for name in theirs)
    assert last_checkpoint(folder) == str(last)


def test_a_second_trainer_in_one_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = start(folder)
    wait_for(folder / "rollouts/step-00001.jsonl", first)
    first.send_signal(signal.SIGSTOP)  # or it would be done before the second one begins
    assert start(folder).wait(120) != 0
    first.send_signal(signal.SIGCONT)
    said = (tmp_path / "run.log").read_text()
    assert f"run/train is in use by process {first.pid} on " in said
    assert first.wait(300) == 0
    assert not list(folder.glob("*.lock"))
