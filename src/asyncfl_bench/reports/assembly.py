"""Make a page, of a paper's specification or of any runs: match runs, call blocks, add claims and origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ..analysis import names, verdicts
from ..analysis.caveats import describe_default_steps
from ..analysis.comparison import compare_pairs
from ..analysis.decisions import PAIR_MEASURE, Decision, decision_table, pairs_of
from ..analysis.evaluations import limiting_axis
from ..analysis.matching import choose_tuned, group_runs, match_runs, split_codes
from ..analysis.selection import Grid, are_made_for, grid_of, page_overrides, runs_for_page
from ..analysis.statistics import LEVELS
from ..errors import BenchError, ConfigError, InputError, did_you_mean
from ..tracking.rundir import COUNTERS, SENT
from ..tracking.runs import load_points
from .blocks import Accuracies, Curves, Overall, TimelineFigure, Values, client_accuracy, real_clients
from .blocks.comparisons import claim_parts, published_parts, ranking_parts, ranking_table
from .blocks.tables import values_parts
from .pages import provenance
from .pages.page import Page
from .pages.provenance import runs_text
from .pages.spec import BEST, FINAL, Block, Measure, PageSpec, late_measures
from .pages.write import More, Part, Picture, Table

_SMOKE = "The index of all claims leaves smoke tests out."
_NO_DIRECTION = (
    "Higher or lower values of {} may be better, so no method is called best. The attribute `better` of an observer "
    "declares which."
)
_UNJUDGED = "This page has no verdicts of claims, which are judged by test/accuracy."
_APART = (
    "These series also differ in {keys}, which their names do not show and which may be why one leads. "
    "`--compare {compare}` puts it into the names, `--where KEY=VALUE` keeps runs that agree."
)
_SPENT = ("server_iterations", "uploads", "virtual_time")


class NoRuns(BenchError):
    """None of the runs there are is one of this page."""


def build_page(
    spec: PageSpec, profile: str, scale: str, length: str, runs: pd.DataFrame, metric: str = "test/accuracy"
) -> Page:
    """Return the page of those ``runs`` (of ``load_runs``) that its sweep lists.

    Raises NoRuns when there is none, BenchError when no run can be shown, ConfigError when none has the metric.
    """
    choices = (spec.sweep, profile, scale, length)
    grid = grid_of(*choices, page_overrides(runs, *choices))
    page = measured_page(spec, grid, runs, metric)
    if page.is_judged:
        page.judged = verdicts.evaluate_claims(spec.sweep, page.measured, scale, spec.readings)
    elif verdicts.claims_of_sweep(spec.sweep):
        page.notes.append(_UNJUDGED)
    commands = [" ".join(["afl-run", "-m", *grid.command]), page.command]
    return finish_page(page, provenance.header(page), commands)


def measured_page(spec: PageSpec, grid: Grid, runs: pd.DataFrame, metric: str = "test/accuracy") -> Page:
    """Return the page with its runs and their evaluations, without blocks and verdicts. Raises as ``build_page``."""
    profile, scale = grid.profile, grid.scale
    tuned = tuned_keys(spec, profile)
    placed = match_runs(grid, runs_for_page(runs, grid), cells=spec.cells, tuned=tuned)
    if placed.runs.empty:
        reasons = set(placed.left_out["reason"]) - {"not in this sweep"}
        text = f"no run to show{': all ' if reasons else ''}{' or '.join(sorted(reasons))}"
        raise BenchError(text) if reasons else NoRuns(text)
    limits = placed.runs.reindex(columns=["budget.server_iterations", "budget.uploads"]).notna()
    if not limits["budget.server_iterations"].any() and limits["budget.uploads"].all():
        spec = spec.at_equal_uploads()
    if spec.relabel is not None:
        lost = placed.left_out["reason"] == "diverged"
        whole = runs.loc[placed.left_out.index[lost]].assign(**placed.left_out[lost])
        placed.left_out.loc[lost, "series"] = [spec.relabel(run) for _, run in whole.iterrows()]
        placed.runs["series"] = [spec.relabel(run) for _, run in placed.runs.iterrows()]
        placed.runs["series"] = split_codes(placed.runs)
        placed.diverged["series"] = [spec.relabel(run) for _, run in placed.diverged.iterrows()]
    lent = not are_made_for(grid, placed.runs).any()
    is_borrowed = lent and (len(placed.missing) > 0 or bool((placed.runs["profile"] != profile).any()))
    # those of another sweep's run with the same settings are that sweep's; claims ask for this page's
    for frame in (placed.runs, placed.diverged, placed.planned):
        frame["profile"], frame["scale"], frame["length"] = profile, scale, grid.length
    points = load_points(placed.runs)
    check_metric(points, metric)
    page = Page(spec, placed, points, profile, scale, grid.length, metric, is_borrowed=is_borrowed)
    page.notes += [_SMOKE] if scale == "smoke" else []
    diverged = placed.left_out.index[placed.left_out["reason"] == "diverged"]
    page.computed = runs.reindex(index=[*placed.runs.index, *diverged], columns=["experiment", "summary.wall_seconds"])
    if tuned:
        page.placed, page.choices = choose_tuned(placed, page.points)
        page.points = page.points[page.points["run"].isin(page.runs.index)]
    return page


def check_metric(points: pd.DataFrame, metric: str) -> None:
    """Raise ConfigError if no evaluation has the metric."""
    if metric not in points or points[metric].isna().all():
        known = [
            name
            for name in points.columns
            if name not in ("run", *COUNTERS, *SENT, "bytes") and points[name].notna().any()
        ]
        raise ConfigError("--metric", metric, f"must be one of {', '.join(known)}{did_you_mean(metric, known)}")


def tuned_keys(spec: PageSpec, profile: str) -> tuple[str, ...]:
    """Return the settings whose values are chosen on validation samples."""
    return spec.tuned if profile == "fair" or spec.searched else ()


def finish_page(page: Page, header: Sequence[Part], commands: Sequence[str]) -> Page:
    """Fill in ``parts``: what was run, verdicts, intervals, best methods, values, curves, links to the rest, origin."""
    made = [part for block in page.spec.blocks for part in block(page)]
    ranking = ranking_parts(page)
    if "series_in_figures" in vars(page) and (
        others := [series for series in page.series if series not in page.series_in_figures]
    ):
        which = "first" if page.measured.metric_is_lower_better is None else "best"
        page.notes.append(
            f"Curves show the {len(page.series_in_figures)} {which} series; left out of them: {'; '.join(others)}."
        )
    if codes := provenance.describe_codes(page.runs):
        page.notes.append(codes)
    if page.measured.metric_is_lower_better is None:
        page.notes.append(_NO_DIRECTION.format(page.metric))
    first = [*values_parts(page), *_take_first(made, Picture)]
    if not ranking:
        first = [*_take_first(made, Table), *first]
    verdicts = claim_parts(page)
    tables = [part for part in (*verdicts, *ranking) if isinstance(part, Table) and part.shown is None]
    shown = [part for part in (*verdicts, *ranking) if part not in tables]
    rest = _sections([*published_parts(page), *made, *provenance.chosen_values(page)])
    compared: list[Part] = [*tables, *ranking_table(page)]
    rest = {"Comparisons": compared, **rest} if compared else rest
    page.parts = [f"# {page.spec.title}", *header, *page.notes, *shown, *first]
    page.parts += ["## More tables", More(rest)] if rest else []
    page.parts += [*provenance.coverage(page), *provenance.origin(page, commands)]
    return page


def _take_first(parts: list[Part], kind: type[Table] | type[Picture]) -> list[Part]:
    """Remove the first part of a kind from ``parts``; return it after its heading and sentences."""
    found = [i for i, part in enumerate(parts) if isinstance(part, kind) and getattr(part, "shown", "") is not None]
    if not found:
        return []
    texts = [part if isinstance(part, str) else "" for part in parts[: found[0]]]
    headings = [i for i, text in enumerate(texts) if text.startswith("## ")]
    start = headings[-1] if headings else found[0]
    return [*filter(None, texts[start:]), parts.pop(found[0])]


def _sections(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """Return the parts by the heading above them, without sections that have neither table nor figure."""
    found: dict[str, list[Part]] = {}
    title = "Tables"
    for part in parts:
        if isinstance(part, str) and part.startswith("## "):
            title = part.removeprefix("## ")
        elif part:
            found.setdefault(title, []).append(part)
    return {title: own for title, own in found.items() if any(not isinstance(part, str) for part in own)}


def own_page(
    runs: pd.DataFrame,
    title: str,
    panels: Sequence[str] = (),
    compare: Sequence[str] = ("algorithm",),
    where: Mapping[str, object] | None = None,
    axes: Sequence[str] = (),
    metric: str = "test/accuracy",
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
        client_accuracy,
    )
    spec = PageSpec("", f"Runs in {title}", "", tuple(placed.cells), blocks, primary, tuple(others))
    tie = None if decision is None else decision.tie
    page = Page(spec, placed, points, metric=metric, tie=tie)
    keys = {"keys": ", ".join(placed.apart), "compare": " ".join([*compare, *placed.apart])}
    apart = _APART.format(**keys) if placed.apart else ""
    has_direction = page.measured.metric_is_lower_better is not None
    decisions = _decision_parts(page, decision) if decision is not None and has_direction else []
    if steps := describe_default_steps(placed.runs):
        said, _, command_to_search = steps.partition(": ")
        page.notes.append(f"{said[:1].upper()}{said[1:]}: `{command_to_search}`")
    times = [*([] if timeline is None else timeline(page)), *real_clients(page)]
    return finish_page(page, [runs_text(page), apart, *times, *decisions], [command] if command else [])


def _decision_parts(page: Page, of: Decision) -> list[Part]:
    """Return the pairs that a multirun under ``decide=true`` decides, each with the look of its verdict."""
    try:
        pairs = pairs_of(page.placed, of.compare)
    except ConfigError:  # the page leaves methods out
        return []
    rows = compare_pairs(page.measured, PAIR_MEASURE, of.axis, LEVELS, pairs, of.tie)
    table = decision_table(list(rows["contrast"]))
    unit = page.measured.unit(PAIR_MEASURE)
    tie = f", in points; a tie is a difference within ± {of.tie:g}" if unit == "points" else ""
    note = (
        f"decide=true chose the seeds, so each pair keeps its first decision of the looks at "
        f"{', '.join(map(str, LEVELS))} seeds. The measure is {page.metric}, the mean over the last fifth of the "
        f"budget ({names.AXES[of.axis]}){tie}."
    )
    return ["## Decisions", Table("decisions", table, table, 2), note]
