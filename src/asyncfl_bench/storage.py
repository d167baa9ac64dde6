"""Where the vectors kept for every client are: on the device, in the host's memory, or in a file mapped into it.

Legend: n clients, d numbers of one vector.
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from .errors import BenchError
from .ranges import CheckedSettings, one_of
from .stateful import Stateful

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .randomness import Stream

PLACES = ("device", "host", "disk")
PRECISIONS = ("fp32", "bf16", "int8")


@dataclass
class CacheConfig(CheckedSettings):
    """How a rule keeps every client's last vector.

    precision  fp32 | bf16: rounded to the nearest, half the memory | int8: a quarter, rounded without bias, one scale
               per parameter tensor
    place      device | host: pinned memory of the machine | disk: a file in the run directory, mapped into memory,
               deleted after the run
    """

    precision: Annotated[str, one_of(*PRECISIONS)] = "fp32"
    place: Annotated[str, one_of(*PLACES)] = "device"


@dataclass(frozen=True)
class Storage:
    """What a run offers to whatever keeps vectors.

    lengths   numbers in each of the model's parameter tensors, in the order of the flat vector; None: one tensor
    rounding  the stream that stochastic rounding draws from
    folder    where mapped files are made; None: the system's folder for temporary files
    """

    lengths: tuple[int, ...] | None = None
    rounding: Stream | None = None
    folder: Path | None = None


class Rows(Stateful):
    """(n, d) numbers, zero at first, of which one row at a time is looked at on the device.

    like_d  a vector on the device, of the rows' length
    dtype   of the rows; None: that of ``like_d``
    place   one of PLACES. On a GPU the host's rows are pinned, so that copies run at the bus's speed. The file of
            `disk` has no name: it is gone with the run, whatever ends it. Its space is claimed at once (BenchError if
            there is too little), since a mapped page that finds no space would kill the process.
    Memory  n d numbers in their place; on the device one row more unless the rows are there
    """

    # a checkpoint holds the rows themselves: it must not follow what happens to a file after it
    state_names = ("rows_nd",)

    def __init__(self, n: int, like_d: torch.Tensor, place: str, folder: Path | None, dtype: torch.dtype | None = None):
        import torch

        dtype, shape = dtype or like_d.dtype, (n, like_d.numel())
        if place == "disk":
            self.rows_nd = _create_mapped_file(shape, dtype, folder)
        elif place == "device" or like_d.device.type == "cpu":
            self.rows_nd = like_d.new_zeros(shape, dtype=dtype)
        else:
            self.rows_nd = _pin_memory(torch.zeros(shape, dtype=dtype))
        self._near_d = None if self.rows_nd.device == like_d.device else like_d.new_empty(shape[1:], dtype=dtype)

    def __getitem__(self, row: int) -> torch.Tensor:
        """Return the (d,) row on the device: itself, or a copy that is valid until the next access."""
        return self.rows_nd[row] if self._near_d is None else self._near_d.copy_(self.rows_nd[row])

    def put(self, row: int, vector_d: torch.Tensor) -> None:
        self.rows_nd[row].copy_(vector_d)


def bytes_of(state) -> int:
    """Return the bytes of all tensors in nested dicts and lists."""
    if isinstance(state, dict):
        return sum(bytes_of(value) for value in state.values())
    if isinstance(state, (list, tuple)):
        return sum(bytes_of(value) for value in state)
    return state.numel() * state.element_size() if hasattr(state, "element_size") else 0


def describe_size(count: float) -> str:
    """Return a number of bytes as text: ``1.5 MiB``."""
    unit, name = next((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if count >= u or u == 2**10)
    return f"{count / unit:.1f} {name}"


def send(numbers: np.ndarray | Sequence[float], device: torch.device) -> torch.Tensor:
    """Return the numbers on the device. A GPU may still have work to do: the host does not wait for it."""
    import numpy as np
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    # torch uses pinned memory again when the copy out of it has ended
    return _pin(tensor).to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory()


def _create_mapped_file(shape: tuple[int, int], dtype: torch.dtype, folder: Path | None) -> torch.Tensor:
    import numpy as np
    import torch

    size = max(1, math.prod(shape) * dtype.itemsize)
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:  # the mapping keeps what it holds alive
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            mapped = np.memmap(file, dtype=np.uint8, mode="r+", shape=(size,))
    except OSError as error:
        where = folder or tempfile.gettempdir()
        raise BenchError(f"{where}: no file of {describe_size(size)} can be made there: {error.strerror}") from error
    return torch.from_numpy(mapped)[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def _pin_memory(rows_nd: torch.Tensor) -> torch.Tensor:
    """Return the tensor after its memory is locked. Torch would round pinned memory up to a power of two."""
    import torch

    runtime, address = torch.cuda.cudart(), rows_nd.data_ptr()
    if int(runtime.cudaHostRegister(address, rows_nd.numel() * rows_nd.element_size(), 0)) == 0:
        weakref.finalize(rows_nd, runtime.cudaHostUnregister, address)
    return rows_nd  # where locking is not allowed copies are slower, and that is all
