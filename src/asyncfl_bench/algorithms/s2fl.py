"""S2FL: MiniBatch-SFL whose server learns from groups of clients with about equal numbers of all classes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated

import numpy as np

from ..errors import check
from ..ranges import at_least
from ..stateful import Stateful
from .common.rounds import WeightedMean
from .common.split import SplitRoundConfig
from .minibatch_sfl import MiniBatchSfl

if TYPE_CHECKING:
    import torch

    from ..types import Facts

PASSES = 100  # over all pairs of clients, at most


@dataclass
class S2flConfig(SplitRoundConfig):
    """
    groups  of the clients of a round, of equal size up to one; 1: MiniBatch-SFL
    """

    groups: Annotated[int, at_least(1)] = 2

    def resolve(self, facts: Facts) -> None:
        super().resolve(facts)
        ok = self.groups <= facts.concurrency
        check(ok, "groups", self.groups, f"at most {facts.concurrency}, the clients in flight")


class S2fl(MiniBatchSfl):
    """S2FL (Yan et al. 2023, arXiv:2311.13163), as the GAS paper (arXiv:2409.01251) runs it.

    Rule     MiniBatch-SFL, but each group g of a round's clients steps a copy of s on the union of its messages, and
             after every step s is the mean of the copies:  s <- s - eta_s mean_g dl(s; A_g, Y_g)/ds
             groups: those in flight in order, cut into equal parts; clients of two groups change places as long as the
             mean over groups of the distance of their label shares to equal shares becomes less
    Upload   difference, of the clients' part
    State    that of MiniBatch-SFL, a sum for each group instead of one
    Memory   4 d + 2 copies of the server's layers for each group
    Limits   one group: MiniBatch-SFL.  Groups and mini-batches of equal size and no clip: MiniBatch-SFL too, however
             the groups are made: the mean of the groups' means is that of the union
    Differs  that devices choose among cuts by their speed is a setting of the clock, delay.cuts of delay=cell_link: in
             the GAS paper's code it changes nothing else. There they choose again in each round, here once. A copy
             is clipped by itself; the mean of the copies' momenta is the momentum of the mean

    The model after each (client, upload) in turn, all after one message each for which dl/ds = 1 (trial.after_each):

    >>> after_each(S2fl(server_lr=0.5, server_momentum=0.0, server_weight_decay=0.0), (0, [2.0]), (1, [4.0]))
    [[0.0, -0.5], [3.0, -0.5]]
    """

    label = "S2FL"
    config: S2flConfig

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.unions = [WeightedMean(self.server_d) for _ in range(self.config.groups)]
        self.labels_nc = clients.labels_nc if clients.labels_nc is not None else clients.samples_n[:, None]
        self.group_of: dict[int, int] = {}

    def split_numbers(self, d_server: int, in_flight: int, message: int) -> int:
        return 2 * self.config.groups * d_server  # sums, and means while the step is taken

    def parts(self) -> dict[str, Stateful]:
        return super().parts() | {f"union{number}": union for number, union in enumerate(self.unions)}

    def add(self, client: int, gradient_d: torch.Tensor, samples: int) -> None:
        if client not in self.group_of:
            self._form_groups()
        self.unions[self.group_of[client]].add(gradient_d, samples)

    def direction(self) -> torch.Tensor:
        """Return (d,) the mean over the groups."""
        parts = [self.sgd.clip(mean_d) for union in self.unions if (mean_d := union.take()) is not None]
        return sum(parts[1:], parts[0]) / len(parts)

    def round(self) -> bool:
        self.group_of.clear()
        return super().round()

    def _form_groups(self) -> None:
        """Form the groups of the clients in flight."""
        groups = balance_groups(self.labels_nc[self.under_way], self.config.groups)
        self.group_of = {client: int(group) for client, group in zip(self.under_way, groups, strict=True)}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._form_groups()


def balance_groups(labels_mc: np.ndarray, groups: int) -> np.ndarray:
    """Return the (m,) groups of m clients, balanced by their samples of each class; see ``S2fl``."""
    m = len(labels_mc)
    group_m = np.arange(m) * groups // max(m, 1)
    best = _unevenness(labels_mc, group_m, groups)
    for _ in range(PASSES):
        before = best
        for one, other in product(range(m), range(m)):
            if one < other and group_m[one] != group_m[other]:
                group_m[[one, other]] = group_m[[other, one]]
                if (now := _unevenness(labels_mc, group_m, groups)) < best - 1e-12:
                    best = now
                else:
                    group_m[[one, other]] = group_m[[other, one]]
        if best == before:
            break
    return group_m


def _unevenness(labels_mc: np.ndarray, group_m: np.ndarray, groups: int) -> float:
    """Return the mean over groups of the distance between label shares and equal shares."""
    total_gc = np.stack([labels_mc[group_m == group].sum(axis=0) for group in range(groups)]).astype(float)
    share_gc = total_gc / np.maximum(total_gc.sum(axis=1, keepdims=True), 1)
    return float(np.linalg.norm(share_gc - 1 / labels_mc.shape[1], axis=1).mean())
