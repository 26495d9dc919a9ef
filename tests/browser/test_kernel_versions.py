"""The dashboard during Run All in each generation of ipykernel, in an environment of its own for each.

ALL_KERNELS=1 tests the versions between them, too.
"""

from __future__ import annotations

import json
import os
import sys
import venv
from pathlib import Path

import pytest
from install import pip_settings
from nbformat.v4 import new_code_cell, new_notebook
from wheels import ROOT, run

from .browsing import (
    ENDED,
    OUTPUT,
    OUTPUTS,
    Lab,
    live_widget,
    start_all,
    steps_logged,
    wait_for_end,
    wait_for_steps,
)

pytestmark = pytest.mark.browser

SHARED = next(path for path in sys.path if path.endswith("site-packages"))
SOURCES = (
    """
import ipykernel
import verifiers_nb as vf
args = vf.GRPOConfig(
    {folder!r}, per_device_train_batch_size=96, num_generations=4, max_tokens=40, max_steps={steps},
    learning_rate=1e-3, lr_scheduler_type="constant", use_cpu=True, disable_tqdm=True,
)
env = vf.load_environment("addition", num_eval_examples=8)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
print("ipykernel", ipykernel.__version__)
""",
    "dashboard = vf.TrainingDashboard(trainer)\ndashboard",
    "trainer.train()",
    "dashboard.freeze()",
)
BETWEEN = pytest.mark.skipif("ALL_KERNELS" not in os.environ, reason="only with ALL_KERNELS=1")


def add_kernel(lab: Lab, spec: str, folder: Path) -> str:
    """Make a kernel of other packages than this environment's in one thing only: its ipykernel; return its name."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(f"{SHARED}\n{ROOT}\n")
    command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--target", site]
    command += ["--index-strategy", "unsafe-best-match"]
    done = run(*command, f"ipykernel{spec}", env=pip_settings())
    if done.returncode:
        pytest.skip(f"ipykernel{spec} cannot be fetched: {done.stderr[-200:]}")
    argv = [str(folder / "bin" / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    place = lab.home / "data" / "kernels" / folder.name
    place.mkdir(parents=True, exist_ok=True)  # of a first try
    about = {"argv": argv, "display_name": "Python 3 (ipykernel)", "language": "python"}
    (place / "kernel.json").write_text(json.dumps(about))
    return folder.name


def start(lab: Lab, page, tmp_path: Path, spec: str, steps: int) -> Path:
    """Run all of a notebook that shows a dashboard and trains; return the run's folder when it trains."""
    nb, folder = new_notebook(), tmp_path / "run"
    filled = [SOURCES[0].format(folder=str(folder), steps=steps), *SOURCES[1:]]
    nb.cells = [new_code_cell(source) for source in filled]
    name = add_kernel(lab, spec, tmp_path / f"kernel-{abs(hash(spec))}")
    nb.metadata["kernelspec"] = {"name": name, "display_name": "Python 3 (ipykernel)"}
    page.goto("about:blank")  # JupyterLab learns of a new kernel when it loads
    start_all(lab, page, f"{name}.ipynb", nb)
    wait_for_steps(page, folder, 2)
    said = "".join(str(output.get("text")) for output in page.evaluate(OUTPUTS))
    assert f"ipykernel {7 if '7' in spec[:4] else 6}." in said
    return folder


@pytest.mark.parametrize("spec", ["==7.0.*", pytest.param(">=7.1,<7.4", marks=BETWEEN), "==7.4.*"])
def test_a_kernel_with_subshells(lab, page, tmp_path, spec: str) -> None:
    """Pressed while a cell trains, Pause works within two steps, and Stop; then the next cell freezes what has ended."""
    folder = start(lab, page, tmp_path, spec, 2000)
    widget = live_widget(page, "Training dashboard")
    pause = widget.get_by_role("button", name="Pause after this step")
    pause.scroll_into_view_if_needed()
    pause.click()
    pressed_at = steps_logged(folder)  # it may have taken a while to find and press it
    widget.get_by_text("Paused", exact=True).wait_for()
    assert steps_logged(folder) <= pressed_at + 2
    assert not page.evaluate(ENDED)  # the cell still trains
    assert widget.get_by_text("answers buttons only").count() == 0
    widget.get_by_role("button", name="Stop").click()
    wait_for_end(page)
    frozen = page.locator(OUTPUT).filter(has_text="smoothed by").last
    frozen.get_by_text("Stopped").wait_for()


@pytest.mark.parametrize("spec", ["==6.29.*", pytest.param(">=6.30,<7", marks=BETWEEN)])
def test_a_kernel_without_subshells(lab, page, tmp_path, spec: str) -> None:
    """The dashboard says when its buttons answer, and then they do."""
    start(lab, page, tmp_path, spec, 12)
    widget = page.locator("[data-waiting] > .vf")
    widget.get_by_text("answers buttons only when the running cell has ended").wait_for()
    widget.get_by_text("trainer.start()").wait_for()
    assert not page.evaluate(ENDED)
    wait_for_end(page)
    widget = live_widget(page, "Training dashboard")
    widget.get_by_text("Finished").wait_for()
    widget.get_by_label("Smoothing").focus()
    page.keyboard.press("End")
    widget.get_by_text("0.98").first.wait_for()
