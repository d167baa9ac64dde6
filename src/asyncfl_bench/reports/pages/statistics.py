"""The few statistics a page needs. Accuracies are in percent throughout.

Legend: s seeds, p points of one run (or pairs, in ``kendall_tau``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b, in -1 .. 1: (agreeing - disagreeing pairs) / sqrt(pairs untied in first * untied in second).

    NaN for fewer than two values, and where all of one side are equal.
    """
    pairs = [(i, j) for i in range(len(first)) for j in range(i)]
    signs_p2 = np.array([(np.sign(first[i] - first[j]), np.sign(second[i] - second[j])) for i, j in pairs]).reshape(
        -1, 2
    )
    untied = math.sqrt(np.count_nonzero(signs_p2[:, 0]) * np.count_nonzero(signs_p2[:, 1]))
    return float(signs_p2.prod(axis=1).sum()) / untied if untied else math.nan


@dataclass(frozen=True)
class Paired:
    """The mean difference over the seeds that both have, and twice its standard error (NaN for fewer than two)."""

    mean: float
    two_se: float
    seeds: int

    @property
    def verdict(self) -> str:
        """``larger``, ``noise`` (less than two standard errors) or ``unknown`` (one seed says nothing of noise)."""
        if math.isnan(self.two_se) or math.isnan(self.mean):
            return "unknown"
        return "noise" if abs(self.mean) < self.two_se or self.mean == 0 else "larger"


def paired(first: Mapping[object, float], second: Mapping[object, float]) -> Paired:
    """first - second, seed by seed: algorithms under one seed share split, initial model and client speeds.

    first, second   seed -> value; a seed with NaN on one side has no partner
    """
    pairs_s = [(first[seed], second[seed]) for seed in first if seed in second]
    differences_s = np.array([a - b for a, b in pairs_s if not math.isnan(a) and not math.isnan(b)])
    count = len(differences_s)
    if not count:
        return Paired(math.nan, math.nan, 0)
    two_se = 2 * float(differences_s.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return Paired(float(differences_s.mean()), two_se, count)


def monotone(x_p: np.ndarray, y_p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of several points at the same x (iterations within one tick) only the last: the state when x was used up."""
    last_p = np.append(x_p[1:] > x_p[:-1], True) if len(x_p) else np.zeros(0, dtype=bool)
    return x_p[last_p], y_p[last_p]


def value_at(x_p: np.ndarray, y_p: np.ndarray, budget: float) -> float:
    """The curve at ``budget``, straight lines between its points; NaN outside them."""
    x_p, y_p = monotone(x_p, y_p)
    return float(np.interp(budget, x_p, y_p, left=math.nan, right=math.nan)) if len(x_p) else math.nan
