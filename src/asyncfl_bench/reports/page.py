"""A page: what a specification asks for, the runs there are for it, and the parts that its blocks make of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from .. import __version__
from ..analysis import claims, measures, names, statistics
from ..analysis.contrasts import values_of
from ..analysis.measures import test_step
from ..analysis.place import Grid, Placed, grid_of, place, rank, texts
from ..analysis.published import Published
from ..errors import BenchError
from ..tracking.archive import NAME as ARCHIVE_NAME
from ..tracking.archive import pack
from ..tracking.runs import load_points, shown
from . import style
from .write import Part, Table

AXES = tuple(names.AXES)
_ORIGIN = "## Where this comes from"  # every page ends so
_NAMED = 20  # runs that are missing or left out and named one by one


class NoRuns(BenchError):
    """None of the runs there are is one of this page."""


@dataclass(frozen=True)
class Measure:
    """One number a run.

    kind   ``equal``: the metric at the largest budget of ``axis`` that all runs of a cell have spent · ``final`` ·
           ``best`` · ``time_to_90``: when it first has 90 % of its own best; ``time_to_target``: of the lowest
           mean best of its cell · ``unsteadiness`` · ``uploads`` that arrived. The last five count within the page's
           limit of time. · any other: a measure of claims, or a column of ``load_runs``
    """

    kind: str
    axis: str = ""

    @property
    def name(self) -> str:
        return self.axis if self.kind == "equal" else self.kind

    @property
    def of_metric(self) -> bool:
        return self.kind in ("equal", "final", "best", "unsteadiness")

    def label(self, page: Page, short: bool = False) -> str:
        """``test accuracy at equal uploads [%]``; short: as a word in a column, ``equal uploads``."""
        name, _, unit = names.metric_label(page.metric).partition(" [")
        clock = page.axis_label("virtual_time").removeprefix("virtual time")
        if self.kind.endswith(".virtual_time"):
            return page.axis_label("virtual_time")
        known = {"time_to_90": f"time to 90 % of own best{clock}", "time_to_target": f"time to common target{clock}"}
        if self.kind == "equal":
            known["equal"] = f"{'' if short else f'{name} at '}equal {names.AXES[self.axis]}"
            return known["equal"] + (f" [{unit}" if unit and not short else "")
        own = f"{self.kind} {name}" + (f" [{unit}" if unit else "")
        return known.get(self.kind, own if self.of_metric else self.kind.rpartition(".")[2].replace("_", " "))


Block = Callable[["Page"], list[Part]]  # a field ``measures``: what it ranks by


@dataclass(frozen=True)
class PageSpec:
    """One table or figure of a paper as a page.

    sweep      its name on the command line: ``ace/figure2``
    shows      what the paper's item shows, in one sentence
    cells      settings that make the panels and columns
    blocks     what is shown, in this order
    relabel    names a series instead, from a run's settings; else it is the algorithm with its variant
    problems   ``data set with model`` that are the paper's own: anything else is a stand-in, and so are data whose
               source a run calls by a name of ``stand_ins``
    tuned      the setting that the profile ``fair`` chooses on validation samples; fair: what that profile is
    order      algorithms, worst first, as ``order_source`` has them
    published  numbers and curves that belong beside ours
    limit      of virtual time, within which the best and times count
    shares_runs_with   other sweeps that list some of the same runs
    """

    sweep: str
    title: str
    shows: str
    cells: tuple[str, ...]
    blocks: tuple[Block, ...]
    relabel: Callable[[pd.Series], str] | None = None
    problems: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    tuned: str = "algorithm.c"
    fair: str = ""
    order: tuple[str, ...] = ()
    order_source: str = ""
    published: Published | None = None
    limit: float = math.inf
    shares_runs_with: tuple[str, ...] = ()

    @property
    def paper(self) -> str:
        return self.sweep.partition("/")[0]


@dataclass
class Page:
    """What blocks read, and what they made of it.

    metric    the one that curves and ``final`` show; max_series: lines of a figure
    choices   what was chosen of the tuned setting, see ``measures.choose_tuned``
    measured  index and experiment of all runs that came to an end, those included that were not chosen
    """

    spec: PageSpec
    placed: Placed
    points: pd.DataFrame
    profile: str = ""
    scale: str = ""
    length: str = "standard"
    metric: str = "test/accuracy"
    max_series: int = 12
    choices: pd.DataFrame = field(default_factory=pd.DataFrame)
    measured: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: list[str] = field(default_factory=list)  # sentences that a terminal shows too
    parts: list[Part] = field(default_factory=list)
    claims: list[claims.Verdict] = field(default_factory=list)

    @property
    def title(self) -> str:
        return self.spec.title

    @property
    def keys(self) -> list[str]:
        return list(self.placed.cells)

    @property
    def runs(self) -> pd.DataFrame:
        return self.placed.runs

    @property
    def left_out(self) -> str:
        """How many runs do not count, by reason: ``2 diverged, 1 inconsistent``."""
        counts = self.placed.left_out["reason"].value_counts()
        return ", ".join(f"{counts[reason]} {reason}" for reason in sorted(counts.index))

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        return {part.name: part.data for part in self.parts if isinstance(part, Table)}

    @functools.cached_property
    def cells(self) -> pd.DataFrame:
        """The cells in order: index what a cell is called, columns its keys."""
        return self.runs[["cell", *self.keys]].drop_duplicates("cell").set_index("cell").loc[self.placed.cell_names]

    @functools.cached_property
    def cell_texts(self) -> pd.DataFrame:
        """``cells`` with what their keys' values are called."""
        return pd.DataFrame({key: texts(self.cells[key]) for key in self.keys}, index=self.cells.index)

    @functools.cached_property
    def series(self) -> list[str]:
        return sorted(set(self.runs["series"]), key=names.series_order)

    @functools.cached_property
    def styles(self) -> dict[str, style.Style]:
        return style.styles(self.series)

    @functools.cached_property
    def drawn(self) -> list[str]:
        """The series that figures show: all, or the best by their mean final value."""
        means = self.values(Measure("final")).groupby("series")["value"].mean()
        best = means.sort_values(ascending=names.lower_is_better(self.metric)).index[: self.max_series]
        return self.series if len(self.series) <= self.max_series else [one for one in self.series if one in best]

    def axis_label(self, axis: str) -> str:
        return names.axis_label(axis, self.units)

    @functools.cached_property
    def units(self) -> list[object]:
        """Of virtual time, one a run: the clock's ticks, or what the delay's numbers are."""
        units = self.runs.get("delay.unit", pd.Series(None, index=self.runs.index, dtype=object))
        return [*units.mask(self.runs["clock"] == "ticks", "ticks")] if "clock" in self.runs else [*units]

    def lower(self, measure: Measure) -> bool:
        """Whether small values are good ones."""
        return measure.kind.startswith("time") or (measure.of_metric and names.lower_is_better(self.metric))

    def resolution(self, measure: Measure) -> float:
        """Step of a test accuracy [points], one sample of the smallest test set; 0 for what has no such step."""
        if not self.metric.startswith("test/") or not names.is_percent(self.metric):
            return 0.0
        return test_step(self.runs) if measure.kind in ("equal", "final", "best") else 0.0

    def decimals(self, measure: Measure) -> int:
        if measure.of_metric:
            return 2 if names.is_percent(self.metric) else 4
        return 0 if measure.kind.endswith(("uploads", "iterations")) else 1

    @functools.cached_property
    def limits(self) -> pd.Series:
        """Run -> limit of time: the page's, or the earliest end among the runs of its protocol (cell key ``paper``)."""
        if "paper" not in self.keys:
            return pd.Series(self.spec.limit, index=self.runs.index)
        limits = measures.common_limit(self.placed, self.points, "paper", self.spec.limit)
        return self.runs["paper"].map(limits).astype(float)

    def limit_of(self, cell: str) -> float:
        return float(self.limits[self.runs["cell"] == cell].min())

    def values(self, measure: Measure) -> pd.DataFrame:
        """A row a run: run, series, cell, its keys, seed, value; with ``equal`` also budget, end and evaluations."""
        return self._cached(measure).copy()

    @functools.cached_property
    def _cached(self) -> Callable[[Measure], pd.DataFrame]:
        return functools.cache(functools.partial(_values, self))

    @functools.cached_property
    def pairs(self) -> pd.DataFrame:
        """The neighbouring pairs of every ranking of the page, Holm over all of them: the columns of
        ``statistics.neighbouring_pairs`` with ``measure`` (its name) and ``cell``; difference: better - next."""
        ranked = dict.fromkeys(measure for block in self.spec.blocks for measure in getattr(block, "measures", ()))
        frames = []
        for measure in ranked:
            values = self.values(measure)
            lost = values["value"].isna().groupby([values["series"], values["cell"]]).transform("any")
            values["value"] = values["value"].mask(lost) * (-1 if self.lower(measure) else 1)  # without a mean: last
            places = {cell: number for number, cell in enumerate(self.cells.index)}
            values["resolution"] = self.resolution(measure)
            frames.append(values.assign(measure=measure.name, place=values["cell"].map(places)))
        if not frames:
            return pd.DataFrame(columns=["measure", "cell", "better", "next", "difference", "verdict"])
        pairs = statistics.neighbouring_pairs(pd.concat(frames), ["measure", "place"])
        pairs["cell"] = [self.cells.index[place] for place in pairs.pop("place")]
        turned = pairs["measure"].isin([measure.name for measure in ranked if self.lower(measure)])
        pairs.loc[turned, "difference"] *= -1
        pairs.loc[turned, ["low", "high"]] = -pairs.loc[turned, ["high", "low"]].to_numpy()
        pairs["verdict"] = pairs["verdict"].mask(turned & (pairs["verdict"] == "larger"), "smaller")
        return pairs

    def with_keys(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table with a column ``cell``, with the keys of the cell in its place."""
        return table.merge(self.cells.reset_index(), on="cell", how="left").drop(columns="cell") if self.keys else table

    def published_of(self, cell: str) -> pd.DataFrame:
        """See ``Published.of_cell``; empty where nothing is published."""
        published, keys = self.spec.published, pd.Series(self.cells.loc[cell])
        return pd.DataFrame() if published is None else published.of_cell(self.spec.paper, keys)

    def is_real(self, cell: str) -> bool:
        """Whether the cell's runs are the paper's own experiment: data, model, scale and settings."""
        runs = self.runs[self.runs["cell"] == cell]
        sources = set(runs.get("summary.data_source", ()))
        as_printed = (self.profile, self.scale) == ("published", "full")
        return as_printed and _problems(runs) <= set(self.spec.problems) and not sources & set(self.spec.stand_ins)

    def write_data(self, folder: Path) -> None:
        """``runs.parquet`` (every run of this page that came to an end, beside those that an earlier one holds) and
        ``claims.json``, where the paper claims something."""
        places = dict.fromkeys(str(run).partition("::")[0] for run in self.measured.index)
        pack(places, folder / ARCHIVE_NAME, only=set(self.measured["experiment"]))
        content = claims.PageVerdicts(self.spec.sweep, self.profile, self.scale, self.length, tuple(self.claims))
        if self.claims:
            (folder / claims.NAME).write_text(claims.to_json(content), encoding="utf-8")


def build(
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
    tuned = spec.tuned if profile == "fair" else None
    grid = grid_of(spec.sweep, profile, scale, length)
    placed = place(grid, _of_interest(runs, grid), cells=spec.cells, tuned=tuned)
    if placed.runs.empty:
        reasons = set(placed.left_out["reason"]) - {"not in this sweep"}
        text = f"no run to show{': all ' if reasons else ''}{' or '.join(sorted(reasons))}"
        raise BenchError(text) if reasons else NoRuns(text)
    if spec.relabel is not None:
        placed.runs["series"] = [spec.relabel(run) for _, run in placed.runs.iterrows()]
    page = Page(spec, placed, load_points(placed.runs), profile, scale, length, metric, max_series)
    diverged = placed.left_out.index[placed.left_out["reason"] == "diverged"]
    page.measured = runs.loc[[*placed.runs.index, *diverged], ["experiment"]]
    if tuned is not None:
        page.placed, page.choices = measures.choose_tuned(placed, page.points)
        page.points = page.points[page.points["run"].isin(page.runs.index)]
    page.claims = claims.evaluate(spec.sweep, page.placed, page.points, spec.limit)
    words = f"--profile {profile} --scale {scale}" + (f" --length {length}" if length != "standard" else "")
    commands = [" ".join(["afl-run", "-m", *grid.command]), f"afl-report {spec.sweep} {words}"]
    return finish(page, _header(page), commands)


def finish(page: Page, header: Sequence[str], commands: Sequence[str]) -> Page:
    """Fills in ``parts``: heading, sentences, blocks, chosen steps, claims, runs and origin."""
    parts = [part for block in page.spec.blocks for part in block(page)]
    if "drawn" in vars(page) and (others := [series for series in page.series if series not in page.drawn]):
        page.notes.append(f"Figures show the {len(page.drawn)} best series; left out of them: {'; '.join(others)}.")
    page.parts = [f"# {page.title}", *header, *page.notes, *parts]
    table = claims.table_of(page.claims)
    if len(table):
        bold = table.assign(verdict=[f"**{verdict}**" for verdict in table["verdict"]])
        page.parts += ["## What the paper claims", Table("claims", bold, table, 5)]
    page.parts += [*_chosen(page), *_coverage(page), *_origin(page, commands)]
    return page


def is_foreign(path: Path) -> bool:
    """Whether there is a file that is no page."""
    return path.exists() and _ORIGIN not in path.read_text(encoding="utf-8", errors="replace")


def number(value: float, sign: str = "", decimals: int = 2) -> str:
    """``-`` for NaN, never a negative zero; ``sign="+"`` writes the plus."""
    return "-" if value != value else f"{round(value, decimals) + 0.0:{sign}.{decimals}f}"


def with_spread(values: Iterable[float], decimals: int = 2) -> str:
    """Mean ± sample standard deviation over seeds; the mean alone of one. With seeds that have no value (a target never
    reached) the mean of the others and how many they are; ``never`` where none has one."""
    series = pd.Series(list(values), dtype=float)
    known = series.dropna()
    if known.empty:
        return "never" if len(series) else "-"
    spread = f" ± {known.std(ddof=1):.{decimals}f}" if len(known) > 1 else ""
    few = f" ({len(known)} of {len(series)})" if len(known) < len(series) else ""
    return number(float(known.mean()), "", decimals) + spread + few


def _of_interest(runs: pd.DataFrame, grid: Grid) -> pd.DataFrame:
    """Runs made for the sweep with this profile, scale and length, and of other sweeps those that only they have."""
    own = pd.Series(True, index=runs.index)
    for key in ("sweep", "profile", "scale", "length"):
        own &= runs[key] == getattr(grid, key) if key in runs else True
    others = runs[~own & runs["experiment"].isin(grid.jobs["experiment"]) & (runs["status"] == "ok")]
    others = others[~others["identity"].isin(runs["identity"][own & (runs["status"] == "ok")])]
    return runs[own | runs.index.isin(others.drop_duplicates("identity").index)]


def _values(page: Page, measure: Measure) -> pd.DataFrame:
    """See ``Page.values``."""
    runs, points, kind, metric = page.runs, page.points, measure.kind, page.metric
    if kind == "equal":
        return measures.at_equal_budget(page.placed, points, measure.axis, metric).reset_index()
    table = runs[["series", "cell", *page.keys, "seed"]].copy()
    early = points[points["virtual_time"] <= points["run"].map(page.limits)]
    if kind == "final":
        table["value"] = measures.final(points, metric)
    elif kind == "best":
        table["value"] = measures.best(early, metric)
    elif kind == "uploads":
        table["value"] = measures.final(early, "uploads")
    elif kind in claims.MEASURES:
        of = values_of(page.placed, points, page.spec.limit)
        table["value"] = of(kind, measure.axis or "virtual_time", None, ())["value"]
    else:
        table["value"] = pd.to_numeric(runs[kind]) if kind in runs else math.nan
    return table.rename_axis("run").reset_index()


def _problems(runs: pd.DataFrame) -> set[str]:
    return set(runs["dataset"].astype(str) + " with " + runs["model"].astype(str))


def _header(page: Page) -> list[str]:
    """What these runs are, beside the paper's own: at most four sentences."""
    spec, problems = page.spec, _problems(page.runs)
    what = ", ".join(sorted(problems))
    if page.scale == "smoke":
        first = f"**A smoke test** ({what}): its numbers mean nothing."
    elif page.scale == "full" and problems <= set(spec.problems):
        first = f"**The paper's data, models and scale** ({what})."
    else:
        first = f"**A stand-in, not the paper's experiment**: {what} at scale `{page.scale}`."
    profiles = {"published": "hyper-parameters and budgets as the paper prints them.", "fair": spec.fair}
    return [f"{first} Profile `{page.profile}`: {profiles.get(page.profile, '')}".removesuffix(": "), spec.shows]


def _chosen(page: Page) -> list[Part]:
    """The tuned values, and who was tuned with fewer values than others: a method that was not ranks too low."""
    data = page.choices
    if data.empty:
        return []
    none = data["tuned"].isna()
    values = pd.Series(texts(data["tuned"]), index=data.index)
    values = values.mask(data["at_edge"].astype(bool), values + " (edge)")
    columns: dict[str, Any] = {"cell": data["cell"], "algorithm": data["series"]}
    columns[page.spec.tuned] = values.mask(none, "left out")
    columns["validation accuracy [%]"] = data["validation"].map(lambda value: number(float(value or math.nan)))
    columns["values tried"] = [f"{tried} of {data['tried'].max()}" for tried in data["tried"]]
    name = f"chosen_{page.spec.tuned.rpartition('.')[2]}"
    return ["## Steps chosen on validation samples", Table(name, pd.DataFrame(columns), data, 2)]


def _coverage(page: Page) -> list[Part]:
    """How many runs there are, and by name every one that is not or does not count."""
    placed, left = page.placed, page.placed.left_out
    beyond = int((~placed.runs["listed"].astype(bool)).sum())
    expected = f"{placed.expected} expected, {len(placed.missing)} missing, " if placed.expected else ""
    lines = [f"{expected}{len(placed.runs)} used" + (f" ({beyond} beyond the sweep's list)." if beyond else ".")]
    for reason, group in left.groupby("reason", sort=True):
        names = [f"`{row['name']}`" + (f" ({row['note']})" if row["note"] else "") for _, row in group.iterrows()]
        lines.append(f"- {len(group)} {reason}: {_few(names)}")
    if len(placed.missing):
        lines.append(f"- {len(placed.missing)} missing: {_few([f'`{text}`' for text in placed.missing['overrides']])}")
    return ["## Runs", "\n".join(lines)]


def _few(texts: list[str]) -> str:
    return ", ".join(texts[:_NAMED]) + (f" … and {len(texts) - _NAMED} more" if len(texts) > _NAMED else "")


def _origin(page: Page, commands: Sequence[str]) -> list[Part]:
    """Commands, revisions, versions and devices; no dates, so that the same runs give the same page."""

    def each(key: str) -> str:
        values = {shown(value) for value in page.runs.get(key, ())} - {"-"}
        return ", ".join(sorted(values, key=rank)) or "unknown"

    hours = pd.to_numeric(page.runs.get("summary.wall_seconds", pd.Series(dtype=float))).sum() / 3600
    lines = ["```sh", *commands, "```", ""] if commands else []
    lines.append(f"- seeds {each('seed')}; {each('summary.device')}; {hours:.2g} hours of computing")
    versions = f"asyncfl_bench {each('summary.versions.asyncfl_bench')}, torch {each('summary.versions.torch')}"
    lines.append(f"- runs by {versions}, revision {each('summary.git_revision')}; page by {__version__}")
    moved = pd.to_numeric(page.runs.get("summary.task.moved_samples", pd.Series(dtype=float)))
    if moved.max() > 0:
        repaired = f"in {(moved > 0).sum()} of {len(moved)} runs, {moved[moved > 0].min():g} to {moved.max():g}"
        total = f"of {each('summary.task.train_samples')} training samples"
        lines.append(f"- split: {repaired} {total} were moved so that every client has its minimum")
    digests = page.runs["data_digest"].dropna().unique()
    if len(digests) > 1:
        lines.append(f"- samples: {len(digests)} sets, which follow from the seed or from settings of the data")
    if each("summary.data_source") != "unknown":
        lines.append(f"- data: {each('summary.data_source')}")
    return [_ORIGIN, "\n".join(lines)]
