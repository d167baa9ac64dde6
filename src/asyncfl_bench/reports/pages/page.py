"""A page: its specification, its runs, and the numbers that its blocks read."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ...analysis import claims, measures, names, statistics
from ...analysis.claims import PageVerdicts
from ...analysis.contrasts import values_of
from ...analysis.differences import value_texts
from ...analysis.measures import test_step
from ...analysis.place import MatchedRuns
from ...analysis.verdicts import PART
from ...files import write_text
from ...tracking.archive import NAME as ARCHIVE_NAME
from ...tracking.archive import pack_archive
from . import style
from .problems import partial_image_sets, problems
from .spec import Measure, PageSpec
from .write import Part, Table


@dataclass
class Page:
    """What blocks read, and what they made of it.

    metric    the one that curves and ``final`` show; max_series: lines of a figure
    choices   what was chosen of the tuned setting, see ``measures.choose_tuned``
    measured  experiment and seconds of all runs that came to an end, those included that were not chosen
    """

    spec: PageSpec
    placed: MatchedRuns
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
    def left_out_text(self) -> str:
        """Return how many runs do not count, by reason: ``2 diverged, 1 inconsistent``."""
        counts = self.placed.left_out["reason"].value_counts()
        return ", ".join(f"{counts[reason]} {reason}" for reason in sorted(counts.index))

    @property
    def is_borrowed(self) -> bool:
        """Whether it has some of its runs, each of them made for another sweep."""
        return len(self.placed.missing) > 0 and self.spec.sweep not in set(self.runs["sweep"])

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
        return pd.DataFrame({key: value_texts(self.cells[key]) for key in self.keys}, index=self.cells.index)

    @functools.cached_property
    def series(self) -> list[str]:
        return sorted(set(self.runs["series"]), key=names.series_order)

    @functools.cached_property
    def styles(self) -> dict[str, style.Style]:
        return style.styles(self.series)

    @functools.cached_property
    def series_in_figures(self) -> list[str]:
        """The series that figures show: all, or the best by their mean final value."""
        means = self.values(Measure("final")).groupby("series")["value"].mean()
        best = means.sort_values(ascending=names.lower_is_better(self.metric)).index[: self.max_series]
        return self.series if len(self.series) <= self.max_series else [one for one in self.series if one in best]

    def axis_label(self, axis: str) -> str:
        return names.axis_label(axis, self.units)

    def label(self, measure: Measure, short: bool = False) -> str:
        """Return what the measure is called: ``test accuracy at equal uploads [%]``; short: ``equal uploads``."""
        kind = measure.kind
        name, _, unit = names.metric_label(self.metric).partition(" [")
        clock = self.axis_label("virtual_time").removeprefix("virtual time")
        if kind.endswith(".virtual_time"):
            return self.axis_label("virtual_time")
        known = {"time_to_90": f"time to 90 % of own best{clock}", "time_to_target": f"time to common target{clock}"}
        known["time_to_level"] = f"time to target{clock}"
        known["late"] = f"mean of the last ten, {name}" + (f" [{unit}" if unit else "")
        if kind == "equal":
            known["equal"] = f"{'' if short else f'{name} at '}equal {names.AXES[measure.axis]}"
            return known["equal"] + (f" [{unit}" if unit and not short else "")
        own = f"{kind} {name}" + (f" [{unit}" if unit else "")
        return known.get(kind, own if measure.is_of_metric else kind.rpartition(".")[2].replace("_", " "))

    @functools.cached_property
    def units(self) -> list[object]:
        """Of virtual time, one a run: the clock's ticks, or what the delay's numbers are."""
        units = self.runs.get("delay.unit", pd.Series(None, index=self.runs.index, dtype=object))
        return [*units.mask(self.runs["clock"] == "ticks", "ticks")] if "clock" in self.runs else [*units]

    def is_lower_better(self, measure: Measure) -> bool:
        """Return True if small values of the measure are good ones."""
        return measure.kind.startswith("time") or (measure.is_of_metric and names.lower_is_better(self.metric))

    def resolution(self, measure: Measure) -> float:
        """Step of a test accuracy [points], one sample of the smallest test set; 0 for what has no such step."""
        if not self.metric.startswith("test/") or not names.is_percent(self.metric):
            return 0.0
        return test_step(self.runs) if measure.kind in ("equal", "final", "best") else 0.0

    def decimals(self, measure: Measure) -> int:
        if measure.is_of_metric:
            return 2 if names.is_percent(self.metric) else 4
        return 0 if measure.kind.endswith(("uploads", "iterations", "bytes")) else 1

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
        return self._cached_values(measure).copy()

    @functools.cached_property
    def _cached_values(self) -> Callable[[Measure], pd.DataFrame]:
        """Return ``_compute_values`` of this page with a cache by measure."""
        return functools.cache(functools.partial(_compute_values, self))

    @functools.cached_property
    def pairs(self) -> pd.DataFrame:
        """The neighbouring pairs of every ranking of the page, Holm over all of them: the columns of
        ``statistics.neighbouring_pairs`` with ``measure`` (its name) and ``cell``; difference: better - next."""
        ranked = dict.fromkeys(measure for block in self.spec.blocks for measure in getattr(block, "measures", ()))
        frames = []
        for measure in ranked:
            values = self.values(measure)
            lost = values["value"].isna().groupby([values["series"], values["cell"]]).transform("any")
            sign = -1 if self.is_lower_better(measure) else 1
            values["value"] = values["value"].mask(lost) * sign  # without a mean: last
            places = {cell: number for number, cell in enumerate(self.cells.index)}
            values["resolution"] = self.resolution(measure)
            frames.append(values.assign(measure=measure.name, place=values["cell"].map(places)))
        if not frames:
            return pd.DataFrame(columns=["measure", "cell", "better", "next", "difference", "verdict"])
        pairs = statistics.neighbouring_pairs(pd.concat(frames), ["measure", "place"])
        pairs["cell"] = [self.cells.index[place] for place in pairs.pop("place")]
        turned = pairs["measure"].isin([measure.name for measure in ranked if self.is_lower_better(measure)])
        pairs.loc[turned, "difference"] *= -1
        pairs.loc[turned, ["low", "high"]] = -pairs.loc[turned, ["high", "low"]].to_numpy()
        pairs["verdict"] = pairs["verdict"].mask(turned & (pairs["verdict"] == "larger"), "smaller")
        return pairs

    def with_keys(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table with a column ``cell``, with the keys of the cell in its place."""
        return table.merge(self.cells.reset_index(), on="cell", how="left").drop(columns="cell") if self.keys else table

    def published_of(self, cell: str) -> pd.DataFrame:
        """See ``PublishedNumbers.values_of_cell``; empty where nothing is published."""
        published, keys = self.spec.published, pd.Series(self.cells.loc[cell])
        return pd.DataFrame() if published is None else published.values_of_cell(self.spec.paper, keys)

    def is_real(self, cell: str) -> bool:
        """Whether the cell's runs are the paper's own experiment: data, model, scale and settings."""
        runs = self.runs[self.runs["cell"] == cell]
        sources = set(runs.get("summary.data_source", ()))
        as_printed = (self.profile, self.scale) == ("published", "full")
        return (
            as_printed
            and problems(runs) <= set(self.spec.problems)
            and not partial_image_sets(runs)
            and not sources & set(self.spec.stand_ins)
        )

    @property
    def verdicts(self) -> PageVerdicts:
        scale = PART if self.scale == "full" and partial_image_sets(self.runs) else self.scale
        return PageVerdicts(self.spec.sweep, self.profile, scale, self.length, tuple(self.claims))

    @property
    def command(self) -> str:
        """What writes the page."""
        length = "" if self.length == "standard" else f" --length {self.length}"
        return f"afl-report {self.spec.sweep} --profile {self.profile} --scale {self.scale}{length}"

    def pack_runs(self, results: Path) -> None:
        """Add every run of this page that came to an end to the archive of its paper."""
        places = dict.fromkeys(str(run).partition("::")[0] for run in self.measured.index)
        pack_archive(places, results / self.spec.paper / ARCHIVE_NAME, only=set(self.measured["experiment"]))

    def write_claims(self, folder: Path) -> None:
        """``claims.json``, where the paper claims something."""
        if self.claims:
            write_text(folder / claims.NAME, claims.to_json(self.verdicts))


def _compute_values(page: Page, measure: Measure) -> pd.DataFrame:
    """Return a row a run with its value of the measure, see ``Page.values``."""
    runs, points, kind, metric = page.runs, page.points, measure.kind, page.metric
    if kind == "equal":
        return measures.values_at_equal_budget(page.placed, points, measure.axis, metric).reset_index()
    table = runs[["series", "cell", *page.keys, "seed"]].copy()
    early = points[points["virtual_time"] <= points["run"].map(page.limits)]
    if kind == "final":
        table["value"] = measures.final_values(points, metric)
    elif kind == "late":
        table["value"] = measures.late_means(points, metric)
    elif kind == "best":
        table["value"] = measures.best_values(early, metric)
    elif kind == "uploads":
        table["value"] = measures.final_values(early, "uploads")
    elif kind in claims.MEASURES:
        of = values_of(page.placed, points, page.spec.limit, page.spec.levels)
        table["value"] = of(kind, measure.axis or "virtual_time", None, ())["value"]
    else:
        table["value"] = pd.to_numeric(runs[kind]) if kind in runs else math.nan
    return table.rename_axis("run").reset_index()
