"""Blocks that compare: who leads and by how much, what a setting costs, one series against others, published numbers.

A block with ``measures`` ranks by them: its neighbouring pairs are among those that the page corrects for (Holm).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ...analysis import names, statistics
from ...analysis.differences import sort_key
from ...analysis.published import read_published
from ..pages.page import Page
from ..pages.spec import FINAL, Measure
from ..pages.write import Part, Table, format_number, mean_and_deviation


@dataclass(frozen=True)
class Leaders:
    """Who leads each cell by each measure, by how much over the next, and the agreement with the paper's order."""

    measures: tuple[Measure, ...]

    def __call__(self, page: Page) -> list[Part]:
        names = [measure.name for measure in self.measures]
        data = page.pairs[page.pairs["measure"].isin(names)].drop_duplicates(["measure", "cell"]).reset_index(drop=True)
        if data.empty:
            return []
        by_name = {measure.name: measure for measure in self.measures}
        for row, (m, cell, first) in enumerate(data[["measure", "cell", "better"]].itertuples(index=False)):
            if _values_by_seed(page, by_name[m])[str(cell), str(first)].isna().any():  # then so it is of all others
                data.loc[row, ["better", "next"]] = "no one in every seed", "-"
        data["tau"] = [_agreement(page, by_name[m], c) for m, c in zip(data["measure"], data["cell"], strict=True)]
        columns: dict[str, Any] = {"by": [page.label(by_name[name], short=True) for name in data["measure"]]}
        columns |= {"cell": data["cell"], "leader": data["better"], **_test_columns(page, data, self.measures, "next")}
        note = ""
        if data["tau"].notna().any():
            columns["τ"] = data["tau"].map(format_number)
            note = f"τ: Kendall's tau-b with the order of {page.spec.order_source}."
        return ["## Who leads", Table("leaders", pd.DataFrame(columns), page.with_keys(data), 4), note]


@dataclass(frozen=True)
class Neighbours:
    """Every series of every ranking against the next one, seed by seed."""

    measures: tuple[Measure, ...]

    def __call__(self, page: Page) -> list[Part]:
        parts: list[Part] = []
        for measure in self.measures:
            data = page.pairs[page.pairs["measure"] == measure.name].reset_index(drop=True)
            if len(data):
                columns = {
                    "cell": data["cell"],
                    "better": data["better"],
                    **_test_columns(page, data, (measure,), "next"),
                }
                table = Table(f"neighbours_{measure.name}", pd.DataFrame(columns), page.with_keys(data), 3)
                parts += [f"**Neighbours by {page.label(measure)}**", table]
        return parts


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
                rows.append((page.label(measure, short=True), series, mean, low, high, *above))
        names = ["by", "algorithm", "iqm", "low", "high", "above", "above_low", "above_high"]
        data = pd.DataFrame(rows, columns=names)
        if len(page.cells) < 2 or data["algorithm"].nunique() < 2:
            return []
        table = data[["by", "algorithm"]].assign(
            mean=data["iqm"].map(format_number), at=interval_texts(data["low"], data["high"])
        )
        table["above"] = data["above"].map(format_number)
        table["interval"] = interval_texts(data["above_low"], data["above_high"])
        table.columns = [
            *names[:2],
            "interquartile mean",
            "95 % interval",
            f"P(above {self.reference})",
            "95 % interval ",
        ]
        return ["## Over all cells", Table("overall", table, data, 2)]


@dataclass(frozen=True)
class Cost:
    """What going from the first to the last value of a key of the cells costs each series, seed by seed."""

    key: str
    measure: Measure = FINAL

    def __call__(self, page: Page) -> list[Part]:
        ends = sorted(page.cells[self.key].unique(), key=sort_key)
        by_seed, rows = _values_by_seed(page, self.measure), []
        for title, cells in other_keys(page, self.key) if len(ends) > 1 else ():
            two = [str(cell) for end in (ends[0], ends[-1]) for cell in cells.index[cells[self.key] == end]]
            theirs = [page.published_of(cell).get(self.measure.name, pd.Series(dtype=float)) for cell in two]
            for series in page.series:
                own = [by_seed[cell, series] for cell in two if (cell, series) in by_seed]
                if len(own) == 2:
                    loss = theirs[0].get(series, math.nan) - theirs[1].get(series, math.nan)
                    row = {"measure": self.measure.name, "cell": title, "series": series, "published": loss}
                    rows.append(row | _paired_columns(own[0] - own[1], page.resolution(self.measure)))
        if not rows:
            return []
        data = pd.DataFrame(rows)
        columns = {"cell": data["cell"]} if len(page.keys) > 1 else {}
        columns |= _test_columns(page, data, (self.measure,), "series", "algorithm", "lost")
        if data["published"].notna().any():
            columns["published loss"] = data["published"].map(lambda value: format_number(value, "+"))
        called = dict(zip(page.cells[self.key], page.cell_texts[self.key], strict=True))
        span = " to ".join(names.setting_label(self.key, called[end]) for end in (ends[0], ends[-1]))
        table = Table("cost", pd.DataFrame(columns), data, 2 if "cell" in columns else 1)
        return [f"## Lost from {span}: {page.label(self.measure)}", table]


@dataclass(frozen=True)
class Reference:
    """One series against every other, seed by seed; Holm over the rows."""

    reference: str
    shown: tuple[Measure, ...]

    def __call__(self, page: Page) -> list[Part]:
        rows = []
        for measure in self.shown:
            by_seed = _values_by_seed(page, measure)
            for cell in page.cells.index:
                own = by_seed.get((cell, self.reference))
                for series in page.series if own is not None else ():
                    if own is not None and series != self.reference and (cell, series) in by_seed:
                        row = {"measure": measure.name, "by": page.label(measure), "cell": cell, "series": series}
                        rows.append(row | _paired_columns(own - by_seed[cell, series], page.resolution(measure)))
        if not rows:
            return []
        data = pd.DataFrame(rows)
        data["p_holm"] = statistics.adjust_holm(data["p"])
        data["verdict"] = [
            statistics.difference_verdict(d, p) for d, p in zip(data["difference"], data["p_holm"], strict=True)
        ]
        columns = {"by": data["by"], "cell": data["cell"]}
        columns |= _test_columns(page, data, self.shown, "series", "other", f"{self.reference} minus it")
        table = Table("against_one", pd.DataFrame(columns), page.with_keys(data), 3)
        return [f"## Each other series against: {self.reference}", table]


@dataclass(frozen=True)
class WithPublished:
    """Published numbers beside ours where the runs are the paper's experiment, alone elsewhere.

    ``*``: the published number is beyond the 95 % prediction interval of one more run of ours; of an accuracy the
    sampling error counts too, on as many test samples as the runs have, which are the paper's.
    """

    shown: tuple[Measure, ...]

    def __call__(self, page: Page) -> list[Part]:
        assert page.spec.published is not None
        sources = "; ".join(sorted(set(read_published(page.spec.paper, page.spec.published.numbers)["source"])))
        parts: list[Part] = []
        for real in (True, False):
            rows, texts = [], []
            for cell in [one for one in page.cells.index if page.is_real(one) == real]:
                for series, theirs in page.published_of(cell).iterrows():
                    found = [
                        self._compare_number(page, measure, cell, str(series), theirs, real) for measure in self.shown
                    ]
                    rows.append({"cell": cell, "series": series} | {k: v for row, _ in found for k, v in row.items()})
                    texts.append(
                        {"cell": cell, "algorithm": series} | {k: v for _, row in found for k, v in row.items()}
                    )
            if rows:
                heading = "Measured and published" if real else "Published, of the paper's own experiment"
                name = "published_difference" if real else "published"
                table = Table(name, pd.DataFrame(texts), page.with_keys(pd.DataFrame(rows)), 2)
                parts += [f"## {heading}", table, f"Source: {sources}. {page.spec.published.note}".strip()]
        return parts

    def _compare_number(
        self, page: Page, measure: Measure, cell: str, series: str, theirs: pd.Series, real: bool
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return numbers and texts of one measure of one cell and series, beside the published number."""
        name, label, digits = measure.name, page.label(measure), page.decimals(measure)
        value, spread = float(theirs[name]), float(theirs[f"{name}_spread"])
        row: dict[str, Any] = {f"{name}_published": value, f"{name}_spread": spread}
        printed = format_number(value, "", digits) + (
            "" if math.isnan(spread) else f" ± {format_number(spread, '', digits)}"
        )
        if not real:
            return row, {label: printed}
        own = _values_by_seed(page, measure).get((cell, series), pd.Series(dtype=float))
        samples = page.runs.get("summary.task.test_samples", pd.Series(dtype=float))[page.runs["cell"] == cell].dropna()
        sampled = len(samples) > 0 and name in ("best", "final")
        error = statistics.sampling_error(value, int(samples.iloc[0])) if sampled else 0.0
        low, high = statistics.prediction_interval(own, error)
        beyond, difference = bool(value < low or value > high), float(own.mean()) - value
        row |= {name: own.mean(), f"{name}_difference": difference, f"{name}_beyond": beyond}
        texts = {label: mean_and_deviation(own, digits), f"{name}: published": printed}
        return row, texts | {f"{name}: difference": format_number(difference, "+", digits) + "*" * beyond}


def other_keys(page: Page, key: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """What the values of the other keys are called, and the cells that have them."""
    rest = [one for one in page.keys if one != key]
    for _, cells in page.cells.groupby(rest, sort=False) if rest else [((), page.cells)]:
        yield names.cell_label(rest, list(page.cell_texts.loc[cells.index[0], rest])), cells


def _test_columns(
    page: Page,
    data: pd.DataFrame,
    ranked: Sequence[Measure],
    other: str,
    header: str = "",
    difference: str = "difference",
) -> dict[str, Any]:
    """Return columns of text: ``other``, difference, interval, p, seeds and verdict.

    other  a column of ``data``, called ``header``
    """
    digits = [page.decimals(next(m for m in ranked if m.name == name)) for name in data["measure"]]
    p = "p_holm" if "p_holm" in data else "p"
    return {
        header or other: data[other],
        difference: [format_number(d, "+", n) for d, n in zip(data["difference"], digits, strict=True)],
        "95 % interval": interval_texts(data["low"], data["high"], digits),
        "p (Holm)" if p == "p_holm" else "p": data[p].map(lambda p: "<0.001" if p < 0.001 else format_number(p, "", 3)),
        "seeds": data["seeds"].astype(str),
        "verdict": data["verdict"],
    }


def interval_texts(low: pd.Series, high: pd.Series, digits: Sequence[int] = ()) -> list[str]:
    """Return texts like ``[1.20, 3.40]``, by default with two digits; ``-`` if there is none."""
    three = zip(low, high, digits or [2] * len(low), strict=True)
    return ["-" if a != a else f"[{format_number(a, '', n)}, {format_number(b, '', n)}]" for a, b, n in three]


def _paired_columns(differences: pd.Series, resolution: float) -> dict[str, Any]:
    """Return difference, seeds, interval, p and verdict of differences seed by seed."""
    found = statistics.paired_interval(differences, resolution)
    return {"difference": found.mean, "seeds": found.n} | {
        k: getattr(found, k) for k in ("low", "high", "p", "verdict")
    }


def _values_by_seed(page: Page, measure: Measure) -> dict[tuple[str, str], pd.Series]:
    """Return (cell, series) -> value by seed."""
    groups = page.values(measure).groupby(["cell", "series"])
    return {(str(cell), str(series)): of.set_index("seed")["value"] for (cell, series), of in groups}


def _agreement(page: Page, measure: Measure, cell: str) -> float:
    """Kendall's tau-b with the order published for this cell, or with the page's; NaN where there is neither."""
    by_seed = _values_by_seed(page, measure)
    means = pd.Series({s: by_seed[cell, s].mean(skipna=False) for s in page.series if (cell, s) in by_seed}).dropna()
    order = page.published_of(cell).get(measure.name)
    if order is None:
        order = pd.Series(
            {names.algorithm_label(name): place for place, name in enumerate(page.spec.order)}, dtype=float
        )
    both = means.index.intersection(order.index)
    tau = statistics.order_agreement(means[both].to_numpy(), order[both].to_numpy())
    return math.nan if tau is None else tau
