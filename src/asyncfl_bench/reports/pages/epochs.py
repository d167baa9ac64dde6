"""Page of AsyncFedED's figure 4: adaptive K against constant K, and the course that K takes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ...errors import BenchError
from ..load import Run
from ..table import mean_and_std
from . import looks
from .comparing import axis_label
from .comparison import percent_curve
from .drawing import Line
from .item import VERDICTS, Page, number
from .looks import Look
from .measures import held_at, unsteadiness
from .panels import Panel, draw_panels
from .racing import TARGET_TEXT, few_seeds, limits_text, measure_text, measured_table
from .reached import TIME, Reached, reached
from .scores import Scores
from .selection import Cell, Series, cell_label
from .statistics import paired

KAPPA, EPOCHS = "algorithm.kappa", "client.local_epochs"
ADAPTIVE = "adaptive"
_MARKERS = ("o", "s", "D", "v", "P", "X")
_COURSES = {"rule/mean_k": "mean K", "rule/gamma_mean": "γ", "rule/eta_g_mean": "η_g"}
_PARTS = (0.25, 0.5, 1.0)  # of the time limit


def epochs_parts(page: Page) -> list[str]:
    """Words, curves, the course of K, what was reached, adaptive K seed against seed with every constant one."""
    page = dataclasses.replace(page, evidence=_renamed(page))
    found = reached(page)
    if not found:
        return ["No run has a test accuracy, so there is nothing to compare."]
    parts = ["## In words", _words(found), "## Test accuracy in virtual time", _curves(page, found)]
    parts += ["## The course of K", *_course(page, found)]
    parts += ["## Reached", f"{limits_text(found)} {TARGET_TEXT}", measured_table(page, "measured", found)]
    return [*parts, _against_constant(page, found)]


def _renamed(page: Page):
    """The same runs with K as their only variant: a constant one, or ``adaptive`` whatever kappa a data set has.
    BenchError when one data set has several."""

    def name(series: Series) -> Series:
        kappa, epochs = series.of(KAPPA), series.of(EPOCHS) or "?"
        constant = kappa is not None and float(kappa) == 0
        return Series(series.algorithm, ((EPOCHS, epochs if constant else ADAPTIVE),))

    evidence = page.evidence
    settings: dict[tuple[Series, Cell], Series] = {}
    for series, cell in evidence.runs:
        other = settings.setdefault((name(series), cell), series)
        if other != series:
            where = cell_label(page.evidence.cell_keys, cell)
            raise BenchError(
                f"{page.item.sweep}: adaptive K with {KAPPA}={other.of(KAPPA)} and {series.of(KAPPA)}, {where}; a page "
                "is about one of them, so move the other's runs elsewhere"
            )
    return dataclasses.replace(
        evidence,
        runs={(name(series), cell): runs for (series, cell), runs in evidence.runs.items()},
        diverged={(name(series), cell): count for (series, cell), count in evidence.diverged.items()},
    )


def _line(series: Series, all_series: list[Series]) -> Line:
    """Constant K are numbers, so their colours follow one scale; the adaptive one is AsyncFedED's."""
    if series.of(EPOCHS) == ADAPTIVE:
        return Line("adaptive K", looks.look("asyncfeded"))
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    constant = [one for one in all_series if one.of(EPOCHS) != ADAPTIVE]
    place = constant.index(series)
    colour = to_hex(colormaps["viridis"](0.9 * place / max(1, len(constant) - 1)))
    return Line(looks.setting(EPOCHS, series.of(EPOCHS) or "?"), Look(colour, _MARKERS[place % len(_MARKERS)], "--"))


def _steadiness(one: Reached) -> Scores:
    final = {
        series: {run.seed: unsteadiness(*percent_curve(run, TIME), one.limit) for run in runs}
        for series, runs in one.runs.items()
    }
    return Scores(cell=one.cell, final=final, lower=True)


def _words(found: list[Reached]) -> str:
    measures = {
        "best test accuracy": [one.best for one in found],
        "time to 90 % of the own best": [one.to_share for one in found],
        "time to a common target": [one.to_target for one in found],
        "steadiness (change between evaluations after 90 %)": [_steadiness(one) for one in found],
    }
    lines = [*(measure_text(text, scores) for text, scores in measures.items()), *few_seeds(found)]
    lines.append(
        "- The paper says that adaptive K converges faster and more smoothly than constant K. Its runs with constant K "
        "were not published, so no number stands beside these."
    )
    return "\n".join(lines)


def _curves(page: Page, found: list[Reached]) -> str:
    panels = [_panel(page, one, lambda run: percent_curve(run, TIME)) for one in found]
    alt = "Test accuracy in virtual time: mean over seeds, band of one sample standard deviation."
    figure = draw_panels(panels, axis_label(page, TIME), columns=3, held=True)
    return page.folder.figure("curves", figure, alt, vector=True)


def _panel(page: Page, one: Reached, curve, only: str | None = None) -> Panel:
    lines = []
    for series, runs in one.runs.items():
        if only in (None, series.of(EPOCHS)) and (curves := [_cut(curve(run), one.limit) for run in runs]):
            lines.append((_line(series, page.evidence.series), curves))
    return Panel(cell_label(page.evidence.cell_keys, one.cell), lines)


def _cut(curve, limit: float):
    x_p, y_p = curve
    return x_p[x_p <= limit], y_p[x_p <= limit]


def _course(page: Page, found: list[Reached]) -> list[str]:
    """K of the adaptive runs as a figure, with gamma and eta_g as a table at parts of the limit."""
    with_k = [one for one in found if any(_of(run, "rule/mean_k") for run in _adaptive(one))]
    if not with_k:
        return ["No adaptive run tells its K."]
    panels = [_panel(page, one, lambda run: run.column("rule/mean_k", TIME), ADAPTIVE) for one in with_k]
    figure = draw_panels(panels, axis_label(page, TIME), columns=3, held=True, y_label="K, mean over clients")
    alt = "The K that clients are asked for, mean over clients and seeds, band of one sample standard deviation."
    headers = ["cell", *(f"{text} at {part:g} of the limit" for part in _PARTS for text in _COURSES.values())]
    cells = []
    for one in with_k:
        line = [cell_label(page.evidence.cell_keys, one.cell)]
        for part in _PARTS:
            for metric in _COURSES:
                values = [held_at(*run.column(metric, TIME), part * one.limit) for run in _adaptive(one)]
                mean = mean_and_std([value for value in values if not math.isnan(value)])[0]
                line.append("-" if math.isnan(mean) else f"{mean:.3g}")
        cells.append(line)
    text = page.folder.table("course", headers, cells)
    note = "γ and η_g are means over the server iterations since the evaluation before."
    return [page.folder.figure("k", figure, alt, vector=True), f"{text}\n{note}"]


def _adaptive(one: Reached) -> list[Run]:
    return [run for series, runs in one.runs.items() if series.of(EPOCHS) == ADAPTIVE for run in runs]


def _of(run: Run, metric: str) -> bool:
    return bool(np.size(run.column(metric, TIME)[0]))


def _against_constant(page: Page, found: list[Reached]) -> str:
    headers = ["cell", "constant K", "best: adaptive minus it [points]", "verdict", "time to target: adaptive minus it"]
    headers += ["verdict"]
    cells = []
    for one in found:
        adaptive = next((series for series in one.runs if series.of(EPOCHS) == ADAPTIVE), None)
        for series in one.runs:
            if adaptive is None or series == adaptive:
                continue
            line = [cell_label(page.evidence.cell_keys, one.cell), series.of(EPOCHS) or "?"]
            for scores in (one.best, one.to_target):
                pair = paired(scores.final[adaptive], scores.final[series])
                error = "" if math.isnan(pair.two_se) else f" ± {number(pair.two_se)}"
                line += [number(pair.mean, "+") + error, VERDICTS[pair.verdict]]
            cells.append(line)
    if not cells:
        return ""
    text = page.folder.table("against_constant", headers, cells, 2)
    return f"Adaptive K and each constant one, seed against seed, ± two standard errors:\n\n{text}"
