"""Numbers that a rule computes from vectors and does not read, because reading waits for a GPU.

On a CPU they have the bits of Python's floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Scalar = float | torch.Tensor  # a number, or 0-d doubles on the vectors' device


def divide(number: float, divisor: Scalar) -> Scalar:
    """Return number / divisor, rounded once. Torch divides a number by a tensor as a product with its reciprocal."""
    import torch

    return number / divisor if isinstance(divisor, float) else torch.full_like(divisor, number) / divisor


def add_scaled(target_d: torch.Tensor, vector_d: torch.Tensor, factor: Scalar) -> None:
    """Add factor * vector to the target, with the factor rounded to the target's precision."""
    if isinstance(factor, float) or factor.device.type == "cpu":
        target_d.add_(vector_d, alpha=float(factor))
    else:
        target_d.addcmul_(vector_d, factor.to(target_d.dtype))
