"""Training runs with every kind of environment, in trouble of every kind, steered and stopped in every order."""

from __future__ import annotations

import asyncio
import copy
import errno
import json
import logging
import os
import resource
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
    TrainingArguments,
)

import verifiers_nb as vf
from verifiers_nb.envs.results import read_rollouts
from verifiers_nb.envs.store import RolloutStore
from verifiers_nb.support.sync_calls import background_loop
from verifiers_nb.trainer.run_records import write_advantages
from verifiers_nb.types import Rollout
from verifiers_nb.widgets.run import RunHistory, run_warnings

MODEL = "verifiers_nb/adder-1m"
SIZES = dict(per_device_train_batch_size=16, num_generations=4, max_tokens=40)


def sums(train: int = 64, evaluation: int = 4) -> vf.Environment:
    """Return the addition environment with few questions, which is loaded and audited sooner."""
    return vf.load_environment("addition", num_train_examples=train, num_eval_examples=evaluation)


def make_trainer(
    folder: Path, env: Any = None, client: Any = None, **settings: Any
) -> vf.GRPOTrainer:
    """Return a trainer of the shipped model whose steps take a fraction of a second."""
    defaults = dict(
        SIZES, learning_rate=1e-3, beta=0.0, save_strategy="no", use_cpu=True, disable_tqdm=True
    )
    peft_config, model = (
        settings.pop("peft_config", vf.lora_defaults()),
        settings.pop("model", MODEL),
    )
    args = vf.GRPOConfig(str(folder), **{**defaults, **settings})
    return vf.GRPOTrainer(model, env or sums(), args, peft_config=peft_config, client=client)


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def open_files(folder: Path) -> list[str]:
    """Return the files under a folder that this process holds open."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except OSError:
            continue
    return [link for link in links if link.startswith(str(folder))]


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Check that a test leaves no thread, task, process or open file of a run behind."""
    engine = vf.EmbeddedEngine(MODEL)  # its own thread may start with the first request
    loop = background_loop()
    before = set(threading.enumerate())
    yield
    wait_until(lambda: not asyncio.all_tasks(loop), 10)
    new = {
        each.name
        for each in set(threading.enumerate()) - before
        if each.name != "embedded engine" and type(each).__name__ != "TMonitor"  # tqdm's own
    }
    assert not {name for name in new if "grpo" in name or "Thread-" in name}, new
    assert open_files(tmp_path) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    engine.close()


@pytest.fixture
def hasty_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the audit at a run's start give up soon: it waits 5 seconds for rollouts that a test holds up."""
    monkeypatch.setattr("verifiers_nb.envs.audit.FREE_PATIENCE", 0.5)


# Environments of every kind


class TwoQuestions(vf.MultiTurnEnv):
    """Ask a sum, then another one."""

    def is_completed(self, messages: Any, state: dict[str, Any], **kwargs: Any) -> bool:
        return state["turn"] >= 2

    def env_response(self, messages: Any, state: dict[str, Any], **kwargs: Any) -> Any:
        return [{"role": "user", "content": "What is 4 + 5?"}], state


def questions(count: int = 16) -> Dataset:
    """Return sums as a dataset."""
    return sums(count).get_dataset()


def rubric() -> vf.Rubric:
    """Return the rubric of the addition environment."""
    return sums().rubric


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one number
        b: another one
    """
    return a + b


def parity(completion: Any, **kwargs: Any) -> float:
    """Score text completions by something that differs."""
    return float(len(completion) % 3)


def text_environment() -> vf.Environment:
    data = Dataset.from_list([{"prompt": f"{n} + {n} =", "answer": str(2 * n)} for n in range(16)])
    return vf.SingleTurnEnv(dataset=data, message_type="completion", rubric=vf.Rubric([parity]))


ENVIRONMENTS = {
    "multi-turn": lambda: TwoQuestions(dataset=questions(), rubric=rubric()),
    "tools": lambda: vf.ToolEnv(tools=[add], dataset=questions(), rubric=rubric()),
    "group": lambda: vf.EnvGroup(
        [
            sums(16),
            TwoQuestions(dataset=questions(), rubric=rubric()),
        ],
        ["once", "twice"],
    ),
    "text": text_environment,
}


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_environments(kind: str, ahead: int, tmp_path: Path, nothing_left: None) -> None:
    count = 2 + ahead
    trainer = make_trainer(tmp_path, ENVIRONMENTS[kind](), max_steps=count, num_batches_ahead=ahead)
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert [entry["step"] for entry in steps] == [*range(1, count + 1)]
    assert all(entry["rollouts/failed"] == 0 for entry in steps)
    # A sampler that is a step behind differs from the trainer by what was learnt in that step.
    assert all(entry["gap"] < (0.1 if ahead else 1e-3) for entry in steps)
    # A batch ahead is at most that old; where its rollouts begin late, it is of the newest policy.
    staleness = [entry["staleness/max"] for entry in steps]
    assert staleness[0] == 0 and max(staleness) <= ahead
    turns = {len(r["turns"]) for r in read_rollouts(tmp_path / "rollouts/step-00001.jsonl")}
    assert turns == {"multi-turn": {2}, "group": {1, 2}}.get(kind, {1}) or kind == "group"
    trainer.close()


def test_a_template_that_rewrites_history_splits_rollouts(tmp_path: Path) -> None:
    """As Qwen3's, which drops earlier thoughts: each turn is a sequence of its own."""
    model, tokenizer = vf.get_model_and_tokenizer(MODEL)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    args = vf.GRPOConfig(
        str(tmp_path), max_steps=2, use_cpu=True, num_batches_ahead=0, beta=0.0, **SIZES
    )
    env = TwoQuestions(dataset=questions(), rubric=rubric())
    trainer = vf.GRPOTrainer(model, env, args, tokenizer, vf.lora_defaults())
    trainer.train()
    batch = trainer.delivery.batches[0]
    assert len(batch.samples) > sum(advantage != 0 for advantage in batch.advantages)
    assert all(entry["gap"] < 1e-3 for entry in trainer.state.log_history[:2])


# Trouble


class Flaky(vf.SingleTurnEnv):
    """Fail for some rollouts, always the same ones."""

    async def rollout(self, client: Any, model: str, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        completion, state = await super().rollout(client, model, prompt, *args, **kwargs)
        if len(str(completion)) % 5 == 0:
            raise ConnectionError("the sandbox went away")
        return completion, state


def test_failed_rollouts_are_replaced_or_left_out(tmp_path: Path) -> None:
    env = Flaky(dataset=questions(), rubric=rubric())
    trainer = make_trainer(tmp_path, env, max_steps=3, num_batches_ahead=0)
    trainer.train()
    records = [
        r for s in (1, 2, 3) for r in read_rollouts(tmp_path / f"rollouts/step-{s:05d}.jsonl")
    ]
    failed = [record for record in records if record["error"]]
    logged = sum(entry["rollouts/failed"] for entry in trainer.state.log_history[:3])
    assert logged == len(failed) < 0.15 * len(records)  # a fifth fails, most of it gets replaced
    assert all(record["advantage"] == 0 for record in failed)
    for start in range(0, 48, 4):
        group = sorted(records, key=lambda r: r["index"])[start : start + 4]
        assert len(group) == 4


def test_a_loss_that_is_not_a_number(tmp_path: Path, nothing_left: None) -> None:
    """It stops the run at once, and leaves weights and checkpoint alone."""
    env = sums()
    calls: list[int] = []

    async def score_rollout(completion: Any, **kwargs: Any) -> vf.RolloutScore:
        calls.append(1)
        reward = 1e300 if len(calls) == 24 else float(len(str(completion)))  # infinite in float32
        return vf.RolloutScore(reward=reward)

    env.rubric.score_rollout = score_rollout
    trainer = make_trainer(
        tmp_path, env, max_steps=9, num_batches_ahead=0, save_strategy="steps", save_steps=1
    )
    with pytest.raises(FloatingPointError, match="step 2 is not finite"):
        trainer.train()
    assert trainer.run.state.phase == "failed"
    assert sorted(p.name for p in tmp_path.glob("checkpoint-*")) == ["checkpoint-1"]
    assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())
    trainer.close()


def test_a_run_names_sampling_arguments_that_nobody_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the environment hold in training, too; they are named once, however many steps there are."""
    client = vf.ScriptedClient("7")
    env = sums()
    env.sampling_args = {"temprature": 0.5}
    args = vf.GRPOConfig(str(tmp_path), use_cpu=True)
    for seed in range(3):
        run = env.make_run(
            {"prompt": ["?"], "answer": ["7"]}, client, "m", args.sampling_args(seed)
        )
        assert run.sampling_args["temprature"] == 0.5
    told = [r.getMessage() for r in caplog.records if "temprature" in r.getMessage()]
    assert len(told) == 1 and "did you mean temperature?" in told[0]


def test_a_constant_reward_is_pointed_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = sums()
    env.rubric = vf.Rubric([lambda completion, **kwargs: 0.25])
    trainer = make_trainer(tmp_path, env, max_steps=2)
    trainer.train()
    told = [r.getMessage() for r in caplog.records if "learns nothing" in r.getMessage()]
    assert len(told) == 1 and told[0].startswith("All 16 rollouts earn 0.25 of 1")
    assert "Audit: gold_fails" in caplog.text
    assert all(entry["groups/zero_variance"] == 1.0 for entry in trainer.state.log_history[:2])


@pytest.mark.usefixtures("hasty_audit")
def test_a_slow_environment_is_explained(tmp_path: Path, nothing_left: None) -> None:
    class Stuck(vf.SingleTurnEnv):
        async def rollout(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(3600)

    env = Stuck(dataset=questions(), rubric=rubric())
    trainer = make_trainer(tmp_path, env, max_steps=2, async_generation_timeout=0.5)
    with pytest.raises(TimeoutError, match="0 of 16 are done, the others are being played"):
        trainer.train()
    env.rollout_timeout = 0.2
    with pytest.raises(
        RuntimeError, match="All 16 rollouts of the step failed; the first: TimeoutError"
    ):
        make_trainer(tmp_path / "again", env, max_steps=2).train()


@pytest.mark.usefixtures("hasty_audit")
def test_one_slow_rollout_does_not_hold_up_the_next_generation(tmp_path: Path) -> None:
    """While a straggler of step 1 is awaited, the rollouts of step 2 are made."""
    released, started = threading.Event(), []

    class Straggler(vf.SingleTurnEnv):
        async def rollout(self, *args: Any, **kwargs: Any) -> Any:
            started.append(len(started))
            if len(started) == 1:
                await asyncio.to_thread(released.wait, 60)
            return await super().rollout(*args, **kwargs)

    trainer = make_trainer(tmp_path, Straggler(dataset=questions(), rubric=rubric()), max_steps=2)
    trainer.start()
    try:
        wait_until((tmp_path / "rollouts/step-00002.jsonl").exists)
        wait_until(lambda: len(list(read_rollouts(tmp_path / "rollouts/step-00002.jsonl"))) == 16)
        wait_until(lambda: trainer.run.state.rollouts == (15, 16))
        assert trainer.run.state.step == 0
    finally:
        released.set()
    assert trainer.wait(60).global_step == 2


# Bad input


def test_bad_input_is_refused_before_the_work(tmp_path: Path) -> None:
    for wrong, message in {
        "use_dora": "use_dora",
        "modules_to_save": "modules_to_save",
        "bias": "bias",
    }.items():
        value: Any = {"use_dora": True, "modules_to_save": ["lm_head"], "bias": "all"}[wrong]
        config = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", **{wrong: value})
        with pytest.raises(ValueError, match=message):
            make_trainer(tmp_path, peft_config=config)
    with pytest.raises(ValueError, match="Use 16 or 20 rollouts"):
        make_trainer(tmp_path, per_device_train_batch_size=18)
    with pytest.raises(ValueError, match="were too long"):
        make_trainer(tmp_path, max_seq_len=8)
    model, tokenizer = vf.get_model_and_tokenizer(MODEL)
    args = vf.GRPOConfig(str(tmp_path), use_cpu=True, **SIZES)
    mute = copy.deepcopy(tokenizer)
    mute.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with pytest.raises(ValueError, match="never told that it is its turn"):
        vf.GRPOTrainer(model, sums(), args, mute, vf.lora_defaults())


def test_a_model_without_a_pad_token_trains(tmp_path: Path) -> None:
    model, tokenizer = vf.get_model_and_tokenizer(MODEL)
    tokenizer.pad_token = None
    model.config.pad_token_id = model.generation_config.pad_token_id = None
    args = vf.GRPOConfig(str(tmp_path), max_steps=2, use_cpu=True, **SIZES)
    env = sums()
    trainer = vf.GRPOTrainer(model, env, args, tokenizer, vf.lora_defaults())
    assert trainer.train().global_step == 2


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="No server has answered at http://127.0.0.1:9/v1"):
        make_trainer(
            tmp_path, vllm_server_host="127.0.0.1", vllm_server_port=9, vllm_server_timeout=0
        )


def test_two_runs_on_one_sampler(tmp_path: Path) -> None:
    first = make_trainer(tmp_path / "first", max_steps=1000)
    second = make_trainer(tmp_path / "second", client=first.client, max_steps=1)
    first.start()
    wait_until(lambda: first.run.state.step > 0)
    message = "A run already pushes its policy to this client: wait for it"
    for trainer in (first, second):  # the next cell of a notebook, after Start on the dashboard
        with pytest.raises(RuntimeError, match=message):
            trainer.train()
    second.start()
    with pytest.raises(RuntimeError, match=message):
        second.wait(60)
    assert first.run.is_active and second.run.state.phase == "failed"
    assert not second.run.is_active
    first.stop()
    first.wait(60)
    assert second.train().global_step == 1


# Disks that are full


def test_a_full_disk_costs_checkpoints_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel refuses large files in steps 2 and 3: no checkpoints there, and a run to the end."""

    class Fill(TrainerCallback):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            full = 1 <= state.global_step < 3
            soft = 20_000 if full else self.limits[0]
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, self.limits[1]))

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    trainer = make_trainer(tmp_path, max_steps=4, save_strategy="steps", save_steps=1)
    trainer.add_callback(Fill())
    try:
        assert trainer.train().global_step == 4
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, Fill.limits)
        signal.signal(signal.SIGXFSZ, before)
    kept = sorted(int(p.name.split("-")[1]) for p in tmp_path.glob("checkpoint-*"))
    assert kept == [1, 4]
    told = [r.getMessage() for r in caplog.records if "could not be written" in r.getMessage()]
    assert len(told) == 2 and "the last good one is" in told[0] and "checkpoint-1" in told[0]
    assert not (tmp_path / "unfinished").exists()


def test_a_disk_that_becomes_read_only_costs_rollouts_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No file can be made in steps 2 and 3: their rollouts are not stored, and the run goes on."""
    check = RolloutStore.check

    def refuse(store: RolloutStore, settings: dict[str, Any]) -> None:
        if store.path.stem in ("step-00002", "step-00003"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(store.path))
        check(store, settings)

    monkeypatch.setattr(RolloutStore, "check", refuse)
    trainer = make_trainer(tmp_path, max_steps=4)
    assert trainer.train().global_step == 4
    kept = sorted(path.name for path in (tmp_path / "rollouts").iterdir())
    assert kept == ["step-00001.jsonl", "step-00004.jsonl"]
    told = [r.getMessage() for r in caplog.records if "are not stored" in r.getMessage()]
    assert len(told) == 2 and "Read-only file system: " in told[0] and "step-00002" in told[0]
    trainer.close()


def test_advantages_that_the_disk_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "step-00001.jsonl"
    store = RolloutStore(path)
    for index in range(3):
        store.append(Rollout("a prompt", index=index, completion="x" * 100))
    store.close()
    whole, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        write_advantages(path, [0.0, 1.0, -1.0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_bytes() == whole and list(tmp_path.iterdir()) == [path]
    assert "The advantages are not in" in caplog.text


SMALL_DISK = """
import ctypes, os, pathlib, sys
libc, user = ctypes.CDLL(None, use_errno=True), (os.getuid(), os.getgid())
if libc.unshare(0x10020000):  # CLONE_NEWUSER | CLONE_NEWNS
    sys.exit("needs to mount a small file system")
pathlib.Path("/proc/self/setgroups").write_text("deny")
for name, number in zip(("uid_map", "gid_map"), user):
    pathlib.Path(f"/proc/self/{name}").write_text(f"0 {number} 1")
if libc.mount(b"tmpfs", sys.argv[1].encode(), b"tmpfs", 0, b"size=700k"):
    sys.exit("needs to mount a small file system")
"""


def test_a_disk_with_no_room_at_all(tmp_path: Path) -> None:
    """On a file system of 700 kB the run ends as it should, and what it wrote is whole."""
    script = (
        f"{SMALL_DISK}{CTRL_C.partition('def strike')[0]}"
        "print('steps', trainer.train().global_step)\n"
        "from verifiers_nb.trainer.run_folder import whole_checkpoints\n"
        "kept = [p.name for p in pathlib.Path(sys.argv[1]).glob('checkpoint-*')]\n"
        "assert len(kept) == len(whole_checkpoints(sys.argv[1])) < 6\n"
        "print('kept', len(kept))\n"
    ).replace('max_steps=500, save_strategy="no"', "max_steps=6, save_steps=1")
    done = forked.run([sys.executable, "-c", script, str(tmp_path), ""])
    if "needs to mount" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "steps 6" in done.stdout
    assert "could not be written" in done.stderr and "No space left on device" in done.stderr


# Shutdown in every order


class Gate(vf.SingleTurnEnv):
    """Play rollouts while the gate is open."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.open, self.waiting = True, 0

    async def rollout(self, *args: Any, **kwargs: Any) -> Any:
        self.waiting += 1
        while not self.open:
            await asyncio.sleep(0.01)
        self.waiting -= 1
        return await super().rollout(*args, **kwargs)


@pytest.fixture
def gate() -> Gate:
    """Return an environment whose rollouts can be held up."""
    return Gate(dataset=questions(), rubric=rubric())


@pytest.mark.parametrize("ahead", [0, 1])
def test_stop_while_generating(ahead: int, gate: Gate, tmp_path: Path, nothing_left: None) -> None:
    trainer = make_trainer(tmp_path, gate, max_steps=100, num_batches_ahead=ahead)
    trainer.start()
    wait_until(lambda: trainer.run.state.step >= 2)
    gate.open = False
    wait_until(lambda: gate.waiting and trainer.run.state.phase == "generating")
    step = trainer.run.state.step
    trainer.stop()
    assert trainer.wait(30).global_step == step
    assert trainer.run.state.phase == "stopped"
    assert (tmp_path / f"checkpoint-{step}/trainer_state.json").exists()
    trainer.close()


@pytest.mark.usefixtures("hasty_audit")
def test_close_while_generating(gate: Gate, tmp_path: Path, nothing_left: None) -> None:
    gate.open = False
    trainer = make_trainer(tmp_path, gate, max_steps=100)
    trainer.start()
    wait_until(lambda: gate.waiting == 32)
    trainer.close()
    assert trainer.run.state.phase == "stopped" and not trainer.run.thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(trainer.client.completions.create(prompt="1", max_tokens=1))


def test_an_exception_in_the_rubric(tmp_path: Path, nothing_left: None) -> None:
    env = sums()
    calls: list[int] = []

    async def broken(**kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 16:
            raise LookupError("the table is gone")
        return vf.RolloutScore(reward=len(calls) % 3, metrics={})

    env.rubric.score_rollout = broken
    trainer = make_trainer(tmp_path, env, max_steps=9)
    failed = "All 16 rollouts of the step failed; the first: LookupError: the table is gone"
    with pytest.raises(RuntimeError, match=failed):
        trainer.train()
    trainer.close()


def test_an_exception_in_training_surfaces_from_the_thread(
    gate: Gate, tmp_path: Path, nothing_left: None, caplog: pytest.LogCaptureFixture
) -> None:
    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:  # hold up the generation that is started next
                wait_until(trainer.pipeline.under_way[1].job.ended.is_set)
                gate.open = False
            elif state.global_step == 2:
                wait_until(lambda: gate.waiting)
                raise ZeroDivisionError("the tracker divided by zero")

    trainer = make_trainer(tmp_path, gate, max_steps=9, num_batches_ahead=1)
    trainer.add_callback(Break())
    trainer.start()
    with pytest.raises(RuntimeError, match="The run failed at step 2: the tracker divided by zero"):
        trainer.wait(60)
    assert trainer.run.state.phase == "failed"
    assert isinstance(trainer.run.state.error, ZeroDivisionError)
    with pytest.raises(RuntimeError, match="divided by zero"):
        trainer.pause()
    assert any("The run failed at step 2" in r.getMessage() for r in caplog.records)
    trainer.close()


def test_a_hard_pause_frees_the_sampler_and_loses_nothing(
    gate: Gate, tmp_path: Path, nothing_left: None
) -> None:
    """A run that was paused hard ends as one that was not, to the last bit."""
    paused = make_trainer(tmp_path / "paused", gate, max_steps=3, num_batches_ahead=0)
    paused.start()
    wait_until(lambda: paused.run.state.step >= 1)
    gate.open = False
    wait_until(lambda: gate.waiting)
    paused.pause(hard=True)
    wait_until(lambda: paused.run.state.phase == "paused")
    wait_until(lambda: not asyncio.all_tasks(background_loop()))
    gate.open = True
    time.sleep(0.2)
    assert paused.run.state.phase == "paused"
    paused.resume()
    paused.wait(60)
    straight = make_trainer(tmp_path / "straight", gate, max_steps=3, num_batches_ahead=0)
    straight.train()
    pairs = zip(paused.model.parameters(), straight.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    paused.close()
    straight.close()


CTRL_C = """
import os, signal, sys, threading, time, verifiers_nb as vf
folder, when = sys.argv[1:]
args = vf.GRPOConfig(folder, max_steps=500, save_strategy="no", use_cpu=True, beta=0.0, learning_rate=1e-3,
    per_device_train_batch_size=16, num_generations=4, max_tokens=40)
env = vf.load_environment("addition", num_train_examples=64)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())

def strike():
    while not (trainer.run.state.step >= 2 and trainer.run.state.phase == when):
        time.sleep(0.0002)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=strike, daemon=True).start()
try:
    trainer.train()
except KeyboardInterrupt:
    state = trainer.run.state
    assert state.phase == "stopped", state
    assert os.path.exists(f"{folder}/checkpoint-{trainer.state.global_step}/trainer_state.json")
    assert [t.name for t in threading.enumerate() if "grpo" in t.name] == []
    print("stopped at", trainer.state.global_step)
"""


def test_ctrl_c_in_the_first_step(tmp_path: Path) -> None:
    """Our message is in the error; that of transformers about an empty dataset is not shown."""
    first = CTRL_C.replace("trainer.run.state.step >= 2 and ", "").partition(
        "except KeyboardInterrupt:"
    )[0]
    script = first + "except KeyboardInterrupt as error:\n    print(error)\n"
    done = forked.run([sys.executable, "-c", script, str(tmp_path), "generating"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "stopped before the end of the first step: nothing is saved" in done.stdout
    assert "single sample" not in done.stdout + done.stderr


@pytest.mark.parametrize("when", ["generating", "training"])
def test_ctrl_c(when: str, tmp_path: Path) -> None:
    done = forked.run([sys.executable, "-c", CTRL_C, str(tmp_path), when])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "stopped at" in done.stdout


def test_the_state_can_be_read_at_any_time(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=4)
    trainer.start()
    seen = []
    while trainer.run.is_active:
        seen.append(trainer.run.state)
        time.sleep(0.001)  # else the run waits for Python's lock most of the time
    assert trainer.run.state.phase == "finished"
    assert {"generating", "training"} <= {state.phase for state in seen}
    steps = [state.step for state in seen]
    assert steps == sorted(steps)
    assert seen[-1].metrics["reward"] > 0
    assert any(state.seconds_left is not None for state in seen)


def test_a_process_that_ends_stops_its_run(tmp_path: Path) -> None:
    """A script that forgets to wait ends at once, with a checkpoint. Python takes itself apart, as it does for a user."""
    script = CTRL_C.split("def strike")[0] + (
        "trainer.start()\nwhile trainer.run.state.step < 2:\n    time.sleep(0.01)\n"
        "import ctypes\nctypes.pythonapi.Py_Exit(0)\n"
    )
    done = forked.run([sys.executable, "-c", script, str(tmp_path), ""])
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.glob("checkpoint-*"))


# Checkpoints, evaluation, records


def test_the_best_by_evaluation_is_kept_loaded_and_gone_back_to(tmp_path: Path) -> None:
    env = sums()
    best_step = 1
    settings = dict(
        max_steps=3,
        num_batches_ahead=0,
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="reward",
        save_total_limit=2,
    )
    trainer = make_trainer(tmp_path, env, **settings)
    evaluate = trainer.evaluate_policy

    def rigged() -> dict[str, float]:
        """Evaluate for real, and let the first step be the best."""
        return {**evaluate(), "reward": 1.0 / (1 + abs(trainer.state.global_step - best_step))}

    trainer.evaluate_policy = rigged
    trainer.train()
    assert {p.name for p in tmp_path.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-3"}
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")
    saved = PeftModel.from_pretrained(vf.get_model(MODEL), tmp_path / "checkpoint-1").state_dict()
    ours = trainer.model.state_dict()
    assert all(torch.equal(ours[name], saved[name]) for name in saved if "lora" in name)
    assert len(list((tmp_path / "evaluations").iterdir())) == 3
    assert trainer.roll_back("best") == tmp_path / "checkpoint-1"
    assert {p.name for p in tmp_path.glob("checkpoint-*")} == {"checkpoint-1"}
    assert len(list((tmp_path / "rollouts").iterdir())) == 1
    assert trainer.train(resume_from_checkpoint=True).global_step == 3


def test_what_is_saved_is_loaded_plainly(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    trainer.train()
    folder = vf.model_path(MODEL)
    ids = torch.tensor([[1, 40, 50, 60]])
    with torch.no_grad():
        expected = trainer.model.eval()(ids).logits
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        adapted = PeftModel.from_pretrained(base, trainer.save_adapter(tmp_path / "adapter"))
        assert torch.allclose(adapted(ids).logits, expected, atol=1e-5)
        merged = trainer.merge_and_save(tmp_path / "merged")
        plain = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
        assert torch.allclose(plain(ids).logits, expected, atol=1e-4)
    engine = vf.EmbeddedEngine(str(merged))
    answer = asyncio.run(
        engine.chat.completions.create(messages=[{"role": "user", "content": "What is 1 + 2?"}])
    )
    assert answer.choices[0].message.content


def test_a_run_ahead_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    script = (
        CTRL_C.split("def strike")[0]
        .replace('save_strategy="no"', "save_steps=3")
        .replace("max_steps=500", "max_steps=int(when)")
        + "trainer.train(resume_from_checkpoint=True)\n"
    )

    def start(steps: int) -> forked.Popen:
        log = (tmp_path / "log").open("a")
        command = [sys.executable, "-c", script, str(tmp_path / "run"), str(steps)]
        return forked.Popen(command, stdout=log, stderr=log)

    process = start(500)
    wait_until((tmp_path / "run/rollouts/step-00005.jsonl").exists, 120)
    process.kill()
    process.wait()
    assert start(7).wait(120) == 0, (tmp_path / "log").read_text()[-3000:]
    for step in range(1, 8):
        records = list(read_rollouts(tmp_path / f"run/rollouts/step-{step:05d}.jsonl"))
        assert sorted(record["index"] for record in records) == list(range(16)), step
    metrics = [
        json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    ]
    steps = [line["step"] for line in metrics if "reward" in line]
    assert steps == list(range(1, 8))
    assert all(line.get("staleness/max", 0) <= 1 for line in metrics)


def test_rollouts_of_another_rubric_are_made_again(tmp_path: Path) -> None:
    """Whoever changes the rewards and resumes must not learn from the old ones."""
    settings = dict(save_strategy="steps", save_steps=1, num_batches_ahead=0)
    make_trainer(tmp_path, max_steps=2, **settings).train()
    shutil.rmtree(tmp_path / "checkpoint-2")
    env = sums()
    env.rubric.reward_weights = [0.0, 1.0]
    trainer = make_trainer(tmp_path, env, max_steps=2, **settings)
    trainer.train(resume_from_checkpoint=True)
    assert len(list((tmp_path / "rollouts").glob("step-00002.jsonl.*"))) == 1
    last = trainer.state.log_history[1]
    assert last["step"] == 2 and last["reward"] == pytest.approx(last["rewards/format_reward_func"])


def test_records_are_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(
        tmp_path, max_steps=2, beta=0.01, log_completions=True, num_completions_to_print=1
    )
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    wanted = """reward rewards/correct_answer rewards/format_reward_func completions/well_formed loss kl entropy
        completions/mean_length completions/truncated clipped_low clipped_high gap staleness tokens
        tokens_per_second time/generating time/training memory/peak_gib grad_norm learning_rate step"""
    assert set(wanted.split()) <= set(lines[0])
    for record in read_rollouts(tmp_path / "rollouts/step-00002.jsonl"):
        assert {"prompt", "completion", "reward", "metrics", "advantage", "turns"} <= set(record)
        assert {"prompt_ids", "completion_ids", "logprobs", "policy_version"} <= set(
            record["turns"][0]
        )
    assert capsys.readouterr().out.count("Step ") == 2


def collapses(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged about a collapse."""
    return [each.getMessage() for each in caplog.records if "collapsed" in each.getMessage()]


@pytest.mark.parametrize("settings", [dict(beta=0.001), dict(beta=0.0, num_batches_ahead=0)])
def test_a_collapsed_run_is_named(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line names the learning rate and the last good checkpoint; the dashboard says the same."""
    often = dict(save_strategy="steps", save_steps=1, save_total_limit=3)
    big = dict(per_device_train_batch_size=32, num_generations=8, max_steps=5)
    make_trainer(tmp_path, **{**big, **often, **settings}, learning_rate=0.3).train()
    (line,) = collapses(caplog)
    assert "learning rate of 0.3" in line and "\n" not in line
    history = RunHistory(tmp_path)
    history.read()
    shown = run_warnings(history)
    fall = line[: line.index("The learning rate")]
    assert shown[0].startswith(fall)
    assert not any("not the trainer's model" in warning for warning in shown)


def test_the_last_good_checkpoint_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that was healthy, then got a learning rate that is far too high."""
    big = dict(per_device_train_batch_size=32, num_generations=8, max_steps=7)
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=2, **big)

    class Raise(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                trainer.run.change(learning_rate=1.0)

    trainer.add_callback(Raise())
    trainer.train()
    (line,) = collapses(caplog)
    assert "learning rate of 1 " in line and "checkpoint-2:" in line


@pytest.mark.parametrize(("rate", "seed"), [(3e-4, 0), (1e-3, 1), (3e-3, 2)])
def test_a_healthy_run_raises_no_alarm(
    rate: float, seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Small batches, whose rewards vary most."""
    make_trainer(tmp_path, max_steps=10, learning_rate=rate, seed=seed, beta=0.001).train()
    assert collapses(caplog) == []
    history = RunHistory(tmp_path)
    history.read()
    assert not [text for text in run_warnings(history) if "collaps" in text or "lag" in text]


@pytest.fixture(scope="module")
def saved_adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an adapter that has learnt for two steps."""
    folder = tmp_path_factory.mktemp("first")
    trainer = make_trainer(folder, max_steps=2)
    trainer.train()
    return trainer.save_adapter(folder / "adapter")


@pytest.mark.parametrize("way", ["model", "peft_config", "object"])
def test_a_saved_adapter_is_trained_on(way: str, saved_adapter: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(max_steps=1, beta=0.01, kl_reference="start")
    args = vf.GRPOConfig(str(tmp_path), **SIZES, learning_rate=1e-3, use_cpu=True, **settings)
    env, given = sums(), dict[str, Any]()
    model: Any = str(saved_adapter)
    if way == "peft_config":
        model, given = MODEL, {"peft_config": saved_adapter}
    elif way == "object":
        model = PeftModel.from_pretrained(vf.get_model(MODEL), str(saved_adapter))
        given = {"processing_class": vf.get_tokenizer(MODEL)}
    trainer = vf.GRPOTrainer(model, env, args, **given)
    saved = load_file(saved_adapter / "adapter_model.safetensors")
    ours = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert len(saved) == len(ours)
    for name, weight in ours.items():
        assert torch.equal(weight, saved[name.replace(".default", "")])
    trainer.train()
    assert any(
        not torch.equal(p, ours[n]) for n, p in trainer.model.named_parameters() if n in ours
    )
    first = trainer.state.log_history[0]
    assert first["kl"] == pytest.approx(0, abs=1e-6)  # the reference is the start
    for name, weight in trainer.reference.weights.items():
        assert torch.equal(weight, ours[name])


def test_the_kl_of_an_adapter_is_stated(
    saved_adapter: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(
        tmp_path, model=str(saved_adapter), peft_config=None, max_steps=1, beta=0.01
    )
    trainer.train()
    (said,) = [r.getMessage() for r in caplog.records if "goes on from an adapter" in r.message]
    assert "beta=0.01" in said and "the base model" in said
    assert trainer.state.log_history[0]["kl"] > 1e-6


def test_a_second_config_is_refused(saved_adapter: Path, tmp_path: Path) -> None:
    for model in (
        str(saved_adapter),
        PeftModel.from_pretrained(vf.get_model(MODEL), saved_adapter),
    ):
        with pytest.raises(ValueError, match="leave .*out"):
            vf.GRPOTrainer(
                model,
                sums(),
                vf.GRPOConfig(str(tmp_path), **SIZES, use_cpu=True),
                vf.get_tokenizer(MODEL),
                vf.lora_defaults(),
            )


def test_the_start_is_kept_in_checkpoints(saved_adapter: Path, tmp_path: Path) -> None:
    """A resumed run is held to the same start, though its adapter has moved."""
    settings: dict[str, Any] = dict(save_strategy="steps", save_steps=1, beta=0.01)
    settings |= dict(model=str(saved_adapter), peft_config=None, kl_reference="start")
    make_trainer(tmp_path, max_steps=1, **settings).train()
    trainer = make_trainer(tmp_path, max_steps=2, **settings)
    trainer.train(resume_from_checkpoint=True)
    saved = load_file(saved_adapter / "adapter_model.safetensors")
    for name, weight in trainer.reference.weights.items():
        assert torch.equal(weight, saved[name.replace(".default", "")])


OBJECTIVES = [
    dict(advantage_estimator="gdpo"),
    dict(loss_type="sapo", num_iterations=2),
    dict(loss_type="luspo"),
    dict(loss_type="vespo", top_entropy_quantile=0.5),
]


def learnt(folder: Path, **settings: Any) -> list[torch.Tensor]:
    """Return the adapter after two steps, which have changed it."""
    trainer = make_trainer(folder, max_steps=2, num_batches_ahead=0, **settings)
    first = [p.detach().clone() for p in trainer.model.parameters() if p.requires_grad]
    trainer.train()
    after = [p.detach() for p in trainer.model.parameters() if p.requires_grad]
    assert not all(map(torch.equal, first, after))
    return after


@pytest.fixture(scope="module")
def learnt_by_default(tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    """Return what the default objective makes of the adapter."""
    return learnt(tmp_path_factory.mktemp("default"))


@pytest.mark.parametrize("settings", OBJECTIVES, ids=str)
def test_objectives_learn(
    settings: dict[str, Any], learnt_by_default: list[torch.Tensor], tmp_path: Path
) -> None:
    """Each changes the weights in another way than the default does."""
    assert not all(map(torch.equal, learnt(tmp_path, **settings), learnt_by_default))


def test_gdpo_needs_one_rubric(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a rubric with one weight for each"):
        make_trainer(tmp_path, ENVIRONMENTS["group"](), max_steps=1, advantage_estimator="gdpo")


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make_trainer(tmp_path, max_steps=2, report_to="tensorboard")
    trainer.train()
    (events,) = list(tmp_path.rglob("events.out.*"))
    log = EventAccumulator(str(events))
    log.Reload()
    assert {"train/reward", "train/rewards/correct_answer", "train/staleness"} <= set(
        log.Tags()["scalars"]
    )
    assert [event.step for event in log.Scalars("train/reward")] == [1, 2]


def test_wandb_gets_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    make_trainer(tmp_path / "run", max_steps=2, report_to="wandb", log_completions=True).train()
    wandb.finish()
    (first, _) = sorted(tmp_path.rglob("*.table.json"), key=lambda path: path.stat().st_mtime)
    table = json.loads(first.read_text())
    assert table["columns"][:5] == ["step", "prompt", "completion", "reward", "correct_answer"]
    assert len(table["data"]) == 16 and table["data"][0][0] == 1
    (path,) = tmp_path.rglob("run-*.wandb")
    deadline = time.monotonic() + 60  # wandb writes in a process of its own, which may be late
    while b"train/staleness" not in path.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"train/reward" in path.read_bytes() and b"train/staleness" in path.read_bytes()


def test_trackio_gets_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason="needs trackio: pip install trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    script = (
        "import sys, verifiers_nb as vf\n"
        "args = vf.GRPOConfig(sys.argv[1], per_device_train_batch_size=16, num_generations=4, "
        "max_tokens=40, max_steps=2, use_cpu=True, report_to='trackio', project='sums', "
        "log_completions=True, num_completions_to_print=3)\n"
        "env = vf.load_environment('addition', num_train_examples=64)\n"
        "vf.GRPOTrainer('verifiers_nb/adder-1m', env, args, peft_config=vf.lora_defaults()).train()\n"
    )
    done = forked.run([sys.executable, "-c", script, str(tmp_path / "run")])
    assert done.returncode == 0, done.stderr[-2000:]
    with sqlite3.connect(tmp_path / "trackio" / "sums.db") as database:
        rows = database.execute("select metrics from metrics order by step").fetchall()
    found = [json.loads(row[0]) for row in rows]
    rewards = [row["train/reward"] for row in found if "train/reward" in row]
    tables = [row["rollouts"]["_value"] for row in found if "rollouts" in row]
    assert [len(table) for table in tables] == [3, 3] and tables[1][0]["step"] == 2
    assert {"prompt", "completion", "reward", "correct_answer"} <= {*tables[0][0]}
    logged = [
        json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    ]
    assert rewards == pytest.approx([line["reward"] for line in logged if "reward" in line])


def test_a_space_without_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason="needs trackio: pip install trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    trainer = make_trainer(
        tmp_path, max_steps=1, report_to="trackio", trackio_space_id="nobody/sums"
    )
    with pytest.raises(RuntimeError, match="^trackio can't be used: .*hf auth login"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_data_seed_of_zero_counts(tmp_path: Path) -> None:
    orders = [make_trainer(tmp_path, data_seed=seed).prompts[0] for seed in (0, 0, None)]
    assert orders[0] == orders[1] != orders[2]


def test_rows_that_nobody_evaluates_are_not_made(tmp_path: Path) -> None:
    def fail() -> Any:
        raise AssertionError("the evaluation rows were made")

    rows = sums().get_dataset(n=16)
    rubric = vf.Rubric([lambda completion, **kwargs: 0.5])
    env = vf.SingleTurnEnv(dataset=rows, eval_dataset=fail, rubric=rubric)
    make_trainer(tmp_path, env)
    with pytest.raises(AssertionError, match="were made"):
        make_trainer(tmp_path / "evaluated", env, eval_strategy="steps", eval_steps=1)


def test_constrained_sampling_is_pointed_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = sums()
    env.sampling_args["response_format"] = {"type": "json_object"}
    make_trainer(tmp_path, env)
    assert "samples with response_format" in caplog.text


def test_bf16_is_computed_with(tmp_path: Path) -> None:
    seen = []

    def look(module: Any, inputs: Any, output: torch.Tensor) -> None:
        seen.append(output.dtype)
        vf.GRPOConfig(str(tmp_path / "now"), use_cpu=True)  # changes nothing for a trainer

    trainer = make_trainer(tmp_path, max_steps=1, bf16=True)
    make_trainer(tmp_path / "other")  # without bf16
    trainer.model.get_base_model().get_decoder().layers[0].mlp.register_forward_hook(look)
    trainer.train()
    assert torch.bfloat16 in seen and trainer.accelerator.mixed_precision == "bf16"
    TrainingArguments(str(tmp_path / "later"), use_cpu=True)  # nor does this
    assert trainer.evaluate()["eval_failed"] == 0


@pytest.fixture(autouse=True)
def _propagate() -> Iterator[None]:
    """Let caplog hear the library's loggers."""
    logging.getLogger("verifiers_nb").propagate = True
    yield


def test_start_afresh_is_fresh(tmp_path: Path, nothing_left: None) -> None:
    """The button begins at step 0 with a new adapter, also after a run that went on from a checkpoint."""
    settings = dict(save_strategy="steps", save_steps=2, num_batches_ahead=0, learning_rate=1e-2)
    first = make_trainer(tmp_path / "run", max_steps=2, **settings)
    first.train()
    trainer = make_trainer(tmp_path / "run", max_steps=3, **settings)
    trainer.train(resume_from_checkpoint=True)
    dashboard = vf.TrainingDashboard(trainer)
    dashboard.act("start", {})
    wait_until(lambda: not trainer.run.is_active)
    again, before = trainer.state.log_history, first.state.log_history
    assert [entry["step"] for entry in again if "reward" in entry] == [1, 2, 3]
    rewards = [[entry["reward"] for entry in history[:2]] for history in (again, before)]
    assert rewards[0] == rewards[1]
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["step"] == 1 and len(lines) == len(again)
    threads = lambda: {each.name for each in threading.enumerate()}  # noqa: E731
    dashboard.close()
    wait_until(lambda: "follow TrainingDashboard" not in threads())
    first.close()
    trainer.close()


def other_model(folder: Path, **sizes: int) -> Path:
    """Save a model with random weights, of the shipped model's kind and, but for `sizes`, of its sizes."""
    shipped = vf.model_path(MODEL)
    config = AutoConfig.from_pretrained(shipped, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(shipped).save_pretrained(folder)
    return folder


def test_adapters_of_another_base_model(tmp_path: Path) -> None:
    """Such a checkpoint is refused in a sentence, and everything is as it was; a model may have moved."""
    settings = dict(max_steps=1, save_strategy="steps", save_steps=1, num_batches_ahead=0)
    first = make_trainer(tmp_path / "first", **settings)
    first.train()
    checkpoint = tmp_path / "first/checkpoint-1"
    moved = shutil.copytree(vf.model_path(MODEL), tmp_path / "elsewhere/adder-1m")
    moved_fork = make_trainer(tmp_path / "moved", model=str(moved), **settings).fork(checkpoint)
    assert moved_fork.state.global_step == 1
    for sizes in ({}, {"hidden_size": 64}):
        name = "wide" if sizes else "twin"
        other = make_trainer(
            tmp_path / name,
            model=str(other_model(tmp_path / f"models/{name}", **sizes)),
            **settings,
        )
        kept = [weight.clone() for weight in other.model.parameters()]
        for ask in (
            lambda other=other: other.fork(checkpoint, folder=tmp_path / "fork"),
            lambda other=other: other.train(resume_from_checkpoint=str(checkpoint)),
        ):
            with pytest.raises(ValueError, match=f"belongs to '{MODEL}', not to .*{name}"):
                ask()
        with pytest.raises(ValueError, match="is of another run"):
            other.roll_back(checkpoint)
        shutil.copytree(
            tmp_path / "first/adapters", tmp_path / name / "adapters", dirs_exist_ok=True
        )
        with pytest.raises(ValueError, match=f"belongs to '{MODEL}', not to .*{name}"):
            vf.PolicySlider(other, "What is 1 + 2?")
        assert not (tmp_path / "fork").exists()
        assert all(map(torch.equal, kept, other.model.parameters()))
    in_its_place = make_trainer(
        tmp_path / "first", model=str(tmp_path / "models/wide"), **{**settings, "max_steps": 2}
    )
    with pytest.raises(ValueError, match="does not fit this model: its adapter is of .*output_dir"):
        in_its_place.train(resume_from_checkpoint=True)
    assert checkpoint.is_dir()
    for trainer in (first, moved_fork, other, in_its_place):
        trainer.close()


def test_the_adapter_of_every_step_is_kept(tmp_path: Path) -> None:
    """That of the last step is the checkpoint's; later ones go aside with the steps; too little room keeps fewer."""
    settings = dict(save_strategy="steps", save_steps=2, num_batches_ahead=0, learning_rate=1e-2)
    trainer = make_trainer(tmp_path / "run", max_steps=4, **settings)
    trainer.train()
    kept = tmp_path / "run/adapters"
    assert sorted(path.name for path in kept.iterdir()) == [f"step-0000{n}" for n in range(5)]
    file = "adapter_model.safetensors"
    weights, saved = (
        load_file(kept / "step-00004" / file),
        load_file(tmp_path / "run/checkpoint-4" / file),
    )
    assert weights.keys() == saved.keys() and all(
        torch.equal(weights[name], saved[name]) for name in weights
    )
    first = load_file(kept / "step-00000" / file)
    assert not any(weight.any() for name, weight in first.items() if "lora_B" in name)
    trainer.roll_back(2)
    assert len(list(kept.iterdir())) == 3
    assert len(list((tmp_path / "run/previous-1/adapters").iterdir())) == 2
    trainer.train(resume_from_checkpoint=True)
    assert load_file(kept / "step-00004" / file).keys() == weights.keys()
    trainer.close()
    few = make_trainer(tmp_path / "few", max_steps=3, keep_adapters_mb=0.4, **settings)
    few.train()
    assert sorted(path.name for path in (tmp_path / "few/adapters").iterdir()) == [
        "step-00000", "step-00001", "step-00003",
    ]  # fmt: skip
    few.close()
