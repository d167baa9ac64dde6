"""The comparisons that decide a claim or rank a page's methods, as numbers seed by seed (docs/reference/statistics.md).

Legend: a table has a row a cell and a column a seed. Values are turned so that larger is better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from . import names
from .looks import LEVELS, Question, decide_by_looks, seeds_needed
from .measured import RunMeasures
from .place import cells_in_order
from .sides import measure_sides, why_no_answer
from .statistics import MIN_SEEDS, Interval

WITH_STEP = ("accuracy", "best", "final", "last")  # measures that are one accuracy, a multiple of one test sample
POINTS_OF_A_TIE = 1.0  # margin of differences in points, where a claim declares none


@dataclass(frozen=True)
class Contrast:
    """One number a seed, above zero as claimed; of an equivalence: nearer to zero than the margin.

    by_seed    empty where runs are missing; last_by_seed: the same by the last value, where the yardstick is ``late``
    margin     of the equivalence, or of a tie; None: no tie is possible
    counted    the same for every seed, such as bytes: one run decides
    no_answer  why the runs cannot decide it: ``at chance``, ``target never reached`` or ``partner diverged``
    yardstick  the measure that was used: ``last`` where ``late`` had too few evaluations
    series     the two series whose difference it is; empty for a comparison of another kind
    place      key of the page's cells -> the value that its runs have
    experiments  of the runs that it compares (``load_runs``)
    """

    name: str
    cell: str = ""
    by_seed: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    question: Question = "difference"
    margin: float | None = None
    counted: bool = False
    extra_error: float = 0.0
    resolution: float = 0.0  # step of one value, see ``paired_interval``
    no_answer: str = ""
    yardstick: str = ""
    last_by_seed: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    levels: Mapping[int, float] | None = field(default_factory=lambda: LEVELS)
    series: tuple[str, ...] = ()
    place: Mapping[str, Any] = field(default_factory=dict)
    experiments: frozenset[str] = frozenset()

    def for_seeds(self, first: int, end: float = math.inf, last_value: bool = False) -> Contrast:
        """Return the same comparison of the seeds from ``first`` to ``end``; last_value: by the last value."""
        values = self.last_by_seed if last_value and len(self.last_by_seed) else self.by_seed
        return replace(self, by_seed=values[(values.index >= first) & (values.index < end)])

    def counting_seeds(self, seen: int, changed: bool = False, most: float = math.inf) -> tuple[Contrast, int, str]:
        """Return the comparison of the seeds that count, the first of them, and why it is only an indication.

        seen     seeds below it were run before the rules were declared. They count if the comparison did not change
                 and has the same word by the last value. Otherwise new seeds decide alone; without three of them all
                 seeds give an indication.
        most     of the seeds that count, the lowest; the others are left out
        """
        if not (self.by_seed.index < seen).any():
            first = seen if changed else 0
            return self.for_seeds(first, first + most), first, ""
        late, last = (self.for_seeds(0, seen, last_value).side for last_value in (False, True))
        if not changed and late == last:
            return self.for_seeds(0, most), 0, ""
        new = self.for_seeds(seen, seen + most)
        if len(new.by_seed.dropna()) >= MIN_SEEDS:
            return new, seen, ""
        why = "the last value gives another verdict", "seeds seen before the claim changed"
        return self, seen, why[changed]

    @cached_property
    def interval(self) -> Interval:
        """All seeds with the first decision of the looks, see ``decide_by_looks``; of a counted number its mean."""
        known_s = self.by_seed.dropna()
        if self.counted:
            mean = float(known_s.mean()) if len(known_s) else math.nan
            return Interval(mean, math.nan, math.nan, math.nan, len(known_s), "unknown", total=len(known_s))
        return decide_by_looks(known_s, self.margin, self.question, self.levels, self.resolution, self.extra_error)

    @property
    def side(self) -> str:
        """``agree`` if its interval excludes the contrary, ``against`` or ``tie`` if it excludes the claim, or
        ``open``. Neither ``against`` nor ``tie`` is corrected for other comparisons."""
        mean, word = self.interval.mean, self.interval.verdict
        if self.counted and self.by_seed.notna().any():
            contrary = mean < 0 if self.question == "difference" else abs(mean) > (self.margin or 0)
            return "against" if contrary else "agree"
        if self.no_answer or word in ("open", "unknown"):
            return "open"
        if self.question == "equivalence":
            return "agree" if word == "tie" else "against"
        return {"larger": "agree", "smaller": "against"}.get(word, word)

    @property
    def numbers(self) -> dict[str, Any]:
        """What a table says of it; seeds: of the look that decided; last: the difference by the last value."""
        found = self.interval
        last = self.last_by_seed[self.last_by_seed.index.isin(self.by_seed.dropna().index)]
        return {
            "difference": found.mean,
            "low": found.low,
            "high": found.high,
            "p": found.p,
            "p_tie": found.p_tie,
            "seeds": found.n,
            "total": found.total,
            "error": found.error,
            "last": float(last.mean()) if len(last) else math.nan,
            "margin": math.nan if self.margin is None else self.margin,
            "yardstick": self.yardstick,
            "reason": self.reason if self.side == "open" else "",
        }

    @property
    def is_within_margin(self) -> bool:
        """Return True if a difference is smaller than the margin of a tie."""
        return self.question == "difference" and self.margin is not None and self.interval.high <= self.margin

    @property
    def distance(self) -> float:
        """How far the interval's worse end is within the claim; the least certain contrast has the least."""
        found = self.interval
        ends = [end for end in (found.low, found.high, found.mean) if not math.isnan(end)]
        if not ends:
            return -math.inf
        return min(ends) if self.question == "difference" else (self.margin or 0) - max(map(abs, ends))

    @property
    def needed_seeds(self) -> int | None:
        """Return about how many seeds decide it; None for more than 200, and before the first look."""
        found = self.interval
        deviation = math.sqrt(found.total) * found.error
        return seeds_needed(found.mean, deviation, self.margin, self.question)

    @property
    def reason(self) -> str:
        """Why the comparison is open."""
        if self.no_answer:
            return self.no_answer
        if not len(self.by_seed.dropna()):
            return "runs missing"
        found = self.interval
        if math.isnan(found.low):
            return f"{found.n} seed{'s' * (found.n != 1)}, the first look needs {min(LEVELS)}"
        return f"needs about {needed} seeds" if (needed := self.needed_seeds) else "needs more than 200 seeds"


def compare_pairs(
    measured: RunMeasures,
    measure: str,
    axis: str,
    levels: Mapping[int, float] | None = LEVELS,
    pairs: Sequence[tuple[str, str]] | None = None,
    tie: float | None = None,
    seen: int = 0,
) -> pd.DataFrame:
    """Return the comparison of every pair of series in every cell, or of ``pairs``.

    levels   of the looks; None: all seeds are one look at 5 %
    tie      margin of a tie [points]; None: 1. For a measure in another unit no tie is possible
    seen     see ``Contrast.counting_seeds``
    Columns cell, first, second and contrast (a ``Contrast`` of first minus second, turned so that more than zero means
    that first is better). A pair without common seeds is left out.
    """
    runs = measured.runs[["cell", "series", "seed", "diverged"]]
    groups = {str(series): of for series, of in runs.groupby("series", sort=False)}
    asked = [*itertools.combinations(sorted(groups, key=names.series_order), 2)] if pairs is None else [*pairs]
    asked = [pair for pair in asked if set(pair) <= set(groups)]
    columns = ["cell", "first", "second", "contrast"]
    if not asked:
        return pd.DataFrame(columns=columns)
    margin = (POINTS_OF_A_TIE if tie is None else tie) if measured.unit(measure) == "points" else None
    sign = -1 if measured.lower_is_better(measure) else 1
    sides = [pd.concat([groups[pair[n]].assign(pair=i) for i, pair in enumerate(asked)]) for n in (0, 1)]
    found = measure_sides(measured, sides, ("cell", "pair"), measure, axis)
    differences = sign * (found.tables[0] - found.tables[1])
    last = sign * (found.last[0] - found.last[1]) if found.last else pd.DataFrame(index=differences.index)
    rows, experiments = [], dict[tuple[str, str], frozenset[str]]()
    if "experiment" in measured.runs:
        by_place = measured.runs.groupby(["cell", "series"])["experiment"]
        experiments = {(str(cell), str(series)): frozenset(of) for (cell, series), of in by_place}
    cells = cells_in_order(measured.runs, measured.placed.cells)  # those in which all runs diverged, too
    for cell, number in itertools.product(cells, range(len(asked))):
        row = (cell, number)
        by_seed, pair = _row_by_seed(differences, row), asked[number]
        if len(by_seed):
            used = "last" if found.uses_last[row] else measure
            compared = union_of(experiments.get((cell, one), frozenset()) for one in pair)
            contrast = Contrast(
                " - ".join(pair),
                cell,
                by_seed,
                margin=margin,
                levels=levels,
                resolution=measured.resolution(compared) if used in WITH_STEP else 0.0,
                no_answer=why_no_answer(measured, measure, "order", found, row),
                yardstick=used,
                last_by_seed=_row_by_seed(last, row),
                series=pair,
                experiments=compared,
            )
            rows.append((cell, *pair, contrast.counting_seeds(seen)[0]))
    return pd.DataFrame(rows, columns=columns)


def _row_by_seed(table: pd.DataFrame, row: Any) -> pd.Series:
    """Return the numbers by seed of a row; empty for a row that is not there."""
    return pd.Series(table.loc[row, :]).dropna() if row in table.index else pd.Series(dtype=float)


def union_of(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    """Return the elements of all sets."""
    return frozenset().union(*sets)
