"""Driving a world through time: evaluation, metrics, checkpoints, interruption."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from . import environment
from .config import RESULTS_VERSION, Settings
from .diagnostics.arrivals import Arrivals
from .diagnostics.base import at_least
from .diagnostics.steps import Steps
from .errors import BenchError
from .simulation import checkpoint
from .simulation.observer import Observer
from .tracking.progress import Progress

if TYPE_CHECKING:
    from .tracking.rundir import RunDirectory
    from .tracking.trackers import Tracker
    from .world import World


class Diverged(BenchError):
    """The model or its loss is no longer finite."""


class DamagedState(BenchError):
    """A checkpoint that can be read but does not fit this run: refused also where an unreadable one is begun anew."""


class Run:
    """One run on its way.

    interrupted  signals received so far; as soon as there is one, the run saves itself and stops
    """

    def __init__(
        self,
        settings: Settings,
        world: World,
        directory: RunDirectory,
        tracker: Tracker,
        interrupted: list[int],
    ):
        self.settings, self.world, self.directory, self.tracker = settings, world, directory, tracker
        self.interrupted = interrupted
        self.ended_by: str | None = None
        self.last: dict[str, float] = {}
        self.best: dict[str, float] = {}
        self.evaluation_seconds = 0.0
        self._lines = 0
        self._logged_at: tuple | None = None
        self._wall_before = 0.0
        self._started = time.monotonic()
        self._next_time = 0.0  # the next virtual time to evaluate at
        self._checkpointed = time.monotonic()
        self._checkpoint_iteration = 0
        self._trace = directory.open_trace(world.rule.arrival_facts) if settings.root.trace else None
        self.arrivals = Arrivals(settings.root.n_clients, self._trace, world.rule)
        self.steps = Steps(world.rule, world.model_d)
        if settings.root.trace:
            self.steps.open(directory)
        world.diagnostics.open(directory)
        world.simulation.observers += [world.diagnostics, self.arrivals, self.steps, _AtIterations(self)]
        self.progress: Progress | None = None
        self.begun = False  # until then nothing in the directory has been touched

    def wall_time(self) -> float:
        """Seconds this run has taken, those before an interruption included."""
        return self._wall_before + time.monotonic() - self._started

    def open(self, group: str | None) -> None:
        """Goes on from a checkpoint if there is one, else writes the run's first files."""
        settings, directory = self.settings, self.directory
        resumed = checkpoint.exists(directory.checkpoint_path) and not settings.root.rerun and self._resume()
        self.begun = True
        directory.remove_summary()
        directory.write_config(_yaml(settings.tree))
        if not resumed:
            directory.truncate_metrics(0)
            if settings.root.trace:
                directory.write_partition(self.world.task.partition)
                directory.write_model("model_initial", self.world.task.flat.named(self.world.model_d))
        self.tracker.start(
            settings.tree,
            settings.name,
            group,
            str(settings.choices.get("algorithm")),
            f"{settings.identity}",
            directory.path,
        )
        if settings.root.progress:
            print(self.world.describe(settings), file=sys.stderr)
            key, total = self._main_budget()
            self.progress = Progress(total, settings.name, done=self._used(key))

    def go(self) -> str:
        """Runs to the end. Returns the exit status."""
        simulation = self.world.simulation
        try:
            if not self._lines:
                self._log(simulation.counters)
            else:
                self.ended_by = simulation.spent()  # what a checkpoint at the end goes on to is the end
            self.ended_by = self.ended_by or simulation.begin()
            while self.ended_by is None:
                if self.interrupted:
                    self._checkpoint()
                    return "interrupted"
                if self.settings.evaluation.every_time is not None and not self._evaluate_until(simulation.next_time):
                    continue
                self.ended_by = simulation.advance()
                self._checkpoint_if_due()
            if self._logged_at != _place(simulation.counters):
                self._log(simulation.counters)
            if self.settings.root.trace:
                self.directory.write_model("model_final", self.world.task.flat.named(self.world.model_d))
            if self.world.needs.total <= self.settings.checkpoint.at_end_mib * 2**20:
                try:
                    self._checkpoint()
                except BenchError as error:  # the results are complete without it
                    print(error, file=sys.stderr)
            return "ok"
        finally:
            if self.progress is not None:
                self.progress.close()

    # -- evaluation and metrics --------------------------------------------------------------------------------------

    def iterated(self, counters) -> None:
        """Called after every server iteration."""
        config = self.settings.evaluation
        if config.every_time is not None:
            return
        if config.every_uploads is not None:
            logged = self._logged_at[1] if self._logged_at is not None else 0
            due = counters.uploads // config.every_uploads > logged // config.every_uploads
        else:
            due = counters.iteration % config.every == 0
        if due:
            self._log(counters)

    def _evaluate_until(self, time_of_next_event: float) -> bool:
        """Logs every evaluation time that passes before the next event, with the model as it is then.

        False when it was interrupted on the way.
        """
        every = self.settings.evaluation.every_time
        assert every is not None
        self._next_time = max(self._next_time, every)
        limit = self.settings.budget.virtual_time
        if limit is not None:
            time_of_next_event = min(time_of_next_event, limit)
        if time_of_next_event == float("inf"):  # nothing is under way, so nothing will change
            return True
        while self._next_time < time_of_next_event:
            if self.interrupted:
                return False
            counters = replace(self.world.simulation.counters, virtual_time=self._next_time)
            if _place(counters) != self._logged_at:  # as it is where a larger budget goes on from the end of the first
                self._log(counters)
            self._next_time = every * (round(self._next_time / every) + 1)  # sums of every would drift
        return True

    def _log(self, counters) -> None:
        started = time.monotonic()
        measured = self.world.task.evaluate(self.world.model_d)
        self.evaluation_seconds += time.monotonic() - started
        row = {
            "iteration": counters.iteration,
            "uploads": counters.uploads,
            "client_steps": counters.client_steps,
            "virtual_time": counters.virtual_time,
            "wall_time": self.wall_time(),
        }
        row |= measured | self.arrivals.metrics(counters.iteration) | self.steps.metrics() | self.world.rule.stats()
        row |= self.world.diagnostics.metrics()
        self.directory.metrics.write(row)
        self._lines += 1
        self._logged_at = _place(counters)
        self.tracker.log(row)
        self.last = measured
        if not self.best or measured["test/accuracy"] > self.best["test/accuracy"]:
            self.best = {"test/accuracy": measured["test/accuracy"], "iteration": counters.iteration}
        if self.progress is not None:
            rate = counters.uploads / max(row["wall_time"], 1e-9)
            key, _ = self._main_budget()
            accuracy = measured["test/accuracy"]
            self.progress.update(self._used(key), counters.iteration, accuracy, counters.virtual_time, rate)
        culprit = self.arrivals.first_unfinite
        if culprit is not None or not _finite(measured["test/loss"]):
            where = f", first in an upload of client {culprit[0]} with staleness {culprit[1]}" if culprit else ""
            raise Diverged(
                f"the loss is no longer finite after {counters.iteration} server iterations and {counters.uploads} "
                f"uploads{where}; a smaller algorithm.eta or client.lr may help"
            )

    def _main_budget(self) -> tuple[str, float]:
        """The budget key progress is measured by: the first one set."""
        return next((key, value) for key, value in asdict(self.settings.budget).items() if value is not None)

    def _used(self, key: str) -> float:
        counters = self.world.simulation.counters
        return counters.iteration if key == "server_iterations" else getattr(counters, key)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        config, now = self.settings.checkpoint, time.monotonic()
        iteration = self.world.simulation.counters.iteration
        by_count = config.every is not None and iteration >= self._checkpoint_iteration + config.every
        by_time = config.every_minutes is not None and now - self._checkpointed >= 60 * config.every_minutes
        if (by_count or by_time) and self.ended_by is None:
            self._checkpoint()

    def _checkpoint(self) -> None:
        world = self.world
        self._checkpoint_iteration = world.simulation.counters.iteration
        state = {
            "data": world.task.digest,
            "simulation": world.simulation.state_dict(),
            "rule": world.rule.state_dict(),
            "executor": world.executor.state_dict(),
            "model_d": world.model_d,
            "arrivals": self.arrivals.state_dict(),
            "steps": self.steps.state_dict(),
            "diagnostics": {"settings": self._diagnostics(), "state": world.diagnostics.state_dict()},
            "trace": self._trace.state_dict() if self._trace is not None else None,
            "lines": self._lines,
            "logged_at": self._logged_at,
            "last": self.last,
            "best": self.best,
            "next_time": self._next_time,
            "checkpoint_iteration": self._checkpoint_iteration,
            "wall_time": self.wall_time(),
            "evaluation_seconds": self.evaluation_seconds,
        }
        self.directory.metrics.sync()  # never fewer lines on the disk than the checkpoint counts
        checkpoint.save(self.directory.checkpoint_path, self.settings.identity, state, RESULTS_VERSION)
        self._checkpointed = time.monotonic()

    def _resume(self) -> bool:
        """True when a usable checkpoint was loaded. An unusable one is named and the run starts anew."""
        identity = self.settings.resumed_identity or self.settings.identity
        try:
            lines = self.directory.metrics.complete_lines()
            state, remarks = checkpoint.load(self.directory.checkpoint_path, identity, RESULTS_VERSION, lines)
            if state.get("data", self.world.task.digest) != self.world.task.digest:
                source = self.world.task.source or self.settings.choices.get("dataset")
                raise DamagedState(
                    f"{self.directory.path}: began with other samples than are there now ({source}); data_dir= names "
                    "their place, rerun=true begins anew"
                )
            if self._trace is not None and state["trace"] is None:
                raise BenchError(f"{self.directory.path}: trace=true was not set from the start, so it would have gaps")
            if not at_least(state["diagnostics"]["settings"], self._diagnostics()):
                raise BenchError(f"{self.directory.path}: these diagnostics were not made from the start")
            self._take_over(state)
            self.directory.truncate_metrics(state["lines"])
        except BenchError as error:
            if self.settings.root.resume or isinstance(error, DamagedState):
                raise
            print(f"{error}; starting from the beginning", file=sys.stderr)
            return False
        for remark in remarks:
            print(f"{remark}; using the one before it", file=sys.stderr)
        return True

    def _take_over(self, state: dict) -> None:
        """Raises BenchError for a state that does not fit the run, which is then unusable for anything else."""
        try:
            self._load(state)
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise DamagedState(
                f"{self.directory.checkpoint_path}: does not fit this run ({reason[:150]}); delete it to start again"
            ) from None

    def _load(self, state: dict) -> None:
        world = self.world
        if self._trace is not None:
            self._trace.load_state_dict(state["trace"])
        world.model_d.copy_(state["model_d"])
        world.simulation.load_state_dict(state["simulation"])
        world.rule.load_state_dict(state["rule"])
        computed = [work for work in world.simulation.in_flight.values() if not work.lost]  # the executor's share
        world.executor.load_state_dict(state["executor"], world.model_d, computed)
        self.arrivals.load_state_dict(state["arrivals"])
        self.steps.load_state_dict(state["steps"])
        world.diagnostics.load_state_dict(state["diagnostics"]["state"])
        self._lines, self.last, self.best = state["lines"], state["last"], state["best"]
        self._logged_at, self._next_time = state["logged_at"], state["next_time"]
        self._checkpoint_iteration = state["checkpoint_iteration"]
        self._wall_before, self.evaluation_seconds = state["wall_time"], state["evaluation_seconds"]

    def _diagnostics(self) -> dict:
        return self.settings.tree["diagnostics"]

    def summary(self, status: str, error: str | None) -> dict:
        """The content of summary.json."""
        settings, world = self.settings, self.world
        used, wall = world.simulation.counters, self.wall_time()
        return {
            "exit_status": status,
            "error": error,
            "stopped_by": self.ended_by,
            "name": settings.name,
            "identity": settings.identity,
            "experiment": settings.experiment,
            "results_version": RESULTS_VERSION,
            "algorithm": settings.choices.get("algorithm"),
            "dataset": settings.choices.get("dataset"),
            "delay": settings.choices.get("delay"),
            "seed": settings.root.seed,
            "parameters": world.task.flat.d,
            "task": world.task.describe(),
            "data_source": world.task.source,
            "data_digest": world.task.digest,
            "final": self.last,
            "best": self.best,
            "diagnostics": self._diagnostics(),
            "arrivals": self.arrivals.summary(used.iteration),
            "used": {
                "server_iterations": used.iteration,
                "uploads": used.uploads,
                "client_steps": used.client_steps,
                "virtual_time": used.virtual_time,
                "discarded": used.discarded,
            },
            "wall_seconds": wall,
            "evaluation_seconds": self.evaluation_seconds,
            "updates_per_second": used.uploads / wall if wall else 0.0,
            "peak_memory_bytes": environment.peak_memory(world.device),
            "estimated_memory_bytes": asdict(world.needs),
            "state_bytes": world.state_bytes(),
            "device": environment.device_name(world.device),
            "threads": world.cores,
            "executor": world.executor_kind,
            "versions": environment.versions(),
            "git_revision": environment.git_revision(),
        }


class _AtIterations(Observer):
    """Tells the run about every server iteration."""

    def __init__(self, run: Run):
        self._run = run

    def iterated(self, counters) -> None:
        self._run.iterated(counters)


def _place(counters) -> tuple:
    return (counters.iteration, counters.uploads, counters.virtual_time)


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def _yaml(tree: dict) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(tree))
