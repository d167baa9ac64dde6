"""Delays of clients in one radio cell, by their computing speeds and their links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..errors import check
from ..randomness import Streams
from ..ranges import Positive, check_client_numbers, one_of
from ..types import UNKNOWN_FOOTPRINT, ClientTable, Facts, Footprint, Work
from .delay import Delay, DelayConfig


@dataclass
class CellLinkConfig(DelayConfig):
    """
    slowest, fastest  multiply-adds a second, drawn uniformly between the two once per client
    nearest, radius   km from the mast, drawn between the two once per client
    position          distance: uniform from nearest to radius | disc: uniform over the area between them, so that more
                      clients are far away
    channel           each: every client has `hertz` | shared: the clients in flight share it equally
    hertz             bandwidth of the channel
    speeds            multiply-adds a second of each client, > 0; null: drawn
    distances         km of each client, > 0; null: drawn
    cuts              cuts of the model: each client has the times of the cut that suits its speed (S2FL), see
                      ``CellLink``; null: model.cut for all
    """

    slowest: Positive = 1e9
    fastest: Positive = 1e10
    nearest: Positive = 0.1
    radius: Positive = 1.0
    position: Annotated[str, one_of("distance", "disc")] = "distance"
    channel: Annotated[str, one_of("each", "shared")] = "each"
    hertz: Positive = 1e7
    speeds: list[float] | None = None
    distances: list[float] | None = None
    cuts: list[int] | None = None
    # without a type, so no fields that would change the identity of runs
    sharing = 1  # clients that have the channel
    most_samples = np.inf  # of a mini-batch

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.slowest <= self.fastest, "slowest", self.slowest, f"at most delay.fastest={self.fastest:g}")
        check(self.nearest <= self.radius, "nearest", self.nearest, f"at most delay.radius={self.radius:g}")

    def resolve(self, facts: Facts) -> None:
        check_client_numbers("speeds", self.speeds, facts.n_clients)
        check_client_numbers("distances", self.distances, facts.n_clients)
        self.sharing = facts.concurrency if self.channel == "shared" else 1
        size = facts.workload.batch_size
        self.most_samples = float(size) if isinstance(size, int) else np.inf
        if self.cuts is not None and facts.cuts:
            ok = bool(self.cuts) and all(0 < cut < facts.layers for cut in self.cuts)
            allowed = f"a list of numbers from 1 to {facts.layers - 1}, of the model's {facts.layers} layers, or null"
            check(ok, "cuts", self.cuts, allowed)

    def idle(self, facts: Facts) -> dict[str, str]:
        why = f"with algorithm={facts.algorithm}, whose clients hold the whole model"
        found = {} if facts.cuts else {"cuts": why}
        if self.speeds is not None:
            found |= dict.fromkeys(("slowest", "fastest"), "with delay.speeds, which are the clients' speeds")
        if self.distances is not None:
            found |= dict.fromkeys(("nearest", "radius", "position"), "with delay.distances, which are the clients'")
        return found


class CellLink(Delay):
    """Multiply-adds over the client's speed, and bits over its rate R = W log2(1 + P g / (W N0)), all in seconds.

    Path loss at r km is 128.1 + 37.6 log10(r) dB, so g = 10^(-loss/10); P = 0.2 W, N0 = 3.981e-21 W/Hz. At 1 km 10 MHz
    carry 8.3 Mbit/s, at 0.1 km 121. With C multiply-adds of the model and c of the layers that clients hold, work of
    K mini-batches lasts

        all layers    K 2C / f + model / R
        some layers   K + 1 stages: c / f + activations / R;  K - 1 times 2c / f + activations / R;  c / f + layers / R

    since a mini-batch goes forward, its activations are sent, and the gradient in the server's reply is sent back.
    C and c are of one sample: the samples of a mini-batch are computed in parallel. The server computes and sends in no
    time. Activations are those of the work's mean mini-batch, for each message, without labels; bytes count each
    mini-batch with its own size and its labels.
    With ``cuts`` every client has the times of one cut: its 2c / f + activations / R of a mini-batch is nearest to the
    median over all clients and cuts (S2FL's sliding split, as the GAS paper runs it). This changes the clock only:
    training and counts of bytes use the layers of model.cut.
    Source   GAS (Yang, Liu 2024), section 5.1, and its released code, with parallel samples. The code draws r uniformly
             between 0.1 and 1 km, the text places clients uniformly in the cell (position=disc). The code has 10 MHz
             for each client, the text in total (channel=shared)
    """

    config: CellLinkConfig
    staged = True
    POWER, NOISE = 0.2, 3.981e-21  # W, W/Hz

    def start(self, clients: ClientTable, streams: Streams, footprint: Footprint = UNKNOWN_FOOTPRINT) -> None:
        super().start(clients, streams, footprint)
        loss_n = 128.1 + 37.6 * np.log10(self._distances(clients.n, streams))
        hertz = self.config.hertz / self.config.sharing
        self.rate_n = hertz * np.log2(1 + self.POWER * 10 ** (-loss_n / 10) / (hertz * self.NOISE))
        self.cost_n = [footprint] * clients.n
        if self.config.cuts is not None and footprint.at_cut:
            costs = [footprint.at_cut[cut - 1] for cut in self.config.cuts]
            batch_n = np.minimum(clients.samples_n, self.config.most_samples)
            sent_nc = np.outer(batch_n, [cost.message_bytes(1) for cost in costs])
            time_nc = 2 * np.array([cost.client_macs for cost in costs]) / self.speed_n[:, None]
            time_nc = time_nc + 8 * sent_nc / self.rate_n[:, None]
            self.cost_n = [costs[choice] for choice in np.abs(time_nc - np.median(time_nc)).argmin(axis=1)]

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        config = self.config
        if config.speeds is not None:
            return np.array(config.speeds)
        return np.array([streams.speed(client).uniform(config.slowest, config.fastest) for client in range(n)])

    def _distances(self, n: int, streams: Streams) -> np.ndarray:
        """Return (n,) km."""
        config = self.config
        if config.distances is not None:
            return np.array(config.distances)
        power = 2 if config.position == "disc" else 1
        low, high = config.nearest**power, config.radius**power
        return np.array([streams.speed(client, 1).uniform(low, high) for client in range(n)]) ** (1 / power)

    def duration(self, work: Work) -> float:
        cost, batches = self.cost_n[work.client], work.local_steps
        if work.stages == 1:
            return self._seconds(work, 2 * batches * cost.macs, cost.model_bytes)
        if work.stage + 1 == work.stages:
            return self._seconds(work, cost.client_macs, cost.client_bytes)
        sent = cost.message_bytes(work.samples) / (work.stages - 1)  # each mini-batch has its share of the samples
        return self._seconds(work, cost.client_macs * (1 if work.stage == 0 else 2), sent)

    def _seconds(self, work: Work, macs: int, sent: float) -> float:
        """Return the seconds for these numbers of multiply-adds and bytes."""
        return float(macs / self.speed_n[work.client] + 8 * sent / self.rate_n[work.client])
