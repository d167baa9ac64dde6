"""Which samples each step of a piece of work sees: a pure function of (seed, client, count)."""

from __future__ import annotations

from collections.abc import Iterator

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
        orders = self._orders(work, self._stream(work.client, work.count))
        return [batch for order in orders for batch in cut(order, self.size(order))]

    def passes(self, work: Work) -> Iterator[np.ndarray]:
        """The same one pass after another, drawn when it is asked for, each to be cut (``cut``): work of many steps
        need not hold all its indices at once."""
        return self._orders(work, self._stream.own(work.client, work.count))

    def held(self, client: int) -> int:
        """Samples the client holds."""
        return len(self._partition[client])

    def size(self, order: np.ndarray) -> int:
        """Samples of a mini-batch cut from such a pass, the last one aside; at least 1."""
        return self._batch_size if isinstance(self._batch_size, int) else max(1, len(order))

    def _orders(self, work: Work, generator: np.random.Generator) -> Iterator[np.ndarray]:
        own, size, steps = self._partition[work.client], self._batch_size, work.local_steps
        while steps > 0:
            if isinstance(size, str) or len(own) == 0:
                yield own
                steps -= 1
                continue
            yield own[generator.permutation(len(own))[: steps * size]]
            steps -= -(-len(own) // size)


def cut(order: np.ndarray, size: int) -> list[np.ndarray]:
    """The mini-batches of one pass."""
    return [order[start : start + size] for start in range(0, max(1, len(order)), size)]
