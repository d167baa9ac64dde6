"""The task of a run, from its settings: data, split and model, on a device or with the model cut in two."""

from __future__ import annotations

from collections.abc import Sequence

from ..algorithms.common.split import SplitConfig
from ..config import Settings
from ..data.base import PrivateConfig
from ..errors import BenchError, first_line, naming_group
from ..models.parts import Cut
from ..models.task import Task, build_task
from ..randomness import Streams
from .preflight import refuse_empty_clients


def build_run_task(settings: Settings, streams: Streams, clients: Sequence[int] | None) -> Task:
    """Build the task, on the CPU. clients: see ``build.build_run``. Raises ConfigError or BenchError."""
    parts = settings.parts
    dataset = parts["dataset"].build()
    if isinstance(parts["dataset"].config, PrivateConfig) and (
        clients is not None or not parts["live"].config.computes
    ):
        dataset = dataset.with_clients(clients or (), parts["live"].config.counts_file)
    try:
        return build_task(
            dataset,
            parts["heterogeneity"].build(),
            parts["model"].build(),
            n_clients=settings.root.n_clients,
            data_dir=settings.data_dir,
            streams=streams,
            device="cpu",
            augment=parts["client"].config.augment,
            validation_share=settings.evaluation.validation_share,
            unlabelled=parts["unlabelled"].build(),
        )
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError when memory cannot be had
        raise BenchError(f"the data set and the model could not be built: {first_line(error)[:200]}") from error


def move_task(task: Task, device: str) -> None:
    """Move the data and the model. Raises BenchError if they do not fit."""
    try:
        task.to(device)
    except RuntimeError as error:
        raise BenchError(f"the data set and the model do not fit on {device}: {first_line(error)[:200]}") from error


def build_cut(settings: Settings, task: Task) -> Cut | None:
    """Split the model into two parts for rules that need it; None for other rules.

    Raises ConfigError for clients without samples, and for a cut that is too wide for the rule.
    """
    if not settings.needs.cuts:
        return None
    refuse_empty_clients(settings.choices["algorithm"], task.clients)
    cut = Cut(task.flat, settings.parts["model"].config.cut, task.shape, task.classes)
    config = settings.parts["algorithm"].config
    if isinstance(config, SplitConfig):
        with naming_group("algorithm"):
            config.describe_cut_cost(cut.footprint.activation, task.classes)
    return cut


def largest_batch(settings: Settings, task: Task) -> int:
    """Return the number of samples of the largest mini-batch."""
    size, most = settings.parts["client"].config.batch_size, int(task.clients.samples_n.max())
    return most if size == "all" else min(size, most)
