"""Parts of a page about one setting on the x axis: the share of clients that stop, and ACED's threshold with it."""

from __future__ import annotations

import math

import numpy as np

from ..load import Run
from ..table import mean_and_std
from . import looks
from .comparing import accuracies, in_words, line_of
from .comparison import Standing, standings
from .drawing import Line
from .heatmaps import HeatMap, draw_heat_maps
from .item import VERDICTS, Page, final_by_seed, number
from .lines import draw_lines
from .looks import Look
from .selection import Series
from .statistics import paired

TAU = "algorithm.tau_algo"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


def dropout_parts(page: Page) -> list[str]:
    """Accuracy against the share of clients that stop, on every axis, and what the largest share costs each series."""
    by_axis = {axis: found for axis in looks.AXES if (found := standings(page.evidence, axis))}
    if not by_axis:
        return ["No run has a test accuracy, so there is nothing to compare."]
    parts = ["## In words", *in_words(by_axis), "## What the largest share costs", _loss(page)]
    for axis, found in by_axis.items():
        parts += [f"## At equal {looks.AXES[axis]}", _before_the_stop(axis, found)]
        parts += [_lines(page, axis, found), accuracies(page, axis, found)]
    return parts


def _before_the_stop(axis: str, found: list[Standing]) -> str:
    """Which series have not come to the clients' stop within the budget: a line of theirs shows nothing of it."""
    early = {
        series.label
        for one in found
        for series, runs in one.runs.items()
        for run in runs
        if float(str(run.settings.get("availability.share") or 0)) > 0 and _stop(run, axis) > one.budget
    }
    if not early:
        return ""
    return (
        f"**At this budget of {looks.AXES[axis]} clients have not stopped yet for {', '.join(sorted(early))}.** "
        "Their numbers say nothing about clients that stop."
    )


def _stop(run: Run, axis: str) -> float:
    """Where on the axis the clients stop: the first logged point at or after that server iteration; never: infinity."""
    at = run.settings.get("availability.at_iteration")
    points = zip(run.curve("iteration")[0], run.curve(axis)[0], strict=True)
    return next((float(x) for iteration, x in points if at is not None and iteration >= float(str(at))), math.inf)


def threshold_parts(page: Page) -> list[str]:
    """The same for ACED's thresholds, with one heat map of the final accuracy."""
    shares, series = page.evidence.cells, page.evidence.series
    values = np.array([[page.final(one, cell)[:2] for cell in shares] for one in series])
    values = values.reshape(len(series), len(shares), 2)
    title = "ACED's final test accuracy"
    rows = [one.of(TAU) or one.label for one in series]
    one_map = HeatMap("ACED", values[..., 0], values[..., 1])
    columns = [cell[0] for cell in shares]
    bar = "final test accuracy [%]"
    figure = draw_heat_maps([one_map], rows, columns, "τ_algo", "share of clients that stop", bar)
    flat = _flatness(page)
    alt = f"{title}: threshold tau_algo by share of clients that stop; mean ± sample standard deviation over seeds."
    return [page.folder.figure("heat_map", figure, alt), flat, *dropout_parts(page)]


def _flatness(page: Page) -> str:
    """The paper's claim in this page's numbers: how far apart the thresholds from 10 to 50 end."""
    named = [series for series in page.evidence.series if 10 <= _number(series.of(TAU) or "0") <= 50]
    said = []
    for cell in page.evidence.cells:
        finals = [(page.final(series, cell)[0], series) for series in named if (series, cell) in page.evidence.runs]
        if len(finals) < 2:
            continue
        (low, worst), (high, best) = min(finals, key=lambda pair: pair[0]), max(finals, key=lambda pair: pair[0])
        runs = [page.evidence.runs[series, cell] for series in (best, worst)]
        weight = VERDICTS[paired(*map(final_by_seed, runs)).verdict]
        said.append(f"{number(high - low)} points at share {cell[0]} ({weight})")
    if not said:
        return ""
    title = "Best minus worst final accuracy among thresholds from 10 to 50, which the paper finds flat"
    return f"{title}: {', '.join(said)}."


def _lines(page: Page, axis: str, found: list[Standing]) -> str:
    lines = []
    for place, series in enumerate(page.evidence.series):
        points = []
        for one in found:
            mean, std = mean_and_std(list(one.final.get(series, {}).values()))
            if not math.isnan(mean):
                points.append((_number(one.cell[0]), mean, std))
        if points:
            lines.append((_line(series, place, len(page.evidence.series)), points))
    text = looks.AXES[axis]
    alt = f"Test accuracy at equal {text} against the share of clients that stop: mean, bar of one standard deviation."
    label = f"test accuracy at equal {text} [%]"
    figure = draw_lines(lines, "share of clients that stop for good", label)
    return page.folder.figure(f"dropout_{axis}", figure, alt, vector=True)


def _line(series: Series, place: int, count: int) -> Line:
    """Thresholds are numbers, so their colours follow one scale from dark to light; algorithms keep their own."""
    if series.of(TAU) is None:
        return line_of(series)
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    colour = to_hex(colormaps["viridis"](0.9 * place / max(1, count - 1)))
    return Line(series.label, Look(colour, _MARKERS[place % len(_MARKERS)], ("-", "--", "-.")[place % 3]))


def _loss(page: Page) -> str:
    first, last = page.evidence.cells[0], page.evidence.cells[-1]
    headers = ["algorithm", f"share {first[0]}", f"share {last[0]}", "lost [points]", "2 standard errors", "verdict"]
    cells = []
    for series in page.evidence.series:
        runs = [page.evidence.runs.get((series, cell), []) for cell in (first, last)]
        pair = paired(final_by_seed(runs[0]), final_by_seed(runs[1]))
        means = [page.final(series, cell)[0] for cell in (first, last)]
        cells.append([series.label, *map(number, (*means, pair.mean, pair.two_se)), VERDICTS[pair.verdict]])
    text = page.folder.table("loss", headers, cells)
    return f"Final test accuracy [%] without and with the largest share, seed against seed:\n\n{text}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
