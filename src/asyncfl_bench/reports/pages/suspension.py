"""Pages of AsyncFedED's figures 2, 3 and 5 to 14: accuracy in time under suspension, and what P does to it."""

from __future__ import annotations

import math

from ..table import mean_and_std
from . import looks, printed
from .comparing import axis_label, line_of
from .comparison import percent_curve
from .item import VERDICTS, Page, number
from .lines import LinePanel, draw_line_panels
from .panels import Panel, draw_panels
from .racing import TARGET_TEXT, limits_text, measured_table, orders_part, published_parts, words
from .reached import TIME, Reached, reached
from .selection import Series
from .statistics import paired
from .wording import neighbours_part

NOTHING = "No run has a test accuracy, so there is nothing to compare."


def curve_parts(page: Page) -> list[str]:
    """Figure 2: words, curves, numbers, neighbours, the published beside them."""
    found = reached(page)
    if not found:
        return [NOTHING]
    parts = ["## In words", words(page, found), "## Test accuracy in virtual time", *_curves(page, found)]
    parts += [
        "## Reached",
        f"{limits_text(found)} {TARGET_TEXT}",
        measured_table(page, "measured", found),
        *_neighbours(page, found),
    ]
    return [*parts, "## Orders", orders_part(page, found), *published_parts(page, found)]


def suspension_parts(page: Page) -> list[str]:
    """Figure 3 with what suspension costs, then the curves of every P (figures 5 to 14)."""
    found = reached(page)
    if not found:
        return [NOTHING]
    parts = ["## In words", words(page, found), "## Against the probability of suspension", _against_p(page, found)]
    parts += [f"{limits_text(found)} {TARGET_TEXT}", _cost(page, found)]
    for paper in dict.fromkeys(one.cell[0] for one in found):
        of_paper = [one for one in found if one.cell[0] == paper]
        name = f"measured_{paper.rpartition('/')[2]}"
        parts += [f"### Protocol {looks.protocol(paper)}", measured_table(page, name, of_paper)]
    parts += ["## Orders", orders_part(page, found), *published_parts(page, found)]
    return [*parts, "## Curves for every P (figures 5 to 14)", *_curves(page, found)]


def _curves(page: Page, found: list[Reached]) -> list[str]:
    """One figure per P with a panel per protocol; the published curves dotted in it, or in a figure of their own."""
    parts = []
    for p in dict.fromkeys(one.cell[1] for one in found):
        of_p = [one for one in found if one.cell[1] == p]
        real = {one.cell: printed.is_real(one, page) for one in of_p}
        panels, apart = [], []
        name = f"curves_p{p}".replace(".", "_")
        for one in of_p:
            theirs = printed.curves().get(printed.place_of(one.cell), {})
            dotted = [(line_of(series), curve) for series, curve in theirs.items()]
            if dotted and not real[one.cell]:
                apart.append(Panel(f"published, {looks.protocol(one.cell[0])}", [(line, [c]) for line, c in dotted]))
            lines = [
                (line_of(s), [_cut(percent_curve(r, TIME), one.limit) for r in runs]) for s, runs in one.runs.items()
            ]
            panels.append(Panel(looks.setting("paper", one.cell[0]), lines, dotted if real[one.cell] else []))
        figure = draw_panels(panels, axis_label(page, TIME), columns=3, held=True)
        also = " Dotted: the paper's curves, without its processes' start-up." if any(x.printed for x in panels) else ""
        alt = f"Test accuracy in virtual time, P = {p}: mean over seeds, band of one sample standard deviation.{also}"
        parts.append(page.folder.figure(name, figure, alt, vector=len(found) <= 3))
        if apart:
            figure = draw_panels(apart, "seconds", columns=3)
            alt = f"The paper's curves, P = {p}, on its own data: mean of its repeats, without its processes' start-up."
            parts.append(page.folder.figure(f"published_{name}", figure, alt))
    return parts


def _cut(curve, limit: float):
    x_p, y_p = curve
    return x_p[x_p <= limit], y_p[x_p <= limit]


def _neighbours(page: Page, found: list[Reached]) -> list[str]:
    return [
        neighbours_part(page, f"neighbours_{name}", [getattr(one, name) for one in found], difference)
        for name, difference in (("best", "points"), ("to_target", "virtual time"))
    ]


def _against_p(page: Page, found: list[Reached]) -> str:
    """Rows: protocols; left: best accuracy, right: time to 90 % of the own best."""
    panels = []
    for paper in dict.fromkeys(one.cell[0] for one in found):
        of_paper = [one for one in found if one.cell[0] == paper]
        for measure, label in (("best", "best test accuracy [%]"), ("to_share", "time to 90 % of the own best")):
            panel = LinePanel(looks.setting("paper", paper), label, [])
            for series in page.evidence.series:
                points = []
                for one in of_paper:
                    values = getattr(one, measure).final.get(series, {}).values()
                    mean, std = mean_and_std([value for value in values if not math.isnan(value)])
                    if not math.isnan(mean):
                        points.append((float(one.cell[1]), mean, std))
                if points:
                    panel.lines.append((line_of(series), points))
                if theirs := _published_line(page, series, of_paper, measure):
                    panel.printed.append((line_of(series), theirs))
            panels.append(panel)
    also = (
        " Dotted: the paper's at P = 0, 0.1, 0.5 and 0.9, times without its processes' start-up."
        if any(x.printed for x in panels)
        else ""
    )
    alt = f"Best accuracy (left) and time to 90 % of it (right) against P: mean, bar of one standard deviation.{also}"
    return page.folder.figure("against_p", draw_line_panels(panels, "P, probability of suspension"), alt, vector=True)


def _published_line(page: Page, series: Series, found: list[Reached], measure: str) -> list[tuple[float, float]]:
    startup = printed.startup_seconds()
    return [
        (float(one.cell[1]), getattr(theirs, measure) - (startup[one.cell[0]] if measure == "to_share" else 0))
        for one in found
        if printed.is_real(one, page)
        and (theirs := printed.figure3().get(printed.place_of(one.cell), {}).get(printed.bare(series)))
    ]


def _cost(page: Page, found: list[Reached]) -> str:
    """Best accuracy lost from the smallest to the largest P, and the published loss."""
    headers = ["protocol", "algorithm", "P", "lost [points]", "2 standard errors", "verdict", "published loss"]
    cells = []
    for paper in dict.fromkeys(one.cell[0] for one in found):
        of_paper = [one for one in found if one.cell[0] == paper]
        first, last = of_paper[0], of_paper[-1]
        if first is last:
            continue
        theirs = [printed.figure3().get(printed.place_of(one.cell), {}) for one in (first, last)]
        for series in page.evidence.series:
            pair = paired(*(one.best.final.get(series, {}) for one in (first, last)))
            key = printed.bare(series)
            known = all(key in of_cell for of_cell in theirs)
            lost = number(theirs[0][key].best - theirs[1][key].best, "+") if known else "-"
            line = [looks.protocol(paper), series.label, f"{first.cell[1]} to {last.cell[1]}"]
            cells.append([*line, number(pair.mean, "+"), number(pair.two_se), VERDICTS[pair.verdict], lost])
    if not cells:
        return ""
    return f"Best accuracy that suspension costs, seed against seed:\n\n{page.folder.table('cost', headers, cells, 3)}"
