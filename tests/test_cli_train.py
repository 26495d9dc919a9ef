"""vf-train as a process: settings, stopped and continued, on two processes, in a terminal, and called wrongly."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import forked
import pytest

from verifiers_nb.support.files import claimed

COMMAND = [sys.executable, "-m", "verifiers_nb.cli.train"]
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")} | {
    "OMP_NUM_THREADS": "1"
}
SMALL = ["addition", "--per-device-train-batch-size", "16", "-o", "run"]
SUMS = [*SMALL, "-a", '{"num_train_examples": 64}']


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Call the command in a folder, in a process that has imported."""
    return forked.run([*COMMAND, *arguments], cwd, ENVIRON, timeout=600)


def wait_until(
    happened: Callable[[], bool], process: subprocess.Popen | forked.Popen, seconds: float = 300
) -> None:
    """Return when it happened; an assertion error when the process ends before."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def steps(folder: Path) -> list[int]:
    """Return the steps that a run has logged."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    # The last line may be on its way.
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line["step"] for line in whole if "reward" in line]


def test_a_run_from_a_file_and_flags(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'env = "addition"\n[env_args]\nnum_eval_examples = 20\n[grpo]\nmax_steps = 9\nseed = 3\n[lora]\nr = 8\n'
    )
    done = call("--config", "mine.toml", *SMALL[1:], "--max-steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "step 1/2  reward " in done.stdout and "step 2/2" in done.stdout
    assert "measure   vf-eval addition --adapter run/adapter -a" in done.stdout
    assert not done.stderr and "\x1b" not in done.stdout
    adapter = json.loads((tmp_path / "run/adapter/adapter_config.json").read_text())
    assert adapter["r"] == 8 and adapter["lora_alpha"] == 32
    kept = tomllib.loads((tmp_path / "run/run.toml").read_text())
    assert kept["grpo"]["seed"] == 3 and kept["env_args"] == {"num_eval_examples": 20}
    measure = [sys.executable, "-m", "verifiers_nb.cli.eval", "addition"]
    measure += ["--adapter", "run/adapter", "-n", "2", "-r", "1", "--json"]
    figures = forked.run(measure, tmp_path, ENVIRON)
    assert json.loads(figures.stdout)["failed"] == 0


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_continued(tmp_path: Path, sent: signal.Signals) -> None:
    command = [*COMMAND, *SUMS, "--max-steps", "100000"]
    process = forked.Popen(command, tmp_path, ENVIRON)
    wait_until(lambda: len(steps(tmp_path / "run")) >= 2, process)
    process.send_signal(sent)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and not errors
    last = steps(tmp_path / "run")[-1]
    assert f"the checkpoint of step {last} is complete" in said
    assert said.rstrip().endswith("vf-train --resume run")
    done = call("--resume", "run", "--max-steps", str(last + 2), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path / "run") == [*range(1, last + 3)]
    assert done.stdout.count("step ") == 2 and f"step {last + 1}/{last + 2}" in done.stdout
    again = call("--resume", "run", "--max-steps", str(last + 2), cwd=tmp_path)  # nothing is left
    assert again.returncode == 0 and "adapter   run/adapter" in again.stdout


def test_a_folder_that_another_run_uses(tmp_path: Path) -> None:
    """It is refused before the model is loaded, and keeps the settings of the other run."""
    kept = tmp_path / "run/run.toml"
    kept.parent.mkdir()
    kept.write_text('env = "addition"\n')
    with claimed(tmp_path / "run/train"):
        refused = call(*SMALL, "--max-steps", "1", cwd=tmp_path)
    assert refused.returncode == 2 and "run/train is in use by process" in refused.stderr
    assert not refused.stdout and kept.read_text() == 'env = "addition"\n'


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    """Keys among the arguments, in warnings, in a traceback: in no file, in no message."""
    own = tmp_path / "environments/keyed"
    own.mkdir(parents=True)
    (own / "keyed.py").write_text(
        "import logging\nfrom verifiers_nb.environments.addition import load_environment as load\n"
        "def fail(completion, **kwargs):\n    raise ValueError('https://ada:hunter-two@host refused it')\n"
        "def load_environment(judge):\n"
        "    logging.getLogger('x').warning('asking https://host/v1?api_key=%s', judge['api_key'])\n"
        "    env = load()\n    env.rubric.add_reward_func(fail)\n    return env\n"
    )
    arguments = json.dumps({"judge": {"api_key": "open-sesame"}})
    secrets = ("-a", arguments, "--hub-token", "hf_open-sesame")
    done = call("keyed", *secrets, *SMALL[1:], "--max-steps", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "api_key=***" in done.stderr and "***@host" in (tmp_path / "run/train.log").read_text()
    texts = [done.stdout, done.stderr]
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    texts += [path.read_text(errors="replace") for path in files]
    assert "training_args.bin" in {path.name for path in files}
    assert not any("sesame" in text for text in texts)
    for name in ("run.toml", "train.log"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o777 == 0o600
    again = ("--resume", "run", "--config", "run/run.toml", "--max-steps", "2")
    lacking = call(*again, cwd=tmp_path)
    assert lacking.returncode == 2 and "held a secret, which is not saved" in lacking.stderr
    assert call(*again, *secrets, cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("reward", ["time.sleep(0.2)", "pass"])
def test_one_press_in_the_first_step(tmp_path: Path, reward: str) -> None:
    """Nothing is saved yet: one sentence says so, and no other library has a word."""
    own = tmp_path / "environments/pressed"
    own.mkdir(parents=True)
    (own / "pressed.py").write_text(
        "import time\nfrom verifiers_nb.environments.addition import load_environment as load\n"
        f"def wait(completion, **kwargs):\n    open('scoring', 'w').close()\n    {reward}\n    return 0.0\n"
        "def load_environment():\n    env = load()\n    env.rubric.add_reward_func(wait)\n    return env\n"
    )
    process = forked.Popen([*COMMAND, "pressed", *SMALL[1:]], tmp_path, ENVIRON)
    wait_until((tmp_path / "scoring").exists, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(200) == 130
    said = process.out.read_text() + process.err.read_text()
    for word in ("single sample", "Traceback", "num_samples", "UserWarning"):
        assert word not in said, said
    assert said.count("stopped") == 1, said
    assert [*(tmp_path / "run").glob("checkpoint-*")] or "there is no checkpoint" in said


def test_a_second_press_leaves_at_once(tmp_path: Path) -> None:
    slow = tmp_path / "environments/slow_sums"
    slow.mkdir(parents=True)
    (slow / "slow_sums.py").write_text(
        "import os, time\nfrom verifiers_nb.environments.addition import load_environment as load\n"
        "here = os.getpid()  # the audit before the run scores in another process\n"
        "def wait(completion, **kwargs):\n    if os.getpid() == here:\n        open('scoring', 'w').close()\n"
        "    time.sleep(600)\n    return 0.0\n"
        "def load_environment():\n    env = load()\n    env.rubric.add_reward_func(wait)\n    return env\n"
    )
    command = [*COMMAND, "slow-sums", *SMALL[1:]]
    process = forked.Popen(command, tmp_path, ENVIRON)
    wait_until((tmp_path / "scoring").exists, process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)  # as a launcher passes it on: the same press
    wait_until(lambda: "Ctrl-C again" in process.out.read_text(), process)  # the first has arrived
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def launched(python: str, *arguments: str) -> list[str]:
    """Return the command that trains on two processes."""
    launch = [python, "-m", "accelerate.commands.launch", "--multi_gpu"]
    launch += ["--main_process_port", "0", "--mixed_precision", "no"]
    launch += ["--num_processes", "2", "--num_machines", "1"]
    return [*launch, "-m", "verifiers_nb.cli.train", *SUMS, *arguments]


def test_two_processes_with_one_voice(tmp_path: Path) -> None:
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(forked.free_port())}
    ranks = [{**ENVIRON, **group, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    command = [*COMMAND, *SUMS, "--max-steps", "2"]
    both = [forked.Popen(command, tmp_path, env) for env in ranks]
    told = [process.communicate() for process in both]
    assert [process.wait() for process in both] == [0, 0], told
    said = "".join(out for out, _ in told)
    assert said.count("step 1/2") == 1 and said.count("adapter   run/adapter") == 1
    rollouts = (tmp_path / "run/rollouts/step-00001.jsonl").read_text().splitlines()
    assert len(rollouts) == 32 and (tmp_path / "run/adapter/adapter_config.json").is_file()


@pytest.mark.parametrize("begin", ["as forks", "by importing"])  # the second weekly (conftest.py)
def test_a_press_that_a_launcher_passes_on_is_one(tmp_path: Path, begin: str) -> None:
    python = forked.program() if begin == "as forks" else sys.executable
    command, run = launched(python, "--max-steps", "100000"), tmp_path / "run"
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=ENVIRON, stdout=said, stderr=said, start_new_session=True
        )
    wait_until(lambda: len(steps(run)) >= 2, process)
    process.send_signal(signal.SIGINT)  # the launcher starts both in sessions of their own
    process.wait(120)
    assert f"the checkpoint of step {steps(run)[-1]} is complete" in (tmp_path / "said").read_text()


def test_a_run_that_fails(tmp_path: Path) -> None:
    failed = call(*SUMS, "--presence-penalty", "1", "--max-steps", "2", cwd=tmp_path)
    assert failed.returncode == 1 and "All 16 rollouts of the step failed" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "Traceback" in (tmp_path / "run/train.log").read_text()


def show(command: list[str], cwd: Path, columns: int, rows: int) -> str:
    """Return what a command writes to a terminal of a size."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {**ENVIRON, "TERM": "xterm-256color"}
    written = b""
    with open(os.ttyname(follower), "w") as terminal:
        process = forked.Popen(command, cwd, env, stdout=terminal)
        while process.poll() is None or select.select([leader], [], [], 0)[0]:
            if select.select([leader], [], [], 0.05)[0]:
                written += os.read(leader, 65536)
    os.close(follower)
    os.close(leader)
    assert process.wait(60) == 0
    return written.decode()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_progress_line_in_a_terminal(tmp_path: Path, columns: int) -> None:
    written = show([*COMMAND, *SUMS, "--max-steps", "4"], tmp_path, columns, 30)
    for seen in ("Ctrl-C saves a checkpoint", "step 4/4", "reward ", " tokens", " left", "adapter   run/adapter"):  # fmt: skip
        assert seen in written, seen
    assert "step 1/4  reward" not in written  # one line that is redrawn
    assert written.rstrip().endswith("vf-train --config run/run.toml")
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")  # the cursor is back


WRONG = {
    "did you mean --learning-rate?": ["addition", "--learning-rte", "1"],
    "'fast' is not a number": ["addition", "--learning-rate", "fast"],
    "'2.5' is not a whole number": ["addition", "--max-steps", "2.5"],
    "name an environment": ["--max-steps", "2"],
    "did you mean 'addition'": ["adition"],
    "invalid JSON": ["addition", "-a", "{a: 1}"],
    "failed to load": ["addition", "-a", '{"num_eval_examples": -7}'],
    "missing.toml can't be read": ["addition", "--config", "missing.toml"],
    "did you mean learning_rate?": ["addition", "--config", "typo.toml"],
    "is not valid TOML": ["addition", "--config", "broken.toml"],
    "belongs under [grpo]": ["addition", "--config", "flat.toml"],
    "[grpo] max_steps: 'many' is not": ["addition", "--config", "value.toml"],
    "no run to resume in nowhere": ["--resume", "nowhere"],
    "no setting contains": ["--settings", "no such word"],
    "invalid choice: 'tgi'": ["addition", "--serve", "tgi"],
    "it ships": ["addition", "-m", "verifiers_nb/adder-1b"],
    "or another num_generations": ["addition", "--per-device-train-batch-size", "12"],
    "is not one of grpo": ["addition", "--loss-type", "ppo"],
    "is not an API address": ["addition", "--endpoint", "nobody"],
    "which supports the ranks 8, 16, 32": ["addition", "--serve", "vllm", "--lora-r", "12"],
    "no server answers": ["addition", "--endpoint", "http://127.0.0.1:9/v1"],
    "NO_SUCH_KEY": ["addition", "--endpoint", "http://127.0.0.1:9/v1", "-k", "NO_SUCH_KEY"],
}
FILES = {
    "typo.toml": "[grpo]\nlearning_rte = 1",
    "broken.toml": "[grpo\n",
    "flat.toml": "max_steps = 3",
    "value.toml": '[grpo]\nmax_steps = "many"',
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_call_costs_one_sentence(tmp_path: Path, said: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    failed = call(*WRONG[said], cwd=tmp_path)
    assert failed.returncode == 2 and said in failed.stderr, failed.stderr
    assert "Traceback" not in failed.stderr and len(failed.stderr.strip().splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {*FILES}  # nothing is left behind


def test_the_list_of_settings_is_a_file(tmp_path: Path) -> None:
    listed = call("--settings", cwd=tmp_path)
    assert listed.returncode == 0 and "# max_steps = 500" in listed.stdout
    assert tomllib.loads(listed.stdout) == {"env": "addition", "grpo": {}, "lora": {}}
