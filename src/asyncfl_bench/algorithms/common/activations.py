"""What a server of split learning knows of activations: their distribution in each class, and rows drawn from it.

Legend: B rows of activations, a numbers in one, C classes, n clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...stateful import Stateful

if TYPE_CHECKING:
    import torch

FORMS = ("full", "diagonal")
RIDGES = ("sampling", "merge")
FILLS = ("batch", "largest", "exact")
FIRST_JITTER, JITTERS = 1e-6, 40  # added to a covariance that has no Cholesky factor, then ten times as much, and so on
GROWTHS = ("power", "exponential")
LEAST_WEIGHT = 1e-300  # of activations and of a class, beside a weight of 1: none is forgotten


class ActivationStatistics(Stateful):
    """Weighted mean and covariance of the activations of each class (GAS, Yang and Liu 2024, equations 11 and 12).

    Rule     rows of one class with weight V, mean m and covariance R join what is kept, of weight S, mean mu and
             covariance Sig, with S' = S + V:  mu <- (S mu + V m) / S',
             Sig <- (S Sig + V R + (S V / S') (m - mu)(m - mu)^T) / S'
             Covariances are divided by the weight, without a correction. Any order and any grouping of the same rows
             gives the same up to rounding; a common factor of all weights changes nothing.
    form     `full` covariances, or variances alone: `diagonal`
    ridge    added to each variance when rows are drawn (`ridge_at=sampling`), or kept: added at every merge of a class
             but its first (`merge`, as the authors' code has it), which after k merges of weights that grow linearly
             reaches about k / 3 times as much
    like     a tensor on the device, of the type in which covariances are kept and rows are drawn; weights and means
             are doubles
    """

    state_names = ("weight_c", "mean_ca", "spread_c")

    def __init__(
        self,
        classes: int,
        width: int,
        form: str = "full",
        ridge: float = 1e-5,
        ridge_at: str = "sampling",
        *,
        like: torch.Tensor,
    ):
        import torch

        assert form in FORMS and ridge_at in RIDGES
        self.form, self.ridge, self.ridge_at = form, ridge, ridge_at
        self.weight_c = [0.0] * classes
        self.mean_ca = like.new_zeros((classes, width), dtype=torch.double)
        self.spread_c = like.new_zeros((classes, width, width) if form == "full" else (classes, width))

    @staticmethod
    def numbers(classes: int, width: int, form: str) -> int:
        """Single-precision numbers it takes, with the two matrices that drawing from a full covariance needs."""
        spread = (classes + 2) * width**2 if form == "full" else classes * width
        return spread + 2 * classes * (width + 1)

    def scale_weights(self, factor: float) -> None:
        """Multiply the weights of all rows merged so far, which are at least LEAST_WEIGHT afterwards."""
        self.weight_c = [weight and max(weight * factor, LEAST_WEIGHT) for weight in self.weight_c]

    @property
    def has_all_classes(self) -> bool:
        """Return True if rows of every class were merged."""
        return all(self.weight_c)

    def merge(self, rows_ba: torch.Tensor, weights_b: torch.Tensor, labels_b: torch.Tensor) -> None:
        """Takes in rows (B, a) of the classes labels_b (B,) with weights_b (B,) > 0; keeps no reference to them."""
        for label in labels_b.unique().tolist():
            chosen_b = labels_b == label
            self._merge(label, rows_ba[chosen_b].double(), weights_b[chosen_b].double())

    def _merge(self, label: int, rows_ba: torch.Tensor, weights_b: torch.Tensor) -> None:
        import torch

        mean_a, spread = self.mean_ca[label], self.spread_c[label]
        before, new = self.weight_c[label], float(weights_b.sum())
        total = before + new
        new_mean_a = weights_b @ rows_ba / new
        # the distance of the means is one row more: with it both terms are one product
        away_ba = rows_ba.new_empty((len(rows_ba) + 1, len(mean_a)))
        torch.sub(rows_ba, new_mean_a, out=away_ba[:-1])
        torch.sub(new_mean_a, mean_a, out=away_ba[-1])
        share_b = torch.cat([weights_b / total, weights_b.new_tensor([before / total * new / total])])
        scaled_ba = away_ba.mul_(share_b.sqrt()[:, None]).to(spread.dtype)
        spread.mul_(before / total)
        if self.form == "full":
            spread.addmm_(scaled_ba.T, scaled_ba)
        else:
            spread.add_(scaled_ba.square().sum(dim=0))
        if self.ridge_at == "merge" and before:
            (spread.diagonal() if self.form == "full" else spread).add_(self.ridge)
        mean_a.lerp_(new_mean_a, new / total)
        self.weight_c[label] = total

    def sample(
        self, label: int, count: int, generator: torch.Generator, raise_if_stopped: Callable[[], None] = lambda: None
    ) -> torch.Tensor:
        """(count, a) rows drawn from the normal distribution of a class that has been seen. A covariance without a
        Cholesky factor gets more and more on its diagonal until it has one; of one that is not finite rows are NaN.
        ``raise_if_stopped`` is called before each factorisation."""
        import torch

        mean_a, spread = self.mean_ca[label].to(self.spread_c.dtype), self.spread_c[label]
        normal_ba = torch.empty((count, len(mean_a)), dtype=spread.dtype, device=spread.device)
        normal_ba.normal_(generator=generator)
        ridge = self.ridge if self.ridge_at == "sampling" else 0.0
        if self.form == "full":
            return torch.addmm(mean_a, normal_ba, _factor(spread, ridge, raise_if_stopped).T)
        return normal_ba.mul_((spread + ridge).sqrt()).add_(mean_a)


class ExponentialWeights(Stateful):
    """Weights e^(b m) of activations of progress m, divided by that of the latest progress: e^(b m) alone overflows.

    rate  b
    """

    state_names = ("latest",)

    def __init__(self, rate: float):
        self.rate, self.latest = rate, 0.0

    def weigh(self, statistics: ActivationStatistics, progress_b: torch.Tensor) -> torch.Tensor:
        """(B,) weights of rows of these progresses, which ``statistics`` merge next. Scales the rows merged before."""
        latest = max(self.latest, float(progress_b.max()))
        statistics.scale_weights(math.exp(self.rate * (self.latest - latest)))
        self.latest = latest
        return (self.rate * (progress_b - latest)).exp().clamp(min=LEAST_WEIGHT)


def fill_classes(
    statistics: ActivationStatistics,
    rows_ba: torch.Tensor,
    labels_b: torch.Tensor,
    batch: int,
    fill: str,
    generator: torch.Generator,
    raise_if_stopped: Callable[[], None] = lambda: None,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The rows and labels, and after them generated ones for classes of which there are too few; how many these are.

    fill  `batch`: each class has at least ``batch`` rows; `largest`: as many as the largest class; `exact`: ``batch``,
          of more the first ones (the authors' code with variances alone)
    Until every class has been seen nothing is generated and nothing left out. raise_if_stopped: see ``sample``.
    """
    import torch

    assert fill in FILLS
    if not statistics.has_all_classes:
        return rows_ba, labels_b, 0
    counts_c = labels_b.bincount(minlength=len(statistics.weight_c)).tolist()
    wanted = max(counts_c) if fill == "largest" else batch
    if fill == "exact":
        # the place of each row among those of its class
        one_hot_bc = torch.nn.functional.one_hot(labels_b, len(counts_c))
        place_b = one_hot_bc.cumsum(dim=0).gather(1, labels_b[:, None])[:, 0]
        rows_ba, labels_b = rows_ba[place_b <= batch], labels_b[place_b <= batch]
    short = {label: wanted - count for label, count in enumerate(counts_c) if count < wanted}
    new = [
        statistics.sample(label, missing, generator, raise_if_stopped).to(rows_ba.dtype)
        for label, missing in short.items()
    ]
    new_labels = [labels_b.new_full((missing,), label) for label, missing in short.items()]
    return torch.cat([rows_ba, *new]), torch.cat([labels_b, *new_labels]), sum(short.values())


def _factor(covariance_aa: torch.Tensor, ridge: float, raise_if_stopped: Callable[[], None]) -> torch.Tensor:
    """(a, a) lower Cholesky factor of the covariance with ``ridge``, or more, on its diagonal.

    The search for the least addition always begins at the first one. Rounding decides whether a factor is found, and a
    larger addition may fail where a smaller one suffices: a search from the last value may choose another factor.
    """
    import torch

    if not math.isfinite(float(covariance_aa.sum())):
        return torch.full_like(covariance_aa, float("nan"))
    matrix_aa, factor_aa = covariance_aa.clone(), torch.empty_like(covariance_aa).T  # in columns, as LAPACK has it
    failed = torch.empty((), dtype=torch.int32, device=covariance_aa.device)
    for added in (0.0, *(FIRST_JITTER * 10.0**power for power in range(JITTERS))):
        raise_if_stopped()
        torch.add(covariance_aa.diagonal(), ridge + added, out=matrix_aa.diagonal())
        torch.linalg.cholesky_ex(matrix_aa, out=(factor_aa, failed))
        if not failed:
            return factor_aa
    return torch.full_like(covariance_aa, float("nan"))
