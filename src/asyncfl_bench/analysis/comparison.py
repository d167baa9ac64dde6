"""Comparisons of runs: what their sides measure in every cell, and the contrasts that seeds decide.

Legend: a table has a row a cell and a column a seed. Values are turned so that larger is better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from . import names
from .contrasts import Contrast, union_of
from .looks import LEVELS
from .measured import RunMeasures
from .place import cells_in_order
from .sides import measure_sides, why_no_answer
from .statistics import MIN_SEEDS


@dataclass(frozen=True)
class Comparison:
    """One comparison before it is split by cell: its table, and the same by the last value."""

    name: str
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    last: pd.DataFrame = field(default_factory=pd.DataFrame)
    no_answer: Mapping[Any, str] = field(default_factory=dict)
    uses_last: pd.Series = field(default_factory=lambda: pd.Series(dtype=bool))
    error: float = 0.0
    series: tuple[str, ...] = ()  # of a difference of two
    fixed: Mapping[str, Any] = field(default_factory=dict)  # keys of the cells with one value
    experiments: Mapping[Any, frozenset[str]] = field(default_factory=dict)  # by cell
    # of each cell of the sweep that ``table`` lacks: its values by key
    absent: Mapping[tuple[str, ...], Mapping[str, Any]] = field(default_factory=dict)

    def split_by_cell(
        self, base: Contrast, measured: RunMeasures, decide: Mapping[str, Any]
    ) -> Iterator[tuple[Any, Contrast]]:
        """Yield each cell of the table with its contrast; base: what all cells have in common."""
        last_values = self.last.reindex(self.table.index)
        for row, cell in enumerate(self.table.index):
            used = "last" if self.uses_last.iloc[row] else decide["measure"]
            experiments = self.experiments.get(cell, base.experiments)
            values: dict[str, Any] = {"by_seed": self.table.iloc[row].dropna(), "yardstick": used}
            if len(self.last):
                values["last_by_seed"] = last_values.iloc[row].dropna()
            values["resolution"] = 0.0 if decide.get("relative") else measured.resolution(used, experiments)
            yield cell, replace(base, no_answer=self.no_answer.get(cell, ""), experiments=experiments, **values)


def compare_sides(
    measured: RunMeasures,
    sides: Sequence[pd.DataFrame],
    cells: Sequence[str],
    decide: Mapping[str, Any],
    signs: Sequence[int],
    minus: pd.DataFrame | float = 0.0,
    turned: bool = True,
    spread: bool = False,
    **budget: Any,
) -> Comparison:
    """Return the signed sum of what the sides measure, minus a number or a table of them.

    sides, cells  see ``measure_sides``, which takes ``budget``
    decide  kind, measure, axis, target and relative, as of a claim
    turned  False: more stays more, also where small values are the better ones
    spread  distances from the mean of the lowest three seeds
    """
    measure, target = decide["measure"], decide.get("target")
    found = measure_sides(measured, sides, cells, measure, decide["axis"], target=target, **budget)
    sign = -1 if turned and measured.lower_is_better(measure) else 1
    common = sorted(set.intersection(*(set(table.index) for table in found.tables)), key=str)
    reasons = {cell: why for cell in common if (why := why_no_answer(measured, measure, decide["kind"], found, cell))}

    def combine(tables: list[pd.DataFrame]) -> pd.DataFrame:
        if decide.get("relative"):
            tables = [table.where(table > 0).map(lambda value: 100 * math.log(value)) for table in tables]
        if spread:
            tables = [table.sub(table.iloc[:, :MIN_SEEDS].mean(axis=1), axis=0).abs() for table in tables]
        total: Any = sum((sign * one * table for one, table in zip(signs, tables, strict=True)), start=-minus)
        return total[total.notna().any(axis=1) | total.index.isin(list(reasons))]

    table, last = combine(found.tables), combine(found.last) if found.last else pd.DataFrame()
    experiments: dict[Any, frozenset[str]] = {"": experiments_of(sides)}
    if cells:
        by_cell = pd.concat(sides).groupby([*cells], dropna=False)
        experiments = {values if len(cells) > 1 else values[0]: experiments_of([of]) for values, of in by_cell}
    return Comparison("", table, last, reasons, found.uses_last.reindex(table.index), experiments=experiments)


def experiments_of(frames: Sequence[pd.DataFrame]) -> frozenset[str]:
    """Return the experiments of all runs."""
    return union_of(frozenset(of["experiment"]) for of in frames if "experiment" in of)


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
    compared = compare_sides(measured, sides, ["cell", "pair"], decide, [1, -1])
    base = Contrast("", margin=measured.tie_margin(measure, tie), levels=levels)
    found = dict(compared.split_by_cell(base, measured, decide))
    cells = cells_in_order(measured.runs, measured.placed.cells)  # those in which all runs diverged, too
    for cell, (number, pair) in itertools.product(cells, enumerate(asked)):
        contrast = found.get((cell, number), base)
        if len(contrast.by_seed):
            named = replace(contrast, name=" - ".join(pair), cell=cell, series=pair)
            rows.append((cell, *pair, named.counting_seeds(seen, most=most)[0]))
    return pd.DataFrame(rows, columns=columns)


def mean_of_comparisons(parts: list[Comparison]) -> Comparison:
    """Return the mean of the comparisons, which have the same cells; without runs if one has none."""
    if not all(part.experiments for part in parts):
        return Comparison(f"mean of {len(parts)} comparisons")
    keys = dict.fromkeys(cell for part in parts for cell in part.experiments)
    experiments = {cell: union_of(part.experiments.get(cell, frozenset()) for part in parts) for cell in keys}
    if any(part.table.empty for part in parts):
        return Comparison(f"mean of {len(parts)} comparisons", experiments=experiments)
    tables, last = [part.table for part in parts], [part.last for part in parts]
    mean_last = sum(last[1:], start=last[0]) / len(parts) if all(len(one) for one in last) else pd.DataFrame()
    common = set.intersection(*(set(part.no_answer) for part in parts))
    reasons = {cell: parts[0].no_answer[cell] for cell in common}
    total = sum(tables[1:], start=tables[0]) / len(parts)
    uses_last = pd.concat([part.uses_last for part in parts], axis=1).any(axis=1)
    name, uses_last = f"mean of {len(parts)} comparisons", uses_last.reindex(total.index)
    absent = {text: place for part in parts for text, place in part.absent.items()}
    return Comparison(name, total, mean_last, reasons, uses_last, experiments=experiments, absent=absent)
