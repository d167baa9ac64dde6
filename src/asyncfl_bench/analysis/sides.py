"""The values of the sides of a comparison, at the budget of its runs (docs/reference/statistics.md, rules 1, 5).

Legend: a table has a row a cell and a column a seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .measured import AT_BUDGET, CHANCE_MARGIN, MEASURES, MIN_LATE, RunMeasures
from .statistics import MIN_SEEDS

NEVER_REACHED = "target never reached"


@dataclass(frozen=True)
class Sides:
    """The measured values of the sides of a comparison, not turned: a table a side.

    uses_last   of each row: True where a run had too few evaluations for ``late``, so that ``last`` is used
    last        the tables by the last value, where the measure is ``late``
    chance      of each side, the share of the most frequent test class [%]
    """

    tables: list[pd.DataFrame]
    uses_last: pd.Series
    last: list[pd.DataFrame]
    reached: list[pd.DataFrame]  # of a time: True where the run reached it
    diverged: list[pd.DataFrame]
    chance: list[pd.DataFrame]


def measure_sides(
    measured: RunMeasures,
    sides: Sequence[pd.DataFrame],
    cells: Sequence[str],
    measure: str,
    axis: str,
    at: Sequence[float | None] = (),
    share: float = 1.0,
    target: float | None = None,
) -> Sides:
    """Return the values of the sides of one comparison.

    sides    rows of ``measured.runs``; cells: their columns that make the rows of a table
    at       budget of each side on the axis; by default the largest that all runs of the comparison in that cell and
             with that seed reached
    share    of that budget
    target   accuracy [%] of ``time_to_target``
    A run that diverged is at chance. Times are cut at the budget, and a run that missed a target is there. Nothing of
    a seed depends on later seeds, so that a look keeps its numbers: budgets are those of each seed, and the lowest
    three seeds of a row choose between ``late`` and the last value.
    """
    runs = pd.concat([side[[*cells, "seed", "diverged"]].assign(side=number) for number, side in enumerate(sides)])
    runs["row"] = list(zip(*(runs[key].map(str) for key in cells), strict=True)) if cells else ""
    runs["chance"] = measured.chance_levels.reindex(runs.index)
    runs = runs.rename_axis("run").reset_index()
    kind, is_time = MEASURES.get(measure), measure.startswith("time")
    runs["last"], runs["uses_last"] = math.nan, False
    ends = _shared_ends(measured, runs, axis, len(sides)) if measure in AT_BUDGET or is_time else pd.Series(dtype=float)
    if measure in AT_BUDGET:
        given = runs["side"].map(dict(enumerate(at))).astype(float) if any(one is not None for one in at) else None
        shared = ends.groupby([runs["row"], runs["seed"]]).transform("min") * share
        runs["budget"] = shared if given is None else given
        add_values_at_budget(measured, runs, measure, axis)
    elif measure == "time_to_target" and target is not None:
        runs["value"] = runs["run"].map(measured.times_to(target, axis))
    else:
        runs["value"] = runs["run"].map(measured.values(measure, axis))
    if is_time:
        budgets = _time_budgets(runs, ends) * share
        runs["reached"] = runs["value"] <= budgets
        runs["value"] = runs["value"].where(runs["reached"], budgets)
    else:
        runs["reached"] = runs["value"].notna()
    if kind is not None and kind.is_accuracy and measured.is_accuracy:
        chance = runs.groupby("row")["chance"].transform("max")
        for column in ("value", "last"):
            runs[column] = runs[column].mask(runs["diverged"], chance)
    keys = [*cells] or ["row"]

    def tables(column: str) -> list[pd.DataFrame]:
        groups = [runs[runs["side"] == number] for number in range(len(sides))]
        return [of.pivot(index=keys, columns="seed", values=column) for of in groups]

    last = tables("last") if measure == "late" else []
    uses_last = tables("uses_last")[0].eq(True).any(axis=1)
    return Sides(tables("value"), uses_last, last, tables("reached"), tables("diverged"), tables("chance"))


def _shared_ends(measured: RunMeasures, runs: pd.DataFrame, axis: str, sides: int) -> pd.Series:
    """Return where each run of a comparison ends on the axis; NaN if it diverged or its seed is not on all sides."""
    ends = runs["run"].map(measured.ends(pd.Index(runs["run"].unique()), axis)).mask(runs["diverged"])
    is_shared = runs.groupby(["row", "seed"])["side"].transform("nunique") == sides
    return ends.where(is_shared) if is_shared.any() else ends


def _time_budgets(runs: pd.DataFrame, ends: pd.Series) -> pd.Series:
    """Return for each run the largest budget at which the restricted times of all runs with its seed are known: the
    earliest end of a run that missed the target, or the last end."""
    keys = [runs["row"], runs["seed"]]
    missed = ends.where(runs["value"].isna()).groupby(keys).transform("min")
    return missed.fillna(ends.groupby(keys).transform("max"))


def add_values_at_budget(measured: RunMeasures, runs: pd.DataFrame, measure: str, axis: str) -> None:
    """Fill the columns value, last and uses_last of ``runs`` by their columns run, row, seed and budget.

    All runs of a row have the same yardstick, also where its sides have different budgets.
    """
    found: dict[object, tuple[float, float, bool]] = {}
    for _, row in runs.groupby("row"):
        late, values = measure == "late", dict[object, float]()
        last, first = dict[object, float](), sorted(row["seed"][row["budget"].notna()].unique())[:MIN_SEEDS]
        for (seed, _), of in row.groupby(["seed", "budget"]):
            budgets = of.drop_duplicates("run").set_index("run")["budget"]
            if measure == "late":
                least = MIN_LATE if seed in first else 1  # the first seeds choose the yardstick of all
                means, is_late = measured.values_at_budget("late", axis, budgets, least)
                values |= of["run"].map(means).to_dict()
                late &= is_late or seed not in first
            last |= of["run"].map(measured.values_at_budget("accuracy", axis, budgets)[0]).to_dict()
        found |= {i: (values[i] if late else last[i], last[i], measure == "late" and not late) for i in last}
    columns = ["value", "last", "uses_last"]
    runs[columns] = pd.DataFrame.from_dict(found, orient="index", columns=columns).reindex(runs.index)


def why_no_answer(measured: RunMeasures, measure: str, kind: str, found: Sides, cell: Any) -> str:
    """Return why the runs of a cell cannot answer: methods at chance, a target that no run reached, or a method that
    diverged; empty if they can. A loss has no answer when what it starts from is at chance. The lowest three seeds
    that all sides have say what is at chance."""
    of = MEASURES.get(measure)
    is_accuracy = of is not None and of.is_accuracy and kind not in ("equals", "reaches")
    is_accuracy &= measured.is_accuracy
    reached = [table.loc[cell].fillna(False).astype(bool) for table in found.reached]
    diverged = [table.loc[cell].dropna().astype(bool) for table in found.diverged]
    if measure.startswith("time"):
        return "" if any(one.any() for one in reached) else NEVER_REACHED
    if not is_accuracy:
        return "partner diverged" if any(len(one) and one.all() for one in diverged) else ""
    floor = max(float(table.loc[cell].max()) for table in found.chance) + CHANCE_MARGIN
    known = pd.concat([table.loc[cell] for table in found.tables], axis=1).dropna().sort_index()
    first = known.index[:MIN_SEEDS]
    means = [float(table.loc[cell].reindex(first).mean()) for table in found.tables]
    starts = means[::2] if kind == "loses" else []
    return "at chance" if any(mean < floor for mean in starts) or all(mean < floor for mean in means) else ""
