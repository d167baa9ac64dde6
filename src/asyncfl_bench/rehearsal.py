"""A run played with a model of one parameter: the same arrivals and the same order of computing, nothing computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from .algorithms.base import equip
from .clients.executors import SequentialExecutor
from .clients.versions import Block
from .config import Settings
from .simulating import make_simulation
from .simulation.engine import Simulation
from .storage import Storage
from .types import Work


class StandIn(SequentialExecutor):
    """Holds versions and blocks as the executor ``real`` will, and answers with ones.

    most_versions, most_uploads  held at once at most so far, in vectors
    """

    def __init__(self, real: SequentialExecutor):
        super().__init__(None, None, None, None)  # type: ignore[arg-type]  # it computes nothing
        self.together, self.at_once, self.steps_together = real.together, real.at_once, real.steps_together
        self.ahead, self._starts = real.ahead, real.starts
        self.keeps_base = real.keeps_base
        self.most_versions = 0

    @property
    def most_uploads(self) -> int:
        return self._blocks.most_rows

    def dispatch(self, work: Work, model_d: torch.Tensor) -> None:
        super().dispatch(work, model_d)
        self.most_versions = max(self.most_versions, len(self.versions))

    def _compute(self, works: list[Work], block: Block) -> Callable[[], list[tuple]]:
        block.rows_pd.fill_(1.0)
        starts = self._blocks.take(count, block.rows_pd[0]) if (count := self._starts(works)) else None

        def finish() -> list[tuple]:
            if starts is not None:
                starts.waiting = 1
                self._blocks.used(starts)
            return [(torch.zeros(()), None)] * len(works)

        return finish


def rehearsal(settings: Settings, clients, streams, executor: SequentialExecutor) -> tuple[Simulation, StandIn]:
    """The simulation of the run, with one parameter and no cache of any size, and its executor."""
    algorithm = settings.parts["algorithm"]
    config = algorithm.config
    if (cache := getattr(config, "cache", None)) is not None:
        config = dataclasses.replace(config, cache=type(cache)())
    rule = equip(algorithm.target(config), Storage(rounding=streams.cache), streams)
    stand_in = StandIn(executor)
    model_d = torch.zeros(1)
    simulation = make_simulation(
        settings, rule=rule, model_d=model_d, clients=clients, executor=stand_in, streams=streams
    )
    return simulation, stand_in
