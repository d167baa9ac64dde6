"""What a page is to show: a table or figure of a paper as data (see ``papers/``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from ..analysis import names
from ..analysis.published import PublishedNumbers
from .write import Part

if TYPE_CHECKING:
    from .page import Page

AXES = tuple(names.AXES)


@dataclass(frozen=True)
class Measure:
    """One number a run.

    kind   ``equal``: the metric at the largest budget of ``axis`` that all runs of a cell have spent · ``final`` ·
           ``late``: mean of the last ten evaluations · ``best`` · ``time_to_90``: when it first has 90 % of its own
           best; ``time_to_target``: of the lowest mean best of its cell; ``time_to_level``: the page's level of its
           data set · ``unsteadiness`` · ``uploads`` that arrived. The last six count within the page's limit of time. ·
           any other: a measure of claims, or a column of ``load_runs``
    """

    kind: str
    axis: str = ""

    @property
    def name(self) -> str:
        return self.axis if self.kind == "equal" else self.kind

    @property
    def is_of_metric(self) -> bool:
        """Return True if the measure is a value of the page's metric."""
        return self.kind in ("equal", "final", "late", "best", "unsteadiness")

    def label(self, page: Page, short: bool = False) -> str:
        """``test accuracy at equal uploads [%]``; short: as a word in a column, ``equal uploads``."""
        name, _, unit = names.metric_label(page.metric).partition(" [")
        clock = page.axis_label("virtual_time").removeprefix("virtual time")
        if self.kind.endswith(".virtual_time"):
            return page.axis_label("virtual_time")
        known = {"time_to_90": f"time to 90 % of own best{clock}", "time_to_target": f"time to common target{clock}"}
        known["time_to_level"] = f"time to target{clock}"
        known["late"] = f"mean of the last ten, {name}" + (f" [{unit}" if unit else "")
        if self.kind == "equal":
            known["equal"] = f"{'' if short else f'{name} at '}equal {names.AXES[self.axis]}"
            return known["equal"] + (f" [{unit}" if unit and not short else "")
        own = f"{self.kind} {name}" + (f" [{unit}" if unit else "")
        return known.get(self.kind, own if self.is_of_metric else self.kind.rpartition(".")[2].replace("_", " "))


Block = Callable[["Page"], list[Part]]  # a field ``measures``: what it ranks by


@dataclass(frozen=True)
class PageSpec:
    """One table or figure of a paper as a page.

    sweep      its name on the command line: ``ace/figure2``
    shows      what the paper's item shows, in one sentence
    cells      settings that make the panels and columns
    blocks     what is shown, in this order
    relabel    names a series instead, from a run's settings; else it is the algorithm with its variant
    problems   ``data set with model`` that are the paper's own: anything else is a stand-in, and so are data whose
               source a run calls by a name of ``stand_ins``
    tuned      settings that the profile ``fair`` chooses on validation samples, or that of each algorithm among them
               of which the sweep gives it several values; fair: what that profile is
    searched   the sweep has the values that are chosen from itself, whatever the profile; fair says what it is
    order      algorithms, worst first, as ``order_source`` has them
    published  numbers and curves that belong beside ours
    limit      of virtual time, within which the best and times count
    levels     accuracy [%] that is timed, by data set
    shares_runs_with   other sweeps that list some of the same runs
    readings   those of the cells' keys whose values read the paper differently: claims are judged for each
    """

    sweep: str
    title: str
    shows: str
    cells: tuple[str, ...]
    blocks: tuple[Block, ...]
    relabel: Callable[[pd.Series], str] | None = None
    problems: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    tuned: tuple[str, ...] = ("algorithm.c",)
    searched: bool = False
    fair: str = ""
    order: tuple[str, ...] = ()
    order_source: str = ""
    published: PublishedNumbers | None = None
    limit: float = math.inf
    levels: Mapping[str, float] = field(default_factory=dict)
    shares_runs_with: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()

    @property
    def paper(self) -> str:
        return self.sweep.partition("/")[0]
