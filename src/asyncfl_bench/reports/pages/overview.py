"""``results/PAPER/small/README.md``: all pages of a paper on digits in one, each with its verdicts and best methods.

A checkout has this page alone: the pages themselves, with figures and CSV files, are written when one is asked for.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ...analysis.claims import NAME, to_dict
from ...errors import BenchError
from ...files import read_json, write_text
from . import provenance
from .page import Page
from .write import MOST_ROWS, Table, markdown_table

SCALE = "small"
_FIRST = "# {paper}: the pages at scale small"
_TEXT = """\
Handwritten digits and a small network stand in for the paper's data and models. These numbers show how rules
behave, and decide nothing about the paper's own experiment. A section has the verdicts of a page and the best method of
each cell. The command of a section writes the whole page, with figures and CSV files, from the archived runs."""
_SHOWN = ("claims", "claims_by_reading", "best")  # the tables of a section
_KEYS = ("sweep", "profile", "length")


def write_overview(page: Page, folder: Path) -> Path:
    """Put the section of ``page`` into the overview in ``folder``, in the place of an earlier one; return its path.

    Raises BenchError when there is a file that is not an overview.
    """
    target, first = folder / "README.md", _FIRST.format(paper=page.spec.paper)
    text = target.read_text(encoding="utf-8") if target.exists() else first
    if not text.startswith(first):
        raise BenchError(f"{target}: not written by afl-report; choose another place with --out")
    sections = {title: body.strip("\n") for title, _, body in map(_halves, re.split(r"^## ", text, flags=re.M)[1:])}
    sections[page.verdicts.section] = _section_text(page)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [first, _TEXT, *(f"## {title}\n\n{sections[title]}" for title in sorted(sections))]
    write_text(target, "\n\n".join(parts) + "\n")
    _write_claims(page, folder / NAME)
    return target


def _halves(section: str) -> tuple[str, str, str]:
    return section.partition("\n")


def _section_text(page: Page) -> str:
    """Return the section of a page in an overview."""
    tables = [part for part in page.parts if isinstance(part, Table) and part.shown is not None]
    first = [table for table in tables if table.name in _SHOWN] or tables[:1]
    lines = [f"{page.title}. {provenance.header(page)[0].removesuffix(page.spec.shows)}".strip()]
    lines += [markdown_table(table.shown[:MOST_ROWS], table.words) for table in first if table.shown is not None]
    runs = str(provenance.coverage(page)[1]).partition("\n")[0]
    return "\n\n".join([*lines, f"{runs} The whole page: `{page.command}`."])


def _write_claims(page: Page, target: Path) -> None:
    """Replace what the file says of this page."""
    kept = read_json(target) if target.exists() else []
    own = to_dict(page.verdicts)
    kept = [one for one in kept if any(one[key] != own[key] for key in _KEYS)] + [own] * bool(page.claims)
    if kept:
        text = json.dumps(sorted(kept, key=lambda one: [one[key] for key in _KEYS]), indent=1, ensure_ascii=False)
        write_text(target, text + "\n")
    else:
        target.unlink(missing_ok=True)
