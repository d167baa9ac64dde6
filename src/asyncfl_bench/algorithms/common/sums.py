"""Running sums over cached vectors.

Legend: d model parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...stateful import Stateful

if TYPE_CHECKING:
    import torch


class RunningSum(Stateful):
    """(d,) sum in double precision, to which single-precision vectors are added and subtracted.

    Subtracting a vector undoes its addition up to about 1e-16 of the largest sum, so the sum is never computed again
    from all vectors. Memory: at most 5 d floats (the sum and a workspace are doubles).
    """

    state_names = ("sum_d",)

    def __init__(self, like_d: torch.Tensor):
        self.sum_d = like_d.new_zeros(like_d.shape).double()
        # on a CPU widening first is several times faster than adding mixed types
        self._wide_d = self.sum_d.clone() if like_d.device.type == "cpu" else None
        self._narrow_d = like_d.new_empty(like_d.shape)

    def add(self, vector_d: torch.Tensor) -> None:
        self.sum_d.add_(vector_d if self._wide_d is None else self._wide_d.copy_(vector_d))

    def subtract(self, vector_d: torch.Tensor) -> None:
        self.sum_d.sub_(vector_d if self._wide_d is None else self._wide_d.copy_(vector_d))

    def add_to(self, target_d: torch.Tensor, scale: float) -> None:
        """Add scale * sum to the target."""
        target_d.add_(self._narrow_d.copy_(self.sum_d), alpha=scale)

    def zero(self) -> None:
        self.sum_d.zero_()
