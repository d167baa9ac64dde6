"""Parts of figure a.2: heat maps of accuracy over skew and delay, and whether delays hurt more where skew is strong."""

from __future__ import annotations

import math

import numpy as np

from ..table import mean_and_std
from . import looks
from .comparing import accuracies, in_words
from .comparison import Standing, standings
from .heatmaps import HeatMap, draw_heat_maps
from .item import Page, final_by_seed, number
from .selection import in_order
from .statistics import paired


def heat_map_parts(page: Page) -> list[str]:
    """Words; per axis one heat map per series and the table; what the longest delay costs at every skew."""
    by_axis = {axis: found for axis in looks.AXES if (found := standings(page.evidence, axis))}
    if not by_axis:
        return ["No run has a test accuracy, so there is nothing to compare."]
    parts = ["## In words", *in_words(by_axis), delay_part(page)]
    for axis, found in by_axis.items():
        parts += [f"## At equal {looks.AXES[axis]}", _maps(page, axis, found), accuracies(page, axis, found)]
    return parts


def delay_part(page: Page) -> str:
    """A table: accuracy lost from the shortest to the longest delay, by series and skew; empty for one delay."""
    skews = [value for (value,) in in_order((cell[0],) for cell in page.evidence.cells)]
    delays = [value for (value,) in in_order((cell[1],) for cell in page.evidence.cells)]
    if len(delays) < 2:
        return ""
    key_a, key_b = page.evidence.cell_keys
    headers = ["algorithm", *(looks.setting(key_a, skew) for skew in skews)]
    cells = []
    for series in page.evidence.series:
        line = [series.label]
        for skew in skews:
            runs = [page.evidence.runs.get((series, (skew, delay)), []) for delay in (delays[0], delays[-1])]
            pair = paired(final_by_seed(runs[0]), final_by_seed(runs[1]))
            error = "" if math.isnan(pair.two_se) else f" ± {number(pair.two_se)}"
            noise = " (noise)" if pair.verdict == "noise" else ""
            line.append(number(pair.mean, "+") + error + noise)
        cells.append(line)
    text = page.folder.table("delay_loss", headers, cells)
    ends = f"{looks.setting(key_b, delays[0])} to {looks.setting(key_b, delays[-1])}"
    return (
        f"## What longer delays cost\n\nFinal test accuracy lost from {ends} [points], seed against seed, ± two "
        "standard errors. The paper claims that longer delays hurt methods with partial participation more where the "
        f"skew is stronger (smaller α).\n\n{text}"
    )


def _maps(page: Page, axis: str, found: list[Standing]) -> str:
    key_a, key_b = page.evidence.cell_keys
    skews = [value for (value,) in in_order((one.cell[0],) for one in found)]
    delays = [value for (value,) in in_order((one.cell[1],) for one in found)]
    by_cell = {one.cell: one for one in found}
    maps = []
    for series in page.evidence.series:
        values = np.full((len(skews), len(delays), 2), np.nan)
        for row, skew in enumerate(skews):
            for column, delay in enumerate(delays):
                if one := by_cell.get((skew, delay)):
                    values[row, column] = mean_and_std(list(one.final.get(series, {}).values()))
        maps.append(HeatMap(series.label, values[..., 0], values[..., 1]))
    columns = [looks.short(key_b, delay) for delay in delays]
    labels = looks.key_label(key_a, skews), looks.key_label(key_b, delays)
    figure = draw_heat_maps(maps, skews, columns, *labels, f"test accuracy at equal {looks.AXES[axis]} [%]")
    alt = f"Test accuracy [%] at equal {looks.AXES[axis]}, mean ± sample standard deviation; one colour scale for all."
    return page.folder.figure(f"heat_maps_{axis}", figure, alt)
