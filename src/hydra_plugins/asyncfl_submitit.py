"""submitit's launchers, waiting for every job: the plugin's own stop waiting at the first job that was killed.

Hydra accepts plugins only from this package. Without the plugin this module defines nothing.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from asyncfl_bench.files import say

with suppress(ImportError):
    from hydra.core.singleton import Singleton
    from hydra.core.utils import JobReturn, JobStatus
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

    SHARED = ("timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name")

    class BatchSubmitter(BaseSubmititLauncher):
        """Submits all jobs at once, as an array where possible, and returns when all jobs have ended."""

        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
            import submitit

            from asyncfl_bench.multirun.launchers import ignoring_terminal_signals

            settings = {key: value for key, value in self.params.items() if value is not None}
            folder = settings.pop("submitit_folder")
            times = {f"{self._EXECUTOR}_max_num_timeout": settings.pop("max_num_timeout")}
            executor = submitit.AutoExecutor(folder=folder, cluster=self._EXECUTOR, **times)
            plain = (*SHARED, "stderr_to_stdout")
            executor.update_parameters(
                **{key if key in plain else f"{self._EXECUTOR}_{key}": value for key, value in settings.items()}
            )
            arguments = [
                (list(overrides), "hydra.sweep.dir", number, f"job_id_for_{number}", Singleton.get_state())
                for number, overrides in enumerate(job_overrides, start=initial_job_idx)
            ]
            with ignoring_terminal_signals():
                jobs = executor.map_array(self, *zip(*arguments, strict=True))
            try:
                return [_outcome(job) for job in jobs]
            except KeyboardInterrupt:
                self.stop(jobs)
                raise

        def stop(self, jobs: Sequence[Any]) -> None:
            """Stop the jobs. Called when Ctrl-C ends the wait for them."""

    class LocalSubmitter(BatchSubmitter):
        """Processes of this machine. They would outlive this one, so they get the signal to save themselves."""

        _EXECUTOR = "local"

        def stop(self, jobs: Sequence[Any]) -> None:
            from asyncfl_bench.multirun import launchers, pending

            launchers.let_workers_save([int(job.job_id) for job in jobs if not job.done()], pending.has_active_runs)
            for job in jobs:
                if not job.done():
                    job.cancel()

    class Slurm(BatchSubmitter):
        """One array of Slurm jobs."""

        _EXECUTOR = "slurm"

        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
            # imported here: Hydra loads every plugin at the start of every command, and submitit takes a while
            from submitit.slurm.slurm import SlurmJob

            from asyncfl_bench.multirun.launchers import watch_squeue

            SlurmJob.watcher = watch_squeue(delay_s=60)
            return super().launch(job_overrides, initial_job_idx)

        def stop(self, jobs: Sequence[Any]) -> None:
            array = str(jobs[0].job_id).partition("_")[0]
            say(f"afl-run: the Slurm jobs continue without this command; scancel {array} ends them")

    def _outcome(job: Any) -> JobReturn:
        """Return a job's result; for a killed job, a failure with its exception."""
        try:
            return job.results()[0]
        except Exception as error:  # submitit's own, and whatever the job raised
            lost = JobReturn(status=JobStatus.FAILED)
            lost.return_value = error
            return lost
