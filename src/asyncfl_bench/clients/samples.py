"""The samples of each step of work: drawn by seed, client and count, and fetched for several mini-batches at once.

Legend: B samples of a mini-batch, m samples of several.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from ..randomness import Stream, Streams
from ..storage import send
from ..types import Work

if TYPE_CHECKING:
    from torch import Tensor

    from ..types import Augmentation

MANY_STEPS = 8  # with as many steps, work draws its mini-batches one by one
CHUNK_BYTES = 2**20  # of samples fetched at once: few calls, and samples stay in the cache until they are used


class Batches:
    """Mini-batches drawn without replacement from a client's own samples, reshuffled after each pass.

    partition   list of n index arrays into the training set
    batch_size  samples per mini-batch, or "all" for the full local data at every step, in order
    The last mini-batch of a pass may be smaller. A client with fewer samples than a mini-batch uses all of them.
    """

    def __init__(self, partition: list[np.ndarray], batch_size: int | str, streams: Streams):
        self._partition, self._batch_size = partition, batch_size
        self._stream = streams.batch

    def batches_of(self, work: Work) -> list[np.ndarray]:
        """Return ``work.local_steps`` index arrays, empty ones for a client without samples."""
        return list(self._draw(work, self._stream(work.client, work.count)))

    def one_by_one(self, work: Work) -> Iterator[np.ndarray]:
        """Yield the same arrays. Each pass is drawn when it begins, so that few indices are in memory."""
        return self._draw(work, self._stream.separate_generator(work.client, work.count))

    def sample_count(self, client: int) -> int:
        """Return the number of the client's samples."""
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


class Samples:
    """Samples for the steps of work. Two pieces of work share nothing here, so each may have its thread.

    task     models.task.Task
    augment  the stream of crops and flips; None: images are not changed
    host_labels  labels stay on the CPU
    """

    def __init__(self, task, batches: Batches, augment: Stream | None, *, host_labels: bool = False):
        self._task, self._batches = task, batches
        self._augment, self._host_labels = augment, host_labels

    def batches(self, work: Work) -> Iterator[tuple[np.ndarray, Augmentation | None]]:
        """Yield the samples of each step as indices of the training set, and their crops and flips."""
        generator = self._augment.separate_generator(work.client, work.count) if self._augment is not None else None
        for batch in self._batches.one_by_one(work):
            yield batch, None if generator is None else self._task.draw_augmentation(generator, len(batch))

    def draw(self, work: Work) -> Iterator[tuple[np.ndarray, Augmentation | None]]:
        """Yield the same, faster for few steps. Not for threads, because streams are shared."""
        if work.local_steps >= MANY_STEPS:
            return self.batches(work)
        batches = self._batches.batches_of(work)
        if self._augment is None:
            return zip(batches, repeat(None), strict=False)
        generator = self._augment(work.client, work.count)
        return iter([(batch, self._task.draw_augmentation(generator, len(batch))) for batch in batches])

    def load_distinct(self, work: Work) -> tuple[Tensor, Tensor, Iterator[Tensor]]:
        """Return x (m, ...) and y (m,) of the distinct samples of all steps, and for each step (B,) indices of them.

        The samples are not augmented.
        """
        batches = list(self._batches.one_by_one(work))
        seen, inverse = np.unique(np.concatenate(batches), return_inverse=True)
        ends = np.cumsum([len(batch) for batch in batches])[:-1]
        return *self._task.batch(seen), iter(send(inverse, self._task.device).tensor_split(ends.tolist()))

    def chunks(self, work: Work) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """Yield x (m, ...) and y (m,) of several mini-batches in a row, and the number of samples in each."""
        fitting = CHUNK_BYTES // (4 * int(np.prod(self._task.shape)))
        fetched: list[tuple[np.ndarray, Augmentation | None]] = []
        m = 0
        for batch, augment in self.batches(work):
            if m and m + len(batch) > fitting:
                yield self._fetch(fetched)
                fetched, m = [], 0
            fetched.append((batch, augment))
            m += len(batch)
        yield self._fetch(fetched)

    def _fetch(self, fetched: list[tuple[np.ndarray, Augmentation | None]]) -> tuple[Tensor, Tensor, list[int]]:
        batches, cuts = zip(*fetched, strict=True)
        drawn = [cut for cut in cuts if cut is not None]
        augment = tuple(np.concatenate(column) for column in zip(*drawn, strict=True)) if drawn else None
        indices = np.concatenate(batches)
        x, y = self._task.batch(indices, augment=augment)
        return x, self._task.labels(indices) if self._host_labels else y, [len(batch) for batch in batches]

    def steps(self, work: Work) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield x (B, ...) and y (B,) of each step."""
        for x, y, sizes in self.chunks(work):
            yield from zip(x.split(sizes), y.split(sizes), strict=True)
