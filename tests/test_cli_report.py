"""vf-report as a process: pages that fetch nothing and obey nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import forked
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
    return forked.run(command, cwd)


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


def call_with(run: Path, tmp_path: Path) -> str:
    """Call the command on a broken run, check that it ends in one sentence, and return that."""
    failed = call(run, cwd=tmp_path)
    assert failed.returncode == 2, failed.stderr
    assert "Traceback" not in failed.stderr and len(failed.stderr.strip().splitlines()) == 1
    return failed.stderr


SAYS = {"role": "assistant", "content": "42"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completion": [{**SAYS, "tool_calls": "add"}]}, "the tool_calls 'add'"),
        (
            {"completion": [{**SAYS, "tool_calls": [{"function": 5}]}]},
            "the tool call {'function': 5}",
        ),
        ({"completion": [{**SAYS, "tool_calls": ["[" * 100_000]}]}, "the tool call '[[["),
        ({"completion": [{**SAYS, "content": [1, 2]}]}, "the part 1"),
        ({"completion": [{**SAYS, "content": [SAYS]}]}, "the part {"),
        ({"metrics": [1.0]}, "its metrics is [1.0]"),
        ({"run": {"model": 5}}, "its model is 5"),
        ({"state": None}, "its state is None"),
        ({"state": {"reward_errors": "right"}}, "its reward_errors is 'right'"),
        ({"turns": [3]}, "it has the turn 3"),
        ({"usage": {"requests": "many"}}, "its requests is 'many'"),
        ({"reward": 10**400}, "its reward is 1000"),
        ({"run": 3}, "its run is 3"),
    ],
)
def test_a_rollout_of_wrong_types_costs_one_sentence(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    run = write_run(tmp_path / "a", 1)
    lines = (run / "results.jsonl").read_text().splitlines(keepends=True)
    lines[0] = json.dumps({**json.loads(lines[0]), **change}) + "\n"
    (run / "results.jsonl").write_text("".join(lines))
    assert said in call_with(run, tmp_path)


@pytest.mark.parametrize("name", ["results.jsonl", "metadata.json"])
@pytest.mark.parametrize("opening", ["[", '{"index": '])
def test_nested_brackets_cost_one_sentence(tmp_path: Path, name: str, opening: str) -> None:
    run = write_run(tmp_path / "a", 1)
    (run / name).write_text(100_000 * opening + "\n")
    assert "nested too deeply" in call_with(run, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("env_id", 5),
        ("model", ["m"]),
        ("num_examples", "many"),
        ("rollouts_per_example", {}),
        ("sampling_args", [1]),
        ("env_args", "difficulty"),
        ("weights", "right"),
        ("base_url", 3),
    ],
)
def test_metadata_of_wrong_types_cost_one_sentence(
    tmp_path: Path, name: str, value: object
) -> None:
    run = write_run(tmp_path / "a", 1)
    metadata = json.loads((run / "metadata.json").read_text())
    (run / "metadata.json").write_text(json.dumps({**metadata, name: value}))
    assert f"the {name} in" in call_with(run, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"), [("[1, 2]", "no complete line"), ("\0" * 99, "no complete line")]
)
def test_a_file_without_lines_costs_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    run = write_run(tmp_path / "a", 1)
    (run / "results.jsonl").write_text(text)
    assert said in call_with(run, tmp_path)


def test_weights_and_rewards_that_no_page_can_show(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 1)
    metadata = json.loads((run / "metadata.json").read_text())
    (run / "metadata.json").write_text(json.dumps({**metadata, "weights": {"right": "x"}}))
    assert "the weight of 'right'" in call_with(run, tmp_path)
    (run / "metadata.json").write_text(json.dumps(metadata))
    records = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    huge = [json.dumps({**record, "reward": 1e308}) + "\n" for record in records]
    (run / "results.jsonl").write_text("".join(huge))
    assert "too large for a mean" in call_with(run, tmp_path)


def test_an_unknown_metric_leaves_a_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 1)
    text = (run / "results.jsonl").read_text()
    (run / "results.jsonl").write_text(text.replace('"<b>right</b>": 1.0', '"<b>right</b>": NaN'))
    assert call(run, cwd=tmp_path).returncode == 0


def test_a_run_as_a_short_text(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", 1), write_run(tmp_path / "b", 5)
    for arguments in ([first], [first, second]):
        done = call(*arguments, "--text", cwd=tmp_path)
        assert done.returncode == 0 and len(done.stdout.encode()) < 6100, done.stderr
        assert "\x1b" not in done.stdout and "# Evaluation" in done.stdout
        assert ("## Changes against" in done.stdout) == (len(arguments) == 2)
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.25}\n{"step": 2, "re')
    done = call(run, "--text", cwd=tmp_path)
    assert done.returncode == 0 and "reward: 1: 0.25" in done.stdout, done.stderr
    missing = call(tmp_path / "none", "--text", cwd=tmp_path)
    assert missing.returncode == 2 and "Traceback" not in missing.stderr
