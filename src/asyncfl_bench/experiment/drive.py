"""Driving the parts of a run through virtual time, from its first event or its checkpoint to its end."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..config import RESULTS_VERSION, Settings
from ..errors import BenchError
from . import machine
from .checkpoint import Checkpoints
from .evaluate import Evaluations, Stopwatch

if TYPE_CHECKING:
    from ..tracking.rundir import RunDirectory
    from ..tracking.trackers import Tracker
    from .build import Components


class Run:
    """One run in progress.

    interrupted  signals received so far; as soon as there is one, the run saves itself and stops
    begun        False as long as nothing in the directory has been touched
    ended_by     the budget key that ended it, "no_clients" or "stalled"; None before
    """

    def __init__(
        self,
        settings: Settings,
        components: Components,
        directory: RunDirectory,
        tracker: Tracker,
        interrupted: list[int],
    ):
        self.settings, self.components, self.directory, self.tracker = settings, components, directory, tracker
        self.interrupted = interrupted
        self.ended_by: str | None = None
        self.begun = False
        self.stopwatch = Stopwatch()
        self.evaluations = Evaluations(settings, components, directory, tracker, self.stopwatch)
        self.checkpoints = Checkpoints(settings, components, self.evaluations, directory, self.stopwatch)

    def open(self, group: str | None) -> None:
        """Resumes from a checkpoint if there is one, else writes the run's first files."""
        settings, directory, task = self.settings, self.directory, self.components.task
        resumed = self.checkpoints.resume()
        self.begun = True
        directory.remove_summary()
        directory.write_config(_yaml(settings.tree))
        if not resumed:
            directory.truncate_metrics(0)
            if settings.root.trace:
                directory.write_partition(task.partition)
                directory.write_model("model_initial", task.flat.named(self.components.model_d))
        algorithm = str(settings.choices.get("algorithm"))
        self.tracker.start(settings.tree, settings.name, group, algorithm, settings.identity, directory.path)
        if settings.root.progress:
            print(self.components.describe(settings), file=sys.stderr)
            self.evaluations.show_progress(settings.name)

    def drive(self) -> str:
        """Runs to the end or to the first signal. Returns the exit status, "ok" or "interrupted"."""
        simulation, evaluations = self.components.simulation, self.evaluations
        try:
            if not evaluations.lines:
                evaluations.log(simulation.counters)
            else:
                self.ended_by = simulation.spent()  # a checkpoint made at the end resumes at the end
            self.ended_by = self.ended_by or simulation.begin()
            while self.ended_by is None:
                if self.interrupted or not evaluations.before(simulation.next_time, self.interrupted):
                    self.checkpoints.save()
                    return "interrupted"
                self.ended_by = simulation.step()
                if self.ended_by is None:
                    self.checkpoints.save_if_due()
            evaluations.log_once(simulation.counters)
            self._leave_final_state()
            return "ok"
        finally:
            evaluations.close()

    def _leave_final_state(self) -> None:
        parts = self.components
        if self.settings.root.trace:
            self.directory.write_model("model_final", parts.task.flat.named(parts.model_d))
        if parts.needs.total <= self.settings.checkpoint.at_end_mib * 2**20:
            try:
                self.checkpoints.save()
            except BenchError as error:  # the results are complete without it
                print(error, file=sys.stderr)

    def summary(self, status: str, error: str | None) -> dict:
        """The content of summary.json."""
        settings, parts = self.settings, self.components
        used, wall = parts.simulation.counters, self.stopwatch.seconds
        label = settings.parts["algorithm"].target.label
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
            **({"label": label} if label else {}),
            "delay": settings.choices.get("delay"),
            "seed": settings.root.seed,
            "parameters": parts.task.flat.d,
            "task": parts.task.describe(),
            "data_source": parts.task.source,
            "data_digest": parts.task.digest,
            "final": self.evaluations.last,
            "best": self.evaluations.best,
            "diagnostics": settings.tree["diagnostics"],
            "diagnosed": parts.diagnostics.summary(),
            "arrivals": self.evaluations.arrivals.summary(used.iteration),
            "used": {
                "server_iterations": used.iteration,
                "uploads": used.uploads,
                "client_steps": used.client_steps,
                "virtual_time": used.virtual_time,
                "discarded": used.discarded,
            },
            "wall_seconds": wall,
            "evaluation_seconds": self.evaluations.seconds,
            "updates_per_second": used.uploads / wall if wall else 0.0,
            "peak_memory_bytes": machine.peak_memory(parts.device),
            "estimated_memory_bytes": asdict(parts.needs),
            "state_bytes": parts.state_bytes(),
            "device": machine.device_name(parts.device),
            "threads": parts.cores,
            "executor": parts.executor_kind,
            "versions": machine.versions(),
            "git_revision": machine.git_revision(),
        }


def _yaml(tree: dict) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(tree))
