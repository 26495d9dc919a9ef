"""The help of every command, which loads nothing heavy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_package import HEAVY

from verifiers_nb.cli.command import command_places

CALLS = {}
for name, place in command_places().items():
    module, function = place.split(":")
    start = f"from verifiers_nb.cli.{module} import {function}; {function}()"
    own = ["-m", f"verifiers_nb.cli.{module}"]
    CALLS[name] = own if function == "main" else ["-c", start]


def loaded_by(*command: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Return a finished call of Python and the modules that it has loaded."""
    timed = [sys.executable, "-X", "importtime", *command]
    done = subprocess.run(timed, cwd=cwd, capture_output=True, text=True, timeout=300)
    loaded = set(re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "argparse" in loaded
    return done, loaded


@pytest.mark.parametrize("name", CALLS)
def test_help_loads_nothing_heavy(name: str, tmp_path: Path) -> None:
    """It takes 0.1 to 0.2 s of processor time; the least of what is heavy would double that."""
    shown, loaded = loaded_by(*CALLS[name], "--help", cwd=tmp_path)
    assert shown.returncode == 0 and shown.stdout.startswith(f"usage: {name} "), shown.stderr
    assert "examples:" in shown.stdout
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--learning-rat 1", "--learning-rat is unknown; did you mean --learning-rate?"),
        ("--max-steps abc", "argument --max-steps: 'abc' is not a whole number"),
        ("--lora-use-rslora --lora-dropout", "argument --lora-dropout: expected one argument"),
    ],
)
def test_wrong_training_settings_load_nothing_heavy(flags: str, said: str, tmp_path: Path) -> None:
    """Neither do those of transformers and PEFT, whose classes would import PyTorch."""
    command = [*CALLS["vf-train"], "addition", *flags.split()]
    refused, loaded = loaded_by(*command, cwd=tmp_path)
    assert refused.returncode == 2 and f"\nvf-train: {said}" in refused.stderr, refused.stderr
    assert not loaded & set(HEAVY)
