"""SplitFed: FedAvg whose clients hold the first layers alone; the server has a copy of the others for each of them."""

from __future__ import annotations

from dataclasses import replace

from .common.rounds import RoundRule
from .common.split import ServerSgd, SplitRoundConfig, SplitRule


class SplitFed(SplitRule, RoundRule):
    """SplitFed, version 1 (Thapa et al. 2022, arXiv:2004.12088, Algorithms 1 and 2).

    Rule     in a round each client i has a copy of both parts, u_i = u and s_i = s;  message (A, Y) of i:
               reply dl(s_i; A, Y)/dA,  s_i <- s_i - eta_s dl(s_i; A, Y)/ds
             end of the round:  u <- sum_i p_i u_i,  s <- sum_i p_i s_i,  p_i = n_i / sum n over those delivered
    Upload   difference, of the clients' part
    State    s_i and its momentum for each client in flight, the round's sum
    Memory   3 d + the server's layers for each client in flight (twice with momentum)
    Limits   with the server's steps like the clients': FedAvg on the whole model

    The model after each (client, upload) in turn, each after one message for which dl/ds = 1 (trial.after_each):

    >>> after_each(SplitFed(server_lr=0.5, server_momentum=0.0, server_weight_decay=0.0), (0, [2.0]), (1, [4.0]))
    [[0.0, 0.0], [3.0, -0.5]]
    """

    label = "SplitFed"
    config: SplitRoundConfig
    kept_vectors = 3

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.copies: dict[int, ServerSgd] = {}
        self._gradient_d = self.server_d.clone()

    def split_numbers(self, d_server: int, in_flight: int, message: int) -> int:
        return in_flight * (1 + bool(self.config.server_momentum)) * d_server

    def receive_message(self, message) -> bool:
        copy = self._copy(message.client)
        reply = self.part.reply(copy.s_d, message.activations, message.labels, out_d=self._gradient_d)
        copy.step(self._gradient_d)
        self.server_samples = len(message.labels)
        self._reply = message.client, reply
        return True

    def replies(self) -> list:
        return [self._reply]

    def receive(self, upload) -> bool:
        import torch

        change_d = self._copy(upload.client).s_d - self.server_d
        return super().receive(replace(upload, vector_d=torch.cat([upload.vector_d, change_d])))

    def round(self) -> bool:
        self.copies.clear()
        return super().round()

    def step(self, mean_d, delivered) -> None:
        self.model_d.add_(mean_d)

    def _copy(self, client: int) -> ServerSgd:
        """Return the client's copy of the server's part, made at its first message of a round."""
        if client not in self.copies:
            self.copies[client] = ServerSgd(self.server_d.clone(), self.config)
        return self.copies[client]

    def state_dict(self) -> dict:
        copies = {client: {"s_d": copy.s_d, **copy.state_dict()} for client, copy in self.copies.items()}
        return super().state_dict() | {"copies": copies}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.copies.clear()
        for client, saved in state["copies"].items():
            copy = self._copy(client)
            copy.s_d.copy_(saved["s_d"])
            copy.load_state_dict(saved)
