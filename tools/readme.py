"""Write README.md from nbs/index.ipynb; with --check, only say whether it is up to date."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "nbs/index.ipynb"
README = ROOT / "README.md"
LINK = re.compile(r"(\]\(|(?:src|srcset|href)=\")(?![a-z]+:|#)([^)\"#\s]+)")


def rebase_links(markdown: str) -> str:
    """Make links that are relative to the notebook relative to the README."""

    def rebase(match: re.Match[str]) -> str:
        target = (INDEX.parent / match[2]).resolve()
        if not target.exists():
            sys.exit(f"nbs/index.ipynb links to {match[2]}, which does not exist")
        return match[1] + target.relative_to(ROOT).as_posix()

    return LINK.sub(rebase, markdown)


def output_text(output: NotebookNode) -> str:
    """Return an output as markdown; "" where only a notebook can show it, and for progress bars."""
    if output.get("name") == "stderr":
        return ""
    data = output.get("data", {})
    if "text/markdown" in data:
        return rebase_links(data["text/markdown"])
    text = output.get("text") or data.get("text/plain", "")
    return f"```\n{text.rstrip()}\n```" if text else ""


def cell_text(cell: NotebookNode) -> list[str]:
    """Return a cell's parts as markdown; none for a hidden cell."""
    if re.search(r"^#\| *(hide|include: *false)\b", cell.source, flags=re.M):
        return []
    if cell.cell_type == "markdown":
        return [rebase_links(cell.source)]
    code = re.sub(r"^#\|.*\n?", "", cell.source, flags=re.M).strip()
    source = [f"```python\n{code}\n```"] if code else []
    return source + [output_text(output) for output in cell.outputs]


def main() -> None:
    """Write the README, or with --check end with status 1 when it is not what would be written."""
    cells = nbformat.read(INDEX, 4).cells
    parts = [part for cell in cells for part in cell_text(cell) if part]
    text = "\n\n".join(["<!-- Written from nbs/index.ipynb; edit that. -->", *parts]) + "\n"
    if "--check" not in sys.argv:
        README.write_text(text, encoding="utf-8")
    elif not README.exists() or README.read_text(encoding="utf-8") != text:
        sys.exit("README.md is not what nbs/index.ipynb gives: run make export")


if __name__ == "__main__":
    main()
