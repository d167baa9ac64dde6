"""Judging claims: the contrasts of one page's runs become a verdict, with Holm's correction over the claim.

Repeated intervals over seeds decide (docs/reference/statistics.md, rules 0 to 4 and 6). ``claims.py`` explains the
verdicts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from .claim_comparisons import ClaimQuery
from .claims import Claim, Verdict, read_claims, seen_seeds
from .comparison import NEVER_REACHED
from .contrasts import Contrast
from .measures import RunMeasures
from .names import cell_label
from .statistics import ALPHA, FEW_SEEDS, Interval, adjust_holm

_NAMED = 3  # comparisons without runs that a reason names


@dataclass(frozen=True)
class Judgement:
    """A verdict with the comparisons that led to it.

    first_seed      the first that all comparisons can use, see ``Contrast.counting_seeds``
    is_provisional  a comparison uses seen seeds that do not count
    """

    claim: Claim
    verdict: Verdict
    contrasts: tuple[Contrast, ...]
    first_seed: int = 0
    is_provisional: bool = False

    @property
    def is_decided(self) -> bool:
        """Return True if no seed can change the verdict."""
        return self.verdict.verdict in ("holds", "fails", "tie") and not self.is_provisional


def evaluate_claims(
    sweep: str, measured: RunMeasures, scale: str = "", readings: Sequence[str] = (), most: float = math.inf
) -> list[Judgement]:
    """Return the judgement of every claim that ``sweep`` is a reading of, in the order of the paper's file.

    A claim without runs is named by its item's own sweep only.
    scale     of the runs; it decides which seeds were seen
    readings  keys of the cells whose values read the paper differently: a claim has a verdict for each
    most      of the seeds that count, the lowest; the others are left out
    """
    found = []
    for claim, reading, asked in _read_differently(sweep, measured, readings):
        judged = judge_claim(asked, measured, seen_seeds(sweep, scale), most)
        found.append(replace(judged, claim=claim, verdict=replace(judged.verdict, reading=reading)))
    return [one for one in found if one.verdict.verdict != "not run" or sweep == one.claim.sweeps[0]]


def experiments_of_claims(
    sweep: str, planned: RunMeasures, readings: Sequence[str] = ()
) -> dict[tuple[str, str], frozenset[str]]:
    """Return (claim, reading) -> the experiments among ``planned`` that it compares. Nothing is measured."""
    return {
        (claim.key, reading): ClaimQuery(asked, planned).experiments()
        for claim, reading, asked in _read_differently(sweep, planned, readings)
        if claim.decide
    }


def claims_of_sweep(sweep: str) -> list[Claim]:
    """Return the claims that the sweep is a reading of."""
    return [claim for claim in read_claims(sweep.partition("/")[0]) if sweep in claim.sweeps]


def _read_differently(sweep: str, measured: RunMeasures, readings: Sequence[str]) -> Iterator[tuple[Claim, str, Claim]]:
    """Yield each claim with each reading of the page, and the claim about the runs of that reading alone."""
    keys = list(readings)
    combinations = measured.placed.runs[keys].drop_duplicates().itertuples(index=False, name=None) if keys else [()]
    read = {cell_label(keys, values): dict(zip(keys, values, strict=True)) for values in combinations}
    for claim, (reading, where) in itertools.product(claims_of_sweep(sweep), read.items()):
        yield claim, reading, replace(claim, where={**claim.where, **where})


def judge_claim(claim: Claim, measured: RunMeasures, seen: int = 0, most: float = math.inf) -> Judgement:
    """Return the judgement of a page's runs on ``claim``, which the page's sweep is a reading of.

    seen, most   see ``Contrast.counting_seeds``
    """
    query = ClaimQuery(claim, measured)
    contrasts, first_seed = query.contrasts(), seen if claim.changed else 0
    if not any(len(contrast.by_seed) for contrast in contrasts):
        diverged = any(contrast.no_answer == "partner diverged" for contrast in contrasts)
        absent = "partner diverged" if diverged else "no runs"
        return Judgement(claim, Verdict(claim.key, "not run", absent), tuple(contrasts), first_seed)
    counting = [contrast.counting_seeds(seen, claim.changed, most) for contrast in contrasts]
    contrasts, first_seed = [one for one, _, _ in counting], max(first for _, first, _ in counting)
    indication = next((why for _, _, why in counting if why), "")
    is_provisional = bool(indication)
    verdict = _verdict_of(claim.key, contrasts, query.unit)
    fewest = min(len(contrast.by_seed.dropna()) for contrast in contrasts if len(contrast.by_seed))
    if fewest < FEW_SEEDS and not claim.decide.get("counted") and not indication:
        indication = f"{fewest} seed{'s' * (fewest != 1)}"
    return Judgement(claim, replace(verdict, indication=indication), tuple(contrasts), first_seed, is_provisional)


def _verdict_of(key: str, contrasts: Sequence[Contrast], unit: str) -> Verdict:
    """Return the verdict of comparisons, of which some have runs."""
    sides = [contrast.side for contrast in contrasts]
    found = [contrast.interval for contrast in contrasts]
    # a comparison without p counts in Holm's correction and is never rejected
    known = [(math.nan, math.nan) if one.no_answer else (one.interval.p, one.interval.p_tie) for one in contrasts]
    contrary, tied = map(adjust_holm, pd.DataFrame(known).fillna(1.0).to_numpy().T)
    counted = [contrast.counted for contrast in contrasts]
    fails = [i for i, side in enumerate(sides) if side == "against" and (counted[i] or contrary[i] < ALPHA)]
    ties = [i for i, side in enumerate(sides) if side == "tie" and tied[i] < ALPHA]
    is_open = [i for i, side in enumerate(sides) if side != "agree"]
    reasons: list[str] = []
    if fails:
        verdict, chosen = "fails", min(fails, key=lambda i: (found[i].p, i))
    elif ties:
        verdict, chosen = "tie", min(ties, key=lambda i: (found[i].p_tie, i))
    else:
        verdict = "inconclusive" if is_open else "holds"
        present = [i for i in range(len(contrasts)) if len(contrasts[i].by_seed)] or [0]
        chosen = min(present, key=lambda i: (sides[i] == "agree", contrasts[i].distance, i))
        reasons = _reasons([contrasts[i] for i in is_open])
    deciding, interval = contrasts[chosen], found[chosen]
    if verdict == "holds" and deciding.question == "difference" and interval.high <= (deciding.margin or 0):
        reasons = ["by less than the margin of a tie"]
    if deciding.no_answer == NEVER_REACHED:  # its number compares ends of budgets
        interval = Interval(math.nan, n=interval.n, total=interval.total)
    numbers = interval.mean, interval.low, interval.high, interval.p_tie if verdict == "tie" else interval.p
    # four digits, so that machines that round differently write the same bytes
    mean, low, high, p = (float(f"{value:.4g}") for value in numbers)
    return Verdict(
        key,
        verdict,
        "; ".join(reasons),
        contrast=", ".join(filter(None, (deciding.name, deciding.cell))),
        difference=mean,
        low=low,
        high=high,
        p=p,
        seeds=interval.n,
        total=interval.total,
        unit=unit,
        contrasts=len(contrasts),
        agree=sides.count("agree"),
        against=sides.count("against"),
        ties=sides.count("tie"),
        yardstick=deciding.yardstick,
    )


def _reasons(contrasts: Sequence[Contrast]) -> list[str]:
    """Return the reasons why comparisons are open, most frequent first, with counts if there are several reasons.

    Comparisons that need more seeds have one reason, with the largest number. A comparison that its own interval
    decides is open because of Holm's correction, and a decided partner waits for the others.
    """
    is_open = Counter(contrast.reason for contrast in contrasts if contrast.side == "open")
    needs = {reason: count for reason, count in is_open.items() if reason.startswith("needs")}
    counts = [(reason, count) for reason, count in is_open.most_common() if reason not in needs]
    if needs:
        most = max(needs, key=lambda reason: int(re.sub(r"\D", "", reason)) + 1000 * ("more" in reason))
        counts.append((most, sum(needs.values())))
    reasons = [
        reason + (f" ({count} of {len(contrasts)} open)" if count < len(contrasts) else "") for reason, count in counts
    ]
    if corrected := len(contrasts) - is_open.total():
        noun = "comparison" + "s" * (corrected > 1)
        reasons.append(f"{corrected} {noun} contrary, but not after Holm's correction")
    without_runs = (contrast for contrast in contrasts if contrast.reason == "runs missing")
    missing = [*dict.fromkeys(_short_name(one) + f" ({one.cell})" * bool(one.cell) for one in without_runs)]
    named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    return [f"{reason}: {named}" if reason.startswith("runs missing") else reason for reason in reasons]


def _short_name(contrast: Contrast) -> str:
    """Return the name of a comparison without its measure, published number and margin."""
    return re.sub(r"^.* the published \S+ for |^time to [^,]+, |, margin ± .*$", "", contrast.name)
