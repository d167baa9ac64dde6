"""The few things that pass between the simulator, the clients and the server rules.

Legend: n clients, d model parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import torch

VectorKind = Literal["gradient", "difference"]


@dataclass(slots=True)
class Work:
    """One piece of work, fixed at its dispatch.

    client       who computes it, 0 .. n-1
    sequence     number of this dispatch in the run, from 0; orders events of equal time
    count        number of this dispatch among the client's own, from 0; keys the client's random draws
    iteration    server iterations done when it was dispatched: the version of the model it starts from
    local_steps  K, mini-batch steps to do (>= 1)
    due          virtual time of its arrival
    """

    client: int
    sequence: int
    count: int
    iteration: int
    local_steps: int
    due: float = 0.0


@dataclass(slots=True)
class Upload:
    """What reaches the server.

    vector_d        (d,) float tensor: a gradient, or local model minus received model; of doubles where clients send
                    changes (ServerRule.sends_changes). It is lent: a rule copies what it wants to keep.
    base_iteration  version of the model the work started from
    staleness       server iterations between dispatch and arrival, >= 0
    samples         training samples the client holds
    local_steps     K that was done
    loss            mean training loss over its mini-batches, 0-d tensor
    """

    client: int
    vector_d: torch.Tensor
    base_iteration: int
    staleness: int
    samples: int
    local_steps: int
    loss: torch.Tensor | None = None


@dataclass(frozen=True)
class ClientTable:
    """Facts about the clients that any part may know.

    samples_n   (n,) integers: training samples each client holds
    """

    samples_n: np.ndarray

    @property
    def n(self) -> int:
        return len(self.samples_n)


@dataclass(slots=True)
class Counters:
    """What a run has used so far. Every line of metrics.jsonl carries these under the same names."""

    iteration: int = 0
    uploads: int = 0
    client_steps: int = 0
    virtual_time: float = 0.0
    discarded: int = 0
