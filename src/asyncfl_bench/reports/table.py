"""The results table: one row per algorithm and setting, mean and sample standard deviation over seeds.

Legend: s seeds of one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from .grouping import differing_between_algorithms, differing_keys
from .load import Run


@dataclass(frozen=True)
class Quantity:
    """One measured column: where it stands in summary.json, and how it is shown."""

    name: str
    header: str
    place: tuple[str, ...]
    decimals: int
    scale: float = 1.0

    def of(self, run: Run) -> float:
        node: Any = run.summary
        for key in self.place:
            node = node.get(key) if isinstance(node, dict) else None
        return math.nan if node is None else self.scale * float(node)


QUANTITIES = (
    Quantity("final_accuracy_percent", "final accuracy [%]", ("final", "test/accuracy"), 2, 100.0),
    Quantity("best_accuracy_percent", "best accuracy [%]", ("best", "test/accuracy"), 2, 100.0),
    Quantity("server_iterations", "server iterations", ("used", "server_iterations"), 0),
    Quantity("uploads", "uploads", ("used", "uploads"), 0),
    Quantity("virtual_time", "virtual time", ("used", "virtual_time"), 1),
    Quantity("wall_seconds", "wall time [s]", ("wall_seconds",), 1),
)


@dataclass
class Row:
    """Runs that differ in their seed only: those that ended well, and how many diverged."""

    algorithm: str
    values: tuple[str, ...]
    runs: list[Run] = field(default_factory=list)
    diverged: int = 0

    def label(self, keys: list[str]) -> str:
        """For a legend: ``ace, mean=5.0``; the last word of a key does unless two keys share it."""
        last = [key.rpartition(".")[2] for key in keys]
        words = last if len(set(last)) == len(last) else keys
        own = [f"{w}={v}" for w, v in zip(words, self.values, strict=True) if v != "-"]
        return ", ".join([self.algorithm, *own])


@dataclass
class Report:
    """keys: the extra columns; left_out: runs that no row averages, with the reason; unshown: see ``grouping``."""

    keys: list[str]
    rows: list[Row]
    left_out: list[tuple[Run, str]]
    unshown: list[str]


def make_report(runs: list[Run], by: list[str]) -> Report:
    """Sorts runs into rows, the best final accuracy first. Raises ConfigError when a key of ``by`` is unknown."""
    measured = [run for run in runs if run.status in ("ok", "diverged")]
    keys = differing_keys(measured, by) if measured else []
    rows: dict[tuple, Row] = {}
    left_out = [(run, run.status) for run in runs if run.status not in ("ok", "diverged")]
    seen: dict[tuple, Run] = {}
    for run in reversed(measured):  # of two runs of one seed the last by name counts: one result, not two
        place = (run.algorithm, tuple(run.value(key) for key in keys))
        twin = seen.setdefault((*place, run.seed), run)
        if twin is not run and run.seed is not None:
            left_out.append((run, "repeated"))
            run.note = f"same settings and seed as {twin.path}"
            continue
        row = rows.setdefault(place, Row(*place))
        if run.status == "ok":
            row.runs.insert(0, run)
        else:
            row.diverged += 1
            left_out.append((run, "diverged"))

    def rank(row: Row) -> tuple:
        accuracy = mean_and_std([QUANTITIES[0].of(run) for run in row.runs])[0]
        return (math.isnan(accuracy), -accuracy if not math.isnan(accuracy) else 0.0, row.algorithm, row.values)

    left_out.sort(key=lambda pair: (pair[1], pair[0].path))
    unshown = differing_between_algorithms(measured, keys) if measured else []
    return Report(keys, sorted(rows.values(), key=rank), left_out, unshown)


def mean_and_std(values_s: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (divided by s - 1); NaN where there are too few values."""
    mean = float(np.mean(values_s)) if values_s else math.nan
    return mean, float(np.std(values_s, ddof=1)) if len(values_s) > 1 else math.nan


def numeric_table(report: Report) -> pd.DataFrame:
    """For machines: ``<quantity>_mean`` and ``<quantity>_std`` as numbers, empty where there is none."""
    lines = []
    for row in report.rows:
        line: dict[str, object] = {"algorithm": row.algorithm, **dict(zip(report.keys, row.values, strict=True))}
        line |= {"runs": len(row.runs), "diverged": row.diverged}
        line["seeds"] = " ".join(str(run.seed) for run in row.runs)
        for quantity in QUANTITIES:
            mean, std = mean_and_std([quantity.of(run) for run in row.runs])
            line |= {f"{quantity.name}_mean": mean, f"{quantity.name}_std": std}
        lines.append(line)
    return pd.DataFrame(lines)


def text_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """For people: headers and cells, ``mean ± std``, only the mean for one seed, "diverged" where no run survived."""
    any_diverged = any(row.diverged for row in report.rows)
    headers = ["algorithm", *report.keys, *(quantity.header for quantity in QUANTITIES), "runs"]
    cells = []
    for row in report.rows:
        line = [row.algorithm, *row.values]
        for quantity in QUANTITIES:
            mean, std = mean_and_std([quantity.of(run) for run in row.runs])
            line.append(_cell(mean, std, quantity.decimals))
        if not row.runs:
            line[1 + len(report.keys)] = "diverged"
        cells.append([*line, str(len(row.runs)), *([str(row.diverged)] if any_diverged else [])])
    return headers + (["diverged"] if any_diverged else []), cells


def _cell(mean: float, std: float, decimals: int) -> str:
    if math.isnan(mean):
        return "-"
    spread = "" if math.isnan(std) else f" ± {std:.{decimals}f}"
    return f"{mean:.{decimals}f}{spread}"
