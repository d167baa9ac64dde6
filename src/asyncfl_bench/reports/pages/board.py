"""``results/README.md``: every claim of every paper in one table, from the ``claims.json`` beside the pages."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...analysis import claims
from ...analysis.claims import VERDICTS, Claim, PageVerdicts, Verdict
from ...analysis.verdicts import pages_of, read_pages, verdict_of
from ...files import write_text
from .provenance import RUNS_BY

_INTRODUCTION = """# What the papers claim and what the runs say

*published*: what the paper says. *measured*: the difference that decides, more than zero as claimed, with its 95 %
interval over seeds (Student's t). **holds**: every comparison's interval excludes the contrary. **fails**: one excludes
the claim (Holm). **undecided**: neither. *scale*: `full` is the paper's data, model and size, `medium` its data with a
small network or a part of its time, `part of full` all of it but some training images, `small` handwritten digits: only
`full` decides about the paper's own experiment.
"""


def write_board(results: Path) -> Path:
    """Writes ``results/README.md`` anew from all pages below ``results``; the same pages give the same bytes."""
    target = results / "README.md"
    pages = read_pages(results)
    text = board_text(pages) + _list_pages_without_runs(results)
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        results.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    return target


def _list_pages_without_runs(results: Path) -> str:
    """Return a line of links to pages without verdicts, whose runs were not kept; empty if there are none."""
    pages = [
        page for page in sorted(results.glob("*/*/*/README.md")) if RUNS_BY not in page.read_text(encoding="utf-8")
    ]
    folders = [page.parent.relative_to(results).as_posix() for page in pages]
    links = ", ".join(f"[{folder}]({folder}/README.md)" for folder in folders)
    return (
        f"\nPages of an earlier version, whose runs were not kept, and so without verdicts: {links}.\n" if links else ""
    )


def board_text(pages: dict[str, PageVerdicts]) -> str:
    """Return the text of the board: one row an entry of the claims files, its parts (data sets) together."""
    rows, counts = [], Counter[str]()
    for paper in claims.papers_with_claims():
        for _, group in itertools.groupby(claims.read_claims(paper), key=lambda claim: claim.group):
            parts = list(group)
            found = [verdict_of(claim, pages) for claim in parts]
            counts.update(verdict.verdict for _, verdict in found)
            rows.append(_board_row(parts, found, pages))
    total = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    header = ["item", "published", "measured", "verdict", "scale", "link", "other readings"]
    lines = [header, ["---"] * len(header), *rows]
    table = "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
    return f"{_INTRODUCTION}\n{sum(counts.values())} claims: {total}.\n\n{table}\n"


def summary_table(pages: dict[str, PageVerdicts]) -> str:
    """Return a row a paper: its claims by verdict, and the scales at which runs have judged them."""
    lines = [["paper", "claims", *VERDICTS, "judged at"], ["---", *["---:"] * (1 + len(VERDICTS)), "---"]]
    for paper in claims.papers_with_claims():
        found = [verdict_of(claim, pages) for claim in claims.read_claims(paper)]
        counts = Counter(verdict.verdict for _, verdict in found)
        scales = Counter(pages[link].scale for link, _ in found if link)
        by_scale = ", ".join(f"{scale} {count}" for scale, count in scales.most_common())
        numbers = [len(found), *(counts[word] for word in VERDICTS)]
        lines.append([claims.paper_title(paper), *map(str, numbers), by_scale])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _board_row(
    parts: Sequence[Claim], found: Sequence[tuple[str, Verdict]], pages: dict[str, PageVerdicts]
) -> list[str]:
    """Return the cells of the row of one entry of the claims files."""
    first = parts[0]
    links = dict.fromkeys(link for link, _ in found if link)
    scales = dict.fromkeys(_scale_text(pages[link], verdict) for link, verdict in found if link)
    others = [
        text for claim, (_, main) in zip(parts, found, strict=True) for text in _other_readings(claim, main, pages)
    ]
    return [
        f"{claims.paper_title(first.paper)}, {first.item}",
        f"{first.statement} ({first.place})",
        "; ".join(_texts_by_part(parts, [_measured_text(verdict) for _, verdict in found])),
        "; ".join(_texts_by_part(parts, [f"**{verdict.verdict}**" for _, verdict in found])),
        ", ".join(scales),
        ", ".join(f"[page]({link})" for link in links),
        " · ".join(others),
    ]


def _texts_by_part(parts: Sequence[Claim], texts: Sequence[str]) -> Iterator[str]:
    """Yield each different text once, after the words of its parts if several texts differ."""
    for text in dict.fromkeys(text for text in texts if text):
        words = [claim.word for claim, own in zip(parts, texts, strict=True) if own == text]
        yield f"{', '.join(words)}: {text}" if len(words) < len(parts) else text


def _measured_text(verdict: Verdict) -> str:
    """Return the numbers and the tally of a verdict."""
    return "; ".join(filter(None, (verdict.numbers, verdict.tally)))


def _scale_text(page: PageVerdicts, verdict: Verdict) -> str:
    """Return the scale of a page, with the number of seeds if it is known."""
    return f"{page.scale}, {verdict.seeds} seed{'s' * (verdict.seeds != 1)}" if verdict.seeds else page.scale


def _other_readings(claim: Claim, main: Verdict, pages: dict[str, PageVerdicts]) -> Iterator[str]:
    """Yield a link with the verdict of each other page that judged the claim."""
    for link, page, verdict in pages_of(claim, pages):
        if verdict is not main:
            words = [claims.reading_note(page.sweep), *([page.profile] if page.profile != "published" else [])]
            words += [page.length] * (page.length != "standard") + [claim.word, verdict.reading]
            yield f"[{', '.join(filter(None, words)) or page.scale}]({link}): {verdict.verdict}"
