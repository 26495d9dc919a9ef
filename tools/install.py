"""Install the library and its tools where this runs, with pip's long story told in one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

LOG = Path(sys.prefix) / "install.log"
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
STEPS = ("Collecting", "Processing", "Downloading", "Building", "Installing")


def show(line: str) -> None:
    """Redraw the one line of a terminal; a file gets only the last step."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\033[K{line.strip()[:width]}", end="", flush=True)
    elif line.startswith("Installing"):
        print("Installing the packages", flush=True)


def main() -> int:
    """Run pip and return its status, with its errors if it failed."""
    command = [*PIP, "-c", "constraints.txt", "-e", ".[train,dev]"]
    with (
        LOG.open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            if line.strip().startswith(STEPS):
                show(line)
    if sys.stdout.isatty():
        print("\r\033[K", end="")
    if pip.returncode:
        said = LOG.read_text().splitlines()
        errors = [line.strip() for line in said if line.strip().startswith("ERROR")]
        print(*(errors or said)[-3:], f"All that pip said: {LOG}", sep="\n")
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main())
