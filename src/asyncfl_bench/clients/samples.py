"""The samples of a piece of work, step by step, fetched many mini-batches at a time.

Legend: B samples of a mini-batch, m samples of several.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..randomness import Stream
from ..types import Work
from .batches import Batches, cut

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_BYTES = 2**20  # of samples fetched at once: few calls, and what is fetched is still in the cache when it is used


class Samples:
    """Where the steps of a piece of work get their samples. Nothing here is shared by two pieces of work, so each may
    be computed in a thread of its own.

    task     tasks.task.Task
    augment  the stream of crops and flips; None: images as they are
    """

    def __init__(self, task, batches: Batches, augment: Stream | None):
        self._task, self._batches = task, batches
        self._augment = augment

    def chunks(self, work: Work) -> Iterator[tuple[Tensor, Tensor, int]]:
        """x (m, ...), y (m,) and B of some mini-batches after one another, only the last of a pass smaller."""
        generator = self._augment.own(work.client, work.count) if self._augment is not None else None
        fitting = CHUNK_BYTES // (4 * int(np.prod(self._task.shape)))
        for order in self._batches.passes(work):
            size = self._batches.size(order)
            for chunk in cut(order, max(1, fitting // size) * size):
                augment = None
                if generator is not None:
                    drawn = [self._task.draw_augmentation(generator, len(batch)) for batch in cut(chunk, size)]
                    augment = tuple(np.concatenate(column) for column in zip(*drawn, strict=True))
                yield *self._task.batch(chunk, augment=augment), size

    def steps(self, work: Work) -> Iterator[tuple[Tensor, Tensor]]:
        """x (B, ...) and y (B,) of each step."""
        for x, y, size in self.chunks(work):
            yield from zip(x.split(size), y.split(size), strict=True)
