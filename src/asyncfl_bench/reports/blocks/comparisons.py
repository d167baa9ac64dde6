"""Verdicts of claims, methods against the best one, published numbers, and blocks that compare series."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ...analysis import names, statistics
from ...analysis.contrasts import Contrast, best_methods, pairs_of_method
from ...analysis.names import sort_key
from ...analysis.published import read_published
from ...analysis.statistics import describe_seeds
from ...tracking.runs import setting_text
from ..pages.page import Page
from ..pages.spec import FINAL, Measure
from ..pages.write import Part, Picture, Table, draw_picture, format_number
from .figures import Forest, forest_limits, forest_panels

_DECIDED = ("better", "worse", "tie")
_RANKED = (
    "Ranked by {}. Difference: best method minus rival, with the interval of this pair alone. Verdict: with Holm's "
    "correction over all pairs of the cell. So a cell can be inconclusive where a claim holds. Deciding rival: of the "
    "rivals with this verdict the one nearest to the best method."
)
_VERDICTS = (
    "The comparison that decides: mean difference, interval and *p*, which allow for interim tests (*p of the tie*: "
    "that the difference is inside the margin). It uses seeds that both methods have, and for a claim declared later "
    "only new seeds, so it can differ from the values below. `3 of 15 as claimed`: in 3 of 15 comparisons the interval "
    "agrees. `verdict after 5`: from a test after 5 seeds. `needs about 8 seeds`: in all, if the difference is "
    "true. Intervals of few seeds can be wider than what is possible."
)


def claim_parts(page: Page) -> list[Part]:
    """Return the verdicts of the claims that the page's runs judge; nothing without claims.

    A page of several readings shows a column for each, and has a table of all verdicts with their reasons.
    """
    if not page.judged:
        return []
    rows, parts = [], list[Part](["## Verdicts", _VERDICTS])
    by_reading: dict[str, dict[str, str]] = {}
    for claim, one in ((judged.claim, judged.verdict) for judged in page.judged):
        row = {"claim": claim.sentence, "passage": claim.passage, "source": claim.source, "reading": one.reading}
        rows.append(row | {"measured": one.measured_text, "verdict": one.marked_word, "reason": one.reason_text})
        of_readings = by_reading.setdefault(claim.key, {"claim": claim.sentence})
        of_readings[one.reading] = ": ".join(filter(None, (f"**{one.marked_word}**", one.tally or one.numbers)))
    table = pd.DataFrame(rows)
    contrasts = Table("contrasts", None, _contrast_table(page))
    if (table["reading"] != "").any():
        shown = pd.DataFrame([*by_reading.values()])
        by_reading_table = Table("claims_by_reading", shown, shown, len(shown.columns))
        return [*parts, by_reading_table, Table("claims", None, table), contrasts]
    table = table.drop(columns="reading")
    shown = table.drop(columns=["passage", "source"]).assign(verdict="**" + table["verdict"] + "**")
    judged = table["verdict"] != "not run"
    parts.append(Table("claims", shown[judged] if judged.any() else None, table, len(shown.columns)))
    parts += (
        []
        if judged.all()
        else [f"{(~judged).sum()} of the {len(judged)} claims about this sweep need other runs than this page's."]
    )
    return [*parts, contrasts]


def _contrast_table(page: Page) -> pd.DataFrame:
    """Return a row a contrast of each claim, with the page's cell that it compares, else the name of its runs; first
    and second: the series, where it is the difference of two."""
    rows = []
    for judged in page.judged:
        measure, axis = judged.claim.decide.get("measure", ""), judged.claim.decide.get("axis", "iteration")
        for one in judged.contrasts:
            texts = page.cell_texts
            for key, value in one.cell_keys.items():
                texts = texts[texts[key] == setting_text(value)]
            cell = texts.index[0] if len(texts) == 1 else one.cell
            row: dict[str, Any] = {"claim": judged.claim.id, "contrast": one.name, "cell": cell}
            first, second = one.series or ("", "")
            row |= {"measure": measure, "axis": axis, "first": first, "second": second}
            rows.append(row | {"side": one.side, **one.numbers})
    return pd.DataFrame(rows)


def ranking_parts(page: Page) -> list[Part]:
    """Return every method against the best one of its cell by the page's primary measure: a figure and a table."""
    measure, pairs = page.spec.primary, page.pairs
    if measure is None or pairs.empty:
        return []
    best = best_methods(pairs)
    best["tau"] = [_agreement(page, measure, cell) for cell in best["cell"]]
    digits = page.decimals(measure)
    shown = pd.DataFrame(
        {
            "cell": best["cell"],
            "best method": best["best"],
            "deciding rival": best["next"],
            **decision_texts(best.assign(verdict="**" + best["verdict"] + "**"), "difference", digits),
            "reason": best["reason"],
        }
    )
    margin = float(pairs["margin"].max())
    tie = f" Tie: within ± {margin:g} point." if margin == margin else ""
    text = _RANKED.format(page.label(measure)) + tie
    if by_last := int((pairs["yardstick"] == "last").sum()):
        which = f"{by_last} of {len(pairs)}" if by_last < len(pairs) else f"All {by_last}"
        text += f" {which} pairs are judged by the last value, because the last fifth has too few evaluations."
    lost = page.placed.left_out.query("reason == 'diverged'")["series"].value_counts(sort=False)
    for series in names.ordered_series(set(lost.index) - {*page.series}):
        text += f" {series} has no result: all its {lost[series]} runs diverged."
    return [
        "## Methods against the best one",
        *_forest_picture(page, measure, best, margin),
        "## Best method",
        text,
        Table("best", shown, best, 3),
        Table("pairs", None, pairs),
    ]


def _forest_picture(page: Page, measure: Measure, best: pd.DataFrame, margin: float) -> list[Picture]:
    panels = []
    for cell, method in best[["cell", "best"]].itertuples(index=False):
        rivals = pairs_of_method(page.pairs[page.pairs["cell"] == cell], method).set_index("rival")
        there = [series for series in page.series if series == method or series in rivals.index]
        rivals = rivals.reindex(there)
        low, mean, high = (-rivals[key].to_numpy(float) for key in ("high", "difference", "low"))
        decided = rivals["word"].isin(_DECIDED).to_numpy()
        panels.append(Forest(cell, there, mean, low, high, decided, there.index(method)))
    label = page.label(measure)
    figure = forest_panels(panels, page.styles, f"{label}, minus the best method", margin)
    tie = f" Band: tie, ± {margin:g} point" if margin == margin else ""
    is_cut = any(ends.any() for panel in panels for ends in panel.cut_ends(*forest_limits(panels, margin)))
    marks = f"Filled: decided. Hollow: inconclusive.{' Arrow: longer than drawn.' if is_cut else ''}"
    alt = f"{label.replace('[%]', '[points]')}: each method minus the best one. {marks}{tie}"
    return draw_picture("intervals", figure, alt)


def ranking_table(page: Page) -> list[Part]:
    """Return all pairs by the page's other measures, for a CSV file; nothing without such measures."""
    rankings = page.spec.rankings if page.spec.primary is not None else ()
    tables = [page.pairs_by(one).assign(measure=one.kind, axis=one.budget_axis) for one in rankings]
    tables = [table for table in tables if len(table)]
    return [Table("rankings", None, pd.concat(tables))] if tables else []


@dataclass(frozen=True)
class Overall:
    """Over all cells together: interquartile mean, and how often a run is above one of the ``reference``."""

    measures: tuple[Measure, ...]
    reference: str

    def __call__(self, page: Page) -> list[Part]:
        rows = []
        for measure in self.measures:
            values = page.values(measure)
            wide = {s: of.pivot(index="cell", columns="seed", values="value") for s, of in values.groupby("series")}
            whole = {s: wide[s].sort_index() for s in page.series if s in wide and len(wide[s]) == len(page.cells)}
            for series, of in whole.items():
                low, high = statistics.stratified_bootstrap(of)
                mean = statistics.interquartile_mean(of.to_numpy())
                above = (math.nan,) * 3
                if self.reference in whole and series != self.reference:
                    above = statistics.probability_of_improvement(of, whole[self.reference])
                rows.append((page.label(measure), series, mean, low, high, *above))
        columns = ["by", "algorithm", "iqm", "low", "high", "above", "above_low", "above_high"]
        data = pd.DataFrame(rows, columns=columns)
        if len(page.cells) < 2 or data["algorithm"].nunique() < 2:
            return []
        shown = {
            "by": data["by"],
            "algorithm": data["algorithm"],
            "interquartile mean": data["iqm"].map(format_number),
            "95 % interval": [*map(interval_text, data["low"], data["high"])],
            f"P(above {self.reference})": data["above"].map(format_number),
            "95 % interval ": [*map(interval_text, data["above_low"], data["above_high"])],
        }
        return ["## Over all cells", Table("overall", pd.DataFrame(shown), data, 2)]


@dataclass(frozen=True)
class Cost:
    """The loss of each series from the first to the last value of a key of the cells, seed by seed.

    values  of the key, first to last, if not in their natural order
    """

    key: str
    measure: Measure = FINAL
    values: tuple[str, ...] = ()

    def __call__(self, page: Page) -> list[Part]:
        there = page.cells[self.key].unique()
        ends = [value for value in self.values if value in there] or sorted(there, key=sort_key)
        by_seed, rows = values_by_seed(page, self.measure), []
        for title, cells in other_keys(page, self.key) if len(ends) > 1 else ():
            two = [str(cell) for end in (ends[0], ends[-1]) for cell in cells.index[cells[self.key] == end]]
            theirs = [page.published_of(cell).get(self.measure.kind, pd.Series(dtype=float)) for cell in two]
            for series in page.series:
                own = [by_seed[cell, series] for cell in two if (cell, series) in by_seed]
                if len(own) == 2:
                    loss = theirs[0].get(series, math.nan) - theirs[1].get(series, math.nan)
                    row = {"measure": self.measure.kind, "cell": title, "series": series, "published": loss}
                    rows.append(row | decision_columns(page.decide(own[0] - own[1], self.measure)))
        if not rows:
            return []
        data = pd.DataFrame(rows)
        digits = page.decimals(self.measure)
        columns = {
            "cell": data["cell"],
            "algorithm": data["series"],
            **decision_texts(data, "lost", digits),
            "published loss": data["published"].map(lambda value: format_number(value, "+")),
        }
        called = dict(zip(page.cells[self.key], page.cell_texts[self.key], strict=True))
        span = " to ".join(names.setting_label(self.key, called[end]) for end in (ends[0], ends[-1]))
        table = Table("cost", pd.DataFrame(columns), data, 2)
        label = page.label(self.measure).replace("[%]", "[points]")
        what, mark, unit = label.partition(" [")
        return [f"## {what[:1].upper()}{what[1:]} lost from {span}{mark}{unit}", table]


def published_parts(page: Page) -> list[Part]:
    """Return published numbers, beside ours where the runs are the paper's experiment; nothing without any."""
    published = page.spec.published
    if published is None or not published.columns:
        return []
    rows = []
    for cell in map(str, page.cells.index):
        for series, theirs in page.published_of(cell).iterrows():
            row: dict[str, Any] = {"cell": cell, "series": series, "is_papers": page.is_papers_experiment(cell)}
            for kind in published.columns:
                row |= {f"{kind}_published": theirs[kind], f"{kind}_spread": theirs[f"{kind}_spread"]}
                if row["is_papers"]:
                    own = values_by_seed(page, measure_of(kind)).get((cell, str(series)), pd.Series(dtype=float))
                    beyond = is_beyond(page, measure_of(kind), cell, own, float(theirs[kind]))
                    row |= {kind: own.mean(), f"{kind}_difference": own.mean() - theirs[kind], f"{kind}_beyond": beyond}
            rows.append(row)
    if not rows:
        return []
    data = pd.DataFrame(rows)
    shown = data.map(lambda value: format_number(value) if isinstance(value, float) else str(value))
    sources = "; ".join(sorted(set(read_published(page.spec.paper, published.numbers)["source"])))
    notes = [published.note, "" if data["is_papers"].all() else published.stand_in]
    note = " ".join([f"Source: {sources}.", *filter(None, notes)])
    return ["## Published numbers", note, Table("published", shown, page.with_keys(data), 2)]


def measure_of(kind: str) -> Measure:
    """Return the measure that published numbers of this kind are compared with."""
    return Measure(kind, "iteration" if kind == "late" else "")


def is_beyond(page: Page, measure: Measure, cell: str, own: pd.Series, value: float) -> bool:
    """Return True if a published number is beyond the 95 % prediction interval of one more run of ours. Of an accuracy
    the sampling error counts too, on as many test samples as the runs have, which are the paper's."""
    samples = page.runs.get("summary.task.test_samples", pd.Series(dtype=float))[page.runs["cell"] == cell].dropna()
    sampled = len(samples) > 0 and measure.kind in ("best", "final")
    error = statistics.sampling_error(value, int(samples.iloc[0])) if sampled else 0.0
    low, high = statistics.prediction_interval(own, error)
    return bool(value < low or value > high)


def other_keys(page: Page, key: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the label of the values of the other keys, and the cells that have them."""
    rest = [one for one in page.keys if one != key]
    for _, cells in page.cells.groupby(rest, sort=False) if rest else [((), page.cells)]:
        yield names.cell_label(rest, list(page.cell_texts.loc[cells.index[0], rest])), cells


def interval_text(low: float, high: float, digits: int = 2) -> str:
    """Return text like ``[1.20, 3.40]``; ``-`` if there is none."""
    return "-" if low != low else f"[{format_number(low, '', digits)}, {format_number(high, '', digits)}]"


def decision_texts(data: pd.DataFrame, name: str, digits: int = 2) -> dict[str, list[str]]:
    """Return columns for decided differences: ``name``, interval, seeds and verdict.

    Seeds are ``3``, or ``5, verdict after 3`` where the look that decided used fewer seeds.
    """
    return {
        name: [format_number(value, "+", digits) for value in data["difference"]],
        "interval": [interval_text(*ends, digits) for ends in zip(data["low"], data["high"], strict=True)],
        "seeds": [*map(describe_seeds, data["seeds"].astype(int), data["total"].astype(int))],
        "verdict": [*data["verdict"]],
    }


def decision_columns(contrast: Contrast) -> dict[str, Any]:
    """Return the numbers of a comparison that is not a pair, with its verdict."""
    word = contrast.interval.verdict
    return contrast.numbers | {"verdict": word if word in ("larger", "smaller", "tie") else "inconclusive"}


def values_by_seed(page: Page, measure: Measure) -> dict[tuple[str, str], pd.Series]:
    """Return (cell, series) -> value by seed."""
    groups = page.values(measure).groupby(["cell", "series"])
    return {(str(cell), str(series)): of.set_index("seed")["value"] for (cell, series), of in groups}


def _agreement(page: Page, measure: Measure, cell: str) -> float:
    """Return Kendall's tau-b with the published order of this cell, or with the page's; NaN without both."""
    by_seed = values_by_seed(page, measure)
    means = pd.Series({s: by_seed[cell, s].mean(skipna=False) for s in page.series if (cell, s) in by_seed}).dropna()
    order = page.published_of(cell).get(measure.kind)
    if order is None:
        order = pd.Series({names.algorithm_label(name): rank for rank, name in enumerate(page.spec.order)}, dtype=float)
    both = means.index.intersection(order.index)
    return statistics.order_agreement(means[both].to_numpy(), order[both].to_numpy())
