"""What a run would take here, from its first seconds: ``afl-run … --plan --measure``."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..algorithms.common.split import SplitConfig
from ..config import Settings
from ..errors import ConfigError

SECONDS = 2.0  # of simulated work that are timed


def server_cost_of(settings: Settings) -> str | None:
    """What a server step of a model that is cut costs (``SplitConfig.describe_cut_cost``); None where that is not known
    before the data are read. Reads no data. Raises ConfigError for a cut with which the run is refused."""
    rule, model, dataset = (settings.parts[group] for group in ("algorithm", "model", "dataset"))
    if not isinstance(rule.config, SplitConfig):
        return None
    import torch

    from ..tasks.datasets import DigitsConfig, TorchvisionImagesConfig

    if not isinstance(dataset.config, DigitsConfig | TorchvisionImagesConfig):
        return None
    shape, classes = dataset.config.known_shape
    clients_part = model.build().build(shape, classes, 0)[: model.config.cut]
    with torch.no_grad():
        width = clients_part(torch.zeros(1, *shape)).numel()
    try:
        return rule.config.describe_cut_cost(width, classes)
    except ConfigError as error:
        raise error.under("algorithm") from None


def seconds_of(settings: Settings) -> float:
    """Wall seconds of the whole run: start, work by its share of the budget, evaluations. Leaves nothing behind.

    A first round is left out where it is over within that time: it is not like the rest.
    Raises ConfigError or BenchError where the run could not begin.
    """
    from ..experiment.build import build_run

    began = time.perf_counter()
    with TemporaryDirectory() as folder:  # a cache on disk would be in the run's own
        parts = build_run(replace(settings, place=Path(folder)))
        parts.task.evaluate(parts.model_d)  # the first one waits for what is loaded late
        start = time.perf_counter() - began
        parts.task.evaluate(parts.model_d)
        evaluation = time.perf_counter() - began - start
        simulation = parts.simulation
        limits = {key: limit for key, limit in asdict(settings.budget).items() if limit is not None}
        config = settings.evaluation
        unit = "virtual_time" if config.every_time else "uploads" if config.every_uploads else "server_iterations"
        at, before = time.perf_counter(), dict.fromkeys([*limits, unit], 0.0)
        first, over, share = True, None, 0.0
        try:
            while over is None and (time.perf_counter() - at < SECONDS or not share):
                over = simulation.step()
                used = {key: simulation.counters.used_of(key) - amount for key, amount in before.items()}
                share = max(used[key] / limit for key, limit in limits.items())
                if first and over is None and simulation.counters.uploads >= settings.root.n_clients:
                    first, share = False, 0.0
                    at, before = time.perf_counter(), {key: simulation.counters.used_of(key) for key in before}
        finally:
            parts.executor.close()
    took, share = time.perf_counter() - at, share or 1.0  # of none where it ended before its first iteration
    points = used[unit] / share / (config.every_time or config.every_uploads or config.every)
    return start + took / share + points * evaluation
