"""``results/PAPER/small/README.md``: the claims of a paper on digits in one table, and a line for each page.

A checkout has this page alone: the pages themselves, with figures and CSV files, are written when one is asked for.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd

from ...analysis.claims import NAME, read_claims, read_verdicts, to_dict
from ...errors import BenchError
from ...files import write_text
from ..judged_claims import judge_claims
from . import provenance
from .page import Page
from .write import markdown_table

SCALE = "small"
_FIRST = "# {paper}: the pages at scale small"
_TEXT = """\
Handwritten digits and a small network stand in for the paper's data and models. These numbers show how rules
behave, and decide nothing about the paper's own experiment."""
_CLAIMS = """\
A row has the verdict of the page nearest to what is published; claims.json has those of all pages."""
_PAGES = """\
The command of a line writes the whole page, with the best method of each cell, figures and CSV files, from the
archived runs."""
_LINE = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.M)
_KEYS = ("sweep", "profile", "length")


def write_overview(page: Page, folder: Path) -> Path:
    """Put the line and the verdicts of ``page`` into the overview in ``folder``, in the place of earlier ones; return
    its path.

    Raises BenchError when there is a file that is not an overview.
    """
    target, first = folder / "README.md", _FIRST.format(paper=page.spec.paper)
    text = target.read_text(encoding="utf-8") if target.exists() else first
    if not text.startswith(first):
        raise BenchError(f"{target}: not written by afl-report; choose another place with --out")
    lines = {**dict(_LINE.findall(text)), page.verdicts.section: _page_line(page)}
    folder.mkdir(parents=True, exist_ok=True)
    _write_claims(page, folder / NAME)
    table = _claim_table(page.spec.paper, folder / NAME)
    parts = [first, _TEXT]
    parts += ["## Claims", _CLAIMS, markdown_table(table, len(table.columns))] if len(table) else []
    parts += ["## Pages", _PAGES, "\n".join(f"- **{name}**: {lines[name]}" for name in sorted(lines))]
    write_text(target, "\n\n".join(parts) + "\n")
    return target


def _claim_table(paper: str, path: Path) -> pd.DataFrame:
    """Return a row a claim that a page of the overview judged."""
    if not path.exists():
        return pd.DataFrame()
    rows = judge_claims(dict(read_verdicts(path)), [paper]).set_index("id")
    rows = rows.loc[[claim.id for claim in read_claims(paper)]]
    frame = rows.assign(claim=rows["sentence"], page=rows["section"], measured=rows["details"])
    return frame.loc[rows["section"] != "", ["claim", "page", "measured", "verdict"]]


def _page_line(page: Page) -> str:
    """Return what a page is and how to write it, in one line."""
    header = provenance.header(page)[0].removesuffix(page.spec.shows).strip()
    runs = str(provenance.coverage(page)[1]).partition("\n")[0]
    return f"{page.spec.title}. {header} {runs} `{page.command}`"


def _write_claims(page: Page, target: Path) -> None:
    """Replace what the file says of this page."""
    kept = [to_dict(page) for _, page in read_verdicts(target)] if target.exists() else []
    own = to_dict(page.verdicts)
    kept = [one for one in kept if any(one[key] != own[key] for key in _KEYS)] + [own] * bool(page.claims)
    if kept:
        text = json.dumps(sorted(kept, key=lambda one: [one[key] for key in _KEYS]), indent=1, ensure_ascii=False)
        write_text(target, text + "\n")
    else:
        target.unlink(missing_ok=True)
