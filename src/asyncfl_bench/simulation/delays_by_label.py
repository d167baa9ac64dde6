"""Latency that grows with the numbers of a client's labels. Legend: n clients, C classes."""

from __future__ import annotations

import numpy as np

from ..errors import ConfigError
from ..randomness import Streams
from .delays import FixedUniform


class UniformByLabel(FixedUniform):
    """low + (high - low) (m_i + u_i) / C for client i: m_i is the mean of its samples' labels, u_i ~ U(0, 1).

    If each client has one label, and all labels have as many clients, the latencies are distributed as those of
    ``FixedUniform``, in order of the labels.
    Source: AFBS (Lu et al. 2025, figure 4), where latency grows with the label's number; the rest is ours.
    """

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        config, labels_nc = self.config, self.labels_nc
        if labels_nc is None:
            raise ConfigError("delay", "uniform_by_label", "must be fixed_uniform: this data set has no labels")
        held_n, classes = labels_nc.sum(axis=1), labels_nc.shape[1]
        mean_n = labels_nc @ np.arange(classes) / np.maximum(held_n, 1)
        luck_n = np.array([streams.speed(client).random() for client in range(n)])
        latency_n = config.low + (config.high - config.low) * (mean_n + luck_n) / classes
        return np.floor(latency_n) if config.whole else latency_n
