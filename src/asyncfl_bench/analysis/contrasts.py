"""The comparison that decides a claim, as numbers seed by seed (claims.py has the words and the verdicts).

Legend: a table has a row a cell and a column a seed. Values are turned so that larger is better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from ..errors import BenchError
from . import measures, names, step_errors
from .place import MatchedRuns
from .statistics import Interval, paired_interval, sampling_error

# measure: unit, whether small values are good ones; others: ``mse/COLUMN`` of ``error_table``, small is good
MEASURES = {
    "accuracy": ("points", False),  # test accuracy [%] at the largest budget of the axis that all runs compared spent
    "late": ("points", False),  # mean test accuracy [%] of the last ten evaluations
    "best": ("points", False),  # highest test accuracy [%]
    "time_to_90": ("", True),  # along the axis, to 90 % of the run's own best
    "time_to_target": ("", True),  # along the axis, to 90 % of the lowest mean best of the cell
    "time_to_level": ("", True),  # along the axis, to the accuracy that the paper times on this data set
    "unsteadiness": ("points", True),  # mean change between evaluations, from the time of 90 % of the best on
    "dissimilarity": ("", True),  # mean over evaluations of dissimilarity/squared; diagnostics=dissimilarity
    "uploads_per_iteration": ("uploads", True),  # without a first round of all clients
    "server_vectors": ("vectors", True),  # state in vectors of d floats
    "client_vectors": ("vectors", True),  # the same, of all clients together
    "versions": ("versions", True),  # most versions of the model in clients' work at once, the server's own not counted
}
_NO_CELLS = "page"
# (measure, axis, budget or None for all, keys of cells that share a budget) -> a row a run: seed, value, series (its
# label), settings and choices
Measure = Callable[[str, str, float | None, tuple[str, ...]], pd.DataFrame]


@dataclass(frozen=True)
class Contrast:
    """One number a seed, above zero as claimed; with a margin: nearer to zero than it. Empty where runs lack."""

    name: str
    cell: str
    by_seed: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    margin: float | None = None
    counted: bool = False  # the same for every seed, such as bytes: one run decides
    extra_error: float = 0.0
    resolution: float = 0.0  # step of one value, see ``paired_interval``

    @property
    def interval(self) -> Interval:
        """Over seeds; p is of "zero", with a margin of "at the margin". A run that never came to what is timed stands
        at infinity: in favour of the claim it is left out, against it there is nothing to compute."""
        known_s = self.by_seed.replace(math.inf, math.nan).dropna()
        if self.counted or (known_s == -math.inf).any():
            mean = float(known_s.mean()) if self.counted else math.nan
            return Interval(mean, math.nan, math.nan, math.nan, len(known_s), "unknown")
        found = paired_interval(known_s, self.resolution, self.extra_error)
        if self.margin is None:
            return found
        beyond = paired_interval(known_s - math.copysign(self.margin, found.mean), self.resolution, self.extra_error)
        return Interval(found.mean, found.low, found.high, beyond.p, found.n, found.verdict)

    def distance(self, interval: Interval) -> float:
        """How far the interval's worse end is within the claim; the least certain contrast has the least."""
        ends = [end for end in (interval.low, interval.high, interval.mean) if not math.isnan(end)]
        if not ends:
            return -math.inf
        return min(ends) if self.margin is None else self.margin - max(map(abs, ends))

    def contrast_side(self, interval: Interval, p_adjusted: float) -> str:
        """Return ``agree`` if the interval excludes the contrary, ``against`` if p excludes the claim, else
        ``open``."""
        contrary = interval.mean < 0 if self.margin is None else abs(interval.mean) > self.margin
        if self.counted:
            return "against" if contrary else "agree"
        if self.margin is None:
            agree = interval.low > 0
        else:
            agree = -self.margin <= interval.low and interval.high <= self.margin
        if agree:
            return "agree"
        return "against" if contrary and p_adjusted < 0.05 else "open"


def values_of(
    placed: MatchedRuns,
    points: pd.DataFrame,
    limit: float = math.inf,
    levels: Mapping[str, float] = MappingProxyType({}),
) -> Measure:
    """The measures of a page's runs.

    limit   of virtual time, for everything but accuracies at equal budgets; where runs of a protocol (cell key
            ``paper``) end earlier, that end is its limit
    levels  accuracy [%] that is timed, by data set
    """
    runs, early = placed.runs, points
    if "paper" in placed.cells:
        limits = measures.common_limit(placed, points, "paper", limit)
        early = points[points["virtual_time"] <= points["run"].map(runs["paper"]).map(limits).astype(float)]
    elif limit < math.inf:
        early = points[points["virtual_time"] <= limit]

    parts = cache(partial(_error_parts, placed, points))

    @cache
    def measure(name: str, axis: str, at: float | None, across: tuple[str, ...]) -> pd.DataFrame:
        if name == "accuracy" and at is None:
            values = measures.values_at_equal_budget(placed, points, axis, across=across)["value"]
        elif name == "accuracy":
            values = measures.last_value_before(points, measures.ACCURACY, float(at or 0), axis)
        elif name == "late":
            values = measures.late_means(early)
        elif name == "best":
            values = measures.best_values(early)
        elif name == "time_to_90":
            values = measures.time_to_reach(early, 0.9 * measures.best_values(early), axis)
        elif name == "time_to_target":
            best = measures.best_values(early).reindex(runs.index)
            means = best.groupby([runs["cell"], runs["series"]]).transform("mean")
            values = measures.time_to_reach(early, 0.9 * means.groupby(runs["cell"]).transform("min"), axis)
        elif name == "time_to_level":
            values = measures.time_to_reach(early, runs["dataset"].map(levels).astype(float), axis)
        elif name == "unsteadiness":
            values = measures.unsteadiness(early)
        elif name == "dissimilarity":
            found = points.reindex(columns=["run", "dissimilarity/squared"]).dropna()
            values = found.groupby("run")["dissimilarity/squared"].mean()
        elif name == "uploads_per_iteration":
            first = runs["n_clients"].where(runs["algorithm"].isin(("ace", "aced")), 0)
            uploads, iterations = runs["summary.used.uploads"], runs["summary.used.server_iterations"]
            values = (uploads - first) / (iterations - (first > 0))
        elif name in ("server_vectors", "client_vectors"):
            place = "server" if name == "server_vectors" else "clients"
            values = runs[f"summary.state_bytes.{place}"] / (4 * runs["summary.parameters"])
        elif name == "versions":
            values = points.reindex(columns=["run", "in_flight/versions_max"]).groupby("run").max().iloc[:, 0]
        else:
            values = parts().get(name, pd.Series(dtype=float))
        return runs.assign(value=values.reindex(runs.index).astype(float))

    return measure


def _error_parts(placed: MatchedRuns, points: pd.DataFrame) -> pd.DataFrame:
    """The table of the error's parts run by run, under names ``mse/…``; without rows where nothing was measured."""
    keys = ["series", *placed.cells, "seed"]
    try:
        table = step_errors.error_table(placed.runs, points, keys[1:])
    except BenchError:
        return pd.DataFrame()
    table = table.rename(columns={key: f"mse/{key}" for key in table.columns if key not in keys})
    return placed.runs[keys].merge(table, how="left", on=keys).set_axis(placed.runs.index)


Series = str | Mapping[str, Any]  # a name of the claims file or an algorithm; or settings


@dataclass(frozen=True)
class ClaimQuery:
    """The runs and the comparison that a claim's ``decide`` asks of one page; docs/claims.md explains its keys."""

    decide: Mapping[str, Any]
    where: Mapping[str, Any]
    series: Mapping[str, Mapping[str, Any]]  # name -> settings, and a label
    measure: Measure
    cells: Sequence[str]
    published: Path  # folder of the paper's numbers

    def contrasts(self) -> list[Contrast]:
        kinds = {
            "order": self._compare_order,
            "wider": self._compare_spread,
            "loses": self._compare_loss,
            "close": self._compare_close,
        }
        found = (kinds | {"equals": self._compare_to_expected, "reaches": self._compare_to_value})[
            self.decide["kind"]
        ]()
        return [contrast for name, table, error in found for contrast in self._split_by_cell(name, table, error)]

    @property
    def unit(self) -> str:
        """Of the differences; times have that of their axis."""
        measure, axis = self.decide["measure"], self.decide.get("axis", "iteration")
        if self.decide.get("relative"):
            return "%"
        if not measure.startswith("time"):
            return MEASURES.get(measure, ("", True))[0]
        frame = self._measured_runs(None)
        ticks = set(frame.get("clock", ())) == {"ticks"}
        label = names.axis_label(axis, ["ticks"] if ticks else frame.get("delay.unit", ()))
        return label.partition("[")[2].rstrip("]") if axis == "virtual_time" else label

    def _compare_order(self) -> Iterator[tuple[str, pd.DataFrame, float]]:
        """Yield each series of a group minus each of the next group; with ``at_least``, minus that number too."""
        least = float(self.decide.get("at_least", 0))
        beyond = f", beyond {least:g}" if least else ""
        for one, other in self._series_pairs():
            name = f"{self._label(one)} - {self._label(other)}{beyond}"
            yield name, self._table(one) - self._table(other) - least, 0.0

    def _compare_spread(self) -> Iterator[tuple[str, pd.DataFrame, float]]:
        """Yield the spread over seeds of each series minus that of each of the next group, as distances from
        the mean."""
        for one, other in self._series_pairs():
            spread = [table.sub(table.mean(axis=1), axis=0).abs() for table in map(self._table, (one, other))]
            yield f"spread of {self._label(one)} - {self._label(other)}", spread[0] - spread[1], 0.0

    def _compare_loss(self) -> Iterator[tuple[str, pd.DataFrame, float]]:
        """Yield what moving the setting ``along`` from ``start`` to ``end`` costs each series.

        With ``than``, the cost at those settings is subtracted. With ``others``, the cost of the series is
        subtracted from theirs. With ``at_least``, that number is subtracted.
        """
        along, start, least = self.decide["along"], self.decide["start"], float(self.decide.get("at_least", 0))
        for name, end in itertools.product(self.decide["series"], _as_list(self.decide["end"])):

            def loss(of: Series, there: Mapping[str, Any] | None = None, end: object = end) -> pd.DataFrame:
                return self._table(of, {**(there or {}), along: start}) - self._table(of, {**(there or {}), along: end})

            ends = " to ".join(names.short_value(along, value) for value in (start, end))
            change = f"{names.key_label(along, [start])} {ends}"
            for other in self.decide.get("others", ()):
                label = f"loss of {self._label(other)} - {self._label(name)}, {change}"
                yield label, loss(other) - loss(name), 0.0
            if "than" in self.decide:
                there = self.decide["than"]
                where = names.cell_label(list(there), list(there.values()))
                label = f"loss of {self._label(name)}, {change}, beyond that at {where}"
                yield label, loss(name) - loss(name, there), 0.0
            elif "others" not in self.decide:
                beyond = f", beyond {least:g}" if least else ""
                yield f"loss of {self._label(name)}, {change}{beyond}", loss(name) - least, 0.0

    def _compare_close(self) -> Iterator[tuple[str, pd.DataFrame, float]]:
        """Yield the difference of each series between any two ``values`` of ``along``, to be within the margin."""
        along, pairs = self.decide["along"], list(itertools.combinations(self.decide["values"], 2))
        for name, (one, other) in itertools.product(self.decide["series"], pairs):
            label = f"{self._label(name)}, {names.key_label(along, [one])} {one} - {other}"
            yield label, self._table(name, {along: one}) - self._table(name, {along: other}), 0.0

    def _compare_to_expected(self) -> Iterator[tuple[str, pd.DataFrame, float]]:
        """Yield each series minus a number, a setting of its runs or its cell's published number, to be within
        the margin."""
        expected = self.decide["expected"]
        if "file" not in expected:
            for name, number in expected.items():
                yield f"{self._label(name)} - {number}", self._table(name, minus=number), 0.0
            return
        rows = pd.read_csv(self.published / expected["file"])
        keys = [key for key in rows.columns if key in ("algorithm", "paper") or "." in key]
        here = {key: value for key, value in self.where.items() if key in rows}
        for _, row in rows[_matching_rows(rows, here)].iterrows():
            number, settings = float(row[expected["column"]]), {key: row[key] for key in keys if pd.notna(row[key])}
            variant = {key: value for key, value in settings.items() if key not in ("algorithm", *self.where)}
            label = f"{names.series_label(row['algorithm'], variant)} - {number:g}"
            samples = self.decide.get("test_samples")
            yield (
                label,
                self._table(settings, minus=number),
                sampling_error(number, samples) if samples else 0.0,
            )

    def _compare_to_value(self) -> Iterator[tuple[str, pd.DataFrame, float]]:
        """Yield each series minus a number that it must exceed."""
        turned = -1 if MEASURES[self.decide["measure"]][1] else 1
        for name, number in self.decide["expected"].items():
            yield f"{self._label(name)} against {number:g}", self._table(name) - turned * number, 0.0

    def _series_pairs(self) -> Iterator[tuple[Series, Series]]:
        """Yield each series with each series of the next group; ``rest`` is all other values of the settings
        that name the first."""
        for better, worse in itertools.pairwise(self.decide["groups"]):
            for one in better:
                others = self._other_settings(one) if worse == "rest" else worse
                yield from ((one, other) for other in others)

    def _other_settings(self, name: Series) -> list[Mapping[str, Any]]:
        """Return the settings of all other series of the algorithm that differ from ``name`` in its settings."""
        frame, own = self._measured_runs(None), self._settings(name)
        known = frame[
            _matching_rows(frame, {**self.where, "algorithm": own["algorithm"]}) & ~_matching_rows(frame, own)
        ]
        rest = known.reindex(columns=list(own)).drop_duplicates().sort_values(list(own))
        return [dict(zip(own, values, strict=True)) for values in rest.itertuples(index=False)]

    def _split_by_cell(self, name: str, table: pd.DataFrame, error: float) -> Iterator[Contrast]:
        """Yield a contrast for each cell; with ``over: mean``, one for the mean over cells of seeds that have
        all cells."""
        margin, counted = self.decide.get("margin"), bool(self.decide.get("counted"))
        accuracy = self.decide["measure"] in ("accuracy", "best") and not self.decide.get("relative")
        step = measures.test_step(self._measured_runs(None)) if accuracy else 0.0
        if table.empty:
            yield Contrast(name, "", margin=margin)
        elif self.decide.get("over") == "mean":
            of = f"mean of {len(table)} cells" if len(table) > 1 else ""
            yield Contrast(name, of, table.mean(axis=0, skipna=False), margin, counted, error, step)
        else:
            for cell, by_seed in table.iterrows():
                values, keys = cell if isinstance(cell, tuple) else (cell,), [str(key) for key in table.index.names]
                label = "" if keys == [_NO_CELLS] else names.cell_label(keys, values)
                yield Contrast(name, label, by_seed.dropna(), margin, counted, error, step)

    def _measured_runs(self, at: float | None) -> pd.DataFrame:
        """Return the page's runs with their value of the measure, at the budget ``at`` or at equal budgets."""
        across = [self.decide["along"], *self.decide.get("than", ())] if "along" in self.decide else []
        return self.measure(self.decide["measure"], self.decide.get("axis", "iteration"), at, tuple(across))

    def _settings(self, name: Series) -> dict[str, Any]:
        found = name if isinstance(name, Mapping) else self.series.get(name, {"algorithm": name})
        return {key: value for key, value in found.items() if key != "label"}

    def _label(self, name: Series) -> str:
        if isinstance(name, str) and "label" in self.series.get(name, {}):
            return str(self.series[name]["label"])
        settings = self._settings(name)
        return names.series_label(settings.pop("algorithm"), settings)

    def _table(
        self, name: Series, fixed: Mapping[str, Any] | None = None, minus: float | str | None = None
    ) -> pd.DataFrame:
        """The values of one series under ``where`` and ``fixed``: a row a cell, a column a seed. What is fixed makes no
        cell; ``at`` is a budget. A time that never came is infinite. With ``minus`` (a number or a setting): the
        distance from it, not turned."""
        settings = {**self.where, **self._settings(name), **(fixed or {})}
        measure, at = self.decide["measure"], settings.pop("at", None)
        cells = [key for key in self.cells if isinstance(settings.get(key, []), list)]
        frame, asked = self._measured_runs(at), [*cells, "seed", "value", *([minus] if isinstance(minus, str) else [])]
        frame = frame.reindex(columns=asked)[_matching_rows(frame, settings)].assign(**{_NO_CELLS: ""})
        cells = cells or [_NO_CELLS]
        if frame.duplicated([*cells, "seed"]).any():
            raise BenchError(f"{self._label(name)} has several runs with one seed in one cell; no mean may mix them")
        if measure.startswith("time"):
            frame["value"] = frame["value"].fillna(math.inf)
        if minus is not None:
            frame["value"] -= frame[minus].astype(float) if isinstance(minus, str) else minus
        table = frame.pivot(index=cells, columns="seed", values="value").dropna(how="all")
        if self.decide.get("relative"):
            table = 100 * table.map(math.log)
        return -table if minus is None and MEASURES.get(measure, ("", True))[1] else table


def _matching_rows(frame: pd.DataFrame, settings: Mapping[str, Any]) -> pd.Series:
    """Return which rows have these settings.

    A list allows each of its values, null means not set, and ``any`` has alternatives. Numbers are compared as
    numbers.
    """
    found = pd.Series(True, index=frame.index)
    for key, wanted in settings.items():
        if key == "any":
            found &= pd.concat([_matching_rows(frame, one) for one in wanted], axis=1).any(axis=1)
            continue
        own = frame.get(key, pd.Series(None, index=frame.index, dtype=object))
        numbers = pd.to_numeric(own, errors="coerce")
        each = pd.Series(False, index=frame.index)
        for value in _as_list(wanted):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            same = numbers == float(value) if is_number else own.astype(str) == str(value)
            each |= own.isna() if value is None else same
        found &= each
    return found


def _as_list(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]
