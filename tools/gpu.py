"""Run everything that needs a GPU: the tests in tests/gpu, the figures of nbs/benchmarks/gpu.ipynb, and tutorial 113 on a real model.

    make test-gpu                                  # tests and figures with random weights
    make test-gpu WHEELS=wheels GGUF="a.gguf"      # packages from a folder of wheels, and a real model
    make test-gpu PART=tests                       # only a part: tests, figures or real

The machine needs PyTorch, transformers and peft, no network and no vLLM; tests that do need vLLM are skipped without it. WHEELS is a folder
of wheels (`pip download -d wheels`) with what else is missing. GGUF is a model's file, whole or in parts, which are joined in the order
of their names: `split -b 40M model.gguf model.gguf.` makes them. Each figure is written to nbs/benchmarks/gpu.json as it comes, which the
benchmark notebook shows. Without a GPU the status is 1.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "nbs/benchmarks/gpu.json"
BENCHMARK = ROOT / "nbs/benchmarks/gpu.ipynb"
TUTORIAL = ROOT / "nbs/tutorials/113_a_real_model_on_a_processor.ipynb"
SECONDS = 480  # after which nothing new is begun
CPU_PART = "## A tiny shape on the CPU"  # from this heading on, the notebook needs no GPU, but TRL
NEEDED = ("torch", "transformers", "peft", "openai", "datasets", "orjson", "tenacity", "aiohttp")
# Cells of the tutorial with these need a browser, another package or a second model.
LEFT_OUT = (
    "google.colab",
    "plotly_mimetype",
    "vf.TrainingDashboard",
    "vf.PolicySlider",
    "go.Figure",
    "PeftModel",
)


def cells_of(notebook: Path) -> list[tuple[str, str]]:
    """Return the kinds and texts of a notebook's cells."""
    return [
        (cell["cell_type"], "".join(cell["source"]))
        for cell in json.loads(notebook.read_text())["cells"]
    ]


def benchmark_cells() -> str:
    """Return the code of the benchmark notebook up to where it runs on the CPU."""
    first = takewhile(lambda cell: CPU_PART not in cell[1], cells_of(BENCHMARK))
    return "\n\n".join(text for kind, text in first if kind == "code")


def tutorial_cells(model: Path, half: str, folder: str) -> str:
    """Return the code of the tutorial that trains a real model, for a GPU.

    `half` is the precision, bfloat16 or float16; with float16, the trainer's weights are float32.
    """
    weights = "bfloat16" if half == "bfloat16" else "float32"
    changes = {
        'vf.model_path("smollm2-135m")': f"Path({str(model)!r})",
        "vf.get_model_and_tokenizer(path)\n": f'vf.get_model_and_tokenizer(path, dtype=torch.{weights})\nmodel.to("cuda")\n',
        "seed=seed, share=True": f"seed=seed, share=True, dtype=torch.{half}",
        'output_dir = "outputs/real"': f"output_dir = {folder!r}",
        "use_cpu=True": "bf16=True" if half == "bfloat16" else "fp16=True",
        "import plotly.graph_objects as go\nimport plotly.io\n": "",
    }
    texts = [
        text
        for kind, text in cells_of(TUTORIAL)
        if kind == "code" and not any(each in text for each in LEFT_OUT)
    ]
    code = "\n\n".join(text for text in texts if "summary = {" not in text)
    for old, new in changes.items():
        if code.count(old) != 1:
            raise SystemExit(
                f"{TUTORIAL.name} has {code.count(old)} times {old!r}: change tools/gpu.py with it."
            )
        code = code.replace(old, new)
    return code


def whole_model(given: str) -> Path | None:
    """Return the path of a GGUF file that is given whole, or joined from its parts; None for no file."""
    parts = sorted(Path(each) for each in given.split())
    if len(parts) < 2:
        return parts[0] if parts else None
    whole = Path(tempfile.mkdtemp(), "SmolLM2-135M-Instruct.gguf")
    with whole.open("wb") as out:
        for part in parts:
            out.write(part.read_bytes())
    return whole


def use_wheels(folder: str) -> None:
    """Let this process and those that it starts import the packages of a folder of wheels."""
    site = tempfile.mkdtemp()
    call = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--target",
        site,
    ]
    subprocess.run([*call, *map(str, Path(folder).glob("*.whl"))], check=True)
    sys.path.insert(1, site)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), site, os.environ.get("PYTHONPATH", "")])


def run_tests(seconds: float) -> int:
    """Run the tests on the GPU; return pytest's status, 124 when time is up."""
    call = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        str(ROOT / "tests/gpu"),
    ]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    try:
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(call, cwd=ROOT, env=env, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return 124


def train_real(space: dict[str, Any], model: Path, half: str) -> dict[str, Any]:
    """Run the tutorial on the GPU; return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        run: dict[str, Any] = {"__name__": "tutorial"}
        exec(tutorial_cells(model, half, folder), run)
        figures = space["figures_of_run"](run)
        run["engine"].close()
    return dict(figures)


def jobs(
    space: dict[str, Any], part: str, model: Path | None
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what is to be measured: names and functions, the real model first."""
    if model is not None and part in ("all", "real"):
        for half in ("bfloat16", "float16"):
            yield f"SmolLM2-135M, tutorial 113 in {half}", partial(train_real, space, model, half)
        for bits in (16, 4) if find_spec("bitsandbytes") else (16,):
            yield f"SmolLM2-135M, base of {bits} bits", partial(space["measure_base"], model, bits)
    if part in ("all", "figures"):
        yield from space["jobs_of_card"]().items()


def describe_card() -> dict[str, Any]:
    """Return card, memory, driver, versions and date."""
    import torch

    card = torch.cuda.get_device_properties(0)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    names = ("torch", "transformers", "peft", "trl", "bitsandbytes")
    return {
        "card": card.name,
        "GiB": round(card.total_memory / 2**30),
        "driver": driver.stdout.split("\n")[0],
        "versions": {name: version(name) for name in names if find_spec(name)},
        "date": str(date.today()),
    }


def measure(part: str, model: Path | None, deadline: float) -> None:
    """Measure while there is time, and write each figure as it comes."""
    import torch

    space: dict[str, Any] = {"__name__": "benchmark"}
    exec(benchmark_cells(), space)
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    figures |= describe_card()
    for name, job in jobs(space, part, model):
        if time.monotonic() > deadline:
            print(f"No time for: {name}")
            continue
        try:
            figures[name] = job()
        except Exception as error:  # the others are still worth measuring
            figures[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
        print(name, figures[name], flush=True)
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
        gc.collect()
        torch.cuda.empty_cache()


def main() -> int:
    """Run tests and benchmark; 0 if all is well, 1 without a GPU or packages, else the status of the tests."""
    started = time.monotonic()
    part = os.environ.get("PART") or "all"
    if os.environ.get("WHEELS"):
        use_wheels(os.environ["WHEELS"])
    if missing := [name for name in NEEDED if not find_spec(name)]:
        print(
            f"This needs {', '.join(missing)}: install them, or name a folder with their wheels in WHEELS."
        )
        return 1
    import torch

    if not torch.cuda.is_available():
        print("This machine has no GPU that PyTorch can use, so there is nothing to test here.")
        return 1
    sys.path.insert(0, str(ROOT))
    status = run_tests(SECONDS * 0.5) if part in ("all", "tests") else 0
    if part != "tests":
        measure(part, whole_model(os.environ.get("GGUF", "")), started + SECONDS - 60)
        print(f"the figures are in {FIGURES.relative_to(ROOT)}")
    print(f"{time.monotonic() - started:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
