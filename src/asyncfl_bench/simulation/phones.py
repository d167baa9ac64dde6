"""Delays of phones, which download, train and upload at speeds that are drawn or measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..randomness import Streams
from ..ranges import NonNegative, Positive
from ..types import Facts, Work
from .delay import Delay, DelayConfig, positive_normal
from .fleet import FleetFile, check_file

COLUMNS = ("seconds_per_sample", "downlink", "uplink")


@dataclass
class PhonesConfig(DelayConfig):
    """
    seconds_per_sample  of training, median of the clients; our value, since it depends on the model
    compute_sigma       standard deviation of its logarithm between clients
    downlink, uplink    bytes per second, median of the clients
    downlink_sigma, uplink_sigma  standard deviation of its logarithm between clients
    link_spread         standard deviation of a transfer's random factor around 1
    path                file of measured clients instead of draws, with the columns client, seconds_per_sample,
                        downlink, uplink (``fleet.FleetFile``); null: drawn
    """

    seconds_per_sample: Positive = 0.01
    compute_sigma: NonNegative = 0.99
    downlink: Positive = 4.3e6
    downlink_sigma: NonNegative = 0.47
    uplink: Positive = 3.3e6
    uplink_sigma: NonNegative = 0.68
    link_spread: NonNegative = 0.38
    path: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None:
            check_file(self.path, "client, " + ", ".join(COLUMNS), (COLUMNS,))

    def idle(self, facts: Facts) -> dict[str, str]:
        drawn = (*COLUMNS, "compute_sigma", "downlink_sigma", "uplink_sigma")
        return dict.fromkeys(drawn, "with delay.path, whose file has each client's speeds") if self.path else {}


class Phones(Delay):
    """Work takes model bytes * c / downlink_i + seconds_per_sample_i * samples + model bytes * c' / uplink_i.

    The three speeds of client i are log-normal and drawn once, or from a file. c, c' ~ N(1, link_spread) are drawn for
    each piece of work until they are > 0. ``speed_n`` (n, 3) has the columns of ``COLUMNS``.
    Source: FLASH (Yang et al., WWW 2021, arXiv:2006.06983): 160 phones, matched to the models of 136 000 users.
    """

    config: PhonesConfig

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        """Draw or read the speeds. Raises InputError or ConfigError for a wrong file."""
        config = self.config
        if config.path is not None:
            self.file = FleetFile(config.path, (COLUMNS,))
            return self.file.client_values(n, COLUMNS)
        median = np.array([config.seconds_per_sample, config.downlink, config.uplink])
        sigma = np.array([config.compute_sigma, config.downlink_sigma, config.uplink_sigma])
        normal_n3 = np.array([streams.speed(client).standard_normal(3) for client in range(n)])
        return median * np.exp(sigma * normal_n3)

    def duration(self, work: Work) -> float:
        per_sample, downlink, uplink = self.speed_n[work.client]
        generator = self._stream(work.client, work.cycle)
        down, up = (positive_normal(generator, self.config.link_spread) for _ in range(2))
        # a client without samples would report and start again for ever, at one instant
        computing = per_sample * max(1, work.samples)
        return float(computing + self.footprint.client_bytes * (down / downlink + up / uplink))
