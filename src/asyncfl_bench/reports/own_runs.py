"""The page of anybody's runs: the same blocks as a paper's page, the cells and series taken from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ..analysis import names
from ..analysis.measures import limiting_axis
from ..analysis.place import group_runs
from ..errors import BenchError, ConfigError, InputError, did_you_mean
from ..tracking.metrics import COUNTERS, SENT
from ..tracking.runs import load_points
from .blocks import Accuracies, ClientAccuracy, Curves, Leaders, Neighbours, Overall, Values
from .pages.assembly import finish_page
from .pages.page import Page
from .pages.spec import BEST, FINAL, Block, Measure, PageSpec, equal_budgets

_SPENT = ("server_iterations", "uploads", "virtual_time")


def own_page(
    runs: pd.DataFrame,
    title: str,
    panels: Sequence[str] = (),
    compare: Sequence[str] = ("algorithm",),
    where: Mapping[str, object] | None = None,
    axes: Sequence[str] = (),
    metric: str = "test/accuracy",
    max_series: int = 12,
    command: str = "",
) -> Page:
    """panels, compare, where: as of ``group_runs``. axes: what runs have spent, by default what most
    runs' budgets limit; metric: a column of ``load_points``; command: that makes the page.

    Raises InputError when no run can be read, BenchError when none ended well, ConfigError when none has the metric
    or a key.
    """
    if (runs["status"] == "unreadable").all():
        raise InputError(f"{str(runs.index[0]).removesuffix('::')}: {runs['note'].iloc[0]}")
    placed = group_runs(runs, list(compare), panels, where)
    if placed.runs.empty:
        reasons = ", ".join(f"{count} {reason}" for reason, count in placed.left_out["reason"].value_counts().items())
        raise BenchError(f"{title}: no run to show ({reasons or 'none with these settings'})")
    points = load_points(placed.runs)
    if metric not in points or points[metric].isna().all():
        known = [
            name
            for name in points.columns
            if name not in ("run", *COUNTERS, *SENT, "bytes") and points[name].notna().any()
        ]
        raise ConfigError("--metric", metric, f"must be one of {', '.join(known)}{did_you_mean(metric, known)}")
    spent = tuple(Measure(f"summary.used.{name}") for name in _SPENT if f"summary.used.{name}" in placed.runs)
    axes = axes or [limiting_axis(placed.runs)]
    ranked = equal_budgets(*axes)
    reference = sorted(set(placed.runs["series"]), key=names.series_order)[0]
    blocks: tuple[Block, ...] = (
        Values((FINAL, BEST, *spent), "## Results"),
        Leaders(ranked),
        Overall(ranked, reference),
        *(block for axis in axes for block in (Curves(axis), Accuracies(axis), Neighbours(equal_budgets(axis)))),
        ClientAccuracy(),
    )
    spec = PageSpec("", f"Runs in {title}", "", tuple(placed.cells), blocks)
    page = Page(spec, placed, points, metric=metric, max_series=max_series)
    apart = _describe_apart(placed.apart, compare)
    return finish_page(page, [apart], [command] if command else [])


def _describe_apart(keys: Sequence[str], compare: Sequence[str]) -> str:
    """Return a sentence on settings that differ between series and are in no name; empty if there are none."""
    if not keys:
        return ""
    return (
        f"These series also differ in {', '.join(keys)}, which their names do not show and which may be why one leads. "
        f"`--compare {' '.join([*compare, *keys])}` puts it into the names, `--where KEY=VALUE` keeps runs that agree."
    )
