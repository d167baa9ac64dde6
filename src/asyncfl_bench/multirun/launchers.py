"""What the launcher presets in ``conf/hydra/launcher`` need, and how their jobs are stopped together."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable

from ..errors import ConfigError, did_you_mean

# preset: (plugin, extra that installs it)
PRESETS = {
    "cores": ("hydra_joblib_launcher", "joblib"),
    "slurm": ("hydra_submitit_launcher", "slurm"),
    "slurm_local": ("hydra_submitit_launcher", "slurm"),
    "ray_local": ("hydra_ray_launcher", "ray"),
    "ray_cluster": ("hydra_ray_launcher", "ray"),
}
OTHERS = {"basic", "joblib", "submitit_slurm", "submitit_local", "ray", "ray_aws"}  # Hydra's and the plugins' own
SECONDS_TO_SAVE = 60.0


def check_launcher(name: str) -> None:
    """Raises ConfigError for a launcher there is not, and for a preset whose plugin is not installed."""
    if name not in PRESETS:
        if name not in OTHERS:
            known = [*PRESETS, "basic"]
            raise ConfigError("hydra/launcher", name, f"must be one of {', '.join(known)}{did_you_mean(name, known)}")
        return
    plugin, extra = PRESETS[name]
    if importlib.util.find_spec(f"hydra_plugins.{plugin}") is None:
        raise ConfigError("hydra/launcher", name, f"needs pip install 'asyncfl_bench[{extra}]'")


def workers_of_joblib() -> list[int]:
    """Ids of the processes that joblib has started from this one."""
    return [worker.pid for worker in multiprocessing.active_children() if worker.pid is not None]


def let_workers_save(workers: list[int], under_way: Callable[[], bool]) -> None:
    """Tells these processes to stop, and waits until no run is under way.

    Launchers kill their workers as soon as this process is interrupted, a run that is writing its checkpoint included.
    """
    for pid in workers:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
    until = time.monotonic() + SECONDS_TO_SAVE
    while workers and under_way() and time.monotonic() < until:
        time.sleep(0.2)


def forget_workers() -> None:
    """Ends what a launcher that gave up has left running: Ray goes on with the other tasks, which are begun again."""
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()
