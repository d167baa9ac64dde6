"""Finished runs in folders and archives. A plan estimates times and sizes from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..config import Settings
from ..errors import BenchError
from ..experiment.machine import kind_of_device
from ..files import parse_json, read_json, read_yaml

GROUPS = ("algorithm", "dataset")  # of runs that are compared
LOCAL_WORK = ("batch_size", "local_steps", "local_epochs")  # settings of the client


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. path: its directory or archive; config: text, for a run in an archive only."""

    path: Path
    summary: dict[str, Any]
    config: str = ""

    @property
    def is_archived(self) -> bool:
        """Return True if the run is in an archive."""
        return self.path.is_file()

    @property
    def device(self) -> str | None:
        """``CPU`` or the name of its GPU; None if the summary does not say."""
        return kind_of_device(self.summary.get("device"))

    @functools.cached_property
    def tree(self) -> dict[str, Any]:
        """The resolved config; empty if it cannot be read."""
        try:
            tree = parse_json(self.config) if self.config else read_yaml(self.path / "config.yaml")
            return dict(tree) if isinstance(tree["choices"], dict) else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    @property
    def choices(self) -> dict[str, Any]:
        return dict(self.tree.get("choices", {}))

    @functools.cached_property
    def seconds(self) -> float:
        return float(self.summary["wall_seconds"])

    def estimate(self, settings: Settings) -> Estimate | None:
        """Estimate a run with these settings from this run.

        The same virtual time has as many uploads only under the same delays and availability.
        None: they have no budget in common, or this run's files lack a value, as those of an earlier version may.
        """
        try:
            used, evaluated = self.summary["used"], float(self.summary.get("evaluation_seconds", 0))
            is_same = self.summary.get("experiment") == settings.experiment
            if not (is_same or self.has_work_of(settings)):
                return None
            limits = {name: limit for name, limit in settings.budget.amounts.items() if used.get(name)}
            if not self.has_arrivals_of(settings):
                limits.pop("virtual_time", None)
            if not limits:
                return None
            share = 1.0 if is_same else min(limit / used[name] for name, limit in limits.items())
            expected = {name: float(number) * share for name, number in used.items()}
            points = count_points(settings.tree, expected)
            evaluation = evaluated * points / count_points(self.tree or settings.tree, used)
            seconds = max(0.0, self.seconds - evaluated) * share + evaluation
            return Estimate(seconds, evaluation, expected, int(self.summary.get("parameters", 0)), (self,))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return None

    def has_arrivals_of(self, settings: Settings) -> bool:
        """Return True if delays and availability are alike, so that as many uploads arrive in a virtual time."""
        availability = self.tree.get("availability", settings.tree["availability"])
        return self.choices.get("delay") == settings.choices["delay"] and availability == settings.tree["availability"]

    def has_work_of(self, settings: Settings) -> bool:
        """Return True if the model and the local work are alike, so that an upload takes as long."""
        client = settings.tree["client"]
        needs_share = client["local_epochs"] or client["batch_size"] == "all"  # of the samples, which n_clients decides
        return (
            self.tree["model"] == settings.tree["model"]
            and all(self.tree["client"][name] == client[name] for name in LOCAL_WORK)
            and not (needs_share and self.tree["n_clients"] != settings.root.n_clients)
        )


@dataclass(frozen=True)
class Estimate:
    """The estimate of a run.

    seconds  of work and evaluation, of which evaluation takes ``evaluation``
    used     counts at its end, by name
    d        parameters
    runs     finished runs that it is estimated from
    """

    seconds: float
    evaluation: float
    used: Mapping[str, float]
    d: int
    runs: tuple[FinishedRun, ...]


def count_points(tree: Mapping[str, Any], used: Mapping[str, float]) -> float:
    """Return the number of evaluations of a run that has used so much; the first model is one."""
    config = tree["evaluation"]
    unit = "virtual_time" if config["every_time"] else "uploads" if config["every_uploads"] else "server_iterations"
    return 1 + used.get(unit, 0) / (config["every_time"] or config["every_uploads"] or config["every"])


def similar_runs(settings: Settings, past: Sequence[FinishedRun]) -> Estimate | None:
    """Return an estimate by finished runs; None if no run is similar.

    Runs of the same experiment count first. Otherwise runs with the same model and local work count: if there are some,
    those with the same diagnostics, arrivals (delays and availability) and number of clients, then those of this
    machine (in directories).

    past  runs with the same algorithm and data set
    """
    alike = [one for one in past if one.summary.get("experiment") == settings.experiment] or past
    estimates = [estimate for one in alike if (estimate := one.estimate(settings)) is not None]
    choices = settings.choices
    tests: list[Callable[[FinishedRun], bool]] = [
        lambda one: one.choices.get("diagnostics") == choices["diagnostics"],
        lambda one: one.has_arrivals_of(settings),
        lambda one: one.tree.get("n_clients") == settings.root.n_clients,
        lambda one: not one.is_archived,
    ]
    for test in tests:
        estimates = [one for one in estimates if test(one.runs[0])] or estimates
    if not estimates:
        return None
    # not the mean: a machine that was busy made some of them slow
    seconds, evaluation = median(one.seconds for one in estimates), median(one.evaluation for one in estimates)
    runs = tuple(run for one in estimates for run in one.runs)
    return replace(estimates[0], seconds=seconds, evaluation=evaluation, runs=runs)


def finished_in(paths: Iterable[str | Path], statuses: Container[str] = ("ok",)) -> list[FinishedRun]:
    """Return the runs at or below ``paths`` with one of ``statuses``, without unreadable ones."""
    from ..tracking.archive import archived_summaries  # brings NumPy
    from ..tracking.records import find_runs, read_directory

    directories, archives, _ = find_runs([path for path in map(Path, paths) if path.is_dir()])
    found = []
    for directory in directories:
        try:
            summary = read_json(directory / "summary.json")
        except (OSError, ValueError):
            continue
        if isinstance(summary, dict) and str(summary.get("device")).startswith("cuda"):
            summary = read_directory(directory).summary  # of an earlier version: under the names of its precision
        found.append(FinishedRun(directory, summary))
    for archive in archives:
        try:
            found += [
                FinishedRun(archive, parse_json(summary), config) for summary, config in archived_summaries(archive)
            ]
        except (BenchError, ValueError):
            continue
    return [one for one in found if _has_ended(one.summary, statuses)]


def _has_ended(summary: Any, statuses: Container[str]) -> bool:
    return (
        isinstance(summary, dict)
        and summary.get("exit_status") in statuses
        and isinstance(summary.get("wall_seconds"), (int, float))
        and isinstance(summary.get("used"), dict)
        and all(isinstance(number, (int, float)) for number in summary["used"].values())
    )
