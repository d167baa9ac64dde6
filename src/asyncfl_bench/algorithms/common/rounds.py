"""Base classes of rules that work in rounds, and the mean of a round's uploads.

Legend: d model parameters, S the clients that delivered in a round, n_i samples of client i.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ...ranges import one_of
from ...stateful import Stateful
from ..base import RuleConfig, ServerRule
from ..needs import Needs

if TYPE_CHECKING:
    import torch

    from ...types import Upload

Weights = Annotated[str, one_of("samples", "uniform")]


@dataclass
class RoundConfig(RuleConfig):
    """
    weights  of clients: samples: n_i / sum n over clients that delivered | uniform
    """

    weights: Weights = "samples"


class WeightedMean(Stateful):
    """Mean of vectors that are added one by one. Memory: d floats."""

    state_names = ("sum_d", "total", "count")

    def __init__(self, like_d: torch.Tensor):
        self.sum_d = like_d.new_zeros(like_d.shape)
        self.total = self.count = 0

    def add(self, vector_d: torch.Tensor, weight: int) -> None:
        self.sum_d.add_(vector_d, alpha=weight)
        self.total += weight
        self.count += 1

    def take(self) -> torch.Tensor | None:
        """Return (d,) the mean as a new vector, and begin the next one. None without weight."""
        total, self.total, self.count = self.total, 0, 0
        if not total:
            self.sum_d.zero_()
            return None
        mean_d = self.sum_d / total
        self.sum_d.zero_()
        return mean_d


def weight_of(upload: Upload, weights: str) -> int:
    """Return the weight of an upload in the mean of a round: n_i (`samples`) or 1 (`uniform`).

    Lost uploads are left out, and the weights sum to 1 (AsyncFedED, ambiguity A4).
    """
    return upload.samples if weights == "samples" else 1


class RoundRule(ServerRule):
    """A rule that steps once per round with the mean of its uploads, and does not step without uploads."""

    upload_kinds = ("difference",)
    needs = Needs(steps_on="round")

    @property
    def weights(self) -> str:
        """Weights of the mean, see ``weight_of``; uniform if the rule has no such setting."""
        return self.config.weights if isinstance(self.config, RoundConfig) else "uniform"

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.mean = WeightedMean(model_d)

    def parts(self) -> dict[str, Stateful]:
        return {"mean": self.mean}

    def receive(self, upload) -> bool:
        self.mean.add(upload.vector_d, weight_of(upload, self.weights))
        return False

    def round(self) -> bool:
        delivered, mean_d = self.mean.count, self.mean.take()
        if mean_d is None:
            return False
        self.step(mean_d, delivered)
        return True

    @abstractmethod
    def step(self, mean_d: torch.Tensor, delivered: int) -> None:
        """Change the model. mean_d: (d,), of ``delivered`` clients; the rule may overwrite it"""
