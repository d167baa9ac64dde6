"""Caches of the last vector of every client, in full precision or rounded, on device, host or disk.

Legend: n clients, d model parameters, L parameter tensors of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ...stateful import Stateful
from ...storage import CacheConfig, Rows, Storage
from ..base import BufferConfig, BufferRule, RuleConfig
from ..needs import Needs
from .sums import RunningSum

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ...types import ClientTable

STEPS = 127  # of int8 on each side of zero
SMALLEST_STEP = 2.0**-126  # float32 below it has too few digits to divide by


@dataclass
class CachingConfig(RuleConfig):
    """Fields of a rule that keeps every client's last vector.

    cache  every client's last vector: precision and place
    """

    cache: CacheConfig = field(default_factory=CacheConfig)

    def adapt(self, needs: Needs) -> Needs:
        needs = super().adapt(needs)
        # an upload that was rounded is not a gradient
        linear_if = (*needs.linear_if, ("cache.precision", self.cache.precision, "fp32"))
        return replace(needs, cache=self.cache, linear_if=linear_if)


def make_cache(n: int, like_d: torch.Tensor, config: CacheConfig, storage: Storage) -> VectorCache:
    """Build the cache of ``config``. like_d: a vector on the device, of the vectors' length and type"""
    kinds = {"fp32": VectorCache, "bf16": HalfCache, "int8": EightBitCache}
    return kinds[config.precision](n, like_d, config.place, storage)


class VectorCache(Stateful):
    """(n, d) vectors in full precision, zero before the first one.

    Memory: 4 n d bytes in its place, and d floats on the device for a vector that is stored elsewhere.
    """

    def __init__(self, n: int, like_d: torch.Tensor, place: str, storage: Storage):
        self.rows = Rows(n, like_d, place, storage.folder)

    def stored_vector(self, client: int) -> torch.Tensor:
        """Return (d,) the client's stored vector on the device, lent until the next call of either method."""
        return self.rows[client]

    def put(self, client: int, vector_d: torch.Tensor) -> None:
        """Store a copy of the vector, rounded to the cache's precision."""
        self.rows.put(client, vector_d)

    def replace(self, client: int, vector_d: torch.Tensor, total: RunningSum) -> None:
        """Store the vector, and update a sum over the cache.

        The sum changes by stored vectors, so rounding does not let it drift from the cache.
        """
        total.subtract(self.stored_vector(client))
        self.put(client, vector_d)
        total.add(self.stored_vector(client))

    def parts(self) -> dict[str, Stateful]:
        return {"rows": self.rows}


class HalfCache(VectorCache):
    """Vectors rounded to the nearest bfloat16: 8 bits of mantissa, float32's range.

    Rounding changes each number by at most 2^-9 of it, equally for both signs.
    Memory: 2 n d bytes in its place, d floats on the device.
    """

    def __init__(self, n: int, like_d: torch.Tensor, place: str, storage: Storage):
        import torch

        self.rows = Rows(n, like_d, place, storage.folder, torch.bfloat16)
        self._wide_d = like_d.new_empty(like_d.shape)

    def stored_vector(self, client: int) -> torch.Tensor:
        return self._wide_d.copy_(self.rows[client])


class EightBitCache(VectorCache):
    """Vectors as whole multiples of a step, with one step for each client and parameter tensor.

    Rule     per tensor x: step = max|x| / 127;  q = floor(x / step + u), u uniform in [0, 1), so that E[step q] = x and
             |step q - x| <= step  (ACE paper, arXiv:2511.19066, F.3.3: "standard unbiased 8-bit"; the scale per tensor
             and the rounding are ours, as the paper leaves them open)
    Edges    a tensor whose step is below 2^-126 is stored as zero; a tensor with an infinity or NaN as NaN
    Draws    from ``storage.rounding`` at (client, number of this client's vectors so far), on the device by a generator
             with that seed: equal for every executor, and after a resume
    Memory   (d + 4 L) n bytes: the numbers in their place, the steps on the device; d floats besides, 3 d on a GPU
    """

    state_names = ("_steps_nl", "_puts_n")

    def __init__(self, n: int, like_d: torch.Tensor, place: str, storage: Storage):
        import torch

        assert storage.rounding is not None, "rounding without bias needs a stream of draws"
        self.rows = Rows(n, like_d, place, storage.folder, torch.int8)
        self._lengths = list(storage.lengths or (like_d.numel(),))
        # on a GPU, where each operator on a part is a launch: the tensor of each number, for whole vectors
        self._tensor_d = None if like_d.device.type == "cpu" else self._tensor_of_each_number().to(like_d.device)
        self._steps_nl = like_d.new_zeros((n, len(self._lengths)))
        self._wide_d = like_d.new_empty(like_d.shape)
        self._stream, self._generator = storage.rounding, torch.Generator(like_d.device)
        self._puts_n = [0] * n

    def stored_vector(self, client: int) -> torch.Tensor:
        self._wide_d.copy_(self.rows[client])
        for part, step in self._parts_with(self._steps_nl[client], self._wide_d):
            part.mul_(step)
        return self._wide_d

    def put(self, client: int, vector_d: torch.Tensor) -> None:
        import torch

        torch.abs(vector_d, out=self._wide_d)
        largest_l = torch.stack(torch._foreach_max(self._wide_d.split(self._lengths)))
        step_l = torch.where(largest_l < STEPS * SMALLEST_STEP, 0.0, largest_l / STEPS)
        step_l = torch.where(largest_l.isfinite(), step_l, float("nan"))
        per_step_l = torch.where(step_l > 0, 1 / step_l, 0.0)
        self._generator.manual_seed(self._stream.integer(client, self._puts_n[client]))
        self._wide_d.uniform_(generator=self._generator)
        for wide, part, per_step in self._parts_with(per_step_l, self._wide_d, vector_d):
            wide.addcmul_(part, per_step)
        # a product just above 127 plus a draw just below 1 may be rounded up to 128; NaN has no whole number
        self._wide_d.floor_().clamp_(-STEPS, STEPS).nan_to_num_(0.0)
        self.rows.put(client, self._wide_d)
        self._steps_nl[client] = step_l
        self._puts_n[client] += 1

    def _parts_with(self, number_l: torch.Tensor, *vectors_d: torch.Tensor) -> Iterable[tuple[torch.Tensor, ...]]:
        """Return parts of the vectors with the number of their tensor, or whole vectors with (d,) numbers."""
        if self._tensor_d is None:
            return zip(*(vector_d.split(self._lengths) for vector_d in vectors_d), number_l, strict=True)
        return [(*vectors_d, number_l.index_select(0, self._tensor_d))]

    def _tensor_of_each_number(self) -> torch.Tensor:
        import torch

        return torch.from_numpy(np.repeat(np.arange(len(self._lengths), dtype=np.int32), self._lengths))


@dataclass
class CachedBufferConfig(BufferConfig, CachingConfig):
    """BufferConfig and CachingConfig have all fields."""


class CachedBufferRule(BufferRule):
    """A rule that keeps the last vector of every client. cache: these vectors; total: a running sum over them."""

    config: CachedBufferConfig

    def start(self, model_d: torch.Tensor, clients: ClientTable, upload_kind: str) -> None:
        super().start(model_d, clients, upload_kind)
        self.cache = make_cache(self.n, model_d, self.config.cache, self.storage)
        self.total = RunningSum(model_d)

    def parts(self) -> dict[str, Stateful]:
        return {"cache": self.cache, "total": self.total}
