"""The synthetic data of FedProx: each client has a different linear model and different inputs.

Legend: N samples of a client, F = 60 features, C = 10 classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from ..errors import ConfigError, check
from ..randomness import Streams
from ..ranges import CheckedSettings, Count, NonNegative, at_least, within
from ..types import Facts
from .base import Data, DataSet, train_count
from .npz import load_cached

FEATURES, CLASSES = 60, 10
LabelledSamples = tuple[np.ndarray, np.ndarray]


@dataclass
class SyntheticConfig(CheckedSettings):
    """
    alpha        spread of the means of the clients' linear models; published 0, 0.5, 1. It raises all classes equally,
                 so it does not change labels
    beta         spread of the clients' inputs, a standard deviation; published 0, 0.5, 1
    clients      number of clients, which must be n_clients
    max_samples  cap on a client's samples before the split; null: none, as published
    size_factor  factor of every client's number of samples; 5 in AsyncFedED's data
    data_seed    seed of the published generator, which draws everything; 0 in AsyncFedED's data; null: the run's seed,
                 with a stream for each client
    size_seed    seed of the published generator for the sizes alone; null: sizes are drawn like the rest
    test_share   share of a client's samples in the common test set
    """

    alpha: NonNegative = 1.0
    beta: NonNegative = 1.0
    clients: Annotated[int | None, at_least(1, null="for the run's")] = None
    max_samples: Annotated[int | None, at_least(2)] = None
    test_share: Annotated[float, within("(0, 1)")] = 0.1
    size_factor: Count = 1
    data_seed: Annotated[int | None, within("[0, 4294967295]")] = None
    size_seed: Annotated[int | None, within("[0, 4294967295]")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        said = f"null with data_seed={self.data_seed}, which draws the sizes too"
        check(self.data_seed is None or self.size_seed is None, "size_seed", self.size_seed, said)

    def idle(self, facts: Facts) -> dict[str, str]:
        return {"alpha": "on any sample: it raises all classes alike; dataset.beta spreads the clients' inputs"}


class Synthetic(DataSet):
    """Synthetic(alpha, beta), 60 features, 10 classes, with natural clients (``heterogeneity=natural``).

    Client i    u_i ~ N(0, alpha), B_i ~ N(0, beta); W_i (60, 10) and b_i (10,) ~ N(u_i, 1); v_i (60,) ~ N(B_i, 1)
    Sample      x ~ N(v_i, diag(j^-1.2)), j = 1 .. 60;  y = argmax softmax(x W_i + b_i)
    Alpha       u_i adds u_i (sum of x + 1) to every class, so labels do not depend on it: for every alpha the models
                differ as W_i and b_i with variance 1 do
    Size        size_factor (floor(LogNormal(4, 2)) + 50), capped at max_samples; the first floor((1 - test_share) size)
                samples are for training
    Source      Li et al. 2020, FedProx, arXiv:1812.06127, section 5.1 and the authors' generator. As in that generator
                alpha and beta are standard deviations; as variances N(0, 0.5) would differ, 0 and 1 would not.
    Draws       By default each client has a stream, so its samples depend on seed and client number, not on n_clients.
                size_seed only changes the number of samples: the smaller set is the beginning of the larger one. With
                data_seed one generator draws all in the published order, so clients depend on earlier ones and on n.
    AsyncFedED  size_factor=5 (as in pFedMe's generator) with data_seed=0 gives the ten clients of arXiv:2205.13797:
                52 795 samples, 5282 of them for tests, 70.05 % of these of one class. Its published runs show the
                sizes, the number of test samples, and rounds whose accuracy stays at 70.07 %.
    """

    config: SyntheticConfig
    loads_once = True

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        if self.config.clients not in (None, n_clients):
            raise ConfigError("clients", self.config.clients, f"must be null or equal n_clients={n_clients}")
        key = ("synthetic", self.config, streams.seed, n_clients)
        return load_cached(key, lambda: self._draw(streams, n_clients))

    def _draw(self, streams: Streams, n_clients: int) -> Data:
        train, test, natural, start = [], [], [], 0
        for x, y in (
            self._draw_from_streams(streams, n_clients)
            if self.config.data_seed is None
            else self._draw_published(n_clients)
        ):
            n_train = train_count(len(y), self.config.test_share)
            train.append((x[:n_train], y[:n_train]))
            test.append((x[n_train:], y[n_train:]))
            natural.append(np.arange(start, start + n_train, dtype=np.int64))
            start += n_train
        (x_train, y_train), (x_test, y_test) = (map(np.concatenate, zip(*part, strict=True)) for part in (train, test))
        return Data(x_train, y_train, x_test, y_test, CLASSES, natural=natural)

    def _draw_from_streams(self, streams: Streams, n_clients: int) -> Iterator[LabelledSamples]:
        """Draw each client from a separate stream, in the order size, means, centre, model, samples."""
        config = self.config
        given_n = (
            None if config.size_seed is None else np.random.RandomState(config.size_seed).lognormal(4, 2, n_clients)
        )
        for client in range(n_clients):
            rng = streams.dataset(client)
            own = rng.lognormal(4, 2)  # drawn in any case, so that further draws do not change
            size = self._size(own if given_n is None else given_n[client])
            model_mean, input_mean = rng.normal(0, config.alpha), rng.normal(0, config.beta)
            yield _draw_samples(rng, rng.normal(input_mean, 1, FEATURES), model_mean, size)

    def _draw_published(self, n_clients: int) -> Iterator[LabelledSamples]:
        """Draw all clients from one legacy generator (``numpy.random.RandomState``), as the published code does.

        Order: all sizes, all means of models and inputs, all centres; then each client's model and samples.
        """
        rng = np.random.RandomState(self.config.data_seed)
        drawn_n = rng.lognormal(4, 2, n_clients)
        model_mean_n, input_mean_n = (
            rng.normal(0, self.config.alpha, n_clients),
            rng.normal(0, self.config.beta, n_clients),
        )
        centre_nf = [rng.normal(input_mean, 1, FEATURES) for input_mean in input_mean_n]
        for drawn, model_mean, centre_f in zip(drawn_n, model_mean_n, centre_nf, strict=True):
            yield _draw_samples(rng, centre_f, model_mean, self._size(drawn))

    def _size(self, drawn: float) -> int:
        size = self.config.size_factor * (int(drawn) + 50)
        return min(size, self.config.max_samples or size)


def _draw_samples(
    rng: np.random.Generator | np.random.RandomState, centre_f: np.ndarray, model_mean: float, size: int
) -> LabelledSamples:
    """Draw the model of one client, then its samples (N, 60) float32 and labels (N,) int64."""
    weight_fc = rng.normal(model_mean, 1, (FEATURES, CLASSES))
    bias_c = rng.normal(model_mean, 1, CLASSES)
    spread_f = np.arange(1, FEATURES + 1) ** -0.6  # the square root of the variances j^-1.2
    x = centre_f + spread_f * rng.standard_normal((size, FEATURES))
    y = np.argmax(x @ weight_fc + bias_c, axis=1)  # softmax keeps the order
    return x.astype(np.float32), y.astype(np.int64)
