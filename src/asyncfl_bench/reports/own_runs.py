"""The page of anybody's runs: the same blocks as a paper's page, the cells and series taken from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ..analysis import names
from ..analysis.caveats import describe_default_steps
from ..analysis.comparison import compare_pairs
from ..analysis.decisions import PAIR_MEASURE, Decision, pair_table, pairs_of
from ..analysis.evaluations import limiting_axis
from ..analysis.matching import group_runs
from ..analysis.statistics import LEVELS
from ..errors import BenchError, ConfigError, InputError
from ..tracking.runs import load_points
from .assembly import check_metric, finish_page
from .blocks import Accuracies, Averages, ClientAccuracy, Curves, Overall, RealClients, TimelineFigure, Values
from .pages.page import Page
from .pages.provenance import runs_text
from .pages.spec import BEST, FINAL, Block, Measure, PageSpec, late_measures
from .pages.write import Part, Table

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
    decision: Decision | None = None,
    timeline: TimelineFigure | None = None,
) -> Page:
    """panels, compare, where: as of ``group_runs``. axes: what runs have spent, by default what most
    runs' budgets limit; metric: a column of ``load_points``; command: that makes the page; decision: of the multirun
    that chose the seeds, whose pairs are judged by looks; timeline: a block that is shown first.

    Raises InputError when no run can be read, BenchError when none ended well, ConfigError when none has the metric
    or a key.
    """
    if (runs["status"] == "unreadable").all():
        raise InputError(f"{str(runs.index[0]).removesuffix('::')}: {runs['note'].iloc[0]}")
    decision = decision if list(compare) == ["algorithm"] else None  # it names series by their algorithm
    if decision is not None:
        panels = panels or [key for key in decision.cells if key in runs]
    placed = group_runs(runs, compare, panels, where)
    if placed.runs.empty:
        reasons = ", ".join(f"{count} {reason}" for reason, count in placed.left_out["reason"].value_counts().items())
        raise BenchError(f"{title}: no run to show ({reasons or 'none with these settings'})")
    points = load_points(placed.runs)
    check_metric(points, metric)
    spent = tuple(Measure(f"summary.used.{name}") for name in _SPENT if f"summary.used.{name}" in placed.runs)
    axes = axes or [decision.axis if decision is not None and decision.axis else limiting_axis(placed.runs)]
    primary, *others = late_measures(*axes)
    reference = placed.series_names[0]
    blocks: tuple[Block, ...] = (
        *map(Curves, axes),
        Values((FINAL, BEST, *spent)),
        Accuracies(tuple(axes)),
        Overall((primary, *others), reference),
        ClientAccuracy(),
        Averages(),
    )
    spec = PageSpec("", f"Runs in {title}", "", tuple(placed.cells), blocks, primary, tuple(others))
    tie = None if decision is None else decision.tie
    page = Page(spec, placed, points, metric=metric, max_series=max_series, tie=tie)
    apart = _describe_apart(placed.apart, compare)
    has_direction = page.measured.metric_is_lower_better is not None
    decisions = _decision_parts(page, decision) if decision is not None and has_direction else []
    if steps := describe_default_steps(placed.runs):
        said, _, command_to_search = steps.partition(": ")
        page.notes.append(f"{said[:1].upper()}{said[1:]}: `{command_to_search}`")
    times = [*([] if timeline is None else timeline(page)), *RealClients()(page)]
    return finish_page(page, [runs_text(page), apart, *times, *decisions], [command] if command else [])


def _decision_parts(page: Page, of: Decision) -> list[Part]:
    """Return the pairs that a multirun under ``decide=true`` decides, each with the look of its verdict."""
    try:
        pairs = pairs_of(page.placed, of.compare)
    except ConfigError:  # the page leaves methods out
        return []
    rows = compare_pairs(page.measured, PAIR_MEASURE, of.axis, LEVELS, pairs, of.tie)
    table = pair_table(list(rows["contrast"]))
    unit = page.measured.unit(PAIR_MEASURE)
    tie = f", in points; a tie is a difference within ± {of.tie:g}" if unit == "points" else ""
    note = (
        f"decide=true chose the seeds, so each pair keeps its first decision of the looks at "
        f"{', '.join(map(str, LEVELS))} seeds. The measure is {page.metric}, the mean over the last fifth of the "
        f"budget ({names.AXES[of.axis]}){tie}."
    )
    return ["## Decisions", Table("decisions", table, table, 2), note]


def _describe_apart(keys: Sequence[str], compare: Sequence[str]) -> str:
    """Return a sentence on settings that differ between series and are in no name; empty if there are none."""
    if not keys:
        return ""
    return (
        f"These series also differ in {', '.join(keys)}, which their names do not show and which may be why one leads. "
        f"`--compare {' '.join([*compare, *keys])}` puts it into the names, `--where KEY=VALUE` keeps runs that agree."
    )
