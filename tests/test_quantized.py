"""The tests of quantized.py, in a process that finds bitsandbytes: those who find it load it, which takes a second."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

QUANTIZERS = Path(sys.prefix) / "quantizers"


def test_quantised_bases() -> None:
    if not QUANTIZERS.exists() and not find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is not installed")
    paths = [str(QUANTIZERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    asked = [*command, str(Path(__file__).with_name("quantized.py"))]
    done = subprocess.run(asked, env=env, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout[-3000:]
