"""The claims of all papers, each with the verdict of the page nearest to what is published."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from ..analysis import claims
from ..analysis.claims import VERDICTS, Claim, PageVerdicts, Verdict
from ..analysis.looks import describe_seeds
from ..analysis.verdicts import pages_of, size_rank, verdict_of

DECIDED = VERDICTS[:3]


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
