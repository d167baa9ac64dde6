"""Small convolutional networks on a CPU by a kernel in C++ (native.cpp) that is compiled for their shapes.

torch takes several times as long for a LeNet5 gradient of 50 samples on one core (``make bench``, W1). The kernel is
compiled on first use, by the C++ compiler that is there or by the package ``ziglang``, and kept; without one torch
computes as ever.

Legend: d parameters, B samples of a mini-batch.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BenchError
from ..files import atomic_write, cache_folder
from .flat import FlatModel

SOURCE = Path(__file__).with_suffix(".cpp").read_text()  # now: a long sweep may outlive the package it began with
FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-exceptions", "-fno-rtti")
TIMEOUT_S = 120
MAX_STACK_BYTES = 2**20  # of one sample's activations, which lie on a thread's stack
TOLERANCE = 1e-3  # of the check beside torch, relative to the largest component: rounding stays far below
_QUIET: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "timeout": TIMEOUT_S}
_ENTRIES = """
extern "C" void gradient(const float* w, const Samples* x, const int64_t* labels, const float* shares, int64_t b,
                         float* out, float* loss, char* memory) {
  *loss = Net::gradient(w, *x, Targets{labels, shares}, b, out, Memory{memory}, nullptr);
}
extern "C" void logits(const float* w, const Samples* x, int64_t b, float* out, char* memory) {
  Net::logits(w, *x, b, out, Memory{memory});
}
extern "C" int64_t bytes(int64_t b) {
  int64_t count;
  Net::gradient(nullptr, Samples{}, Targets{}, b, nullptr, Memory{nullptr}, &count);
  return count;
}
"""


@dataclass(frozen=True)
class Convolution:
    """With a square kernel and zero padding; then bias, ReLU and a 2x2 max-pool or none. Sizes are those that enter."""

    channels: int
    height: int
    width: int
    outputs: int
    kernel: int
    padding: int
    pool: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what comes out."""
        height, width = (side + 2 * self.padding - self.kernel + 1 for side in (self.height, self.width))
        return (self.outputs, height // 2, width // 2) if self.pool else (self.outputs, height, width)


@dataclass(frozen=True)
class Shapes:
    """Blocks of convolution, then linear layers with ReLU in between: features, hidden widths, classes."""

    convolutions: tuple[Convolution, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module, data_shape: tuple[int, ...]) -> Shapes | None:
        """Those of a sequential network on samples of ``data_shape``; None for any other network."""
        layers = list(module) if isinstance(module, nn.Sequential) else []
        convolutions: list[Convolution] = []
        shape = tuple(data_shape)
        while layers and isinstance(layers[0], nn.Conv2d):
            pool = len(layers) > 2 and isinstance(layers[2], nn.MaxPool2d)
            if len(shape) != 3 or not _plain(layers[: 2 + pool]):
                return None
            convolution = layers[0]
            kernel, padding = int(convolution.kernel_size[0]), int(convolution.padding[0])
            convolutions.append(Convolution(*shape, convolution.out_channels, kernel, padding, pool))
            shape = convolutions[-1].shape
            del layers[: 2 + pool]
        if len(layers) < 2 or not isinstance(layers.pop(0), nn.Flatten) or len(layers) % 2 == 0 or min(shape) < 1:
            return None
        linears = [layer for layer in layers[::2] if isinstance(layer, nn.Linear) and layer.bias is not None]
        relus = [layer for layer in layers[1::2] if isinstance(layer, nn.ReLU)]
        if len(linears) + len(relus) < len(layers):
            return None
        widths = (linears[0].in_features, *(layer.out_features for layer in linears))
        found = cls(tuple(convolutions), widths)
        return found if widths[0] == math.prod(shape) and found._stack_bytes() <= MAX_STACK_BYTES else None

    def _stack_bytes(self) -> int:
        sizes = [(c.height + 2 * c.padding) * (c.width + 2 * c.padding + 16) * c.channels for c in self.convolutions]
        return 4 * (sum(sizes) + sum(c.shape[0] * c.shape[1] * c.shape[2] for c in self.convolutions))

    def source(self) -> str:
        """The kernel for these shapes."""
        last = len(self.convolutions) - 1
        blocks = []
        for i, c in enumerate(self.convolutions):
            numbers = (c.channels, c.height, c.width, c.outputs, c.kernel, c.padding, c.pool, i == 0, i == last)
            blocks.append(f"Conv<{', '.join(str(int(number)) for number in numbers)}>")
        widths = ", ".join(map(str, self.widths))
        return f"{SOURCE}\nusing Net = Network<Chain<{', '.join(blocks)}>, {widths}>;\n{_ENTRIES}"


def _plain(layers: list[nn.Module]) -> bool:
    """Whether these are a convolution as the kernel does it, a ReLU, and a 2x2 max-pool if there is a third."""
    convolution, behind, pools = layers[0], layers[1:2], layers[2:]
    assert isinstance(convolution, nn.Conv2d)
    (kernel, other), padding = convolution.kernel_size, convolution.padding
    return (
        kernel == other
        and not isinstance(padding, str)
        and padding[0] == padding[1]
        and (convolution.stride, convolution.dilation, convolution.groups) == ((1, 1), (1, 1), 1)
        and convolution.padding_mode == "zeros"
        and convolution.bias is not None
        and len(behind) == 1
        and isinstance(behind[0], nn.ReLU)
        and all(
            (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode) == (2, 2, 0, 1, False)
            for pool in pools
            if isinstance(pool, nn.MaxPool2d)
        )
    )


class Chosen:
    """Samples of a mini-batch, by their place among all, and how each image is cut.

    index    (B,) whole numbers
    augment  dy, dx, flip as in ``Task.batch``, around images ``border`` pixels of zeros; None: images as they are
    """

    def __init__(self, index: np.ndarray, augment: Sequence[np.ndarray] | None = None, border: int = 0):
        self.index_b = np.ascontiguousarray(index, np.int64)
        self.cut_3b = None if augment is None else np.stack([part.astype(np.int64) for part in augment])
        self.border = border


class _Samples(ctypes.Structure):
    _fields_ = [
        ("numbers", ctypes.c_void_p),
        ("pixels", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("channels", ctypes.c_int64),
        ("chosen", ctypes.c_void_p),
        ("cut", ctypes.c_void_p),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("border", ctypes.c_int64),
    ]


class NativeNetwork:
    """Gradients of one network, from any number of threads at once: the kernel runs without the interpreter's lock."""

    has_statistics = False

    def __init__(self, library: ctypes.CDLL, classes: int, numbers_cv: Tensor | None):
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        samples = ctypes.POINTER(_Samples)
        self._gradient, self._logits, self._bytes = library.gradient, library.logits, library.bytes
        self._gradient.argtypes = (pointer, samples, pointer, pointer, count, pointer, pointer, pointer)
        self._logits.argtypes = (pointer, samples, count, pointer, pointer)
        self._gradient.restype = self._logits.restype = None
        self._bytes.argtypes, self._bytes.restype = (count,), count
        self._classes = classes
        self._numbers_cv = None if numbers_cv is None else numbers_cv.contiguous()
        self._own = threading.local()  # each thread's workspace

    @classmethod
    def of(cls, flat: FlatModel, data_shape: tuple[int, ...], numbers_cv: Tensor | None = None) -> NativeNetwork | None:
        """None for a network that the kernel does not do. BenchError, with the reason, where it could but there is no
        compiler, it fails, or what it made differs from torch.

        numbers_cv  (C, 256) float32, where samples are uint8: the number that each value of a channel stands for
        """
        shapes = Shapes.of(flat.module, data_shape)
        if shapes is None:
            return None
        try:
            native = cls(_library(shapes.source()), shapes.widths[-1], numbers_cv)
        except AttributeError as error:  # some compiler made something else
            raise BenchError(str(error)) from None
        native._check(flat, data_shape)
        return native

    def gradient(self, w_d: Tensor, x: Tensor, y: Tensor, out_d: Tensor, chosen: Chosen | None = None) -> Tensor:
        """See ``FlatModel.gradient``; results equal its up to rounding.

        x  (N, …) float32 or uint8, of which ``chosen`` is the mini-batch, or all
        y  (N,) int64 labels, or (N, C) float32 shares
        """
        x, y, loss = x.contiguous(), y.contiguous(), w_d.new_empty(())
        count = len(y if chosen is None else chosen.index_b)
        samples, memory = self._samples(x, chosen), self._memory(count)
        targets = (None, y.data_ptr()) if y.is_floating_point() else (y.data_ptr(), None)
        self._gradient(w_d.data_ptr(), samples, *targets, count, out_d.data_ptr(), loss.data_ptr(), memory)
        return loss

    def logits(self, w_d: Tensor, x: Tensor) -> Tensor:
        """See ``FlatModel.logits``, of float32 or uint8; results equal its up to rounding."""
        x, out, count = x.contiguous(), w_d.new_empty((len(x), self._classes)), len(x)
        self._logits(w_d.data_ptr(), self._samples(x), count, out.data_ptr(), self._memory(count))
        return out

    def _samples(self, x: Tensor, chosen: Chosen | None = None) -> _Samples:
        at = None if chosen is None else chosen.index_b.ctypes.data
        cut = None if chosen is None or chosen.cut_3b is None else chosen.cut_3b.ctypes.data
        if x.dtype == torch.float32 and cut is None:
            return _Samples(numbers=x.data_ptr(), chosen=at)
        numbers_cv = self._numbers_cv
        if x.dtype != torch.uint8 or numbers_cv is None:
            raise TypeError(f"samples of {x.dtype}{'' if cut is None else ', to be cut'}")
        known = _Samples(pixels=x.data_ptr(), table=numbers_cv.data_ptr(), channels=len(numbers_cv), chosen=at, cut=cut)
        known.height, known.width, known.border = *x.shape[-2:], 0 if chosen is None else chosen.border
        return known

    def _memory(self, count: int) -> int:
        """Address of a workspace for so many samples."""
        memory = getattr(self._own, "memory", None)
        if memory is None or self._own.count < count:
            self._own.count = count
            memory = self._own.memory = torch.empty(self._bytes(count), dtype=torch.uint8)
        return memory.data_ptr()

    def _check(self, flat: FlatModel, data_shape: tuple[int, ...]) -> None:
        drawn = torch.Generator().manual_seed(0)
        # sums of such numbers are exact, so that no winner under a pool is a matter of rounding
        x = torch.randint(-8, 9, (3, *data_shape), generator=drawn) / 4
        w_d = torch.randint(-1, 2, (flat.d,), generator=drawn) / 16
        y = torch.randint(self._classes, (3,), generator=drawn)
        expected_d, found_d = torch.empty_like(w_d), torch.empty_like(w_d)
        flat.gradient(w_d, x, y, expected_d)
        self.gradient(w_d, x, y, found_d)
        if not (found_d - expected_d).abs().max() <= TOLERANCE * expected_d.abs().max():
            raise BenchError("what was compiled gives another gradient than torch")


def _library(source: str) -> ctypes.CDLL:
    """The machine code of ``source``, compiled unless it was before on such a processor. BenchError if it cannot be."""
    command = [*compiler(), *FLAGS, "-shared", "-fPIC"]
    key = _digest("\n".join((source, *command, _version(tuple(command)), _processor())).encode())
    folder = cache_folder() / "native"
    try:
        for kept in folder.glob(f"{key}-*.so"):
            if _digest(kept.read_bytes()) == kept.stem.rpartition("-")[2]:  # to load a damaged one may end the process
                return ctypes.CDLL(str(kept))
        with tempfile.TemporaryDirectory() as own:
            made = _compiled(source, command, Path(own))
            library = folder / f"{key}-{_digest(made.read_bytes())}.so"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with atomic_write(library) as file:
                    file.write(made.read_bytes())
            except OSError:  # compiled again next time
                library = made
            return ctypes.CDLL(str(library))
    except OSError as error:
        raise BenchError(str(error)) from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _compiled(source: str, command: list[str], folder: Path) -> Path:
    text, made = folder / "network.cpp", folder / "network.so"
    text.write_text(source)
    try:
        subprocess.run(
            [*command, "-o", str(made), str(text)],
            **(_QUIET | {"check": True, "start_new_session": True}),  # Ctrl-C is for the run, which then stops in order
        )
    except subprocess.CalledProcessError as error:
        said = next((line for line in error.stderr.splitlines() if "error" in line), f"exit status {error.returncode}")
        raise BenchError(f"{command[0]} failed: {said[:200]}") from None
    except subprocess.TimeoutExpired as error:
        raise BenchError(str(error)) from None
    return made


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, the system's, or that of the package ``ziglang``. BenchError for none."""
    if chosen := os.environ.get("CXX"):
        return chosen.split()
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]  # as c++ it would first build a library that is not needed
    raise BenchError("no C++ compiler was found (pip install 'asyncfl_bench[native]' brings one)")


@cache
def _version(command: tuple[str, ...]) -> str:
    try:
        return subprocess.run([*command, "--version"], **_QUIET).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{command[0]}: {error}") from None


@cache
def _processor() -> str:
    """What tells processors apart for which ``-march=native`` is not the same."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()}"
