"""Figures of maps: numbers over two settings, and labels over clients. They take arrays and labels, no runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .figures import COLOURS, panel_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass
class HeatMap:
    """mean_rc, and half_rc written beside it: shape (rows, columns), NaN where there is no run."""

    title: str
    mean_rc: np.ndarray
    half_rc: np.ndarray


def heat_maps(
    maps: Sequence[HeatMap],
    rows: Sequence[str],
    columns: Sequence[str],
    row_label: str,
    column_label: str,
    bar: str,
    top: float | None = None,
    decimals: int = 1,
) -> Figure | None:
    """Return up to three maps in a row on one colour scale; numbers are written into their cells. Empty maps are left
    out; None if no map is left. bar: what the colour means; top: of the scale; decimals: of the numbers."""
    maps = [one for one in maps if np.isfinite(one.mean_rc).any()]
    if not maps:
        return None
    has_halves = any(np.isfinite(one.half_rc).any() for one in maps)  # a second line in each cell
    width, height = max(2.3, 0.72 * len(columns)), max(1.3, (0.5 if has_halves else 0.24) * len(rows))
    known = np.concatenate([one.mean_rc[np.isfinite(one.mean_rc)] for one in maps])
    middle, half = (known.min() + known.max()) / 2, max(known.max() - known.min(), 5.0) / 2
    shift = max(0.0, middle + half - top) if top is not None else 0.0
    low, high = middle - half - shift, middle + half - shift
    sizes, look = (1.7, 0.3, 0.4 + width, 0.75 + height), {"vmin": low, "vmax": high}
    figure, drawn = _draw_maps({one.title: one.mean_rc for one in maps}, sizes, look, row_label, column_label, bar)
    for axes, one in zip(drawn, maps, strict=True):
        for (row, column), mean in np.ndenumerate(one.mean_rc):
            text, colour = "–", "black"
            if math.isfinite(mean):
                half_width = one.half_rc[row, column]
                text = f"{mean:.{decimals}f}" + (f"\n±{half_width:.1f}" if math.isfinite(half_width) else "")
                colour = "white" if mean < low + 0.55 * (high - low) else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour, linespacing=0.95)
        slant: dict[str, Any] = {"rotation": 30, "ha": "right"} if max(map(len, columns)) > 12 else {}
        axes.set_xticks(range(len(columns)), columns, **slant)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
    for axes in drawn[-3:]:
        axes.tick_params(labelbottom=True)
    return figure


def label_maps(maps: Mapping[str, np.ndarray]) -> Figure | None:
    """Return up to three maps in a row: the share of each label (rows) among the samples of each client (columns) in
    percent, by title. Clients are in the order of their most frequent label. None without a map that has clients and
    labels."""
    maps = {title: share_cn for title, share_cn in maps.items() if share_cn.size}
    look = {"vmin": 0, "vmax": 100, "interpolation": "nearest"}
    labels = "label", "clients, by their most frequent label", "share of a client's samples [%]"
    return _draw_maps(maps, (1.4, 0.5, 3.4, 2.2), look, *labels)[0] if maps else None


def _draw_maps(
    maps: Mapping[str, np.ndarray],
    sizes: tuple[float, float, float, float],
    look: Mapping[str, Any],
    row_label: str,
    column_label: str,
    bar: str,
) -> tuple[Figure, list[Axes]]:
    """Return up to three maps in a row on one colour scale, and their axes.

    sizes  width and height of the figure without its maps, and of each map [inches];  look: of ``Axes.imshow``
    """
    across = min(3, len(maps))
    size = sizes[0] + sizes[2] * across, sizes[1] + sizes[3] * math.ceil(len(maps) / across)
    figure, grid = panel_grid(len(maps), across, *size, sharex=True, sharey=True)
    for (axes, is_left, is_lowest), (title, value_rc) in zip(grid, maps.items(), strict=True):
        image = axes.imshow(value_rc, cmap=COLOURS, aspect="auto", **look)
        axes.set_title(title, fontsize=10)
        axes.spines[:].set_visible(False)
        if is_left:
            axes.set_ylabel(row_label)
        if is_lowest:
            axes.set_xlabel(column_label)
    figure.colorbar(image, ax=figure.axes, label=bar, shrink=0.9)
    return figure, [axes for axes, *_ in grid]
