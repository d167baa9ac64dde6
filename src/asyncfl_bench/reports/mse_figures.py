"""Figures of the error's parts: one panel per setting, one colour per algorithm in all of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from ..diagnostics.correlation import LAGS
from .load import Run
from .mse_table import ORDER, drift_by_staleness, in_order, keys_of, measured_runs

PARTS = (
    ("a2", "A, noise", "#56B4E9", ""),
    ("b2", "B, bias", "#D55E00", "//"),
    ("c2", "C, delay", "#000000", ""),
)
ZERO = 1e-12  # below this share of the largest bar a part is rounding


def draw_parts(table: pd.DataFrame, keys: list[str], path: Path) -> None:
    """E|A|^2, E|B|^2 and E|C|^2 as bars on a logarithmic axis; a part that is zero to rounding is written as 0."""
    figure, panels = _panels(table, keys, "E|·|², squared gradient norm")
    values = table[[name for name, *_ in PARTS]].to_numpy()
    floor = values[values > ZERO * values.max()].min() / 3
    names = _algorithms(table)
    for axes, cell in panels:
        places = np.array([names.index(name) for name in cell["algorithm"]])
        for shift, (name, label, colour, hatch) in enumerate(PARTS):
            x, height = places + 0.27 * (shift - 1), cell[name].to_numpy()
            zero = height <= ZERO * values.max()
            axes.bar(x[~zero], height[~zero], 0.25, color=colour, hatch=hatch, edgecolor="white", label=label)
            for place in x[zero]:
                axes.text(place, floor * 1.15, "0", ha="center", color=colour, fontsize=9, fontweight="bold")
        axes.set_yscale("log")
        axes.set_ylim(bottom=floor)
        shown_names = [name.replace("delay_adaptive_", "delay-ad.\n") for name in names]
        axes.set_xticks(range(len(names)), shown_names, fontsize=7)
    _save(figure, panels, path)


def draw_drift(runs: list[Run], path: Path) -> None:
    """Mean |w_t - w^{v}|^2 of the uploads against their staleness, both logarithmic."""
    runs = measured_runs(runs)
    keys = keys_of(runs)
    cells = pd.DataFrame([{"algorithm": run.algorithm, "run": run} | {k: run.value(k) for k in keys} for run in runs])
    cells = in_order(cells, keys)
    figure, panels = _panels(cells, keys, "drift |w_t − w_v|²", "staleness [server iterations]")
    for axes, cell in panels:
        for name in _algorithms(cell):
            bins = drift_by_staleness(cell["run"][cell["algorithm"] == name].tolist())
            axes.plot(bins["staleness"], bins["drift"], label=name, markersize=4, linewidth=1.5, **_look(name, cells))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    _save(figure, panels, path)


def draw_correlation(table: pd.DataFrame, keys: list[str], path: Path) -> None:
    """Correlation of a step's noise with that of k iterations later."""
    figure, panels = _panels(table, keys, "correlation of A(t) and A(t+k)", "k [server iterations]")
    for axes, cell in panels:
        axes.axhline(0, color="0.6", linewidth=0.8)
        for _, row in cell.iterrows():
            values = [row[f"correlation_{lag}"] for lag in LAGS]
            look = _look(row["algorithm"], table)
            axes.plot(LAGS, values, label=row["algorithm"], markersize=4, linewidth=1.5, **look)
    _save(figure, panels, path)


def _algorithms(table: pd.DataFrame) -> list[str]:
    known = set(table["algorithm"])
    return [name for name in ORDER if name in known] + sorted(known - set(ORDER))


def _look(name: str, table: pd.DataFrame) -> dict:
    """The colour, mark and dash of an algorithm: the same on every page."""
    from .pages.looks import look

    one = look(name)
    return {"color": one.colour, "marker": one.marker, "linestyle": one.dashes}


def _panels(table: pd.DataFrame, keys: list[str], y: str, x: str = ""):
    """The figure, and (axes, rows of the table) for every setting."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = list(table.groupby(keys, sort=False)) if keys else [((), table)]
    columns = 1 if len(cells) == 1 else 2
    rows = math.ceil(len(cells) / columns)
    figure = Figure(figsize=(4.6 * columns, 0.5 + 2.9 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(cells) :]:
        axes.set_visible(False)
    for place, (axes, (values, _)) in enumerate(zip(grid.flat, cells, strict=False)):
        words = zip(keys, values, strict=True)
        axes.set_title(", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in words), fontsize=9)
        axes.grid(alpha=0.3, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if place % columns == 0:
            axes.set_ylabel(y, fontsize=9)
        if place >= len(cells) - columns:
            axes.set_xlabel(x, fontsize=9)
    return figure, [(axes, cell) for axes, (_, cell) in zip(grid.flat, cells, strict=False)]


def _save(figure, panels, path: Path) -> None:
    labelled: dict = {}
    for axes, _ in panels:
        handles, labels = axes.get_legend_handles_labels()
        labelled |= dict(zip(labels, handles, strict=True))
    figure.legend(
        labelled.values(),
        labelled.keys(),
        loc="outside lower center",
        ncols=min(6, len(labelled)),
        frameon=False,
        fontsize=8,
    )
    figure.savefig(path, format="png")
