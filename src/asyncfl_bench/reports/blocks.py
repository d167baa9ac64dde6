"""What pages are made of. A block is a few settings; called with a page it gives tables, figures and headings.

A block with ``measures`` ranks by them: its neighbouring pairs are among those that the page corrects for (Holm).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from . import measures as measured
from . import statistics, style
from .figures import HeatMap, Line, Panel, heat_maps, line_panels
from .page import AXES, Measure, Page, number, p_text, with_spread
from .published import matching, published
from .runs import shown
from .write import Part, Picture, Table

FINAL, BEST, UPLOADS = Measure("final"), Measure("best"), Measure("uploads")
TO_90, TO_TARGET = Measure("time_to_90"), Measure("time_to_target")
_WIDE = 6  # more cells than this become rows
_LONG, _TOP = 30, 10  # a search with more rows is shown in part: its first, the published choice, its last


def equal(*axes: str) -> tuple[Measure, ...]:
    """The metric at equal budgets of these axes, or of all three."""
    return tuple(Measure("equal", axis) for axis in axes or AXES)


@dataclass(frozen=True)
class Leaders:
    """Who leads each cell by each measure, by how much over the next, and the agreement with the paper's order."""

    measures: tuple[Measure, ...]

    def __call__(self, page: Page) -> list[Part]:
        first = page.pairs.drop_duplicates(["measure", "cell"])
        data = first[first["measure"].isin([measure.name for measure in self.measures])].reset_index(drop=True)
        if data.empty:
            return []
        by_name = {measure.name: measure for measure in self.measures}
        data["tau"] = [_agreement(page, by_name[m], c) for m, c in zip(data["measure"], data["cell"], strict=True)]
        columns = {"by": [by_name[m].label(page) for m in data["measure"]], "cell": data["cell"]}
        columns |= {
            "leader": data["better"],
            **_tested(page, data, self.measures, "next"),
            "τ": data["tau"].map(number),
        }
        if data["tau"].isna().all():
            del columns["τ"]
        note = f"τ: Kendall's tau-b with the order of {page.spec.order_source}." if "τ" in columns else ""
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
                columns = {"cell": data["cell"], "better": data["better"]}
                columns |= _tested(page, data, (measure,), "next")
                table = Table(f"neighbours_{measure.name}", pd.DataFrame(columns), page.with_keys(data), 3)
                parts += [f"**Neighbours by {measure.label(page)}**", table]
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
                row = {"measure": measure.name, "series": series, "low": low, "high": high}
                row |= {"iqm": statistics.interquartile_mean(of.to_numpy()), "above": math.nan}
                if self.reference in whole and series != self.reference:
                    above = statistics.probability_of_improvement(of, whole[self.reference])
                    row |= dict(zip(("above", "above_low", "above_high"), above, strict=True))
                rows.append(row)
        data = pd.DataFrame(rows)
        if len(page.cells) < 2 or len(page.series) < 2 or data.empty:
            return []
        by_name = {measure.name: measure.label(page) for measure in self.measures}
        columns = {
            "by": data["measure"].map(by_name),
            "algorithm": data["series"],
            "interquartile mean": data["iqm"].map(number),
        }
        columns["95 % interval"] = _intervals(data["low"], data["high"])
        columns[f"P(above {self.reference})"] = data["above"].map(number)
        if "above_low" in data:
            columns["95 % interval of it"] = _intervals(data["above_low"], data["above_high"])
        return ["## Over all cells", Table("overall", pd.DataFrame(columns), data, 2)]


@dataclass(frozen=True)
class Curves:
    """The metric against an axis: a panel per cell, mean over seeds with a band of one deviation; published dotted.

    metric  instead of the page's; only: series; split: a key of the cells with a figure for each of its values
    """

    axis: str = "iteration"
    metric: str = ""
    only: tuple[str, ...] = ()
    split: str = ""
    columns: int = 2
    heading: str = ""

    def __call__(self, page: Page) -> list[Part]:
        metric = self.metric or page.metric
        if metric not in page.points:
            return []
        pictures: list[Part] = []
        ends = page.points.groupby("run")[self.axis].max()
        log = bool(ends.max() > 8 * ends.min() > 0) and page.spec.limit == math.inf
        for value, cells in page.cells.groupby(self.split, sort=False) if self.split else [("", page.cells)]:
            panels = [self._panel(page, metric, str(cell), log) for cell in cells.index]
            if not any(len(line.x) for panel in panels for line in panel.lines):
                continue
            top = 100.0 if style.is_percent(metric) else None
            labels = page.axis_label(self.axis), style.metric_label(metric)
            figure = line_panels(panels, *labels, columns=self.columns, top=top, x_log=log)
            where = style.setting(self.split, shown(value)) if self.split else ""
            name = f"{metric.rpartition('/')[2] if self.metric else 'curves'}_" + (
                f"{self.split.rpartition('.')[2]}{shown(value)}".replace(".", "_") if self.split else self.axis
            )
            alt = f"{labels[1]} against {labels[0]}, mean and deviation over seeds"
            pictures.append(Picture(name, figure, ", ".join(filter(None, (alt, where)))))
        return [self.heading or f"## Against {style.AXES.get(self.axis, self.axis)}", *pictures] if pictures else []

    def _panel(self, page: Page, metric: str, cell: str, log: bool) -> Panel:
        runs = page.runs[page.runs["cell"] == cell]
        lines = []
        for series in [one for one in page.drawn if not self.only or one in self.only]:
            points = page.points[page.points["run"].isin(runs.index[runs["series"] == series])]
            curve = measured.mean_curve(points, self.axis, metric, log, page.limit_of(cell))
            x, y, *band = (curve[key].to_numpy(float) for key in ("x", "mean", "low", "high"))
            lines.append(Line(series, page.styles[series], x, y, *(band if curve["seeds"].max() > 1 else ())))
        if page.spec.published and not self.metric and page.is_real(cell) and self.axis == "virtual_time":
            for series, curve in page.spec.published.curves_of(page.spec.paper, page.cells.loc[cell]).items():
                if series in page.drawn:
                    x, y = curve["x"].to_numpy(float), curve["y"].to_numpy(float)
                    lines.append(Line(f"{series}, published", page.styles[series], x, y, dotted=True))
        rest = [key for key in page.keys if key != self.split]
        return Panel(style.cell_label(rest, [shown(page.cells.at[cell, key]) for key in rest]), lines)


@dataclass(frozen=True)
class Accuracies:
    """The metric at the largest budget of the axis that all runs of a cell spent: a row a series, a column a cell."""

    axis: str

    def __call__(self, page: Page) -> list[Part]:
        measure = Measure("equal", self.axis)
        values = page.values(measure)
        if values.empty:
            return []
        groups = values.groupby(["cell", "series"], sort=False)
        columns = {"algorithm": [*page.series, "budget", "ended first"]}
        for cell in page.cells.index:
            of_cell = values[values["cell"] == cell]
            own = {series: of for series, of in of_cell.groupby("series")}
            best = of_cell.groupby("series")["value"].mean().agg("min" if page.lower(measure) else "max")
            ends = {series: of["end"].min() for series, of in own.items()}
            first = [series for series in page.series if ends.get(series) == min(ends.values(), default=None)]
            texts = []
            for series in page.series:
                of = own.get(series, of_cell[:0])
                text = with_spread(of["value"], page.decimals(measure))
                text += " ~" if len(of) and of["evaluations"].min() < 2 else ""
                text += " (best)" if len(of) and of["value"].mean() == best else ""
                few = 0 < len(of) < groups.size().max()
                texts.append(text + (f" ({len(of)} of {groups.size().max()} seeds)" if few else ""))
            texts.append(f"{of_cell['budget'].max():.6g}")
            columns[cell or "all"] = [*texts, "all" if len(first) == len(own) > 1 else ", ".join(first)]
        table = pd.DataFrame(columns)
        if len(page.cells) > _WIDE:  # many cells read better downwards
            table = table.set_index("algorithm").T.rename_axis("cell").reset_index()
        unit = "_percent" if style.is_percent(page.metric) else ""
        data = groups.agg(
            budget=("budget", "max"),
            **{f"mean{unit}": ("value", "mean"), f"std{unit}": ("value", "std")},
            seeds=("seed", "size"),
        )
        title = f"{measure.label(page).capitalize()}, the largest that all runs of a cell have spent; ~: mostly interpolated"
        data = page.with_keys(data.reset_index()).assign(axis=self.axis)
        return [f"**{title}**", Table(f"accuracy_{self.axis}", table, data)]


@dataclass(frozen=True)
class Values:
    """Rows: cells and series; columns: measures. A second table, for its CSV file only, has a row a run."""

    shown: tuple[Measure, ...]
    heading: str = "## Reached"

    def __call__(self, page: Page) -> list[Part]:
        by_run = page.runs[["series", "cell", "seed"]].copy()
        for measure in self.shown:
            by_run[measure.name] = page.values(measure).set_index("run")["value"]
        lost = page.placed.left_out.query("reason == 'diverged'").groupby(["cell", "series"]).size()
        groups = by_run.groupby(["cell", "series"])
        places = [(c, s) for c in page.cells.index for s in page.series if (c, s) in groups.groups or (c, s) in lost]
        data = groups[[m.name for m in self.shown]].agg(["mean", "std", "count"]).reindex(places)
        data.columns = ["_".join(name).removesuffix("_mean") for name in data.columns]
        data["seeds"] = groups.size().reindex(places).fillna(0).astype(int)
        data["diverged"] = lost.reindex(places).fillna(0).astype(int)
        columns = {"cell": [c for c, _ in places], "algorithm": [s for _, s in places]}
        for measure in self.shown:
            own = {place: of[measure.name] for place, of in groups}
            columns[measure.label(page)] = [with_spread(own.get(p, ()), page.decimals(measure)) for p in places]
        columns["seeds"] = data["seeds"].astype(str).to_list()
        if data["diverged"].any():
            columns["diverged"] = data["diverged"].astype(str).to_list()
        table = pd.DataFrame(columns).drop(columns=[] if page.keys else "cell")
        data = page.with_keys(data.rename_axis(["cell", "series"]).reset_index())
        return [
            self.heading,
            Table("measured", table, data, 2),
            Table("measured_by_seed", None, page.with_keys(by_run)),
        ]


@dataclass(frozen=True)
class Against:
    """Measures against a numeric key of the cells: a panel per measure and value of the other keys; published dotted."""

    key: str
    shown: tuple[Measure, ...]

    def __call__(self, page: Page) -> list[Part]:
        rest = [key for key in page.keys if key != self.key]
        panels = []
        for where, cells in page.cells.groupby(rest, sort=False) if rest else [((), page.cells)]:
            title = style.cell_label(rest, [shown(value) for value in where])
            panels += [Panel(title, self._lines(page, measure, cells), measure.label(page)) for measure in self.shown]
        if not any(len(line.x) for panel in panels for line in panel.lines):
            return []
        label = style.key_label(self.key, page.cells[self.key])
        top = 100.0 if style.is_percent(page.metric) and not any(m.is_time for m in self.shown) else None
        figure = line_panels(panels, label, "", top=top)
        name = "_".join(["against", self.key.rpartition(".")[2], *(m.name for m in self.shown)])
        what = " and ".join(measure.label(page) for measure in self.shown)
        return [Picture(name, figure, f"{what} against {label}, mean and deviation over seeds")]

    def _lines(self, page: Page, measure: Measure, cells: pd.DataFrame) -> list[Line]:
        values, lines = page.values(measure), []
        values = values[values["cell"].isin(cells.index)].assign(x=lambda of: of[self.key].astype(float))
        theirs = {
            float(cells.at[cell, self.key]): page.published_of(str(cell)).get(measure.name)
            for cell in cells.index
            if page.is_real(str(cell))
        }
        for series in page.drawn:
            own = values[values["series"] == series].groupby("x")["value"].agg(["mean", "std"]).dropna(subset="mean")
            x, y, std = own.index.to_numpy(float), own["mean"].to_numpy(), own["std"].to_numpy()
            lines.append(Line(series, page.styles[series], x, y, y - std, y + std, points=True))
            known = {x: of[series] for x, of in sorted(theirs.items()) if of is not None and series in of.index}
            dotted = np.array([*known], dtype=float), np.array([*known.values()], dtype=float)
            lines.append(Line(f"{series}, published", page.styles[series], *dotted, dotted=True))
        return lines


@dataclass(frozen=True)
class Cost:
    """What going from the first to the last value of a key of the cells costs each series, seed by seed."""

    key: str
    measure: Measure = FINAL

    def __call__(self, page: Page) -> list[Part]:
        rest = [key for key in page.keys if key != self.key]
        ends = sorted(page.cells[self.key].unique(), key=lambda value: style.natural(shown(value)))
        rows = []
        for where, cells in page.cells.groupby(rest, sort=False) if rest else [((), page.cells)]:
            first, last = (cells.index[cells[self.key] == end] for end in (ends[0], ends[-1]))
            if len(ends) < 2 or not len(first) or not len(last):
                continue
            for series in page.series:
                by_seed, theirs = _by_seed(page, self.measure), []
                values = [by_seed.get((cell[0], series)) for cell in (first, last)]
                for cell in (first[0], last[0]):
                    theirs.append(
                        page.published_of(cell).get(self.measure.name, pd.Series(dtype=float)).get(series, math.nan)
                    )
                if values[0] is not None and values[1] is not None:
                    row = dict(zip(rest, where, strict=True)) | {"measure": self.measure.name, "series": series}
                    rows.append(row | _paired(values[0] - values[1]) | {"published": theirs[0] - theirs[1]})
        if not rows:
            return []
        data = pd.DataFrame(rows)
        columns = {style.key_label(key): [style.short(key, shown(v)) for v in data[key]] for key in rest}
        columns |= _tested(page, data, (self.measure,), "series", "algorithm", "lost")
        if data["published"].notna().any():
            columns["published loss"] = data["published"].map(lambda value: number(value, "+"))
        span = " to ".join(style.setting(self.key, shown(end)) for end in (ends[0], ends[-1]))
        heading = f"## Lost from {span}: {self.measure.label(page)}"
        return [heading, Table("cost", pd.DataFrame(columns), data, 1 + len(rest))]


@dataclass(frozen=True)
class Reference:
    """One series against every other, seed by seed; Holm over the rows."""

    reference: str
    shown: tuple[Measure, ...]

    def __call__(self, page: Page) -> list[Part]:
        rows = []
        for measure in self.shown:
            by_seed = _by_seed(page, measure)
            for cell in page.cells.index:
                own = by_seed.get((cell, self.reference))
                for series in page.series if own is not None else ():
                    if series != self.reference and (cell, series) in by_seed:
                        found = _paired(own - by_seed[cell, series])
                        rows.append({"measure": measure.name, "cell": cell, "series": series, **found})
        if not rows:
            return []
        data = pd.DataFrame(rows)
        data["p_holm"] = statistics.holm(data["p"])
        data["verdict"] = [statistics.direction(d, p) for d, p in zip(data["difference"], data["p_holm"], strict=True)]
        labels = {measure.name: measure.label(page) for measure in self.shown}
        columns = {"by": data["measure"].map(labels), "cell": data["cell"]}
        columns |= _tested(page, data, self.shown, "series", "other", f"{self.reference} minus it")
        table = Table("against_one", pd.DataFrame(columns), page.with_keys(data), 3)
        return [f"## {self.reference.capitalize()} against each other one", table]


@dataclass(frozen=True)
class Maps:
    """Heat maps of a measure over two keys: one per series if both are the cells', else one per protocol."""

    rows: str
    columns: str
    measure: Measure = FINAL

    def __call__(self, page: Page) -> list[Part]:
        keys = [self.rows, self.columns]
        values = page.values(self.measure).set_index("run")[["series", "value"]].join(page.runs[keys])
        own = set(keys) <= set(page.keys)
        values["map"] = values["series"] if own else page.runs["cell"] if self.columns not in page.keys else ""
        for key in keys:
            values[key] = values[key].map(shown)
        texts = [sorted(set(values[key]) - {"-"}, key=style.natural) for key in keys]
        maps = []
        for title in sorted(set(values["map"]), key=style.series_order):
            means = values[values["map"] == title].groupby(keys)["value"].agg(["mean", "std"])
            grids = [
                means[how].unstack().reindex(index=texts[0], columns=texts[1]).to_numpy(float)
                for how in ("mean", "std")
            ]
            maps.append(HeatMap(title, *grids))
        if not any(np.isfinite(one.mean_rc).any() for one in maps):
            return []
        ticks = [[style.short(key, text) for text in of] for key, of in zip(keys, texts, strict=True)]
        labels = [style.key_label(key, of) for key, of in zip(keys, texts, strict=True)]
        figure = heat_maps(maps, *ticks, *labels, self.measure.label(page))
        alt = f"{self.measure.label(page)}, mean ± deviation over seeds, {labels[0]} by {labels[1]}"
        return [Picture(f"heat_maps_{self.measure.name}", figure, alt)]


@dataclass(frozen=True)
class Search:
    """Per cell all settings of a search, best first, with the published choice marked, and the margins of each key.

    file  of the published choices; keys: its columns that were searched
    """

    file: str
    keys: tuple[str, ...]

    def __call__(self, page: Page) -> list[Part]:
        parts: list[Part] = []
        found = {m.name: page.values(m).set_index("run")["value"] for m in (BEST, TO_90, UPLOADS)}
        keys = list(self.keys)
        for cell in page.cells.index:
            groups = page.runs[page.runs["cell"] == cell].assign(**found).groupby(keys)
            grid = groups[[*found]].mean().assign(seeds=groups.size())
            grid["rank"] = grid["best"].rank(method="min", ascending=False)
            grid = grid.sort_values(["rank", "time_to_90"], kind="stable").reset_index()
            choice = (
                matching(published(page.spec.paper, self.file), page.cells.loc[cell])[keys].astype(float).to_numpy()
            )
            grid["published"] = [
                any((row == one).all() for one in choice) for row in grid[keys].astype(float).to_numpy()
            ]
            name = shown(page.cells.loc[cell].iloc[0]).rpartition("/")[2]
            ends = (grid.index < _TOP) | (grid.index >= len(grid) - 3)
            kept = grid[ends | grid["published"]] if len(grid) > _LONG else grid
            columns: dict[str, Iterable] = {"rank": kept["rank"].map(lambda rank: number(rank, "", 0))}
            columns |= {style.key_label(key): kept[key].map(shown) for key in keys}
            settings = list(kept[keys].itertuples(index=False, name=None))
            for measure in (BEST, TO_90, UPLOADS):
                own = {place: of[measure.name] for place, of in groups}
                texts = [with_spread(own[place], page.decimals(measure)) for place in settings]
                columns[measure.label(page)] = texts
            marks = [("best here", kept["rank"] == 1), ("the paper's", kept["published"])]
            columns[""] = [", ".join(text for text, at in marks if at[i]) for i in kept.index]
            heading = f"## {cell}: {len(kept)} of {len(grid)} settings"
            parts += [heading, Table(f"grid_{name}", pd.DataFrame(columns), grid)]
            if len(keys) > 2:
                parts.append(self._margins(grid, name))
        return parts

    def _margins(self, grid: pd.DataFrame, name: str) -> Table:
        """What each value of each key comes to over all values of the others."""
        margins = [
            {"key": key, "value": value, **of["best"].agg(["max", "median", "min"]), "settings": len(of)}
            | {"published": bool(of["published"].any())}
            for key in self.keys
            for value, of in grid.groupby(key)
        ]
        data = pd.DataFrame(margins)
        columns = {"hyper-parameter": data["key"].map(style.key_label), "value": data["value"].map(shown)}
        columns |= {f"{how} [%]": data[how].map(number) for how in ("max", "median", "min")}
        columns |= {"settings": data["settings"], "": data["published"].map({True: "the paper's", False: ""})}
        return Table(f"margins_{name}", pd.DataFrame(columns), data, 2)


@dataclass(frozen=True)
class Beside:
    """Published numbers beside ours where the runs are the paper's experiment, alone elsewhere.

    ``*``: the published number is beyond the 95 % prediction interval of one more run of ours.
    test_samples  of the published accuracies, whose sampling error counts too
    """

    shown: tuple[Measure, ...]
    test_samples: int = 0

    def __call__(self, page: Page) -> list[Part]:
        assert page.spec.published is not None
        rows: dict[bool, list[dict]] = {True: [], False: []}
        texts: dict[bool, list[dict]] = {True: [], False: []}
        for cell in page.cells.index:
            theirs, real = page.published_of(cell), page.is_real(cell)
            for series in theirs.index:
                row, text = {"cell": cell, "series": series}, {"cell": cell, "algorithm": series}
                for measure in self.shown:
                    own = _by_seed(page, measure).get((cell, series), pd.Series(dtype=float))
                    here = self._compared(page, measure, theirs.loc[series], own if real else None)
                    row |= here[0]
                    text |= here[1]
                rows[real].append(row)
                texts[real].append(text)
        parts: list[Part] = []
        for real, name, heading in (
            (True, "published_difference", "Measured and published"),
            (False, "published", "Published, of the paper's own experiment"),
        ):
            if rows[real]:
                table = Table(name, pd.DataFrame(texts[real]), page.with_keys(pd.DataFrame(rows[real])), 2)
                sources = "; ".join(sorted(set(published(page.spec.paper, page.spec.published.numbers)["source"])))
                parts += [f"## {heading}", table, f"Source: {sources}."]
        return parts

    def _compared(self, page: Page, measure: Measure, theirs: pd.Series, own: pd.Series | None) -> tuple[dict, dict]:
        name, label, digits = measure.name, measure.label(page), page.decimals(measure)
        value, spread = theirs[name], theirs[f"{name}_spread"]
        row = {f"{name}_published": value, f"{name}_spread": spread}
        printed = number(value, "", digits) + ("" if spread != spread else f" ± {number(spread, '', digits)}")
        if own is None:
            return row, {label: printed}
        sampled = bool(self.test_samples) and name in ("best", "final")
        extra = statistics.sampling_error(value, self.test_samples) if sampled else 0.0
        low, high = statistics.prediction_interval(own, extra)
        beyond, difference = bool(value < low or value > high), own.mean() - value
        row |= {name: own.mean(), f"{name}_difference": difference, f"{name}_beyond": beyond}
        texts = {label: with_spread(own, digits), f"{name}: published": printed}
        return row, texts | {f"{name}: difference": number(difference, "+", digits) + "*" * beyond}


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
        runs = page.runs.drop_duplicates(["cell", "series"])
        data = runs[["cell", "series"]].copy()
        for header, column in self.columns.items():
            data[header] = page.values(Measure(column)).set_index("run")["value"]
        source = ""
        if self.file:
            table = published(page.spec.paper, self.file)
            matches = [
                matching(table[table["algorithm"] == run["algorithm"]], run.reindex(["algorithm.rule"]).dropna())
                for _, run in runs.iterrows()
            ]
            for header, column in self.printed.items():
                data[header] = [match[column].iloc[0] if len(match) else None for match in matches]
            source = f"Published: {'; '.join(sorted(set(table['source'])))}."
        order = {place: number for number, place in enumerate((c, s) for c in page.cells.index for s in page.series)}
        data = data.iloc[np.argsort([order[place] for place in zip(data["cell"], data["series"], strict=True)])]
        texts = data.rename(columns={"series": "algorithm"}).map(_count)
        return [Table(self.name, texts, page.with_keys(data), 2), source]


def _count(value: object) -> str:
    if isinstance(value, str):
        return value
    number_ = float(value) if value is not None else math.nan  # type: ignore[arg-type]
    return "-" if number_ != number_ else f"{number_:.0f}" if number_.is_integer() else f"{number_:.3f}"


def _tested(
    page: Page,
    data: pd.DataFrame,
    ranked: Sequence[Measure],
    other: str,
    header: str = "",
    difference: str = "difference",
) -> dict[str, Iterable]:
    """The columns of differences as text: ``other`` (a column of ``data``, under ``header``), difference, its interval,
    p, seeds and verdict."""
    digits = data["measure"].map({measure.name: page.decimals(measure) for measure in ranked})
    p = "p_holm" if "p_holm" in data else "p"
    return {
        header or other: data[other],
        difference: [number(d, "+", n) for d, n in zip(data["difference"], digits, strict=True)],
        "95 % interval": _intervals(data["low"], data["high"], digits),
        "p (Holm)" if p == "p_holm" else "p": data[p].map(p_text),
        "seeds": data["seeds"].astype(str),
        "verdict": data["verdict"],
    }


def _intervals(low: pd.Series, high: pd.Series, digits: Iterable[int] | None = None) -> list[str]:
    three = zip(low, high, digits if digits is not None else [2] * len(low), strict=True)
    return ["-" if a != a else f"[{number(a, '', n)}, {number(b, '', n)}]" for a, b, n in three]


def _paired(differences: pd.Series) -> dict[str, object]:
    found = statistics.paired(differences)
    return {
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "seeds": found.n,
        "verdict": found.verdict,
    }


def _by_seed(page: Page, measure: Measure) -> dict[tuple[str, str], pd.Series]:
    """(cell, series) -> value by seed."""
    return {place: of.set_index("seed")["value"] for place, of in page.values(measure).groupby(["cell", "series"])}


def _agreement(page: Page, measure: Measure, cell: str) -> float:
    """Kendall's tau-b with the order published for this cell, or with the page's; NaN where there is neither."""
    values = page.values(measure)
    means = values[values["cell"] == cell].groupby("series")["value"].agg(lambda one: one.mean(skipna=False)).dropna()
    order = page.published_of(cell).get(measure.name)
    if order is None:
        order = pd.Series({style.name(name): place for place, name in enumerate(page.spec.order)}, dtype=float)
    both = means.index.intersection(order.index)
    tau = statistics.order_agreement(means[both].to_numpy(), order[both].to_numpy())
    return math.nan if tau is None else tau
