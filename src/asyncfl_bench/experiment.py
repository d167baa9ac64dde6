"""The composition root: builds a run's pieces from checked settings, runs them, closes them.

The one place that knows all parts. Everything here happens once per run; what happens per arrival is in simulation/.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import environment
from .config import Settings
from .errors import BenchError
from .randomness import Streams

if TYPE_CHECKING:
    import pandas as pd

EXIT_INTERRUPTED = 75  # "try again later": the run can go on from its checkpoint


class Diverged(BenchError):
    """The model or its loss is no longer finite."""


@dataclass
class RunResult:
    """What a run leaves: its directory and its summary (the content of summary.json)."""

    directory: Path
    summary: dict

    @property
    def ok(self) -> bool:
        return self.summary["exit_status"] == "ok"

    @property
    def exit_code(self) -> int:
        return {"ok": 0, "interrupted": EXIT_INTERRUPTED}.get(self.summary["exit_status"], 1)

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per logged point, as in metrics.jsonl."""
        import pandas as pd

        from .tracking.metrics import read_metrics

        return pd.DataFrame(read_metrics(self.directory / "metrics.jsonl"))


def execute(settings: Settings, group: str | None = None) -> RunResult:
    """Runs one experiment, or goes on with it, or returns its result if it is already complete.

    Raises ConfigError or BenchError for what goes wrong before the run has begun; afterwards a failure is written to
    summary.json and returned with exit status "failed" or "diverged".
    """
    from .tracking.rundir import RunDirectory

    directory = settings.directory
    if (finished := _finished(settings)) is not None:
        return finished
    world = World(settings)  # may refuse; nothing is on disk yet
    if settings.root.rerun and directory.exists():
        shutil.rmtree(directory)
    run_directory = RunDirectory(directory)
    tracker = settings.parts["tracking"].build()
    status, error = "failed", None
    interrupted: list[int] = []
    run = None
    try:
        with _signals(interrupted):
            run = Run(settings, world, run_directory, tracker, interrupted)
            run.open(group)
            status = run.go()
    except Diverged as problem:
        status, error = "diverged", str(problem)
    except BenchError as problem:
        error = str(problem)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        (directory / "error.txt").write_text(traceback.format_exc())
    summary = world.summary(settings, run, status, error)
    world.executor.close()
    try:
        run_directory.close()
        run_directory.write_summary(summary)
    finally:
        tracker.finish(summary, 0 if status == "ok" else 1)
    return RunResult(directory, summary)


def _finished(settings: Settings) -> RunResult | None:
    """The result of an earlier complete run with the same settings, if it has all that is asked for."""
    import json

    summary_path = settings.directory / "summary.json"
    if settings.root.rerun or not summary_path.exists():
        return None
    summary = json.loads(summary_path.read_text())
    traced = (settings.directory / "trace.parquet").exists()
    if summary.get("exit_status") != "ok" or (settings.root.trace and not traced):
        return None
    return RunResult(settings.directory, summary | {"already_complete": True})


class World:
    """The task, the rule and the simulation of one run."""

    def __init__(self, settings: Settings):
        from .clients.batches import Batches
        from .clients.choosing import executor_class, make_executor
        from .clients.versions import ClientMemories
        from .simulation.engine import Simulation
        from .tasks.task import build_task

        root, parts = settings.root, settings.parts
        self.device = environment.device(root.device)
        self.started = time.monotonic()
        streams = Streams(root.seed)
        client = parts["client"].config
        self.task = build_task(
            parts["dataset"].build(),
            parts["heterogeneity"].build(),
            parts["model"].build(),
            n_clients=root.n_clients,
            data_dir=settings.data_dir,
            streams=streams,
            device=self.device,
            augment=client.augment,
        )
        self.cores = environment.cores(root.threads)
        flat = self.task.flat
        self.executor_kind = executor_class(
            root.executor,
            device=self.device,
            cores=self.cores,
            perceptron=flat.perceptron is not None,
            has_statistics=flat.has_statistics,
        )
        environment.set_threads(self.cores if flat.d >= environment.SMALL_MODEL else 1)
        environment.reset_peak_memory(self.device)
        self.model_d = self.task.flat.initial_d()
        self.rule = parts["algorithm"].build()
        n = root.n_clients
        sends_changes = getattr(self.rule, "sends_changes", False)
        self.executor = make_executor(
            self.executor_kind,
            self.task,
            parts["client"].build(client.upload),
            Batches(self.task.partition, client.batch_size, streams),
            streams,
            device=self.device,
            cores=self.cores,
            augment=client.augment,
            changes=ClientMemories(n, self.model_d) if sends_changes else None,
            statistics_rate=getattr(parts["model"].config, "statistics_rate", 1.0),
        )
        self.simulation = Simulation(
            rule=self.rule,
            model_d=self.model_d,
            clients=self.task.clients,
            upload_kind=client.upload,
            local_steps=client.K,
            executor=self.executor,
            delay=parts["delay"].build(),
            availability=parts["availability"].build(),
            schedule=parts["schedule"].build(),
            clock=root.clock,
            concurrency=settings.concurrency,
            budget=settings.budget,
            streams=streams,
        )
        client_vectors = n if sends_changes else 0
        in_flight = min(settings.concurrency, n) + 1
        self.vectors = self.rule.vectors(n) + client_vectors + in_flight + 3
        self.memory_mib = self.vectors * self.task.flat.d * 4 / 2**20

    def describe(self, settings: Settings) -> str:
        """What this run is and what it will cost, in one line."""
        facts = self.task.describe()
        budget = ", ".join(f"{value:g} {key}" for key, value in asdict(settings.budget).items() if value is not None)
        threads = f", {self.cores} thread{'s' * (self.cores != 1)}" if self.device == "cpu" else ""
        choice = settings.choices.get
        return (
            f"{choice('algorithm')} on {choice('dataset')}: {facts['train_samples']} samples, "
            f"{settings.root.n_clients} clients, {choice('model')} of {self.task.flat.d} parameters; "
            f"until {budget} on the {settings.root.clock} clock; {self.device}{threads}, {self.executor_kind}, "
            f"model vectors up to {self.memory_mib:.0f} MiB"
        )

    def summary(self, settings: Settings, run: Run | None, status: str, error: str | None) -> dict:
        used = self.simulation.counters
        wall = run.wall_time() if run else 0.0
        return {
            "exit_status": status,
            "error": error,
            "stopped_by": run.ended_by if run else None,
            "name": settings.name,
            "identity": settings.identity,
            "algorithm": settings.choices.get("algorithm"),
            "dataset": settings.choices.get("dataset"),
            "delay": settings.choices.get("delay"),
            "seed": settings.root.seed,
            "final": run.last if run else {},
            "best": run.best if run else {},
            "used": {
                "server_iterations": used.iteration,
                "uploads": used.uploads,
                "client_steps": used.client_steps,
                "virtual_time": used.virtual_time,
                "discarded": used.discarded,
            },
            "wall_seconds": wall,
            "evaluation_seconds": run.evaluation_seconds if run else 0.0,
            "updates_per_second": used.uploads / wall if wall else 0.0,
            "peak_memory_bytes": environment.peak_memory(self.device),
            "device": environment.device_name(self.device),
            "threads": self.cores,
            "executor": self.executor_kind,
            "versions": environment.versions(),
            "git_revision": environment.git_revision(),
        }


class Run:
    """Drives a world through time: evaluation, metrics, checkpoints, interruption."""

    def __init__(self, settings: Settings, world: World, directory, tracker, interrupted: list[int]):
        from .diagnostics.arrivals import Arrivals
        from .simulation.engine import Observer
        from .tracking.progress import Progress

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
        self._trace = directory.open_trace() if settings.root.trace else None
        self.arrivals = Arrivals(settings.root.n_clients, self._trace)
        run = self

        class Evaluations(Observer):
            def iterated(self, counters) -> None:
                run._iterated(counters)

        world.simulation.observers += [self.arrivals, Evaluations()]
        self._progress_class = Progress
        self.progress = None

    def wall_time(self) -> float:
        """Seconds this run has taken, those before an interruption included."""
        return self._wall_before + time.monotonic() - self._started

    def open(self, group: str | None) -> None:
        """Goes on from a checkpoint if there is one, else writes the run's first files."""
        settings, directory = self.settings, self.directory
        resumed = directory.checkpoint_path.exists() and self._resume()
        directory.remove_summary()
        if not resumed:
            directory.truncate_metrics(0)
            directory.write_config(_yaml(settings.tree))
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
            self.progress = self._progress_class(total, settings.name, done=self._used(key))

    def go(self) -> str:
        """Runs to the end. Returns the exit status."""
        simulation = self.world.simulation
        try:
            if not self._lines:
                self._log(simulation.counters)
            while self.ended_by is None:
                if self.interrupted:
                    self._checkpoint()
                    return "interrupted"
                if self.settings.evaluation.every_time is not None:
                    self._evaluate_until(simulation.next_time)
                self.ended_by = simulation.advance()
                self._checkpoint_if_due()
            if self._logged_at != _place(simulation.counters):
                self._log(simulation.counters)
            if self.settings.root.trace:
                self.directory.write_model("model_final", self.world.task.flat.named(self.world.model_d))
            if self.world.memory_mib <= self.settings.checkpoint.at_end_mib:
                self._checkpoint()
            return "ok"
        finally:
            if self.progress is not None:
                self.progress.close()

    # -- evaluation and metrics --------------------------------------------------------------------------------------

    def _iterated(self, counters) -> None:
        if self.settings.evaluation.every_time is None and counters.iteration % self.settings.evaluation.every == 0:
            self._log(counters)

    def _evaluate_until(self, time_of_next_event: float) -> None:
        """Logs every evaluation time that passes before the next event, with the model as it is then."""
        self._next_time = max(self._next_time, self.settings.evaluation.every_time)
        limit = self.settings.budget.virtual_time
        if limit is not None:
            time_of_next_event = min(time_of_next_event, limit)
        while self._next_time < time_of_next_event:
            if self._next_time > self.world.simulation.counters.virtual_time:
                self._log(replace(self.world.simulation.counters, virtual_time=self._next_time))
            self._next_time += self.settings.evaluation.every_time

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
        row |= measured | self.arrivals.metrics() | self.world.rule.stats()
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
        if not _finite(measured["test/loss"]):
            raise Diverged(
                f"the test loss is {measured['test/loss']} after {counters.iteration} server iterations and "
                f"{counters.uploads} uploads; a smaller algorithm.eta or client.lr may help"
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
        from .simulation import checkpoint

        world = self.world
        self._checkpoint_iteration = world.simulation.counters.iteration
        state = {
            "simulation": world.simulation.state_dict(),
            "rule": world.rule.state_dict(),
            "executor": world.executor.state_dict(),
            "model_d": world.model_d,
            "arrivals": self.arrivals.state_dict(),
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
        checkpoint.save(self.directory.checkpoint_path, self.settings.identity, state)
        self._checkpointed = time.monotonic()

    def _resume(self) -> bool:
        """True when a usable checkpoint was loaded. An unusable one is named and the run starts anew."""
        from .simulation import checkpoint

        world = self.world
        try:
            state, remarks = checkpoint.load(self.directory.checkpoint_path, self.settings.identity)
        except BenchError as error:
            if self.settings.root.resume:
                raise
            print(f"{error}; starting from the beginning", file=sys.stderr)
            return False
        for remark in remarks:
            print(f"{remark}; using the one before it", file=sys.stderr)
        if self._trace is not None:
            if state["trace"] is None:
                return False  # made without a trace: the whole run is needed again
            self._trace.load_state_dict(state["trace"])
        world.model_d.copy_(state["model_d"])
        world.simulation.load_state_dict(state["simulation"])
        world.rule.load_state_dict(state["rule"])
        in_flight = list(world.simulation.in_flight.values())
        world.executor.load_state_dict(state["executor"], world.model_d, in_flight)
        self.arrivals.load_state_dict(state["arrivals"])
        self._lines, self.last, self.best = state["lines"], state["last"], state["best"]
        self._logged_at, self._next_time = state["logged_at"], state["next_time"]
        self._checkpoint_iteration = state["checkpoint_iteration"]
        self._wall_before, self.evaluation_seconds = state["wall_time"], state["evaluation_seconds"]
        self.directory.truncate_metrics(self._lines)
        return True


def _place(counters) -> tuple:
    return (counters.iteration, counters.uploads, counters.virtual_time)


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def _yaml(tree: dict) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(tree))


@contextmanager
def _signals(received: list[int]):
    """While open, Ctrl-C and SIGTERM are noted instead of raised; a second one ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number, frame):
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
