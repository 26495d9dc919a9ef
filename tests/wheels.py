"""The library's wheel, and empty environments to install it into, in seconds where uv knows the packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from install import pip_settings

ROOT = Path(__file__).resolve().parents[1]


def run(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it said; `env` is added to the environment's variables."""
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        command, cwd=cwd, env={**variables, **env}, capture_output=True, text=True, timeout=600
    )


def succeed(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return what it printed; an assertion error with its complaint if it failed."""
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def uv(*arguments: str | Path, tested: bool = True) -> subprocess.CompletedProcess[str]:
    """Run uv, with the versions that were `tested` or any others, from where pip is told to look."""
    settings = ["-q", "--index-strategy", "unsafe-best-match"]
    if tested:
        settings += ["-c", str(ROOT / "constraints.txt")]
    command = [sys.executable, "-m", "uv", "pip", "install", *settings, *arguments]
    return run(*command, env=pip_settings())


def build_wheel(folder: Path) -> Path:
    """Build the source archive in a copy in `folder`, and from that the wheel, as `make dist` does."""
    for name in (
        "MANIFEST.in",
        "settings.ini",
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ):
        shutil.copy(ROOT / name, folder)
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "verifiers_nb", folder / "verifiers_nb", ignore=skip)
    succeed(sys.executable, "-m", "build", "--no-isolation", cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


class EmptyEnvironment:
    """An environment of its own, with the Python that runs the tests and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, folder / "bin" / "python"
        succeed(sys.executable, "-m", "uv", "venv", "-q", "--python", sys.executable, folder)

    def install(self, *packages: str | Path) -> subprocess.CompletedProcess[str]:
        """Install packages."""
        return uv("--python", self.python, *packages)

    def __call__(self, code: str, cwd: Path) -> str:
        """Run Python code in `cwd` and return what it prints."""
        return succeed(self.python, "-c", code, cwd=cwd)

    def command(self, name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run an installed command."""
        return run(self.folder / "bin" / name, *arguments, cwd=cwd)
