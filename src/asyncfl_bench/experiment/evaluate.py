"""Evaluations of the global model: the moments at which they are due, and the content of a logged point."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..diagnostics import clients
from ..diagnostics.arrivals import Arrivals
from ..diagnostics.event_tables import CancelledWork, EventTable, Exchanges
from ..diagnostics.steps import ModelAverage, Steps
from ..errors import BenchError, wrong_return
from ..simulation.budget import TARGET
from ..simulation.observer import Observer
from ..stateful import Stateful
from ..tracking.progress_bar import Progress
from ..tracking.rundir import CLIENTS_NAME, COUNTERS

if TYPE_CHECKING:
    from ..algorithms.base import ServerRule
    from ..algorithms.needs import Needs
    from ..simulation.budget import Counters
    from ..tracking.rundir import RunDirectory
    from ..tracking.trackers import Trackers
    from .components import Components
    from .stopping import Stop


EXPLODED = 10.0  # root mean square of the weights; of trained models it is below 1


class Diverged(BenchError):
    """The model or its loss is no longer finite."""


class Stopwatch:
    """Wall seconds that a run has taken, those before an interruption included."""

    def __init__(self) -> None:
        self.before = 0.0
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self._started

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Stop the watch while the block runs."""
        began = time.monotonic()
        yield
        self._started += time.monotonic() - began


class Evaluations(Observer, Stateful):
    """Evaluates the model when due and writes each logged point to metrics.jsonl, the tracker and the screen.

    last, best  test metrics of the latest point; the best test accuracy and its server iteration
    seconds     spent in evaluating
    lines       points logged so far
    average     the mean of the latest models; None without ``evaluation.average``
    clients     expected accuracies of the final model for clients; None before ``write_clients``
    Raises Diverged, after logging the point, when the loss is no longer finite.
    """

    state_names = ("lines", "last", "best", "_logged_at", "_next_time", "seconds")

    def __init__(self, components: Components, directory: RunDirectory, tracker: Trackers, stopwatch: Stopwatch):
        settings = components.settings
        self.config, self.budget = settings.evaluation, settings.budget
        self._components, self._simulation = components, components.simulation
        self._metrics, self._tracker, self._stopwatch = directory.metrics, tracker, stopwatch
        self._progress: Progress | None = None
        self._budget_key, self._total = next(iter(self.budget.amounts.items()))
        self.trace = directory.open_trace(components.rule.arrival_facts) if settings.root.trace else None
        self.arrivals = Arrivals(settings.root.n_clients, self.trace, components.rule)
        self.steps = Steps(components.rule, components.model_d, settings.root.n_clients)
        window = self.config.average
        self.average = None if window is None else ModelAverage(components.model_d, window)
        self._tables: dict[str, EventTable] = {}
        if settings.root.trace:
            self.steps.open(directory)
            if components.rule.needs.cuts:
                self._tables["exchanges"] = Exchanges(directory, self._simulation.counters)
            if components.rule.needs.restart_at is not None:
                self._tables["cancelled"] = CancelledWork(directory, self._simulation.counters)
        self._simulation.observers += self._tables.values()
        self.last: dict[str, float] = {}
        self.best: dict[str, float] = {}
        self.clients: dict[str, float] | None = None
        assert components.task.clients.labels_nc is not None  # of every task
        self._labels_nc = components.task.clients.labels_nc
        self._hits_c: np.ndarray | None = None  # at the latest point, of the test samples of each class
        self.seconds = 0.0
        self.lines = 0
        self._logged_at: tuple | None = None
        self._next_time = 0.0  # the next virtual time to evaluate at
        components.diagnostics.open(directory)
        # evaluated last, after the other observers of the iteration
        averaging = [] if self.average is None else [self.average]
        self._simulation.observers += [components.diagnostics, self.arrivals, self.steps, *averaging, self]

    def show_progress(self, label: str) -> None:
        """Show a progress bar from now on."""
        self._progress = Progress(self._total, label, done=self._used_budget())
        if (live := self._components.live) is not None:
            live.show_changes(self._update_progress)

    def close(self) -> None:
        """Give the terminal back, and complete the tables."""
        for table in self._tables.values():
            table.add_open_rows()
        if self._progress is not None:
            self._progress.close()

    def _used_budget(self) -> float:
        return self._simulation.counters.used_of(self._budget_key)

    @property
    def reached_target(self) -> str | None:
        """``target_accuracy`` once the latest point has it, else None."""
        target = self.budget.target_accuracy
        return TARGET if target is not None and self.last.get("test/accuracy", 0.0) >= target else None

    # -- when --------------------------------------------------------------------------------------------------------

    def iterated(self, counters: Counters) -> None:
        """Note a server iteration."""
        if self.config.every_time is not None:
            return
        if self.config.every_uploads is not None:
            logged = self._logged_at[1] if self._logged_at is not None else 0
            due = counters.uploads // self.config.every_uploads > logged // self.config.every_uploads
        else:
            due = counters.iteration % self.config.every == 0
        if due:
            self.log(counters)

    def log_before(self, next_event: float, stop: Stop) -> bool:
        """Log a point at every evaluation time before ``next_event`` (virtual time), with the model of that time.

        Returns False if a signal arrived meanwhile.
        """
        every, limit = self.config.every_time, self.budget.virtual_time
        if every is None:
            return True
        self._next_time = max(self._next_time, every)
        if limit is not None:
            next_event = min(next_event, limit)
        if math.isinf(next_event):  # nothing is in flight, so nothing will change
            return True
        while self._next_time < next_event:
            if stop:
                return False
            self.log_once(replace(self._simulation.counters, virtual_time=self._next_time))
            self._next_time = every * (round(self._next_time / every) + 1)  # repeated addition would drift
        return True

    def log_once(self, counters: Counters) -> None:
        """Log a point unless there is one of this very moment, as where the budget ends at an evaluation."""
        if self._logged_at != _time_key(counters):
            self.log(counters)

    # -- what --------------------------------------------------------------------------------------------------------

    def log(self, counters: Counters) -> None:
        """Evaluate the model and log a point."""
        parts = self._components
        started = time.monotonic()
        with parts.stop.waits_for("an evaluation, then a checkpoint"):
            self._hits_c = np.zeros(parts.task.classes, dtype=np.int64) if self.config.clients else None
            measured = parts.task.evaluate(parts.model_d, self._hits_c)
            if self.average is not None:
                self.average.last = parts.task.evaluate(self.average.mean_d)
        self.seconds += time.monotonic() - started
        amounts = used_amounts(counters, parts.rule.needs) | {"wall_time": self._stopwatch.seconds}
        row: dict[str, object] = {name: amounts[name] for name in (*COUNTERS, *amounts) if name != "discarded"}
        row |= measured | self.arrivals.metrics(counters.iteration) | self.steps.metrics()
        row |= _checked_numbers(parts.rule, "stats", parts.rule.stats(), row)
        if self.average is not None:
            row |= {f"average/{key}": value for key, value in self.average.last.items()}
        if self._hits_c is not None:
            row |= {f"clients/{key}": value for key, value in self._measure_clients(self._hits_c)[1].items()}
        for observer in self._simulation.observers:
            row |= _checked_numbers(observer, "measure", observer.measure(row), row)
        self._metrics.write(row)
        self.lines += 1
        self._logged_at = _time_key(counters)
        self._tracker.log(row)
        for observer in self._simulation.observers:
            observer.evaluated(row)
        self.last = measured
        if not self.best or measured["test/accuracy"] > self.best["test/accuracy"]:
            self.best = {"test/accuracy": measured["test/accuracy"], "iteration": counters.iteration}
        self._update_progress()
        first = self.arrivals.first_unfinite
        if first is not None or not math.isfinite(measured["test/loss"]):
            at = f"the evaluation after {counters.iteration} server iterations and {counters.uploads} uploads"
            raise Diverged(f"the loss is no longer finite, first in {first or at}; {self._divergence_hint}")

    def _update_progress(self) -> None:
        if self._progress is None:
            return
        counters, live = self._simulation.counters, self._components.live
        rate = counters.uploads / max(self._stopwatch.seconds, 1e-9)
        note = "" if live is None else live.status()
        accuracy = self.last.get("test/accuracy")
        self._progress.update(self._used_budget(), counters.iteration, accuracy, counters.virtual_time, rate, note)

    def _measure_clients(self, hits_c: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        """Return the (n,) accuracy that each client may expect, and its summary."""
        arrivals, uploads_n = self.arrivals, np.asarray(self.arrivals.uploads_n)
        accuracy_n = clients.expected_accuracy(hits_c, self._components.task.tests_c, self._labels_nc)
        return accuracy_n, clients.client_accuracy_summary(accuracy_n, arrivals.mean_delay_n, uploads_n)

    def write_clients(self, directory: RunDirectory) -> None:
        """Write clients.parquet, of the final model."""
        task = self._components.task
        if self._hits_c is None:  # resumed at its end
            self._hits_c = np.zeros(task.classes, dtype=np.int64)
            task.evaluate(self._components.model_d, self._hits_c)
        accuracy_n, self.clients = self._measure_clients(self._hits_c)
        kept_n = self.steps.kept_n
        types = clients.TYPES | (clients.KEPT if kept_n is not None else {})
        types |= {f"{clients.LABEL}{label}": np.int64 for label in range(task.classes)}
        table = directory.open_table(CLIENTS_NAME, types)
        facts = [task.clients.samples_n, self.arrivals.uploads_n, self.arrivals.mean_delay_n, accuracy_n]
        facts += [np.asarray(kept_n)] if kept_n is not None else []
        for row in zip(range(task.clients.n), *facts, *self._labels_nc.T, strict=True):
            table.add(row)

    def warning(self) -> str | None:
        """Return a line about a useless model with finite numbers; None if there is nothing to say."""
        task, model_d = self._components.task, self._components.model_d
        spread = float(model_d.norm()) / len(model_d) ** 0.5
        better = self.last["test/accuracy"] > task.chance + 0.1 * (1 - task.chance)
        if better:
            return None
        if spread < EXPLODED:
            return f"the model is at chance ({100 * task.chance:.1f} %); sweep=tune searches step sizes"
        what = f"the model is at chance and has exploded (root mean square of its weights {spread:.2g})"
        return f"{what}; {self._divergence_hint}"

    @property
    def _divergence_hint(self) -> str:
        """Return the settings that may prevent divergence."""
        step = "algorithm.server_lr" if self._components.rule.needs.cuts else "algorithm.eta"
        return f"a smaller {step} or client.lr may help"

    # -- state -------------------------------------------------------------------------------------------------------

    def parts(self) -> dict[str, Stateful]:
        tables = self._tables if self.trace is None else {"trace": self.trace, **self._tables}
        average = {} if self.average is None else {f"average_{self.average.window}": self.average}
        return {"arrivals": self.arrivals, "steps": self.steps, **average, **tables}


def _checked_numbers(
    part: ServerRule | Observer, method: str, measured: Mapping[str, float], row: Mapping[str, object]
) -> dict[str, float]:
    """Return the measured values of a rule or an observer as numbers. Raises BenchError for other types and for a name
    that is taken.

    method  that returned ``measured``
    """
    if not isinstance(measured, Mapping):
        raise wrong_return(part, method, measured, "numbers by name, {} for none")
    found = {}
    cls = part.__class__.__name__
    for name, value in measured.items():
        what = f"{cls}.{method}: {name}={value!r:.100}"
        if name in (*row, "run"):
            raise BenchError(f"{what}: the name is taken; write {cls.lower()}/{name}")
        try:
            found[name] = value if isinstance(value, int) else float(value)
        except (TypeError, ValueError):
            raise BenchError(f"{what}: must be a number") from None
        if name.endswith("accuracy") and not (0 <= found[name] <= 1 or math.isnan(found[name])):
            raise BenchError(f"{what}: must be a share, 0 to 1, as its name ends in accuracy")
    return found


def used_amounts(counters: Counters, needs: Needs) -> dict[str, Any]:
    """Return the amounts that a run has used, by name, without those that a rule of these needs never uses."""
    unused = [] if needs.cuts else ["messages", "server_steps"]
    unused += ["cancelled"] if needs.restart_at is None else []
    return {name: amount for name, amount in asdict(counters).items() if name not in unused}


def _time_key(counters: Counters) -> tuple:
    return (counters.iteration, counters.uploads, counters.virtual_time)
