"""The specification of a page, which is a table or figure of a paper, and the data and models of runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from ...analysis import names
from ...analysis.published import PublishedNumbers
from ...config.choices import choice_file, options
from ...config.classes import defaults_of_class
from ...data.datasets import KNOWN
from ...files import read_yaml
from .write import Part

AXES = tuple(names.AXES)
_WIDTHS = ("model.width", "model.hidden")


@dataclass(frozen=True)
class Measure:
    """One number a run.

    kind   one of ``analysis.measures.MEASURES``, or a column of ``load_runs``. ``late`` and ``accuracy`` are at a
           budget: that of a pair of methods is the largest that both reached, in tables the largest that all runs of
           a cell reached. ``best`` and times count within the page's limit of time.
    axis   of the budget, or of a time; by default virtual time for a time, else server iterations
    """

    kind: str
    axis: str = ""

    @property
    def budget_axis(self) -> str:
        return self.axis or ("virtual_time" if self.kind.startswith("time") else "iteration")

    @property
    def name(self) -> str:
        """``late`` along server iterations, ``late_uploads`` along uploads."""
        return self.kind if self.axis in ("", "iteration") else f"{self.kind}_{self.axis}"

    @property
    def is_of_metric(self) -> bool:
        """Return True if the measure is a value of the page's metric."""
        return self.kind in ("accuracy", "final", "late", "best", "unsteadiness")


LATE, FINAL, BEST, UPLOADS = Measure("late", "iteration"), Measure("final"), Measure("best"), Measure("uploads")
TO_90, TO_TARGET, TO_LEVEL = Measure("time_to_90"), Measure("time_to_target"), Measure("time_to_level")


def late_measures(*axes: str) -> tuple[Measure, ...]:
    """Return ``late`` along each of these axes."""
    return tuple(Measure("late", axis) for axis in axes)


# called with the ``Page``, which knows its specification
Block = Callable[[Any], list[Part]]


@dataclass(frozen=True)
class PageSpec:
    """One table or figure of a paper as a page.

    sweep      its name on the command line: ``ace/figure2``
    shows      what the paper's item shows, in one sentence
    cells      settings that make the panels and columns
    blocks     further figures and CSV files, in this order
    primary    the measure by which methods are compared on the page; None: they are not compared, and the first table
               of the blocks is shown
    rankings   other measures by which all pairs are compared, in a CSV file
    relabel    names a series instead, from a run's settings; else it is the algorithm with its variant
    problems   ``data set with model`` that are the paper's own: anything else is a stand-in, and so are data whose
               source a run calls by a name of ``stand_ins``
    tuned      settings that the profile ``fair`` chooses on validation samples; of several, an algorithm is tuned in
               those to which the sweep gives several values; fair: what that profile is
    searched   the sweep has the values that are chosen from itself, whatever the profile; fair says what it is
    order      algorithms, worst first, as the paper has them
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
    primary: Measure | None = LATE
    rankings: tuple[Measure, ...] = ()
    relabel: Callable[[pd.Series], str] | None = None
    problems: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    tuned: tuple[str, ...] = ("algorithm.c",)
    searched: bool = False
    fair: str = ""
    order: tuple[str, ...] = ()
    published: PublishedNumbers | None = None
    limit: float = math.inf
    levels: Mapping[str, float] = field(default_factory=dict)
    shares_runs_with: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()

    @property
    def paper(self) -> str:
        return self.sweep.partition("/")[0]

    def at_equal_uploads(self) -> PageSpec:
        """Return the page of runs that end after the same uploads: they have no common number of server iterations."""
        if self.primary != LATE:
            return self
        by_uploads = Measure("late", "uploads")
        others = tuple(LATE if measure == by_uploads else measure for measure in self.rankings)
        curves = [block for block in self.blocks if getattr(block, "axis", "") == "uploads"]
        blocks = (*curves, *(block for block in self.blocks if block not in curves))
        return replace(self, primary=by_uploads, rankings=others, blocks=blocks)


def problems(runs: pd.DataFrame) -> set[str]:
    """Return ``data set with model`` of every run, with the features that the model reads, if it does not read the
    data.

    A network that is narrower than its choice is another model: ``cifar10 with resnet18 of width 4``.
    """
    table = runs.reindex(columns=["dataset", "model", "dataset.features", *_WIDTHS])
    table[[*_WIDTHS]] = table[[*_WIDTHS]].apply(pd.to_numeric, errors="coerce")
    return {
        f"{data} with {_name_model(model, widths)}" + ("" if pd.isna(read) else f" on features of {read}")
        for data, model, read, *widths in table.drop_duplicates().itertuples(index=False)
    }


def _name_model(model: str, widths: list[float]) -> str:
    """Return the model, with its width if that is less than the one of its choice."""
    if pd.isna(widths).all() or model not in options("model"):
        return model
    listed = read_yaml(choice_file("model", model))
    own = defaults_of_class("model", listed["_target_"]) | listed
    for key, width in zip(_WIDTHS, widths, strict=True):
        whole = own.get(key.removeprefix("model."))
        if isinstance(whole, int) and width < whole:
            return f"{model} of width {width:g}"
    return model


def partial_image_sets(runs: pd.DataFrame) -> list[str]:
    """Return the image sets of which not all images were used.

    The file has fewer, a setting asks for fewer, or some training images are held back.
    """
    said = []
    for (name, known), split in itertools.product(KNOWN.items(), ("train", "test")):
        whole, counted = getattr(known, split), f"summary.task.{split}_samples"
        used = pd.to_numeric(runs[counted][runs["dataset"] == name]) if counted in runs else runs.index[:0]
        if used.min() < whole:
            span = " to ".join(dict.fromkeys(f"{count:.0f}" for count in (used.min(), used.max())))
            said.append(f"{span} of {name}'s {whole} {split}{'ing' * (split == 'train')} images")
    return said
