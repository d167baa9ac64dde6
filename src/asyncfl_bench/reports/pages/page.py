"""A page: its specification, its runs, and the numbers that its blocks read."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ...analysis import claims, evaluations, names, verdicts
from ...analysis.claims import PageVerdicts
from ...analysis.comparison import compare_pairs, values_at_equal_budget
from ...analysis.contrasts import Contrast, pair_table
from ...analysis.matching import MatchedRuns
from ...analysis.measures import AT_BUDGET, MEASURES, RunMeasures
from ...analysis.names import value_texts
from ...analysis.statistics import LEVELS
from ...config.part_sources import report_command
from ...tracking.archive import NAME as ARCHIVE_NAME
from ...tracking.archive import pack_archive
from . import style
from .spec import Measure, PageSpec, partial_image_sets, problems
from .write import Part, Table, flatten_parts

MOST_SERIES = 12  # lines of a figure


@dataclass
class Page:
    """A page: the runs and numbers that blocks read, and the parts that they return.

    metric    the one that curves and ``final`` show
    choices   the chosen values of the tuned setting, see ``choose_tuned``
    computed  experiment and seconds of all runs that ended, those included that were not chosen
    tie       margin of a tie [points] that decide=true declared; None without it
    is_borrowed  no run was made for this page, and runs are missing or are of another profile
    """

    spec: PageSpec
    placed: MatchedRuns
    points: pd.DataFrame
    profile: str = ""
    scale: str = ""
    length: str = "standard"
    metric: str = "test/accuracy"
    choices: pd.DataFrame = field(default_factory=pd.DataFrame)
    computed: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: list[str] = field(default_factory=list)  # sentences that a terminal shows too
    parts: list[Part] = field(default_factory=list)
    judged: list[verdicts.Judgement] = field(default_factory=list)
    tie: float | None = None
    is_borrowed: bool = False
    _values: dict[Measure, pd.DataFrame] = field(default_factory=dict, repr=False)

    @property
    def keys(self) -> list[str]:
        return list(self.placed.cells)

    @property
    def runs(self) -> pd.DataFrame:
        return self.placed.runs

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        return {part.name: part.data for part in flatten_parts(self.parts) if isinstance(part, Table)}

    @functools.cached_property
    def cells(self) -> pd.DataFrame:
        """The cells in order: index their names, columns their keys."""
        return self.runs[["cell", *self.keys]].drop_duplicates("cell").set_index("cell").loc[self.placed.cell_names]

    @functools.cached_property
    def cell_texts(self) -> pd.DataFrame:
        """``cells`` with their values as texts."""
        return pd.DataFrame({key: value_texts(self.cells[key]) for key in self.keys}, index=self.cells.index)

    @functools.cached_property
    def series(self) -> list[str]:
        return self.placed.series_names

    @functools.cached_property
    def styles(self) -> dict[str, style.Style]:
        return style.styles(self.series)

    @functools.cached_property
    def series_in_figures(self) -> list[str]:
        """The series that figures show: all, or the best by their mean final value; the first ones if the metric has
        no direction."""
        lower = self.measured.metric_is_lower_better
        if len(self.series) <= MOST_SERIES or lower is None:
            return self.series[:MOST_SERIES]
        means = self.values(Measure("final")).groupby("series")["value"].mean()
        best = means.sort_values(ascending=lower).index[:MOST_SERIES]
        return [one for one in self.series if one in best]

    def axis_label(self, axis: str) -> str:
        return names.axis_label(axis, self.units)

    def label(self, measure: Measure) -> str:
        """Return the measure's name on pages: ``best test accuracy [%]``."""
        kind = measure.kind
        name, _, unit = names.metric_label(self.metric).partition(" [")
        unit = f" [{unit}" if unit else ""
        clock = self.axis_label("virtual_time").removeprefix("virtual time")
        if kind.endswith(".virtual_time"):
            return self.axis_label("virtual_time")
        known = {"time_to_90": f"time to 90 % of own best{clock}", "time_to_target": f"time to common target{clock}"}
        known["time_to_level"] = f"time to target{clock}"
        known["late"] = f"{name}, mean over the last fifth of the {names.AXES[measure.budget_axis]}{unit}"
        known["accuracy"] = f"{name} at equal {names.AXES[measure.budget_axis]}{unit}"
        own = f"{'last' if kind == 'final' else kind} {name}{unit}"
        title = MEASURES[kind].title if kind in MEASURES else ""
        return known.get(kind, own if measure.is_of_metric else title or kind.rpartition(".")[2].replace("_", " "))

    @functools.cached_property
    def units(self) -> list[object]:
        """Units of virtual time, one a run: ticks of the clock, or the unit of the delays."""
        units = self.runs.get("delay.unit", pd.Series(None, index=self.runs.index, dtype=object))
        return [*units.mask(self.runs["clock"] == "ticks", "ticks")] if "clock" in self.runs else [*units]

    def decimals(self, measure: Measure) -> int:
        if measure.is_of_metric:
            return 2 if names.is_percent(self.metric) else 4
        counts = measure.kind.endswith(("uploads", "iterations", "bytes"))
        return 0 if counts else MEASURES[measure.kind].decimals if measure.kind in MEASURES else 1

    @functools.cached_property
    def measured(self) -> RunMeasures:
        """The measures of the page's runs."""
        return RunMeasures(self.placed, self.points, self.metric, self.spec.limit, self.spec.levels)

    def values(self, measure: Measure) -> pd.DataFrame:
        """Return a row a run: run, series, cell, its keys, seed, value; at a budget budget, evaluations and is_last.

        is_last  of `late`: the cell's last values, as a run has too few evaluations
        """
        kind, axis = measure.kind, measure.budget_axis
        if measure not in self._values and kind in AT_BUDGET:
            self._values[measure] = values_at_equal_budget(self.measured, kind, axis)
        elif measure not in self._values:
            table = self.runs[["series", "cell", *self.keys, "seed"]].copy()
            known = kind in MEASURES or kind.startswith("mse/") or kind in self.runs
            table["value"] = self.measured.values(kind, axis) if known else math.nan
            self._values[measure] = table.rename_axis("run").reset_index()
        return self._values[measure].copy()

    @property
    def levels(self) -> Mapping[int, float] | None:
        """Levels of the looks, if a paper has claims or decide=true chose the seeds; else None for a single look."""
        return LEVELS if claims.read_claims(self.spec.paper) or self.tie is not None else None

    @property
    def seen_seeds(self) -> int:
        """Seeds below it were run before the rules were declared."""
        return claims.seen_seeds(self.spec.sweep, self.scale)

    @functools.cached_property
    def pairs(self) -> pd.DataFrame:
        """All pairs of series in every cell by the primary measure, see ``pair_table``; empty without one."""
        return self.pairs_by(self.spec.primary) if self.spec.primary is not None else pd.DataFrame()

    def pairs_by(self, measure: Measure) -> pd.DataFrame:
        """Return all pairs of series in every cell by a measure, as ``pair_table``; empty if the measure has no
        direction."""
        axis = measure.budget_axis
        if self.measured.lower_is_better(measure.kind) is None:
            return pd.DataFrame()
        return pair_table(
            compare_pairs(self.measured, measure.kind, axis, self.levels, tie=self.tie, seen=self.seen_seeds)
        )

    def decide(self, by_seed: pd.Series, measure: Measure) -> Contrast:
        """Return the decision about differences of the measure seed by seed."""
        step, margin = self.measured.resolution(measure.kind), self.measured.tie_margin(measure.kind, self.tie)
        return Contrast("", by_seed=by_seed, margin=margin, levels=self.levels, resolution=step)

    def groups(self, frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
        """Yield cell, series and their rows of a frame with these columns, in the order of pages."""
        groups = dict(iter(frame.groupby(["cell", "series"])))
        for cell, series in itertools.product(map(str, self.cells.index), self.series):
            if (cell, series) in groups:
                yield cell, series, groups[cell, series]

    def with_keys(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with the keys of the cell in place of its column ``cell``."""
        return table.merge(self.cells.reset_index(), on="cell", how="left").drop(columns="cell") if self.keys else table

    def published_of(self, cell: str) -> pd.DataFrame:
        """Return ``PublishedNumbers.values_of_cell``; empty if nothing is published."""
        published, keys = self.spec.published, pd.Series(self.cells.loc[cell])
        return pd.DataFrame() if published is None else published.values_of_cell(self.spec.paper, keys, self.series)

    def is_papers_experiment(self, cell: str) -> bool:
        """Return True if the cell's runs are the paper's own experiment: data, model, scale and settings."""
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
    def is_judged(self) -> bool:
        """Return True if the page judges claims; claims are about the test accuracy."""
        return self.metric == evaluations.ACCURACY

    @property
    def verdicts(self) -> PageVerdicts:
        scale = claims.PART if self.scale == "full" and partial_image_sets(self.runs) else self.scale
        found = tuple(one.verdict for one in self.judged)
        return PageVerdicts(self.spec.sweep, self.profile, scale, self.length, found)

    @property
    def command(self) -> str:
        """The command that writes the page."""
        metric = "" if self.is_judged else f" --metric {self.metric}"
        return report_command(self.spec.sweep, self.profile, self.scale, self.length) + metric

    def pack_runs(self, results: Path) -> None:
        """Add every run of this page that ended to the archive of its paper."""
        paths = dict.fromkeys(str(run).partition("::")[0] for run in self.computed.index)
        pack_archive(paths, results / self.spec.paper / ARCHIVE_NAME, only=set(self.computed["experiment"]))
