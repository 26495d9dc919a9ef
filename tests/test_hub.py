"""Real data by its real loader, from a stand-in for the Hub that has each dataset under its own names.

The rows that it serves are those of the samples, in the columns of the real datasets and one more. The other
splits and configurations of a dataset hold a single row, so that an environment that asks for a
wrong one can't come out as it does from its sample. Most subjects of MMMU have no other splits here.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hub import publish, serving
from test_environments import CASES

import verifiers_nb as vf
from verifiers_nb.environments.mmmu import SUBJECTS
from verifiers_nb.environments.wiki_search import embed_words, sample_pages
from verifiers_nb.envs.data import EXAMPLE_SETS, sample_rows

# Configurations and splits as on the Hub, with the sample to serve; -sample: one row of it, which nobody asks for.
HOSTED: dict[str, dict[str, dict[str, str]]] = {
    "HuggingFaceH4/MATH-500": {"default": {"test": "olympiad"}},
    "HuggingFaceH4/aime_2024": {"default": {"train": "olympiad"}},
    "Idavidrein/gpqa": {
        "gpqa_extended": {"train": "-gpqa"},
        "gpqa_main": {"train": "gpqa"},
        "gpqa_diamond": {"train": "gpqa"},
    },
    "MMMU/MMMU": {
        **{subject: {"validation": "mmmu"} for subject in SUBJECTS},
        SUBJECTS[0]: {"dev": "-mmmu", "validation": "mmmu", "test": "-mmmu"},
    },
    "PrimeIntellect/verifiable-coding-problems": {"default": {"train": "prime_code"}},
    "Salesforce/xlam-function-calling-60k": {"dataset": {"train": "xlam"}},
    "TIGER-Lab/MMLU-Pro": {"default": {"test": "-mmlu_pro", "validation": "mmlu_pro"}},
    "agentlans/wikipedia-paragraphs": {"default": {"train": "paragraphs", "test": "-paragraphs"}},
    "allenai/openbookqa": {
        "main": {"train": "openbookqa", "validation": "-openbookqa", "test": "-openbookqa"},
        "additional": {"train": "-openbookqa", "test": "-openbookqa"},
    },
    "basicv8vc/SimpleQA": {"default": {"test": "simpleqa"}},
    "cais/mmlu": {
        "abstract_algebra": {"test": "-mmlu", "dev": "-mmlu"},
        "all": {"test": "-mmlu", "validation": "-mmlu", "dev": "mmlu"},
    },
    "chiayewken/competition_math": {"default": {"train": "math", "test": "-math"}},
    "google/civil_comments": {
        "default": {"train": "civil_comments", "validation": "-civil_comments"}
    },
    "knoveleng/AMC-23": {"default": {"train": "olympiad"}},
    "knoveleng/open-rs": {"default": {"train": "olympiad"}},
    "openai/gsm8k": {
        "main": {"train": "gsm8k", "test": "gsm8k"},
        "socratic": {"train": "-gsm8k", "test": "-gsm8k"},
    },
    "opencompass/AIME2025": {
        "AIME2025-I": {"test": "aime2025"},
        "AIME2025-II": {"test": "aime2025"},
    },
    "somebody/questions": {"default": {"train": "questions", "test": "-questions"}},
    "willcb/wiki-trivia-questions": {"default": {"train": "wiki_trivia"}},
}


def hosted_rows(sample: str, config: str, split: str) -> list[dict[str, Any]]:
    """Return the rows of a split on the Hub."""
    rows = sample_rows(sample.removeprefix("-"), split)
    if sample.startswith("-"):
        rows = rows[-1:]
    elif config in SUBJECTS:
        rows = [row for row in rows if row["id"].split("_", 1)[1].rpartition("_")[0] == config]
        rows = rows or sample_rows(sample)[:1]
    elif config.startswith("AIME2025"):
        rows = rows[:4] if config.endswith("-I") else rows[4:]
    pictures = files("verifiers_nb.environments") / "data" / "mmmu"
    return [
        {name: str(pictures / value) if is_picture(name, value) else value for name, value in row}
        for row in ([*each.items(), ("one_more", i)] for i, each in enumerate(rows))
    ]


def is_picture(name: str, value: Any) -> bool:
    """Say whether a value is the file of a picture."""
    return name.startswith("image_") and value is not None


def digest(rows: Any) -> str | None:
    """Sum up the different rows of a dataset, without the column that is one more."""
    if rows is None:
        return None
    plain = ({**row, "one_more": None, "prompt": pixels(row.get("prompt"))} for row in rows)
    written = {json.dumps(row, sort_keys=True) for row in plain}
    return hashlib.sha256("\n".join(sorted(written)).encode()).hexdigest()


def pixels(prompt: Any) -> Any:
    """Replace the pictures of a prompt by what they show."""
    from PIL import Image

    if isinstance(prompt, list):
        return [pixels(each) for each in prompt]
    if not isinstance(prompt, dict):
        return prompt
    if (url := prompt.get("url") or "").startswith("data:"):
        picture = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
        return hashlib.sha256(picture.convert("RGB").tobytes()).hexdigest()
    return {key: pixels(value) for key, value in prompt.items()}


def load_all(folder: Path) -> dict[str, list[list[str | None]]]:
    """Load every environment and example dataset from the Hub and from its sample."""
    for name, page in sample_pages().items():
        text = "\n".join(f"# {heading}\n{body}" for heading, body in page.items())
        (folder / f"{name}.md").write_text(text)
    more = {"wiki-search": dict(wiki_dir=str(folder), chroma_db_dir=None, embed=embed_words)}
    loaded = {}
    for case in CASES:
        if case.hub:
            arguments = {**case.args, **more.get(case.id, {})}
            both = [vf.load_environment(case.id, offline=off, **arguments) for off in (True, False)]
            loaded[case.id] = [[digest(env.dataset), digest(env.eval_dataset)] for env in both]
    for name in EXAMPLE_SETS:
        both = [vf.load_example_dataset(name, offline=off) for off in (True, False)]
        loaded[name] = [[digest(rows)] for rows in both]
    return loaded


def run_here(url: str, home: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process for which the Hub is at this address.

    It ends without finalizers: in one of them a library's thread aborted it once, after all work.
    """
    code += "\nimport os, sys; sys.stdout.flush(); os._exit(0)\n"
    env = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **env}
    env |= {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-c", code]
    return subprocess.run(call, capture_output=True, text=True, env=env, cwd=home)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve all datasets; one of them is gated, as the real one is."""
    folder = tmp_path_factory.mktemp("hub")
    for repo, configs in HOSTED.items():
        served = {
            config: {split: hosted_rows(name, config, split) for split, name in splits.items()}
            for config, splits in configs.items()
        }
        publish(folder, repo, served)
    with serving(folder, gated={"Idavidrein/gpqa"}) as hub:
        yield hub.url


def test_every_environment_loads_its_dataset(hub: str, tmp_path: Path) -> None:
    """By the names on the pages, and what it makes of it is what it makes of its sample."""
    for package in ("PIL", "chromadb", "smolagents"):
        pytest.importorskip(package)
    code = (
        "import json, pathlib, test_hub; print(json.dumps(test_hub.load_all(pathlib.Path.cwd())))"
    )
    done = run_here(hub, tmp_path, code, HF_TOKEN="hf_token")
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert set(loaded) == {case.id for case in CASES if case.hub} | set(EXAMPLE_SETS)
    assert {name for name, (sample, real) in loaded.items() if sample != real} == set()


REFUSED = """
import sys, verifiers_nb as vf
for name, args in (
    ("gpqa", {}),
    ("self-reward", {"dataset_name": "somebody/else", "model_name": "judge"}),
    ("continuation-quality", {"dataset_split": "validation"}),
):
    try:
        vf.load_environment(name, **args)
    except RuntimeError as error:
        print(error)
"""


def test_a_dataset_that_is_refused_has_two_ways_out(hub: str, tmp_path: Path) -> None:
    """It is for those who are logged in, there is none of that name, or no such split."""
    done = run_here(hub, tmp_path, REFUSED)
    assert done.returncode == 0, done.stderr[-3000:]
    errors = done.stdout.splitlines()
    reasons = ("gated", "somebody/else", "Unknown split")
    sets = ("Idavidrein/gpqa", "somebody/else", "agentlans/wikipedia-paragraphs")
    for error, reason, dataset in zip(errors, reasons, sets, strict=True):
        assert f"The dataset {dataset!r} could not be loaded" in error and reason in error
        assert "offline=True" in error and "dataset=" in error
