"""Which samples each step of a piece of work sees: a pure function of (seed, client, count)."""

from __future__ import annotations

import numpy as np

from ..randomness import Streams
from ..types import Work


class Batches:
    """Mini-batches drawn without replacement from a client's own samples, reshuffled after each pass.

    partition   list of n index arrays into the training set
    batch_size  samples per mini-batch, or "all" for the full local data at every step, in order
    The last mini-batch of a pass may be smaller; a client with fewer samples than a batch uses all of them.
    """

    def __init__(self, partition: list[np.ndarray], batch_size: int | str, streams: Streams):
        self._partition, self._batch_size = partition, batch_size
        self._stream = streams.batch

    def of(self, work: Work) -> list[np.ndarray]:
        """``work.local_steps`` index arrays. An empty client gives empty ones."""
        own, size = self._partition[work.client], self._batch_size
        if size == "all" or len(own) == 0:
            return [own] * work.local_steps
        assert not isinstance(size, str)
        generator = self._stream(work.client, work.count)
        batches: list[np.ndarray] = []
        while len(batches) < work.local_steps:
            order = own[generator.permutation(len(own))]
            wanted = work.local_steps - len(batches)
            starts = range(0, len(order), size)[:wanted]
            batches += [order[start : start + size] for start in starts]
        return batches
