"""What a page is: the sweep it reads, what it shows, and the function that writes its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..load import Run
from ..table import mean_and_std
from .folder import PageFolder
from .frame import Combination
from .selection import STEP, Cell, Series
from .tuning import Evidence

VERDICTS = {"larger": "beyond noise", "noise": "noise", "unknown": "unknown: fewer than two seeds"}


@dataclass(frozen=True)
class Item:
    """One table or figure of a paper.

    sweep      its name on the command line: ``ace/figure2``
    title      heading of the page
    shows      what the paper's item shows, and whether numbers are published for it: one paragraph
    cell_keys  settings that make the columns
    build      writes figures and tables into the page's folder and returns Markdown parts
    problems   ``data set with model`` that are the paper's own for this item; anything else is a stand-in
    lenders    other sweeps whose runs count too where they are runs of this one
    tuned      the setting that the profile `fair` chooses on validation samples
    fair       what that profile is for this paper: one sentence
    """

    sweep: str
    title: str
    shows: str
    cell_keys: tuple[str, ...]
    build: Callable[[Page], list[str]]
    problems: tuple[str, ...] = ("cifar10 with resnet18",)
    lenders: tuple[str, ...] = ()
    tuned: str = STEP
    fair: str = (
        "one trace of arrivals and one budget of uploads for all, the server step of each algorithm tuned on "
        "validation samples."
    )


@dataclass
class Page:
    """All a build function needs."""

    item: Item
    combination: Combination
    evidence: Evidence
    folder: PageFolder
    changed: dict[str, str] = field(default_factory=dict)  # settings that are neither the sweep's nor the paper's

    def final(self, series: Series, cell: Cell) -> tuple[float, float, int]:
        """Mean and sample deviation of the final test accuracy in percent, and the number of seeds."""
        values = list(final_by_seed(self.evidence.runs.get((series, cell), [])).values())
        return (*mean_and_std(values), len(values))


def final_by_seed(runs: list[Run]) -> dict[object, float]:
    """seed -> final test accuracy in percent, of the runs that have one."""
    values = {run.seed: run.last("test/accuracy") for run in runs}
    return {seed: 100 * value for seed, value in values.items() if value is not None}


def mean_text(mean: float, std: float, decimals: int = 2) -> str:
    """``71.35 ± 1.20``; only the mean for one seed; ``-`` for none."""
    if mean != mean:
        return "-"
    return f"{mean:.{decimals}f}" + ("" if std != std else f" ± {std:.{decimals}f}")


def number(value: float, sign: str = "") -> str:
    """Two decimals, "-" for NaN, never a negative zero; ``sign="+"`` writes the plus."""
    return "-" if value != value else f"{round(value, 2) + 0.0:{sign}.2f}"
