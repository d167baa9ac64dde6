"""Costs of a network: parameters and multiply-adds for a client, and bytes of activations.

After each operator the bytes held are linear in the number of samples, so two counts of samples decide all counts.

Legend: d parameters, B samples of a mini-batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..types import Footprint
from .flat import FlatModel

COUNTED = (nn.Conv2d, nn.Linear, nn.LSTM)  # the multiply-adds of other layers are few
FEW, MORE = 2, 4  # samples, or models of a stack: batch normalisation may refuse a single sample
# kernels of oneDNN and cuDNN copy what they read and write into layouts of other orders
REORDERED = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward)


def footprint(module: nn.Module, x: Tensor, cut: int | None = None) -> Footprint:
    """Return the costs of ``module`` for one sample x (1, ...). cut: layers at the clients; None for all."""
    parameters, (macs, _) = _count_trained(module), _count_multiply_adds(module, x)
    if cut is None:
        return Footprint(parameters, parameters, macs, macs)
    assert isinstance(module, nn.Sequential)
    at_cut, own, own_macs = [], 0, 0
    for layer in module[:-1]:
        more, x = _count_multiply_adds(layer, x)
        own, own_macs = own + _count_trained(layer), own_macs + more
        at_cut.append(Footprint(parameters, own, macs, own_macs, x.numel()))
    return replace(at_cut[cut - 1], at_cut=tuple(at_cut))


def _count_trained(module: nn.Module) -> int:
    """Return the number of trained parameters, which clients send."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def _count_multiply_adds(module: nn.Module, x: Tensor) -> tuple[int, Tensor]:
    """Return (multiply-adds, output) of one forward pass of ``x``. The module's mode and statistics do not change."""
    macs = 0

    def count(layer: nn.Module, _, out) -> None:
        nonlocal macs
        out = out[0] if isinstance(out, tuple) else out
        channels = getattr(layer, "hidden_size", None) or getattr(layer, "out_features", None) or out.shape[1]
        # each weight is used once at every position of the output: a pixel, a token
        weights = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
        macs += out.numel() // channels * weights

    layers = [layer for layer in module.modules() if isinstance(layer, COUNTED)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training = module.training
    module.eval()  # batch normalisation learns nothing, and takes one sample
    try:
        with torch.no_grad():
            out = module(x)
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return macs, out


class _HeldBytes(TorchDispatchMode):
    """Counts the tensors made in a block. held: bytes after each tensor, with copies inside its operator"""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[int] = []
        self._now = 0
        self._live: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes a second, to keep out of this method

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = {_storage_number(tensor) for tensor in _tensors((args, kwargs))}
        results = func(*args, **(kwargs or {}))
        fresh = [tensor for tensor in _tensors(results) if _storage_number(tensor) not in before | self._live]
        for storage in (tensor.untyped_storage() for tensor in fresh):
            self._live.add(storage._cdata)
            self._now += storage.nbytes()
            weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        if fresh:
            copies = _tensors((args, results)) if func.overloadpacket in REORDERED else ()
            self.held.append(self._now + sum(tensor.nbytes for tensor in copies))
        return results

    def _forget(self, number: int, size: int) -> None:
        self._live.discard(number)
        self._now -= size


def _tensors(content: object) -> list[Tensor]:
    return [one for one in tree_leaves(content) if isinstance(one, Tensor)]


def _storage_number(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def peak_bytes(compute: Callable[[Tensor, Tensor], object], x: Tensor, b: int) -> int:
    """Return the peak bytes of the tensors that ``compute`` makes for b samples like x (1, …) and labels."""
    counted = []
    devices = [x.device] if torch.cuda.is_available() and x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # a user's network may draw
        for count in (FEW, MORE):
            with _HeldBytes() as block:
                compute(x.repeat(count, *[1] * (x.dim() - 1)), torch.zeros(count, dtype=torch.int64, device=x.device))
            counted.append(block.held)
    if len(counted[0]) != len(counted[1]):
        return max(counted[1]) * b // MORE
    return max(few + (more - few) * (b - FEW) // (MORE - FEW) for few, more in zip(*counted, strict=True))


def step_bytes(flat: FlatModel, x: Tensor, b: int) -> int:
    """Return the bytes of a gradient of b samples like x (1, …), without its d numbers."""
    w_d, out_d, statistics_b = flat.initial_d(), flat.initial_d(), flat.statistics()
    held = peak_bytes(lambda x, y: flat.gradient(w_d, x, y, out_d), x, b)
    flat.load_statistics(statistics_b)
    return max(0, held - out_d.nbytes)


def stacked_step_bytes(flat: FlatModel, x: Tensor, b: int, p: int) -> int:
    """Return the bytes of the gradients of p stacked models, of b samples like x (1, …)."""
    held = []
    for few in (FEW, MORE):  # models: some memory is of all together
        w_pd = flat.initial_d().repeat(few, 1)

        def compute(x: Tensor, y: Tensor, w_pd: Tensor = w_pd) -> None:
            assert flat.stack is not None
            x, y, weight = (part.expand(len(w_pd), *part.shape) for part in (x, y, w_pd.new_ones(len(y))))
            flat.stack.gradient(w_pd, x, y, weight, torch.empty_like(w_pd))

        held.append(peak_bytes(compute, x, b) - w_pd.nbytes)
    few, more = held
    return few + (more - few) * (p - FEW) // (MORE - FEW)


def evaluation_bytes(flat: FlatModel, x: Tensor, b: int) -> int:
    """Return the bytes of the outputs for b samples like x (1, …)."""
    w_d = flat.initial_d()
    return peak_bytes(lambda x, y: flat.logits(w_d, x), x, b)
