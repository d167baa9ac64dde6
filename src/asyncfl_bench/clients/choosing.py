"""Which executor a run gets."""

from __future__ import annotations

from ..errors import ConfigError
from .batched import BatchedComputer
from .executors import SequentialComputer, ThreadsComputer


def executor_class(
    choice: str, *, device: str, cores: int, perceptron: bool, has_statistics: bool, recurrent: bool = False
) -> str:
    """`sequential`, `threads` or `batched` for ``auto``, from the measurements in docs/performance.md.

    On a CPU networks of linear layers gain most from stacked formulas, everything else from one piece of work per
    core. Batch normalisation has one set of statistics at a time, so its work is done one after another; the work of
    recurrent networks cannot be stacked either, but threads have a network each.
    Raises ConfigError for a choice that cannot work.
    """
    if has_statistics:
        if choice not in ("auto", "sequential"):
            raise ConfigError("executor", choice, "must be sequential or auto with batch normalisation")
        return "sequential"
    if recurrent:
        choices = ("sequential", "threads", "auto") if device == "cpu" else ("sequential", "auto")
        if choice not in choices:
            raise ConfigError("executor", choice, f"must be {' or '.join(choices)} with a recurrent network")
        if device != "cpu":
            return "sequential"
    if choice == "threads" and device != "cpu":
        raise ConfigError("executor", choice, "must be sequential, batched or auto on a GPU")
    if choice != "auto":
        return choice
    if device != "cpu" or perceptron:
        return "batched"
    return "threads" if cores > 1 else "sequential"


def make_computer(kind: str, *args, device: str, cores: int, **options) -> SequentialComputer:
    """The computer of the executor ``kind`` (see ``executor_class``); other arguments as for SequentialComputer."""
    if kind == "sequential":
        return SequentialComputer(*args, **options)
    if kind == "threads":
        return ThreadsComputer(*args, workers=cores, **options)
    # torch.func keeps one stack of transformations per process: only the written-out formulas may run in threads
    in_threads = device == "cpu" and args[0].flat.perceptron is not None
    return BatchedComputer(*args, workers=cores if in_threads else 1, **options)
