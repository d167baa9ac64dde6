"""What AsyncFedED's authors measured, ready to stand beside our series: read from ``reports/published/``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from ..load import Run
from .item import Page
from .looks import WEIGHT
from .published import published
from .reached import Reached
from .selection import Cell, Series

SPEECHES = "shakespeare-speeches.jsonl"  # an edition of the user's, not LEAF's data
# whose data and model the published numbers were measured on, by protocol
PROBLEMS = {
    "asyncfeded/synthetic": ("synthetic_1_1 with mlp",),
    "asyncfeded/femnist": ("femnist with cnn_one_pool",),
    "asyncfeded/shakespeare": ("shakespeare_sized with lstm",),
}


@dataclass(frozen=True)
class Printed:
    """One method in one cell of figure 3: percent, seconds with the start-up in them, and uploads."""

    best: float
    best_std: float
    to_share: float
    to_share_std: float
    uploads: float


def bare(series: Series) -> Series:
    """The series as the published numbers know it."""
    return Series(series.algorithm, tuple(pair for pair in series.variant if pair[0] == WEIGHT))


@cache
def figure3() -> dict[tuple[str, float], dict[Series, Printed]]:
    """(protocol, P) -> method -> numbers."""
    found: dict[tuple[str, float], dict[Series, Printed]] = {}
    for row in published("asyncfeded_figure3"):
        share = "seconds_to_90_percent_of_best"
        keys = ("best_accuracy_percent", "best_accuracy_percent_std", share, f"{share}_std", "uploads")
        found.setdefault(_place(row), {})[_series(row)] = Printed(*(float(row[key]) for key in keys))
    return found


@cache
def curves() -> dict[tuple[str, float], dict[Series, tuple[np.ndarray, np.ndarray]]]:
    """(protocol, P) -> method -> seconds since the clients began to work and mean accuracy in percent, every 10 s."""
    points: dict[tuple[str, float], dict[Series, list[tuple[float, float]]]] = {}
    for row in published("asyncfeded_figure2"):
        of_method = points.setdefault(_place(row), {}).setdefault(_series(row), [])
        seconds = float(row["seconds"]) - startup_seconds()[row["paper"]]
        if seconds >= 0:
            of_method.append((seconds, float(row["accuracy_percent"])))
    return {
        place: {series: (np.array(of)[:, 0], np.array(of)[:, 1]) for series, of in methods.items()}
        for place, methods in points.items()
    }


@cache
def startup_seconds() -> dict[str, float]:
    """Protocol -> how much longer a client's first cycle took than its others: the start of its process."""
    return {row["paper"]: float(row["startup_seconds"]) for row in published("asyncfeded_startup")}


def place_of(cell: Cell) -> tuple[str, float]:
    """(protocol, P) of a cell of figures 2 and 3."""
    return cell[0], float(cell[1])


def is_real(one: Reached, page: Page) -> bool:
    """Whether the cell's runs are on the paper's own kind of data and model, at its size and with its settings."""
    found = {f"{run.choices.get('dataset')} with {run.choices.get('model')}" for run in _all(one)}
    as_printed = page.combination.profile == page.combination.scale == "paper" and not page.changed
    as_printed = as_printed and not any(run.summary.get("data_source") == SPEECHES for run in _all(one))
    return as_printed and len(found) == 1 and found <= set(PROBLEMS.get(one.cell[0], ()))


def _all(one: Reached) -> list[Run]:
    return [run for of in one.runs.values() for run in of]


def _place(row: dict[str, str]) -> tuple[str, float]:
    return row["paper"], float(row["availability.probability"])


def _series(row: dict[str, str]) -> Series:
    weight = row[WEIGHT]
    return Series(row["algorithm"], ((WEIGHT, weight),) if weight else ())
