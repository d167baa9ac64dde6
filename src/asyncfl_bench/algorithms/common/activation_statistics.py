"""Distributions of activations in each class, for a server of split learning, and draws from them.

Legend: B rows of activations, a numbers in one, C classes, n clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...stateful import Stateful
from ...storage import send

if TYPE_CHECKING:
    import torch

FORMS = ("full", "diagonal")
RIDGES = ("sampling", "merge")
FILLS = ("batch", "largest", "exact")
FIRST_JITTER, JITTERS = 1e-6, 40  # added to a covariance without a Cholesky factor, then ten times as much, and so on
GROWTHS = ("power", "exponential")
LEAST_WEIGHT = 1e-300  # of activations and of a class, beside a weight of 1


class ActivationStatistics(Stateful):
    """Weighted mean and covariance of the activations of each class (GAS, Yang and Liu 2024, equations 11 and 12).

    Rule     the statistics of a class have weight S, mean mu and covariance Sig. Rows of weight V, mean m and
             covariance R are merged with S' = S + V:  mu <- (S mu + V m) / S',
             Sig <- (S Sig + V R + (S V / S') (m - mu)(m - mu)^T) / S'
             Covariances are divided by the weight, without a correction. Order and grouping of rows change results by
             rounding only; a common factor of all weights changes nothing.
    form     `full` covariances, or `diagonal`: variances
    ridge    added to each variance when rows are drawn (`ridge_at=sampling`), or at every merge of a class but its
             first (`merge`, as in the authors' code), which after k merges of linearly growing weights is about k / 3
             times as much
    like     a tensor on the device, of the type of covariances and drawn rows; weights and means are doubles
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
        """Return the single-precision numbers in memory, with two matrices for draws from a full covariance."""
        spread = (classes + 2) * width**2 if form == "full" else classes * width
        return spread + 2 * classes * (width + 1)

    def scale_weights(self, factor: float) -> None:
        """Multiply the weights of all merged rows, to at least LEAST_WEIGHT."""
        self.weight_c = [weight and max(weight * factor, LEAST_WEIGHT) for weight in self.weight_c]

    @property
    def has_all_classes(self) -> bool:
        """Return True if rows of every class were merged."""
        return all(self.weight_c)

    def merge(self, rows_ba: torch.Tensor, weights_b: torch.Tensor, labels_b: torch.Tensor) -> None:
        """Merge rows (B, a) of the classes labels_b (B,) with weights_b (B,) > 0, without keeping references.

        Weights and labels are on the CPU, so the call does not wait for the device of the rows.
        """
        for label in labels_b.unique().tolist():
            chosen_b = (labels_b == label).nonzero()[:, 0]
            self._merge(label, _choose(rows_ba, chosen_b).double(), weights_b[chosen_b].double())

    def _merge(self, label: int, rows_ba: torch.Tensor, weights_b: torch.Tensor) -> None:
        import torch

        mean_a, spread = self.mean_ca[label], self.spread_c[label]
        before, new = self.weight_c[label], float(weights_b.sum())
        total = before + new
        share_b = torch.cat([weights_b / total, weights_b.new_tensor([before / total * new / total])])
        near_2b = send(torch.cat([weights_b, share_b.sqrt()]).numpy(), rows_ba.device)
        weights_b, root_b = near_2b.split([len(weights_b), len(share_b)])
        new_mean_a = weights_b @ rows_ba / new
        # the distance of the means is one row more: with it both terms are one product
        away_ba = rows_ba.new_empty((len(rows_ba) + 1, len(mean_a)))
        torch.sub(rows_ba, new_mean_a, out=away_ba[:-1])
        torch.sub(new_mean_a, mean_a, out=away_ba[-1])
        scaled_ba = away_ba.mul_(root_b[:, None]).to(spread.dtype)
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
        self, counts: Mapping[int, int], generator: torch.Generator, raise_if_stopped: Callable[[], None] = lambda: None
    ) -> list[torch.Tensor]:
        """Draw rows (count, a) from the normal distribution of each class in ``counts``, which must have merged rows.

        The diagonal of a covariance without a Cholesky factor is increased until it has one. Rows of a covariance that
        is not finite are NaN. ``raise_if_stopped`` is called before each factorisation. The device is read once, unless
        a factorisation fails.
        """
        import torch

        ridge, spread_c = self.ridge if self.ridge_at == "sampling" else 0.0, self.spread_c
        mean_ca = self.mean_ca.to(spread_c.dtype)
        normal = {
            label: spread_c.new_empty((count, mean_ca.shape[1])).normal_(generator=generator)
            for label, count in counts.items()
        }
        if self.form == "diagonal":
            return [
                normal_ba.mul_((spread_c[label] + ridge).sqrt()).add_(mean_ca[label])
                for label, normal_ba in normal.items()
            ]
        rows: list[torch.Tensor] = []
        failed: list[torch.Tensor] = []
        for label, normal_ba in normal.items():
            raise_if_stopped()
            factor_aa, failed_0 = _try_factor(spread_c[label], ridge)
            rows.append(torch.addmm(mean_ca[label], normal_ba, factor_aa.T))
            failed.append(torch.where(spread_c[label].sum().isfinite(), failed_0, -1))
        states = torch.stack(failed).tolist() if failed else []
        for index, (label, state) in enumerate(zip(normal, states, strict=True)):
            if state < 0:
                rows[index].fill_(float("nan"))
            elif state:
                factor_aa = _find_factor(spread_c[label], ridge, raise_if_stopped)
                rows[index] = torch.addmm(mean_ca[label], normal[label], factor_aa.T)
        return rows


class ExponentialWeights(Stateful):
    """Weights e^(b m) of activations of progress m, relative to the latest progress because e^(b m) overflows.

    rate  b
    """

    state_names = ("latest",)

    def __init__(self, rate: float):
        self.rate, self.latest = rate, 0.0

    def weigh(self, statistics: ActivationStatistics, progress_b: torch.Tensor) -> torch.Tensor:
        """Return (B,) weights of rows that ``statistics`` merge next, and scale the weights of earlier rows."""
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
    """Return rows and labels with generated ones at the end for classes with too few rows, and the generated number.

    fill  `batch`: each class has at least ``batch`` rows; `largest`: as many as the largest class; `exact`: ``batch``,
          the first ones of more (the authors' code with variances)
    Until every class has merged rows, the rows do not change. Labels are on the CPU. raise_if_stopped: see ``sample``.
    """
    import torch

    assert fill in FILLS
    if not statistics.has_all_classes:
        return rows_ba, labels_b, 0
    counts_c = labels_b.bincount(minlength=len(statistics.weight_c)).tolist()
    wanted = max(counts_c) if fill == "largest" else batch
    if fill == "exact":
        # the number of each row among those of its class
        one_hot_bc = torch.nn.functional.one_hot(labels_b, len(counts_c))
        count_b = one_hot_bc.cumsum(dim=0).gather(1, labels_b[:, None])[:, 0]
        kept_b = (count_b <= batch).nonzero()[:, 0]
        rows_ba, labels_b = _choose(rows_ba, kept_b), labels_b[kept_b]
    short = {label: wanted - count for label, count in enumerate(counts_c) if count < wanted}
    new = [rows.to(rows_ba.dtype) for rows in statistics.sample(short, generator, raise_if_stopped)]
    new_labels = [labels_b.new_full((missing,), label) for label, missing in short.items()]
    return torch.cat([rows_ba, *new]), torch.cat([labels_b, *new_labels]), sum(short.values())


def _choose(rows_ba: torch.Tensor, index_b: torch.Tensor) -> torch.Tensor:
    """Return rows by an index on the CPU."""
    return rows_ba.index_select(0, send(index_b.numpy(), rows_ba.device))


def _try_factor(covariance_aa: torch.Tensor, added: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (a, a) lower Cholesky factor with ``added`` on the diagonal, and a 0-d number, 0 for success."""
    import torch

    matrix_aa, factor_aa = covariance_aa.clone(), torch.empty_like(covariance_aa).T  # in columns, as LAPACK has it
    failed = torch.empty((), dtype=torch.int32, device=covariance_aa.device)
    torch.add(covariance_aa.diagonal(), added, out=matrix_aa.diagonal())
    torch.linalg.cholesky_ex(matrix_aa, out=(factor_aa, failed))
    return factor_aa, failed


def _find_factor(covariance_aa: torch.Tensor, ridge: float, raise_if_stopped: Callable[[], None]) -> torch.Tensor:
    """Return the (a, a) lower Cholesky factor of a covariance that needs more than ``ridge`` on its diagonal.

    The search for the least addition always begins at the first one. Rounding decides whether a factor is found, and a
    larger addition may fail where a smaller one suffices: a search from the last value may choose another factor.
    """
    import torch

    for power in range(JITTERS):
        raise_if_stopped()
        factor_aa, failed = _try_factor(covariance_aa, ridge + FIRST_JITTER * 10.0**power)
        if not failed:
            return factor_aa
    return torch.full_like(covariance_aa, float("nan"))
