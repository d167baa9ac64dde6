"""Numbers printed in papers, kept as CSV files beside the page specifications (``papers/PAPER/published/``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache

import pandas as pd

from ..config.part_sources import paper_folders
from .names import WEIGHT, has_value, series_label


@cache
def read_published(paper: str, name: str) -> pd.DataFrame:
    """Return the rows of ``papers/<paper>/published/<name>.csv``; each has a source.

    Adds ``series``, the name on pages, if the file has no such column.
    """
    table = pd.read_csv(paper_folders()[paper] / "published" / f"{name}.csv")
    if "algorithm" in table and "series" not in table:
        weights = table[WEIGHT] if WEIGHT in table else [None] * len(table)
        pairs = zip(table["algorithm"], weights, strict=True)
        table["series"] = [series_label(a, {WEIGHT: w} if isinstance(w, str) else {}) for a, w in pairs]
    return table


@dataclass(frozen=True)
class PublishedNumbers:
    """Which published numbers belong to a page.

    numbers  a file with a row per series and cell
    variants  a file like that one, whose series count where a page has runs of them
    columns  name of a measure -> its column and that of its spread there
    curves   a file with columns seconds, accuracy_percent and series
    startup  a file with startup_seconds of each protocol, by which its clocks are ahead of ours
    instead  key of a cell -> value -> the value whose published numbers are shown; the note names the other model
    note     what else a reader must know to compare
    stand_in  the same, where the runs have another model or other data
    """

    numbers: str
    columns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    variants: str = ""
    curves: str = ""
    startup: str = ""
    instead: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    note: str = ""
    stand_in: str = ""

    def values_of_cell(self, paper: str, cell: pd.Series, series: Collection[str] = ()) -> pd.DataFrame:
        """Return the published values of a cell: index series, columns the measures and ``<measure>_spread``.

        Times are without the start-up. cell: value by key; series: of the page
        """
        of = {key: self.instead.get(str(key), {}).get(str(value), value) for key, value in cell.items()}
        table = read_published(paper, self.numbers)
        if self.variants:
            more = read_published(paper, self.variants)
            table = pd.concat([table, more[more["series"].isin(series)]])
        rows = matching_rows(table, pd.Series(of)).set_index("series")
        late = self._startup(paper, cell)
        found = {}
        for measure, (column, spread) in self.columns.items():
            found[measure] = rows[column] - (late if measure.startswith("time") else 0)
            found[f"{measure}_spread"] = rows[spread]
        return pd.DataFrame(found, index=rows.index)

    def curves_of(self, paper: str, cell: pd.Series) -> dict[str, pd.DataFrame]:
        """Return the columns x (0: clients begin to work) and y [%] of each series."""
        if not self.curves:
            return {}
        rows = matching_rows(read_published(paper, self.curves), cell)
        rows = rows.assign(x=rows["seconds"] - self._startup(paper, cell), y=rows["accuracy_percent"])
        return {str(series): of[["x", "y"]] for series, of in rows[rows["x"] >= 0].groupby("series")}

    def _startup(self, paper: str, cell: pd.Series) -> float:
        if not self.startup:
            return 0.0
        return float(matching_rows(read_published(paper, self.startup), cell)["startup_seconds"].iloc[0])


def matching_rows(table: pd.DataFrame, cell: pd.Series) -> pd.DataFrame:
    """Return the rows of a cell: equal in every key that both have and the row fills in."""
    for key in cell.index.intersection(table.columns):
        table = table[table[key].isna() | has_value(table[key], cell[key])]
    return table
