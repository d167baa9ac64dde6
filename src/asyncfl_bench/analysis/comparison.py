"""The comparisons that a claim asks for, before they are split by cell.

Legend: a table has a row a cell and a column a seed. Values are turned so that larger is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from .contrasts import union_of


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim before it is split by cell: its table, and the same by the last value."""

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
