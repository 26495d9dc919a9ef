"""Run notebooks and store their outputs in them; with --check, say which stored outputs a fresh run does not show.

A check runs the notebooks that are named, or all with a stamp, in a copy, and compares the text of each output: words exactly,
numbers to 5 %. A cell whose output differs from run to run or between machines, as times do, begins with `#| varies` and is not
compared. A run gives a notebook its stamp, which stands for its code. `make test` checks only notebooks whose code is no longer
that of the stamp; that a change elsewhere in the library shows in a notebook is found by the weekly check of all.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from rooms import ROOT, setting

STAMP = "outputs_of"  # settings.ini lets nbdev keep it
TOLERANCE = 0.05
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def directives(cell: NotebookNode) -> set[str]:
    """Return the names of a cell's directives, such as "export" or "slow"."""
    return set(re.findall(r"^#\| *(\w+)", cell.source, flags=re.M))


def stamp(notebook: NotebookNode) -> str:
    """Return what stands for the code of a notebook."""
    code = "\0".join(cell.source for cell in code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


PLACES = (gettempdir(), str(ROOT), str(Path.home()), sys.prefix)
BAR = re.compile(r"\d+%\|.*(?:it|B)/s\]")  # how tqdm draws one as text


def worth_keeping(output: NotebookNode) -> bool:
    """Say whether a reader wants an output: no warning with a path of this machine, no progress bar."""
    if output.get("name") == "stderr":
        return not any(place in output.text for place in PLACES)
    return not BAR.search(output.get("data", {}).get("text/plain", ""))


def run(notebook: NotebookNode, slow: bool = False) -> None:
    """Run a notebook in an empty folder; cells that a test run skips keep the outputs that they have."""
    skipped = set(setting("tst_flags").split()) - ({"slow"} if slow else set())
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=1800,
            coalesce_streams=True,
            store_widget_state=False,
            extra_arguments=["--log-level=ERROR"],  # else each kernel warns of its TCP port
            resources={"metadata": {"path": folder}},
            kernel_name="python3",
        )
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with client.setup_kernel(env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}):
            for at, cell in enumerate(notebook.cells):
                if cell.cell_type == "code" and not skipped & directives(cell):
                    client.execute_cell(cell, at)
    for cell in code_cells(notebook):
        cell.outputs = list(filter(worth_keeping, cell.outputs))


def shown(cell: NotebookNode) -> str:
    """Return the text that a cell shows: what it printed, and the plain form of what it displayed."""
    parts = [
        output.text
        if output.output_type == "stream"
        else output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
        if output.get("name") != "stderr"
    ]
    return COLOUR.sub("", "\n".join(part.rstrip("\n") for part in parts))


def same(stored: str, fresh: str) -> bool:
    """Say whether two texts have the same words, and numbers within the tolerance."""
    if NUMBER.sub("0", stored).split() != NUMBER.sub("0", fresh).split():
        return False
    numbers = zip(NUMBER.findall(stored), NUMBER.findall(fresh), strict=True)
    return all(
        old == new
        or isclose(float(old.replace(",", "")), float(new.replace(",", "")), rel_tol=TOLERANCE)
        for old, new in numbers
    )


def differences(stored: NotebookNode, fresh: NotebookNode) -> Iterator[str]:
    """Give what a fresh run shows and the stored outputs do not, a text per cell."""
    for old, new in zip(code_cells(stored), code_cells(fresh), strict=True):
        if "varies" in directives(old) or same(shown(old), shown(new)):
            continue
        lines = zip_longest(shown(old).splitlines(), shown(new).splitlines(), fillvalue="")
        before, after = next((pair for pair in lines if not same(*pair)), ("", ""))
        yield f"cell {old.id}: {before.strip()!r} is stored, {after.strip()!r} is shown"


def stale_outputs(path: Path, same_code: bool = False) -> list[str]:
    """Return how the stored outputs of a stamped notebook differ from those of a fresh run.

    If its code is that of the stamp, it is run only with `same_code`.
    """
    stored = nbformat.read(path, 4)
    if STAMP not in stored.metadata or (not same_code and stored.metadata[STAMP] == stamp(stored)):
        return []
    fresh = nbformat.read(path, 4)
    run(fresh)
    return list(differences(stored, fresh))


def store(path: Path, slow: bool = False) -> None:
    """Run a notebook and write it with its outputs and, unless it is a benchmark, its stamp."""
    notebook = nbformat.read(path, 4)
    run(notebook, slow)
    if path.parent.name != "benchmarks":
        notebook.metadata[STAMP] = stamp(notebook)
    nbformat.write(notebook, path)
    clean = "from nbdev.clean import nbdev_clean; import sys; nbdev_clean(sys.argv[1])"
    subprocess.run([sys.executable, "-c", clean, str(path)], cwd=ROOT, check=True)


def main() -> None:
    """Store the outputs of the notebooks that are named, or with --check end with status 1 if some are stale."""
    paths = [Path(name) for name in sys.argv[1:] if not name.startswith("--")]
    if "--check" not in sys.argv:
        if not paths:
            sys.exit("Name a notebook: make run NB=nbs/parsers/03_xml.ipynb")
        for path in paths:
            store(path, "--slow" in sys.argv)
        return
    paths = paths or sorted((ROOT / "nbs").rglob("[!.]*.ipynb"))
    stale = {path: found for path in paths if (found := stale_outputs(path, same_code=True))}
    for path, found in stale.items():
        print(f"{path}: make run NB={path}", *found, sep="\n  ")
    sys.exit(bool(stale))


if __name__ == "__main__":
    main()
