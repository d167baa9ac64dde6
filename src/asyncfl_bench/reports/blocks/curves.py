"""Blocks that draw a metric or a measure: curves against an axis, against a setting, heat maps over two settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...analysis import evaluations, names
from ...analysis.names import sort_key, value_texts
from ..pages import style
from ..pages.page import Page
from ..pages.spec import LATE, Measure
from ..pages.write import Part, draw_picture
from .comparisons import other_keys
from .figures import Line, Panel, line_panels
from .maps import HeatMap, heat_maps

_DAY = 86_400.0  # seconds


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
        in_days = self.axis == "virtual_time" and {*page.units} == {"seconds"} and ends.max() > 2 * _DAY
        x_label = "virtual time [days]" if in_days else page.axis_label(self.axis)
        y_label = names.metric_label(metric)
        for _, cells in page.cells.groupby(self.split, sort=False) if self.split else [("", page.cells)]:
            panels = [self.build_panel(page, metric, str(cell), log) for cell in cells.index]
            lines = [line for panel in panels for line in panel.lines if len(line.x)]
            for line in lines if in_days else ():
                line.x = line.x / _DAY
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
            pictures += draw_picture(name, figure, alt)
        return [self.heading or "## Curves", *pictures] if pictures else []

    def build_panel(self, page: Page, metric: str, cell: str, log: bool) -> Panel:
        """Return the curves of a cell. log: points are spread as on a logarithmic axis."""
        runs = page.runs[page.runs["cell"] == cell]
        limit, in_time = float(page.measured.limits[runs.index].min()), self.axis == "virtual_time"
        within = page.points if in_time else page.points[page.points["virtual_time"] <= limit]
        lines = []
        for series in [one for one in page.series if one in self.only] if self.only else page.series_in_figures:
            points = within[within["run"].isin(runs.index[runs["series"] == series])]
            curve = evaluations.mean_curve(points, self.axis, metric, log, limit if in_time else None)
            lines.append(_mean_line(series, page.styles[series], curve))
        keys = pd.Series(page.cells.loc[cell])
        if page.spec.published and not self.metric and page.is_papers_experiment(cell) and self.axis == "virtual_time":
            theirs = page.spec.published.curves_of(page.spec.paper, keys)
            for series in [one for one in page.series_in_figures if one in theirs]:
                x, y = (theirs[series][key].to_numpy(float) for key in ("x", "y"))
                lines.append(Line(f"{series}, published", page.styles[series], x, y, dotted=True))
        rest = [key for key in page.keys if key != self.split]
        title = names.cell_label(rest, list(page.cell_texts.loc[cell, rest]))
        return Panel(title, lines, top=100.0 if names.is_percent(metric) else None)


def _mean_line(label: str, look: style.Style, curve: pd.DataFrame) -> Line:
    """Return a curve of ``mean_curve`` as a line, with a band if it is of several seeds."""
    x, y, low, high = (curve[key].to_numpy(float) for key in ("x", "mean", "low", "high"))
    has_band = curve["seeds"].max() > 1
    return Line(label, look, x, y, low if has_band else None, high if has_band else None)


@dataclass(frozen=True)
class MetricsOfSeries:
    """Several metrics along server iterations: a panel per cell and series, a line per metric, mean over seeds with a
    band of one deviation.

    metrics  name of the metric -> label of its line;  y_label: what all of them are
    """

    metrics: Mapping[str, str]
    y_label: str
    name: str
    heading: str

    def __call__(self, page: Page) -> list[Part]:
        looks, panels = style.styles(self.metrics.values()), []
        for cell, series in itertools.product(page.cells.index, page.series_in_figures):
            runs = page.runs[(page.runs["cell"] == cell) & (page.runs["series"] == series)]
            points = page.points[page.points["run"].isin(runs.index)]
            lines = []
            for metric, label in self.metrics.items():
                curve = evaluations.mean_curve(points, "iteration", metric) if metric in points else points[:0]
                if not curve.empty:
                    lines.append(_mean_line(label, looks[label], curve))
            panels.append(Panel(", ".join(filter(None, (str(cell), series))), lines))
        figure = line_panels(panels, page.axis_label("iteration"), self.y_label, x_log=False)
        alt = f"{self.y_label} against server iterations: {', '.join(self.metrics.values())}"
        return [self.heading, *draw_picture(self.name, figure, alt)]


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
                panels.append(Panel(title, self._lines(page, measure, cells), y_label=page.label(measure), top=top))
        label = names.key_label(self.key, page.cells[self.key])
        figure = line_panels(panels, label, "")
        name = "_".join(["against", self.key.rpartition(".")[2], *(m.name for m in self.shown)])
        what = " and ".join(page.label(measure) for measure in self.shown)
        alt = f"{what} against {label}, mean and deviation over seeds"
        return [f"## Against {label}", *draw_picture(name, figure, alt)]

    def _lines(self, page: Page, measure: Measure, cells: pd.DataFrame) -> list[Line]:
        values, lines = page.values(measure), []
        values = values[values["cell"].isin(cells.index)].assign(x=lambda of: of[self.key].astype(float))
        real = {float(of): str(cell) for cell, of in cells[self.key].items() if page.is_papers_experiment(str(cell))}
        theirs = {x: page.published_of(cell).get(measure.kind, pd.Series(dtype=float)) for x, cell in real.items()}
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
    """Heat maps of a measure over two keys.

    One per series, and per value of the cells' other keys, if both are the cells'; else one per cell or one in all.
    """

    rows: str
    columns: str
    measure: Measure = LATE

    def __call__(self, page: Page) -> list[Part]:
        keys = [self.rows, self.columns]
        others = [key for key in page.keys if key not in keys]
        values = page.values(self.measure).set_index("run")[["series", "cell", "value"]].join(page.runs[keys + others])
        own = [key in page.keys for key in keys]
        values["map"] = values["series"] if all(own) else "" if any(own) else values["cell"]
        if all(own):
            for key in others:
                values["map"] += [f", {names.setting_label(key, text)}" for text in value_texts(values[key])]
        for key in keys:
            values[key] = value_texts(values[key])
        ticks = [sorted(set(values[key]) - {"-"}, key=sort_key) for key in keys]
        maps = []
        for title in names.ordered_series(values["map"]):
            means = values[values["map"] == title].groupby(keys)["value"].agg(["mean", "std"])
            both = (means[how].unstack().reindex(index=ticks[0], columns=ticks[1]) for how in ("mean", "std"))
            maps.append(HeatMap(title, *(grid.to_numpy(float) for grid in both)))
        top = 100.0 if self.measure.is_of_metric and names.is_percent(page.metric) else None
        if 1 in map(len, ticks):
            return self._lines(page, maps, ticks, top)
        rows, columns = ([names.short_value(key, text) for text in of] for key, of in zip(keys, ticks, strict=True))
        labels = [names.key_label(key, of) for key, of in zip(keys, ticks, strict=True)]
        figure = heat_maps(maps, rows, columns, labels[0], labels[1], page.label(self.measure), top)
        alt = f"{page.label(self.measure)}, mean ± deviation over seeds, {labels[0]} by {labels[1]}"
        return [f"## {labels[0]} by {labels[1]}", *draw_picture(f"heat_maps_{self.measure.name}", figure, alt)]

    def _lines(self, page: Page, maps: list[HeatMap], ticks: list[list[str]], top: float | None) -> list[Part]:
        """Return the maps of one row or column as lines with bars of one deviation."""
        varied = int(len(ticks[0]) == 1)
        key, values = (self.rows, self.columns)[varied], ticks[varied]
        looks = page.styles | style.styles({one.title for one in maps} - {*page.styles})
        lines = []
        for one in maps:
            mean, half = one.mean_rc.ravel(), np.nan_to_num(one.half_rc.ravel())
            known = np.isfinite(mean)
            x, y, half = np.arange(len(mean), dtype=float)[known], mean[known], half[known]
            lines.append(Line(one.title, looks[one.title], x, y, y - half, y + half, points=True))
        label = names.key_label(key, values)
        panel = Panel("", lines, top=top, names=[names.short_value(key, text) for text in values])
        figure = line_panels([panel], label, page.label(self.measure))
        alt = f"{page.label(self.measure)} against {label}, mean and deviation over seeds"
        return [f"## Against {label}", *draw_picture(f"line_{self.measure.name}", figure, alt)]
