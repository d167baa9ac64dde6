"""Random draws as pure functions of (run seed, stream name, client, count).

Nothing here remembers how often it was asked, so re-ordered, batched, resumed and observed runs meet the same draws.
"""

from __future__ import annotations

import zlib

import numpy as np

# Streams in use. A name fixes the draws for ever: renaming one changes results.
STREAMS = (
    "partition",  # which samples each client holds
    "dataset",  # made-up data, train/test splits
    "model",  # initial weights
    "speed",  # persistent facts about a client's speed
    "delay",  # one piece of work's duration
    "schedule",  # which idle client goes next
    "dropout",  # who drops out
    "suspension",  # which piece of work is lost, and how long its client hangs
    "batch",  # mini-batches
    "augment",  # crops and flips
    "validation",  # which training samples are held back
    "cache",  # stochastic rounding of cached vectors
    "rule",  # whatever a server rule draws for itself
    "unlabelled",  # the server's own samples, at (0, 0); mini-batches of them in distillation t = 1, 2, ... at (0, t)
)


class Stream:
    """One named stream. ``stream(client, count)`` gives the generator placed at that key's own block of draws.

    The generator is shared: use it before asking the same stream again. Each key owns 2**128 draws
    (Philox 4x64, counter words 2 and 3 hold count and client), so keys never overlap.
    """

    def __init__(self, seed: int, name: str):
        if name not in STREAMS:
            raise ValueError(f"unknown random stream {name!r}: one of {', '.join(STREAMS)}")
        self._key = np.random.SeedSequence([seed, zlib.crc32(name.encode())]).generate_state(2, np.uint64)
        self._bits = np.random.Philox(key=self._key)
        self._generator = np.random.Generator(self._bits)
        self._start = self._bits.state
        self._counter = self._start["state"]["counter"]

    def __call__(self, client: int = 0, count: int = 0) -> np.random.Generator:
        self._counter[2], self._counter[3] = count, client
        self._bits.state = self._start
        return self._generator

    def separate_generator(self, client: int = 0, count: int = 0) -> np.random.Generator:
        """Return a separate generator with the same draws, which can be kept and used in another thread."""
        counter = np.array([0, 0, count, client], np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))

    def integer(self, client: int = 0, count: int = 0) -> int:
        """Return a 63-bit integer, as seed of a library."""
        return int(self(client, count).integers(2**63 - 1))


class Streams:
    """All streams of one run: ``Streams(seed).batch(client, count)``."""

    def __init__(self, seed: int):
        self.seed = seed
        for name in STREAMS:
            setattr(self, name, Stream(seed, name))

    def __getattr__(self, name: str) -> Stream:  # only reached for names that are no stream
        raise AttributeError(f"no random stream {name!r}: one of {', '.join(STREAMS)}")
