"""In a copy of the library, an estimator, a loss and an importance correction work from one definition and one row each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from inspect import getmembers, isfunction, signature
from pathlib import Path
from types import ModuleType

import forked
import pytest

import verifiers_nb as vf
from verifiers_nb.inference import columns
from verifiers_nb.trainer import advantage, loss

ROOT = Path(__file__).resolve().parents[1]

# The notebook that someone opens, the definition, and the row with the line that it follows.
CHANGES: dict[str, list[tuple[str, str, str]]] = {
    "trainer/00_advantage.ipynb": [
        (
            "ESTIMATORS = {",
            '''def best_advantages(rewards, group_size, valid=None):
    """Return each reward minus the best of its group."""
    best = rewards.view(-1, group_size).amax(1, keepdim=True)
    return (rewards.view(-1, group_size) - best).view(-1)''',
            '    "best": Estimator(best_advantages, ("none", "batch"), "the best is the baseline"),',
        )
    ],
    "trainer/01_loss.ipynb": [
        (
            "LOSSES = {",
            '''def plain_loss(logprobs, advantages, entropy_coef):
    """Return the loss of a plain policy gradient, scaled by a setting."""
    return -(1 + entropy_coef) * advantages * logprobs''',
            '    "plain": Loss(plain_loss, token_means, "a plain policy gradient"),',
        ),
        (
            "CORRECTIONS = {",
            '''def root_weights(ratios, floor, cap):
    """Return the roots of the ratios."""
    return ratios.sqrt()''',
            '    "sequence_root": Correction(root_weights, "roots", over=sequence_mean),',
        ),
    ],
}
CHOSEN = dict(
    advantage_estimator="best", loss_type="plain", importance_sampling_mode="sequence_root"
)
USE = """
import json, sys, torch, verifiers_nb as vf
from verifiers_nb.trainer.advantage import rollout_advantages
chosen = json.loads(sys.argv[1])
small = dict(per_device_train_batch_size=8, num_generations=4, max_tokens=20, max_steps=1,
    learning_rate=1e-3, num_batches_ahead=0, use_cpu=True, disable_tqdm=True, save_strategy="no")
args = vf.GRPOConfig("run", **small, **chosen)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", vf.load_environment("addition"), args,
    peft_config=vf.lora_defaults())
trainer.train()
weights = vf.importance_weights(torch.zeros(2), torch.tensor([-2.0, 0.0]).log_softmax(0),
    mode="sequence_root", sequences=torch.zeros(2, dtype=torch.long))
help = {name: field.metadata["help"] for name, field in vf.GRPOConfig.__dataclass_fields__.items()
    if name in chosen}
errors = []
for wrong in (dict(advantage_estimator="best", scale_rewards="group"), dict(loss_type="plain",
        delta=4.0), dict(loss_type="plian")):
    try:
        vf.GRPOConfig("run", **wrong)
    except ValueError as error:
        errors.append(str(error))
print(json.dumps(dict(
    advantages=rollout_advantages(torch.tensor([1.0, 0.0]), 2, estimator="best").tolist(),
    weights=weights.tolist(), loss=trainer.state.log_history[0]["loss"], help=help, errors=errors)))
"""


def add_to(notebook: Path, changes: list[tuple[str, str, str]]) -> None:
    """Add each definition in a cell of its own before the table, and its row to the table."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for table, definition, row in changes:
        sources = ["".join(cell["source"]) for cell in content["cells"]]
        (at,) = [i for i, source in enumerate(sources) if f"\n{table}\n" in source]
        cell = content["cells"][at]
        assert "#| export" in sources[at]
        cell["source"] = sources[at].replace(table, f"{table}\n{row}")
        content["cells"].insert(at, {**cell, "id": "added", "source": f"#| export\n{definition}"})
    notebook.write_text(json.dumps(content), encoding="utf-8")


def changed_copy(folder: Path, changes: Mapping[str, list[tuple[str, str, str]]]) -> Path:
    """Return a copy of the library in which these notebooks are changed and exported."""
    hidden = shutil.ignore_patterns("outputs")  # what is compiled stays: only a few modules change
    shutil.copytree(ROOT / "verifiers_nb", folder / "verifiers_nb", ignore=hidden)
    shutil.copytree(ROOT / "nbs/trainer", folder / "nbs/trainer", ignore=hidden)
    for name in ("settings.ini", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name, added in changes.items():
        add_to(folder / "nbs" / name, added)
        export = f"from nbdev.export import nb_export; nb_export({f'nbs/{name}'!r})"
        assert forked.run([sys.executable, "-c", export], cwd=folder).returncode == 0
    return folder


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy of the library."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed_copy(tmp_path_factory.mktemp("copy"), CHANGES)


def test_a_definition_and_a_row_are_all(copy: Path) -> None:
    done = call(copy, "-c", USE, json.dumps(CHOSEN))
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["advantages"] == [0.0, -1.0]
    root = (2.0 + 0.1269 * 2) / 4  # half of the mean of log-ratios 2.1269 and 0.1269
    assert seen["weights"] == pytest.approx([2.71828**root] * 2, rel=1e-3)
    assert seen["loss"] != 0
    for name, row in CHOSEN.items():
        assert row in seen["help"][name]
    scaling, delta, spelling = seen["errors"]
    assert "'best' takes scale_rewards none or batch, not 'group'" in scaling
    assert "plain has none" in delta
    assert "not one of" in spelling and "plain" in spelling


def test_the_command_lists_them(copy: Path) -> None:
    done = call(copy, "-m", "verifiers_nb.cli.train", "--settings")
    assert done.returncode == 0, done.stderr[-2000:]
    listed = " ".join(line.removeprefix("# ") for line in done.stdout.splitlines())
    assert "best, the best is the baseline" in listed
    assert "plain, a plain policy gradient" in listed
    assert "sequence_root, roots" in listed


@pytest.mark.parametrize("name", CHOSEN)
def test_without_the_row_the_config_says_so(tmp_path: Path, name: str) -> None:
    """A forgotten row is a sentence at construction."""
    with pytest.raises(ValueError) as caught:
        vf.GRPOConfig(str(tmp_path), **{name: "mine"})
    said = str(caught.value)
    assert said.startswith(f"{name} 'mine' is not one of ") and "\n" not in said, said


@pytest.mark.parametrize(
    ("module", "rows", "like"),
    [
        (advantage, [row.advantages for row in advantage.ESTIMATORS.values()], "group_advantages"),
        (loss, [row.of_tokens for row in loss.LOSSES.values()], "policy_loss"),
        (loss, [row.average for row in loss.LOSSES.values()], "token_means"),
        (loss, [row.bound for row in loss.CORRECTIONS.values()], "mask_weights"),
        (columns, [row.read for row in columns.COLUMNS], "token_count"),
    ],
)
def test_no_function_waits_for_its_row(
    module: ModuleType, rows: Collection[Callable[..., object]], like: str
) -> None:
    """A function with the parameters of those in a table has a row, and so has a loss, whose parameters vary."""
    taken = [*signature(getattr(module, like)).parameters]
    for name, func in getmembers(module, isfunction):
        is_loss = like == "policy_loss" and name.endswith("_loss") and name != "find_loss"
        if is_loss or [*signature(func).parameters] == taken:
            assert func in rows, f"{name} has no row"
