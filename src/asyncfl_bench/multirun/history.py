"""Finished runs in folders and archives. A plan estimates times and sizes from them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..config import Settings
from ..errors import BenchError
from ..experiment.machine import kind_of_device
from ..experiment.preflight import Found
from ..files import parse_json, read_json, read_yaml
from ..models.layers import Size

# on one core, seconds of an upload, of each parameter in it, and of a mini-batch step besides its multiply-adds by our
# kernels and by torch, then multiply-adds in a second
UPLOAD, NUMBER, STEP, TORCH_STEP, MACS = 2e-4, 4e-9, 5e-5, 5e-4, 5e9
SLOWEST = 2.0  # times these seconds
UNKNOWN = Found()
GROUPS = ("algorithm", "dataset", "model")  # runs that have these in common take about as long for an upload


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. place: its directory or archive; config: text, for a run in an archive only."""

    place: Path
    summary: dict[str, Any]
    config: str = ""

    @property
    def is_archived(self) -> bool:
        """Return True if the run is in an archive."""
        return self.place.is_file()

    @property
    def device(self) -> str | None:
        """``CPU`` or the name of its GPU; None if the summary does not say."""
        return kind_of_device(self.summary.get("device"))

    @functools.cached_property
    def tree(self) -> dict[str, Any]:
        """The resolved config; empty if it cannot be read."""
        try:
            tree = parse_json(self.config) if self.config else read_yaml(self.place / "config.yaml")
            return dict(tree) if isinstance(tree["choices"], dict) else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    @property
    def choices(self) -> dict[str, Any]:
        return dict(self.tree.get("choices", {}))

    @functools.cached_property
    def seconds(self) -> float:
        return float(self.summary["wall_seconds"])

    def estimate(self, settings: Settings, found: Found) -> Estimate | None:
        """Estimate a run with these settings from this run.

        None: they have no budget in common, or this run's files lack a value, as those of an earlier version may.
        """
        try:
            return self._estimate(settings, found)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return None

    def _estimate(self, settings: Settings, found: Found) -> Estimate | None:
        """Return the estimate. Raises LookupError, TypeError and others where files lack a value.

        The seconds of an upload grow with the multiply-adds of its local steps, those of an evaluation with d. The same
        virtual time has as many uploads only under the same delays and availability.
        """
        used, evaluated = self.summary["used"], float(self.summary.get("evaluation_seconds", 0))
        d, samples = int(self.summary.get("parameters", 0)), self.summary.get("task", {}).get("train_samples", 0)
        size, tree = found.size or Size(d, d), self.tree or settings.tree
        wider = size.d / d if d else 1.0
        step = STEP if self.summary.get("executor") in ("batched", "native", None) else TORCH_STEP
        uploads = max(1, used.get("uploads", 0))
        old = UploadCost.from_tree(tree, samples, Size(d, round(size.macs / wider)), step)
        new = UploadCost.from_tree(settings.tree, found.samples or samples, size, step)
        if tree["client"]["local_epochs"] and used.get(
            "client_steps"
        ):  # clients that arrive often may have more samples
            more = used["client_steps"] / uploads / old.steps
            old, new = old.with_steps(more), new.with_steps(more if settings.tree["client"]["local_epochs"] else 1)
        limits = {name: limit for name, limit in settings.budget.amounts.items() if used.get(name)}
        if not self.has_arrivals_of(settings):
            limits.pop("virtual_time", None)
        more_steps = {"client_steps": new.steps / old.steps, "messages": new.steps / old.steps}
        shares = [limit / used[name] / more_steps.get(name, 1) for name, limit in limits.items()]
        if not shares:
            return None
        share = 1.0 if self.summary.get("experiment") == settings.experiment else min(shares)
        taken = max(0.0, self.seconds - evaluated) / uploads
        speed = min(taken / old.seconds, SLOWEST)  # what is beyond is the rule's and does not grow with local work
        upload = max(taken + speed * (new.seconds - old.seconds), min(taken, new.seconds * speed))
        expected = {name: float(number) * share for name, number in used.items()}
        points = count_points(settings.tree, expected)
        ratio = wider * points / count_points(self.tree or settings.tree, used)
        work = expected.get("uploads", 1) or 1
        return Estimate(
            upload * work + evaluated * ratio, evaluated * ratio, expected, points, d, (self,), new.nearness(old)
        )

    def has_arrivals_of(self, settings: Settings) -> bool:
        """Return True if delays and availability are alike, so that as many uploads arrive in a virtual time."""
        availability = self.tree.get("availability", settings.tree["availability"])
        return self.choices.get("delay") == settings.choices["delay"] and availability == settings.tree["availability"]


@dataclass(frozen=True)
class UploadCost:
    """Work behind an upload, without what is particular to the rule.

    step_seconds  of each of its mini-batch steps;  rest  seconds of all else
    """

    steps: float
    step_seconds: float
    rest: float

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], samples: int, size: Size, step: float) -> UploadCost:
        """samples: of all clients; step: seconds of a mini-batch step besides its multiply-adds."""
        client = tree["client"]
        held = max(1.0, samples / tree["n_clients"]) if samples else math.inf
        batch = held if client["batch_size"] == "all" else min(client["batch_size"], held)
        passes = client["local_epochs"]
        steps = passes * (math.ceil(held / batch) if samples else 1) if passes else client["local_steps"]
        multiply_adds = 3 * size.macs * (batch if math.isfinite(batch) else 1)
        return cls(steps, step + multiply_adds / MACS, UPLOAD + NUMBER * size.d)

    @property
    def seconds(self) -> float:
        return self.rest + self.steps * self.step_seconds

    def with_steps(self, factor: float) -> UploadCost:
        """Return the work with ``factor`` times as many steps."""
        return replace(self, steps=self.steps * factor)

    def nearness(self, other: UploadCost) -> float:
        return abs(math.log(self.seconds / other.seconds))


@dataclass(frozen=True)
class Estimate:
    """What a run will take.

    seconds     of work and evaluation, of which evaluation takes ``evaluation``
    used        counts at its end, by name;  points  evaluations
    d           parameters
    runs        finished runs that it is estimated from
    difference  of the work behind an upload from theirs; 0: the same work
    """

    seconds: float
    evaluation: float
    used: Mapping[str, float]
    points: float
    d: int
    runs: tuple[FinishedRun, ...]
    difference: float = 0.0

    @property
    def from_archive(self) -> bool:
        return any(one.is_archived for one in self.runs)


def count_points(tree: Mapping[str, Any], used: Mapping[str, float]) -> float:
    """Return the number of evaluations of a run that has used so much; the first model is one."""
    config = tree["evaluation"]
    unit = "virtual_time" if config["every_time"] else "uploads" if config["every_uploads"] else "server_iterations"
    return 1 + used.get(unit, 0) / (config["every_time"] or config["every_uploads"] or config["every"])


def similar_runs(settings: Settings, past: Sequence[FinishedRun], found: Found = UNKNOWN) -> Estimate | None:
    """Return an estimate by finished runs; None if no run is similar.

    Runs of the same experiment count first. Otherwise runs with the same model count: if there are some, those with the
    same diagnostics, arrivals (delays and availability) and number of clients, then those of this machine (in
    directories), and of these the ones whose local work is the most alike.

    past   runs with the same algorithm and data set, from ``runs_by_algorithm``
    found  facts about the run
    """
    alike = [one for one in past if one.summary.get("experiment") == settings.experiment]
    alike = alike or [one for one in past if one.choices.get("model") == settings.choices["model"]]
    estimates = [estimate for one in alike if (estimate := one.estimate(settings, found)) is not None]
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
    least = min(one.difference for one in estimates)
    nearest = [one for one in estimates if one.difference <= least + 1e-9]
    # not the mean: a machine that was busy made some of them slow
    seconds, evaluation = median(one.seconds for one in nearest), median(one.evaluation for one in nearest)
    runs = tuple(run for one in nearest for run in one.runs)
    return replace(nearest[0], seconds=seconds, evaluation=evaluation, runs=runs)


def runs_by_algorithm(past: Iterable[FinishedRun]) -> dict[tuple, list[FinishedRun]]:
    """Group runs by (algorithm, data set)."""
    found: dict[tuple, list[FinishedRun]] = {}
    for one in past:
        found.setdefault(tuple(one.summary.get(group) for group in GROUPS[:2]), []).append(one)
    return found


def finished_in(places: Iterable[str | Path], statuses: Container[str] = ("ok",)) -> list[FinishedRun]:
    """Every run at or below ``places`` that ended with one of ``statuses``; what cannot be read is none."""
    from ..tracking.archive import archived_summaries  # brings NumPy
    from ..tracking.records import find_runs, read_directory

    directories, archives, _ = find_runs([place for place in map(Path, places) if place.is_dir()])
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
