"""Pages of AsyncFedED's tables 1 to 4: the grid of hyper-parameters measured, and where the published choice lies."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..table import mean_and_std
from . import looks
from .heatmaps import HeatMap, draw_heat_maps
from .item import VERDICTS, Page, mean_text, number
from .published import published
from .racing import limits_text, time_text
from .reached import Reached, reached
from .selection import Series, in_order
from .statistics import paired

_ALL_ROWS = 30  # a longer grid is in the CSV file as a whole, on the page in part
_TOP = 10


@dataclass
class Search:
    """The settings of one protocol, best first. choice: the published one, None where it is not among them.

    keys  the hyper-parameters that vary; ranks: 1 + how many settings have a higher mean best accuracy
    """

    one: Reached
    keys: tuple[str, ...]
    order: list[Series]
    ranks: dict[Series, int]
    choice: Series | None
    printed: dict[str, str]

    @property
    def winners(self) -> list[Series]:
        return [series for series in self.order if self.ranks[series] == 1]


def search_parts(page: Page) -> list[str]:
    """Words, then per protocol the grid; a heat map where two hyper-parameters vary, margins where more do."""
    name = page.item.sweep.replace("/", "_")
    searches = [_search(one, name) for one in reached(page)]
    if not searches:
        return ["No run has a test accuracy, so there is nothing to compare."]
    parts = ["## In words", "\n".join(_words(page, search) for search in searches)]
    parts.append(
        f"{limits_text([search.one for search in searches])} Ranked by the best test accuracy, as nothing tells by "
        "what the paper chose; no test accuracy of this page tunes anything else. The paper gives neither P nor the "
        f"number of repeats: P = 0.1 and one seed are our choice. Published: {', '.join(sorted(_sources(name)))}."
    )
    if len(searches[0].keys) == 2:
        parts.append(_heat_maps(page, searches))
    for search in searches:
        paper = search.one.cell[0]
        parts += [f"## Protocol {looks.protocol(paper)}", _grid(page, search)]
        if len(search.keys) > 2:
            parts.append(_margins(page, search))
    return parts


def _sources(name: str) -> set[str]:
    return {row["source"] for row in published(name)}


def _search(one: Reached, name: str) -> Search:
    keys = tuple(key for key, _ in next(iter(one.runs)).variant)
    means = one.best.means()
    order = sorted(one.best.ranking, key=lambda s: (_last_if_nan(-means[s]), _last_if_nan(one.to_share.means()[s])))
    ranks = {series: 1 + sum(means[other] > means[series] for other in order) for series in order}
    row = next((row for row in published(name) if row["paper"] == one.cell[0]), {})
    choice = next((s for s in order if row and all(float(s.of(k) or "nan") == float(row[k]) for k in keys)), None)
    return Search(one, keys, order, ranks, choice, row)


def _last_if_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _setting(search: Search, series: Series) -> str:
    return ", ".join(looks.setting(key, series.of(key) or "?") for key in search.keys)


def _words(page: Page, search: Search) -> str:
    one, choice, best = search.one, search.choice, search.order[0]
    means = one.best.means()
    said = f"- **Protocol {looks.protocol(one.cell[0])}**: best of {len(search.order)} settings is "
    said += f"{_setting(search, best)} with {number(means[best])} %"
    said += f", tied with {len(search.winners) - 1} more. " if len(search.winners) > 1 else ". "
    if choice is None:
        return said + (
            "The published choice is not among the runs." if search.printed else "No choice is published for it."
        )
    pair = paired(one.best.final[best], one.best.final[choice])
    tied = sum(rank == search.ranks[choice] for rank in search.ranks.values()) - 1
    said += f"The published choice, {_setting(search, choice)}, has rank {search.ranks[choice]}"
    said += f" (with {tied} more)" if tied else ""
    if search.ranks[choice] == 1:
        return f"{said}: none is better."
    return f"{said}, {number(pair.mean)} points below ({VERDICTS[pair.verdict]})."


def _grid(page: Page, search: Search) -> str:
    one, order = search.one, search.order
    shown = order
    if len(order) > _ALL_ROWS:
        shown = [*order[:_TOP], *([search.choice] if search.choice and search.choice not in order[:_TOP] else [])]
        shown += [series for series in order[-3:] if series not in shown]
    headers = ["rank", *(looks.setting(key, "")[:-3] for key in search.keys), "best [%]", "time to 90 %", "uploads", ""]
    cells, data = [], []
    for series in order:
        best, time, uploads = (list(scores.final[series].values()) for scores in (one.best, one.to_share, one.uploads))
        marks = ["best here"] if series in search.winners else []
        marks += ["the paper's"] if series == search.choice else []
        values = [series.of(key) or "?" for key in search.keys]
        if series in shown:
            line = [str(search.ranks[series]), *values, mean_text(*mean_and_std(best)), time_text(time)]
            cells.append([*line, mean_text(*mean_and_std(uploads), 0), ", ".join(marks)])
        row: dict[str, object] = {"paper": one.cell[0], "rank": search.ranks[series]}
        row |= dict(zip(search.keys, values, strict=True)) | {"best_percent": mean_and_std(best)[0]}
        row |= {"time_to_90": mean_and_std(time)[0], "uploads": mean_and_std(uploads)[0], "seeds": len(best)}
        data.append(row | {"published_choice": series == search.choice})
    text = page.folder.table(f"grid_{one.cell[0].rpartition('/')[2]}", headers, cells, 1, data)
    part = f"\nThe first {_TOP}, the published choice and the last of {len(order)}; the CSV file has all.\n"
    return text + (part if len(order) > len(shown) else "")


def _values(searches: list[Search], key: str) -> list[str]:
    return [v for (v,) in in_order((series.of(key) or "?",) for search in searches for series in search.order)]


def _heat_maps(page: Page, searches: list[Search]) -> str:
    row_key, column_key = searches[0].keys
    rows, columns = _values(searches, row_key), _values(searches, column_key)
    maps = []
    for search in searches:
        values = np.full((len(rows), len(columns), 2), np.nan)
        for series, of_seed in search.one.best.final.items():
            place = rows.index(series.of(row_key) or "?"), columns.index(series.of(column_key) or "?")
            values[place] = mean_and_std(list(of_seed.values()))
        maps.append(HeatMap(looks.setting("paper", search.one.cell[0]), values[..., 0], values[..., 1]))
    row_label, column_label = (looks.setting(key, "")[:-3] for key in (row_key, column_key))
    figure = draw_heat_maps(maps, rows, columns, row_label, column_label, "best test accuracy [%]")
    alt = "Best test accuracy [%] within the limit, mean ± sample standard deviation; one colour scale for all."
    return page.folder.figure("heat_maps", figure, alt)


def _margins(page: Page, search: Search) -> str:
    """What each value of each hyper-parameter comes to over all values of the others."""
    means = search.one.best.means()
    headers = ["hyper-parameter", "value", "best [%]", "median [%]", "worst [%]", "settings", ""]
    cells = []
    for key in search.keys:
        for value in _values([search], key):
            of = [means[s] for s in search.order if s.of(key) == value and not math.isnan(means[s])]
            chosen = search.choice is not None and search.choice.of(key) == value
            numbers = [number(f(of)) if of else "-" for f in (max, lambda x: float(np.median(x)), min)]
            cells.append([looks.setting(key, "")[:-3], value, *numbers, str(len(of)), "the paper's" if chosen else ""])
    text = page.folder.table(f"margins_{search.one.cell[0].rpartition('/')[2]}", headers, cells, 2)
    return f"Each value, over all values of the others:\n\n{text}"
