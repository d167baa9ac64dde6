"""The class ``Contrast`` (a number for each seed, its interval and side); tables of pairs, best methods (rule 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from .statistics import ALPHA, LEVELS, MIN_SEEDS, Interval, Question, adjust_holm, decide_by_looks, seeds_needed

_WORDS = {"agree": "better", "against": "worse", "tie": "tie", "open": "inconclusive"}
BEST_COLUMNS = ["cell", "best", "next", "difference", "low", "high", "p_holm", "seeds", "total", "verdict", "reason"]


@dataclass(frozen=True)
class Contrast:
    """One number for each seed, above zero as claimed; of an equivalence: nearer to zero than the margin.

    by_seed    empty where runs are missing; last_by_seed: the same by the last value, where the yardstick is ``late``
    margin     of the equivalence, or of a tie; None: no tie is possible
    counted    the same for every seed, such as bytes: one run decides
    no_answer  why the runs cannot decide it: ``at chance``, ``target never reached`` or ``partner diverged``
    yardstick  the measure that was used: ``last`` where ``late`` had too few evaluations
    series     the two series whose difference it is; empty for a comparison of another kind
    cell_keys  key of the page's cells -> the value that its runs have
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
    cell_keys: Mapping[str, Any] = field(default_factory=dict)
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
        why = "the last accuracy gives another verdict", "claim changed after these runs"
        return self, seen, why[changed]

    @cached_property
    def interval(self) -> Interval:
        """All seeds with the first decision of the looks, see ``decide_by_looks``; of a counted number its mean."""
        known_s = self.by_seed.dropna()
        if self.counted:
            mean = float(known_s.mean()) if len(known_s) else math.nan
            return Interval(mean, n=len(known_s), total=len(known_s))
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
        """The numbers for a table; seeds: of the look that decided; last: the difference by the last value."""
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
    def distance(self) -> float:
        """Distance of the interval's worse end from the claim's limit; the least certain contrast has the least."""
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
        """The reason why the comparison is open."""
        if self.no_answer:
            return self.no_answer
        if not len(self.by_seed.dropna()):
            return "runs missing"
        found = self.interval
        if math.isnan(found.low):
            return f"{found.n} seed{'s' * (found.n != 1)}, where a test needs {min(LEVELS)}"
        return f"needs about {needed} seeds" if (needed := self.needed_seeds) else "needs more than 200 seeds"


def mean_of_contrasts(base: Contrast, parts: Sequence[Contrast]) -> Contrast:
    """Return ``base`` with the mean of the parts over the seeds that all of them have; no answer where none has one."""
    tables = (pd.DataFrame([getattr(one, key) for one in parts]) for key in ("by_seed", "last_by_seed"))
    by_seed, last = (table.mean(axis=0, skipna=False).dropna() for table in tables)
    reasons = {one.no_answer for one in parts}
    return replace(
        base,
        by_seed=by_seed,
        last_by_seed=last,
        no_answer="" if "" in reasons else ", ".join(sorted(reasons)),
        yardstick="last" if any(one.yardstick == "last" for one in parts) else base.yardstick,
        experiments=frozenset().union(*(one.experiments for one in parts)),
    )


def pair_table(compared: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each pair of ``compare_pairs``. The better method is first; without one, the higher mean.

    Columns cell, better, other, word (``better``, ``tie`` or ``inconclusive``), those of ``Contrast.numbers`` and
    p_holm (over all pairs of the cell). The difference is better minus other, also of times.
    """
    rows = []
    for cell, first, second, contrast in compared.itertuples(index=False):
        one, other, found, word = first, second, contrast.numbers, _WORDS[contrast.side]
        if word == "worse" or (word != "better" and found["difference"] < 0):
            one, other, word = second, first, {"worse": "better"}.get(word, word)
            found |= {"difference": -found["difference"], "last": -found["last"]}
            found |= {"low": -found["high"], "high": -found["low"]}
        rows.append({"cell": cell, "better": one, "other": other, "word": word, **found})
    table = pd.DataFrame(rows, columns=[*rows[0]] if rows else ["cell", "better", "other", "word", "p"])
    p_holm = table.groupby("cell", sort=False)["p"].transform(adjust_holm) if rows else pd.Series(dtype=float)
    table.insert([*table.columns].index("p") + 1, "p_holm", p_holm)
    return table


def best_methods(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each cell: the method with the highest mean in most pairs, against the rival that decides.

    verdict  ``best``: better than every rival, by Holm's method over all pairs of the cell · ``tie``: some rival is
             within the margin, the others are worse · ``inconclusive``, with the reason
    next     the rival with the smallest difference among those that make the verdict
    """
    return pd.DataFrame(
        [_best_of_cell(str(cell), of) for cell, of in pairs.groupby("cell", sort=False)], columns=BEST_COLUMNS
    )


def pairs_of_method(pairs: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return the pairs of ``method`` as its lead over each rival: the columns of ``pair_table`` with rival."""
    leads = pairs[pairs["better"] == method].assign(rival=lambda of: of["other"])
    behind = pairs[pairs["other"] == method].assign(rival=lambda of: of["better"])
    behind = behind.assign(low=-behind["high"], high=-behind["low"], word=behind["word"].replace("better", "worse"))
    return pd.concat([leads, behind.assign(difference=-behind["difference"], last=-behind["last"])])


def _best_of_cell(cell: str, pairs: pd.DataFrame) -> tuple:
    wins, behind = pairs["better"].value_counts(), pairs.groupby("other")["difference"].sum()
    leads = pairs.groupby("better")["difference"].sum()
    methods = pd.unique(pairs[["better", "other"]].to_numpy().ravel())
    best = max(methods, key=lambda one: (wins.get(one, 0), leads.get(one, 0.0) - behind.get(one, 0.0)))
    rivals = pairs_of_method(pairs, best)
    decided = (rivals["word"] == "better") & (rivals["p_holm"] < ALPHA)
    tied = rivals["word"] == "tie"
    verdict, deciding = "best", rivals
    if not (decided | tied).all():
        verdict, deciding = "inconclusive", rivals[~decided & ~tied]
    elif tied.any():
        verdict, deciding = "tie", rivals[tied]
    row = deciding.sort_values("difference", kind="stable").iloc[0]
    reason = ""
    if verdict == "tie" and len(deciding) > 1:
        reason = f"{len(deciding)} methods tie with it"
    elif verdict == "best" and row["high"] <= row["margin"]:
        reason = "by less than the margin of a tie"
    elif verdict == "inconclusive":
        reason = row["reason"]
        if not reason or reason.startswith("needs"):  # that many seeds decide it among all pairs of the cell
            margin = None if row["word"] == "better" or math.isnan(row["margin"]) else row["margin"]
            deviation = row["error"] * math.sqrt(row["total"])
            needed = seeds_needed(row["difference"], deviation, margin, tests=len(pairs))
            reason = f"needs {f'about {needed}' if needed else 'more than 200'} seeds with Holm's correction"
        reason += f"; {len(deciding)} of {len(rivals)} rivals open" if len(rivals) > 1 else ""
    numbers = [row[key] for key in ("difference", "low", "high", "p_holm", "seeds", "total")]
    return cell, best, row["rival"], *numbers, verdict, reason
