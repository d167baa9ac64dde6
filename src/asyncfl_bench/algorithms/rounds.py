"""What rules that work in rounds share: the mean of a round's uploads.

Legend: d model parameters, S the clients that delivered in a round, n_i samples of client i.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ..ranges import one_of

if TYPE_CHECKING:
    import torch

    from ..types import Upload

Weights = Annotated[str, one_of("samples", "uniform")]


class RoundMean:
    """sum_{i in S} p_i D_i with p_i = n_i / sum_S n (`samples`) or 1 / |S| (`uniform`).

    Who was lost in the round is left out and the weights still sum to 1 (AsyncFedED, ambiguity A4). Memory: d floats.
    """

    def __init__(self, like_d: torch.Tensor, weights: str):
        self.sum_d = like_d.new_zeros(like_d.shape)
        self.by_samples = weights == "samples"
        self.total = 0
        self.count = 0

    def add(self, upload: Upload) -> None:
        weight = upload.samples if self.by_samples else 1
        self.sum_d.add_(upload.vector_d, alpha=weight)
        self.total += weight
        self.count += 1

    def take(self) -> torch.Tensor | None:
        """(d,) the mean, lent until the next ``add``, and a new round begins; None when nobody delivered anything."""
        total, self.total, self.count = self.total, 0, 0
        if not total:
            self.sum_d.zero_()
            return None
        mean_d = self.sum_d / total
        self.sum_d.zero_()
        return mean_d

    def state_dict(self) -> dict:
        return {"sum_d": self.sum_d, "total": self.total, "count": self.count}

    def load_state_dict(self, state: dict) -> None:
        self.sum_d.copy_(state["sum_d"])
        self.total, self.count = state["total"], state["count"]
