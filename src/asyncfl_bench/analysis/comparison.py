"""Values of the sides of a comparison at one budget, and the contrasts computed from them in each cell (rules 1, 5).

Legend: a table has a row for each cell and a column for each seed. Values, except those of sides, are turned so that
larger is better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from . import names
from .contrasts import Contrast
from .matching import cells_in_order
from .measures import AT_BUDGET, CHANCE_MARGIN, MEASURES, MIN_LATE, RunMeasures, chance_levels
from .statistics import LEVELS, MIN_SEEDS

NEVER_REACHED = "target never reached"


def compare_sides(
    measured: RunMeasures,
    base: Contrast,
    sides: Sequence[pd.DataFrame],
    cells: Sequence[str],
    decide: Mapping[str, Any],
    signs: Sequence[int],
    minus: float | str = 0.0,
    turned: bool = True,
    spread: bool = False,
    **budget: Any,
) -> dict[tuple, Contrast]:
    """Return the contrast of each cell by its values: the signed sum of the sides' measured values, minus a number or a
    setting of the first side.

    base    common part of the contrasts of all cells
    sides, cells  see ``measure_sides``, which takes ``budget``
    decide  kind, measure, axis, target and relative, as of a claim
    turned  False: more stays more, also where small values are the better ones
    spread  distances from the mean of the lowest three seeds
    """
    measure, setting = decide["measure"], [minus] if isinstance(minus, str) else []
    sides = [side.reindex(columns=[*{*cells, "seed", "diverged", "experiment", *setting}]) for side in sides]
    runs = measure_sides(measured, sides, cells, measure, decide["axis"], target=decide.get("target"), **budget)
    wide = runs.pivot(index=["row", "seed"], columns="side", values=["value", "last", *setting])
    sign = -1 if turned and measured.lower_is_better(measure) else 1
    less = wide[minus, 0].astype(float) if isinstance(minus, str) else minus

    def combine(values: Any) -> pd.DataFrame:
        if decide.get("relative"):
            values = values.where(values > 0).map(lambda value: 100 * math.log(value))
        if spread:
            values = (values - values.groupby("row").transform(lambda of: of.iloc[:MIN_SEEDS].mean())).abs()
        return (sign * (values * signs).sum(axis=1, skipna=False) - less).unstack("row")

    by_seed, last = combine(wide["value"]), combine(wide["last"])
    found = {}
    for row, of in runs.groupby("row"):
        reason = _why_no_answer(measured, decide, wide["value"].loc[row], of)
        if of["side"].nunique() == len(sides) and (reason or by_seed[row].notna().any()):
            cell = next(of[[*cells]].fillna(math.nan).itertuples(index=False, name=None), ())
            found[cell] = replace(
                base,
                by_seed=by_seed[row].dropna(),
                last_by_seed=last[row].dropna() if measure == "late" else base.last_by_seed,
                no_answer=reason,
                yardstick="last" if of["uses_last"][of["side"] == 0].any() else measure,
                experiments=frozenset(of["experiment"]),
            )
    return found


def compare_pairs(
    measured: RunMeasures,
    measure: str,
    axis: str,
    levels: Mapping[int, float] | None = LEVELS,
    pairs: Sequence[tuple[str, str]] | None = None,
    tie: float | None = None,
    seen: int = 0,
    most: float = math.inf,
) -> pd.DataFrame:
    """Return the comparison of every pair of series in every cell, or of ``pairs``.

    levels      of the looks; None: all seeds are one look at 5 %
    tie         see ``RunMeasures.tie_margin``
    seen, most  see ``Contrast.counting_seeds``
    Columns cell, first, second and contrast (a ``Contrast`` of first minus second, turned so that more than zero means
    that first is better). A pair without common seeds is left out.
    """
    runs = measured.runs[[key for key in ("cell", "series", "seed", "diverged", "experiment") if key in measured.runs]]
    groups = {str(series): of for series, of in runs.groupby("series", sort=False)}
    asked = [*itertools.combinations(sorted(groups, key=names.series_order), 2)] if pairs is None else [*pairs]
    asked = [pair for pair in asked if set(pair) <= set(groups)]
    columns, rows = ["cell", "first", "second", "contrast"], []
    if not asked:
        return pd.DataFrame(columns=columns)
    sides = [pd.concat([groups[pair[n]].assign(pair=i) for i, pair in enumerate(asked)]) for n in (0, 1)]
    decide = {"kind": "order", "measure": measure, "axis": axis}
    base = Contrast("", margin=measured.tie_margin(measure, tie), levels=levels)
    found = compare_sides(measured, base, sides, ["cell", "pair"], decide, [1, -1])
    cells = cells_in_order(measured.runs, measured.placed.cells)  # those in which all runs diverged, too
    for cell, (number, pair) in itertools.product(cells, enumerate(asked)):
        contrast = found.get((cell, number), base)
        if len(contrast.by_seed):
            step = measured.resolution(contrast.yardstick, contrast.experiments)
            named = replace(contrast, name=" - ".join(pair), cell=cell, series=pair, resolution=step)
            rows.append((cell, *pair, named.counting_seeds(seen, most=most)[0]))
    return pd.DataFrame(rows, columns=columns)


def measure_sides(
    measured: RunMeasures,
    sides: Sequence[pd.DataFrame],
    cells: Sequence[str],
    measure: str,
    axis: str,
    at: Sequence[float | None] = (),
    share: float = 1.0,
    target: float | None = None,
) -> pd.DataFrame:
    """Return the measured values of the sides of one comparison, not turned: a row for each run and side.

    Columns row (number of the cell), side, value, last (by the last value, where the measure is ``late``), uses_last
    (True where a run had too few evaluations for ``late``, so that the last value is used), reached (of a time: True
    where the run reached it) and chance (share of the most frequent test class [%]).

    sides    rows of ``measured.runs``; cells: their columns that make the cells
    at       budget of each side on the axis; by default the largest that all runs of the comparison in that cell and
             with that seed reached
    share    of that budget
    target   accuracy [%] of ``time_to_target``
    A run that diverged is at chance. Times are cut at the budget, and a run that missed a target is there. Nothing of
    a seed depends on later seeds, so that a look keeps its numbers: budgets are those of each seed, and the lowest
    three seeds of a row choose between ``late`` and the last value.
    """
    runs = pd.concat([side.assign(side=number) for number, side in enumerate(sides)])
    runs["row"] = runs.groupby([*cells], dropna=False).ngroup() if cells else 0
    runs["chance"] = chance_levels(measured.runs).reindex(runs.index)
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
    if kind is not None and kind.is_accuracy and names.is_percent(measured.metric):
        chance = runs.groupby("row")["chance"].transform("max")
        for column in ("value", "last"):
            runs[column] = runs[column].mask(runs["diverged"], chance)
    return runs


def _shared_ends(measured: RunMeasures, runs: pd.DataFrame, axis: str, sides: int) -> pd.Series:
    """Return the end of each run of a comparison on the axis; NaN if it diverged or a side lacks its seed."""
    ends = runs["run"].map(measured.ends(pd.Index(runs["run"].unique()), axis)).mask(runs["diverged"])
    is_shared = runs.groupby(["row", "seed"])["side"].transform("nunique") == sides
    return ends.where(is_shared) if is_shared.any() else ends


def _time_budgets(runs: pd.DataFrame, ends: pd.Series) -> pd.Series:
    """Return for each run the largest budget at which the restricted times of all runs with its seed are known: the
    earliest end of a run that missed the target, or the last end."""
    keys = [runs["row"], runs["seed"]]
    missed = ends.where(runs["value"].isna()).groupby(keys).transform("min")
    return missed.fillna(ends.groupby(keys).transform("max"))


def values_at_equal_budget(measured: RunMeasures, measure: str, axis: str) -> pd.DataFrame:
    """Return the value of every run at the largest budget that all runs of its cell spent: a row for each run.

    measure  ``accuracy`` or ``late``
    Columns run, series, cell, the keys of the cell, seed, budget, value, evaluations and is_last (True where a run of
    the cell has too few evaluations for ``late``). The value is on a straight line between evaluations. evaluations
    counts those within the budget after 0: with fewer than two the value is mostly interpolation.
    """
    runs, curves = measured.placed.runs, measured.curves(axis)
    table = runs.loc[runs.index.isin([*curves]), ["series", "cell", *measured.placed.cells, "seed"]]
    table = table.rename_axis("run").reset_index()
    ends = table["run"].map(measured.ends(pd.Index(table["run"]), axis))
    table["budget"] = ends.groupby(table["cell"]).transform("min")
    found = table.assign(row=table["cell"])
    add_values_at_budget(measured, found, measure, axis)
    table["value"], table["is_last"] = found["value"], found["uses_last"]
    positions = [curves[run][0] for run in table["run"]]
    within = [((x_p > 0) & (x_p <= budget)).sum() for x_p, budget in zip(positions, table["budget"], strict=True)]
    return table.assign(evaluations=within)


def add_values_at_budget(measured: RunMeasures, runs: pd.DataFrame, measure: str, axis: str) -> None:
    """Fill the columns value, last and uses_last of ``runs`` by their columns run, row, seed and budget.

    All runs of a row have the same yardstick, also where its sides have different budgets. The lowest three seeds
    choose it: ``late`` needs three evaluations of each of their runs. Of later seeds one is enough.
    """
    runs[["late", "last", "counted"]] = measured.values_at_budget(axis, runs["run"], runs["budget"])
    known = runs["budget"].notna()
    is_first = runs["seed"].where(known).groupby(runs["row"]).rank("dense") <= MIN_SEEDS
    fewest = runs.groupby(["row", "seed", "budget"])["counted"].transform("min")
    is_late = fewest >= is_first.map({True: MIN_LATE, False: 1})
    by_late = (is_late | ~is_first).groupby(runs["row"]).transform("all") & (measure == "late")
    runs["value"] = runs["late"].where(by_late & is_late, runs["last"])
    runs["uses_last"] = known & ~by_late & (measure == "late")


def _why_no_answer(measured: RunMeasures, decide: Mapping[str, Any], values: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Return the reason why the runs of a cell give no answer; empty if they give one.

    Reasons are methods at chance, a target that no run reached, and a method that diverged. A loss has no answer if its
    start is at chance. The lowest three common seeds decide whether a method is at chance.

    values  a row for each seed, a column for each side;  runs  of ``measure_sides``
    """
    kind, of = decide["kind"], MEASURES.get(decide["measure"])
    if decide["measure"].startswith("time"):
        return "" if runs["reached"].any() else NEVER_REACHED
    is_accuracy = of is not None and of.is_accuracy and names.is_percent(measured.metric)
    if not is_accuracy or kind in ("equals", "reaches"):
        return "partner diverged" if runs.groupby("side")["diverged"].all().any() else ""
    is_low = values.dropna().iloc[:MIN_SEEDS].mean() < runs["chance"].max() + CHANCE_MARGIN
    return "at chance" if is_low.all() or (kind == "loses" and is_low.iloc[::2].any()) else ""
