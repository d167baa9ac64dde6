"""What pages are made of. A block is a few settings; called with a page it gives tables, figures and headings.

Those that compare are in ``comparisons.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..analysis import measures as measured
from ..analysis import names
from ..analysis.differences import sort_key, value_texts
from ..analysis.place import cells_in_order
from ..analysis.published import matching_rows, read_published
from ..tracking.runs import setting_text
from .comparisons import BEST, FINAL, TO_90, UPLOADS, other_keys
from .figures import HeatMap, Line, Panel, heat_maps, line_panels
from .page import Page
from .spec import Measure
from .write import Part, Picture, Table, format_number, mean_and_deviation

MEAN_STALENESS = "summary.arrivals.staleness_mean"
_WIDE = 6  # more cells than this become rows
_LONG, _TOP = 30, 10  # a search with more rows is shown in part: its first, the published choice, its last


@dataclass(frozen=True)
class Curves:
    """The metric against an axis: a panel per cell, mean over seeds with a band of one deviation; published dotted.
    Uploads have a logarithmic axis, others where runs end far apart.

    metric  instead of the page's; only: series; split: a key of the cells with a figure for each of its values
    name    of the files, where a page draws an axis twice
    """

    axis: str = "iteration"
    metric: str = ""
    only: tuple[str, ...] = ()
    split: str = ""
    columns: int = 2
    heading: str = ""
    name: str = "curves"

    def __call__(self, page: Page) -> list[Part]:
        metric = self.metric or page.metric
        if metric not in page.points or self.axis not in page.points:
            return []
        pictures: list[Part] = []
        ends = page.points.groupby("run")[self.axis].max()
        far = self.axis == "uploads" or bool(ends.max() > 8 * ends.min() > 0)
        log = far and page.spec.limit == math.inf
        x_label, y_label = page.axis_label(self.axis), names.metric_label(metric)
        for _, cells in page.cells.groupby(self.split, sort=False) if self.split else [("", page.cells)]:
            panels = [self._build_panel(page, metric, str(cell), log) for cell in cells.index]
            lines = [line for panel in panels for line in panel.lines if len(line.x)]
            if not lines:
                continue
            figure = line_panels(panels, x_label, y_label, columns=self.columns, x_log=log)
            value = page.cell_texts.loc[cells.index[0], self.split] if self.split else ""
            end = self.axis
            if self.split:
                end = f"{self.split.rpartition('.')[2]}{value}".replace(".", "_").replace("/", "_")
                end += f"_{self.axis}" if self.axis != "virtual_time" else ""
            name = f"{metric.rpartition('/')[2] if self.metric else self.name}_{end}"
            where = f", {names.setting_label(self.split, value)}" if self.split else ""
            over = "mean and deviation over seeds" if any(line.low is not None for line in lines) else "one seed"
            alt = f"{y_label} against {x_label}{where}, {over}"
            pictures.append(Picture(name, figure, alt))
        return [self.heading or f"## Against {names.AXES[self.axis]}", *pictures] if pictures else []

    def _build_panel(self, page: Page, metric: str, cell: str, log: bool) -> Panel:
        runs = page.runs[page.runs["cell"] == cell]
        limit, in_time = page.limit_of(cell), self.axis == "virtual_time"
        within = page.points if in_time else page.points[page.points["virtual_time"] <= limit]
        lines = []
        for series in [one for one in page.series if one in self.only] if self.only else page.series_in_figures:
            points = within[within["run"].isin(runs.index[runs["series"] == series])]
            curve = measured.mean_curve(points, self.axis, metric, log, limit if in_time else None)
            x, y, *band = (curve[key].to_numpy(float) for key in ("x", "mean", "low", "high"))
            lines.append(Line(series, page.styles[series], x, y, *(band if curve["seeds"].max() > 1 else ())))
        keys = pd.Series(page.cells.loc[cell])
        if page.spec.published and not self.metric and page.is_real(cell) and self.axis == "virtual_time":
            theirs = page.spec.published.curves_of(page.spec.paper, keys)
            for series in [one for one in page.series_in_figures if one in theirs]:
                x, y = (theirs[series][key].to_numpy(float) for key in ("x", "y"))
                lines.append(Line(f"{series}, published", page.styles[series], x, y, dotted=True))
        rest = [key for key in page.keys if key != self.split]
        title = names.cell_label(rest, list(page.cell_texts.loc[cell, rest]))
        return Panel(title, lines, top=100.0 if names.is_percent(metric) else None)


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
        title = f"{measure.label(page).capitalize()}, the largest that all runs of a cell spent; ~: mostly interpolated"
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
            table[measure.label(page)] = texts
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
class MeasureBySetting:
    """Measures against a numeric key of the cells: a panel per measure and value of the others; published dotted."""

    key: str
    shown: tuple[Measure, ...]

    def __call__(self, page: Page) -> list[Part]:
        panels = []
        for title, cells in other_keys(page, self.key):
            for measure in self.shown:
                top = 100.0 if measure.is_of_metric and names.is_percent(page.metric) else None
                panels.append(Panel(title, self._lines(page, measure, cells), measure.label(page), top))
        if not any(len(line.x) for panel in panels for line in panel.lines):
            return []  # runs that did not count what is measured
        label = names.key_label(self.key, page.cells[self.key])
        figure = line_panels(panels, label, "")
        name = "_".join(["against", self.key.rpartition(".")[2], *(m.name for m in self.shown)])
        what = " and ".join(measure.label(page) for measure in self.shown)
        return [Picture(name, figure, f"{what} against {label}, mean and deviation over seeds")]

    def _lines(self, page: Page, measure: Measure, cells: pd.DataFrame) -> list[Line]:
        values, lines = page.values(measure), []
        values = values[values["cell"].isin(cells.index)].assign(x=lambda of: of[self.key].astype(float))
        real = {float(of): str(cell) for cell, of in cells[self.key].items() if page.is_real(str(cell))}
        theirs = {x: page.published_of(cell).get(measure.name, pd.Series(dtype=float)) for x, cell in real.items()}
        for series in page.series_in_figures:
            own = values[values["series"] == series].groupby("x")["value"].agg(["mean", "std"]).dropna(subset="mean")
            x, y, std = own.index.to_numpy(float), own["mean"].to_numpy(), own["std"].to_numpy()
            lines.append(Line(series, page.styles[series], x, y, y - std, y + std, points=True))
            known = {x: of[series] for x, of in sorted(theirs.items()) if series in of.index}
            dotted = np.array([*known], dtype=float), np.array([*known.values()], dtype=float)
            lines.append(Line(f"{series}, published", page.styles[series], *dotted, dotted=True))
        return lines


@dataclass(frozen=True)
class HeatMaps:
    """Heat maps of a measure over two keys: one per series if both are the cells', else one per cell or one in all."""

    rows: str
    columns: str
    measure: Measure = FINAL

    def __call__(self, page: Page) -> list[Part]:
        keys = [self.rows, self.columns]
        values = page.values(self.measure).set_index("run")[["series", "cell", "value"]].join(page.runs[keys])
        own = [key in page.keys for key in keys]
        values["map"] = values["series"] if all(own) else "" if any(own) else values["cell"]
        for key in keys:
            values[key] = value_texts(values[key])
        ticks = [sorted(set(values[key]) - {"-"}, key=sort_key) for key in keys]
        maps = []
        for title in sorted(set(values["map"]), key=names.series_order):
            means = values[values["map"] == title].groupby(keys)["value"].agg(["mean", "std"])
            both = (means[how].unstack().reindex(index=ticks[0], columns=ticks[1]) for how in ("mean", "std"))
            maps.append(HeatMap(title, *(grid.to_numpy(float) for grid in both)))
        if not any(np.isfinite(one.mean_rc).any() for one in maps):
            return []
        rows, columns = ([names.short_value(key, text) for text in of] for key, of in zip(keys, ticks, strict=True))
        labels = [names.key_label(key, of) for key, of in zip(keys, ticks, strict=True)]
        top = 100.0 if self.measure.is_of_metric and names.is_percent(page.metric) else None
        figure = heat_maps(maps, rows, columns, labels[0], labels[1], self.measure.label(page), top)
        alt = f"{self.measure.label(page)}, mean ± deviation over seeds, {labels[0]} by {labels[1]}"
        return [Picture(f"heat_maps_{self.measure.name}", figure, alt)]


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
                table[measure.label(page)] = [
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
