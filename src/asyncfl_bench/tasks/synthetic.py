"""The synthetic data of FedProx: every client has its own linear model and its own inputs.

Legend: N samples of a client, F = 60 features, C = 10 classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ConfigError, check
from ..randomness import Streams
from .data import Data

FEATURES, CLASSES = 60, 10


@dataclass
class SyntheticConfig:
    """
    alpha        spread of the clients' linear models, >= 0
    beta         spread of the clients' inputs, >= 0
    clients      how many clients are made; null makes as many as the run has
    max_samples  cap on a client's samples before the split; null for none, as published
    test_share   share of a client's samples that goes to the common test set, between 0 and 1
    """

    alpha: float = 1.0
    beta: float = 1.0
    clients: int | None = None
    max_samples: int | None = None
    test_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            check(0 <= value < float("inf"), name, value, "a finite number >= 0")
        check(self.clients is None or self.clients >= 1, "clients", self.clients, "an integer >= 1, or null")
        check(self.max_samples is None or self.max_samples >= 2, "max_samples", self.max_samples, "an integer >= 2")
        check(0 < self.test_share < 1, "test_share", self.test_share, "a share between 0 and 1, both excluded")


class Synthetic:
    """Synthetic(alpha, beta), 60 features, 10 classes, with its own clients (``heterogeneity=natural``).

    Client i    u_i ~ N(0, alpha), B_i ~ N(0, beta); W_i (60, 10) and b_i (10,) ~ N(u_i, 1); v_i (60,) ~ N(B_i, 1)
    Sample      x ~ N(v_i, diag(j^-1.2)), j = 1 .. 60;  y = argmax softmax(x W_i + b_i)
    Size        floor(LogNormal(4, 2)) + 50, capped at max_samples; floor((1 - test_share) size) of them to train
    Source      Li et al. 2020, FedProx, arXiv:1812.06127, section 5.1 and the authors' generator. As in that generator
                alpha and beta are standard deviations; read as variances, N(0, 0.5) would differ, 0 and 1 would not.
    A client's samples depend on the seed and its number alone, not on how many clients there are.
    """

    Config = SyntheticConfig

    def __init__(self, config: SyntheticConfig):
        self.config = config

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        if self.config.clients not in (None, n_clients):
            raise ConfigError("clients", self.config.clients, f"must be null or equal n_clients={n_clients}")
        train, test, natural, start = [], [], [], 0
        for client in range(n_clients):
            x, y = self._samples(streams.dataset(client))
            # 1e-9: 0.9 * 50 must not fall below 45 by rounding
            n_train = min(max(int((1 - self.config.test_share) * len(y) + 1e-9), 1), len(y) - 1)
            train.append((x[:n_train], y[:n_train]))
            test.append((x[n_train:], y[n_train:]))
            natural.append(np.arange(start, start + n_train, dtype=np.int64))
            start += n_train
        (x_train, y_train), (x_test, y_test) = (map(np.concatenate, zip(*part, strict=True)) for part in (train, test))
        return Data(x_train, y_train, x_test, y_test, CLASSES, natural=natural)

    def _samples(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(N, 60) float32 and (N,) int64 of one client."""
        size = int(rng.lognormal(4, 2)) + 50
        size = min(size, self.config.max_samples or size)
        model_mean, input_mean = rng.normal(0, self.config.alpha), rng.normal(0, self.config.beta)
        centre_f = rng.normal(input_mean, 1, FEATURES)
        weight_fc = rng.normal(model_mean, 1, (FEATURES, CLASSES))
        bias_c = rng.normal(model_mean, 1, CLASSES)
        spread_f = np.arange(1, FEATURES + 1) ** -0.6  # the square root of the variances j^-1.2
        x = centre_f + spread_f * rng.standard_normal((size, FEATURES))
        y = np.argmax(x @ weight_fc + bias_c, axis=1)  # softmax keeps the order
        return x.astype(np.float32), y.astype(np.int64)
