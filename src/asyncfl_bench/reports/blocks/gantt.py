"""A picture of time: when clients are at work, how stale their uploads are, and when the server steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...errors import InputError
from ...files import read_parquet
from ...tracking.rundir import TRACE_NAME
from ..pages.page import Page
from ..pages.write import Part, Picture
from .figures import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = ("time", "client", "dispatched_iteration", "iteration", "staleness", "delay", "model_changed")
_DELAYS = 10  # length of the window, in mean delays
_CLIENTS = 12  # rows of a run, at even distances in the order of their mean delays
_TEXT = (
    "A bar is the work of one client from its dispatch to the arrival of its upload, coloured by the staleness of the "
    "upload. On the thin grey line the client waits, or its work is lost. Black ticks are server steps, thick where "
    "several are at one time."
)


@dataclass(frozen=True)
class TimelineFigure:
    """The block of time, from the trace of one run of each series and cell, that of the lowest seed.

    window   virtual time shown, from and to; None: the first ``_DELAYS`` mean delays

    Raises InputError if no run has a trace.
    """

    window: Sequence[float] | None = None

    def __call__(self, page: Page) -> list[Part]:
        runs = page.runs[page.runs["series"].isin(page.series_in_figures)].sort_values("seed", kind="stable")
        traces: dict[str, pd.DataFrame] = {}
        lacking: list[str] = []
        for cell, series, of in page.groups(runs):
            title = ", ".join(filter(None, (series, cell if len(page.cells) > 1 else "")))
            paths = [Path(str(run)) / TRACE_NAME for run in of.index]
            path = next(filter(Path.exists, paths), None)
            if path is None:
                lacking.append(title)
            else:
                traces[title] = _read_trace(path)
        if lacking:
            message = f"{'; '.join(lacking)}: no {TRACE_NAME}; run again with trace=true"
            if not traces:
                raise InputError(message)
            page.notes.append(message)
        figure = timeline_figure(traces, page.axis_label("virtual_time"), self.window)
        return ["## Time", _TEXT, Picture("timeline", figure, "Work of clients over virtual time, and its staleness")]


def _read_trace(path: Path) -> pd.DataFrame:
    try:
        trace = read_parquet(path).select(_COLUMNS).to_pandas()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: {error}; run again with trace=true rerun=true") from error
    if trace.empty:
        raise InputError(f"{path}: no upload arrived; leave the run out with --where")
    return trace


def timeline_figure(traces: Mapping[str, pd.DataFrame], x_label: str, window: Sequence[float] | None = None) -> Figure:
    """Return a figure with a row for each run: bars of its clients, coloured by staleness, below the server steps.

    traces  title -> columns of trace.parquet; arguments as of ``TimelineFigure``
    Raises InputError if all delays are zero.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    work = pd.concat(traces.values())
    work = work[work["delay"] > 0]
    if work.empty:
        raise InputError("--timeline: no work takes virtual time, as under delay=none; leave the option out")
    by_delay = work.groupby("client")["delay"].mean().sort_values(kind="stable").index
    positions = np.linspace(0, len(by_delay) - 1, min(_CLIENTS, len(by_delay))).round().astype(int)
    shown = [int(client) for client in by_delay[positions]]
    low, high = window or (0.0, _DELAYS * float(work["delay"].mean()))
    scale = ScalarMappable(LogNorm(1, max(2, work["staleness"].max() + 1)), f"{COLOURS}_r")
    figure = new_figure(9.4, 0.6 + (0.6 + 0.115 * len(shown)) * len(traces))
    grid = figure.subplots(len(traces), sharex=True, squeeze=False)
    for axes, (title, trace) in zip(grid.flat, traces.items(), strict=True):
        inside = (trace["time"] >= low) & (trace["time"] - trace["delay"] < high)
        bars = trace[inside & (trace["delay"] > 0) & trace["client"].isin(shown)]
        axes.hlines(range(len(shown)), low, min(high, trace["time"].max()), color="0.6", linewidth=0.7, zorder=1)
        rows, look = [shown.index(client) for client in bars["client"]], {"edgecolor": "white", "linewidth": 0.5}
        colours = scale.to_rgba(bars["staleness"].to_numpy() + 1)
        axes.barh(rows, bars["delay"], 0.74, bars["time"] - bars["delay"], color=colours, zorder=2, **look)
        times, counts = np.unique(_step_times(trace), return_counts=True)
        axes.vlines(times, -2.4, -0.9, color="black", linewidth=0.6 + 0.4 * np.log2(counts))
        axes.set_xlim(low, high)
        axes.set_ylim(len(shown) - 0.4, -2.6)
        axes.set_yticks([-1.6, *range(len(shown))], ["steps", *map(str, shown)], fontsize=6.5)
        axes.set_ylabel("client", fontsize=8)
        uploads = f"{len(trace)} uploads, mean staleness {trace['staleness'].mean():.1f}"
        axes.set_title(f"{title}: {uploads}; {counts.sum()} server steps", fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    grid[-1, 0].set_xlabel(x_label, fontsize=9)
    figure.colorbar(scale, ax=figure.axes, label="staleness + 1", format="%g")
    return figure


def _step_times(trace: pd.DataFrame) -> np.ndarray:
    """Return the virtual time of each server iteration that the trace shows.

    An iteration that no arrival caused (a round that ends with lost work, a tick without arrivals) gets the earliest
    time at which its model was dispatched or met.
    """
    changed = trace["model_changed"].to_numpy()
    found = pd.Series(trace["time"].to_numpy()[changed], trace["iteration"].to_numpy()[changed] + 1)
    versions = pd.concat([trace["iteration"], trace["dispatched_iteration"]], ignore_index=True)
    times = pd.concat([trace["time"], trace["time"] - trace["delay"]], ignore_index=True)
    earliest = times.groupby(versions).min()[::-1].cummin()[::-1]
    others = np.setdiff1d(np.arange(1, versions.max() + 1), found.index)
    return np.concatenate([found, earliest.iloc[np.searchsorted(earliest.index, others)]])
