"""The cost of a run on this machine, from its first seconds: ``afl-run … --plan --measure``."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..config import Settings
from ..errors import BenchError, describe_lack_of_memory, lacks_memory
from ..experiment.machine import existing_folder
from .history import count_points

SECONDS = 2.0  # of simulated work that are timed


def try_to_build(settings: Settings) -> None:
    """Build a run, which reads its data and takes its memory. Raises ConfigError or BenchError if it cannot start."""
    from ..experiment.build import build_run

    try:
        with TemporaryDirectory(dir=existing_folder(settings.directory)) as folder:  # on the disk of the run's cache
            build_run(replace(settings, place=Path(folder))).executor.close()
    except (ImportError, MemoryError, RuntimeError) as problem:
        if not lacks_memory(problem):
            raise
        raise BenchError(describe_lack_of_memory(problem)) from problem


def measure_seconds(settings: Settings) -> float:
    """Return the estimated wall seconds of a run: start, work by its share of the budget, evaluations.

    The first round is excluded if it ends within the trial, because later rounds take another time. No file is kept.
    Raises ConfigError or BenchError if the run cannot start.
    """
    from ..experiment.build import build_run

    began = time.perf_counter()
    with TemporaryDirectory() as folder:  # a cache on disk would be in the run's own
        parts = build_run(replace(settings, place=Path(folder)))
        parts.task.evaluate(parts.model_d)  # the first one waits for what is loaded late
        start = time.perf_counter() - began
        parts.task.evaluate(parts.model_d)
        evaluation = time.perf_counter() - began - start
        simulation = parts.simulation
        limits = settings.budget.amounts
        units = {*limits, "server_iterations", "uploads", "virtual_time"}
        at, before = time.perf_counter(), dict.fromkeys(units, 0.0)
        first, over, share = True, None, 0.0
        try:
            while over is None and (time.perf_counter() - at < SECONDS or not share):
                over = simulation.step()
                used = {key: simulation.counters.used_of(key) - amount for key, amount in before.items()}
                share = max(used[key] / limit for key, limit in limits.items())
                if first and over is None and simulation.counters.uploads >= settings.root.n_clients:
                    first, share = False, 0.0
                    at, before = time.perf_counter(), {key: simulation.counters.used_of(key) for key in before}
        finally:
            parts.executor.close()
    took, share = time.perf_counter() - at, share or 1.0  # of none where it ended before its first iteration
    expected = {key: amount / share for key, amount in used.items()}
    return start + took / share + (count_points(settings.tree, expected) - 1) * evaluation  # the first is in start
