"""A run with a model of one parameter: the same arrivals and the same order of computing, nothing computed.

Arrivals do not depend on what is computed, so such a run counts the vectors that the real one will hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..clients.executors import SequentialComputer
from ..clients.queue import ComputedUpload, Computer, WorkQueue
from ..clients.versions import Blocks, ClientVectors
from ..simulation.engine import Simulation
from ..types import Work

if TYPE_CHECKING:
    from ..clients.queue import Start

DRY_RUN_UPLOADS = 10_000  # about a second


class NullServer:
    """A server with that many samples, of which it learns nothing."""

    classes = 2

    def __init__(self, samples: int):
        self.samples = samples

    def gradient(
        self, w_d: torch.Tensor, rows_b: torch.Tensor, target_bc: torch.Tensor, out_d: torch.Tensor
    ) -> torch.Tensor:
        return out_d.zero_().new_zeros(())


class NullVariates(ClientVectors):
    """Clients that keep nothing and send, as the change of their control variate, the upload itself, (1,)."""

    def variate_change(self, work: Work, vector_d: torch.Tensor) -> torch.Tensor:
        return vector_d


class NullComputer(Computer):
    """Takes as much work and the same workspaces as the computer ``real``, and returns ones.

    server  for outputs on its samples, if the real uploads have them
    """

    def __init__(self, real: SequentialComputer, server: NullServer | None = None):
        self._outputs_uc = torch.zeros(server.samples, server.classes) if server and real.reports else None
        self.most_pieces, self.threads_used, self.most_steps = real.most_pieces, real.threads_used, real.most_steps
        self.prefetch_below, self.separate_uploads = real.prefetch_below, real.separate_uploads
        self._real = real

    def begin(
        self, pieces: list[Work], start: Start, out_pd: Any, blocks: Blocks
    ) -> Callable[[], list[ComputedUpload]]:
        for out_d in out_pd:
            out_d.fill_(1.0)
        workspace = blocks.take(rows, out_pd[0]) if (rows := self._real.workspace(pieces)) else None

        def finish() -> list[ComputedUpload]:
            if workspace is not None:
                workspace.waiting = 1
                blocks.release_row(workspace)
            return [ComputedUpload(torch.zeros(()), None, self._outputs_uc)] * len(pieces)

        return finish


def peak_vectors(simulation: Simulation, queue: WorkQueue, n: int, concurrency: int) -> tuple[int, int]:
    """Return the largest (model versions, uploads) held at once, in vectors of d floats.

    simulation, queue  a dry run of n clients, not started
    Only the first part of a long run is simulated. A tenth is then added to both counts.
    """
    limit = max(DRY_RUN_UPLOADS, 20 * n)
    while simulation.counters.uploads + simulation.counters.discarded < limit:
        if simulation.step() is not None:
            return queue.versions.peak_versions, queue.blocks.most_rows
    return min(concurrency, queue.versions.peak_versions * 11 // 10 + 1), queue.blocks.most_rows * 11 // 10 + 1
