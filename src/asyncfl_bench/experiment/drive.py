"""Driving the parts of a run through virtual time, from its first event or its checkpoint to its end."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ..algorithms.distillation import Distilled
from ..config.settings import OBSERVERS
from ..data.base import PrivateConfig
from ..errors import BenchError, Stopped
from ..files import say, to_yaml
from ..tracking.rundir import INITIAL_NAME, MODEL_NAME
from ..tracking.trackers import RunFacts
from . import machine
from .checkpoint import Checkpoints
from .evaluate import Evaluations, Stopwatch, used_amounts
from .result import FILES

if TYPE_CHECKING:
    from ..tracking.rundir import RunDirectory
    from ..tracking.trackers import Trackers
    from .components import Components


class Run:
    """One run in progress.

    started      False as long as nothing in the directory has been touched
    ended_by     the budget key that ended it, "no_clients" or "stalled"; None before
    """

    def __init__(self, components: Components, directory: RunDirectory, tracker: Trackers):
        self.settings, self.components = components.settings, components
        self.directory, self.tracker = directory, tracker
        self.ended_by: str | None = None
        self.started = False
        self.stopwatch = Stopwatch()
        self.evaluations = Evaluations(components, directory, tracker, self.stopwatch)
        self.checkpoints = Checkpoints(components, self.evaluations, directory, self.stopwatch)

    def open(self, group: str | None, alone: bool) -> None:
        """Resume from a checkpoint if there is one, else write the run's first files. alone: print a line."""
        settings, directory, task = self.settings, self.directory, self.components.task
        resumed = self.checkpoints.load()
        self.started = True
        directory.reopen()
        directory.write_config(to_yaml(settings.tree))
        if resumed is None:
            directory.clear()
            if settings.root.trace:
                directory.write_partition(task.partition)
                directory.write_model(INITIAL_NAME, task.flat.named_tensors(self.components.model_d))
            private = isinstance(settings.parts["dataset"].config, PrivateConfig)
            if private and settings.parts["live"].config.keep_uploads and task.clients.labels_nc is not None:
                directory.write_counts(task.clients.labels_nc)  # a replay with these uploads needs no client's file
        elif resumed is directory:
            directory.metrics.truncate(self.evaluations.lines)
        else:
            directory.clear()
            directory.copy_start_from(resumed, self.evaluations.lines)
            self.checkpoints.save()
        names = (settings.name, settings.identity, settings.experiment_name)
        if settings.root.progress and alone:  # of several runs each has one line, when it has ended
            used = self.components.simulation.counters
            resumes = f"resumes after {used.iteration} server iterations and {used.uploads} uploads" if resumed else ""
            say("; ".join(filter(None, (self.components.describe(), resumes, self.tracker.describe()))))
        with self.stopwatch.pausing():
            self.tracker.start(RunFacts(settings.tree, *names, directory.path, group))
        if settings.root.progress:
            self.evaluations.show_progress(settings.name)

    def drive(self) -> tuple[str, str | None]:
        """Run to the end or to the first signal. Return the status, "ok" or "interrupted", and an error's text or
        None."""
        simulation, evaluations, stop = self.components.simulation, self.evaluations, self.components.stop
        try:
            if not evaluations.lines:
                evaluations.log(simulation.counters)
            # a checkpoint made at the end resumes at the end
            self.ended_by = evaluations.reached_target or simulation.finish_reason()
            while self.ended_by is None:
                try:
                    if stop or not evaluations.log_before(simulation.next_time, stop):
                        return "interrupted", self.checkpoints.save_stopped()
                    self.ended_by = evaluations.reached_target or simulation.step() or evaluations.reached_target
                except Stopped:
                    continue
                if self.ended_by is None:
                    self.checkpoints.save_if_due()
            stop.under_way = "the run's last evaluation and its results"
            # a larger budget has no point here, and the intervals of its points do not end here
            if self.components.needs.vectors <= self.settings.checkpoint.at_end_mib * 2**20:
                try:
                    self.checkpoints.save()
                except BenchError as error:  # the results are complete without it
                    say(str(error))
            evaluations.log_once(simulation.counters)
            self._refuse_standstill()
            if self.settings.evaluation.clients:
                evaluations.write_clients(self.directory)
            if self.settings.root.trace or self.tracker.wants_model:
                parts = self.components
                self.directory.write_model(MODEL_NAME, parts.task.flat.named_tensors(parts.model_d))
            return "ok", None
        finally:
            evaluations.close()

    def _refuse_standstill(self) -> None:
        """Raise BenchError when nothing was learned and more of the same would not change that."""
        used = self.components.simulation.counters
        if self.ended_by in ("stalled", "no_clients") and not used.iteration:
            why = {"stalled": "the server never stepped", "no_clients": "no client was left to report"}[self.ended_by]
            raise BenchError(f"no server iteration in {used.uploads} uploads and {used.discarded} lost ones: {why}")

    def _describe_initial_model(self) -> str | None:
        """Return a warning if the model, or the server's part of it, is still the initial one; else None."""
        used = self.components.simulation.counters
        if used.iteration and used.messages and not used.server_steps:
            return f"the server's part of the model is as it began: it never stepped in {used.messages} messages"
        if used.iteration or used.server_steps:
            return None
        return f"the model is as it began: budget.{self.ended_by} was reached before the first server iteration"

    def summary(self, status: str, error: str | None) -> dict:
        """Return the content of summary.json."""
        settings, parts = self.settings, self.components
        used, wall, average = parts.simulation.counters, self.stopwatch.seconds, self.evaluations.average
        amounts = used_amounts(used, parts.rule.needs)
        better = {metric: word for one in parts.simulation.observers for metric, word in one.better.items()}
        return {
            "exit_status": status,
            "error": error,
            "stopped_by": self.ended_by,
            "command": settings.command,
            "name": settings.name,
            "identity": settings.identity,
            "experiment": settings.experiment,
            "results_version": settings.results_version,
            "algorithm": settings.choices.get("algorithm"),
            "dataset": settings.choices.get("dataset"),
            **({"label": settings.label} if settings.label else {}),
            "delay": settings.choices.get("delay"),
            "seed": settings.root.seed,
            "parameters": parts.task.flat.d,
            "task": parts.task.describe(),
            "data_source": parts.task.source,
            "data_digest": parts.task.digest,
            **({FILES: parts.files} if parts.files else {}),
            **({"digests": settings.digests} if settings.digests else {}),
            **({"code": settings.code} if settings.code else {}),
            **({"code_digest": settings.code_digest} if settings.code_digest else {}),
            "final": self.evaluations.last,
            "best": self.evaluations.best,
            **({"default_steps": True} if settings.default_steps else {}),
            "warning": (self._describe_initial_model() or self.evaluations.warning()) if status == "ok" else None,
            "diagnostics": settings.tree["diagnostics"],
            "diagnosed": parts.diagnostics.summary(),
            **({"live": parts.live.summary()} if parts.live is not None else {}),
            **({"observers": observers} if (observers := settings.tree[OBSERVERS]) else {}),
            **({"better": better} if better else {}),
            "arrivals": self.evaluations.arrivals.summary(used.iteration),
            **({"clients": self.evaluations.clients} if self.evaluations.clients else {}),
            **({"average": {"uploads": average.window, **average.last}} if average else {}),
            "used": {"server_iterations": amounts.pop("iteration"), **amounts},
            "wall_seconds": wall,
            "evaluation_seconds": self.evaluations.seconds,
            **({"server_seconds": parts.rule.wall_times()} if isinstance(parts.rule, Distilled) else {}),
            "updates_per_second": used.uploads / wall if wall else 0.0,
            **self._summarize_machine(),
        }

    def _summarize_machine(self) -> dict:
        """Return memory, device, executor and versions."""
        parts = self.components
        return {
            "peak_memory_bytes": machine.peak_memory(parts.device),
            "estimated_memory_bytes": asdict(parts.needs),
            "state_bytes": parts.state_bytes(),
            "device": machine.device_name(parts.device),
            "device_reason": parts.chosen.reason,
            "cpu": machine.cpu_facts(),
            "threads": parts.cores,
            "executor": " then ".join(self.checkpoints.computed_by),
            "versions": machine.versions(),
            "git_revision": machine.git_revision(),
        }
