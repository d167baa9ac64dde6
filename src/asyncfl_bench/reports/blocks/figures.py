"""Figures of lines and intervals, drawn from arrays and labels. Runs are not read here."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..pages.style import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOG_FROM = 8  # lines whose ends are this factor apart share no readable linear axis
_MANY = 300  # points beyond which a line is faint, and means of consecutive ones are drawn over it
_MEANS = 60  # number of these means
_TOP = 0.05  # share of the y axis: where all late differences are within it, the axis shows that part
COLOURS = "cividis"  # even in grey, and alike for all kinds of colour vision


@dataclass
class Line:
    """One line of a panel, all arrays of shape (p,). low, high: a band around it, bars if ``points``.

    dotted  a published line: thin, dotted, without marks
    points  values at settings: marks with bars, a little apart from other lines; linked: with a line between them
    """

    label: str
    style: Style
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    dotted: bool = False
    points: bool = False
    linked: bool = True


@dataclass
class Panel:
    """One pair of axes. x_label, y_label: its own, where panels differ. top: of axis and bands, 100 for percent.
    names: of the positions 0, 1, … of a categorical x axis."""

    title: str
    lines: list[Line]
    x_label: str = ""
    y_label: str = ""
    top: float | None = None
    names: Sequence[str] = field(default_factory=tuple)


@dataclass
class Forest:
    """One panel of intervals, arrays of shape (methods,) in the order of ``labels``: differences to method ``best``, or
    with a best of -1 values.

    decided  False: the interval is drawn hollow
    groups   number of the group of each method: every second group is shaded; None: no groups
    """

    title: str
    labels: Sequence[str]
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    decided: np.ndarray
    best: int = -1
    groups: Sequence[int] | None = None

    def cut_ends(self, left: float, right: float) -> tuple[np.ndarray, np.ndarray]:
        """Return whether the interval of each method begins before ``left``, and whether it ends behind ``right``."""
        known = np.isfinite(self.low) & np.isfinite(self.high)
        return known & (self.low < left), known & (self.high > right)


def new_figure(width: float, height: float) -> Figure:
    """Make a figure without a window system and without pyplot's global state; size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panel_grid(
    count: int, columns: int, width: float, height: float, **share: Any
) -> tuple[Figure, list[tuple[Axes, bool, bool]]]:
    """Return a figure of that size [inches] with ``count`` axes in rows of ``columns``: each with whether it is the
    first of its row, and the last of its column. share: of ``Figure.subplots``"""
    figure = new_figure(width, height)
    grid = figure.subplots(math.ceil(count / columns), columns, squeeze=False, **share)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return figure, [(grid.flat[i], i % columns == 0, i + columns >= count) for i in range(count)]


def line_panels(
    panels: Sequence[Panel],
    x_label: str,
    y_label: str,
    *,
    columns: int = 2,
    x_log: bool | float | None = None,
    y_log: bool = False,
    zero: bool = False,
    legend: bool = True,
) -> Figure | None:
    """Draw panels in rows of ``columns``, with one legend below. Lines without a point and empty panels are left out.
    None if no panel is left.

    x_log  None: where lines end far apart; 2: to that base
    zero   a thin line at 0
    """
    panels = [replace(panel, lines=[line for line in panel.lines if len(line.x)]) for panel in panels]
    panels = [panel for panel in panels if panel.lines]
    if not panels:
        return None
    columns = 3 if len(panels) == 3 else max(1, min(columns, len(panels)))
    rows = math.ceil(len(panels) / columns)
    lines = [line for panel in panels for line in panel.lines]
    legends = {(line.label, line.dotted): line for line in lines}
    width = 1.0 + (5.4 if columns == 1 else 3.7 * columns)
    across = _legend_columns([label for label, _ in legends], width)
    below = 0.35 + 0.2 * math.ceil(len(legends) / across) if legend else 0.0
    height = (3.4 if rows == 1 else 2.75 * rows) + below
    own_y = any(panel.y_label for panel in panels)
    figure, grid = panel_grid(len(panels), columns, width, height, sharey=not own_y)
    if x_log is None:
        ends = [float(line.x[-1]) for line in lines if not line.points]
        x_log = bool(ends) and max(ends) > _LOG_FROM * max(min(ends), 1e-9) and min(ends) > 0
    for (axes, is_left, is_lowest), panel in zip(grid, panels, strict=True):
        _draw_lines(axes, panel, bool(x_log))
        if x_log and not panel.names:
            axes.set_xscale("log", base=10 if x_log is True else x_log)
            if x_log is True:
                _label_log(axes)
        if y_log:
            axes.set_yscale("log")
        if zero:
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_title(panel.title, fontsize=10)
        if own_y or is_left:
            axes.set_ylabel(panel.y_label or y_label)
        if is_lowest:
            axes.set_xlabel((panel.x_label or x_label) + (" (log scale)" if x_log is True else ""))
    if not y_log:
        for (axes, *_), panel in zip(grid if own_y else grid[:1], panels, strict=False):
            axes.set_ylim(*_set_y_limits(panel.lines if own_y else lines, axes.get_ylim(), panel.top))
    if legend:
        _add_legend(figure, list(legends.values()), across)
    return figure


def _label_log(axes: Axes) -> None:
    """Set ticks at 1, 2 and 5 if the x axis has less than two powers of ten, because default labels then overlap."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axes.get_xlim()
    if high < 100 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Return how many columns of a legend, filled column by column, are at most ``width`` inches wide."""
    for columns in range(len(labels), 1, -1):
        widest = [max(map(len, part)) for part in np.array_split(np.array(labels, dtype=object), columns)]
        if sum(0.8 + 0.072 * letters for letters in widest) <= width:
            return columns
    return 1


def _draw_lines(axes: Axes, panel: Panel, x_log: bool) -> None:
    x_values = sorted({float(x) for line in panel.lines if line.points for x in line.x})
    gap = min(np.diff(x_values), default=1.0)
    with_points = [line for line in panel.lines if line.points]
    for order, line in enumerate(panel.lines):
        style, keep = line.style, line.x > 0 if x_log and not panel.names else np.full(len(line.x), True)
        x, y = line.x[keep], line.y[keep]
        low, high = (
            None if edge is None else np.minimum(edge[keep], panel.top or np.inf) for edge in (line.low, line.high)
        )
        drawn = {"markersize": 4.5, "linewidth": 1.5} | _line_look(line)
        if line.dotted:
            axes.plot(x, y, **drawn)
            continue
        if line.points:
            x = x + gap * 0.3 * ((with_points.index(line) + 0.5) / len(with_points) - 0.5) * (not x_log)
            bars = None if low is None or high is None else np.nan_to_num(np.stack([y - low, high - y])).clip(0)
            axes.errorbar(x, y, yerr=bars, capsize=2, elinewidth=0.9 if len(with_points) <= 6 else 0.6, **drawn)
            continue
        every = (0.03 * (order % 5), 0.2)  # spread along the line, not at the same points of every line
        if low is not None and high is not None:
            axes.fill_between(x, low, high, color=style.colour, alpha=0.16, linewidth=0)
        if len(x) > _MANY:
            axes.plot(x, y, color=style.colour, linewidth=0.5, alpha=0.35)
            x, y = (np.array([part.mean() for part in np.array_split(values, _MEANS)]) for values in (x, y))
        axes.plot(x, y, markevery=every if len(x) > 6 else None, **drawn)
    if panel.names:
        axes.set_xticks(range(len(panel.names)), panel.names, fontsize=8)
    elif x_values and len(x_values) <= 12 and not x_log:
        axes.set_xticks(x_values)
    elif not x_log:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(
            MaxNLocator(6, integer=all((line.x == line.x.round()).all() for line in panel.lines))
        )
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _line_look(line: Line) -> dict[str, Any]:
    """Return the settings of matplotlib that a line and its mark in the legend have in common."""
    style = line.style
    if line.dotted:
        return {"color": style.colour, "linestyle": ":", "linewidth": 1.3}
    return {"color": style.colour, "linestyle": style.dashes if line.linked else "none", "marker": style.marker}


def _set_y_limits(lines: list[Line], drawn: tuple[float, float], top: float | None) -> tuple[float, float]:
    """Return the ends of the y axis: at most ``top``, and at least a twentieth of ``top`` apart, so that noise looks
    small.

    If all points after the first tenth are in the upper part, the axis has only this part.
    """
    low, high = drawn
    late = [line.y[line.x >= 0.1 * line.x[-1]] for line in lines if not line.points]
    finite = np.concatenate(late) if late else np.zeros(0)
    finite = finite[np.isfinite(finite)]
    if top is not None and len(finite) and finite.max() - finite.min() <= max(_TOP * top, _TOP * (high - low)):
        low, high = max(low, finite.min() - 0.5), finite.max() + 0.5
    if top is not None:
        middle, half = (low + high) / 2, max(high - low, _TOP * top) / 2
        low, high = middle - half, middle + half
        if high > top:
            low, high = low - (high - top if high - low <= _TOP * top + 1e-9 else 0), top + 0.01 * (top - low)
    return low, high


def _add_legend(figure: Figure, lines: list[Line], across: int) -> None:
    """Add the legend below the panels, where it covers no line."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **({"markersize": 5} | _line_look(line))) for line in lines]
    labels = [line.label for line in lines]
    if len(lines) > 1 or lines[0].label:
        look: dict[str, Any] = {"ncols": across, "frameon": False, "fontsize": 9, "handlelength": 3.2}
        if any(len(line.x) > _MANY for line in lines):
            look |= {"title": "thick: means of consecutive evaluations", "title_fontsize": 8}
        figure.legend(handles, labels, loc="outside lower center", **look)


def forest_panels(panels: Sequence[Forest], styles: Mapping[str, Style], x_label: str, margin: float) -> Figure | None:
    """Draw panels of intervals side by side, a row for each method. Return None without a panel.

    margin  of the shaded band around zero, NaN for none

    An interval that is longer than the panel is wide ends in an arrow at its border.
    """
    if not panels:
        return None
    columns = min(4, len(panels))
    labels = sorted({label for panel in panels for label in panel.labels}, key=[*styles].index)
    letters, width = max(map(len, labels)), max(2.4, 5.0 / columns)
    titles = [_wrap_title(panel.title, width) for panel in panels]
    height = 0.36 + 0.14 * max(title.count("\n") + 1 for title in titles) + 0.2 * len(labels)
    size = 0.6 + 0.075 * letters + width * columns, 0.6 + height * math.ceil(len(panels) / columns)
    figure, grid = panel_grid(len(panels), columns, *size, sharey=True, sharex=True)
    left, right = forest_limits(panels, margin)
    for (axes, _, is_lowest), panel, title in zip(grid, panels, titles, strict=True):
        if margin == margin:
            axes.axvspan(-margin, margin, color="0.88", linewidth=0, zorder=0)
        if panel.best >= 0:
            axes.axvline(0, color="0.5", linewidth=0.8, zorder=1)
        for number, label in enumerate(panel.labels):
            if panel.groups is not None and panel.groups[number] % 2:
                axes.axhspan(labels.index(label) - 0.5, labels.index(label) + 0.5, color="0.93", linewidth=0, zorder=0)
            y, colour, is_best = labels.index(label), styles[label].colour, number == panel.best
            bars = [[panel.mean[number] - panel.low[number]], [panel.high[number] - panel.mean[number]]]
            look: dict[str, Any] = {"color": colour, "marker": "D" if is_best else "o", "markersize": 5}
            look["markerfacecolor"] = colour if is_best or panel.decided[number] else "white"
            known = not is_best and bool(np.isfinite(bars).all())
            axes.errorbar(
                0.0 if is_best else panel.mean[number],
                y,
                xerr=bars if known else None,
                capsize=2,
                linewidth=1.1,
                **look,
            )
            for end, mark, is_cut in zip((left, right), "<>", panel.cut_ends(left, right), strict=True):
                if is_cut[number]:
                    axes.plot(end, y, mark, color=colour, markersize=5, clip_on=False)
        axes.set_title(title, fontsize=9)
        axes.set_xlim(left, right)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8, labelbottom=is_lowest)
        axes.grid(alpha=0.3, linewidth=0.6, axis="x")
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel(x_label, fontsize=9)
    return figure


def forest_limits(panels: Sequence[Forest], margin: float) -> tuple[float, float]:
    """Return the ends of the x axis of ``forest_panels``.

    Differences have zero on the axis. Of values, which are accuracies, the axis has all intervals but those of methods
    far below the middle half.
    """
    means, lows, highs = (np.concatenate([getattr(of, key) for of in panels]) for key in ("mean", "low", "high"))
    if all(panel.best < 0 for panel in panels):
        first, last = np.nanpercentile(means, [25, 75])
        is_near = (first + last) / 2 - means <= 2 * (last - first)
        lowest, highest = np.nanmin(lows[is_near]), np.nanmax(highs[is_near])
        pad = 0.02 * (highest - lowest) or 1.0
        return lowest - pad, highest + pad
    means = means[np.isfinite(means)]
    lowest, highest = means.min(initial=0.0), means.max(initial=0.0)
    span = max(highest - lowest, 4 * margin if margin == margin else 0.0) or 1.0
    return lowest - 0.3 * span, highest + 0.3 * span


def _wrap_title(title: str, width: float) -> str:
    """Return a title of size 9 in lines of at most ``width`` inches. A key and its value stay together."""
    lines = textwrap.fill(title.replace(" = ", "\xa0=\xa0"), int(width / 0.07), break_on_hyphens=False)
    return lines.replace("\xa0", " ")
