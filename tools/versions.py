"""Test what needs no vLLM on the newest or the lowest versions that settings.ini allows: versions.py newest|lowest.

Each has an environment of its own, .venv-newest or .venv-lowest, which is made anew. constraints.txt has no say in it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What runs the notebooks and the tests. Other tools, such as trl and mcp, need later versions than the library.
RUNNERS = """
nbdev fastcore execnb ghapi ipykernel nbclient nbconvert nest-asyncio pandas
pytest pytest-timeout pytest-xdist pytest-rerunfailures hypothesis
""".split()
# These need vLLM, a browser or a GPU, or are about the sources, which `make test` checks.
LEFT_OUT = """
vllm_server browser gpu
test_layout.py test_types.py test_outputs.py test_docs.py test_tutorials.py test_wheel.py test_colab.py
""".split()


def settings() -> dict[str, str]:
    """Return the settings of the package."""
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT / "settings.ini", encoding="utf-8")
    return dict(ini["DEFAULT"])


def interpreter(which: str) -> str:
    """Return the Python to use: the one that runs this, or for the lowest the oldest that the package allows."""
    oldest = settings()["min_python"]
    here = ".".join(map(str, sys.version_info[:2]))
    if which == "newest" or here == oldest:
        return sys.executable
    if found := shutil.which(f"python{oldest}"):
        return found
    sys.exit(
        f"The lowest versions are tested on Python {oldest}, and python{oldest} was not found."
    )


def runners() -> list[str]:
    """Return the requirements of what runs the tests, as the extra dev has them."""
    wanted = settings()["dev_requirements"].split()
    return [each for each in wanted if re.split("[=<>;]", each)[0] in RUNNERS]


def install(which: str, env: Path) -> None:
    """Make an environment with the library in the newest or the lowest versions."""
    run = lambda *command: subprocess.run(command, cwd=ROOT, check=True)  # noqa: E731
    run(interpreter(which), "-m", "venv", "--clear", str(env))
    python = str(env / "bin" / "python")
    run(python, "-m", "pip", "install", "-q", "uv")
    uv = [python, "-m", "uv", "pip", "install", "-q", "--python", python]
    if which == "newest":
        return run(*uv, "-e", ".[train,envs,dev]")
    run(*uv, "--resolution", "lowest-direct", "-e", ".[train,envs]")
    frozen = [python, "-m", "uv", "pip", "freeze", "--exclude-editable", "--python", python]
    lowest = env / "lowest.txt"
    lowest.write_bytes(subprocess.run(frozen, check=True, capture_output=True).stdout)
    run(*uv, "-c", str(lowest), *runners())


def main(which: str, *more: str) -> int:
    """Install, print the versions that matter most, and run the tests; `more` goes to pytest."""
    env = ROOT / f".venv-{which}"
    print(
        f"Installing the {which} versions into {env.name}: a few minutes, mostly PyTorch.",
        flush=True,
    )
    install(which, env)
    ignored = [f"--ignore=tests/{each}" for each in LEFT_OUT]
    tests = [str(env / "bin" / "python"), "-m", "pytest", "-n", "4", "-m", "not weekly", *ignored]
    path = f"{env / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*tests, *more], cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    if sys.argv[1:2] not in (["newest"], ["lowest"]):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
