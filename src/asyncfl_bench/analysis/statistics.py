"""Intervals, tests and looks over seeds (docs/reference/statistics.md).

Accuracies are in percent, differences in points. Seeds are the sample. Runs of one seed share clients' data, initial
model and client speeds, so algorithms are compared seed by seed. With fewer than three seeds intervals and p are NaN
and the verdict is ``unknown``.

A look takes place at 3, 5, 8, 12 and 20 seeds, each with its own two-sided level. The levels sum to 5 %, so that all
looks together raise at most 5 % false alarms.

Legend: s seeds, c cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from scipy import special, stats

CONFIDENCE = 0.95
MIN_SEEDS = 3
MIN_BOOTSTRAP = 5  # seeds
DRAWS = 2000  # of a bootstrap
Floats = Sequence[float] | np.ndarray | pd.Series
LEVELS: Mapping[int, float] = {3: 0.0156, 5: 0.0063, 8: 0.0072, 12: 0.0083, 20: 0.0126}  # seeds: level of the look
ALPHA = 0.05
FEW_SEEDS = 5  # fewer give an indication
_POWER = 0.8
_CERTAIN = 40.0  # scipy's distribution is inaccurate beyond it
_BEYOND_LOOKS = (25, 30, 40, 50, 60, 80, 100, 150, 200)
Question = Literal["difference", "equivalence"]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its interval, and a verdict with the two-sided p of "it is zero".

    verdict   larger | smaller | tie (the interval is inside a margin) | open | unknown (fewer than three seeds)
    p_tie     of "it is at the margin or beyond", doubled, so that it is below the level if the interval is inside
    error     standard error of the mean
    total     seeds of the mean and the interval; n: the first of them, which gave the verdict
    """

    mean: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    n: int = 0
    verdict: str = "unknown"
    p_tie: float = math.nan
    error: float = math.nan
    total: int = 0


def paired_interval(
    differences: Floats,
    resolution: float = 0.0,
    extra_error: float = 0.0,
    level: float = 1 - CONFIDENCE,
    margin: float | None = None,
) -> Interval:
    """Return Student's interval and p of the mean of differences seed by seed; a NaN has no partner and is left out.

    level        two-sided: the interval has the confidence 1 - level
    margin       of a tie [unit of the differences]
    resolution   step of one value, 100 / test samples for an accuracy [points]. Differences on such a grid can agree by
                 rounding alone; two rounding errors have variance resolution^2 / 6, so none smaller is used.
    extra_error  standard error of what all of them are compared with, such as ``sampling_error`` of a printed accuracy

    >>> found = paired_interval([1.0, 2.0, 3.0])
    >>> round(found.low, 2), round(found.high, 2), round(found.p, 3), found.verdict
    (-0.48, 4.48, 0.074, 'open')
    """
    values_s = _drop_missing(differences)
    n = len(values_s)
    mean = float(values_s.mean()) if n else math.nan
    if n < MIN_SEEDS:
        return Interval(mean, n=n, total=n)
    error = math.hypot(math.sqrt(max(float(values_s.var(ddof=1)), resolution**2 / 6) / n), extra_error)
    half = float(special.stdtrit(n - 1, 1 - level / 2)) * error
    p = min(1.0, 2 * _tail(abs(mean), error, n))
    p_tie = math.nan if margin is None else min(1.0, 2 * _tail(margin - abs(mean), error, n))
    low, high, word = mean - half, mean + half, "open"
    if low > 0 or high < 0:  # it decides before a tie
        word = "larger" if low > 0 else "smaller"
    elif margin is not None and -margin <= low and high <= margin:
        word = "tie"
    return Interval(mean, low, high, p, n, word, p_tie, error, n)


def _tail(distance: float, error: float, n: int) -> float:
    """Return the share of Student's distribution beyond a distance [unit of the standard error ``error``]."""
    t = distance / error if error else (0.0 if distance == 0 else math.copysign(math.inf, distance))
    return float(special.stdtr(n - 1, -t))


def adjust_holm(p_values: Floats) -> np.ndarray:
    """Return Holm's adjusted p values in the order given: the k-th smallest times the number of tests not yet passed.

    NaN stands for no test and stays NaN.

    >>> adjust_holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=float)
    adjusted, known = np.full(len(p), math.nan), np.flatnonzero(~np.isnan(p))
    ordered = known[np.argsort(p[known], kind="stable")]
    steps = p[ordered] * np.arange(len(ordered), 0, -1)
    adjusted[ordered] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def prediction_interval(values: Floats, extra_error: float = 0.0) -> tuple[float, float]:
    """Return the interval of one more run with 95 %: mean ± t s sqrt(1 + 1/n); NaN for fewer than three values.

    A number printed beside measured ones is called different only beyond it: it is one more draw, not our mean.

    extra_error   standard error that the other number has on top, such as ``sampling_error`` of other test samples
    """
    values_s = _drop_missing(values)
    n = len(values_s)
    if n < MIN_SEEDS:
        return math.nan, math.nan
    half = _quantile(n) * math.sqrt(float(values_s.var(ddof=1)) * (1 + 1 / n) + extra_error**2)
    return float(values_s.mean()) - half, float(values_s.mean()) + half


def mean_interval(mean: np.ndarray, std: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % interval of each mean over ``n`` values with these sample deviations: mean ± t s / sqrt(n)."""
    half = _quantile(n) * std / math.sqrt(n)
    return mean - half, mean + half


def interquartile_mean(values_c: Floats) -> float:
    """Mean of the middle half over cells and seeds: a quarter (rounded down) is cut off at either end."""
    values = _drop_missing(values_c)
    if not len(values):
        return math.nan
    first, last = (cut := len(values) // 4), len(values) - cut
    return float(np.partition(values, (first, last - 1))[first:last].mean())  # scipy's trim_mean is slow


def stratified_bootstrap(values_cs: Floats | pd.DataFrame) -> tuple[float, float]:
    """Return the 95 % interval of the interquartile mean over cells, by resampling the seeds with replacement.

    One draw of seeds serves all cells, since a seed's data and initial model are in every cell: drawn apart for each of
    16 cells with a correlation of 0.5, "95 %" intervals miss the truth in 60 % of cases. Percentiles are widened for
    few seeds (Hesterberg 2015, "expanded"); with five the truth is still missed in some 9 %. Fewer give NaN.

    values_cs   a row for each cell, a column for each seed; NaN marks a seed that a cell lacks
    """
    values = np.atleast_2d(np.asarray(values_cs, dtype=float))
    size = values.shape[1]
    if size < MIN_BOOTSTRAP:
        return math.nan, math.nan
    draws = np.sort(np.random.default_rng(0).integers(size, size=(DRAWS, size)), axis=1)
    distinct, which = np.unique(draws, axis=0, return_inverse=True)  # five seeds: 126 of 2000
    results = np.array([interquartile_mean(values[:, draw]) for draw in distinct])
    return _percentiles(results[which.ravel()], size)


def probability_of_improvement(a_cs: Floats | pd.DataFrame, b_cs: Floats | pd.DataFrame) -> tuple[float, float, float]:
    """Return how often a run of A is above a run of B of the same cell, ties half, mean over cells; and its interval.

    a_cs, b_cs   a row for each cell, a column for each seed. B is the reference. Every seed of A meets every seed of B.
    """
    a, b = (np.atleast_2d(np.asarray(values, dtype=float)) for values in (a_cs, b_cs))
    one, other = a[:, :, None], b[:, None, :]
    known_cab = ~np.isnan(one + other)
    wins_cab = np.where(known_cab, np.where(one == other, 0.5, one > other), 0.0)

    def shares(times_na: np.ndarray, times_nb: np.ndarray) -> np.ndarray:
        """Return the share of each sample, which has every seed that many times."""
        wins, known = (times_na[:, None, None] @ of @ times_nb[:, None, :, None] for of in (wins_cab, known_cab))
        with np.errstate(invalid="ignore"):  # a cell that lacks either has no share, and then there is no mean
            return (wins / known)[:, :, 0, 0].mean(axis=1)

    whole = float(shares(np.ones((1, a.shape[1])), np.ones((1, b.shape[1])))[0])
    size = min(sizes := (a.shape[1], b.shape[1]))
    if size < MIN_BOOTSTRAP:
        return whole, math.nan, math.nan
    generator = np.random.default_rng(0)
    draws = [[generator.integers(s, size=s) for s in sizes] for _ in range(DRAWS)]
    times = [np.array([np.bincount(draw[of], minlength=s) for draw in draws]) for of, s in enumerate(sizes)]
    low, high = _percentiles(shares(*times), size)
    return whole, low, high


def sampling_error(accuracy_percent: float, test_samples: int) -> float:
    """Return the binomial standard error of an accuracy on ``test_samples`` samples [points]; 0 and 100 % count as half
    a sample away from it, so that no accuracy is free of error.

    >>> round(sampling_error(50.0, 100), 3)
    5.0
    """
    share = min(max(accuracy_percent / 100, 0.5 / test_samples), 1 - 0.5 / test_samples)
    return 100 * math.sqrt(share * (1 - share) / test_samples)


def order_agreement(measured: Floats, published: Floats) -> float:
    """Return Kendall's tau-b, in -1 .. 1, of two lists of values of the same things; NaN if ties or length leave
    none."""
    return float(stats.kendalltau(measured, published).statistic) if len(measured) > 1 else math.nan


def _drop_missing(values: Floats) -> np.ndarray:
    """Return the values as a flat array without NaN."""
    array = np.asarray(values, dtype=float).ravel()
    return array[~np.isnan(array)]


def _quantile(n: int) -> float:
    return float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2))


def _percentiles(results: np.ndarray, seeds: int) -> tuple[float, float]:
    tail = float(special.ndtr(-math.sqrt(seeds / (seeds - 1)) * _quantile(seeds)))
    low, high = np.nanquantile(results, [tail, 1 - tail])
    return float(low), float(high)


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
            limit = math.nan if margin is None else margin
            word = "larger" if found.low > limit else "smaller" if found.high < -limit else "open"
            found = replace(found, verdict="tie" if -limit <= found.low and found.high <= limit else word)
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
    """Return ``12 seeds, verdict after 3``: all seeds, and those of the deciding look if they are fewer."""
    counted = f"{total} {noun}{'s' * (total != 1)}" if noun else str(total)
    return f"{counted}, verdict after {look}" if look < total else counted


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
