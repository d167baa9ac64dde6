"""A value against a setting: one line per series, mean over seeds, bars of one sample standard deviation."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .drawing import Line, new_figure, shared_legend, stretched, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float, float]  # x, mean, standard deviation


@dataclass
class LinePanel:
    """One pair of axes. printed: a paper's numbers, dotted, in the colours of ``lines``."""

    title: str
    y_label: str
    lines: list[tuple[Line, list[Point]]]
    printed: list[tuple[Line, list[tuple[float, float]]]] = field(default_factory=list)


def draw_lines(lines: list[tuple[Line, list[Point]]], x_label: str, y_label: str = "final test accuracy [%]"):
    """The figure with one panel."""
    figure = new_figure(6.2, 4.0 + 0.22 * ((len(lines) + 2) // 3))
    axes = figure.add_subplot()
    _draw(axes, LinePanel("", y_label, lines))
    axes.set_xlabel(x_label)
    shared_legend(figure, [line for line, _ in lines])
    return figure


def draw_line_panels(panels: list[LinePanel], x_label: str, columns: int = 2):
    """The figure, panels in rows of ``columns``, each with its own y axis, one legend for all."""
    legend = list({line.label: line for panel in panels for line, _ in panel.lines}.values())
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(0.6 + 4.2 * columns, 2.8 * rows + 0.4 + 0.22 * math.ceil(len(legend) / 3))
    for panel, axes in zip(panels, figure.subplots(rows, columns, squeeze=False).flat, strict=False):
        _draw(axes, panel)
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(x_label)
    shared_legend(figure, legend)
    return figure


def _draw(axes: Axes, panel: LinePanel) -> None:
    """Lines stand a little apart so that their bars do not hide each other."""
    lines = panel.lines
    xs = sorted({x for _, points in lines for x, _, _ in points})
    gap = min((b - a for a, b in itertools.pairwise(xs)), default=1.0)
    for order, (line, points) in enumerate(lines):
        shift = gap * 0.3 * ((order + 0.5) / len(lines) - 0.5)
        axes.errorbar(
            [x + shift for x, _, _ in points],
            [mean for _, mean, _ in points],
            yerr=[0.0 if std != std else std for _, _, std in points],
            color=line.look.colour,
            linestyle=line.look.dashes,
            marker=line.look.marker,
            markersize=5,
            linewidth=1.5,
            elinewidth=0.9 if len(lines) <= 6 else 0.6,
            capsize=2,
        )
    for line, printed in panel.printed:
        axes.plot(*zip(*printed, strict=True), color=line.look.colour, linestyle=":", linewidth=1.2)
    axes.set_ylabel(panel.y_label)
    axes.set_xticks(xs)
    axes.set_ylim(*stretched(*axes.get_ylim()))
    tidy(axes)
