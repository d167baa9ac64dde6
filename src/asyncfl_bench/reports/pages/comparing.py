"""Parts of a page that compares algorithms on all three axes: curves, tables, and what they say in words."""

from __future__ import annotations

import math
from collections import Counter

from ..table import mean_and_std
from . import looks
from .comparison import FRACTIONS, Standing, agreement, percent_curve, standings
from .drawing import Line
from .item import Page, mean_text, number
from .panels import Panel, draw_panels
from .scores import agreement_between
from .selection import Series, cell_label
from .wording import compares, leaders_text, neighbours_part, noise_text, ranking_text, spread_text

ACE_ORDER = ("asgd", "delay_adaptive_asgd", "fedbuff", "ca2fl", "aced", "ace")  # worst first, as the paper finds them
_WIDE = 6  # more cells than this become rows
_ORDER_TEXT = " < ".join(looks.name(algorithm) for algorithm in ACE_ORDER)


def comparison_parts(page: Page) -> list[str]:
    """Words, then per axis: figure, accuracy at the common budget, neighbours against noise, ranking along the way."""
    by_axis = {axis: found for axis in looks.AXES if (found := standings(page.evidence, axis))}
    if not by_axis:
        return ["No run has a test accuracy, so there is nothing to compare."]
    parts = ["## In words", *in_words(by_axis)]
    for axis, found in by_axis.items():
        parts += [f"## At equal {looks.AXES[axis]}", _curves(page, axis, found), accuracies(page, axis, found)]
        parts += [neighbours_part(page, f"neighbours_{axis}", found, "points"), _along(page, axis, found)]
    return parts


def in_words(by_axis: dict[str, list[Standing]]) -> list[str]:
    lines = []
    for axis, found in by_axis.items():
        if not compares(found):
            lines.append(f"- **At equal {looks.AXES[axis]}** {leaders_text(found)}.")
            continue
        taus = [agreement(one.means(), ACE_ORDER) for one in found]
        coarse, total = sum(one.coarse(s) for one in found for s in one.runs), sum(len(one.runs) for one in found)
        rough = f" {coarse} of {total} accuracies are mostly interpolated (~)." if coarse else ""
        lines.append(
            f"- **At equal {looks.AXES[axis]}** {leaders_text(found)}. {_tau_text(taus)} {noise_text(found)} "
            f"{_settled(found)}{rough}"
        )
    axes = list(by_axis)
    between = []
    for i, first in enumerate(axes):
        for second in axes[i + 1 :]:
            pairs = zip(by_axis[first], by_axis[second], strict=True)
            taus = [agreement_between(a.means(), b.means()) for a, b in pairs]
            if known := [tau for tau in taus if not math.isnan(tau)]:
                same = sum(a.ranking == b.ranking for a, b in zip(by_axis[first], by_axis[second], strict=True))
                verdict = "the same ranking" if same == len(taus) else "another ranking"
                between.append(
                    f"- **{looks.AXES[first].capitalize()} or {looks.AXES[second]}** give {verdict}: it is the same in "
                    f"{same} of {len(taus)} cells, Kendall tau between the two {spread_text(known)}."
                )
    ordered = any(not math.isnan(agreement(one.means(), ACE_ORDER)) for found in by_axis.values() for one in found)
    order = f"The paper's order is {_ORDER_TEXT}; it is compared over the algorithms present."
    return ["\n".join(lines), order if ordered else "", "\n".join(between)]


def _tau_text(taus: list[float]) -> str:
    known = [tau for tau in taus if not math.isnan(tau)]
    return (
        f"Kendall tau with the paper's order: {spread_text(known)}."
        if known
        else "There is no order of the paper to compare with."
    )


def _settled(found: list[Standing]) -> str:
    exact = Counter(one.settled(beyond_noise=False) for one in found)
    real = Counter(one.settled(beyond_noise=True) for one in found)

    def listed(counts: Counter) -> str:
        known = [f"{top}/{bottom}" if bottom > 1 else "1" for top, bottom in FRACTIONS]
        parts = [part for part in known if part in counts]
        named = {part: f"{part} of the budget on" for part in parts} | {"1": "the end only"}
        return ", ".join(f"{named[part]} ({counts[part]})" for part in parts)

    return (
        f"The ranking is final, in so many cells, from {listed(exact)}; pairs that differ beyond noise stand as they "
        f"end from {listed(real)}."
    )


def axis_label(page: Page, axis: str) -> str:
    """``virtual time [seconds]`` where all runs have one unit."""
    units = {str(run.settings.get("delay.unit", "")) for runs in page.evidence.runs.values() for run in runs}
    unit = units.pop() if len(units) == 1 else ""
    return f"{looks.AXES[axis]} [{unit}]" if axis == "virtual_time" and unit else looks.AXES[axis]


def line_of(series: Series) -> Line:
    return Line(series.label, series.look)


def _curves(page: Page, axis: str, found: list[Standing]) -> str:
    panels = [
        Panel(
            cell_label(page.evidence.cell_keys, one.cell),
            [(line_of(series), [percent_curve(run, axis) for run in runs]) for series, runs in one.runs.items()],
        )
        for one in found
    ]
    seeds = {len(runs) for one in found for runs in one.runs.values()}
    count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    alt = f"Test accuracy against {looks.AXES[axis]}: mean over {count} seeds, band of one sample standard deviation."
    return page.folder.figure(f"curves_{axis}", draw_panels(panels, axis_label(page, axis)), alt, vector=True)


def accuracies(page: Page, axis: str, found: list[Standing]) -> str:
    keys = page.evidence.cell_keys
    series_all = [series for series in page.evidence.series if any(series in one.runs for one in found)]
    headers = ["algorithm", *(cell_label(keys, one.cell) for one in found)]
    most = max(len(runs) for one in found for runs in one.runs.values())
    cells, data = [], []
    for series in series_all:
        line = [series.label]
        for one in found:
            values = list(one.final.get(series, {}).values())
            mean, std = mean_and_std(values)
            notes = ["~"] if series in one.runs and one.coarse(series) else []
            notes += ["(best)"] if series in one.leaders else []
            few = 0 < len(values) < most
            notes += [f"({len(values)} of {most} seeds)"] if few else []
            line.append(" ".join([mean_text(mean, std), *notes]))
            data.append(
                {"axis": axis, "algorithm": series.algorithm, **dict(series.variant)}
                | dict(zip(keys, one.cell, strict=True))
                | {"budget": one.budget, "mean_percent": mean, "std_percent": std, "seeds": len(values)}
            )
        cells.append(line)
    cells.append(["budget", *(f"{one.budget:.6g}" for one in found)])
    cells.append(["ended first by", *(one.limited_by_text for one in found)])
    taus = [agreement(one.means(), ACE_ORDER) for one in found]
    if not all(map(math.isnan, taus)):
        cells.append(["Kendall tau, paper", *map(number, taus)])
    if len(found) > _WIDE:  # many cells read better downwards
        headers, *cells = [list(line) for line in zip(headers, *cells, strict=True)]
        headers[0] = "cell"
    text = page.folder.table(f"accuracy_{axis}", headers, cells, 1, data)
    coarse = any(one.coarse(series) for one in found for series in one.runs)
    note = "\n~: fewer than two evaluations up to this budget, so mostly interpolated.\n" if coarse else ""
    title = f"Test accuracy [%] at the largest budget of {looks.AXES[axis]} that all algorithms of a cell have spent"
    return f"{title}:\n\n{text}{note}"


def _along(page: Page, axis: str, found: list[Standing]) -> str:
    headers = ["cell", "budget", looks.AXES[axis], "ranking, best first", "tau with the end"]
    cells = []
    for one in found:
        for part, budget in one.budgets:
            means = one.means(budget)
            tau = agreement_between(means, one.means())
            label = cell_label(page.evidence.cell_keys, one.cell)
            cells.append([label, part, f"{budget:.6g}", ranking_text(means), number(tau)])
    if len({len(one.runs) for one in found}) == 1 and len(found[0].runs) == 1:
        return ""
    text = page.folder.table(f"ranking_{axis}", headers, cells, 4)
    return f"The ranking along the way (budgets before every first evaluation are left out):\n\n{text}"
