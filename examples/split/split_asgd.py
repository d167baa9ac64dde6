"""Split ASGD: both parts of the model step at each arrival. docs/howto/message_rule.md explains the example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from asyncfl_bench.algorithms.common.split import ServerSgd, SplitConfig, SplitRule
from asyncfl_bench.ranges import greater_than


@dataclass
class SplitAsgdConfig(SplitConfig):
    """
    eta  step of the clients' part along the change that a client uploads
    """

    eta: Annotated[float, greater_than(0)] = 1.0


class SplitAsgd(SplitRule):
    """Split learning (Vepakomma et al. 2018, arXiv:1812.00564) whose clients do not take turns.

    Rule     message (A, Y):  answer dl(s; A, Y)/dA,  s <- s - eta_s dl(s; A, Y)/ds
             upload D_i = local - received:  u <- u + eta D_i
    Upload   difference, of the clients' part
    State    momentum of s      Memory 2 d floats
    Limits   one client and eta = 1: SGD on the whole model
    """

    config: SplitAsgdConfig
    label = "split ASGD"
    kept_vectors = 2

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.sgd = ServerSgd(self.server_d, self.config)
        self._gradient_d = self.server_d.clone()

    def parts(self) -> dict:
        return {"sgd": self.sgd}

    def receive_message(self, message) -> bool:
        # the answer is computed before the step, as in back-propagation through the whole model
        reply = self.part.reply(self.server_d, message.activations, message.labels, out_d=self._gradient_d)
        self.sgd.step(self._gradient_d)
        self.server_samples = len(message.labels)
        self._reply = message.client, reply
        return True

    def replies(self) -> list:
        return [self._reply]

    def receive(self, upload) -> bool:
        self.server_samples = 0.0
        self.client_d.add_(upload.vector_d, alpha=self.config.eta)
        return True
