"""Heat maps of final accuracy, all on one colour scale, the numbers written into their cells."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .drawing import new_figure, stretched

_COLOURS = "cividis"  # even in grey, and alike for all kinds of colour vision


@dataclass
class HeatMap:
    """title; mean_rc and std_rc: percent, NaN where there is no run."""

    title: str
    mean_rc: np.ndarray
    std_rc: np.ndarray


def draw_heat_maps(
    maps: list[HeatMap], rows: list[str], columns: list[str], row_label: str, column_label: str, bar: str
):
    """The figure, up to three maps in a row and one colour bar, labelled ``bar``, for all."""
    across = min(3, len(maps))
    down = math.ceil(len(maps) / across)
    width, height = max(2.5, 0.72 * len(columns)), max(1.8, 0.5 * len(rows))
    figure = new_figure(1.6 + (0.5 + width) * across, (0.85 + height) * down)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    known = np.concatenate([one.mean_rc[np.isfinite(one.mean_rc)] for one in maps])
    low, high = stretched(known.min(), known.max()) if len(known) else (0.0, 100.0)
    for place, axes in enumerate(grid.flat):
        if place >= len(maps):
            axes.set_visible(False)
            continue
        one = maps[place]
        axes.imshow(one.mean_rc, cmap=_COLOURS, vmin=low, vmax=high, aspect="auto")
        axes.set_facecolor("white")
        for (row, column), mean in np.ndenumerate(one.mean_rc):
            text, colour = "–", "black"
            if math.isfinite(mean):
                std = one.std_rc[row, column]
                text = f"{mean:.1f}" + (f"\n±{std:.1f}" if math.isfinite(std) else "")
                colour = "white" if mean < low + 0.55 * (high - low) else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour, linespacing=0.95)
        axes.set_title(one.title, fontsize=10)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if place % across == 0:
            axes.set_ylabel(row_label)
        if place + across >= len(maps):
            axes.set_xlabel(column_label)
            axes.tick_params(labelbottom=True)
    image = grid.flat[0].images[0]
    figure.colorbar(image, ax=grid.ravel().tolist(), label=bar, shrink=0.9)
    return figure
