"""A launcher of runs in processes on a GPU, several in each.

Hydra accepts plugins only from this package.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class Gpu(Launcher):
    """``processes`` at once, and in each of them ``runs``; None: as many as fit."""

    def __init__(self, processes: int | None, runs: int | None):
        self._numbers = {"processes": processes, "runs": runs}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep nothing: the sweeper's jobs have their settings."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from asyncfl_bench.files import say
        from asyncfl_bench.multirun import pending
        from asyncfl_bench.multirun.members import run_members
        from asyncfl_bench.multirun.probe import find_room

        def settings_of(words: Sequence[str]) -> Any:
            jobs = pending.state.current
            return next(job.settings for job in jobs if list(words[-len(job.sent) :]) == list(job.sent))

        settings = [settings_of(words) for words in job_overrides]
        room = find_room(self._numbers, settings)
        if len(settings) > 1:
            say(room.reason)
        answers = run_members(settings, room.runs, room.processes)
        return [JobReturn(overrides=words, status=JobStatus.COMPLETED, _return_value=answer) for words, answer in
                zip(job_overrides, answers, strict=True)]  # fmt: skip
