"""asyncfl_bench itself, held to one thread like the others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from workloads import Workload

PACKAGE = None
LABEL = "asyncfl_bench"
DOES = {"W1": "FedBuff, asynchronous", "W3a": "ASGD, asynchronous", "W3f": "FedBuff, asynchronous"}


def prepare(name: str, workload: Workload, data: str) -> Callable[[int], int]:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import benchmark

    words = [*benchmark.WORKLOADS[name][1], "threads=1"]
    simulation = benchmark.built_run(words, Path(data), "cpu", workload.batch).simulation

    def run(updates: int) -> int:
        benchmark.simulate(simulation, updates, lambda: None)
        return updates

    return run
