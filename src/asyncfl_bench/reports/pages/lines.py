"""A final value against a setting: one line per series, mean over seeds, bars of one sample standard deviation."""

from __future__ import annotations

import itertools

from .drawing import Line, new_figure, shared_legend, stretched, tidy

Point = tuple[float, float, float]  # x, mean, standard deviation


def draw_lines(lines: list[tuple[Line, list[Point]]], x_label: str, y_label: str = "final test accuracy [%]"):
    """The figure; lines stand a little apart so that their bars do not hide each other."""
    figure = new_figure(6.2, 4.0 + 0.22 * ((len(lines) + 2) // 3))
    axes = figure.add_subplot()
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
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_xticks(xs)
    axes.set_ylim(*stretched(*axes.get_ylim()))
    tidy(axes)
    shared_legend(figure, [line for line, _ in lines])
    return figure
