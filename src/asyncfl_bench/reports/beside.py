"""One figure of a page under several profiles: a panel per profile and cell, whose runs are never averaged."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ..analysis import names
from ..analysis.grids import grid_of
from ..analysis.place import page_overrides
from ..errors import BenchError
from ..files import show
from .assembly import measured_page
from .blocks import Curves
from .blocks.figures import Panel, line_panels
from .pages.page import Page
from .pages.spec import PageSpec
from .pages.write import Picture, write_picture

_AXIS = "uploads"
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
        pages = [measured_page(spec, grid, runs, given.metric, given.series) for grid in grids]
        parts = [*given.beside, scale, *([length] if length != "standard" else [])]
        picture = picture_beside(pages, "-".join(parts))
        (out / spec.sweep).mkdir(parents=True, exist_ok=True)
        show(f"written: {write_picture(picture, out / spec.sweep, given.format)}: {picture.alt}")
    return 0


def picture_beside(pages: Sequence[Page], name: str) -> Picture:
    """Return the curves against uploads of the cells that all pages have: a row a cell, a column a page.

    Raises BenchError if there is no such cell.
    """
    cells = [str(cell) for cell in pages[0].cells.index if all(cell in page.cells.index for page in pages)]
    if not cells:
        raise BenchError(f"{pages[0].spec.sweep}: these profiles have no cell in common; choose another scale")
    metric, curves = pages[0].metric, Curves(_AXIS, ends=True)
    panels: list[Panel] = []
    for cell, page in itertools.product(cells, pages):
        counts = page.runs[page.runs["cell"] == cell].groupby("series")["seed"].nunique()
        few, most = counts.min(), counts.max()
        seeds = f"{few} seeds" if few == most else f"{few} to {most} seeds"
        panel = curves.build_panel(page, metric, cell, log=True)
        panel.title = f"{_STEPS.get(page.profile, page.profile)}: {panel.title}, {seeds}"
        panels.append(panel)
    label = names.metric_label(metric)
    figure = line_panels(panels, pages[0].axis_label(_AXIS), label, columns=len(pages), x_log=True)
    if figure is None:
        raise BenchError(f"{pages[0].spec.sweep}: no evaluation of these runs has {metric}")
    titles = "; ".join(panel.title for panel in panels)
    return Picture(name, figure, f"{label} against {_AXIS}, mean and deviation over seeds: {titles}")
