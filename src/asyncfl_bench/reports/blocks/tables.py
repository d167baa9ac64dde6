"""Blocks that show numbers as tables: at equal budgets, any measures, staleness, searches and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ...analysis import names
from ...analysis.differences import value_texts
from ...analysis.place import cells_in_order
from ...analysis.published import matching_rows, read_published
from ...tracking.runs import setting_text
from ..pages.page import Page
from ..pages.spec import BEST, TO_90, UPLOADS, Measure
from ..pages.write import Part, Table, format_number, mean_and_deviation

MEAN_STALENESS = "summary.arrivals.staleness_mean"
_WIDE = 6  # more cells than this become rows
_LONG, _TOP = 30, 10  # a search with more rows is shown in part: its first, the published choice, its last


@dataclass(frozen=True)
class Accuracies:
    """The metric at the largest budget of the axis that all runs of a cell spent: a row a series, a column a cell."""

    axis: str

    def __call__(self, page: Page) -> list[Part]:
        measure = Measure("equal", self.axis)
        values = page.values(measure)
        if values.empty:
            return []
        table = pd.DataFrame({"algorithm": [*page.series, "budget", "ended first"]})
        for cell in page.cells.index:
            own = dict(list(values[values["cell"] == cell].groupby("series")))
            most = max(map(len, own.values()), default=0)
            means = {series: of["value"].mean() for series, of in own.items()}
            best = min(means.values()) if page.is_lower_better(measure) else max(means.values())
            first = [
                series
                for series in page.series
                if series in own and own[series]["end"].min() == own[series]["budget"].min()
            ]
            texts = []
            for series in page.series:
                of = own.get(series, values[:0])
                marks = " ~" if len(of) and of["evaluations"].min() < 2 else ""
                marks += " (best)" if means.get(series) == best and len(own) > 1 else ""
                marks += f" ({len(of)} of {most} seeds)" if 0 < len(of) < most else ""
                texts.append(mean_and_deviation(of["value"], page.decimals(measure)) + marks)
            budget = f"{values.loc[values['cell'] == cell, 'budget'].max():.6g}"
            everyone = len(first) == len(own) > 1
            few = len(first) <= 2
            table[cell or "all"] = [
                *texts,
                budget,
                "all" if everyone else ", ".join(first) if few else f"{len(first)} series",
            ]
        if len(page.cells) > _WIDE:  # many cells read better downwards
            table = table.set_index("algorithm").T.rename_axis("cell").reset_index()
        groups = values.groupby(["cell", "series"], sort=False)
        data = groups["budget"].max().to_frame()
        unit = "_percent" if names.is_percent(page.metric) else ""
        data[[f"mean{unit}", f"std{unit}", "seeds"]] = groups["value"].agg(["mean", "std", "size"])
        data = page.with_keys(data.reset_index()).assign(axis=self.axis)
        title = f"{page.label(measure).capitalize()}, the largest that all runs of a cell spent; ~: mostly interpolated"
        return [f"**{title}**", Table(f"accuracy_{self.axis}", table, data)]


@dataclass(frozen=True)
class Values:
    """Rows: cells and series; columns: measures. A second table, for its CSV file only, has a row a run."""

    shown: tuple[Measure, ...]
    heading: str = "## Reached"

    def __call__(self, page: Page) -> list[Part]:
        by_run = page.runs[["series", "cell", "seed"]].copy()
        for measure in self.shown:
            by_run[measure.name] = page.values(measure).set_index("run")["value"]
        lost = page.placed.left_out.query("reason == 'diverged'").groupby(["cell", "series"]).size()
        groups = by_run.groupby(["cell", "series"])
        own = {place: of for place, of in groups}
        cells = [*page.cells.index, *sorted({cell for cell, _ in lost.index} - set(page.cells.index))]
        series = sorted({*page.series, *(name for _, name in lost.index)}, key=names.series_order)
        places = [(cell, name) for cell in cells for name in series if (cell, name) in own or (cell, name) in lost]
        data = groups[[m.name for m in self.shown]].agg(["mean", "std", "count"]).reindex(places)
        data.columns = ["_".join(name).removesuffix("_mean") for name in data.columns]
        data["seeds"] = groups.size().reindex(places).fillna(0).astype(int)
        data["diverged"] = lost.reindex(places).fillna(0).astype(int)
        table = pd.DataFrame(places, columns=["cell", "algorithm"])
        for measure in self.shown:
            texts = [
                mean_and_deviation(own[p][measure.name] if p in own else (), page.decimals(measure)) for p in places
            ]
            table[page.label(measure)] = texts
        for count in ["seeds", *(["diverged"] if data["diverged"].any() else [])]:
            table[count] = data[count].astype(str).to_list()
        data = page.with_keys(data.rename_axis(["cell", "series"]).reset_index())
        whole = Table("measured", table if page.keys else table.drop(columns="cell"), data, 2 if page.keys else 1)
        return [self.heading, whole, Table("measured_by_seed", None, page.with_keys(by_run))]


@dataclass(frozen=True)
class Staleness:
    """The mean staleness of uploads beside the delays that made it: a row a series, a column for each law of delays.
    The same mean delay gives quite different ones, by the clock, by who waits for whom and by how speeds are spread."""

    def __call__(self, page: Page) -> list[Part]:
        if MEAN_STALENESS not in page.runs:
            return []
        keys = ["delay", *(key for key in page.keys if key.startswith("delay.") or key in ("clock", "tick_rounding"))]
        runs = page.runs[["series", *keys]].assign(value=pd.to_numeric(page.runs[MEAN_STALENESS]))
        words = pd.DataFrame({key: value_texts(runs[key]) for key in keys}, index=runs.index)
        runs["law"] = [names.cell_label(keys, list(row)) for row in words.itertuples(index=False)]
        laws = cells_in_order(runs.rename(columns={"law": "cell"}), keys)
        table = pd.DataFrame({"algorithm": page.series})
        for law in laws:
            of = runs[runs["law"] == law].groupby("series")["value"]
            own = {str(series): values for series, values in of}
            table[law] = [mean_and_deviation(own.get(series, ()), 2) for series in page.series]
        data = runs.groupby(["series", *keys], sort=False)["value"].agg(["mean", "std", "size"]).reset_index()
        title = "**Mean staleness of an upload [server iterations]**, over runs; β is what the paper gives of a delay"
        return [title, Table("staleness", table, data)]


@dataclass(frozen=True)
class Search:
    """Per cell all settings of a search, best first, with the published choice marked, and the margins of each key.

    file  of the published choices; keys: its columns that were searched
    """

    file: str
    keys: tuple[str, ...]

    def __call__(self, page: Page) -> list[Part]:
        parts: list[Part] = []
        keys, shown_measures = list(self.keys), (BEST, TO_90, UPLOADS)
        found = {m.name: page.values(m).set_index("run")["value"] for m in shown_measures}
        for cell in page.cells.index:
            groups = page.runs[page.runs["cell"] == cell].assign(**found).groupby(keys)
            grid = groups[[*found]].mean().assign(seeds=groups.size())
            grid.insert(0, "rank", grid["best"].rank(method="min", ascending=False))
            grid = grid.sort_values(["rank", "time_to_90"], kind="stable").reset_index()
            rows = matching_rows(read_published(page.spec.paper, self.file), pd.Series(page.cells.loc[cell]))
            theirs = rows[keys].astype(float)
            grid["published"] = [(theirs == row).all(axis=1).any() for row in grid[keys].astype(float).to_numpy()]
            ends = (grid.index < _TOP) | (grid.index >= len(grid) - 3)
            kept = grid[ends | grid["published"]] if len(grid) > _LONG else grid
            table = pd.DataFrame({"rank": kept["rank"].map(lambda rank: format_number(rank, "", 0))})
            for key in keys:
                table[names.key_label(key)] = pd.Series(value_texts(grid[key]), index=grid.index)[kept.index]
            by_place = {place: of for place, of in groups}
            for measure in shown_measures:
                places = kept[keys].itertuples(index=False, name=None)
                table[page.label(measure)] = [
                    mean_and_deviation(by_place[p][measure.name], page.decimals(measure)) for p in places
                ]
            marks = {"best here": kept["rank"] == 1, "the paper's": kept["published"]}
            table[""] = [", ".join(text for text, at in marks.items() if at[i]) for i in kept.index]
            name = setting_text(page.cells.loc[cell].iloc[0]).rpartition("/")[2]
            parts += [f"## {cell}: {len(kept)} of {len(grid)} settings", Table(f"grid_{name}", table, grid)]
            if len(keys) > 2:
                parts.append(self._margins(grid, name))
        return parts

    def _margins(self, grid: pd.DataFrame, name: str) -> Table:
        """What each value of each key comes to over all values of the others."""
        rows = [
            (key, value, *of["best"].agg(["max", "median", "min"]), len(of), bool(of["published"].any()))
            for key in self.keys
            for value, of in grid.groupby(key)
        ]
        data = pd.DataFrame(rows, columns=["key", "value", "best", "median", "worst", "settings", "published"])
        table = data.assign(key=data["key"].map(names.key_label), value=value_texts(data["value"]))
        for column in ("best", "median", "worst"):
            table[column] = data[column].map(format_number)
        table["published"] = np.where(data["published"], "the paper's", "")
        return Table(f"margins_{name}", table.rename(columns={"key": "hyper-parameter", "published": ""}), data, 2)


@dataclass(frozen=True)
class Counts:
    """Numbers that seeds share beside published ones: a row per cell and series.

    columns  header -> a column of ``load_runs`` or a measure
    file     of published numbers by algorithm (and rule); printed: header -> its column
    """

    name: str
    columns: Mapping[str, str]
    file: str = ""
    printed: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, page: Page) -> list[Part]:
        place = {(c, s): n for n, (c, s) in enumerate((c, s) for c in page.cells.index for s in page.series)}
        runs = page.runs.drop_duplicates(["cell", "series"])
        runs = runs.iloc[np.argsort([place[both] for both in zip(runs["cell"], runs["series"], strict=True)])]
        data, source = runs[["cell", "series"]].copy(), ""
        for header, column in self.columns.items():
            data[header] = page.values(Measure(column)).set_index("run")["value"]
        if self.file:
            theirs = read_published(page.spec.paper, self.file)
            found = [
                matching_rows(theirs, run.reindex(["algorithm", "algorithm.rule"]).dropna())
                for _, run in runs.iterrows()
            ]
            for header, column in self.printed.items():
                data[header] = [str(rows[column].iloc[0]) if len(rows) else "-" for rows in found]
            source = f"Published: {'; '.join(sorted(set(theirs['source'])))}."
        table = data.rename(columns={"series": "algorithm"}).map(_count)
        return [Table(self.name, table, page.with_keys(data), 2), source]


def _count(value: object) -> str:
    if isinstance(value, str):
        return value
    found = math.nan if value is None else float(str(value))
    return format_number(found, "", 0 if found != found or found.is_integer() else 3)
