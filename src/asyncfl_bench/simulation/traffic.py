"""Bytes of the vectors that go between clients and server; messages and answers know their own."""

from __future__ import annotations


class Traffic:
    """
    model   with the model, or the clients' part of it, to a client, and the rule's second vector if there is one
    upload  the same way back
    """

    def __init__(self, rule, parameters: int, number: int):
        """parameters: of what clients hold; number: bytes of one of them."""
        self.model = parameters * number * (1 + rule.needs.second_vector)
        self.upload = parameters * 8 if rule.needs.keeps == "previous" else self.model  # doubles
