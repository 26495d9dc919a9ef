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


@pytest.mark.parametrize("name", CALLS)
def test_help_loads_nothing_heavy(name: str, tmp_path: Path) -> None:
    """It takes 0.1 to 0.4 s of processor time; the least of what is heavy would double that."""
    command = [sys.executable, "-X", "importtime", *CALLS[name], "--help"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0 and shown.stdout.startswith(f"usage: {name} "), shown.stderr
    assert "examples:" in shown.stdout
    loaded = set(re.findall(r"\| +(\S+)$", shown.stderr, re.MULTILINE))
    assert "argparse" in loaded and not loaded & set(HEAVY)
