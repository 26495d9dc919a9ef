"""The quick start learns, and its adapter is one that plain PEFT loads."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
import torch
from chromium import CHROMIUM
from notebooks import set_parameters
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import verifiers_nb as vf
from verifiers_nb.cli.demo import run_notebook

NOTEBOOK = Path(__file__).parents[1] / "nbs/tutorials/101_quick_start.ipynb"


def plain_greedy_accuracy(adapter: Path) -> float:
    """Return the held-out accuracy of a saved adapter, asked through plain PEFT and transformers."""
    folder = vf.model_path("verifiers_nb/adder-1m")
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter)
    env = vf.load_environment("addition")
    held_out = env.get_eval_dataset()
    prompts = tokenizer.apply_chat_template(
        held_out["prompt"][:],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = model.generate(**prompts, do_sample=False, max_new_tokens=40)
    said = tokenizer.batch_decode(ids[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [
        env.parser.parse_answer(text) == answer
        for text, answer in zip(said, held_out["answer"], strict=True)
    ]
    return sum(right) / len(right)


def check_run(folder: Path) -> None:
    """Check what a run of the quick start has learnt, and that plain PEFT finds the same of its adapter."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 60
    assert summary["reward_last5"] >= 0.95
    assert summary["greedy_after"] >= 0.95
    assert summary["reward_first5"] < 0.7 and summary["greedy_before"] < 0.6
    assert summary["format_after"] > summary["format_before"]
    assert len(list((folder / "rollouts").glob("step-*.jsonl"))) == 60
    assert plain_greedy_accuracy(folder / "adapter") == pytest.approx(
        summary["greedy_after"], abs=0.005
    )


@pytest.mark.skipif(
    CHROMIUM is not None,
    reason="needs a machine without chromium: with one, tests/browser/test_lab.py runs and checks it",
)
def test_quick_start_learns(tmp_path: Path) -> None:
    nb = nbformat.read(NOTEBOOK, 4)
    set_parameters(nb, output_dir="run", seed=0)
    run_notebook(nb, tmp_path / "executed.ipynb", tmp_path)
    check_run(tmp_path / "run")
