"""A run on a server that speaks Tinker's API, through its real client: the same rollouts, gradients and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import forked
import pytest
from wheels import ROOT

import verifiers_nb as vf

TINKER = "tinker==0.38.0"
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Python that has Tinker's client and all that this one has."""
    if find_spec("tinker"):
        return sys.executable
    folder = tmp_path_factory.mktemp("tinker")
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    made = str(folder / "bin" / "python")
    install = [made, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", TINKER]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{TINKER} cannot be installed: {done.stderr[-200:]}")
    return made


SETTINGS = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
    "OMP_NUM_THREADS": "1",
    "TINKER_TELEMETRY": "0",
    "TINKER_API_KEY": "tml-test",
}


def with_client(python: str, code: str) -> list[str]:
    """Return a command that runs code where Tinker's client can be imported."""
    (site,) = Path(python).parents[1].glob("lib/python*/site-packages")
    return [sys.executable, "-c", f"import sys; sys.path.append({str(site)!r})\n" + code]


@pytest.fixture(scope="module")
def url(python: str) -> Iterator[str]:
    """Start the server of all tests, and give its address."""
    program = str(HERE / "tinker_server.py")
    code = f"import runpy; runpy.run_path({program!r}, run_name='__main__')"
    server = forked.Popen([*with_client(python, code), "tml-test"], env=SETTINGS)
    try:
        while not (server.out.exists() and server.out.read_text().endswith("\n")):
            assert server.poll() is None, server.err.read_text()
            time.sleep(0.05)
        yield json.loads(server.out.read_text())["url"]
    finally:
        server.kill()


START = """
import json, sys, urllib.request
from pathlib import Path
import torch, verifiers_nb as vf
from verifiers_nb.bridges.tinker import TinkerTrainer
folder, url = sys.argv[1:3]
NAME = "verifiers_nb/adder-1m"
def args(**more):
    given = dict(output_dir=folder, per_device_train_batch_size=64, max_tokens=40, max_steps=10,
        beta=0.0, learning_rate=6e-3, lr_scheduler_type="constant", save_steps=5, max_grad_norm=1.0,
        use_cpu=True, disable_tqdm=True, seed=0)
    return vf.GRPOConfig(**{**given, **more})
def trainer(key=None, model=NAME, address=url, **more):
    return vf.TinkerTrainer(model, vf.load_environment("addition", num_train_examples=8), args(**more), rank=8,
        processing_class=vf.get_tokenizer(NAME), base_url=address, api_key=key)
def rewards(run):
    return [each["reward"] for each in run.state.log_history if "reward" in each]
def look(what):
    return json.load(urllib.request.urlopen(f"{url}/api/v1/{what}"))
def said(work):
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error)]
"""


def run(python: str, code: str, *given: str | Path) -> Any:
    """Run code after `START` and return the JSON in its last line."""
    command = [*with_client(python, START + dedent(code)), *map(str, given)]
    done = forked.run(command, env=SETTINGS, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_reward_climbs_and_a_checkpoint_goes_on(python: str, url: str, tmp_path: Path) -> None:
    """Ten steps on the server, and two more in another process from the checkpoint there."""
    first = run(
        python,
        """
        before = look("counts")
        run = trainer()
        run.train()
        counts = {name: count - before.get(name, 0) for name, count in look("counts").items()}
        print(json.dumps([rewards(run), counts]))
        run.close()
        """,
        tmp_path,
        url,
    )
    rewards, counts = first
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.08, rewards
    assert counts["optim_step"] == counts["forward_backward"] == 10
    assert counts["save_weights"] == 2 and counts["create_model"] == 1

    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [step["reward"] for step in steps if "reward" in step] == rewards
    assert max(step["gap"] for step in steps if step.get("staleness/max") == 0) < 1e-3
    assert len(list((tmp_path / "rollouts").glob("step-*.jsonl"))) == 10
    assert f"{rewards[-1]:.2f}" in vf.TrainingDashboard(tmp_path, smoothing=0).freeze().body
    stored = json.loads((tmp_path / "checkpoint-10" / "tinker.json").read_text())
    assert stored["path"].startswith("tinker://") and stored["rank"] == 8

    again, exported = run(
        python,
        """
        run = trainer(max_steps=12)
        run.train(resume_from_checkpoint=True)
        adapter = run.save_adapter(Path(folder) / "adapter")
        from peft import PeftModel
        PeftModel.from_pretrained(vf.get_model(NAME), adapter)
        print(json.dumps([rewards(run), sorted(path.name for path in adapter.iterdir())]))
        """,
        tmp_path,
        url,
    )
    assert again[:10] == rewards and len(again) == 12
    assert min(again[10:]) > sum(rewards[:3]) / 3
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {*exported}


GRADIENTS = """
from verifiers_nb.envs.results import read_rollouts
from verifiers_nb.inference.tokens import rollout_turns
from verifiers_nb.trainer.adapters import with_adapter
from verifiers_nb.trainer.config import lora_defaults
from verifiers_nb.trainer.loop import train_step
def gradients(**given):
    given |= dict(max_steps=1, output_dir=str(Path(folder) / "-".join(given)))
    run = trainer(per_device_train_batch_size=32, **given)
    seen = []
    learn = run.learn
    run.learn = lambda batch, step: seen.append(batch) or learn(batch, step)
    run.train()
    there = torch.tensor(look("gradient"))
    (batch,) = seen
    torch.manual_seed(0)
    policy = with_adapter(vf.get_model(NAME), lora_defaults(r=8))
    batch.micro_batches = None
    loss, _ = train_step(policy.train(), batch, args(**given))
    here = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    record = next(iter(read_rollouts(Path(given["output_dir"]) / "rollouts/step-00001.jsonl")))
    turn = rollout_turns(record)[0]
    known = [s.sequence for s in batch.samples if s.sequence.ids == turn.prompt_ids + turn.completion_ids]
    exact = not known or known[0].logprobs[-len(turn.logprobs):] == turn.logprobs
    logged = [each["loss"] for each in run.state.log_history if "reward" in each][0]
    run.close()
    return [logged, float(loss), float(here.norm()), float((here - there).norm()), exact]
print(json.dumps([gradients(**given) for given in json.loads(sys.argv[3])]))
"""


def test_the_first_gradient_is_that_of_the_local_trainer(
    python: str, url: str, tmp_path: Path
) -> None:
    """Of the same rollouts, with the same adapter: loss and gradient differ by less than 1 in 10,000."""
    settings = [{}, {"loss_type": "cispo"}, {"num_iterations": 2}, {"loss_type": "grpo"}]
    made = run(python, GRADIENTS, tmp_path, url, json.dumps(settings))
    for given, (theirs, ours, norm, difference, tokens) in zip(settings, made, strict=True):
        assert norm > 0 and difference < 1e-4 * norm, (given, norm, difference)
        assert tokens, given
        if given.get("loss_type") != "cispo":
            assert abs(theirs - ours) < 1e-4 * max(abs(ours), 1e-3), given


def test_bad_input_is_one_sentence(python: str, url: str, tmp_path: Path) -> None:
    """A wrong key, model, address; settings that Tinker has not; no client of Tinker's."""
    key, model, address, settings, odd_key, missing = run(
        python,
        """
        nobody = "http://127.0.0.1:9"
        print(json.dumps([
            said(lambda: trainer("tml-wrong")),
            said(lambda: trainer(model="Qwen/Qwen3-8B")),
            said(lambda: trainer(address=nobody)),
            said(lambda: trainer(beta=0.01)),
            said(lambda: trainer("wrong")),
            said(lambda: sys.modules.update(tinker=None) or trainer()),
        ]))
        """,
        tmp_path,
        url,
    )
    assert key == [
        "PermissionError",
        f"{url} does not accept this key: set TINKER_API_KEY, or pass api_key.",
    ]
    assert model[0] == "ValueError" and f"{url} can't train 'Qwen/Qwen3-8B'" in model[1]
    assert "this server has no model Qwen/Qwen3-8B, it has verifiers_nb/adder-1m" in model[1]
    assert (
        address[0] == "ConnectionError"
        and "No Tinker server answers at http://127.0.0.1:9" in address[1]
    )
    assert settings == ["ValueError", "Tinker doesn't support beta=0.01: set beta=0.0."]
    assert "tml-" in odd_key[1]
    assert missing[0] == "ImportError" and "pip install 'verifiers_nb[tinker]'" in missing[1]
