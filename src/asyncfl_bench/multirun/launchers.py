"""Checks of the launcher presets in ``conf/hydra/launcher``, their number of parallel runs, and how these stop."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import ConfigError, check

SECONDS_TO_SAVE = 60.0
SIGNAL_EARLY = 60  # seconds by which Slurm may send a job's signal before its time (sbatch --signal)
LEAST_WORK = 60  # seconds of a job before the signal, of which loading torch may take a third


def shares_gpu(hydra: Any) -> bool:
    """Return True if the launcher is ``hydra/launcher=gpu``. hydra: Hydra's own settings"""
    return str(hydra.launcher.get("_target_")).endswith(".Gpu")


def check_machine(hydra: Any) -> None:
    """Raise ConfigError if this machine lacks Slurm or a GPU that the launcher needs. hydra: Hydra's own settings"""
    from ..experiment.machine import has_gpu  # brings NumPy

    launcher = hydra.runtime.choices["hydra/launcher"]
    if str(hydra.launcher.get("_target_")).endswith((".Slurm", ".SlurmLauncher")) and shutil.which("srun") is None:
        allowed = "needs Slurm, and this machine has no srun; slurm_local is the same in processes of this machine"
        raise ConfigError("hydra/launcher", launcher, allowed)
    if not shares_gpu(hydra):
        return
    for name in ("processes", "runs"):
        count = hydra.launcher.get(name)
        allowed = "at least 1, or null: as many as fit"
        check(count is None or (type(count) is int and count > 0), f"hydra.launcher.{name}", count, allowed)
    if not has_gpu():
        raise ConfigError("hydra/launcher", launcher, "needs a GPU; hydra/launcher=cores takes the cores of a CPU")


def check_numbers(hydra: Any) -> None:
    """Raise ConfigError for numbers of the launcher and the sweeper that cannot work. hydra: Hydra's own settings"""
    launcher, most = hydra.launcher, hydra.sweeper.get("max_batch_size")
    check(most is None or (type(most) is int and most > 0), "hydra.sweeper.max_batch_size", most, "at least 1, or null")
    jobs = launcher.get("n_jobs")
    check(jobs is None or (type(jobs) is int and jobs != 0), "hydra.launcher.n_jobs", jobs, "at least 1; -1: all cores")
    if (ray := launcher.get("ray")) is not None and "num_cpus" in ray.remote:
        cores, is_local = ray.remote.num_cpus, ray.init.get("address") == "local"  # a cluster's jobs may need GPUs only
        is_number = isinstance(cores, (int, float)) and 0 <= cores < math.inf and (cores > 0 or not is_local)
        allowed = "a number > 0 of cores per job" if is_local else "a number >= 0 of cores per job, or null for Ray's"
        check(is_number or (cores is None and not is_local), "hydra.launcher.ray.remote.num_cpus", cores, allowed)
    minutes, delay = launcher.get("timeout_min"), launcher.get("signal_delay_s")
    if not isinstance(minutes, int) or not isinstance(delay, int):
        return
    # a job of Slurm that ends before it has worked would be requeued again and again
    allowed = "at least 1: with 0 Slurm sends no signal, and a run is ended"
    check(delay > 0, "hydra.launcher.signal_delay_s", delay, allowed)
    left, least = 60 * minutes - delay - SIGNAL_EARLY, -(-(delay + SIGNAL_EARLY + LEAST_WORK) // 60)
    allowed = (
        f"at least {least} with signal_delay_s={delay}: Slurm may send the signal {SIGNAL_EARLY} s early, and of "
        f"{60 * minutes} s a job may have {max(0, left)} s, loading included"
    )
    check(left >= LEAST_WORK, "hydra.launcher.timeout_min", minutes, allowed)


def workers_of(hydra: Any) -> int:
    """Return the number of parallel runs by the launcher's settings; 1 if they have none.

    hydra  Hydra's own settings
    """
    from ..experiment.machine import usable_cores  # brings NumPy

    launcher, most, count = hydra.launcher, hydra.sweeper.get("max_batch_size"), 1
    if (jobs := launcher.get("n_jobs")) is not None:
        from joblib import effective_n_jobs

        count = int(effective_n_jobs(jobs))
    elif (jobs := launcher.get("array_parallelism")) is not None:
        count = int(jobs)
    elif "processes" in launcher:  # at least; their memory decides (probe.find_room)
        count = int(launcher["processes"] or 1) * int(launcher["runs"] or 1)
    elif (ray := launcher.get("ray")) is not None:  # how many cores a cluster has, only Ray knows
        count = int(usable_cores() / ray.remote.num_cpus) if ray.init.get("address") == "local" else 1
    elif str(launcher.get("_target_")).endswith("submitit.LocalSubmitter"):
        count = usable_cores()
    return max(1, count if most is None else min(count, most))


@contextmanager
def ignoring_terminal_signals(*more: signal.Signals) -> Iterator[None]:
    """Shield processes that start inside the block from a terminal's Ctrl-C and its end, and from ``more``.

    This process forwards the signal when it is ready. A second signal would stop the others while they save.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP, *more])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_processes() -> list[int]:
    """Return the ids of processes that joblib and ``hydra/launcher=gpu`` have started from this one."""
    return [worker.pid for worker in multiprocessing.active_children() if worker.pid is not None]


def let_workers_save(workers: list[int], has_active_runs: Callable[[], bool]) -> None:
    """Send SIGTERM to these processes, and wait until no run is active.

    Launchers kill their workers as soon as this process is interrupted, a run that is writing its checkpoint included.
    """
    for pid in workers:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
    if workers:
        wait_while(has_active_runs)


def wait_while(has_active_runs: Callable[[], bool]) -> None:
    """Wait until no run is active, at most SECONDS_TO_SAVE."""
    until = time.monotonic() + SECONDS_TO_SAVE
    while has_active_runs() and time.monotonic() < until:
        time.sleep(0.2)


def watch_squeue(delay_s: int) -> Any:
    """Return submitit's watcher of Slurm's jobs, which calls squeue at most every ``delay_s`` seconds.

    submitit's own watcher calls sacct, which has no jobs without accounting. squeue works on every cluster. Slurm lists
    a job until some minutes after its end (MinJobAge), so a job that is no longer listed has ended.
    """
    from submitit.slurm.slurm import SlurmInfoWatcher

    class Queue(SlurmInfoWatcher):
        def _make_command(self) -> list[str] | None:
            asked = super()._make_command()  # None when no job is left
            return asked and ["squeue", "--me", "--states=all", "--array", "--noheader", "--format=%i|%T|%N"]

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            lines = string if isinstance(string, str) else string.decode()
            listed = super().read_info(f"JobID|State|NodeList\n{lines}")
            return {job: {"State": "ENDED"} for job in self._registered} | listed

    return Queue(delay_s=delay_s)


def forget_workers() -> None:
    """End the tasks of a launcher that gave up: Ray continues the other tasks, which are started again."""
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()
