"""The comparisons that a claim names in ``decide`` (CONTRIBUTING.md explains its keys).

Legend: a table has a row a cell and a column a seed. Values are turned so that larger is better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ..config.places import paper_folders
from ..errors import BenchError
from . import names
from .claims import Claim
from .comparison import Comparison, compare_sides, experiments_of, mean_of_comparisons
from .contrasts import Contrast
from .measures import LOG_RATIO, MEASURES, RunMeasures
from .statistics import Question, sampling_error

Series = str | Mapping[str, Any]  # a name of the claims file or an algorithm; or settings


class ClaimQuery:
    """The runs and the comparison that a claim's ``decide`` asks of one page (keys: CONTRIBUTING.md)."""

    def __init__(self, claim: Claim, measured: RunMeasures):
        self.decide, self.where, self.series = claim.decide, claim.where, claim.series
        self.measured, self.cells, self.paper = measured, measured.placed.cells, claim.paper
        self.measure, self.axis = str(claim.decide["measure"]), str(claim.decide.get("axis", "iteration"))

    def contrasts(self) -> list[Contrast]:
        """Return every comparison of the claim, those without runs included."""
        kinds = {
            "order": self._compare_order,
            "wider": self._compare_order,
            "loses": self._compare_loss,
            "close": self._compare_close,
            "alike": self._compare_order,
            "equals": self._compare_to_expected,
            "reaches": self._compare_to_value,
        }
        found: list[Contrast] = []
        for share in map(float, _as_list(self.decide.get("budget", 1.0))):
            parts = [*kinds[self.decide["kind"]](share)]
            noun = "losses" if self.decide["kind"] == "loses" else "comparisons"
            for part in [mean_of_comparisons(parts, noun)] if self.decide.get("together") else parts:
                found += self._split_by_cell(part, share)
        return found

    @property
    def unit(self) -> str:
        """Unit of the differences; times have that of their axis."""
        if self.decide.get("relative"):
            return LOG_RATIO
        if not self.measure.startswith("time"):
            return MEASURES[self.measure].unit if self.measure in MEASURES else ""
        runs = self.measured.runs
        ticks = set(runs.get("clock", ())) == {"ticks"}
        label = names.axis_label(self.axis, ["ticks"] if ticks else runs.get("delay.unit", ()))
        return label.partition("[")[2].rstrip("]") if self.axis == "virtual_time" else label

    def _compare_order(self, share: float) -> Iterator[Comparison]:
        """Yield each series of a group minus each of the next group; with ``at_least``, minus that number too.

        The group ``rest`` has all other values of the settings that name the first.
        ``wider`` compares spreads over seeds, as distances from the mean of the lowest three seeds.
        """
        is_spread = self.decide["kind"] == "wider"
        least = float(self.decide.get("at_least", 0))
        relative = bool(self.decide.get("relative"))
        shift = f", divided by {math.exp(least / 100):.3g}" if relative else f", minus {least:g}"
        pairs = (
            (one, other)
            for better, worse in itertools.pairwise(self.decide["groups"])
            for one in better
            for other in (self._other_settings(one) if worse == "rest" else worse)
        )
        for one, other in pairs:
            part = self._part("", [(one, {}), (other, {})], [1, -1], share, least, spread=is_spread)
            names_of = [
                self._label(of, on_page) for of, on_page in zip((one, other), part.series or ("", ""), strict=True)
            ]
            names_of = names_of[::-1] if self.measured.lower_is_better(self.measure) else names_of
            sign = " / " if relative else " minus " if any(", " in one for one in names_of) else " - "
            yield replace(part, name="spread of " * is_spread + sign.join(names_of) + shift * bool(least))

    def _compare_loss(self, share: float) -> Iterator[Comparison]:
        """Yield what moving the setting ``along`` from ``start`` to ``end`` costs each series.

        With ``than``, the cost at those settings is subtracted. With ``others``, the cost of the series is
        subtracted from theirs. With ``at_least``, that number is subtracted.
        """
        along, start, least = self.decide["along"], self.decide["start"], float(self.decide.get("at_least", 0))
        than = self.decide.get("than", {})
        for name, end in itertools.product(self.decide["series"], _as_list(self.decide["end"])):
            ends = [names.setting_label(along, value) for value in (start, end)]
            change = f"from {ends[0]} to {ends[1].rpartition(' = ')[2]}"

            def two(of: Series, there: Mapping[str, Any], end: object = end) -> list[tuple[Series, dict[str, Any]]]:
                return [(of, {**there, along: start}), (of, {**there, along: end})]

            for other in self.decide.get("others", ()):
                label = f"loss of {self._label(other)} - loss of {self._label(name)}, {change}"
                yield self._part(label, [*two(other, {}), *two(name, {})], [1, -1, -1, 1], share)
            if than:
                where = names.cell_label(list(than), list(than.values()))
                label = f"loss of {self._label(name)} {change}, minus that at {where}"
                yield self._part(label, [*two(name, {}), *two(name, than)], [1, -1, -1, 1], share)
            elif "others" not in self.decide:
                label = f"loss of {self._label(name)} {change}" + (f", minus {least:g}" if least else "")
                yield self._part(label, two(name, {}), [1, -1], share, least)

    def _compare_close(self, share: float) -> Iterator[Comparison]:
        """Yield the difference of each series between any two ``values`` of ``along``, to be within the margin."""
        along, pairs = self.decide["along"], list(itertools.combinations(self.decide["values"], 2))
        for name, (one, other) in itertools.product(self.decide["series"], pairs):
            label = f"{self._label(name)}, {names.key_label(along, [one])} {one} minus {other}"
            yield self._part(label, [(name, {along: one}), (name, {along: other})], [1, -1], share)

    def _compare_to_expected(self, share: float) -> Iterator[Comparison]:
        """Yield each series minus a number, a setting of its runs or its cell's published number, to be within
        the margin."""
        expected = self.decide["expected"]
        if "file" not in expected:
            for name, number in expected.items():
                yield self._part(f"{self._label(name)} minus {number}", [(name, {})], [1], share, number, turned=False)
            return
        rows = pd.read_csv(paper_folders()[self.paper] / "published" / expected["file"])
        keys = [key for key in rows.columns if key in ("algorithm", "paper") or "." in key]
        here = {key: value for key, value in self.where.items() if key in rows}
        for _, row in rows[_matching_rows(rows, here)].iterrows():
            number, settings = float(row[expected["column"]]), {key: row[key] for key in keys if pd.notna(row[key])}
            variant = {key: value for key, value in settings.items() if key not in ("algorithm", *self.where)}
            label = f"{names.series_label(row['algorithm'], variant)} minus {number:g}"
            samples = self.decide.get("test_samples")
            error = sampling_error(number, samples) if samples else 0.0
            yield replace(self._part(label, [(settings, {})], [1], share, number, turned=False), error=error)

    def _compare_to_value(self, share: float) -> Iterator[Comparison]:
        """Yield each series minus a number that it must exceed."""
        turned = -1 if self.measured.lower_is_better(self.measure) else 1
        for name, number in self.decide["expected"].items():
            sides = [self._label(name), f"{number:g}"][::turned]
            yield self._part(" minus ".join(sides), [(name, {})], [1], share, turned * number)

    def _other_settings(self, name: Series) -> list[Mapping[str, Any]]:
        """Return the settings of the algorithm's other series, planned or run: those that differ from ``name``."""
        frame, own = pd.concat([self.measured.runs, self.measured.placed.planned]), self._settings(name)
        known = frame[
            _matching_rows(frame, {**self.where, "algorithm": own["algorithm"]}) & ~_matching_rows(frame, own)
        ]
        rest = known.reindex(columns=list(own)).drop_duplicates().sort_values(list(own))
        return [dict(zip(own, values, strict=True)) for values in rest.itertuples(index=False)]

    def _part(
        self,
        name: str,
        sides: Sequence[tuple[Series, Mapping[str, Any]]],
        signs: Sequence[int],
        share: float,
        minus: float | str = 0.0,
        turned: bool = True,
        spread: bool = False,
    ) -> Comparison:
        """Return the signed sum of the sides under ``where`` and each side's own settings: a row a cell, a column a
        seed. What a side fixes makes no cell; ``at`` is a budget. ``minus`` is a number or a setting."""
        settings, at, cells, frames = self._match_sides(sides)
        for (of, _), frame in zip(sides, frames, strict=True):
            if frame.duplicated([*cells, "seed"]).any():
                raise BenchError(f"{self._label(of)} has several runs with one seed in one cell; no mean may mix them")
        if any(frame.empty for frame in frames):
            return Comparison(name)
        subtracted: Any = minus
        if isinstance(minus, str):
            frame = frames[0].assign(row="", setting=frames[0][minus].astype(float))
            subtracted = frame.pivot(index=cells or ["row"], columns="seed", values="setting")
        decide = {**self.decide, "axis": self.axis}
        found = compare_sides(
            self.measured, frames, cells, decide, signs, subtracted, turned, spread, at=at, share=share
        )
        fixed = {key: settings[0][key] for key in self.cells if key in settings[0] and key not in cells}
        fixed = {key: value for key, value in fixed.items() if all(one.get(key) == value for one in settings)}
        sides_of = [frame["series"].unique() for frame in frames]
        is_pair = len(frames) == 2 and not (spread or minus)
        pair = tuple(str(one[0]) for one in sides_of) if is_pair and all(len(one) == 1 for one in sides_of) else ()
        return replace(
            found, name=name, series=pair, fixed=fixed, absent=self._absent_cells(settings, cells, found.table)
        )

    def _absent_cells(
        self, settings: Sequence[Mapping[str, Any]], cells: Sequence[str], table: pd.DataFrame
    ) -> dict[tuple[str, ...], dict[str, Any]]:
        """Return the cells that the sweep has for every side and that ``table`` lacks: values as text -> by key."""
        planned = self.measured.placed.planned
        if not cells or planned.empty:
            return {}
        has_encoders = "model.path" in planned and planned["model.path"].notna().any()  # named once they are loaded
        keys = [key for key in cells if key != "model" or not has_encoders]
        there, *of_sides = [
            {_as_text(cell): cell for cell in frame.reindex(columns=keys).itertuples(index=False, name=None)}
            for frame in (table.reset_index(), *(planned[_matching_rows(planned, one)] for one in settings))
        ]
        shared = [text for text in of_sides[0] if all(text in one for one in of_sides) and text not in there]
        return {text: dict(zip(keys, of_sides[0][text], strict=True)) for text in shared}

    def _match_sides(
        self, sides: Sequence[tuple[Series, Mapping[str, Any]]]
    ) -> tuple[list[dict[str, Any]], list[float | None], list[str], list[pd.DataFrame]]:
        """Return the settings of each side, its budget, the keys of the cells, and the runs of each side."""
        settings = [{**self.where, **self._settings(of), **fixed} for of, fixed in sides]
        at = [one.pop("at", None) for one in settings]
        cells = [key for key in self.cells if all(isinstance(one.get(key, []), list) for one in settings)]
        return settings, at, cells, [self.measured.runs[_matching_rows(self.measured.runs, one)] for one in settings]

    def _split_by_cell(self, part: Comparison, share: float) -> Iterator[Contrast]:
        """Yield a contrast for each cell; with ``over: mean``, one for the mean over cells of seeds that have
        all cells. Then yield one without values for each absent cell."""
        kind, relative = self.decide["kind"], bool(self.decide.get("relative"))
        question: Question = "equivalence" if kind in ("close", "alike", "equals") else "difference"
        margin = None if relative else self.measured.tie_margin(self.measure)
        can_tie = kind in ("order", "loses") and "at_least" not in self.decide
        tie = self.decide.get("tie", margin if can_tie else None)
        used = "last" if part.uses_last.any() else self.measure
        experiments = frozenset().union(*part.experiments.values())
        base = Contrast(
            part.name + (f" at {share:.0%} of the budget" if share != 1 else ""),
            question=question,
            margin=self.decide["margin"] if question == "equivalence" else tie,
            counted=bool(self.decide.get("counted")),
            extra_error=part.error,
            resolution=0.0 if relative else self.measured.resolution(used, experiments),
            yardstick=used,
            series=part.series if question == "difference" and share == 1 and margin is not None else (),
            place=part.fixed,
            experiments=experiments,
        )
        if part.table.empty:
            yield base
        elif self.decide.get("over") == "mean":
            of = f"mean of {len(part.table)} cells" if len(part.table) > 1 else ""
            reasons = set(part.no_answer.values()) if len(part.no_answer) == len(part.table) else set()
            mean = {"by_seed": part.table.mean(axis=0, skipna=False).dropna()}
            if not part.last.empty:
                mean["last_by_seed"] = part.last.mean(axis=0, skipna=False).dropna()
            of_one = () if len(part.table) > 1 else base.series
            yield replace(base, cell=of, no_answer=", ".join(sorted(reasons)), series=of_one, **mean)  # type: ignore[arg-type]
        else:
            keys = [str(key) for key in part.table.index.names]
            for cell, contrast in part.split_by_cell(base, self.measured, self.decide):
                values = () if keys == ["row"] else cell if isinstance(cell, tuple) else (cell,)
                label = names.cell_label(keys, values) if values else ""
                yield replace(contrast, cell=label, place={**part.fixed, **dict(zip(keys, values, strict=False))})
        for place in part.absent.values():
            label = names.cell_label([*place], [*place.values()])
            yield replace(base, cell=label, place={**part.fixed, **place}, experiments=frozenset())

    def _settings(self, name: Series) -> dict[str, Any]:
        found = name if isinstance(name, Mapping) else self.series.get(name, {"algorithm": name})
        return {key: value for key, value in found.items() if key != "label"}

    def _label(self, name: Series, on_page: str = "") -> str:
        """Return the label of a series. on_page: that of the page, for alternatives without a label."""
        if isinstance(name, str) and "label" in self.series.get(name, {}):
            return str(self.series[name]["label"])
        settings = self._settings(name)
        if settings.pop("any", None) and on_page:
            return on_page
        return names.series_label(settings.pop("algorithm"), settings)


class ClaimRuns(ClaimQuery):
    """The runs that a claim compares. Nothing is measured, so they may be planned runs."""

    def experiments(self) -> frozenset[str]:
        return frozenset().union(*(contrast.experiments for contrast in self.contrasts()))

    def _part(
        self, name: str, sides: Sequence[tuple[Series, Mapping[str, Any]]], *args: Any, **more: Any
    ) -> Comparison:
        frames = self._match_sides(sides)[3]
        return Comparison(name, experiments={} if any(of.empty for of in frames) else {"": experiments_of(frames)})


def _matching_rows(frame: pd.DataFrame, settings: Mapping[str, Any]) -> pd.Series:
    """Return which rows have these settings.

    A list allows each of its values, null means not set, and ``any`` has alternatives.
    """
    found = pd.Series(True, index=frame.index)
    for key, wanted in settings.items():
        if key == "any":
            found &= pd.concat([_matching_rows(frame, one) for one in wanted], axis=1).any(axis=1)
            continue
        own = frame.get(key, pd.Series(None, index=frame.index, dtype=object))
        same = [own.isna() if value is None else names.has_value(own, value) for value in _as_list(wanted)]
        found &= pd.concat(same, axis=1).any(axis=1)
    return found


def _as_text(cell: Sequence[Any]) -> tuple[str, ...]:
    """Return the values of a cell as text, the same for 0 and 0.0 and for every null."""
    return tuple("" if pd.isna(one) else str(one) if isinstance(one, str | bool) else f"{one:g}" for one in cell)


def _as_list(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]
