"""Bytes of what goes between clients and server."""

from __future__ import annotations

from ..types import Message, Reply


class Traffic:
    """
    model   with the model, or the clients' part of it, to a client, and the rule's second vector if there is one
    upload  the same way back
    """

    def __init__(self, rule, parameters: int, number: int):
        """parameters: of what clients hold; number: bytes of one of them, and of any other number that is sent."""
        self.model = parameters * number * (1 + rule.sends_two)
        self.upload = parameters * 8 if rule.clients_keep == "previous" else self.model  # doubles
        self._number = number

    def message(self, message: Message) -> int:
        """Activations and labels."""
        return self._number * (message.activations.numel() + message.labels.numel())

    def reply(self, reply: Reply) -> int:
        return self._number * reply.gradient.numel()
