"""The chart of a page in a browser: numbers for ``page.js`` and the specification for Vega."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ...analysis.evaluations import GRID_POINTS
from ...analysis.names import axis_label, is_percent, metric_label, series_order
from ...analysis.statistics import CONFIDENCE, MIN_SEEDS
from ...tracking.rundir import SENT
from ..pages.spec import AXES
from ..pages.style import Style

MOST = 380_000  # numbers in one file, up to three bytes each; else the last metrics, then points, are left out
_OTHERS = (
    "panel",
    "series",
    "seed",
    "run",
    "client_steps",
    "wall_time",
    *SENT,
)  # columns that are neither axis nor metric
_PIXELS: dict[str, list[float]] = {"-": [], "--": [8, 4], "-.": [8, 3, 2, 3], ":": [2, 3]}  # of matplotlib's dashes
_FIRST = ("test/accuracy", "test/loss", "train/loss")  # the other metrics follow by name


@dataclass(frozen=True)
class ChartData:
    """Data of a chart.

    points    a row for each evaluation: panel, series, seed, run, axes and metrics (accuracies as shares). Rows without
              a run are a published curve, in the colour of its series
    styles    by series
    settings  (panel, series) -> shown settings of a line, by key
    axis, metric, first  axis, metric and series that are shown first; no series for all
    units     of time, one for each run
    """

    points: pd.DataFrame
    styles: Mapping[str, Style]
    settings: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    axis: str = AXES[0]
    metric: str = _FIRST[0]
    first: Sequence[str] = ()
    units: Sequence[object] = ()


def chart_numbers(shown: ChartData) -> dict[str, Any]:
    """Return the input of page.js: the evaluations of every run by column, and the chart without data."""
    points = shown.points
    axes = [axis for axis in AXES if axis in points and points[axis].notna().any()]
    metrics = _metrics(points, shown.metric)
    kept = metrics[: max(len(_FIRST), MOST // max(1, len(points)) - len(axes))]
    most = max(20, MOST // max(1, points["run"].nunique() * (len(axes) + len(kept))))
    panels = list(dict.fromkeys(points["panel"].map(str)))
    lines: list[dict[str, Any]] = []
    keys = ["panel", "series", points["run"].isna().rename("published")]
    for (panel, series, published), of_line in points.groupby(keys, sort=False):
        series, published = str(series), bool(published)
        settings = {} if published else shown.settings.get((str(panel), series), {})
        runs = [
            {"run": str(run), "seed": f"{of_run['seed'].iloc[0]:.0f}"} | _columns(of_run, [*axes, *kept], most)
            for run, of_run in of_line.groupby("run", sort=False, dropna=False)
        ]
        line = {"panel": panels.index(str(panel)), "name": series + ", published" * published, "of": series}
        lines.append(line | {"published": published, "settings": settings, "runs": runs})
    names = {line["name"]: line for line in lines}
    order = sorted(names, key=lambda name: (series_order(names[name]["of"]), names[name]["published"]))
    styles = {name: shown.styles[names[name]["of"]] for name in order}
    dashes = {  # in pixels
        name: [1.5, 4.0]
        if names[name]["published"]
        else _PIXELS[style.dashes]
        if isinstance(style.dashes, str)
        else [2 * float(part) for part in style.dashes[1]]
        for name, style in styles.items()
    }
    for line in lines:
        line["series"] = order.index(line.pop("name"))
    seeds = range(MIN_SEEDS, max((len(line["runs"]) for line in lines), default=0) + 1)
    return {
        "axis": shown.axis if shown.axis in axes else axes[0] if axes else "",
        "axes": [[axis, axis_label(axis, shown.units)] for axis in axes],
        "metrics": [[metric, metric_label(metric)] for metric in kept],
        "percent": [metric for metric in kept if is_percent(metric)],
        "left_out": [metric_label(metric) for metric in metrics if metric not in kept],
        "panels": panels,
        "series": [{"name": name, "colour": styles[name].colour, "dash": dashes[name]} for name in order],
        "first": [name for name in order if names[name]["of"] in shown.first],
        "lines": sorted(lines, key=lambda line: (line["panel"], line["series"])),
        "t": {n: float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) for n in seeds},
        "grid": GRID_POINTS,
        "chart": chart_spec({name: style.colour for name, style in styles.items()}, dashes) if lines else None,
    }


def chart_spec(colours: Mapping[str, str], dashes: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the chart as Vega-Lite: panels with bands, single runs, means and a mark at the pointer."""
    import altair as alt

    lit = "isolated.length == 0 || indexof(isolated, datum.series) >= 0"

    def faint(value: float) -> Any:
        return alt.condition(lit, alt.value(value), alt.value(value * 0.08))

    colour = alt.Scale(domain=list(colours), range=list(colours.values()))
    dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=list(dashes), range=list(dashes.values())), legend=None)
    base = alt.Chart().encode(
        x=alt.X("x:Q", title="X_TITLE", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(tickCount=6)),
        y=alt.Y("y:Q", title="Y_TITLE", scale=alt.Scale(zero=False)),
        color=alt.Color("series:N", scale=colour, legend=None),
        detail="line:N",
    )
    means, runs = base.transform_filter("datum.kind == 'mean'"), base.transform_filter("datum.kind == 'run'")
    band = means.mark_area(aria=False).encode(y="low:Q", y2="high:Q", opacity=faint(0.14))
    thin = runs.mark_line(strokeWidth=0.8, aria=False).encode(opacity=faint(0.5))
    line = means.mark_line(strokeWidth=2).encode(opacity=faint(1), strokeDash=dash)
    near = alt.selection_point(name="near", on="pointermove", nearest=True, fields=["key"])
    targets = base.transform_filter(lit).mark_point(opacity=0, aria=False).encode(tooltip="key:N").add_params(near)
    mark = base.transform_filter("datum.key == cursor").mark_point(filled=True, size=90, opacity=1, stroke="white")
    layers = alt.layer(band, thin, line, targets, mark.properties(name="cursor"))
    header = alt.Header(labelFontSize=13, labelFontWeight=600, labelAnchor="start", labelColor="#1b1f24")
    facet = alt.Facet("panel:N", title=None, sort=None, header=header)
    whole = layers.facet(facet=facet, columns=2, data=alt.NamedData("shown"))
    whole = whole.add_params(alt.param(name="isolated", value=[]), alt.param(name="cursor", value=""))
    whole = whole.configure(font='system-ui, "Segoe UI", "DejaVu Sans", sans-serif').configure_view(stroke=None)
    grey = {"gridColor": "#e6eaee", "domainColor": "#8b949e", "tickColor": "#8b949e", "titleFontWeight": "normal"}
    return whole.configure_axis(labelFontSize=12, titleFontSize=12.5, titlePadding=8, **grey).to_dict()


def _metrics(points: pd.DataFrame, metric: str) -> list[str]:
    numeric = [str(c) for c in points.select_dtypes("number") if c not in (*AXES, *_OTHERS) and points[c].notna().any()]
    order = list(dict.fromkeys((metric, *_FIRST)))
    return sorted(numeric, key=lambda c: (order.index(c) if c in order else len(order), c))


def _columns(of_run: pd.DataFrame, columns: Sequence[str], most: int) -> dict[str, list]:
    """Return at most ``most`` evenly spread evaluations, with the first and the last; accuracies in percent."""
    if len(of_run) > most:
        of_run = of_run.iloc[np.linspace(0, len(of_run) - 1, most).round().astype(int)]
    found = {}
    for column, values_p in zip(columns, of_run[list(columns)].to_numpy(float).T, strict=True):
        if not np.isnan(values_p).all():
            scaled_p = values_p * 100 if is_percent(column) else values_p
            found[column] = [_round_number(value, 9 if column in AXES else 5) for value in scaled_p.tolist()]
    return found


def _round_number(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.{digits}g}")
