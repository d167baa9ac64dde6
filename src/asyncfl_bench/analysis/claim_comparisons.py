"""Translation of a claim's ``decide`` into comparisons and their contrasts (CONTRIBUTING.md explains its keys).

Legend: a table has a row for each cell and a column for each seed. Values are turned so that larger is better.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ..config.part_sources import paper_folders
from ..errors import BenchError
from . import names
from .claims import Claim
from .comparison import compare_sides
from .contrasts import Contrast, mean_of_contrasts
from .measures import LOG_RATIO, MEASURES, RunMeasures
from .statistics import Question, sampling_error

Series = str | Mapping[str, Any]  # a name of the claims file or an algorithm; or settings
Cells = dict[Any, Contrast]  # by cell, the pairs of its keys and values; of the cell None where there is no value
_ACCURACIES = {"best": "best ", "final": "last "}
_NOUNS = {
    "time_to_90": "time to 90 % of own best",
    "time_to_target": "time to target",
    "time_to_level": "time to target",
    "versions": "stored versions",
    "similarity_gap": "similarity gap (same minus different labels)",
    "similarity_gap_apart": "similarity gap (same minus different labels)",
    "server_step_ms": "server time",
    "active_clients": "clients in the mean",
    "kept_of_slow": "kept uploads of slow clients",
    "mse/b2": "bias",
    "mse/a2": "noise",
    "mse/a2_ratio": "noise / (σ²/n)",
    "mse/drift_slope": "drift per staleness",
    "mse/correlation_1": "correlation of steps",
    "mse/error": "squared error",
}
_SETTINGS = {"n_clients": "n", "algorithm.buffer_size": "M"}


@dataclass(frozen=True)
class AskedComparison:
    """One comparison that a claim names: the signed sum of its sides, minus a number or a setting of the runs.

    name   empty for a difference of two series, which has their names, with ``shift`` behind them
    sides  a series with the settings of its runs, among them ``at``, a budget
    error  standard error of ``minus``; turned, spread: see ``compare_sides``
    """

    name: str
    sides: Sequence[tuple[Series, Mapping[str, Any]]]
    signs: Sequence[int]
    minus: float | str = 0.0
    shift: str = ""
    turned: bool = True
    spread: bool = False
    error: float = 0.0


class ClaimQuery:
    """The runs and the comparison that a claim's ``decide`` asks of one page (keys: CONTRIBUTING.md)."""

    def __init__(self, claim: Claim, measured: RunMeasures):
        self.decide, self.where, self.series = claim.decide, claim.where, claim.series
        self.measured, self.cells, self.paper = measured, measured.placed.cells, claim.paper
        self.measure, self.axis = str(claim.decide["measure"]), str(claim.decide.get("axis", "iteration"))

    def asked_comparisons(self) -> list[AskedComparison]:
        """Return the comparisons that the claim names."""
        kinds = {
            "order": self._ask_order,
            "wider": self._ask_order,
            "loses": self._ask_loss,
            "close": self._ask_close,
            "alike": self._ask_order,
            "equals": self._ask_expected,
            "reaches": self._ask_value,
        }
        return [*kinds[self.decide["kind"]]()]

    def experiments(self) -> frozenset[str]:
        """Return the experiments of the compared runs. Nothing is measured, so they may be planned runs."""
        frames = [self._match_sides(one)[3] for one in self.asked_comparisons()]
        found = [sides for sides in frames if not any(side.empty for side in sides)]
        if len(found) < len(frames) and self.decide.get("together"):
            return frozenset()
        return frozenset().union(*(side["experiment"] for sides in found for side in sides))

    def contrasts(self) -> list[Contrast]:
        """Return every comparison of the claim, those without runs included."""
        found: list[Contrast] = []
        for share in map(float, _as_list(self.decide.get("budget", 1.0))):
            parts = [self._compare(one, share) for one in self.asked_comparisons()]
            for cells, absent in [self._mean_of_parts(parts, share)] if self.decide.get("together") else parts:
                shown = {None: _mean_of_cells(cells)} if self.decide.get("over") == "mean" else cells
                found += [_put(one, cell or ()) for cell, one in (*shown.items(), *absent.items())]
        if self.decide.get("relative"):
            return found
        steps = [self.measured.resolution(one.yardstick, one.experiments) for one in found]
        return [replace(one, resolution=step) for one, step in zip(found, steps, strict=True)]

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

    def _ask_order(self) -> Iterator[AskedComparison]:
        """Yield each series of a group minus each of the next group; with ``at_least``, minus that number too.

        The group ``rest`` has all other values of the settings that name the first.
        ``wider`` compares spreads over seeds, as distances from the mean of the lowest three seeds.
        """
        least = float(self.decide.get("at_least", 0))
        claimed = f"a multiple of the claimed {math.exp(least / 100):.3g}"
        shift = f", as {claimed}" if self.decide.get("relative") else f", less the claimed {least:g}"
        for better, worse in itertools.pairwise(self.decide["groups"]):
            for one in better:
                for other in self._other_settings(one) if worse == "rest" else worse:
                    is_spread = self.decide["kind"] == "wider"
                    yield AskedComparison(
                        "", [(one, {}), (other, {})], [1, -1], least, shift * bool(least), spread=is_spread
                    )

    def _ask_loss(self) -> Iterator[AskedComparison]:
        """Yield the loss of each series when the setting ``along`` changes from ``start`` to ``end``.

        With ``than``, the loss at those settings is subtracted. With ``others``, the loss of the series is
        subtracted from theirs. With ``at_least``, that number is subtracted.
        """
        along, start, least = self.decide["along"], self.decide["start"], float(self.decide.get("at_least", 0))
        than = self.decide.get("than", {})
        for name, end in itertools.product(self.decide["series"], _as_list(self.decide["end"])):
            change = self._describe_change(end)

            def two(of: Series, there: Mapping[str, Any], end: object = end) -> list[tuple[Series, dict[str, Any]]]:
                return [(of, {**there, along: start}), (of, {**there, along: end})]

            for other in self.decide.get("others", ()):
                label = f"{self._decrease} by {self._label(other)} minus by {self._label(name)}, {change}"
                yield AskedComparison(label, [*two(other, {}), *two(name, {})], [1, -1, -1, 1])
            if than:
                here = {key: self.where[key] for key in than if key in self.where}
                at, other_at = (names.cell_label([*of], [*of.values()]) for of in (here, than))
                label = f"{self._decrease} by {self._label(name)} {change}, {f'at {at} ' * bool(at)}minus at {other_at}"
                yield AskedComparison(label, [*two(name, {}), *two(name, than)], [1, -1, -1, 1])
            elif "others" not in self.decide:
                label = f"{self._decrease} by {self._label(name)} {change}"
                label += f", less the claimed {least:g}" if least else ""
                if self.decide.get("relative"):
                    values = (names.setting_label(along, value) for value in (end, start))
                    label = f"{self._noun} of {self._label(name)}, {' / '.join(values)}"
                yield AskedComparison(label, two(name, {}), [1, -1], least)

    def _ask_close(self) -> Iterator[AskedComparison]:
        """Yield the difference of each series between any two ``values`` of ``along``, to be within the margin."""
        along, pairs = self.decide["along"], list(itertools.combinations(self.decide["values"], 2))
        sign = " / " if self.decide.get("relative") else " minus "
        for name, (one, other) in itertools.product(self.decide["series"], pairs):
            if along == "at":
                ends = f"after {one:g} minus after {other:g} {names.AXES[self.axis]}"
            else:
                ends = sign.join(names.setting_label(along, value) for value in (one, other))
            label = f"{self._label(name)}, {ends}{self._margin}"
            label = label if self._is_accuracy else f"{self._noun} of {label}"
            yield AskedComparison(label, [(name, {along: one}), (name, {along: other})], [1, -1])

    def _ask_expected(self) -> Iterator[AskedComparison]:
        """Yield each series minus a number, a setting of its runs or its cell's published number, to be within
        the margin."""
        expected = self.decide["expected"]
        if "file" not in expected:
            for name, number in expected.items():
                label = f"{self._less(number)} for {self._label(name)}{self._margin}"
                yield AskedComparison(label, [(name, {})], [1], number, turned=False)
            return
        rows = pd.read_csv(paper_folders()[self.paper] / "published" / expected["file"])
        keys = [key for key in rows.columns if key in ("algorithm", "paper") or "." in key]
        here = {key: value for key, value in self.where.items() if key in rows}
        for _, row in rows[_matching_rows(rows, here)].iterrows():
            number, settings = float(row[expected["column"]]), {key: row[key] for key in keys if pd.notna(row[key])}
            variant = {key: value for key, value in settings.items() if key not in ("algorithm", *self.where)}
            series = self._label({"algorithm": row["algorithm"], **variant} if variant else row["algorithm"])
            label = f"{self._noun} minus the published {number:g} for {series}{self._margin}"
            samples = self.decide.get("test_samples")
            error = sampling_error(number, samples) if samples else 0.0
            yield AskedComparison(label, [(settings, {})], [1], number, turned=False, error=error)

    def _ask_value(self) -> Iterator[AskedComparison]:
        """Yield each series minus a number that it must exceed."""
        turned = -1 if self.measured.lower_is_better(self.measure) else 1
        for name, number in self.decide["expected"].items():
            label = f"{self._less(number)} for {self._label(name)}"
            label = f"{number:g} minus {self._noun} of {self._label(name)}" if turned < 0 else label
            yield AskedComparison(label, [(name, {})], [1], turned * number)

    def _other_settings(self, name: Series) -> list[Mapping[str, Any]]:
        """Return the settings of the algorithm's other series, planned or run: those that differ from ``name``."""
        frame, own = pd.concat([self.measured.runs, self.measured.placed.planned]), self._settings(name)
        known = frame[
            _matching_rows(frame, {**self.where, "algorithm": own["algorithm"]}) & ~_matching_rows(frame, own)
        ]
        rest = known.reindex(columns=list(own)).drop_duplicates().sort_values(list(own))
        return [dict(zip(own, values, strict=True)) for values in rest.itertuples(index=False)]

    def _compare(self, asked: AskedComparison, share: float) -> tuple[Cells, Cells]:
        """Return the contrast of each cell, and one without values for each absent cell. Settings that a side fixes
        make no cells."""
        settings, at, cells, frames = self._match_sides(asked)
        for (of, _), frame in zip(asked.sides, frames, strict=True):
            if frame.duplicated([*cells, "seed"]).any():
                raise BenchError(f"{self._label(of)} has several runs with one seed in one cell; no mean may mix them")
        series = [frame["series"].unique() for frame in frames]
        is_pair = len(series) == 2 and all(len(one) == 1 for one in series) and not (asked.spread or asked.minus)
        base = self._base(asked, share, tuple(str(one[0]) for one in series) if is_pair else ())
        if any(frame.empty for frame in frames):
            return {None: base}, {}
        fixed = {key: settings[0][key] for key in self.cells if key in settings[0] and key not in cells}
        fixed = {key: value for key, value in fixed.items() if all(one.get(key) == value for one in settings)}
        base = replace(base, cell_keys=fixed, experiments=frozenset().union(*(of["experiment"] for of in frames)))
        terms: dict[str, Any] = {"minus": asked.minus, "turned": asked.turned, "spread": asked.spread}
        terms |= {"at": at, "share": share}
        decide = {**self.decide, "axis": self.axis}
        compared = compare_sides(self.measured, base, frames, cells, decide, asked.signs, **terms)
        found: Cells = {tuple(zip(cells, cell, strict=True)): one for cell, one in compared.items()}
        yardstick = "last" if any(one.yardstick == "last" for one in found.values()) else self.measure
        missing = replace(base, yardstick=yardstick, experiments=frozenset())
        absent = self._absent_cells(settings, cells, [dict(cell) for cell in found])
        return found or {None: base}, dict.fromkeys(absent, missing)

    def _base(self, asked: AskedComparison, share: float, pair: tuple[str, ...] = ()) -> Contrast:
        """Return the common part of a comparison's contrasts. pair: the page's series that it compares"""
        kind = self.decide["kind"]
        label = asked.name
        if not label:
            labels = [self._label(of, shown) for (of, _), shown in zip(asked.sides, pair or ("", ""), strict=True)]
            labels = labels[::-1] if self.measured.lower_is_better(self.measure) else labels
            sign = " minus " if any(re.search(r"[,=]", one.partition(" (")[0]) for one in labels) else " - "
            sign = " / " if self.decide.get("relative") else sign
            noun = "" if self._is_accuracy else f"{self._noun}, "
            label = "spread over seeds, " * asked.spread + noun + sign.join(labels) + asked.shift
            label += self._margin if kind == "alike" else ""
        question: Question = "equivalence" if kind in ("close", "alike", "equals") else "difference"
        margin = None if self.decide.get("relative") else self.measured.tie_margin(self.measure)
        can_tie = kind in ("order", "loses") and "at_least" not in self.decide
        tie = self.decide.get("tie", margin if can_tie else None)
        return Contrast(
            label + (f" at {100 * share:g} % of the budget" if share != 1 else ""),
            question=question,
            margin=self.decide["margin"] if question == "equivalence" else tie,
            counted=bool(self.decide.get("counted")),
            extra_error=asked.error,
            yardstick=self.measure,
            series=pair if question == "difference" and share == 1 and margin is not None else (),
        )

    def _mean_of_parts(self, parts: Sequence[tuple[Cells, Cells]], share: float) -> tuple[Cells, Cells]:
        """Return the mean of comparisons with the same cells; without values if one of them has none."""
        name = f"mean of {len(parts)} comparisons"
        if self.decide["kind"] == "loses" and not isinstance(self.decide["end"], list):
            name = f"{self._decrease} {self._describe_change(self.decide['end'])}, mean of {len(parts)} methods"
        base = self._base(AskedComparison(name, (), ()), share)
        if any(None in cells for cells, _ in parts):
            return {None: base}, {}
        found: tuple[Cells, Cells] = {}, {}
        for number, means in enumerate(found):
            for cell in dict.fromkeys(cell for part in parts for cell in part[number]):
                means[cell] = mean_of_contrasts(base, [part[number].get(cell, Contrast("")) for part in parts])
        return found

    def _absent_cells(
        self, settings: Sequence[Mapping[str, Any]], cells: Sequence[str], there: Sequence[Mapping[str, Any]]
    ) -> list[tuple[tuple[str, Any], ...]]:
        """Return the cells that the sweep has for every side and that are not there."""
        planned = self.measured.placed.planned
        if not cells or planned.empty:
            return []
        has_encoders = "model.path" in planned and planned["model.path"].notna().any()  # named once they are loaded
        keys = [key for key in cells if key != "model" or not has_encoders]
        known, *of_sides = [
            {_as_text(cell): cell for cell in frame.reindex(columns=keys).itertuples(index=False, name=None)}
            for frame in (pd.DataFrame(there), *(planned[_matching_rows(planned, one)] for one in settings))
        ]
        shared = [text for text in of_sides[0] if all(text in one for one in of_sides) and text not in known]
        return [tuple(zip(keys, of_sides[0][text], strict=True)) for text in shared]

    def _match_sides(
        self, asked: AskedComparison
    ) -> tuple[list[dict[str, Any]], list[float | None], list[str], list[pd.DataFrame]]:
        """Return the settings of each side, its budget, the keys of the cells, and the runs of each side."""
        settings = [{**self.where, **self._settings(of), **fixed} for of, fixed in asked.sides]
        at = [one.pop("at", None) for one in settings]
        cells = [key for key in self.cells if all(isinstance(one.get(key, []), list) for one in settings)]
        return settings, at, cells, [self.measured.runs[_matching_rows(self.measured.runs, one)] for one in settings]

    def _settings(self, name: Series) -> dict[str, Any]:
        found = name if isinstance(name, Mapping) else self.series.get(name, {"algorithm": name})
        return {key: value for key, value in found.items() if key != "label"}

    @property
    def _is_accuracy(self) -> bool:
        return self.measure in MEASURES and MEASURES[self.measure].is_accuracy

    @property
    def _noun(self) -> str:
        """Name of the measured number, without its unit."""
        if self._is_accuracy:
            return f"{_ACCURACIES.get(self.measure, '')}{names.metric_label(self.measured.metric).partition(' [')[0]}"
        title = MEASURES[self.measure].title if self.measure in MEASURES else ""
        plain = self.measure.removeprefix("mse/").replace("_", " ")
        return _NOUNS.get(self.measure) or title.partition(" [")[0] or plain

    @property
    def _decrease(self) -> str:
        return "accuracy lost" if self._is_accuracy else f"{self._noun} lost"

    @property
    def _margin(self) -> str:
        unit = " %" * bool(self.decide.get("relative"))
        return f", margin ± {self.decide['margin']:g}{unit}"

    def _less(self, number: float | str) -> str:
        """Return the measure minus a number, or minus a setting as papers write it; the measure alone if it is zero."""
        text = _SETTINGS.get(number, number) if isinstance(number, str) else f"{number:g}"
        return self._noun + (f" minus {text}" if number else "")

    def _describe_change(self, end: Any) -> str:
        """Return the change of the setting ``along``: ``from β = 5 to 30``."""
        first, last = (names.setting_label(self.decide["along"], value) for value in (self.decide["start"], end))
        return f"from {first} to {last.rpartition(' = ')[2]}"

    def _label(self, name: Series, on_page: str = "") -> str:
        """Return the label of a series, with its settings in parentheses. on_page: that of the page, for alternatives
        without a label."""
        if isinstance(name, str) and "label" in self.series.get(name, {}):
            text = str(self.series[name]["label"])
        else:
            settings = self._settings(name)
            given = settings.pop("any", None)
            text = on_page if given and on_page else names.series_label(settings.pop("algorithm"), settings)
        base, comma, rest = text.partition(", ")
        return f"{base} ({rest})" if comma else text


def _put(contrast: Contrast, cell: Iterable[tuple[str, Any]]) -> Contrast:
    """Return the contrast with the label and the keys of its cell."""
    cell_keys = dict(cell)
    label = names.cell_label([*cell_keys], [*cell_keys.values()]) or contrast.cell
    return replace(contrast, cell=label, cell_keys={**contrast.cell_keys, **cell_keys})


def _mean_of_cells(cells: Cells) -> Contrast:
    """Return the mean over cells of the seeds that all of them have."""
    first, *others = cells.values()
    mean = replace(first, cell=f"mean of {len(cells)} cells", series=()) if others else first
    return mean_of_contrasts(mean, [first, *others])


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
