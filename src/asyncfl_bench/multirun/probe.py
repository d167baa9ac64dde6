"""Runs tried on this machine before they start: seconds, memory, and how many at once a GPU has room for."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ..clients.stacked import ROWS
from ..config import Settings
from ..errors import BenchError, Stopped, describe_lack_of_memory, lacks_memory
from ..experiment import machine, memory
from ..storage import describe_size
from .estimates import count_points
from .jobs import count_runs

if TYPE_CHECKING:
    from ..experiment.components import Components

SECONDS = 2.0  # of simulated work that are timed
LONGEST = 10.0  # s of a trial, and of the local work behind an upload that is tried
EVALUATION_SECONDS, FIRST_SAMPLES = 0.3, 32  # of an evaluation that is timed; test samples of the first try
CONTEXT = 2**30  # bytes of a process: CUDA's context and kernels, workspaces of cuBLAS and cuDNN
SHARE = 0.9  # of the free memory: the estimate lacks fragments
MOST_PROCESSES = 8  # more gain little (modelled): kernels of several processes take turns


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
        with TemporaryDirectory(dir=machine.existing_folder(settings.directory)) as folder:  # of the run's cache
            parts = build_run(replace(settings, named_directory=Path(folder)))
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
        parts = build_run(replace(settings, named_directory=Path(folder)))
        start = time.perf_counter() - began
        try:
            evaluation, upload = _evaluation_seconds(parts), _upload_seconds(settings, parts)
            work, expected = _try_work(settings, parts) if upload < LONGEST else (None, {})
        finally:
            parts.executor.close()
    if work is None:
        if (uploads := settings.most_uploads) is None:
            return None
        work = uploads * upload
        expected = {"uploads": uploads, "server_iterations": uploads / settings.uploads_per_iteration}
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
    batch = memory.largest_batch(client.batch_size, largest)
    steps = math.ceil(largest / batch) * client.local_epochs if client.local_epochs else client.local_steps
    x, y = task.batch(np.arange(min(batch, FIRST_SAMPLES)))
    out_d = parts.model_d.clone()
    for _ in range(2):  # the first one waits for what is loaded late
        began = time.perf_counter()
        float(task.flat.gradient(parts.model_d, x, y, out_d))
        took = time.perf_counter() - began
    return took * batch / len(x) * steps


def _try_work(settings: Settings, parts: Components) -> tuple[float | None, dict[str, float]]:
    """Return the seconds of a run's work, None if no upload came, and its counts at its end by name.

    The first round is excluded if it ends within the trial, because later rounds take another time. A fraction
    of a server iteration counts, so one upload gives an estimate.
    """
    simulation, per_iteration = parts.simulation, settings.uploads_per_iteration
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


@dataclass(frozen=True)
class Room:
    """Processes at once, and runs at once in each. reason: one line with both numbers and their limits"""

    processes: int
    runs: int
    reason: str

    @property
    def count(self) -> int:
        """Runs at once."""
        return self.processes * self.runs


def find_room(launcher: Mapping[str, Any], pending: Sequence[Settings]) -> Room:
    """Return how many of the pending runs have room. A run of each kind is built, unless both numbers are typed.

    launcher  settings of ``hydra/launcher=gpu``
    """
    processes, runs = launcher["processes"], launcher["runs"]
    if len(pending) < 2 or (processes and runs):
        runs = min(runs or 1, len(pending))
        processes = min(processes or 1, -(-len(pending) // max(1, runs)))
        return Room(processes, runs, f"at once: {_count_processes(processes)} of {count_runs(runs)}")
    device = machine.select_device("auto")
    free, sizes = machine.free_memory(device) or 0, _sizes_of(pending)
    room = choose_room(sizes, free, machine.usable_cores(), processes, runs)
    machine.release_memory(device)
    return room


def choose_room(
    sizes: Sequence[RunSize], free: int, cores: int, processes: int | None = None, runs: int | None = None
) -> Room:
    """Return how many processes and runs fit.

    sizes  of all pending runs;  free  bytes of the GPU;  processes, runs  typed numbers; None: as many as fit
    """
    needs = sorted((one.run for one in sizes), reverse=True)
    process, usable = CONTEXT + max(one.shared for one in sizes), int(SHARE * free)

    def fit(processes: int, runs: int) -> bool:
        return processes * process + sum(needs[: processes * runs]) <= usable

    most = {"rows of a stack": ROWS, "pending runs": -(-len(needs) // (processes or 1))}
    each, runs_limit = _largest_fitting(runs, most, lambda count: fit(processes or 1, count))
    most = {"pending runs": -(-len(needs) // each), "cores": cores, "the largest useful number": MOST_PROCESSES}
    several, limit = _largest_fitting(processes, most, lambda count: fit(count, each))
    if runs is None:
        each = min(each, -(-len(needs) // several))  # all processes get equally many
    return Room(
        several,
        each,
        f"at once: {_count_processes(several)} (limit: {limit}) of {count_runs(each)} (limit: {runs_limit}); the "
        f"largest run needs {describe_size(needs[0])}, a process {describe_size(process)} besides; "
        f"{describe_size(usable)} of the GPU are used, {SHARE:.0%} of its free memory",
    )


def _largest_fitting(typed: int | None, most: Mapping[str, int], fits: Callable[[int], bool]) -> tuple[int, str]:
    """Return the number and its limit: as typed, or the largest one that fits within the limits, at least 1."""
    if typed:
        return typed, "as typed"
    name = min(most, key=lambda key: most[key])
    found = max((count for count in range(1, most[name] + 1) if fits(count)), default=1)
    return found, name if found == most[name] else "memory"


def _sizes_of(pending: Sequence[Settings]) -> list[RunSize]:
    """Return the size of each run. One run of each kind is built; a run that cannot be built counts as 0 bytes."""
    known: dict[object, RunSize] = {}
    sizes = []
    for one in pending:
        root, batch_size = one.root, one.tree["client"].get("batch_size")
        parts = [one.choices.get(group) for group in ("algorithm", "client", "dataset", "model")]
        kind = (*parts, root.n_clients, root.concurrency, root.executor, root.precision, batch_size)
        if kind not in known:
            try:
                known[kind] = try_to_build(one)
            except BenchError:  # its own run says why
                known[kind] = RunSize(0, 0)
        sizes.append(known[kind])
    return sizes


def _count_processes(count: int) -> str:
    return f"{count} process{'es' * (count != 1)}"
