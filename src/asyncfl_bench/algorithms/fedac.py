"""FedAC, reconstructed: buffered uploads weighted by direction, Adam with Nesterov's momentum, and control variates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ..ranges import one_of, within
from .base import BufferRule, MomentConfig
from .common.scalars import add_scaled, divide
from .needs import Needs

if TYPE_CHECKING:
    from .common.scalars import Scalar


@dataclass
class FedAcConfig(MomentConfig):
    """
    floor         least similarity of an upload with the model's movement, so that every upload has a weight
    variate_step  whole: the server's variate gains all of a buffer's changes, as in the third-party code | share: M / n
                  of them, which keeps it at the clients' mean
    """

    beta1: float = 0.6
    beta2: float = 0.9
    floor: Annotated[float, within("(0, 1]")] = 0.1
    variate_step: Annotated[str, one_of("whole", "share")] = "whole"


class FedAc(BufferRule):
    """FedAC (Zang et al., AAAI 2024, doi:10.1609/aaai.v38i15.29603, not on arXiv), reconstructed from third-party code:
    neither the paper's text nor official code was at hand.

    Rule     client i adds c - c_i to each of its K gradients, c the server's variate sent with the model, and sends
             D_i = local - received and dc_i = -D_i / (K eta_l) - c;  c_i <- c_i + dc_i        (Needs.keeps = variate)
             arrival:  r_i = max(cos(w - received, D_i), floor), 1 for an upload that is not stale
             M of them:  p_i = r_i / sum r,  G = sum p_i D_i
               m <- b1 m + (1 - b1) G;  v <- b2 v + (1 - b2) G^2;  w <- w + eta [b1 m + (1 - b1) G] / (sqrt(v) + eps)
               c <- c + s sum p_i dc_i,  s = 1 (variate_step=whole) or M / n (share)
    Upload   difference, shape (d,), and second_d of the same shape
    State    the sums of r D, of r dc and of r, count, m, v, c, all 0 at first      Memory 6 d
    Limits   c and c_i kept at 0 and equal r: Adam with Nesterov's momentum on FedBuff's mean, without bias correction
             identical clients with full batches, all in every buffer: c = c_i after each
    Differs  the code found corrects once after local training and divides by passes; steps are the likelier intent, as
             in SCAFFOLD. Its s = 1 is kept, with which c is n / M times the mean of c_i; with share to the mean

    >>> after_each(FedAc(eta=0.1, buffer_size=1), (0, [2.0, 0.0]), (1, [2.0, -2.0]))
    [[0.2024, 0.0], [0.3822, -0.2024]]
    """

    label = "FedAC (reconstructed)"
    config: FedAcConfig
    upload_kinds = ("difference",)
    needs = Needs(keeps="variate", base=True)
    averaged = ("rule/similarity",)
    state_names = ("sum_d", "change_d", "weight", "count", "first_d", "second_d", "variate_d", "similarity")
    kept_vectors = 6  # with a difference of models or the divisor

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        zeros = model_d.new_zeros((5, model_d.numel()))
        self.sum_d, self.change_d, self.first_d, self.second_d, self.variate_d = zeros
        self.weight: Scalar = 0.0
        self.similarity: Scalar = 1.0

    def add(self, upload) -> None:
        similarity = self._similarity(upload)
        add_scaled(self.sum_d, upload.vector_d, similarity)
        add_scaled(self.change_d, upload.second_d, similarity)
        self.weight = self.weight + similarity

    def stats(self) -> dict[str, Scalar]:
        return {"rule/similarity": self.similarity}

    def _similarity(self, upload) -> Scalar:
        """Return r_i."""
        import torch

        if not upload.staleness:
            return 1.0
        moved_d, difference_d = self.model_d - upload.base_d, upload.vector_d
        lengths = (moved_d.norm() * difference_d.norm()).double()
        # no dot product: BLAS's last bits depend on where in memory an upload is, which a resume changes
        product = moved_d.mul_(difference_d).sum().double()
        return torch.where(lengths == 0, self.config.floor, (product / lengths).clamp(min=self.config.floor))

    def step(self) -> None:
        config = self.config
        b1, b2, share = config.beta1, config.beta2, config.buffer_size / self.n
        mean_d = self.sum_d.div_(self.weight)
        self.first_d.mul_(b1).add_(mean_d, alpha=1 - b1)
        self.second_d.mul_(b2).addcmul_(mean_d, mean_d, value=1 - b2)
        ahead_d = mean_d.mul_(1 - b1).add_(self.first_d, alpha=b1)
        self.model_d.addcdiv_(ahead_d, self.second_d.sqrt().add_(config.eps), value=self.step_size)
        add_scaled(self.variate_d, self.change_d, divide(share if config.variate_step == "share" else 1.0, self.weight))
        self.similarity, self.weight = self.weight / config.buffer_size, 0.0
        self.sum_d.zero_()
        self.change_d.zero_()
