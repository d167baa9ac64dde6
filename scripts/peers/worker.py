"""One simulator and a bare PyTorch loop, in turn, in one process with one torch thread. `compare.py` calls it.

    python scripts/peers/worker.py flgo W1 images.npz answer.json --repeats 3

Runs in the peer's environment. The answer is a file because peers print what they like: seconds per client update and
per step of the bare loop for each repeat, and versions. What a peer needs to know is in ``<name>_peer.py``, which has

    PACKAGE   the distribution whose version is reported, or None
    prepare(name, workload, data) -> run;   run(updates) -> client updates really made
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from workloads import LEARNING_RATE, WORKLOADS, Workload, network, samples


class BareLoop:
    """zero_grad, forward, backward and step on one prepared batch: no data access, no clients, no server."""

    def __init__(self, workload: Workload, data: str):
        import torch

        self.model = network(workload)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        x, y = samples(data)
        self.x, self.y = x[: workload.batch].clone(), y[: workload.batch].clone()

    def __call__(self, steps: int) -> int:
        from torch.nn import functional as F

        for _ in range(steps):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
        return steps


def seconds_each(run, amount: int) -> float:
    started = time.perf_counter()
    done = run(amount)
    return (time.perf_counter() - started) / done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("data")
    parser.add_argument("answer", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    given.answer, given.data = given.answer.resolve(), os.path.abspath(given.data)

    peer = importlib.import_module(f"{given.peer}_peer")
    import torch

    torch.set_num_threads(1)
    workload = WORKLOADS[given.workload]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # peers write tasks, logs and records where they stand
        run, bare = peer.prepare(given.workload, workload, given.data), BareLoop(workload, given.data)
        torch.set_num_threads(1)  # some set it themselves
        run(workload.updates)
        bare(20)
        answer = {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "version": peer.PACKAGE and metadata.version(peer.PACKAGE),
            "bare": [],
            "peer": [],
        }
        for _ in range(given.repeats):
            answer["bare"].append(seconds_each(bare, workload.updates // 2))
            answer["peer"].append(seconds_each(run, workload.updates))
            answer["bare"].append(seconds_each(bare, workload.updates // 2))
        os.chdir("/")
    given.answer.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
