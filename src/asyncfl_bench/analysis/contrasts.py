"""The contrasts that decide claims and rank methods, as numbers seed by seed (docs/reference/statistics.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from .looks import LEVELS, Question, decide_by_looks, seeds_needed
from .statistics import MIN_SEEDS, Interval


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


def union_of(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    """Return the elements of all sets."""
    return frozenset().union(*sets)
