"""What the runs of a cell reached in virtual time: the numbers AsyncFedED's pages rank by.

Accuracies in percent; times in the unit of the virtual clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..load import Run
from .comparison import percent_curve
from .item import Page
from .measures import SHARE, best_within, first_time_at, held_at, time_to_share_of_best
from .scores import Scores
from .selection import Cell, Series

LIMIT_SECONDS = 300.0  # the paper's time budget
TIME = "virtual_time"


@dataclass
class Reached:
    """One cell.

    limit      what counts happened at or before it: 300, or where the first run of this protocol ended
    best       highest accuracy
    to_share   time to 90 % of the run's own best
    target     90 % of the lowest mean best of the cell, in percent: what every method comes to
    to_target  time to it; NaN for a run that does not reach it
    uploads    that arrived, lost ones not counted
    """

    cell: Cell
    limit: float
    runs: dict[Series, list[Run]]
    best: Scores
    to_share: Scores
    target: float
    to_target: Scores
    uploads: Scores


def reached(page: Page) -> list[Reached]:
    """One per cell that has a run with an accuracy, in the page's order."""
    evidence = page.evidence
    with_curve = {
        place: usable
        for place, runs in evidence.runs.items()
        if (usable := [run for run in runs if len(run.curve(TIME)[0])])
    }
    first_key = evidence.cell_keys.index("paper")  # runs of one protocol are compared up to the same time
    ends: dict[str, float] = {}
    for (_, cell), runs in with_curve.items():
        for run in runs:
            ends[cell[first_key]] = min(ends.get(cell[first_key], LIMIT_SECONDS), _end(run))
    found = []
    for cell in evidence.cells:
        runs_of = {s: with_curve[s, cell] for s in evidence.series if (s, cell) in with_curve}
        if runs_of:
            found.append(_of_cell(cell, runs_of, ends[cell[first_key]]))
    return found


def _of_cell(cell: Cell, runs: dict[Series, list[Run]], limit: float) -> Reached:
    def scores(measure, lower: bool = True) -> Scores:
        final = {series: {run.seed: measure(run) for run in of} for series, of in runs.items()}
        return Scores(cell=cell, final=final, lower=lower)

    best = scores(lambda run: best_within(*percent_curve(run, TIME), limit), lower=False)
    target = SHARE * min((mean for mean in best.means().values() if not math.isnan(mean)), default=math.nan)
    return Reached(
        cell,
        limit,
        runs,
        best,
        to_share=scores(lambda run: time_to_share_of_best(*percent_curve(run, TIME), limit)),
        target=target,
        to_target=scores(lambda run: first_time_at(*percent_curve(run, TIME), target, limit)),
        uploads=scores(lambda run: _uploads(run, limit), lower=False),
    )


def _end(run: Run) -> float:
    """When the run ended; never for one whose model could not change any more."""
    stopped = run.summary.get("stopped_by")
    return math.inf if stopped in ("no_clients", "stalled") else float(run.curve(TIME)[0][-1])


def _uploads(run: Run, limit: float) -> float:
    time_p, uploads_p = run.column("uploads", TIME)
    return held_at(time_p, uploads_p, limit)
