"""Give every tutorial the same way to run on Colab, a badge and a first cell; with --check, say which lack it."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from rooms import ROOT, setting

BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
SETUP = """\
# On Colab, install the library and keep Colab's PyTorch; elsewhere this cell does nothing.
import sys

if "google.colab" in sys.modules:
    import subprocess
    from importlib.metadata import version
    from pathlib import Path

    import torch
    from google.colab import output

    Path("/tmp/kept.txt").write_text(f"torch=={version('torch')}")  # pip must keep this version
    pip = [sys.executable, "-m", "pip"]
    install = [*pip, "install", "-q", "-c", "/tmp/kept.txt"]
    gpu = torch.cuda.is_available()
    # From the index, or if it isn't there yet, from the repository that this notebook is in.
    places = [
        "verifiers_nb[{}]",
        "verifiers_nb[{}] @ git+REPOSITORY",
    ]
    extras = ["train,vllm", "train"] if gpu else ["train"]
    for wanted in [place.format(each) for each in extras for place in places]:
        if subprocess.run([*install, wanted]).returncode == 0:
            break
    else:
        raise SystemExit("verifiers_nb could not be installed: pip's messages are above.")
    if gpu and subprocess.run([sys.executable, "-c", "import vllm.engine.arg_utils"]).returncode:
        subprocess.run([*pip, "uninstall", "-q", "-y", "vllm"])
        print("vLLM can't run with this PyTorch: the embedded engine answers, and takes longer.")
    import plotly.io

    plotly.io.renderers["plotly_mimetype"] = plotly.io.renderers["colab"]  # Colab's own renderer
    output.enable_custom_widget_manager()
""".rstrip().replace("REPOSITORY", f"{setting('git_url')}@{setting('branch')}")

FIRST = SETUP.partition("\n")[0]


def badge(path: Path) -> str:
    """Return the link to a notebook on Colab, as a picture."""
    name = path.relative_to(ROOT).as_posix()
    repository = setting("git_url").removeprefix("https://github.com/")
    address = (
        f"https://colab.research.google.com/github/{repository}/blob/{setting('branch')}/{name}"
    )
    return f"[![Open this notebook in Colab]({BADGE})]({address})"


def tutorials() -> list[Path]:
    """List the notebooks that run on Colab."""
    return sorted((ROOT / "nbs/tutorials").glob("*.ipynb"))


def with_setup(notebook: NotebookNode, path: Path) -> NotebookNode:
    """Return a notebook whose title is followed by the badge and the cell, once."""
    title, *rest = notebook.cells
    rest = [c for c in rest if BADGE not in c.source and not c.source.startswith(FIRST)]
    new = nbformat.v4.new_markdown_cell(badge(path)), nbformat.v4.new_code_cell(SETUP)
    for cell, name in zip(new, ("colab-badge", "colab-setup"), strict=True):
        cell["id"] = name
    return NotebookNode(notebook, cells=[title, *new, *rest])


def main() -> None:
    """Put badge and cell into the tutorials, or with --check end with status 1 if one lacks them."""
    for path in tutorials():
        notebook = nbformat.read(path, 4)
        wanted = with_setup(notebook, path)
        if [c.source for c in notebook.cells] == [c.source for c in wanted.cells]:
            continue
        if "--check" in sys.argv:
            sys.exit(f"{path.relative_to(ROOT)} does not begin as tools/colab.py wants it: run it")
        path.write_text(nbformat.writes(wanted) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
