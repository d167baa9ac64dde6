"""A CUDA graph that is not there: ``capture(compute)`` on a CPU gives an object with ``replay()`` and the same traps.

A capture writes down every operator with the memory that it reads and writes, and computes nothing that is left behind.
``replay`` runs these operators again on the same memory, without any Python of the network: a number that Python read
or computed is frozen, and an input that is not copied into its static tensor is not seen. Memory of the graph holds no
number between two replays, as other graphs use it too. What a capture refuses is refused: reading a number, shapes that
depend on numbers, tensors made from numbers of the host, random draws, and what sorts in deterministic mode.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from asyncfl_bench.experiment import build, machine

aten = torch.ops.aten
MAX_EMBEDDED = 3072  # ids of a mini-batch; the gradient of an embedding of more is sorted
REASONS = {
    "reads a number": "_local_scalar_dense equal is_nonzero item tolist numpy cpu __array__",
    "has a shape that depends on numbers": "nonzero masked_select _unique2 unique_consecutive unique_dim bincount",
    "makes a tensor from numbers of the host": "lift_fresh lift_fresh_copy from_numpy",
    "sorts in deterministic mode": "scatter_add scatter_add_ index_add index_add_ _embedding_bag_dense_backward",
}
REFUSED = {name: reason for reason, names in REASONS.items() for name in names.split()}
EMPTY = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}


class CaptureRefused(RuntimeError):
    """Stands for the driver's error: operation not permitted when stream is capturing."""


def _refuse(name: str, reason: str) -> None:
    raise CaptureRefused(f"{name}: {reason}")


class FakeGraph(TorchDispatchMode):
    """The context of a capture, then the graph.

    operators  (operator, arguments, arguments by name, tensors that it makes) in their order
    launches   kernels of a replay: operators besides views and empty memory
    replays    how often it was replayed
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, tuple, dict, list[Tensor]]] = []
        self.replays = 0
        self._own: set[int] = set()  # storages made inside
        self._before: list[tuple[Tensor, Tensor]] = []  # memory from outside that is written, and what was in it

    @property
    def launches(self) -> int:
        return sum(func.overloadpacket not in EMPTY for func, *_ in self.operators)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        _refuse_operator(func, args, kwargs)
        if func._schema.is_mutable:
            self._keep(func, args, kwargs)
        results = func(*args, **kwargs)
        fresh = _fresh(results, (args, kwargs))
        if fresh or func._schema.is_mutable:
            # other objects on the same memory, which is held: a parameter that is bound elsewhere later is not seen
            self.operators.append((func, *tree_map_only(Tensor, Tensor.detach, (args, kwargs, fresh))))
            self._own.update(_address(tensor) for tensor in fresh)
        return results

    def _keep(self, func, args: tuple, kwargs: dict) -> None:
        """Remember what is in memory from outside before an operator writes into it."""
        written = [
            args[place] if place < len(args) else kwargs.get(argument.name)
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for tensor in tree_leaves(written):
            if isinstance(tensor, Tensor) and _address(tensor) not in self._own:
                self._before.append((tensor.detach(), tensor.detach().clone()))

    def finish(self) -> None:
        """End the capture: nothing was computed."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)
        self._before.clear()
        self._forget()

    def replay(self) -> None:
        self.replays += 1
        with _disable_current_modes():
            for func, args, kwargs, fresh in self.operators:
                if func.overloadpacket not in EMPTY:
                    again = _fresh(func(*args, **kwargs), (args, kwargs))
                    for old, new in zip(fresh, again, strict=True):
                        old.copy_(new)
            self._forget()

    def _forget(self) -> None:
        for tensor in (tensor for *_, fresh in self.operators for tensor in fresh):
            tensor.fill_(float("nan") if tensor.is_floating_point() else tensor.dtype == torch.bool)


def _refuse_operator(func, args: tuple, kwargs: dict) -> None:
    """Raise CaptureRefused for an operator that cannot be captured."""
    name = func.overloadpacket.__name__
    if name in REFUSED:
        _refuse(name, REFUSED[name])
    writes = name.startswith(("index_put", "_index_put_impl"))
    chooses = name == "index" or (writes and args[2].numel() > 1)  # one number is filled in without counting
    if chooses and any(one is not None and one.dtype == torch.bool for one in args[1]):
        _refuse(name, "has a shape that depends on numbers")
    adds_up = writes and (*args[3:4], kwargs.get("accumulate"))[0]
    if adds_up or (name == "embedding_dense_backward" and args[1].numel() > MAX_EMBEDDED):
        _refuse(name, "sorts in deterministic mode")
    draws = "scaled_dot_product" not in name or any(isinstance(one, float) and one > 0 for one in args[3:])
    if torch.Tag.nondeterministic_seeded in func.tags and draws:
        _refuse(name, "draws random numbers")


def _fresh(results: Any, given: Any) -> list[Tensor]:
    """Return the results in memory of none of the given tensors."""
    known = {_address(tensor) for tensor in _tensors(given)}
    return [tensor for tensor in _tensors(results) if _address(tensor) not in known]


def _tensors(content: Any) -> Iterable[Tensor]:
    return (one for one in tree_leaves(content) if isinstance(one, Tensor))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _refusing_here(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function, refused in this thread alone, as ``capture_error_mode="thread_local"`` does."""
    own = threading.get_ident()

    def refuse_or_call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == own:
            _refuse(name, REFUSED[name])
        return function(*args, **kwargs)

    return refuse_or_call


class FakeGraphs:
    """Captures on a CPU. captured: the graphs, in the order of their capture"""

    def __init__(self) -> None:
        self.captured: list[FakeGraph] = []

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.captured)

    def capture(self, compute: Callable[[], object]) -> FakeGraph:
        """Run ``compute`` to warm up, then capture it. Raises CaptureRefused."""
        compute()
        graph = FakeGraph()
        with ExitStack() as stack:
            reads = ("tolist", "numpy", "cpu", "__array__")  # which torch does not dispatch on a CPU
            for owner, name in (*((Tensor, name) for name in reads), (torch, "from_numpy")):
                stack.enter_context(patch.object(owner, name, _refusing_here(getattr(owner, name), name)))
            stack.callback(graph.finish)
            stack.enter_context(graph)
            compute()
        self.captured.append(graph)
        return graph


def use_fake_graphs(monkeypatch, graphs: object) -> None:
    """Runs of a CPU capture with ``graphs``."""
    monkeypatch.setattr(machine, "NEEDS_GPU", {})
    monkeypatch.setattr(build, "graphs_or_none", lambda device: graphs)


class Launches(TorchDispatchMode):
    """Counts the launches of a block: operators besides views and empty memory, and a replay of ``graphs`` as one.

    dispatched  all operators of the block's thread, without replays
    """

    def __init__(self, graphs: FakeGraphs):
        super().__init__()
        self.graphs, self.operators, self._before, self.dispatched = graphs, 0, graphs.replays, 0

    @property
    def count(self) -> int:
        return self.operators + self.graphs.replays - self._before

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        self.dispatched += 1
        computes = func._schema.is_mutable or _fresh(results, (args, kwargs))
        self.operators += bool(computes) and func.overloadpacket not in EMPTY
        return results
