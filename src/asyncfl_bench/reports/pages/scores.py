"""Who is ahead in one cell by one number per run, and by how much beside the seeds' noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..table import mean_and_std
from .selection import Cell, Series
from .statistics import Paired, kendall_tau, paired


@dataclass(kw_only=True)
class Scores:
    """What every seed of every series of a cell got.

    final  series -> seed -> number; NaN for a seed that has none, as one that never reaches a target
    lower  whether the lower number is the better one, as of times
    """

    cell: Cell
    final: dict[Series, dict[Any, float]]
    lower: bool = False

    def means(self) -> dict[Series, float]:
        """NaN where a seed has no number: a mean over the others would flatter."""
        return {series: mean_and_std(list(of_seed.values()))[0] for series, of_seed in self.final.items()}

    @cached_property
    def ranking(self) -> list[Series]:
        """Best first."""
        return ranked(self.means(), self.lower)

    @cached_property
    def leaders(self) -> list[Series]:
        """The first of the ranking and all that tie with it; nobody where no series has a mean."""
        means = self.means()
        return [series for series in self.ranking if means[series] == means[self.ranking[0]]]

    @cached_property
    def neighbours(self) -> list[tuple[Series, Series, Paired]]:
        """Every series of the ranking with the next one: their paired difference, better minus next."""
        pairs = itertools.pairwise(self.ranking)
        return [(one, next_, paired(self.final[one], self.final[next_])) for one, next_ in pairs]


def ranked(means: Mapping[Series, float], lower: bool = False) -> list[Series]:
    """Best first; those without a number last."""
    sign = 1 if lower else -1

    def place(series: Series) -> tuple:
        mean = means[series]
        return (True, 0.0, series.label) if math.isnan(mean) else (False, sign * mean, series.label)

    return sorted(means, key=place)


def agreement_between(first: Mapping[Series, float], second: Mapping[Series, float]) -> float:
    """Kendall's tau between the orders that two sets of means give, over the series that both have."""
    both = [s for s in first if s in second and not math.isnan(first[s]) and not math.isnan(second[s])]
    return kendall_tau([first[series] for series in both], [second[series] for series in both])
