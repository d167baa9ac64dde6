"""The pages of this repository as a site: ``make docs``.

The source is the repository itself, so that links between pages are those that a reader of the repository follows.
"""

import re
import shutil
from pathlib import Path

import asyncfl_bench

project, author, version = "asyncfl_bench", "the asyncfl_bench authors", asyncfl_bench.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc, html_theme, html_title = "README", "furo", "asyncfl_bench"
include_patterns = ["*.md", "docs/**", "results/**"]
exclude_patterns = ["docs/conf.py"]
myst_heading_anchors = 3
suppress_warnings = ["toc.not_included"]  # pages of results are reached from the board
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
_CONTENTS = {
    "Start": "docs/start/install docs/start/first_comparison docs/start/first_sweep docs/start/own_rule",
    "How-to": "docs/howto/sweeps docs/howto/tune docs/howto/decide docs/howto/cluster docs/howto/python "
    "docs/howto/data docs/howto/extend docs/howto/package docs/howto/message_rule docs/howto/fleet "
    "docs/howto/reports docs/howto/tracking docs/howto/cite",
    "Reference": "docs/reference/command_line docs/reference/settings docs/reference/algorithms docs/reference/delays "
    "docs/reference/run_directory docs/reference/statistics docs/reference/claims docs/reference/api",
    "Explanation": "docs/explanation/clocks docs/explanation/time docs/explanation/rules docs/explanation/unlabelled "
    "docs/explanation/architecture docs/explanation/performance",
    "Findings": "docs/findings/ace docs/findings/asyncfeded docs/findings/afbs docs/findings/fedecho "
    "docs/findings/gas docs/findings/rules docs/findings/declared results/README",
    "Contribute": "docs/README CONTRIBUTING RELEASE CHANGELOG",
}


def _with_contents(app, name, source):
    """The site's contents, which readers of the repository have as the README's last section."""
    if name == root_doc:
        for caption, pages in _CONTENTS.items():
            lines = ["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages.split(), "```", ""]
            source[0] += "\n\n" + "\n".join(lines)


def _as_written(app, what, name, of, options, lines):
    """Our docstrings align names and their meaning in columns: a paragraph that does stays as it is written."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    found = []
    for paragraph in paragraphs:
        columns = re.search(r"^\s|\S {2,}\S|^\s*>>>", paragraph, re.M)
        own = paragraph.split("\n")
        found += ["::", "", *(f"   {line}" for line in own), ""] if columns else [*own, ""]
    lines[:] = found


def _front(app, error):
    if error is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app):
    app.connect("source-read", _with_contents)
    app.connect("autodoc-process-docstring", _as_written)
    app.connect("build-finished", _front)
