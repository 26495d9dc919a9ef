"""Lay out notebooks and API, and have Sphinx make the site of them; every broken link or image ends it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import plotly
import plotly.io
from links import problems
from names import is_ours, public_bases, settings, spelled
from nbformat import NotebookNode
from rooms import (
    CORE,
    CORE_PURPOSE,
    CORE_TITLE,
    ROOMS,
    ROOT,
    Notebook,
    read_core,
    read_rooms,
    repository,
)

import verifiers_nb as vf

SITE = ROOT / "_docs"
MORE = ("CHANGELOG.md", "CONTRIBUTING.md")
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")


def relink(markdown: str, path: Path, nbs: Path) -> str:
    """Point links that leave the notebooks to the repository, or to the page that is made of the file."""

    def point(match: re.Match[str]) -> str:
        target = (nbs / path.parent / match[2]).resolve()
        if target.is_relative_to(nbs) or not target.exists():
            return match[0]
        name = target.relative_to(nbs.parent).as_posix()
        if name in MORE:
            return match[1] + "../" * (len(path.parts) - 1) + name
        return match[1] + repository(name)

    return LINK.sub(point, markdown)


def figure_html(figure: dict[str, Any]) -> str:
    """Return a plotly figure as HTML that is as wide as its place, at most as it was made."""
    layout = dict(figure["layout"])
    width, height = layout.pop("width", 700), layout.get("height", 420)
    page = plotly.io.to_html(
        {"data": figure["data"], "layout": layout},
        config={"responsive": True, "displayModeBar": False},
        full_html=False,
        include_plotlyjs=False,
        default_height=f"{height}px",
    )
    later = re.sub("<script[^>]*>", '<script type="module">', page)  # when plotly is there
    return f'<div class="figure" style="max-width:{width}px">{later}</div>'


def shown(output: NotebookNode) -> NotebookNode | None:
    """Return an output in a form that a page can show; None for a widget that needs a kernel."""
    data = output.get("data", {})
    if figure := data.pop("application/vnd.plotly.v1+json", None):
        data["text/html"] = figure_html(figure)
    return None if "application/vnd.jupyter.widget-view+json" in data else output


def prepared(path: Path, nbs: Path) -> NotebookNode:
    """Read a notebook for the site: without directives, with figures, its exported cells marked."""
    notebook = nbformat.read(nbs / path, 4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = relink(cell.source, path, nbs)
            continue
        directives = re.findall(r"^#\| *(\w+)", cell.source, flags=re.M)
        cell.source = re.sub(r"^#\|.*\n?", "", cell.source, flags=re.M).strip()
        if "export" in directives:
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "export"]
        cell.outputs = [each for output in cell.outputs if (each := shown(output))]
    future = "from __future__ import annotations"
    notebook.cells = [c for c in notebook.cells if c.source.strip() not in ("", future)]
    return notebook


def origin(module: str) -> NotebookNode:
    """Return the line that says which module a notebook makes."""
    name = f"verifiers_nb.{module}".removesuffix(".__init__")
    text = f'<p class="module">Module <code>{name}</code>: the cells with a coloured edge.</p>'
    return nbformat.v4.new_markdown_cell(text)


def tree(pages: list[str], *options: str) -> str:
    """Return Sphinx's list of the pages below a page."""
    return "\n".join(
        ["```{toctree}", *(f":{option}:" for option in options), "", *pages, "```", ""]
    )


def listed(notebook: Notebook, mark: str = "") -> str:
    """Return the entry of a notebook in a list: its title and its summary."""
    return f"- [{notebook.title}](/{notebook.path.as_posix()}){mark}\\\n  {notebook.summary}"


def stage_core(rooms: dict[str, list[Notebook]], folder: Path) -> None:
    """Write the page that lists the core in the order of reading."""
    lines = [f"# {CORE_TITLE}", "", CORE_PURPOSE, "", *map(listed, read_core(rooms))]
    (folder / "core.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def stage_room(room: str, notebooks: list[Notebook], nbs: Path, folder: Path) -> None:
    """Write the notebooks of a room, and a page that lists them by title and summary."""
    title, purpose = ROOMS[room]
    lines = [f"# {title}", "", purpose, ""]
    for each in notebooks:
        (folder / each.path).parent.mkdir(parents=True, exist_ok=True)
        notebook = prepared(each.path, nbs)
        if each.module:
            notebook.cells.insert(1, origin(each.module))
        nbformat.write(notebook, folder / each.path)
        lines.append(listed(each, " (core)" if each.module in CORE else ""))
    entries = ["/" + each.path.with_suffix("").as_posix() for each in notebooks]
    (folder / room).mkdir(exist_ok=True)
    (folder / room / "index.md").write_text(
        "\n".join([*lines, "", tree(entries, "hidden")]), encoding="utf-8"
    )


def entry(name: str) -> list[str]:
    """Return the reference of a public name; one that is another library's is named only."""
    value = getattr(vf, name)
    if not callable(value) or not is_ours(value):
        kind = f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else str(value)
        return [
            f".. py:data:: verifiers_nb.{name}",
            "",
            f"   ``{' '.join(kind.split())[:300]}``",
            "",
        ]
    if not isinstance(value, type):
        return [f".. autofunction:: verifiers_nb.{name}", ""]
    said = settings(value)
    form = "(**settings)" if said else ""
    lines = [f".. autoclass:: verifiers_nb.{name}{form}", "   :members:", ""]
    if bases := public_bases(value):
        lines += [f"   Extends :py:class:`~verifiers_nb.{bases[0].__name__}`.", ""]
    lines += [f"   - ``{setting}``: {purpose}" for setting, purpose in said]
    return [*lines, ""]


def reference(notebook: Notebook) -> list[str]:
    """Return the reference of a notebook's module, empty if it has no public names."""
    names = vf._EXPORTS.get(notebook.module, "").split()
    if not names:
        return []
    summary = re.sub("`([^`]+)`", r"``\1``", notebook.summary)
    page = f":doc:`{notebook.title} </{notebook.path.with_suffix('').as_posix()}>`"
    grouped = [spelled(name) for name in names if spelled(name).count(".") > 1]
    also = f" In namespaces: {', '.join(f'``{name}``' for name in grouped)}." if grouped else ""
    head = [notebook.module, "-" * len(notebook.module), "", f"{summary} Read {page}.{also}", ""]
    return [*head, *(line for name in names for line in entry(name))]


def stage_api(rooms: dict[str, list[Notebook]], folder: Path) -> list[str]:
    """Write a page of public names per room, by module; return the pages for the navigation."""
    (folder / "api").mkdir()
    pages = []
    for room, notebooks in rooms.items():
        if parts := [line for each in notebooks for line in reference(each)]:
            title = ROOMS[room][0]
            text = "\n".join([title, "=" * len(title), "", *parts])
            (folder / "api" / f"{room}.rst").write_text(text, encoding="utf-8")
            pages.append(f"/api/{room}")
    intro = (
        "Every public name, `import verifiers_nb as vf` away, with its signature and its source."
    )
    text = "\n".join(["# API", "", intro, "", tree(pages)])
    (folder / "api/index.md").write_text(text, encoding="utf-8")
    return ["/api/index"]


def stage(nbs: Path, folder: Path, api: bool = True) -> None:
    """Write all that Sphinx reads: notebooks, the pages of the rooms, the API."""
    rooms = read_rooms(nbs)
    for room, notebooks in rooms.items():
        stage_room(room, notebooks, nbs, folder)
    stage_core(rooms, folder)
    pages = ["/core", *(f"/{room}/index" for room in rooms)]
    if api:
        pages += stage_api(rooms, folder)
    for name in MORE:
        if (nbs.parent / name).exists():
            text = (nbs.parent / name).read_text(encoding="utf-8")
            # On the site the notebooks lie beside this page.
            (folder / name).write_text(text.replace("](nbs/", "]("), encoding="utf-8")
            pages.append(f"/{Path(name).stem}")
    if (nbs / "images").exists():
        shutil.copytree(nbs / "images", folder / "images")
    index = prepared(Path("index.ipynb"), nbs)
    index.cells.append(nbformat.v4.new_markdown_cell(tree(pages, "hidden")))
    nbformat.write(index, folder / "index.ipynb")


def make_site(nbs: Path, site: Path, api: bool = True) -> list[str]:
    """Make the site; returns what is wrong with it: Sphinx's warnings, broken links, missing images."""
    with TemporaryDirectory() as temporary:
        # Beside what it writes, myst-nb leaves a folder of its own.
        source, cache, built = (Path(temporary, name) for name in ("source", "cache", "built"))
        source.mkdir()
        stage(nbs.resolve(), source, api)
        sphinx = [sys.executable, "-m", "sphinx", "-q", "-j", "2", "-c", str(ROOT / "docs")]
        done = subprocess.run(
            [*sphinx, "-d", str(cache), str(source), str(built)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        said = [line.replace(f"{source}/", "") for line in done.stderr.splitlines() if line.strip()]
        if done.returncode:
            return said or [f"Sphinx ended with status {done.returncode}"]
        shutil.move(built, site)
    if (nbs / "images").exists():  # for pages that choose a picture by the colours of the reader
        shutil.copytree(nbs / "images", site / "images")
    shutil.copy(Path(plotly.__file__).parent / "package_data/plotly.min.js", site / "_static")
    return said + problems(site)


def main() -> None:
    """Make the site in _docs, and end with status 1 if anything is wrong with it."""
    shutil.rmtree(SITE, ignore_errors=True)
    if wrong := make_site(ROOT / "nbs", SITE):
        sys.exit("\n".join(wrong))
    print(f"The site is in {SITE.name}/index.html: {sum(1 for _ in SITE.rglob('*.html'))} pages.")


if __name__ == "__main__":
    main()
