"""Choice of a run's executor."""

from __future__ import annotations

from functools import partial

from ..errors import BenchError, ConfigError, check
from ..files import say_once
from .batched import BatchedComputer
from .executors import SequentialComputer, ThreadsComputer
from .on_ray import RayComputer
from .stacked import StackComputer

COMPILED_D = 20_000  # smallest d at which compiling a network of linear layers pays (docs/explanation/performance.md)
NATIVE = "on a CPU with a sequential network of linear layers behind blocks of convolution, ReLU and 2x2 max-pool"
CUT = ", cut behind one of these"


def native_network(choice: str, device: str, task, cut=None):
    """Return the task's compiled kernel (kernels.native.NativeNetwork) for ``native``, and ``auto`` if it is faster.

    Otherwise None. Both parts of a ``cut`` model (models.parts.Cut) are compiled too. For small networks of linear
    layers the formulas of ``batched`` are faster. Without a compiler one line is printed. Raises ConfigError for
    ``native`` if it is not possible.
    """
    small = task.flat.perceptron is not None and task.flat.d < COMPILED_D
    if choice not in ("auto", "native") or (choice == "auto" and (device != "cpu" or small)):
        return None
    try:
        found = task.try_compile() if device == "cpu" else None
        if found is not None and cut is not None and not cut.compile():
            found = None
    except BenchError as error:
        if choice == "native":
            raise ConfigError("executor", choice, f"not possible: {error}") from None
        say_once(f"no kernel (executor=native), so PyTorch computes, convolutions several times slower: {error}")
        return None
    if choice == "native" and found is None:
        raise ConfigError("executor", choice, f"possible only {NATIVE}{CUT if cut else ''}")
    return found


def graphed_network(task, graphs, batch_size: int | str):
    """Return the task's gradients as graphs (kernels.graphed.GraphedNetwork)."""
    size = 0 if isinstance(batch_size, str) else batch_size
    return task.capture(graphs, size, partial(_report_refusal, "graph"))


def _report_refusal(kind: str, reason: str) -> None:
    say_once(f"executor={kind}: the operators of this network are launched one by one, not as a graph: {reason}")


def executor_class(
    choice: str,
    *,
    device: str,
    cores: int,
    perceptron: bool,
    has_statistics: bool,
    stacks: bool = True,
    native: bool = False,
    cut: bool = False,
    captures: bool = False,
) -> str:
    """Return the executor's name; for ``auto`` the fastest one (docs/explanation/performance.md).

    cut       clients hold a part of the model, whose stages are computed in threads or one after another
    stacks    there are formulas for several models at once, which ``batched`` needs; best for networks of linear layers
    native    there is a ``native_network``, the fastest on a CPU
    captures  the gradient can be a graph, which is the fastest on a GPU without formulas
    has_statistics  of batch normalisation, of which a network has one set: work is then computed sequentially
    Raises ConfigError for a choice that is not possible.
    """
    if native:
        return "native"
    gpu = device != "cpu"
    if cut:
        if choice == "threads" and gpu:
            raise ConfigError("executor", choice, "must be sequential or auto on a GPU with a model that is cut")
        threads = choice == "threads" or (choice == "auto" and cores > 1 and not perceptron)
        return "threads" if threads and not gpu else "sequential"
    single = "batch normalisation" if has_statistics else None if stacks else "this network"
    possible = {
        "sequential": True,
        "threads": not (gpu or has_statistics),
        "ray": not (gpu or has_statistics),
        "batched": stacks and not has_statistics,
        "graph": captures and not has_statistics,
    }
    if choice != "auto":
        allowed = [*(name for name, can_work in possible.items() if can_work), "auto"]
        where = f"on a {'GPU' if gpu else 'CPU'}{f' with {single}' if single else ''}"
        check(choice in allowed, "executor", choice, f"{' or '.join(allowed)} {where}")
        return choice
    if perceptron:
        return "batched"
    if gpu:
        return next(name for name in ("batched", "graph", "sequential") if possible[name])
    return "threads" if possible["threads"] and cores > 1 else "sequential"


def make_computer(kind: str, *args, cores: int, network=None, capture=None, **options) -> SequentialComputer:
    """Build the computer of the executor ``kind`` (see ``executor_class``); other arguments as of SequentialComputer.

    capture  captures a step on a GPU (see StackComputer)
    """
    if kind in ("sequential", "graph") or (kind == "native" and cores == 1):
        return SequentialComputer(*args, network=network, **options)
    if kind in ("threads", "native"):
        return ThreadsComputer(*args, workers=cores, network=network, **options)
    if kind == "ray":
        return RayComputer(*args, cores=cores, **options)
    if capture is not None:
        return StackComputer(*args, capture=capture, report=partial(_report_refusal, kind), **options)
    return BatchedComputer(*args, workers=cores, **options)
