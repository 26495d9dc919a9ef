"""The help of every command, which loads nothing heavy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_package import HEAVY

MODULES = ("demo", "eval", "init", "report", "train", "tui", "vllm")
COMMANDS = {f"vf-{name}": ["-m", f"verifiers_nb.cli.{name}"] for name in MODULES}
COMMANDS["verifiers-nb"] = ["-m", "verifiers_nb.cli.command"]
COMMANDS["vf-install"] = ["-c", "from verifiers_nb.cli.init import install_main; install_main()"]
COMMANDS["vf-ship"] = ["-c", "from verifiers_nb.cli.init import ship_main; ship_main()"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_loads_nothing_heavy(name: str, tmp_path: Path) -> None:
    """It takes 0.1 to 0.4 s of processor time; the least of what is heavy would double that."""
    command = [sys.executable, "-X", "importtime", *COMMANDS[name], "--help"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0 and shown.stdout.startswith(f"usage: {name} "), shown.stderr
    assert "examples:" in shown.stdout
    loaded = set(re.findall(r"\| +(\S+)$", shown.stderr, re.MULTILINE))
    assert "argparse" in loaded and not loaded & set(HEAVY)
