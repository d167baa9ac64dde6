"""What the pages below a folder say of the papers' claims, and which of them a claim is judged by."""

from __future__ import annotations

import re
from pathlib import Path

from .claims import JUDGED, NAME, Claim, PageVerdicts, Verdict, read_verdicts

PART = "part of full"  # with fewer training images than the data set has
SCALES = ("full", PART, "medium", "small")


def read_pages(results: Path) -> dict[str, PageVerdicts]:
    """Link to a page, relative to ``results`` -> what it says of its claims; a smoke test says nothing of them."""
    pages: dict[str, PageVerdicts] = {}
    for path in sorted(results.rglob(NAME)):
        link = (path.parent / "README.md").relative_to(results).as_posix()
        pages |= {link + place: page for place, page in read_verdicts(path)}
    return {link: page for link, page in pages.items() if page.scale != "smoke"}


def pages_of(claim: Claim, pages: dict[str, PageVerdicts]) -> list[tuple[str, PageVerdicts, Verdict]]:
    """Pages that judged the claim on runs, the nearest to what is published first: by sweep, profile, length, scale.

    Of one sweep, profile and length, a page with a comparison below the first look comes after the pages without one,
    except those of ``small``.
    """
    found = [
        (link, page, verdict)
        for link, page in pages.items()
        for verdict in page.verdicts
        if verdict.claim == claim.key and verdict.verdict in JUDGED
    ]

    def distance(entry: tuple[str, PageVerdicts, Verdict]) -> tuple:
        link, page, verdict = entry
        far = (page.sweep != claim.readings[0], page.profile != "published", page.length != "standard")
        lacks_seeds = "the first look needs" in verdict.reason
        return *far, page.scale == "small", lacks_seeds, size_rank(page), link

    return sorted(found, key=distance)


def size_rank(page: PageVerdicts) -> int:
    """Return the rank of the page's scale: 0 for the largest."""
    return SCALES.index(page.scale) if page.scale in SCALES else len(SCALES)


def verdict_of(claim: Claim, pages: dict[str, PageVerdicts]) -> tuple[str, Verdict]:
    """The page that the row is about and its verdict; no link where no page has judged the claim."""
    if found := pages_of(claim, pages):
        return found[0][0], found[0][2]
    if claim.blocked or claim.not_run:
        return "", Verdict(claim.key, "blocked" if claim.blocked else "not run", claim.blocked or claim.not_run)
    of_pages = [one.reason for page in pages.values() for one in page.verdicts if one.claim == claim.key]
    return "", Verdict(claim.key, "not run", next(filter(None, of_pages), "no runs"))


def reasons_of(verdict: Verdict) -> list[str]:
    """Return the kinds of reason of an inconclusive verdict, without its counts and names."""
    texts = [re.sub(r" \(\d+ of \d+\)", "", text).partition(":")[0] for text in verdict.reason.split("; ") if text]
    kinds = {"the first look needs": "fewer than 3 seeds", "against the claim alone": "decided alone, not after Holm"}
    return [next((kind for words, kind in kinds.items() if words in text), text) for text in texts]
