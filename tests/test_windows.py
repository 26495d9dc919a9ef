"""Without the modules and functions that Windows lacks: everything imports, evaluates and trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WITHOUT_THEM = """
import asyncio, faulthandler, os, pathlib, pkgutil, signal, sys, tempfile
from importlib import import_module
from types import SimpleNamespace

# The libraries first: they have their own ways on Windows.
import accelerate, aiohttp, datasets, filelock, ipywidgets, openai, peft, psutil, textual, torch, xgrammar
import torch._dynamo, transformers.trainer, transformers.models.qwen3.modeling_qwen3

for name in "fcntl resource pwd grp termios".split():
    sys.modules[name] = None
for name in "register_at_fork fork setsid killpg uname getuid getgid waitpid sysconf".split():
    delattr(os, name)
psutil.Process = lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=2**30))
for name in "SIGKILL SIGHUP SIGALRM SIGUSR1 alarm setitimer pthread_sigmask".split():
    delattr(signal, name)

import verifiers_nb as vf

for module in pkgutil.walk_packages(vf.__path__, "verifiers_nb."):
    import_module(module.name)

env = vf.load_environment("addition", num_train_examples=8, num_eval_examples=4)
engine = vf.EmbeddedEngine("verifiers_nb/adder-1m")
results = env.evaluate(engine, engine.model, {"max_tokens": 40, "temperature": 0}, num_examples=4, progress=False)
assert len(results.reward) == 4 and sum(results.reward) > 0
args = vf.GRPOConfig(
    tempfile.mkdtemp(), max_steps=2, per_device_train_batch_size=16, max_tokens=40, use_cpu=True, disable_tqdm=True
)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
trainer.train()
assert trainer.state.global_step == 2
os.name = "nt"  # last, since paths and processes need the true name
try:
    vf.run_python("print(1)", allow_unconfined=True)
except RuntimeError as error:
    print(error)
"""


def test_nothing_needs_what_only_unix_has(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_THEM],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "on Windows, use WSL" in run.stdout
