"""The claims of all papers, each with the verdict of the page nearest to what is published."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..analysis import claims
from ..analysis.claims import JUDGED, NAME, VERDICTS, Claim, PageVerdicts, Verdict, read_verdicts
from ..analysis.statistics import describe_seeds

PART = "part of full"  # with fewer training images than the data set has
SCALES = ("full", PART, "medium", "small")
DECIDED = VERDICTS[:3]


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


@dataclass(frozen=True)
class JudgedClaim:
    """One claim with the verdict of the page nearest to what is published. ``link`` is empty, ``page`` None and
    ``others`` empty where no page judged it; others: (label, text) of decided verdicts of other readings that differ,
    and of the deciding comparison at a larger scale with too few seeds."""

    claim: Claim
    verdict: Verdict
    link: str = ""
    page: PageVerdicts | None = None
    others: tuple[tuple[str, str], ...] = ()

    @property
    def sentence(self) -> str:
        """The claim with its place and reading, marked if the abstract claims it."""
        mark = "**Abstract.** " if self.claim.abstract else ""
        readings = [("Reading", self.page and _describe_reading(self.page, self.verdict))]
        notes = "".join(f". {label}: {text}" for label, text in [*readings, *self.others] if text)
        return f"{mark}{self.claim.sentence} ({self.claim.place}){notes}"

    @property
    def measured(self) -> str:
        found, is_marked = self.verdict, self.verdict.marked_word != self.verdict.verdict
        why = found.indication if is_marked and not re.fullmatch(r"\d+ seeds?", found.indication) else ""
        offset = re.search(r"beyond (a ratio of )?[\d.]+", found.contrast)
        numbers = found.numbers + (f" {offset[0]}" if offset and found.numbers != found.reason else "")
        return "; ".join(dict.fromkeys(filter(None, (numbers, found.tally, found.reason, why))))

    @property
    def scale(self) -> str:
        return self.page.scale if self.page else ""

    @property
    def seeds(self) -> str:
        return describe_seeds(self.verdict.seeds, self.verdict.total) if self.verdict.total else ""

    @property
    def scale_text(self) -> str:
        """The scale of the page and its seeds: ``medium, 5 seeds``."""
        if not (self.scale and self.seeds):
            return self.scale
        return f"{self.scale}, {describe_seeds(self.verdict.seeds, self.verdict.total, 'seed')}"

    @property
    def item(self) -> str:
        """The item of the paper, as a link to the page that judged the claim."""
        return f"[{self.claim.item}]({self.link.partition('#')[0]})" if self.link else self.claim.item


def judge_claims(pages: dict[str, PageVerdicts], papers: Collection[str] = ()) -> list[JudgedClaim]:
    """Return each claim of ``papers`` (none given: of all), those of a paper's abstract first."""
    return [
        _judge_claim(claim, pages)
        for paper in papers or claims.papers_with_claims()
        for claim in sorted(claims.read_claims(paper), key=lambda claim: not claim.abstract)
    ]


def _judge_claim(claim: Claim, pages: dict[str, PageVerdicts]) -> JudgedClaim:
    link, verdict = verdict_of(claim, pages)
    if not link:
        return JudgedClaim(claim, verdict)
    page, others, larger = pages[link], dict[str, str](), dict[str, str]()
    for _, other, found in pages_of(claim, pages):
        if (other.profile, other.length) != (page.profile, page.length):
            continue
        if other.scale == page.scale and found.verdict in DECIDED and found.verdict != verdict.verdict:
            others[f"{_describe_reading(other, found) or other.sweep}: {found.marked_word}"] = ""
        if other.sweep == page.sweep and size_rank(other) < size_rank(page):
            seeds = describe_seeds(found.seeds, found.total, "seed")
            larger[f"Scale {other.scale}, no verdict"] = f"{found.contrast}: {found.numbers}, {seeds}"
    return JudgedClaim(claim, verdict, link, page, (("Other readings", "; ".join(others)), *larger.items()))


def _describe_reading(page: PageVerdicts, verdict: Verdict) -> str:
    """Return how the runs of a verdict read the paper, and what else differs from its standard runs."""
    length = "" if page.length == "standard" else page.length
    profile = "" if page.profile == "published" else f"profile {page.profile}"
    return ", ".join(filter(None, (claims.reading_note(page.sweep), verdict.reading, profile, length)))
