"""``results/PAPER/small/README.md``: all pages of a paper on digits in one, each with its first table and its claims.

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
from .write import Part, Table, markdown_table

SCALE = "small"
_FIRST = "# {paper}: the pages at scale small"
_TEXT = """\
Handwritten digits and a small network stand in for the paper's data and models. These numbers show how rules
behave, and decide nothing about the paper's own experiment. A section has the main table of a page and its claims. The
command of a section writes the whole page, with figures and CSV files, from the archived runs."""
_MEASURED = ("accuracy", "measured")  # how tables of what the pages are about are called
_LAST = ("claims", "claims_by_reading")
_KEYS = ("sweep", "profile", "length")


def write_overview(page: Page, folder: Path) -> Path:
    """Put the section of ``page`` into the overview in ``folder``, in the place of an earlier one; return its path.

    Raises BenchError when there is a file that is no overview.
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
    parts = page.parts
    numbered = enumerate(parts)
    tables = {part.name: place for place, part in numbered if isinstance(part, Table) and part.shown is not None}
    first = [name for name in tables if name.startswith(_MEASURED)] or [name for name in tables if name not in _LAST]
    lines = [f"{page.title}. {provenance.header(page)[0]}"]
    for name in (*first[:1], *(name for name in tables if name.startswith("claims"))):
        lines += _add_caption(parts, tables[name])
    runs = str(provenance.coverage(page)[1]).partition("\n")[0]
    return "\n\n".join([*lines, f"{runs} The whole page: `{page.command}`."])


def _add_caption(parts: list[Part], place: int) -> list[str]:
    table, caption = parts[place], parts[place - 1]
    assert isinstance(table, Table) and table.shown is not None
    captions = [caption] if isinstance(caption, str) and not caption.startswith("#") else []
    return [*captions, markdown_table(table.shown, table.words)]


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
