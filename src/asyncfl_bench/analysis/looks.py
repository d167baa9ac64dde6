"""Decisions about one number a seed, where seeds are added in looks (docs/reference/statistics.md, rules 2 to 4).

A look takes place at 3, 5, 8, 12 and 20 seeds, each with its own two-sided level. The levels sum to 5 %, so that all
looks together raise at most 5 % false alarms. Legend: s seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import pandas as pd
from scipy import special, stats

from .statistics import MIN_SEEDS, Interval, paired_interval

LEVELS: Mapping[int, float] = {3: 0.0156, 5: 0.0063, 8: 0.0072, 12: 0.0083, 20: 0.0126}  # seeds: level of the look
ALPHA = 0.05
FEW_SEEDS = 5  # fewer give an indication
_POWER = 0.8
_CERTAIN = 40.0  # scipy's distribution is inaccurate beyond it
_BEYOND_LOOKS = (25, 30, 40, 50, 60, 80, 100, 150, 200)

Question = Literal["difference", "equivalence"]


def decide_by_looks(
    by_seed: pd.Series,
    margin: float | None = None,
    question: Question = "difference",
    levels: Mapping[int, float] | None = LEVELS,
    resolution: float = 0.0,
    extra_error: float = 0.0,
) -> Interval:
    """Return the estimate and interval of all seeds, with the first decision or the state at the last look reached.

    by_seed   a number a seed, indexed by the seed; NaN is left out
    margin    of a tie, or of an equivalence [unit of the numbers]; None: no tie is possible
    question  ``difference``: is the mean zero? ``equivalence``: is it within the margin?
    levels    level of each look by its number of seeds; None: all seeds are one look at 5 %
    The words are ``larger``, ``smaller``, ``tie``, ``open`` and ``unknown`` (fewer than three seeds). p and p_tie are
    repeated p-values over all looks reached: p of "it is zero" (of an equivalence: of "it is at the margin"), p_tie of
    "it is at the margin or beyond". The interval is the repeated one: it has the level of the last look reached. ``n``
    counts the seeds of the look that gave the word, ``total`` all seeds.
    """
    known_s = by_seed.dropna().sort_index()
    total = len(known_s)
    reached = {total: ALPHA} if levels is None else {n: level for n, level in levels.items() if n <= total}
    if total < MIN_SEEDS:
        return replace(paired_interval(known_s, resolution, extra_error, margin=margin), total=total)
    first, p, p_tie, level = None, 1.0, 1.0, ALPHA
    for seeds, level in reached.items():
        found = paired_interval(known_s.iloc[:seeds], resolution, extra_error, level, margin)
        tested = found.p
        if question == "equivalence":
            found = replace(found, verdict=_equivalence_word(found, margin))
            nearer = math.copysign(float(margin or 0), found.mean)  # of the two margins
            tested = paired_interval(known_s.iloc[:seeds] - nearer, resolution, extra_error).p
        p, p_tie = min(p, tested * ALPHA / level), min(p_tie, found.p_tie * ALPHA / level)
        if first is None or first.verdict == "open":
            first = found
    assert first is not None
    shown = paired_interval(known_s, resolution, extra_error, level, margin)
    p_tie = p_tie if margin is not None else math.nan
    return replace(shown, p=p, p_tie=p_tie, n=first.n, verdict=first.verdict)


def describe_seeds(look: int, total: int, noun: str = "") -> str:
    """Return ``12 seeds, judged at 3``: all seeds, and those of the look that gave the verdict if they are fewer."""
    counted = f"{total} {noun}{'s' * (total != 1)}" if noun else str(total)
    return f"{counted}, judged at {look}" if look < total else counted


def _equivalence_word(found: Interval, margin: float | None) -> str:
    """Return the word of a look that asks whether the mean is within the margin."""
    if margin is None:
        return "open"
    if found.low > margin or found.high < -margin:
        return "larger" if found.low > margin else "smaller"
    return "tie" if -margin <= found.low and found.high <= margin else "open"


def seeds_needed(
    mean: float, deviation: float, margin: float | None, question: Question = "difference", tests: int = 1
) -> int | None:
    """Return about how many seeds decide at the measured effect with 80 % power; None where 200 do not.

    mean, deviation  of one number a seed; a look uses its own level, more than 20 seeds that of the last look
    tests            among which Bonferroni's method corrects, which bounds Holm's
    """
    if math.isnan(mean) or math.isnan(deviation):
        return None
    for seeds in (*LEVELS, *_BEYOND_LOOKS):
        level = LEVELS.get(seeds, ALPHA / 4) / tests
        critical = float(special.stdtrit(seeds - 1, 1 - level / 2))
        distances = [abs(mean) if question == "difference" else abs(mean) - (margin or 0)]
        distances += [] if margin is None else [margin - abs(mean)]
        if deviation == 0:
            return MIN_SEEDS if max(distances) > 0 else None
        furthest = min(max(distances) * math.sqrt(seeds) / deviation, _CERTAIN)
        if float(stats.nct.sf(critical, seeds - 1, furthest)) >= _POWER:
            return seeds
    return None
