"""How Sphinx turns what tools/docs.py laid out into the site."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
ini = ConfigParser(delimiters=["="])
ini.read(ROOT / "settings.ini", encoding="utf-8")
settings = ini["DEFAULT"]

project = settings["title"]
author = settings["author"]
copyright = settings["copyright"]
release = settings["version"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]

# The outputs that notebooks were committed with are what readers see; nothing is run.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
html_baseurl = settings["doc_host"] + settings["doc_baseurl"] + "/"
pygments_style = "tango"
pygments_dark_style = "github-dark"
html_theme_options = {
    "source_repository": settings["git_url"] + "/",
    "source_branch": settings["branch"],
    "source_directory": f"{settings['nbs_path']}/",
}


def as_rst(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Turn a docstring, which is plain text with code in single backticks, into reStructuredText."""
    parts = re.split(r"(`[^`]+`)", "\n".join(lines))
    parts[::2] = [re.sub(r"([*|_\\])", r"\\\1", text) for text in parts[::2]]
    parts[1::2] = [f"`{code}`" for code in parts[1::2]]
    text = re.sub(r"(?m)^(?!\s*(?:- |$))(.+)\n(?=- )", r"\1\n\n", "".join(parts))  # before a list
    lines[:] = text.splitlines() + [""]


def mathml(formula: str, as_block: bool) -> str:
    """Return a formula as MathML, which a browser draws without a script and sizes brackets itself."""
    return tex2mathml(re.sub(r"\\[Bb]igg?[lr]?(?![a-z])", "", formula), as_block=as_block)


def inline_math(writer: Any, node: nodes.math) -> None:
    """Write a formula that stands in a line."""
    writer.body.append(mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def display_math(writer: Any, node: nodes.math_block) -> None:
    """Write a formula that stands by itself."""
    writer.body.append(f'<div class="formula">{mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def fit_page(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Give plotly, which is large, to the pages with a figure, and a way to the source to notebooks."""
    if "plotly-graph-div" in context.get("body", ""):
        app.add_js_file("plotly.min.js")
        app.add_js_file("figures.js", loading_method="defer")
    if not (ROOT / settings["nbs_path"] / f"{page}.ipynb").exists():
        context["page_source_suffix"] = ""
    every_page = context["toctree"]
    # Rooms, and the notebooks of this page's room: all notebooks on every page take a third of the build.
    context["toctree"] = lambda **options: every_page(**{**options, "collapse": True})


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what is special about docstrings, figures and formulas."""
    app.connect("autodoc-process-docstring", as_rst)
    app.connect("html-page-context", fit_page, priority=400)  # before the theme
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
