"""A GPU that is not there: tensors on `cuda` with a shape, a type and a place, but no numbers in them.

torch's FakeTensorMode refuses an operation on tensors of two devices, as a GPU does. What a torch without CUDA lacks is
put in its place here: numbers that are read are made up (1), so are gradients of automatic differentiation, which wants
the driver's threads (the parameters themselves, after a true forward pass), and questions to the driver are answered.
"""

from __future__ import annotations

import os
import traceback
import warnings
import zipfile
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from asyncfl_bench import storage
from asyncfl_bench.experiment import build, machine

READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
CPU_GENERATOR = torch.Generator
# what depends on numbers in its shape: one of them
CHOSEN = {
    torch.ops.aten._unique2.default: lambda x: (x[:1].clone(), torch.zeros_like(x), torch.ones_like(x[:1])),
    torch.ops.aten.index.Tensor: lambda x: x[:1].clone(),
    torch.ops.aten.nonzero.default: lambda x: x.new_zeros((1, x.dim()), dtype=torch.long),
    torch.ops.aten.bincount.default: lambda x: torch.ones_like(x[:1]),
}


@contextmanager
def fake_gpu():
    """Within it, device `cuda` is there. Tensors made outside count as tensors of the CPU. Yields a ``FakeDriver``."""
    saved: list = []  # a tensor without numbers cannot be written: the file holds the place in this list

    def write(content, file) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("place", str(len(saved)))
        saved.append(on_cpu(content))

    with ExitStack() as stack:
        for owner, name, answer in (
            (machine, "select_device", lambda choice: choice),
            (build, "graphs_or_none", lambda device: EagerGraphs()),
            (machine, "device_name", str),
            (machine, "reset_peak_memory", lambda device: None),
            (machine, "peak_memory", lambda device: 0),
            (machine, "free_memory", lambda device: None),
            (storage, "_pin_memory", lambda rows: rows),
            (storage, "_pin", lambda tensor: tensor),
            (torch, "Generator", Generator),
            (torch, "save", write),
            (torch, "load", lambda path, **options: on_cpu(saved[int(zipfile.ZipFile(path).read("place"))])),
            (torch.autograd, "grad", _gradients),
            (torch.nn.Module, "to", _moved),
            (FakeTensor, "numpy", _numpy),
            (FakeTensor, "tolist", lambda tensor: _numpy(tensor.cpu()).tolist()),
            (FakeTensor, "data_ptr", _address),
            # copying a tensor would copy its mode too, with what that holds of torch's memory: a crash some time later
            (FakeTensorMode, "__deepcopy__", lambda mode, memo: mode),
        ):
            stack.enter_context(patch.object(owner, name, answer, create=owner in (FakeTensor, FakeTensorMode)))
        stack.enter_context(patch.dict(os.environ))
        stack.enter_context(warnings.catch_warnings())
        stack.callback(machine.make_deterministic, "cpu")
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))  # its recurrent layers want the driver
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield stack.enter_context(FakeDriver())


def _gradients(loss, of):
    return [one.detach().clone() for one in ([of] if isinstance(of, torch.Tensor) else of)]


class EagerGraphs:
    """Graphs that are computed operator by operator."""

    def capture(self, compute):
        compute()
        return SimpleNamespace(replay=compute)


class Generator(CPU_GENERATOR):
    """One of the CPU that is taken for one of the device. Known by its address: torch makes other objects of it."""

    device_of: ClassVar[dict[int, torch.device]] = {}

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        cls.device_of[made._cdata] = torch.device(device)
        return made


class FakeDriver(TorchDispatchMode):
    """Answers what is read from tensors, and holds generators against the tensors they fill.

    waits  how often the host waited for the device, by the place in the package
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        results = self._compute(func, args, kwargs)
        if _waits(func, args, kwargs, results):
            self.waits[_place()] += 1
        return results

    def _compute(self, func, args, kwargs):
        if (generator := kwargs.get("generator")) is not None:
            device = Generator.device_of.get(generator._cdata, generator.device)
            if device.type != args[0].device.type:
                raise RuntimeError(f"a generator of {device} for a tensor on {args[0].device}")
        try:
            return func(*args, **kwargs)
        except DynamicOutputShapeException:
            if func not in CHOSEN:
                raise
            return CHOSEN[func](args[0])
        except DataDependentOutputException:
            if func not in READS:
                raise
            return torch.ones((), dtype=args[0].dtype).numpy().item()


def _waits(func, args, kwargs, results) -> bool:
    """Return True for an operator that returns when the device has done all its work."""
    name = func.overloadpacket
    if name is torch.ops.aten._to_copy:
        return _device_of(args[0]) != _device_of(results) and not kwargs.get("non_blocking")
    if name is torch.ops.aten.copy_:
        return _device_of(args[0]) != _device_of(args[1]) and True not in (*args[2:], kwargs.get("non_blocking"))
    if name is torch.ops.aten.index and not any(one is not None and one.dtype == torch.bool for one in args[1]):
        return False
    return (func in READS or func in CHOSEN) and _device_of(args[0]) == "cuda"


def _device_of(one) -> str | None:
    return one.device.type if isinstance(one, torch.Tensor) else None


def _place() -> str:
    """Return file and line of the package that called torch."""
    return next(
        (
            f"{Path(frame.filename).name}:{frame.lineno}"
            for frame in reversed(traceback.extract_stack())
            if "asyncfl_bench" in Path(frame.filename).parts
        ),
        "elsewhere",
    )


def on_cpu(content):
    """A copy, as a file gives it back."""
    if isinstance(content, dict):
        return {key: on_cpu(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(on_cpu(value) for value in content)
    return content.detach().cpu().clone() if isinstance(content, torch.Tensor) else content


def _moved(module, device):
    """torch's own exchanges parameters by new ones here, where with numbers in them they stay the same objects."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.fake_device = torch.device(device)
    return module


def _numpy(tensor, *, force=False):
    if tensor.device.type != "cpu" and not force:
        raise TypeError(f"can't convert {tensor.device} device type tensor to numpy")
    return np.ones(tensor.shape, str(tensor.dtype).removeprefix("torch."))


def _address(tensor):
    return tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size()
