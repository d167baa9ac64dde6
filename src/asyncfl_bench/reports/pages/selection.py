"""Which runs a page is about: those of one folder that fit the sweep, sorted into cells, and what is not there.

A **cell** is one column of the experiment (``heterogeneity.alpha`` and ``delay`` in figure 2), a **series** one row: an
algorithm, with a variant (``tau_algo = 10``) where the sweep lists several.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import BenchError
from ..grouping import differing_keys
from ..load import Run
from . import looks

Cell = tuple[str, ...]
Grid = dict[str, list[str]]
STEP = "algorithm.c"  # the factor of the server step: tuned if several are run, never a row of its own
_OF_SERIES = ("algorithm.", "client.")  # settings that make rows of their own; others are cells


@dataclass(frozen=True)
class Series:
    """One row or line. variant: (key, value) pairs that tell this one from others of the same algorithm."""

    algorithm: str
    variant: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        others = (looks.setting(key, value) for key, value in self.variant if key != looks.WEIGHT)
        return ", ".join([looks.name(self.algorithm, self.of(looks.WEIGHT)), *others])

    @property
    def look(self) -> looks.Look:
        return looks.look(self.algorithm, self.of(looks.WEIGHT))

    def of(self, key: str) -> str | None:
        return dict(self.variant).get(key)


@dataclass
class Coverage:
    """Expected runs and what became of them.

    expected   runs the sweep asks for; None when its file is not at hand
    missing    overrides of those without a run directory, the seeds of one setting together, and their number
    more_seeds runs with seeds or tuned values that the sweep does not list; they count like the others
    left_out   runs no number of the page uses, with the reason
    """

    found: int
    ok: int
    expected: int | None = None
    missing: list[tuple[str, int]] = field(default_factory=list)
    more_seeds: int = 0
    left_out: list[tuple[Run, str]] = field(default_factory=list)


@dataclass
class Selection:
    """runs: (series, cell, value of ``tuned``) -> its runs that ended well, one per seed; diverged: how many more did
    not."""

    cell_keys: tuple[str, ...]
    tuned: str
    runs: dict[tuple[Series, Cell, str], list[Run]]
    diverged: dict[tuple[Series, Cell, str], int]
    coverage: Coverage

    @property
    def all_runs(self) -> list[Run]:
        return [run for runs in self.runs.values() for run in runs]


def select(
    runs: list[Run], cell_keys: tuple[str, ...], grids: list[Grid] | None, folder: Path, tuned: str = STEP
) -> Selection:
    """Sorts ``runs`` into series and cells.

    grids   the sweep's, {key: values} each; None: unknown, then every run counts and none is missing
    tuned   the setting of which every series and cell is to keep one value, see ``tuning.py``
    Raises BenchError when runs of one series and cell differ in more than their seed and tuned value: no mean may mix
    them, and no choice is to be made among them.
    """
    wanted = {} if grids is None else _jobs(grids)
    left_out: list[tuple[Run, str]] = []
    measured: list[Run] = []
    present = set()
    job_of = _finder(wanted, tuned)
    for run in sorted(runs, key=lambda run: str(run.path)):
        place = job_of(run)
        present.add(place)
        if grids is not None and place is None and run.settings:
            left_out.append((run, "not in the sweep"))
        elif run.status in ("ok", "diverged"):
            measured.append(run)
        else:
            left_out.append((run, run.status))
    variants = _variant_keys(measured, (*cell_keys, tuned), grids)
    selection = Selection(cell_keys, tuned, {}, {}, Coverage(len(runs), 0))
    groups: dict[tuple[Series, Cell, str], list[Run]] = {}
    for run in measured:
        series = Series(run.algorithm, tuple((key, run.value(key)) for key in variants.get(run.algorithm, ())))
        groups.setdefault((series, tuple(run.value(key) for key in cell_keys), run.value(tuned)), []).append(run)
    of_cell: dict[tuple[Series, Cell], list[Run]] = {}
    for (series, cell, _), group in groups.items():
        of_cell.setdefault((series, cell), []).extend(group)
    for place, group in of_cell.items():
        _check_alike(group, place, (*cell_keys, tuned), folder)
    for group_place, group in groups.items():
        by_seed = {run.seed: run for run in group}  # of two runs of one seed the last by name: one result, not two
        left_out += [(run, "repeated") for run in group if by_seed[run.seed] is not run]
        chosen = sorted(by_seed.values(), key=lambda run: (len(str(run.seed)), str(run.seed)))
        if ok := [run for run in chosen if run.status == "ok"]:
            selection.runs[group_place] = ok
        if lost := [run for run in chosen if run.status == "diverged"]:
            selection.diverged[group_place] = len(lost)
            left_out += [(run, "diverged") for run in lost]
    left_out.sort(key=lambda pair: (pair[1], str(pair[0].path)))
    selection.coverage = Coverage(
        found=len(runs),
        ok=sum(len(group) for group in selection.runs.values()),
        expected=None if grids is None else len(wanted),
        missing=_missing({place: pairs for place, pairs in wanted.items() if place not in present}),
        more_seeds=len(present - wanted.keys() - {None}),
        left_out=left_out,
    )
    return selection


def of_sweep(runs: list[Run], grids: list[Grid] | None, tuned: str = STEP) -> list[Run]:
    """Those that a sweep with these grids lists, whatever their seed and tuned value; none where the grids are
    unknown."""
    job_of = _finder(_jobs(grids or []), tuned)
    return [run for run in runs if job_of(run) is not None]


def finder(grids: list[Grid], tuned: str = STEP) -> Callable[[Run], tuple[tuple[str, object], ...] | None]:
    """run -> (key, value) of every key the sweep gives it, whatever its seed and tuned value; None: not in it."""
    return _finder(_jobs(grids), tuned)


def cell_label(cell_keys: tuple[str, ...], cell: Cell) -> str:
    return ", ".join(looks.setting(key, value) for key, value in zip(cell_keys, cell, strict=True))


def in_order(values: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Tuples of settings, numbers (also those at the end of a name: ``exp_beta5``) by their size."""
    return sorted(set(values), key=lambda cell: tuple(_sortable(value) for value in cell))


def _sortable(value: str) -> tuple:
    head = value.rstrip("0123456789.-+e") if not _is_number(value) else ""
    tail = value[len(head) :]
    return (head, float(tail) if _is_number(tail) else 0.0, value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _normal(value: str) -> object:
    return float(value) if _is_number(value) else value


def _jobs(grids: list[Grid]) -> dict[tuple, list[tuple[str, str]]]:
    """Every job of the grids once: (key, value) pairs in a fixed order -> the pairs as the sweep writes them."""
    jobs: dict[tuple, list[tuple[str, str]]] = {}
    for grid in grids:
        for values in itertools.product(*grid.values()):
            pairs = list(zip(grid, values, strict=True))
            jobs.setdefault(tuple(sorted((k, _normal(v)) for k, v in pairs)), pairs)
    return jobs


def _without(place: tuple, keys: tuple[str, ...]) -> tuple:
    return tuple(pair for pair in place if pair[0] not in keys)


def _missing(jobs: dict[tuple, list[tuple[str, str]]]) -> list[tuple[str, int]]:
    seeds: dict[str, list[str]] = {}
    for pairs in jobs.values():
        text = " ".join(f"{key}={value}" for key, value in pairs if key != "seed")
        seeds.setdefault(text, []).extend(value for key, value in pairs if key == "seed")
    return [(f"{text} seed={','.join(of)}" if of else text, len(of) or 1) for text, of in seeds.items()]


def _finder(wanted: dict[tuple, list[tuple[str, str]]], tuned: str) -> Callable[[Run], tuple | None]:
    """run -> which of the ``wanted`` jobs it is, with its own seed and tuned value; None: these make it none of them.

    Of two jobs that it could be the one that says more: beside a grid of ``K`` alone, one of ``K`` with ``kappa``.
    """
    key_sets = sorted(dict.fromkeys(tuple(key for key, _ in place) for place in wanted), key=len, reverse=True)
    free = ("seed", tuned)
    listed = {_without(place, free) for place in wanted}
    return lambda run: next((p for keys in key_sets if _without(p := _place(run, keys), free) in listed), None)


def _place(run: Run, keys: tuple[str, ...]) -> tuple:
    """Which job of a grid over ``keys`` the run would be."""
    return tuple((key, _normal(run.value(key))) for key in keys)


def _check_alike(group: list[Run], place: tuple[Series, Cell], keys: tuple[str, ...], folder: Path) -> None:
    *cell_keys, tuned = keys
    follows = {"algorithm.eta"} if tuned == STEP else set()  # c * sqrt(n / T)
    if apart := [key for key in differing_keys(group) if key not in {tuned, *follows}]:
        shown = ", ".join(f"{key} ({' and '.join(sorted({run.value(key) for run in group}))})" for key in apart)
        where = f"{place[0].label}, {cell_label(tuple(cell_keys), place[1])}"
        raise BenchError(
            f"{folder}: runs of {where} differ in {shown}; no mean may mix them, so move one kind elsewhere"
        )


def _variant_keys(runs: list[Run], others: tuple[str, ...], grids: list[Grid] | None) -> dict[str, tuple[str, ...]]:
    """algorithm -> keys of its own or of its clients that the sweep (or, without one, the runs) gives several values.

    others   keys that are cells or tuned instead

    A key that only some of an algorithm's grids set has the value "-" in the others.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for algorithm in {name for grid in grids or [] for name in grid.get("algorithm", [])}:
        own = [grid for grid in grids or [] if algorithm in grid.get("algorithm", [])]
        keys = dict.fromkeys(key for grid in own for key in grid)
        found[algorithm] = {key: {value for grid in own for value in grid.get(key, ["-"])} for key in keys}
    if grids is None:
        for algorithm in {run.algorithm for run in runs}:
            same = [run for run in runs if run.algorithm == algorithm]
            found[algorithm] = {key: {run.value(key) for run in same} for key in differing_keys(same)}
    return {
        algorithm: tuple(
            key
            for key, values in keys.items()
            if len(values) > 1 and key.startswith(_OF_SERIES) and key not in (STEP, "algorithm.eta", *others)
        )
        for algorithm, keys in found.items()
    }
