"""How many processes and runs a GPU has room for at once, by the memory that runs are estimated to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..clients.stacked import ROWS
from ..config import Settings
from ..errors import BenchError
from ..experiment import machine
from ..storage import describe_size
from .probe import RunSize, try_to_build
from .progress import count_runs

CONTEXT = 2**30  # bytes of a process: CUDA's context and kernels, workspaces of cuBLAS and cuDNN
SHARE = 0.9  # of the free memory: the estimate lacks fragments
MOST_PROCESSES = 8  # more gain little (modelled): kernels of several processes take turns
_KIND = ("algorithm", "client", "dataset", "model")


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
    for one in pending:
        kind = _kind_of(one)
        if kind not in known:
            try:
                known[kind] = try_to_build(one)
            except BenchError:  # its own run says why
                known[kind] = RunSize(0, 0)
    return [known[_kind_of(one)] for one in pending]


def _kind_of(settings: Settings) -> object:
    root = settings.root
    rest = root.n_clients, root.concurrency, root.executor, root.precision, settings.tree["client"].get("batch_size")
    return (*(settings.choices.get(group) for group in _KIND), *rest)


def _count_processes(count: int) -> str:
    return f"{count} process{'es' * (count != 1)}"
