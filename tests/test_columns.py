"""A column of a rollout is added in one place: this test adds one in a copy and finds it everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import verifiers_nb

ROWS = """    Column("tokens", "Tokens","""
ADDED = """    Column("letters", "Letters", letters),
"""
FUNCTION = '''def letters(completion: Messages, answers: Answers) -> int | None:
    """Return the number of letters of a completion that is a text."""
    return len(completion) if isinstance(completion, str) else None


@dataclass(frozen=True)
class Column:'''

USE = """
import sys
from pathlib import Path
import verifiers_nb as vf
from verifiers_nb.cli.report_page import meta_of_run, report_html
from verifiers_nb.cli.rollout_text import scores_line
from verifiers_nb.cli.saved_runs import ORDERS, find_rollouts, ordered_places, read_rollout
from verifiers_nb.widgets.rollout_explorer import RolloutExplorer

path = sys.argv[1]
results = vf.load_results(path)
assert list(vf.results_frame(path)["letters"]) == [3, 1, 2]
assert "Letters" in report_html(meta_of_run({}), results)

places = find_rollouts([Path(path)])
assert "letters, descending" in ORDERS
found = ordered_places(places, "letters, descending")
assert [read_rollout(place)["index"] for place in found] == [0, 2, 1]
assert "letters 3" in scores_line(read_rollout(places[0])).plain

explorer = RolloutExplorer(results=path)
assert explorer.select(sort="letters") == [1, 2, 0]
assert explorer.select(parts={"letters": (2, 3)}, sort="order") == [0, 2]
drawn = explorer.drawing(live=True)
assert "Letters" in drawn and "letters 3" in drawn
print("found everywhere")
"""


def test_a_new_column_is_one_function_and_one_row(tmp_path: Path) -> None:
    package = tmp_path / "verifiers_nb"
    shutil.copytree(Path(verifiers_nb.__file__).parent, package)
    module = package / "inference" / "columns.py"
    text = module.read_text()
    text = text.replace("@dataclass(frozen=True)\nclass Column:", FUNCTION)
    module.write_text(text.replace(ROWS, ADDED + ROWS))
    run = tmp_path / "run"
    run.mkdir()
    with (run / "results.jsonl").open("w") as file:
        for index, completion in enumerate(("abc", "a", "ab")):
            record = dict(index=index, prompt="?", answer="", task="default", info={}, state={})
            record |= dict(completion=completion, reward=0.0, metrics={}, error=None, turns=[])
            file.write(json.dumps(record) + "\n")
    call = [sys.executable, "-c", USE, str(run / "results.jsonl")]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}  # the copy comes first
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.stdout == "found everywhere\n", done.stderr[-2000:]
