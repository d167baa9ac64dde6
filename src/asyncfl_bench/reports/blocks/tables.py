"""Blocks that show numbers as tables: at equal budgets, any measures, mean models, staleness, searches, counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from ...analysis import names
from ...analysis.matching import cells_in_order
from ...analysis.measures import AT_BUDGET
from ...analysis.names import value_texts
from ...analysis.published import matching_rows, read_published
from ..pages.page import Page
from ..pages.spec import BEST, TO_90, UPLOADS, Measure
from ..pages.write import Part, Table, format_number, mean_and_deviation
from .comparisons import is_beyond, measure_of

MEAN_STALENESS = "summary.arrivals.staleness_mean"
_WIDE = 6  # more cells than this become rows
_TOP = 5  # settings of a search that are shown first


def values_parts(page: Page) -> list[Part]:
    """Return the tables of values: of the measure that the paper prints, with its numbers, and of the primary one."""
    published = page.spec.published
    printed = next(iter(published.columns), None) if published is not None else None
    measure = page.spec.primary if printed is None else measure_of(printed)
    table = None if measure is None else _matrix(page, measure, "values", printed is not None)
    if measure is None or table is None:
        return []
    text = _describe_values(page, measure)
    if printed is not None and any(len(page.published_of(cell)) for cell in page.cells.index):
        some = any(page.is_papers_experiment(cell) for cell in page.cells.index)
        text += " **paper**: the number of the paper" + (
            "" if some else ", which has other data, another model or more time"
        )
        text += ", `*`: outside the 95 % prediction interval of one more run of ours." if some else "."
    parts: list[Part] = ["## Values", text, table]
    if page.spec.primary not in (None, measure) and (ranked := _matrix(page, page.spec.primary, "values_ranked")):
        ranking, shown = (page.values(one).set_index("run") for one in (page.spec.primary, measure))
        same = ranking["value"].equals(shown["value"].reindex(ranking.index))
        if same and "is_last" in ranking and ranking["is_last"].all():
            return [*parts, "Methods are ranked by the same values, because the last fifth has too few evaluations."]
        parts += [f"Methods are ranked by the next table. {_describe_values(page, page.spec.primary)}", ranked]
    return parts


def _describe_values(page: Page, measure: Measure) -> str:
    """Return ``Test accuracy […] [%], after 30 s of virtual time; mean ± deviation over seeds.``"""
    name, _, unit = page.axis_label(measure.budget_axis).partition(" [")
    values = page.values(measure)
    budgets = _budgets(values)
    of = f"{unit.removesuffix(']')} of {name}" if unit else name
    after = f", after {budgets.pop():.6g} {of}" if len(budgets) == 1 else ""
    text = f"{page.label(measure)}{after}; mean ± standard deviation over seeds."
    if "is_last" in values and (by_last := values.loc[values["is_last"], "cell"].nunique()):
        few = "the last fifth has too few evaluations"
        text += f" In {by_last} of {values['cell'].nunique()} cells it is the last value, because {few}."
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class Accuracies:
    """The metric at the largest budget of each axis that all runs of a cell spent: a row a series, a column a cell."""

    axes: tuple[str, ...]

    def __call__(self, page: Page) -> list[Part]:
        parts: list[Part] = ["## Values at equal budgets"]
        for axis in self.axes:
            table = _matrix(page, Measure("accuracy", axis), f"accuracy_{axis}")
            parts += [] if table is None else [table]
        return parts


def _budgets(values: pd.DataFrame) -> set[float]:
    """Return the budgets of the cells; empty for a measure without one."""
    return set(values["budget"]) if "budget" in values else set()


def _matrix(page: Page, measure: Measure, name: str, printed: bool = False) -> Table | None:
    """Return values by series and cell, a column a cell or a row a cell where they are many; None without any.

    printed  with the paper's numbers
    """
    values = page.values(measure).dropna(subset="value")
    if values.empty:
        return None
    is_budget, digits = measure.kind in AT_BUDGET, page.decimals(measure)
    lower = page.measured.lower_is_better(measure.kind)
    table = pd.DataFrame({"algorithm": [*page.series, *(["budget"] if len(_budgets(values)) > 1 else [])]})
    for cell in page.cells.index:
        own = dict(list(values[values["cell"] == cell].groupby("series")))
        means = {series: of["value"].mean() for series, of in own.items()}
        best = min(means.values(), default=0) if lower else max(means.values(), default=0)
        most = max(map(len, own.values()), default=0)
        theirs = page.published_of(cell).get(measure.kind) if printed else None
        texts = []
        for series in page.series:
            of = own.get(series, values[:0])
            text, notes = mean_and_deviation(of["value"], digits), list[str]()
            text += " ~" if is_budget and len(of) and of["evaluations"].min() < 2 else ""
            is_best = math.isclose(means.get(series, math.nan), best, rel_tol=1e-12)  # sums round by their order
            if lower is not None and len(own) > 1 and is_best:
                notes.append("lowest" if lower else "highest")
            notes += [f"{len(of)} seed{'s' * (len(of) > 1)}"] if 0 < len(of) < most else []
            if theirs is not None and series in theirs.index and theirs[series] == theirs[series]:
                value = float(theirs[series])
                beyond = page.is_papers_experiment(cell) and is_beyond(page, measure, cell, of["value"], value)
                notes.append(f"paper {format_number(value, '', digits)}{'*' * beyond}")
            texts.append(text + (f" ({', '.join(notes)})" if notes else ""))
        if len(table) > len(texts):
            texts.append(f"{values.loc[values['cell'] == cell, 'budget'].max():.6g}")
        table[cell or "all"] = texts
    if len(page.cells) > _WIDE:  # many cells read better downwards
        table = table.set_index("algorithm").T.rename_axis("cell").reset_index()
    groups = values.groupby(["cell", "series"], sort=False)
    data = groups["value"].agg(["mean", "std", "size"]).rename(columns={"size": "seeds"})
    if is_budget:
        data["budget"] = groups["budget"].max()
    return Table(name, table, page.with_keys(data.reset_index()).assign(measure=measure.kind, axis=measure.budget_axis))


@dataclass(frozen=True)
class Values:
    """A row for each cell and series, a column a measure. A second table, only a CSV file, has a row a run."""

    shown: tuple[Measure, ...]

    def __call__(self, page: Page) -> list[Part]:
        by_run = page.runs[["series", "cell", "seed"]].copy()
        for measure in self.shown:
            by_run[measure.name] = page.values(measure).set_index("run")["value"]
        lost = page.placed.left_out.query("reason == 'diverged'").groupby(["cell", "series"]).size()
        groups = by_run.groupby(["cell", "series"])
        own = dict(iter(groups))
        cells = [*page.cells.index, *sorted({cell for cell, _ in lost.index} - set(page.cells.index))]
        series = names.ordered_series([*page.series, *(name for _, name in lost.index)])
        pairs = [(cell, name) for cell in cells for name in series if (cell, name) in own or (cell, name) in lost]
        data = groups[[m.name for m in self.shown]].agg(["mean", "std", "count"]).reindex(pairs)
        data.columns = ["_".join(name).removesuffix("_mean") for name in data.columns]
        data["seeds"] = groups.size().reindex(pairs).fillna(0).astype(int)
        data["diverged"] = lost.reindex(pairs).fillna(0).astype(int)
        table = pd.DataFrame(pairs, columns=["cell", "algorithm"])
        for measure in self.shown:
            texts = [
                mean_and_deviation(own[p][measure.name] if p in own else (), page.decimals(measure)) for p in pairs
            ]
            table[page.label(measure)] = texts
        for count in ["seeds", *(["diverged"] if data["diverged"].any() else [])]:
            table[count] = data[count].astype(str).to_list()
        data = page.with_keys(data.rename_axis(["cell", "series"]).reset_index())
        whole = Table("measured", table, data, 2)
        return ["## All measures", whole, Table("measured_by_seed", None, page.with_keys(by_run))]


def staleness(page: Page) -> list[Part]:
    """Return the mean staleness of uploads: a row a series, a column for each law of delays.

    The same mean delay gives different ones, by the clock, the rule's waiting for clients and the spread of speeds."""
    if MEAN_STALENESS not in page.runs:
        return []
    keys = ["delay", *(key for key in page.keys if key.startswith("delay.") or key in ("clock", "tick_rounding"))]
    runs = page.runs[["series", *keys]].assign(value=pd.to_numeric(page.runs[MEAN_STALENESS]))
    words = pd.DataFrame({key: value_texts(runs[key]) for key in keys}, index=runs.index)
    runs["law"] = [names.cell_label(keys, list(row)) for row in words.itertuples(index=False)]
    laws = cells_in_order(runs.rename(columns={"law": "cell"}), keys)
    texts = runs.groupby(["series", "law"])["value"].agg(mean_and_deviation).unstack()
    texts = texts.reindex(index=page.series, columns=laws).fillna("-")
    table = texts.rename_axis(index="algorithm", columns=None).reset_index()
    data = runs.groupby(["series", *keys], sort=False)["value"].agg(["mean", "std", "size"]).reset_index()
    title = "## Mean staleness of an upload [server iterations]"
    return [title, Table("staleness", table, data)]


@dataclass(frozen=True)
class WallSeconds:
    """Wall-clock seconds of a part of the server's work, a row for each series and device; nothing without any.

    part     its name in ``server_seconds`` of summary.json
    printed  what the paper says of it
    """

    part: str
    printed: str

    def __call__(self, page: Page) -> list[Part]:
        facts = {name: f"summary.server_seconds.{self.part}.{name}" for name in ("mean", "least", "most")}
        runs = page.runs.reindex(columns=["series", "summary.device", *facts.values()]).dropna()
        if runs.empty:
            return []
        runs = runs.set_axis(["algorithm", "device", *facts], axis=1).astype(dict.fromkeys(facts, float))
        groups = runs.groupby(["algorithm", "device"], sort=False)
        data = groups.agg(mean=("mean", "mean"), least=("least", "min"), most=("most", "max"), runs=("mean", "size"))
        data = data.reset_index()
        shown = data.assign(**{name: [format_number(value, "", 3) for value in data[name]] for name in facts})
        title = f"## Wall-clock seconds of a {self.part}"
        return [title, self.printed, Table(f"seconds_{self.part}", shown.astype(str), data, 2)]


@dataclass(frozen=True)
class SearchTable:
    """All settings of a search by cell, best first, with the published choice marked, and the margins of each key.

    file  of the published choices; keys: its columns that were searched
    """

    file: str
    keys: tuple[str, ...]

    def __call__(self, page: Page) -> list[Part]:
        grids = [self._grid(page, str(cell)) for cell in page.cells.index]
        data = pd.concat([grid for grid, _ in grids], ignore_index=True)
        shown = pd.concat([texts for _, texts in grids], ignore_index=True)
        margins = pd.concat([self._margins(grid) for grid, _ in grids], ignore_index=True)
        parts: list[Part] = ["## Settings by best accuracy", Table("grid", shown, page.with_keys(data))]
        return [*parts, Table("margins", None, page.with_keys(margins))] if len(self.keys) > 2 else parts

    def _grid(self, page: Page, cell: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the ranked settings of a cell, and the text of those that are shown: the first, the published choice
        and the last."""
        keys, shown_measures = list(self.keys), (BEST, TO_90, UPLOADS)
        found = {m.kind: page.values(m).set_index("run")["value"] for m in shown_measures}
        groups = page.runs[page.runs["cell"] == cell].assign(**found).groupby(keys)
        grid = groups[[*found]].mean().assign(seeds=groups.size())
        grid.insert(0, "rank", grid["best"].rank(method="min", ascending=False))
        grid = grid.sort_values(["rank", "time_to_90"], kind="stable").reset_index()
        rows = matching_rows(read_published(page.spec.paper, self.file), pd.Series(page.cells.loc[cell]))
        theirs = rows[keys].astype(float)
        grid["published"] = [bool((theirs == row).all(axis=1).any()) for row in grid[keys].astype(float).to_numpy()]
        kept = grid[(grid.index < _TOP) | (grid.index == len(grid) - 1) | grid["published"]]
        table = pd.DataFrame({"cell": cell, "rank": [f"{rank:.0f} of {len(grid)}" for rank in kept["rank"]]})
        for key in keys:
            table[names.key_label(key)] = pd.Series(value_texts(grid[key]), index=grid.index)[kept.index].to_list()
        by_cell = dict(iter(groups))
        for measure in shown_measures:
            pairs = kept[keys].itertuples(index=False, name=None)
            table[page.label(measure)] = [
                mean_and_deviation(by_cell[p][measure.kind], page.decimals(measure)) for p in pairs
            ]
        table[""] = ["the paper's" if chosen else "" for chosen in kept["published"]]
        return grid.assign(cell=cell), table

    def _margins(self, grid: pd.DataFrame) -> pd.DataFrame:
        """Return the best, median and worst accuracy of each value of each key, over all values of the others."""
        best = {name: ("best", how) for name, how in (("best", "max"), ("median", "median"), ("worst", "min"))}
        counts = {"settings": ("best", "size"), "published": ("published", "any")}
        tables = [grid.groupby(key).agg(**best, **counts).rename_axis("value").reset_index() for key in self.keys]
        margins = pd.concat(tables, keys=self.keys, names=["key"]).reset_index("key")
        return margins.assign(cell=grid["cell"].iloc[0])[["cell", *margins.columns]]


@dataclass(frozen=True)
class Counts:
    """Numbers that seeds share beside published ones: a row per cell and series.

    columns  header -> a column of ``load_runs`` or a measure
    file     of published numbers by algorithm (and rule); printed: header -> its column
    """

    name: str
    columns: Mapping[str, str]
    file: str = ""
    printed: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, page: Page) -> list[Part]:
        runs = pd.concat([of.iloc[:1] for _, _, of in page.groups(page.runs)])
        data, source = runs[["cell", "series"]].copy(), ""
        for header, column in self.columns.items():
            data[header] = page.values(Measure(column)).set_index("run")["value"]
        if self.file:
            theirs = read_published(page.spec.paper, self.file)
            found = [
                matching_rows(theirs, run.reindex(["algorithm", "algorithm.rule"]).dropna())
                for _, run in runs.iterrows()
            ]
            for header, column in self.printed.items():
                data[header] = [str(rows[column].iloc[0]) if len(rows) else "-" for rows in found]
            source = f"Published: {'; '.join(sorted(set(theirs['source'])))}."
        table = data.rename(columns={"series": "algorithm"}).map(_count)
        return ["## Counts", source, Table(self.name, table, page.with_keys(data), 2)]


def _count(value: object) -> str:
    if isinstance(value, str):
        return value
    found = math.nan if value is None else float(str(value))
    return format_number(found, "", 0 if found != found or found.is_integer() else 3)
