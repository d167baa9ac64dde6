"""Make a page of a specification: match its runs, call its blocks, add its claims and the origin of its runs."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ...analysis import claims, measures
from ...analysis.grids import grid_of
from ...analysis.place import match_runs, runs_for_page
from ...errors import BenchError
from ...tracking.runs import load_points
from . import provenance
from .page import Page
from .spec import PageSpec
from .write import Table

_SMOKE = "The index of all claims leaves smoke tests out."


class NoRuns(BenchError):
    """None of the runs there are is one of this page."""


def build_page(
    spec: PageSpec,
    profile: str,
    scale: str,
    length: str,
    runs: pd.DataFrame,
    metric: str = "test/accuracy",
    max_series: int = 12,
) -> Page:
    """The page of those of ``runs`` (of ``load_runs``) that its sweep lists.

    Raises NoRuns when there is none, BenchError when no run can be shown.
    """
    tuned = spec.tuned if profile == "fair" or spec.searched else ()
    grid = grid_of(spec.sweep, profile, scale, length)
    placed = match_runs(grid, runs_for_page(runs, grid), cells=spec.cells, tuned=tuned)
    if placed.runs.empty:
        reasons = set(placed.left_out["reason"]) - {"not in this sweep"}
        text = f"no run to show{': all ' if reasons else ''}{' or '.join(sorted(reasons))}"
        raise BenchError(text) if reasons else NoRuns(text)
    if spec.relabel is not None:
        lost = placed.left_out["reason"] == "diverged"
        whole = runs.loc[placed.left_out.index[lost]].assign(**placed.left_out[lost])
        placed.left_out.loc[lost, "series"] = [spec.relabel(run) for _, run in whole.iterrows()]
        placed.runs["series"] = [spec.relabel(run) for _, run in placed.runs.iterrows()]
    # those of another sweep's run with the same settings are that sweep's; claims ask for this page's
    placed.runs["profile"], placed.runs["scale"], placed.runs["length"] = profile, scale, length
    page = Page(spec, placed, load_points(placed.runs), profile, scale, length, metric, max_series)
    page.notes += [_SMOKE] if scale == "smoke" else []
    diverged = placed.left_out.index[placed.left_out["reason"] == "diverged"]
    page.measured = runs.reindex(index=[*placed.runs.index, *diverged], columns=["experiment", "summary.wall_seconds"])
    if tuned:
        page.placed, page.choices = measures.choose_tuned(placed, page.points)
        page.points = page.points[page.points["run"].isin(page.runs.index)]
    page.claims = claims.evaluate_claims(spec.sweep, page.placed, page.points, spec.limit, spec.readings, spec.levels)
    commands = [" ".join(["afl-run", "-m", *grid.command]), page.command]
    return finish_page(page, provenance.header(page), commands)


def finish_page(page: Page, header: Sequence[str], commands: Sequence[str]) -> Page:
    """Fill in ``parts``: heading, sentences, blocks, chosen steps, claims, runs and origin."""
    parts = [part for block in page.spec.blocks for part in block(page)]
    if "series_in_figures" in vars(page) and (
        others := [series for series in page.series if series not in page.series_in_figures]
    ):
        page.notes.append(
            f"Figures show the {len(page.series_in_figures)} best series; left out of them: {'; '.join(others)}."
        )
    page.parts = [f"# {page.title}", *header, *page.notes, *parts]
    table, by_reading = claims.verdict_table(page.claims), claims.verdicts_by_reading(page.claims)
    if len(table):
        bold = table.assign(verdict=[f"**{verdict}**" for verdict in table["verdict"]])
        page.parts += ["## What the paper claims"]
        if len(by_reading):
            page.parts += [Table("claims_by_reading", by_reading, by_reading, len(by_reading.columns))]
        page.parts += [Table("claims", None if len(by_reading) else bold, table, 5)]
    page.parts += [*provenance.chosen_values(page), *provenance.coverage(page), *provenance.origin(page, commands)]
    return page
