"""What every simulator is asked to do, as plain numbers: read by the driver and in the peers' environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

LEARNING_RATE = 0.001


@dataclass(frozen=True)
class Workload:
    """network (lenet5 | mlp), n clients of which `concurrency` are in flight, one local step on `batch` samples."""

    network: str
    n_clients: int
    concurrency: int
    batch: int
    buffer: int  # uploads per server iteration; 1: vanilla ASGD
    updates: int  # client updates per repeat


WORKLOADS = {
    "W1": Workload("lenet5", n_clients=100, concurrency=20, batch=50, buffer=10, updates=200),
    "W3a": Workload("mlp", n_clients=1000, concurrency=1000, batch=32, buffer=1, updates=1000),
    "W3f": Workload("mlp", n_clients=1000, concurrency=1000, batch=32, buffer=10, updates=1000),
}


def network(workload: Workload) -> torch.nn.Module:
    """Return the network of our own runs, which needs only torch."""
    from asyncfl_bench.models import convolutional, layers, networks

    if workload.network == "lenet5":
        return networks.sequential(convolutional.LeNet5(convolutional.LeNet5Config()).layers((3, 32, 32), 10))
    return networks.sequential(layers.mlp((1, 28, 28), [200], 10))


def samples(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the synthetic training set as (N, C, H, W) float32 in [0, 1] and (N,) int64."""
    import torch

    with np.load(path) as arrays:
        x, y = arrays["x_train"], arrays["y_train"]
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(x)).float().div_(255), torch.from_numpy(y).long()


def one_batch_each(workload: Workload, x: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Give each client one batch, so that an epoch is one step in simulators that count epochs."""
    size = workload.batch
    return [(x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]) for i in range(workload.n_clients)]
