"""A run with a model of one parameter: the same arrivals and the same order of computing, nothing computed.

Arrivals do not depend on what is computed, so such a run counts the vectors that the real one will hold.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..clients.executors import SequentialExecutor
from ..clients.versions import Block
from ..config import Settings
from ..simulation.engine import Simulation
from ..types import Work

DRY_RUN_UPLOADS = 10_000  # about a second


class NullExecutor(SequentialExecutor):
    """Holds versions and blocks as the executor ``real`` will, and answers with ones.

    most_versions, most_uploads  held at once at most so far, in vectors
    """

    def __init__(self, real: SequentialExecutor):
        super().__init__(None, None, None, None)  # type: ignore[arg-type]  # it computes nothing
        self.together, self.at_once, self.steps_together = real.together, real.at_once, real.steps_together
        self.ahead, self._starts = real.ahead, real.starts
        self.keeps_base = real.keeps_base
        self.most_versions = 0

    @property
    def most_uploads(self) -> int:
        return self._blocks.most_rows

    def dispatch(self, work: Work, model_d: torch.Tensor) -> None:
        super().dispatch(work, model_d)
        self.most_versions = max(self.most_versions, len(self.versions))

    def _compute(self, works: list[Work], block: Block) -> Callable[[], list[tuple]]:
        block.rows_pd.fill_(1.0)
        starts = self._blocks.take(count, block.rows_pd[0]) if (count := self._starts(works)) else None

        def finish() -> list[tuple]:
            if starts is not None:
                starts.waiting = 1
                self._blocks.used(starts)
            return [(torch.zeros(()), None)] * len(works)

        return finish


def most_in_use(simulation: Simulation, executor: NullExecutor, settings: Settings) -> tuple[int, int]:
    """(versions of the model, uploads) held at once at most, vectors of d floats each.

    simulation, executor  a dry run, not started. Of a long run the beginning is simulated and a tenth added.
    """
    root = settings.root
    assert root.concurrency is not None
    limit = max(DRY_RUN_UPLOADS, 20 * root.n_clients)
    while simulation.counters.uploads + simulation.counters.discarded < limit:
        if simulation.advance() is not None:
            return executor.most_versions, executor.most_uploads
    return min(root.concurrency, executor.most_versions * 11 // 10 + 1), executor.most_uploads * 11 // 10 + 1
