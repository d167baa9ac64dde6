"""The cost of a run on this machine, from its first seconds: ``afl-run … --plan --measure``."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from ..config import Settings
from ..errors import BenchError, Stopped, describe_lack_of_memory, lacks_memory
from ..experiment import memory
from ..experiment.machine import existing_folder
from .history import count_points

if TYPE_CHECKING:
    from ..experiment.components import Components

SECONDS = 2.0  # of simulated work that are timed
LONGEST = 10.0  # s of a trial, and of the local work behind an upload that is tried
EVALUATION_SECONDS, FIRST_SAMPLES = 0.3, 32  # of an evaluation that is timed; test samples of the first try


@dataclass(frozen=True)
class RunSize:
    """Bytes on the device. run: of a run alone;  shared: of training samples, which runs of one process can share"""

    run: int
    shared: int


def try_to_build(settings: Settings) -> RunSize:
    """Build a run, which reads its data and takes its memory, and return what it needs.

    Raises ConfigError or BenchError if it cannot start.
    """
    from ..experiment.build import build_run

    try:
        with TemporaryDirectory(dir=existing_folder(settings.directory)) as folder:  # on the disk of the run's cache
            parts = build_run(replace(settings, place=Path(folder)))
            parts.executor.close()
            shared, own = parts.task.samples_bytes
            return RunSize(parts.needs.device + parts.needs.activations + own, shared)
    except (ImportError, MemoryError, RuntimeError) as problem:
        if not lacks_memory(problem):
            raise
        raise BenchError(describe_lack_of_memory(problem)) from problem


def measure_seconds(settings: Settings) -> float | None:
    """Return the estimated wall seconds of a run: start, work by its share of the budget, evaluations.

    The trial ends by the clock. None: it gave no upload, and no limit of the budget says how many there will be.
    No file is kept. Raises ConfigError or BenchError if the run cannot start.
    """
    from ..experiment.build import build_run

    began = time.perf_counter()
    with TemporaryDirectory() as folder:  # a cache on disk would be in the run's own
        parts = build_run(replace(settings, place=Path(folder)))
        start = time.perf_counter() - began
        try:
            evaluation, upload = _evaluation_seconds(parts), _upload_seconds(settings, parts)
            work, expected = _try_work(settings, parts) if upload < LONGEST else (None, {})
        finally:
            parts.executor.close()
    if work is None:
        if (uploads := _expected_uploads(settings)) is None:
            return None
        work = uploads * upload
        expected = {"uploads": uploads, "server_iterations": uploads / memory.uploads_per_iteration(settings)}
    return start + work + count_points(settings.tree, expected) * evaluation


def _evaluation_seconds(parts: Components) -> float:
    """Return the seconds of an evaluation, by as many of its samples as take a moment."""
    samples, total = FIRST_SAMPLES, parts.task.describe()["test_samples"]
    parts.task.evaluate(parts.model_d, most=samples)  # the first one waits for what is loaded late
    while True:
        began = time.perf_counter()
        parts.task.evaluate(parts.model_d, most=samples)
        took = time.perf_counter() - began
        if samples >= total or took > EVALUATION_SECONDS:
            return took * total / min(samples, total)
        samples *= 4


def _upload_seconds(settings: Settings, parts: Components) -> float:
    """Return about the seconds of the local work behind an upload, by the gradient of a few samples."""
    task, client = parts.task, settings.parts["client"].config
    largest = int(task.clients.samples_n.max())
    batch = largest if client.batch_size == "all" else min(client.batch_size, largest)
    steps = math.ceil(largest / batch) * client.local_epochs if client.local_epochs else client.local_steps
    x, y = task.batch(np.arange(min(batch, FIRST_SAMPLES)))
    out_d = parts.model_d.clone()
    for _ in range(2):  # the first one waits for what is loaded late
        began = time.perf_counter()
        float(task.flat.gradient(parts.model_d, x, y, out_d))
        took = time.perf_counter() - began
    return took * batch / len(x) * steps


def _expected_uploads(settings: Settings) -> float | None:
    """Return the uploads of a run by the limits of its budget; None if these do not tell."""
    limits = settings.budget.amounts
    each = {"uploads": 1, "server_iterations": memory.uploads_per_iteration(settings)}
    return min((limits[name] * count for name, count in each.items() if name in limits), default=None)


def _try_work(settings: Settings, parts: Components) -> tuple[float | None, dict[str, float]]:
    """Return the seconds of a run's work, None if no upload came, and its counts at its end by name.

    The first round is excluded if it ends within the trial, because later rounds take another time. A share of a
    server iteration counts, so that one upload tells.
    """
    simulation, per_iteration = parts.simulation, memory.uploads_per_iteration(settings)
    limits = settings.budget.amounts
    units = {*limits, "server_iterations", "uploads", "virtual_time"}

    def amounts_used() -> dict[str, float]:
        used = {key: float(simulation.counters.used_of(key)) for key in units}
        return used | {"server_iterations": max(used["server_iterations"], used["uploads"] / per_iteration)}

    began = at = last = time.perf_counter()
    before, used = dict.fromkeys(units, 0.0), dict.fromkeys(units, 0.0)
    first, over, share = True, None, 0.0
    clock = threading.Timer(LONGEST, parts.stop.received.append, [0])  # stops work between two mini-batches
    clock.daemon = True
    clock.start()
    with suppress(Stopped):
        while over is None and last - began < LONGEST and (last - at < SECONDS or not share):
            over, last = simulation.step(), time.perf_counter()
            used = {key: amount - before[key] for key, amount in amounts_used().items()}
            share = max(used[key] / limit for key, limit in limits.items())
            if first and over is None and simulation.counters.uploads >= settings.root.n_clients:
                first, share, whole = False, 0.0, (share, used, last - at)
                at, before = last, amounts_used()
    clock.cancel()
    took = last - at
    if not share and not first:  # nothing after the first round
        share, used, took = whole
    if not share and over is None:
        return None, {}
    share = share or 1.0  # of none where it ended before its first iteration
    return took / share, {key: amount / share for key, amount in used.items()}
