"""Thousands of texts, found by a fuzzer that is guided by coverage, break no promise of a verifier or a parser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).with_name("fuzz_formats.py")
pytest.importorskip("atheris", reason="needs atheris, which has wheels for Linux on x86-64 only")


# libFuzzer counts the peak that a process inherits from the one that started it: a worker of pytest.
MEMORY = "-rss_limit_mb=8192"


# Half of the seconds are imports. The weekly job asks for more runs, and so can you: FUZZ_RUNS=100000.
@pytest.mark.parametrize("kind", ["verifiers", "parsers"])
def test_fuzz(kind: str, tmp_path: Path) -> None:
    runs = int(os.environ.get("FUZZ_RUNS", 2_000))
    done = subprocess.run(
        [sys.executable, str(FUZZER), kind, str(tmp_path), f"-runs={runs}", "-seed=1", MEMORY],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"Done {runs} runs" in done.stderr
