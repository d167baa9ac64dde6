"""Small convolutional networks on a CPU by a kernel in C++ (native.cpp) that is compiled for their shapes.

torch takes several times as long for a LeNet5 gradient of 50 samples on one core (``make bench``, W1). The kernel is
compiled at first use, by a C++ compiler of the system or of the package ``ziglang``, and cached. Without a compiler
torch computes the gradient.

Where a number is infinite or NaN, the gradient is not finite in the same components as torch's.

Legend: d parameters, B samples of a mini-batch.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BenchError
from .compiler import build_library
from .known_layers import FlatNetwork, plain_layers
from .stacked_convolutions import StackedConvolution, StackedLinear, StackedPool
from .stacked_networks import try_layers

# read at import, because the package may change during a long sweep
SOURCE = Path(__file__).with_suffix(".cpp").read_text(encoding="utf-8")
MAX_STACK_BYTES = 2**20  # of one sample's activations, which are on a thread's stack
TOLERANCE = 1e-3  # of the comparison with torch, relative to the largest component; rounding is far smaller
_LETTERS = {nn.Conv2d: "C", nn.MaxPool2d: "P", nn.ReLU: "R", nn.Flatten: "F", nn.Linear: "L"}
_ENTRIES = """
extern "C" void gradient(const float* w, const Samples* x, const int64_t* labels, const float* shares,
                         const float* bias, int64_t b, float* out, float* d_in, float* loss, char* memory) {
  *loss = Net::gradient(w, *x, Targets{labels, shares}, bias, b, out, d_in, Memory{memory});
}
extern "C" void pull_back(const float* w, const Samples* x, const float* d_out, int64_t b, float* out, char* memory) {
  Net::pull_back(w, *x, d_out, b, out, Memory{memory});
}
extern "C" void outputs(const float* w, const Samples* x, int64_t b, float* out, char* memory) {
  Net::outputs(w, *x, b, out, Memory{memory});
}
extern "C" int64_t bytes(int64_t b, int64_t back) { return back ? Net::bytes<true>(b) : Net::bytes<false>(b); }
"""


@dataclass(frozen=True)
class Convolution:
    """A convolution with square kernel, zero padding, bias and ReLU; perhaps a 2x2 max-pool. Sizes of its input."""

    channels: int
    height: int
    width: int
    outputs: int
    kernel: int
    padding: int
    pool: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of the output."""
        height, width = (side + 2 * self.padding - self.kernel + 1 for side in (self.height, self.width))
        return (self.outputs, height // 2, width // 2) if self.pool else (self.outputs, height, width)


@dataclass(frozen=True)
class Shapes:
    """Shapes of a network: blocks of convolution, then linear layers with ReLU in between.

    widths  features, hidden widths and classes; the first layers of a cut network may have features only
    relu    a ReLU follows the last layer, in a cut network
    """

    convolutions: tuple[Convolution, ...]
    widths: tuple[int, ...]
    relu: bool = False

    @classmethod
    def try_from_module(cls, module: nn.Module, data_shape: tuple[int, ...]) -> Shapes | None:
        """Return the shapes of a sequential network on samples of ``data_shape``; None for any other network."""
        layers, shape, convolutions = try_layers(module), tuple(data_shape), []
        kinds = "".join(_LETTERS[type(part)] for part in plain_layers(module))
        if not layers or not re.fullmatch("(CRP?)*F?(LR)*L?", kinds):
            return None
        for index, layer in enumerate(layers):
            if isinstance(layer, StackedConvolution):
                pool = kinds.startswith("P", index + 2)
                if len(shape) != 3 or layer.stride != 1 or (pool and layers[index + 2] != StackedPool(2, 2)):
                    return None
                convolutions.append(Convolution(*shape, layer.outputs, layer.kernel, layer.padding, pool))
                shape = convolutions[-1].shape
        linears = [layer for layer in layers if type(layer) is StackedLinear]
        widths = (math.prod(shape), *(layer.outputs for layer in linears))
        found = cls(tuple(convolutions), widths, kinds.endswith("LR"))
        fit = all(layer.inputs == width for layer, width in zip(linears, widths, strict=False))
        return found if fit and min(shape) > 0 and found._stack_bytes() <= MAX_STACK_BYTES else None

    def _stack_bytes(self) -> int:
        sizes = [(c.height + 2 * c.padding) * (c.width + 2 * c.padding + 16) * c.channels for c in self.convolutions]
        return 4 * (sum(sizes) + sum(c.shape[0] * c.shape[1] * c.shape[2] for c in self.convolutions))

    @property
    def d(self) -> int:
        """Number of parameters."""
        linear = sum((before + 1) * after for before, after in pairwise(self.widths))
        return linear + sum((c.channels * c.kernel**2 + 1) * c.outputs for c in self.convolutions)

    def source(self) -> str:
        """Return the source of the kernel for these shapes."""
        last = len(self.convolutions) - 1
        blocks = []
        for i, c in enumerate(self.convolutions):
            numbers = (c.channels, c.height, c.width, c.outputs, c.kernel, c.padding, c.pool, i == 0, i == last)
            blocks.append(f"Conv<{', '.join(str(int(number)) for number in numbers)}>")
        widths = ", ".join(map(str, self.widths))
        relu = str(self.relu).lower()
        return f"{SOURCE}\nusing Net = Network<Chain<{', '.join(blocks)}>, {relu}, {widths}>;\n{_ENTRIES}"


class BatchSelection:
    """The samples of a mini-batch by index, and the crop of each image.

    index    (B,) whole numbers
    augment  dy, dx, flip as in ``Task.batch``, with ``border`` pixels of zeros around images; None: no change
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
    reads_in_place = True
    vectors = 0

    def __init__(self, library: ctypes.CDLL, width: int, numbers_cv: Tensor | None):
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        samples = ctypes.POINTER(_Samples)
        self._gradient, self._pull_back = library.gradient, library.pull_back
        self._outputs, self._bytes = library.outputs, library.bytes
        self._gradient.argtypes = (*(pointer, samples, pointer, pointer, pointer, count), *[pointer] * 4)
        self._pull_back.argtypes = (pointer, samples, pointer, count, pointer, pointer)
        self._outputs.argtypes = (pointer, samples, count, pointer, pointer)
        self._gradient.restype = self._pull_back.restype = self._outputs.restype = None
        self._bytes.argtypes, self._bytes.restype = (count, count), count
        self._width = width
        self._numbers_cv = None if numbers_cv is None else numbers_cv.contiguous()
        self._thread = threading.local()  # each thread's workspace

    @classmethod
    def try_compile(
        cls, flat: FlatNetwork, data_shape: tuple[int, ...], numbers_cv: Tensor | None = None
    ) -> NativeNetwork | None:
        """Compile the kernel for a network. Return None if the kernel does not support the network.

        numbers_cv  (C, 256) float32 if samples are uint8: the number of each value of a channel
        Raises BenchError if there is no compiler, compilation fails, or the results differ from torch.
        """
        shapes = Shapes.try_from_module(flat.module, data_shape)
        if shapes is None or shapes.relu or len(shapes.widths) == 1 or shapes.d != flat.d:
            return None
        native = cls.compile_shapes(shapes, numbers_cv)
        x, w_d, y = exact_numbers(data_shape, flat.d, native._width)
        expected_d, found_d = torch.empty_like(w_d), torch.empty_like(w_d)
        flat.gradient(w_d, x, y, expected_d)
        native.gradient(w_d, x, y, found_d)
        check_alike(expected_d, found_d)
        return native

    @classmethod
    def compile_shapes(cls, shapes: Shapes, numbers_cv: Tensor | None = None) -> NativeNetwork:
        """Compile the kernel for these shapes. The results are not compared with torch."""
        try:
            return cls(build_library(shapes.source()), shapes.widths[-1], numbers_cv)
        except AttributeError as error:  # the library has other functions
            raise BenchError(str(error)) from None

    def gradient(
        self,
        w_d: Tensor,
        x: Tensor,
        y: Tensor,
        out_d: Tensor | None,
        bias_c: Tensor | None = None,
        chosen: BatchSelection | None = None,
        into: Tensor | None = None,
    ) -> Tensor:
        """Compute as ``FlatModel.gradient``, up to rounding.

        x       (N, …) float32 or uint8;  y  (N,) int64 labels, or (N, C) float32 shares
        chosen  the mini-batch of these samples; None: all
        out_d, into  memory for the gradient at ``w_d``, and for that with respect to x; None: it is not computed
        """
        x, y, bias_c = x.contiguous(), y.contiguous(), None if bias_c is None else bias_c.contiguous()
        count, loss = len(y if chosen is None else chosen.index_b), w_d.new_empty(())
        samples, memory = self._samples(x, chosen), self._memory(count)
        targets = (None, y.data_ptr()) if y.is_floating_point() else (y.data_ptr(), None)
        bias, out, d_in = (None if part is None else part.data_ptr() for part in (bias_c, out_d, into))
        self._gradient(w_d.data_ptr(), samples, *targets, bias, count, out, d_in, loss.data_ptr(), memory)
        return loss

    def backpropagate(self, w_d: Tensor, x: Tensor, gradient: Tensor, out_d: Tensor) -> None:
        """Write the gradient at ``w_d`` into ``out_d``, given the ``gradient`` (B, …) of the outputs at x (B, …)."""
        x, gradient, count = x.contiguous(), gradient.contiguous(), len(x)
        samples, memory = self._samples(x), self._memory(count)
        self._pull_back(w_d.data_ptr(), samples, gradient.data_ptr(), count, out_d.data_ptr(), memory)

    def logits(self, w_d: Tensor, x: Tensor) -> Tensor:
        """Compute as ``FlatModel.logits``, for float32 or uint8, up to rounding.

        For the first layers of a cut network the result is (B, numbers) activations.
        """
        x, out, count = x.contiguous(), w_d.new_empty((len(x), self._width)), len(x)
        self._outputs(w_d.data_ptr(), self._samples(x), count, out.data_ptr(), self._memory(count, back=False))
        return out

    def _samples(self, x: Tensor, chosen: BatchSelection | None = None) -> _Samples:
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

    def step_bytes(self, b: int) -> int:
        """Return the bytes of a workspace for a gradient of b samples."""
        return int(self._bytes(b, True))

    def _memory(self, count: int, back: bool = True) -> int:
        """Return the address of a workspace for ``count`` samples. back: for the backward pass too"""
        size, memory = self._bytes(count, back), getattr(self._thread, "memory", None)
        if memory is None or len(memory) < size:
            memory = self._thread.memory = torch.empty(size, dtype=torch.uint8)
        return memory.data_ptr()


def exact_numbers(shape: tuple[int, ...], d: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return x (3, *shape), w_d and y (3,) with exact sums, so that rounding decides no maximum of a pool."""
    drawn = torch.Generator().manual_seed(0)
    x = torch.randint(-8, 9, (3, *shape), generator=drawn) / 4
    return x, torch.randint(-1, 2, (d,), generator=drawn) / 16, torch.randint(classes, (3,), generator=drawn)


def check_alike(expected_d: Tensor, found_d: Tensor) -> None:
    """Raise BenchError for gradients that differ by more than rounding."""
    if not (found_d - expected_d).abs().max() <= TOLERANCE * expected_d.abs().max():
        raise BenchError("what was compiled gives another gradient than torch")
