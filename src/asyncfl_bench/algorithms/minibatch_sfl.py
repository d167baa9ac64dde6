"""MiniBatch-SFL: clients hold the first layers; at each step the server's part learns from all of them together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..stateful import Stateful
from ..types import Reply
from .common.rounds import RoundRule, WeightedMean
from .common.split import ServerSgd, SplitRoundConfig, SplitRule

if TYPE_CHECKING:
    import torch


class MiniBatchSfl(SplitRule, RoundRule):
    """MiniBatch-SFL (Huang, Tian, Tang 2023, arXiv:2308.11953), as the GAS paper (arXiv:2409.01251) runs it.

    Rule     in a round every client i has u_i = u.  Once all have sent their k-th message (A_i, Y_i):
               replies dl(s; A_i, Y_i)/dA_i, each by the mean over its own samples
               s <- s - eta_s dl(s; A, Y)/ds, with the mean over the union (A, Y) of all messages
             end of the round:  u <- sum_i p_i u_i,  p_i = n_i / sum n over those delivered
    Upload   difference, of the clients' part
    State    the clients in flight, replies that wait, the union's gradient so far, momentum of s, the round's sum
    Memory   4 d + a reply for each client in flight
    Limits   K = 1 and equal mini-batches: FedAvg on the whole model with one local step and uniform weights
    Clients without a reply wait: no client may drop out within a round.

    The model after each (client, upload) in turn, all after one message each for which dl/ds = 1 (trial.after_each):

    >>> after_each(MiniBatchSfl(server_lr=0.5, server_momentum=0.0, server_weight_decay=0.0), (0, [2.0]), (1, [4.0]))
    [[0.0, -0.5], [3.0, -0.5]]
    """

    label = "MiniBatch-SFL"
    config: SplitRoundConfig
    needs = replace(RoundRule.needs, replies_together=True)
    state_names = ("under_way", "answers")
    kept_vectors = 4

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.mean = WeightedMean(self.client_d)
        self.sgd = ServerSgd(self.server_d, self.config)
        self.under_way: list[int] = []
        self.answers: list[tuple[int, torch.Tensor, torch.Tensor]] = []  # of this step so far: client, gradient, loss
        self.union = WeightedMean(self.server_d)
        self._own_d = self.server_d.clone()

    def parts(self) -> dict[str, Stateful]:
        return super().parts() | {"sgd": self.sgd, "union": self.union}

    def dispatched(self, client: int) -> None:
        self.under_way.append(client)

    def receive_message(self, message) -> bool:
        a, y = message.activations, message.labels
        reply = self.part.reply(self.server_d, a, y, out_d=self._own_d)
        self.answers.append((message.client, reply.gradient, reply.loss))
        self.add(message.client, self._own_d, len(y))
        self.server_samples = len(y)
        if len(self.answers) < len(self.under_way):
            return False
        self.sgd.step(self.direction())
        return True

    def add(self, client: int, gradient_d: torch.Tensor, samples: int) -> None:
        """Add (d,) the gradient of a client's mini-batch at s."""
        self.union.add(gradient_d, samples)

    def direction(self) -> torch.Tensor:
        """Return (d,) the gradient for the step of s, from all added ones."""
        mean_d = self.union.take()
        assert mean_d is not None
        return mean_d

    def replies(self) -> list[tuple[int, Reply]]:
        if len(self.answers) < len(self.under_way):
            return []
        answers, self.answers = self.answers, []
        return [(client, Reply(gradient, loss)) for client, gradient, loss in answers]

    def round(self) -> bool:
        self.under_way.clear()
        return super().round()

    def step(self, mean_d, delivered) -> None:
        self.client_d.add_(mean_d)
