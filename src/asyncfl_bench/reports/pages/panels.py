"""Accuracy against what it cost, one panel per cell, one line per series: mean over seeds, band of one deviation.

Legend: s seeds, p points of one run, g points of the common grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..curves import mean_curve
from .drawing import Line, new_figure, shared_legend, tidy
from .statistics import monotone

GRID_POINTS = 40
_LOG_FROM = 8  # lines whose ends lie this factor apart share no readable linear axis

Curve = tuple[np.ndarray, np.ndarray]


@dataclass
class Panel:
    """title and lines; curves_s of a line: (x_p, accuracy_p in percent) of every seed; printed: a paper's, dotted."""

    title: str
    lines: list[tuple[Line, list[Curve]]]
    printed: list[tuple[Line, Curve]] = field(default_factory=list)


def band(curves_s: list[Curve], logarithmic: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grid, mean and sample standard deviation over seeds (0 for one seed), each of shape (g,).

    The grid spans what every seed has measured; between its points a run is a straight line. A logarithmic grid starts
    at the first point after 0.
    """
    curves_s = [monotone(x_p, y_p) for x_p, y_p in curves_s]
    end = min(x_p[-1] for x_p, _ in curves_s)
    start = max(x_p[x_p > 0][0] if logarithmic else x_p[0] for x_p, _ in curves_s)
    every = max(len(x_p) for x_p, _ in curves_s)
    if logarithmic:
        grid_g = np.geomspace(start, end, GRID_POINTS)
    elif every <= GRID_POINTS and all(np.array_equal(x_p, curves_s[0][0]) for x_p, _ in curves_s):
        grid_g = curves_s[0][0]
    else:
        grid_g = np.linspace(start, end, GRID_POINTS)
    values_sg = np.stack([np.interp(grid_g, x_p, y_p) for x_p, y_p in curves_s])
    std_g = values_sg.std(axis=0, ddof=1) if len(curves_s) > 1 else np.zeros_like(grid_g)
    return grid_g, values_sg.mean(axis=0), std_g


def draw_panels(
    panels: list[Panel], x_label: str, columns: int = 2, held: bool = False, y_label: str = "test accuracy [%]"
):
    """The figure, panels in rows of ``columns`` with one y axis and one legend for all.

    held  a run keeps its value until its next point, and the x axis is never logarithmic
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    legend = list({line.label: line for panel in panels for line, _ in panel.lines}.values())
    across = 2 if columns == 1 else 3
    figure = new_figure(1.2 + 3.7 * columns, 2.7 * rows + 0.4 + 0.22 * math.ceil(len(legend) / across))
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    ends = [x_p[-1] for panel in panels for _, curves_s in panel.lines for x_p, _ in curves_s]
    logarithmic = not held and max(ends) > _LOG_FROM * max(min(ends), 1e-9) and min(ends) > 0
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        for order, (line, curves_s) in enumerate(panels[place].lines):
            usable_s = [(x_p, y_p) for x_p, y_p in curves_s if len(x_p) and (not logarithmic or x_p[-1] > 0)]
            if not usable_s:
                continue
            grid_g, mean_g, std_g = mean_curve(usable_s) if held else band(usable_s, logarithmic)
            axes.plot(
                grid_g,
                mean_g,
                color=line.look.colour,
                linestyle=line.look.dashes,
                marker=line.look.marker,
                markevery=(0.03 * (order % 5), 0.2),  # spread along the line, not at the same places in every line
                markersize=4.5,
                linewidth=1.5,
                drawstyle="steps-post" if held else "default",
            )
            if len(usable_s) > 1:
                edges = {"step": "post"} if held else {}
                axes.fill_between(
                    grid_g, mean_g - std_g, mean_g + std_g, color=line.look.colour, alpha=0.16, linewidth=0, **edges
                )
        for line, (x_p, y_p) in panels[place].printed:
            axes.plot(x_p, y_p, color=line.look.colour, linestyle=":", linewidth=1.2)
        if logarithmic:
            axes.set_xscale("log")
        axes.set_title(panels[place].title, fontsize=10)
        tidy(axes)
        if place % columns == 0:
            axes.set_ylabel(y_label)
        if place + columns >= len(panels):
            axes.set_xlabel(x_label + (" (log scale)" if logarithmic else ""))
    shared_legend(figure, legend, across)
    return figure
