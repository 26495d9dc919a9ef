"""vf-report as a process: pages that fetch nothing and obey nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e{{7*7}}"


def write_run(folder: Path, skill: int, count: int = 6) -> Path:
    """Write an evaluation of examples with two rollouts each, one of them failed."""
    folder.mkdir()
    records = []
    for i in range(2 * count):
        right = float(i % count < skill)
        records.append(
            {
                "index": i,
                "prompt": [{"role": "user", "content": f"question {i % count} {HOSTILE}"}],
                "answer": HOSTILE,
                "task": "default",
                "info": {},
                "completion": [{"role": "assistant", "content": HOSTILE}],
                "reward": right,
                "metrics": {"<b>right</b>": right},
                "error": HOSTILE if i == 3 else None,
                "state": {},
                "turns": [],
            }
        )
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "results.jsonl").write_text("".join(lines))
    metadata = {
        "env_id": HOSTILE,
        "model": HOSTILE,
        "num_examples": count,
        "rollouts_per_example": 2,
    }
    (folder / "metadata.json").write_text(
        json.dumps({**metadata, "sampling_args": {"stop": HOSTILE}})
    )
    return folder


def call(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Call the command in a folder."""
    command = [sys.executable, "-m", "verifiers_nb.cli.report", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


class Tags(HTMLParser):
    """The names of all tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_pages_of_hostile_runs(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", 1), write_run(tmp_path / "b", 5)
    done = call(first, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    alone = Path(done.stdout.strip())
    assert alone.parent == first and call(first, cwd=tmp_path).stdout.strip() == str(alone)
    compared = call(first, second, "-o", "both.html", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    for page in (alone.read_text(), (tmp_path / "both.html").read_text()):
        found = Tags(page)
        assert not found.names & {"script", "img", "iframe", "link", "object"}
        assert not [name for name in found.attributes if name.startswith("on")]
        assert "\x1b" not in page and "\u202e" not in page
        assert "https://" not in page and "{{7*7}}" in page
    assert "+0.667" in (tmp_path / "both.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing"], "no rollouts at missing"),
        (["bad.jsonl"], "the rollouts in bad.jsonl can't be read"),
        (["a", "-o", "/proc/none/a.html"], "/proc/none: No such file"),
        ([], "RUN"),
    ],
)
def test_a_wrong_call_costs_one_sentence(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "bad.jsonl").write_text("nonsense\n")
    write_run(tmp_path / "a", 1)
    failed = call(*arguments, cwd=tmp_path)
    assert failed.returncode == 2 and said in failed.stderr
    assert "Traceback" not in failed.stderr and len(failed.stderr.strip().splitlines()) == 1
