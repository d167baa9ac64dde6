"""The simulated world of a run, from checked settings and what computes in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import Settings
from .randomness import Streams
from .simulation.engine import Executor, Simulation
from .simulation.fleet import check_same_clients
from .types import ClientTable

if TYPE_CHECKING:
    import torch


def make_simulation(
    settings: Settings, *, rule, model_d: torch.Tensor, clients: ClientTable, executor: Executor, streams: Streams
) -> Simulation:
    """The run's clock, delays, availability, schedule and budget around ``rule`` and ``executor``."""
    root, parts = settings.root, settings.parts
    assert root.concurrency is not None
    client = parts["client"].config
    simulation = Simulation(
        rule=rule,
        model_d=model_d,
        clients=clients,
        upload_kind=client.upload,
        workload=client.workload,
        executor=executor,
        delay=parts["delay"].build(),
        availability=parts["availability"].build(),
        schedule=parts["schedule"].build(),
        clock=root.clock,
        concurrency=root.concurrency,
        budget=settings.budget,
        streams=streams,
    )
    check_same_clients(simulation.delay, simulation.availability)
    return simulation
