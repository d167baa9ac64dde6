"""One figure of a page under several profiles: a panel per profile, whose runs are never averaged."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..analysis import names
from ..analysis.contrasts import best_methods
from ..analysis.selection import grid_of, page_overrides
from ..analysis.statistics import mean_interval
from ..config.part_sources import page_name
from ..errors import BenchError
from ..files import show
from .assembly import measured_page
from .blocks import Curves
from .blocks.figures import Line, Panel, line_panels
from .pages.page import Page
from .pages.spec import PageSpec
from .pages.write import Picture, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_APART = 0.065  # share of the y axis: least distance of two names at the ends of lines
_STEPS = {"fair": "searched steps", "published": "printed steps", "released": "steps of the authors' code"}


def write_beside(specs: Sequence[PageSpec], runs: pd.DataFrame, out: Path, given: argparse.Namespace) -> int:
    """Write the figure of each page into ``out``, at the scale and length of ``given``. Returns the exit code.

    runs  of ``load_runs``
    Raises BenchError where a profile has no runs, or the profiles have no cell in common.
    """
    scale, length = given.scale or "full", given.length or "standard"
    for spec in specs:
        choices = [(spec.sweep, profile, scale, length) for profile in given.beside]
        grids = [grid_of(*chosen, page_overrides(runs, *chosen)) for chosen in choices]
        pages = [measured_page(spec, grid, runs, given.metric) for grid in grids]
        picture = picture_beside(pages, page_name("-".join(given.beside), scale, length))
        (out / spec.sweep).mkdir(parents=True, exist_ok=True)
        show(f"written: {write_picture(picture, out / spec.sweep, given.format)}: {picture.alt}")
    return 0


def picture_beside(pages: Sequence[Page], name: str) -> Picture:
    """Return the curves of the first cell that all pages have, in one row: each page against the axis of its budget.

    Bands are 95 % intervals of the mean over seeds. A title says which method is the best of its page.
    Raises BenchError if there is no such cell.
    """
    cell = next((str(cell) for cell in pages[0].cells.index if all(cell in page.cells.index for page in pages)), None)
    if cell is None:
        raise BenchError(f"{pages[0].spec.sweep}: these profiles have no cell in common; choose another scale")
    metric = pages[0].metric
    panels = [_panel_of_page(page, metric, cell) for page in pages]
    label = names.metric_label(metric)
    figure = line_panels(panels, "", label, columns=len(pages), x_log=False, legend=False)
    if figure is None:
        raise BenchError(f"{pages[0].spec.sweep}: no evaluation of these runs has {metric}")
    for axes, panel in zip(figure.axes, panels, strict=True):
        _name_ends(axes, panel.lines)
    titles = "; ".join(f"{' '.join(panel.title.split())} ({panel.x_label})" for panel in panels)
    return Picture(name, figure, f"{label}, {cell}, mean over seeds with its 95 % interval: {titles}")


def _name_ends(axes: Axes, lines: Sequence[Line]) -> None:
    """Write the name of each line right of its end, in its colour; names are moved apart where ends are close."""
    axes.locator_params(axis="x", nbins=5)
    low, high = axes.get_ylim()
    ordered = sorted(lines, key=lambda line: float(line.y[-1]))
    gap, heights = _APART * (high - low), [float(line.y[-1]) for line in ordered]
    for _ in range(100):
        for at in range(1, len(heights)):
            lack = gap - (heights[at] - heights[at - 1])
            if lack > 0:
                heights[at - 1], heights[at] = heights[at - 1] - lack / 2, heights[at] + lack / 2
    for line, height in zip(ordered, heights, strict=True):
        look: dict[str, Any] = {"color": line.style.colour, "fontsize": 9, "va": "center"}
        label_y = max(height, low + gap / 2)
        axes.annotate(line.label, (axes.get_xlim()[1], label_y), (4, 0), textcoords="offset points", **look)


def _panel_of_page(page: Page, metric: str, cell: str) -> Panel:
    axis = page.spec.primary.budget_axis if page.spec.primary else "iteration"
    panel = Curves(axis).build_panel(page, metric, cell, log=False)
    seeds = page.runs[page.runs["cell"] == cell].groupby("series")["seed"].nunique()
    for line in panel.lines:
        if line.high is not None:
            low, high = mean_interval(line.y, line.high - line.y, int(seeds[line.label]))
            line.low, line.high = np.maximum(low, 0), np.minimum(high, panel.top or np.inf)
    found = best_methods(page.pairs)
    best = found[(found["cell"] == cell) & (found["verdict"] == "best")]["best"]
    axis_label = page.axis_label(axis)
    winner = f"{best.iloc[0]} is best" if len(best) else "the best is undecided"
    panel.title = f"Equal {axis_label}, {_STEPS.get(page.profile, page.profile)}:\n{winner}"
    few, most = seeds.min(), seeds.max()
    panel.x_label = f"{axis_label} ({few if few == most else f'{few} to {most}'} seeds)"
    return panel
