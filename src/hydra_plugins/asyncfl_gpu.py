"""A launcher of several runs in one process on a GPU.

Hydra accepts plugins only from this package.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class Gpu(Launcher):
    """At most ``runs`` runs at once, each in a thread."""

    def __init__(self, runs: int):
        self._runs = runs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep nothing: the sweeper's jobs have their settings."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from asyncfl_bench.multirun import pending
        from asyncfl_bench.multirun.members import run_members

        def settings_of(words: Sequence[str]) -> Any:
            jobs = pending.state.current
            return next(job.settings for job in jobs if list(words[-len(job.sent) :]) == list(job.sent))

        answers = run_members([settings_of(words) for words in job_overrides], self._runs)
        return [JobReturn(overrides=words, status=JobStatus.COMPLETED, _return_value=answer) for words, answer in
                zip(job_overrides, answers, strict=True)]  # fmt: skip
