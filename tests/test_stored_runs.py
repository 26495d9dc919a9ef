"""Stored runs that lack something, or have nowhere to go: a sentence says so, and nothing is lost."""

from __future__ import annotations

import itertools
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.trainer.run_folder import whole_checkpoints

MODEL = "verifiers_nb/adder-1m"


def right(completion: Any, answer: str) -> float:
    """Score 1.0 for the answer."""
    return float(answer in completion[-1]["content"])


def hard(completion: Any, info: dict[str, Any]) -> float:
    """Score by something that the rows do not have."""
    return float(info["level"] > 2)


def last_digit(completion: Any) -> float:
    """Fail for an empty text."""
    return float(completion[-1]["content"][-1])


@pytest.fixture
def stored(tmp_path: Path) -> tuple[vf.Environment, Path]:
    """Return an environment, and a file of rollouts of it, of a client that sends no tokens."""
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(3, 7)]
    env = vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric([right]))
    texts = itertools.cycle(["4 5 6 7", "", "9", "7", "6"])
    client = vf.ScriptedClient(lambda messages: next(texts))
    given = dict(rollouts_per_example=4, max_concurrent=1, progress=False)
    env.evaluate(client, "script", save_path=tmp_path / "stored.jsonl", **given)
    return env, tmp_path / "stored.jsonl"


def test_rollouts_without_tokens(stored: tuple[vf.Environment, Path]) -> None:
    """Everything works but the colours of tokens, and that is said."""
    env, path = stored
    assert vf.rescore(path, env=env, force=True).called == ["right"]
    bench = vf.RewardBench(path, env)
    bench.replace("right", lambda completion, answer: -right(completion, answer))
    assert len(bench.effects.flipped) > 0
    bench.show(int(bench.effects.flipped[0]))
    assert "stored without tokens, so none can be coloured" in bench.view.html


def test_a_rubric_that_wants_what_the_file_has_not(stored: tuple[vf.Environment, Path]) -> None:
    env, path = stored
    before = path.read_bytes()
    said = "failed on 16 of 16 rollouts, which score 0.0"
    rescored = vf.rescore(path, vf.Rubric([right, hard]))
    assert said in repr(rescored) and repr(rescored).endswith("the first: KeyError: 'level'")
    env.rubric = vf.Rubric([right, hard])
    bench = vf.RewardBench(path, env)
    assert said in bench.view.html and bench.notes["hard"].endswith("the first: KeyError: 'level'")
    assert path.read_bytes() == before


def test_a_replacement_that_fails_on_some_rollouts(stored: tuple[vf.Environment, Path]) -> None:
    env, path = stored
    bench = vf.RewardBench(path, env)
    bench.replace("right", last_digit)
    said = "it failed on 3 of 16 rollouts, which score 0.0, the first: IndexError"
    assert said in bench.notes["right"] and said in bench.view.html


def make_trainer(folder: Path, **settings: Any) -> vf.GRPOTrainer:
    """Return a trainer of the shipped model."""
    sizes = dict(per_device_train_batch_size=8, num_generations=4, max_tokens=20, max_steps=3)
    plain = dict(use_cpu=True, disable_tqdm=True, num_batches_ahead=0, save_strategy="no")
    args = vf.GRPOConfig(str(folder), **{**sizes, **plain, **settings})
    env = vf.load_environment("addition")
    return vf.GRPOTrainer(MODEL, env, args, peft_config=vf.lora_defaults())


def files_in(folder: Path) -> dict[Path, bytes]:
    """Return the files of a folder, with what they hold."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_without_checkpoints(tmp_path: Path) -> None:
    """It can't be forked, and without adapters there is nothing to slide over; the bench reads it."""
    trainer = make_trainer(tmp_path / "run", keep_adapters="none")
    trainer.train()
    before = files_in(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 'last'; .* steps \(none\)"):
        trainer.fork()
    bench = vf.RewardBench(trainer)
    bench.act("fork", {"step": "2"})
    assert "has no checkpoint &#x27;2&#x27;; it has those of steps (none)" in bench.view.html
    with pytest.raises(FileNotFoundError, match="holds no adapter of any step: train with keep_"):
        vf.PolicySlider(trainer, "What is 1 + 2?")
    assert files_in(tmp_path) == before
    trainer.close()


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """Let the kernel refuse files that are larger."""
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_while_adapters_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That ends, in one sentence; the run goes on, and nothing half written is left."""
    trainer = make_trainer(tmp_path / "run")
    with no_room(20_000):
        assert trainer.train().global_step == 3
    told = [
        r.getMessage() for r in caplog.records if "is not kept, and none after" in r.getMessage()
    ]
    assert len(told) == 1 and "The adapter of step 0" in told[0]
    assert not [path for path in (tmp_path / "run/adapters").rglob("*") if path.is_file()]
    trainer.close()


def test_a_full_disk_while_a_run_is_forked(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run", save_strategy="steps", save_steps=2)
    trainer.train()
    before = files_in(tmp_path)
    with (
        no_room(20_000),
        pytest.raises(OSError, match="can't be written to .*run-fork-1: .* as it was"),
    ):
        trainer.fork(2)
    assert files_in(tmp_path) == before and 2 in whole_checkpoints(tmp_path / "run")
    assert trainer.fork(2).state.global_step == 2
    trainer.close()


def test_a_full_disk_while_new_scores_are_written(stored: tuple[vf.Environment, Path]) -> None:
    env, path = stored
    before, rescored = files_in(path.parent), vf.rescore(path, env=env, force=True)
    with no_room(500), pytest.raises(OSError, match="The old file is unchanged"):
        rescored.save(path.with_name("new.jsonl"))
    assert files_in(path.parent) == before
    assert rescored.save(path.with_name("new.jsonl")).exists()
