"""Which samples each step of a piece of work sees: a pure function of (seed, client, count)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

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

    def batches_of(self, work: Work) -> list[np.ndarray]:
        """``work.local_steps`` index arrays. An empty client gives empty ones."""
        return list(self._draw(work, self._stream(work.client, work.count)))

    def one_by_one(self, work: Work) -> Iterator[np.ndarray]:
        """The same, each pass drawn when it is reached: work of many steps need not hold all its indices at once."""
        return self._draw(work, self._stream.separate_generator(work.client, work.count))

    def sample_count(self, client: int) -> int:
        """Samples the client holds."""
        return len(self._partition[client])

    def _draw(self, work: Work, generator: np.random.Generator) -> Iterator[np.ndarray]:
        own, size, left = self._partition[work.client], self._batch_size, work.local_steps
        if isinstance(size, str) or len(own) == 0:
            yield from repeat(own, left)
            return
        while left > 0:
            order = own[generator.permutation(len(own))]
            starts = range(0, len(order), size)[:left]
            for start in starts:
                yield order[start : start + size]
            left -= len(starts)
