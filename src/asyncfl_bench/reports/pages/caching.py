"""Parts of figure a.3: the same rule with a cache of full precision and with smaller ones."""

from __future__ import annotations

import math

from ..load import Run
from . import looks
from .comparison import percent_curve
from .drawing import Line
from .item import VERDICTS, Page, final_by_seed, mean_text, number
from .looks import Look
from .panels import Panel, draw_panels
from .selection import Series, cell_label
from .statistics import paired

PRECISION = "algorithm.cache.precision"
# colours of no algorithm: here a line is a precision
_LOOKS = {"fp32": Look("#000000", "o"), "int8": Look("#56B4E9", "X", "--"), "bf16": Look("#999933", "^", ":")}


def precision_parts(page: Page) -> list[str]:
    """A panel per rule with one line per precision, on every axis; bytes and differences to full precision."""
    parts = ["## In words", _words(page), "## Bytes and differences", _table(page)]
    for axis, text in looks.AXES.items():
        panels = []
        for cell in page.evidence.cells:
            for rule, of_precision in _rules(page.evidence.series).items():
                lines = [
                    (Line(precision, _LOOKS.get(precision, Look("#CC79A7", "D", "-."))), runs)
                    for precision, series in of_precision.items()
                    if (runs := [run for run in page.evidence.runs.get((series, cell), []) if len(run.curve(axis)[0])])
                ]
                if lines:
                    curves = [(line, [percent_curve(run, axis) for run in runs]) for line, runs in lines]
                    panels.append(Panel(f"{rule.label}; {cell_label(page.evidence.cell_keys, cell)}", curves))
        if panels:
            alt = f"Test accuracy against {text}, mean and one sample standard deviation over seeds."
            figure = draw_panels(panels, text)
            parts += [f"## Against {text}", page.folder.figure(f"curves_{axis}", figure, alt, vector=True)]
    return parts


def _rules(series: list[Series]) -> dict[Series, dict[str, Series]]:
    """The series without its precision -> precision -> the series."""
    found: dict[Series, dict[str, Series]] = {}
    for one in series:
        rest = Series(one.algorithm, tuple(pair for pair in one.variant if pair[0] != PRECISION))
        found.setdefault(rest, {})[one.of(PRECISION) or "fp32"] = one
    return found


def _table(page: Page) -> str:
    headers = [
        "rule",
        "cell",
        "cache",
        "final accuracy [%]",
        "fp32 minus this [points]",
        "2 standard errors",
        "verdict",
    ]
    headers += ["server bytes", "client bytes, all"]
    cells = []
    for cell in page.evidence.cells:
        for rule, of_precision in _rules(page.evidence.series).items():
            full = page.evidence.runs.get((of_precision["fp32"], cell), []) if "fp32" in of_precision else []
            for precision, series in of_precision.items():
                runs = page.evidence.runs.get((series, cell), [])
                mean, std, _ = page.final(series, cell)
                line = [rule.label, cell_label(page.evidence.cell_keys, cell), precision, mean_text(mean, std)]
                pair = paired(final_by_seed(full), final_by_seed(runs))
                if precision == "fp32" or math.isnan(pair.mean):
                    line += ["-", "-", "-"]
                else:
                    line += [number(pair.mean, "+"), number(pair.two_se), VERDICTS[pair.verdict]]
                cells.append([*line, *(state_bytes(runs, place) for place in ("server", "clients"))])
    return page.folder.table("precision", headers, cells, 3)


def _words(page: Page) -> str:
    lines = []
    for cell in page.evidence.cells:
        for rule, of_precision in _rules(page.evidence.series).items():
            for precision, series in of_precision.items():
                if precision == "fp32" or "fp32" not in of_precision:
                    continue
                runs = [page.evidence.runs.get((one, cell), []) for one in (of_precision["fp32"], series)]
                pair = paired(final_by_seed(runs[0]), final_by_seed(runs[1]))
                where = cell_label(page.evidence.cell_keys, cell)
                difference = number(pair.mean, "+")
                lines.append(
                    f"- {rule.label} ({where}): full precision minus {precision} is {difference} points "
                    f"({VERDICTS[pair.verdict]})."
                )
    return "\n".join(lines) or "No rule was run with two precisions, so there is no difference to tell."


def state_bytes(runs: list[Run], place: str) -> str:
    """Bytes kept between uploads at ``server`` or ``clients``, as the runs counted them; "-" where they did not."""
    values = {(run.summary.get("state_bytes") or {}).get(place) for run in runs}
    return " or ".join(sorted(str(value) for value in values if value is not None)) or "-"
