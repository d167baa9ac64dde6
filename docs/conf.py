"""The pages of this repository as a site: ``make docs``.

The source is the repository itself, so that links between pages are those that a reader of the repository follows.
"""

import re
import shutil
import sys
from pathlib import Path

import asyncfl_bench

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))
import rules  # noqa: E402
import settings_page  # noqa: E402

project, author, version = "asyncfl_bench", "the asyncfl_bench authors", asyncfl_bench.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc, html_theme, html_title = "README", "furo", "asyncfl_bench"
include_patterns = ["*.md", "docs/**", "results/**", "sweeps/README.md", "build/pages/**"]
exclude_patterns = ["docs/conf.py"]
myst_heading_anchors = 3
suppress_warnings = ["toc.not_included"]  # pages of results are reached from the board
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
_CONTENTS = {
    "Start": "docs/start/install docs/start/first_comparison docs/start/own_rule",
    "How-to": "docs/howto/sweeps docs/howto/tune docs/howto/bank docs/howto/decide docs/howto/cluster "
    "docs/howto/python docs/howto/data docs/howto/extend docs/howto/message_rule docs/howto/fleet "
    "docs/howto/live docs/howto/reports docs/howto/tracking docs/howto/agents",
    "Reference": "build/pages/settings docs/explanation/rules docs/explanation/time "
    "docs/reference/run_directory docs/reference/statistics",
    "Explanation": "docs/explanation/architecture docs/explanation/performance",
    "Rules": " ".join(f"results/by_rule/{name}" for name in rules.rules()),
    "Findings": "docs/findings/ace docs/findings/asyncfeded docs/findings/afbs docs/findings/fedecho "
    "docs/findings/gas docs/findings/bank docs/findings/memory docs/findings/leads "
    "results/README results/bank/README results/declared build/pages/gallery",
    "Contribute": "docs/README CONTRIBUTING RELEASE CHANGELOG",
}


def _write_pages(app):
    """Write a page of all settings, and one with the figures of all pages of results."""
    folder = ROOT / "build" / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "settings.md").write_text(settings_page.page(), encoding="utf-8")
    gallery = ["# Gallery", "The figures of all pages of results:"]
    for figure in sorted((ROOT / "results").rglob("*.png"), key=lambda path: (path.parent, path)):
        page, above = figure.with_name("README.md"), f"../../{figure.parent.relative_to(ROOT)}"
        title = f"## {figure.parent.name}"
        if page.exists():
            title = f"## [{page.read_text().partition(chr(10))[0].lstrip('# ')}]({above}/README.md)"
        gallery += [title] * (title not in gallery)
        gallery.append(f"![{figure.stem}]({above}/{figure.name})")
    (folder / "gallery.md").write_text("\n\n".join(gallery) + "\n")


def _with_contents(app, name, source):
    """Add the site's contents to the README, whose last section lists them in the repository."""
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
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _with_contents)
    app.connect("autodoc-process-docstring", _as_written)
    app.connect("build-finished", _front)
