"""Tables and figures of the parts A, B and C of a step's error (ACE paper, arXiv:2511.19066, table 1).

``analysis/step_errors.py`` defines the parts and the legend.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from ...analysis import names
from ...analysis.step_errors import drift_by_staleness, drift_ratios, error_table
from ...diagnostics.mse import LAGS
from ..pages.page import Page
from ..pages.style import Style
from ..pages.write import Part, Picture, Table, draw_picture
from .figures import Line, Panel, line_panels

_ERROR = {"a2": "E|A|²", "b2": "E|B|²", "c2": "E|C|²", "error": "E|A+B+C|²"}
_NOISE = {"a2": "E|A|²", "a2_predicted": "predicted", "a2_ratio": "ratio", "sigma2": "σ²"}
_DRIFT = {"staleness": "mean staleness", "drift": "mean drift", "drift_slope": "slope", "zeta2": "ζ²"}
_PARTS = {"A, noise": ("a2", "#56B4E9", "o"), "B, bias": ("b2", "#D55E00", "s"), "C, delay": ("c2", "#000000", "^")}
_ZERO = 1e-12  # below this share of the largest part a part is rounding


def error_parts(page: Page) -> list[Part]:
    """Return tables and figures of the runs that were measured."""
    table = error_table(page.runs, page.points)
    table = table.sort_values(
        ["cell", "series"],
        key=lambda labels: labels.map(names.series_order if labels.name == "series" else [*page.cells.index].index),
        ignore_index=True,
    )
    return [
        "## The three parts of the error",
        "Means over steps and seeds, in squared norms of gradients; differences of models are divided by −η_l.",
        _table(page, "table1", table, _ERROR | ({"frozen": "stopped"} if "frozen" in table else {}), whole=True),
        *_parts_figure(page, table),
        "## Noise: predicted by the paper and measured",
        _table(page, "noise", table, _NOISE),
        "## Drift |w_t − w_v|² of a client's model",
        _table(page, "drift", table, _DRIFT),
        *_skews(page, table),
        *_drift_figure(page),
        "## Correlation of the noise with that of k iterations later",
        *_correlation_figure(page, table),
    ]


def _skews(page: Page, table: pd.DataFrame) -> list[Part]:
    skew = next((key for key in page.keys if key.startswith("heterogeneity.")), None)
    if skew is None:
        return []
    ratios = drift_ratios(page.runs, page.with_keys(table).assign(cell=table["cell"]), page.keys, skew)
    if ratios.empty:
        return []
    shown = ratios.assign(drift=ratios["drift"].map(_number), zeta2=ratios["zeta2"].map(_number))
    shown = shown.rename(columns={"series": "algorithm", "drift": "drift ratio", "zeta2": "ζ² ratio"})
    words = shown.shape[1] - 2
    return ["Strongest over weakest skew, at the least staleness of both:", Table("skews", shown, ratios, words)]


def _table(page: Page, name: str, table: pd.DataFrame, columns: dict[str, str], whole: bool = False) -> Table:
    shown: dict[str, Any] = {"cell": table["cell"], "algorithm": table["series"]}
    for column, header in columns.items():
        spread = table[f"{column}_std"] if whole else pd.Series(math.nan, index=table.index)
        shown[header] = [_number(value, std) for value, std in zip(table[column], spread, strict=True)]
    data = table if whole else table[["series", "cell", *columns]]
    return Table(name, pd.DataFrame(shown), page.with_keys(data), 2)


def _parts_figure(page: Page, table: pd.DataFrame) -> list[Picture]:
    names = [series.replace("-", "-\n").replace(" ", "\n") for series in page.series]
    largest, panels = table[["a2", "b2", "c2"]].to_numpy().max(), []
    for cell in page.cells.index:
        lines = []
        for label, (part, colour, marker) in _PARTS.items():
            some = table[(table["cell"] == cell) & (table[part] > _ZERO * largest)]
            x, y, half = some["series"].map(page.series.index), some[part], some[f"{part}_std"]
            x, y, low, high = (values.to_numpy(float) for values in (x, y, (y - half).clip(y / 10), y + half))
            lines.append(Line(label, Style(colour, marker), x, y, low, high, points=True, linked=False))
        panels.append(Panel(str(cell), lines, names=names))
    figure = line_panels(panels, "", "E|·|², squared gradient norm", y_log=True)
    alt = "The three parts of the error; those that are zero to rounding are left out"
    return draw_picture("mse_parts", figure, alt)


def _drift_figure(page: Page) -> list[Picture]:
    panels = {str(cell): Panel(str(cell), []) for cell in page.cells.index}
    for cell, series, of in page.groups(page.runs):
        bins = drift_by_staleness(of)
        line = Line(series, page.styles[series], bins["staleness"].to_numpy(), bins["drift"].to_numpy())
        panels[cell].lines.append(line)
    figure = line_panels([*panels.values()], "staleness [server iterations]", "drift |w_t − w_v|²", x_log=2, y_log=True)
    return draw_picture("mse_drift", figure, "Drift of a client's model against its staleness")


def _correlation_figure(page: Page, table: pd.DataFrame) -> list[Picture]:
    lags = np.array(LAGS, dtype=float)
    panels = []
    for cell in page.cells.index:
        rows = table[table["cell"] == cell].set_index("series")[[f"correlation_{lag}" for lag in LAGS]]
        known = {str(series): row.to_numpy(float) for series, row in rows.iterrows()}
        lines = [Line(s, page.styles[s], lags[~np.isnan(y)], y[~np.isnan(y)]) for s, y in known.items()]
        panels.append(Panel(str(cell), lines))
    figure = line_panels(panels, "k [server iterations]", "correlation of A(t) and A(t+k)", x_log=False, zero=True)
    return draw_picture("mse_correlation", figure, "Correlation of the noise of a step with that of a later one")


def _number(value: float, std: float = math.nan) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2g}" if math.isnan(std) else f"{value:.2g} ± {std:.1g}"
