"""Who is ahead at equal cost, by how much beside the seeds' noise, and from which budget on.

Accuracies in percent. A **standing** is one cell on one axis: what every seed of every series has reached at the
largest budget that all of them spent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..load import Run
from ..table import mean_and_std
from .scores import Scores
from .selection import Series
from .statistics import kendall_tau, monotone, paired, value_at
from .tuning import Evidence

FRACTIONS = ((1, 40), (1, 20), (1, 10), (1, 4), (1, 2), (1, 1))


@dataclass(kw_only=True)
class Standing(Scores):
    """axis: iteration, uploads or virtual_time; budget: in its units; limited_by: the series whose runs end there."""

    axis: str
    budget: float
    limited_by: Series
    runs: dict[Series, list[Run]]

    @property
    def limited_by_text(self) -> str:
        """Who spent the least, if it was one and not all."""
        ends = {s: min(float(run.curve(self.axis)[0][-1]) for run in runs) for s, runs in self.runs.items()}
        first = [series.label for series, end in ends.items() if end == self.budget]
        return "all" if len(first) == len(ends) > 1 else " and ".join(first)

    def means(self, budget: float | None = None) -> dict[Series, float]:
        """Mean accuracies at ``budget``, or at the end."""
        if budget is None:
            return super().means()
        values = _accuracies(self.runs, self.axis, budget)
        return {series: mean_and_std(list(of_seed.values()))[0] for series, of_seed in values.items()}

    def coarse(self, series: Series) -> bool:
        """Whether fewer than two evaluations lie within the budget: then the value is mostly interpolation."""
        counts = [np.count_nonzero((x_p > 0) & (x_p <= self.budget)) for x_p in self._x_of(series)]
        return bool(min(counts, default=0) < 2)

    def _x_of(self, series: Series) -> list[np.ndarray]:
        return [monotone(*percent_curve(run, self.axis))[0] for run in self.runs[series]]

    @cached_property
    def budgets(self) -> list[tuple[str, float]]:
        """Fractions of the budget and what they are, from the first that is not before every first evaluation."""
        first = min(
            (x_p[x_p > 0][0] for series in self.runs for x_p in self._x_of(series) if (x_p > 0).any()), default=0
        )
        parts = [(f"{a}/{b}" if b > 1 else "1", self.budget * a / b) for a, b in FRACTIONS]
        return [(text, budget) for text, budget in parts if budget >= first]

    def settled(self, beyond_noise: bool) -> str:
        """The smallest fraction of the budget from which on the order stays the final one.

        beyond_noise   True: only pairs whose final difference exceeds the seeds' noise have to stand as they end
        """
        final, end = self.ranking, self.means()
        pairs = [(final[i], final[j]) for i in range(len(final)) for j in range(i + 1, len(final))]
        if beyond_noise:
            pairs = [(a, b) for a, b in pairs if paired(self.final[a], self.final[b]).verdict == "larger"]
        since = "1"
        for text, budget in reversed(self.budgets):
            means = self.means(budget)
            if any(np.sign(means[a] - means[b]) != np.sign(end[a] - end[b]) for a, b in pairs):
                break
            since = text
        return since


def standings(evidence: Evidence, axis: str) -> list[Standing]:
    """One per cell that has a run with an accuracy."""
    found = []
    for cell in evidence.cells:
        runs = {
            series: with_curve
            for series in evidence.series
            if (with_curve := [run for run in evidence.runs.get((series, cell), []) if len(run.curve(axis)[0])])
        }
        if runs:
            ends = {series: min(float(run.curve(axis)[0][-1]) for run in of) for series, of in runs.items()}
            limit = min(ends, key=lambda series: ends[series])
            final = _accuracies(runs, axis, ends[limit])
            found.append(Standing(cell=cell, final=final, axis=axis, budget=ends[limit], limited_by=limit, runs=runs))
    return found


def _accuracies(runs: dict[Series, list[Run]], axis: str, budget: float) -> dict[Series, dict[Any, float]]:
    """series -> seed -> accuracy at ``budget``."""
    return {s: {run.seed: value_at(*percent_curve(run, axis), budget) for run in of} for s, of in runs.items()}


def agreement(means: dict[Series, float], order: tuple[str, ...]) -> float:
    """Kendall's tau between the means and a paper's order of algorithms (worst first), over those that both have."""
    both = [series for series in means if series.algorithm in order and not math.isnan(means[series])]
    return kendall_tau([means[series] for series in both], [order.index(series.algorithm) for series in both])


def percent_curve(run: Run, axis: str) -> tuple[np.ndarray, np.ndarray]:
    x_p, accuracy_p = run.curve(axis)
    return x_p, 100 * accuracy_p
