"""How many runs a launcher has under way at once: what times of single runs are divided by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def workers_of(hydra: Any) -> int:
    """Runs at once, as far as the launcher's settings say; 1 where they do not. hydra: Hydra's own settings."""
    launcher, most = hydra.launcher, hydra.sweeper.get("max_batch_size")
    count = _launcher_workers(launcher)
    return max(1, count if most is None else min(count, most))


def _launcher_workers(launcher: Mapping[str, Any]) -> int:
    """Return the number of workers from a launcher's own settings; 1 if they give none."""
    if (jobs := launcher.get("n_jobs")) is not None:
        from joblib import effective_n_jobs

        return int(effective_n_jobs(jobs))
    if (jobs := launcher.get("array_parallelism")) is not None:
        return int(jobs)
    if (ray := launcher.get("ray")) is not None:  # how many cores a cluster has, only Ray knows
        return int(_cores() / ray.remote.num_cpus) if ray.init.get("address") == "local" else 1
    return _cores() if str(launcher.get("_target_")).endswith("submitit.Local") else 1


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
