"""The frame of all claims, each with the verdict of the page nearest to the paper's setting."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis import claims
from ..analysis.claims import JUDGED, NAME, PART, VERDICTS, Claim, PageVerdicts, Verdict, read_verdicts
from ..analysis.names import algorithm_label, rule_classes
from ..analysis.published import read_published
from ..analysis.statistics import describe_seeds

SCALES = ("full", PART, "medium", "small")
DECIDED = VERDICTS[:3]
_PROFILES = {"fair": "searched step sizes", "released": "settings of the released code"}
_Found = tuple[str, PageVerdicts, Verdict]  # link to a page, the page, its verdict of a claim


def read_pages(results: Path) -> dict[str, PageVerdicts]:
    """Return the verdicts of each page below ``results`` by its link, without smoke tests."""
    pages: dict[str, PageVerdicts] = {}
    for path in sorted(results.rglob(NAME)):
        link = (path.parent / "README.md").relative_to(results).as_posix()
        pages |= {link + anchor: page for anchor, page in read_verdicts(path)}
    return {link: page for link, page in pages.items() if page.scale != "smoke"}


def judge_claims(pages: Mapping[str, PageVerdicts], papers: Collection[str] = ()) -> pd.DataFrame:
    """Return a row for each claim of ``papers`` (none given: of all), those of a paper's abstract first.

    Board, replication report and overview of a paper show columns of this frame:
    key, paper, id, board, sentence   of the claim; item, linked_item: with its passage of the paper
    rules          choices of ``algorithm`` that it compares
    claim          sentence with the setup of its runs. It names decided verdicts of other setups that differ.
    word, verdict  the verdict, and in bold letters with its mark; is_indication
    reading, details, measure, reason   of the verdict; kinds: of reasons if it is inconclusive
    measured       of the verdict, with the deciding comparison at a larger scale with too few seeds
    link, section, scale, scale_text   of the page; empty texts where no page judged the claim
    """
    rows = [
        _judge_claim(claim, pages)
        for paper in papers or claims.papers_with_claims()
        for claim in sorted(claims.read_claims(paper), key=lambda claim: not claim.abstract)
    ]
    return pd.DataFrame(rows)


def _judge_claim(claim: Claim, pages: Mapping[str, PageVerdicts]) -> dict[str, Any]:
    found = _pages_of(claim, pages)
    of_pages = [one.reason for page in pages.values() for one in page.verdicts if one.claim == claim.key]
    why = claim.blocked or claim.not_run or next(filter(None, of_pages), "no runs")
    unjudged = Verdict(claim.key, "blocked" if claim.blocked else "not run", why)
    link, page, verdict = found[0] if found else ("", None, unjudged)
    notes, larger = _describe_others(found) if page else ([], [])
    mark = "**Abstract.** " if claim.abstract else ""
    passage = "".join(f", {one}" for one in claim.passage.split(", ") if one != claim.item)
    scale = page.scale if page else ""
    with_seeds = f"{scale}, {describe_seeds(verdict.seeds, verdict.total, 'seed')}" if verdict.total else scale
    return {
        **{key: getattr(claim, key) for key in ("key", "paper", "id", "board", "sentence")},
        "item": claim.item + passage,
        "rules": _rules_of_claim(claim),
        "claim": f"{mark}{claim.sentence}" + "".join(f". {note}" for note in notes),
        "word": verdict.verdict,
        "verdict": f"**{verdict.marked_word}**",
        "is_indication": verdict.marked_word != verdict.verdict,
        "reading": verdict.reading,
        "measured": ". ".join([_describe_measured(verdict), *larger]),
        "details": verdict.details_text,
        "measure": verdict.yardstick,
        "reason": verdict.reason,
        "kinds": reasons_of(verdict) if verdict.verdict == "inconclusive" else [],
        "link": link,
        "linked_item": (f"[{claim.item}]({link.partition('#')[0]})" if link else claim.item) + passage,
        "section": page.section if page else "",
        "scale": scale,
        "scale_text": with_seeds,
    }


def _pages_of(claim: Claim, pages: Mapping[str, PageVerdicts]) -> list[_Found]:
    """Return pages that judged the claim, the nearest to the paper's setting first: by sweep, profile, length, scale.

    Of one sweep, profile and length, a page with a comparison below the first look comes after the pages without one,
    except those of ``small``.
    """
    found = [
        (link, page, verdict)
        for link, page in pages.items()
        for verdict in page.verdicts
        if verdict.claim == claim.key and verdict.verdict in JUDGED
    ]

    def distance(entry: _Found) -> tuple:
        link, page, verdict = entry
        far = (page.sweep != claim.sweeps[0], page.profile != "published", page.length != "standard")
        lacks_seeds = "a test needs" in verdict.reason
        return *far, page.scale == "small", lacks_seeds, size_rank(page), link

    return sorted(found, key=distance)


def size_rank(page: PageVerdicts) -> int:
    """Return the rank of the page's scale: 0 for the largest."""
    return SCALES.index(page.scale) if page.scale in SCALES else len(SCALES)


def reasons_of(verdict: Verdict) -> list[str]:
    """Return the kinds of reason of an inconclusive verdict, without its counts and names."""
    texts = [
        re.sub(r" \(\d+ of \d+( open)?\)", "", text).partition(":")[0] for text in verdict.reason.split("; ") if text
    ]
    kinds = {"a test needs": "fewer than 3 seeds", "not after Holm": "contrary, but not after Holm's correction"}
    return [next((kind for words, kind in kinds.items() if words in text), text) for text in texts]


def _describe_measured(verdict: Verdict) -> str:
    """Return numbers, tally and reason of a verdict, and why it is only preliminary, unless seeds are few."""
    is_few = re.fullmatch(r"\d+ seeds?", verdict.indication)
    why = "" if is_few or verdict.marked_word == verdict.verdict else verdict.indication
    named = f"{verdict.contrast}: " if verdict.contrast and verdict.numbers != verdict.reason else ""
    texts = (named + verdict.numbers, verdict.tally * (verdict.agree < verdict.contrasts), verdict.reason, why)
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _describe_others(found: list[_Found]) -> tuple[list[str], list[str]]:
    """Return the setup of the nearest page and other setups that differ; and larger scales with too few seeds."""
    (_, page, verdict), others, larger = found[0], dict[str, None](), dict[str, str]()
    for _, other, of_other in found:
        if (other.profile, other.length) != (page.profile, page.length):
            continue
        if other.scale == page.scale and of_other.verdict in DECIDED and of_other.verdict != verdict.verdict:
            others[f"With {_describe_reading(other, of_other) or other.sweep}: {of_other.marked_word}"] = None
        if other.sweep == page.sweep and size_rank(other) < size_rank(page):
            seeds = describe_seeds(of_other.seeds, of_other.total, "seed")
            scale = f"Scale {other.scale}, {seeds}, no verdict"
            larger[scale] = f"{scale}: {of_other.contrast}: {of_other.numbers}"
    setup = _describe_reading(page, verdict)
    return [*[f"Setup: {setup}"] * bool(setup), *others], [*larger.values()]


def _describe_reading(page: PageVerdicts, verdict: Verdict) -> str:
    """Return the runs' reading of the paper, and further differences from the paper's standard runs."""
    length = "" if page.length == "standard" else f"{page.length} runs"
    profile = "" if page.profile == "published" else _PROFILES.get(page.profile, f"profile {page.profile}")
    return ", ".join(filter(None, (claims.reading_note(page.sweep, page.profile), verdict.reading, profile, length)))


def _rules_of_claim(claim: Claim) -> list[str]:
    """Return the choices of ``algorithm`` that the claim compares, in the order of its comparison, or else names."""
    decide, known = claim.decide, rule_classes()
    if not decide:
        return [rule for rule in known if re.search(rf"\b{re.escape(algorithm_label(rule))}\b", claim.sentence)]
    expected = decide.get("expected", {})
    groups = [group for group in decide.get("groups", ()) if group != "rest"]
    named = [*itertools.chain(*groups, decide.get("series", ()), decide.get("others", ()))]
    if isinstance(expected, Mapping) and "file" in expected:
        named += read_published(claim.paper, expected["file"].removesuffix(".csv"))["algorithm"].unique().tolist()
    elif isinstance(expected, Mapping):
        named += expected
    found = []
    for one in named:
        settings = one if isinstance(one, Mapping) else claim.series.get(one, {"algorithm": one})
        rule = str(settings.get("algorithm", ""))
        found.append(next((name for name in (rule, rule.partition("_")[0]) if name in known), ""))
    return [*dict.fromkeys(filter(None, found))]
