"""The synthetic data of FedProx: every client has its own linear model and its own inputs.

Legend: N samples of a client, F = 60 features, C = 10 classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ConfigError, check
from ..randomness import Streams
from .data import Data, train_count

FEATURES, CLASSES = 60, 10


@dataclass
class SyntheticConfig:
    """
    alpha        spread of the means of the clients' linear models, >= 0; it changes no sample (see below)
    beta         spread of the clients' inputs, >= 0
    clients      how many clients are made; null makes as many as the run has
    max_samples  cap on a client's samples before the split; null for none, as published
    size_factor  every size is multiplied by it, >= 1
    size_seed    the sizes are drawn from NumPy's old generator with this seed; null takes the run's seed
    shared_model whether all clients have one linear model instead of one each; their inputs differ all the same
    test_share   share of a client's samples that goes to the common test set, between 0 and 1
    """

    alpha: float = 1.0
    beta: float = 1.0
    clients: int | None = None
    max_samples: int | None = None
    test_share: float = 0.1
    size_factor: int = 1
    size_seed: int | None = None
    shared_model: bool = False

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            check(0 <= value < float("inf"), name, value, "a finite number >= 0")
        check(self.clients is None or self.clients >= 1, "clients", self.clients, "an integer >= 1, or null")
        check(self.max_samples is None or self.max_samples >= 2, "max_samples", self.max_samples, "an integer >= 2")
        check(0 < self.test_share < 1, "test_share", self.test_share, "a share between 0 and 1, both excluded")
        check(self.size_factor >= 1, "size_factor", self.size_factor, "an integer >= 1")
        ok = self.size_seed is None or 0 <= self.size_seed < 2**32
        check(ok, "size_seed", self.size_seed, "an integer from 0 to 4294967295, or null for the run's seed")


class Synthetic:
    """Synthetic(alpha, beta), 60 features, 10 classes, with its own clients (``heterogeneity=natural``).

    Client i    u_i ~ N(0, alpha), B_i ~ N(0, beta); W_i (60, 10) and b_i (10,) ~ N(u_i, 1); v_i (60,) ~ N(B_i, 1)
    Sample      x ~ N(v_i, diag(j^-1.2)), j = 1 .. 60;  y = argmax softmax(x W_i + b_i)
    Alpha       u_i adds u_i (sum of x + 1) to every class alike, so no label depends on it: whatever alpha is, the models
                differ as much as W_i and b_i with variance 1 do
    Shared      with shared_model one W and b ~ N(0, 1) for all
    Size        size_factor (floor(LogNormal(4, 2)) + 50), capped at max_samples; floor((1 - test_share) size) to train
    Source      Li et al. 2020, FedProx, arXiv:1812.06127, section 5.1 and the authors' generator. As in that generator
                alpha and beta are standard deviations; read as variances, N(0, 0.5) would differ, 0 and 1 would not.
    Sizes       size_factor=5 (as in pFedMe's generator) and size_seed=0 are those of AsyncFedED's ten clients
                (arXiv:2205.13797): 52 795 samples, 5 282 of them to test, which is what its published runs show.
    A client's samples depend on the seed and its number alone, not on how many clients there are; size_seed changes how
    many it has and not which: the smaller client's samples are the first of the larger one's.
    """

    Config = SyntheticConfig

    def __init__(self, config: SyntheticConfig):
        self.config = config

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        if self.config.clients not in (None, n_clients):
            raise ConfigError("clients", self.config.clients, f"must be null or equal n_clients={n_clients}")
        train, test, natural, start = [], [], [], 0
        shared = None
        if self.config.shared_model:
            rng = streams.dataset(0, 1)  # a key of its own: the clients' own are (client, 0)
            shared = rng.normal(0, 1, (FEATURES, CLASSES)), rng.normal(0, 1, CLASSES)
        drawn_n = None
        if self.config.size_seed is not None:
            drawn_n = np.random.RandomState(self.config.size_seed).lognormal(4, 2, n_clients)
        for client in range(n_clients):
            x, y = self._samples(streams.dataset(client), None if drawn_n is None else drawn_n[client], shared)
            n_train = train_count(len(y), self.config.test_share)
            train.append((x[:n_train], y[:n_train]))
            test.append((x[n_train:], y[n_train:]))
            natural.append(np.arange(start, start + n_train, dtype=np.int64))
            start += n_train
        (x_train, y_train), (x_test, y_test) = (map(np.concatenate, zip(*part, strict=True)) for part in (train, test))
        return Data(x_train, y_train, x_test, y_test, CLASSES, natural=natural)

    def _samples(
        self, rng: np.random.Generator, drawn: float | None, shared: tuple[np.ndarray, np.ndarray] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(N, 60) float32 and (N,) int64 of one client.

        drawn   the log-normal number behind N, if it is given
        shared  the weight (60, 10) and bias (10,) of all clients, if they have one model
        """
        own = rng.lognormal(4, 2)  # drawn in any case: all that follows stays the same
        size = self.config.size_factor * (int(own if drawn is None else drawn) + 50)
        size = min(size, self.config.max_samples or size)
        model_mean, input_mean = rng.normal(0, self.config.alpha), rng.normal(0, self.config.beta)
        centre_f = rng.normal(input_mean, 1, FEATURES)
        weight_fc = rng.normal(model_mean, 1, (FEATURES, CLASSES))
        bias_c = rng.normal(model_mean, 1, CLASSES)
        if shared is not None:
            weight_fc, bias_c = shared
        spread_f = np.arange(1, FEATURES + 1) ** -0.6  # the square root of the variances j^-1.2
        x = centre_f + spread_f * rng.standard_normal((size, FEATURES))
        y = np.argmax(x @ weight_fc + bias_c, axis=1)  # softmax keeps the order
        return x.astype(np.float32), y.astype(np.int64)
