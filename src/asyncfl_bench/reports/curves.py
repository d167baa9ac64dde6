"""Accuracy against what it cost: the mean over seeds as a line, one sample standard deviation as a band.

Legend: s seeds of one row, p points of one run, g points of the common grid.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .load import Run
from .table import Report

# Okabe and Ito's colours for all kinds of colour vision, without the yellow that is too pale for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")

_X_LABELS = {"iteration": "server iterations", "uploads": "uploads received", "virtual_time": "virtual time"}


def mean_curve(curves_s: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grid, mean and sample standard deviation over seeds, each of shape (g,).

    The grid holds every x of any seed, from the first where all seeds have a value. Between its points a run keeps its
    last value, and after its end too: the model no longer changes. One seed has a deviation of 0.
    """
    grid_g = np.unique(np.concatenate([x_p for x_p, _ in curves_s]))
    grid_g = grid_g[grid_g >= max(x_p[0] for x_p, _ in curves_s)]
    values_sg = np.stack([y_p[np.searchsorted(x_p, grid_g, side="right") - 1] for x_p, y_p in curves_s])
    std_g = values_sg.std(axis=0, ddof=1) if len(curves_s) > 1 else np.zeros_like(grid_g)
    return grid_g, values_sg.mean(axis=0), std_g


def draw_curves(report: Report, x: str, path: Path) -> bool:
    """Writes the figure as PNG; False, and no file, when no run measured an accuracy.

    x     ``iteration``, ``uploads`` or ``virtual_time``
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # no window system, and none of pyplot's global state
    axes = figure.add_subplot()
    drawn = 0
    for row in report.rows:
        curves_s = [curve for curve in (run.curve(x) for run in row.runs) if len(curve[0])]
        if not curves_s:
            continue
        grid_g, mean_g, std_g = (100 * part if i else part for i, part in enumerate(mean_curve(curves_s)))
        colour = _COLOURS[drawn % len(_COLOURS)]
        axes.plot(
            grid_g,
            mean_g,
            color=colour,
            linestyle=_DASHES[drawn % len(_DASHES)],
            marker=_MARKERS[drawn % len(_MARKERS)],
            markevery=(0.02 * (drawn % 5), 0.1),  # spread along the line, not at the same places in every line
            markersize=4.5,
            linewidth=1.6,
            label=f"{row.label(report.keys)} (n={len(curves_s)})",
        )
        if len(curves_s) > 1:
            axes.fill_between(grid_g, mean_g - std_g, mean_g + std_g, color=colour, alpha=0.18, linewidth=0)
        drawn += 1
    if not drawn:
        return False
    axes.set_xlabel(_x_label(x, [run for row in report.rows for run in row.runs]))
    axes.set_ylabel("test accuracy [%]")
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if drawn <= 6:
        axes.legend(frameon=False, fontsize=8, handlelength=3.5)
    else:  # a long legend would cover the lines
        columns = 2 if max(len(str(line.get_label())) for line in axes.lines) <= 40 else 1
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=7, handlelength=3.5)
        figure.set_figheight(4.2 + 0.17 * (drawn // columns + 1))
    figure.savefig(path, format="png", bbox_inches="tight")
    return True


def _x_label(x: str, runs: list[Run]) -> str:
    units = {run.settings.get("delay.unit") for run in runs}
    unit = units.pop() if len(units) == 1 else None
    return f"{_X_LABELS[x]} [{unit}]" if x == "virtual_time" and unit else _X_LABELS[x]
