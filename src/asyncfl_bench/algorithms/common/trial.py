"""Trials of a rule: a few uploads and the model after each."""

from __future__ import annotations

import math
from typing import Any

from ...randomness import Streams
from ...storage import Storage
from ...types import ClientTable, Message, Reply, Upload
from ..base import ServerRule, equip
from .split import SplitRule


class TrialPart:
    """A server's part of one parameter s, with the loss s times the mean of the activations, one a sample."""

    classes, activation = 2, (1,)

    def __init__(self, d_client: int):
        self.d_client = d_client

    def gradient(self, s_d, a, y, out_d):
        out_d.copy_(a.mean())
        return s_d[0] * a.mean()

    def reply(self, s_d, a, y, bias_c=None, out_d=None):
        if out_d is not None:
            self.gradient(s_d, a, y, out_d)
        return Reply((s_d / len(a)).expand(a.shape).clone(), s_d[0] * a.mean())


class TrialServer:
    """Three samples of two classes, with logits that are products of the model with fixed numbers."""

    samples, classes = 3, 2

    def outputs(self, w_d):
        """Return (3, 2) logits of the (d,) model."""
        return self._numbers(w_d) @ w_d

    def gradient(self, w_d, rows_b, target_bc, out_d):
        import torch

        logits_bc = self.outputs(w_d)[rows_b]
        error_bc = logits_bc.softmax(1) * target_bc.sum(1, keepdim=True) - target_bc
        out_d.copy_(torch.einsum("bc,bcd->d", error_bc, self._numbers(w_d)[rows_b]) / len(rows_b))
        return -(target_bc * logits_bc.log_softmax(1)).sum(1).mean()

    def _numbers(self, w_d):
        import torch

        shape = (self.samples, self.classes, len(w_d))
        return torch.sin(torch.arange(1.0, 1 + math.prod(shape), dtype=w_d.dtype)).view(shape)


def after_each(rule: ServerRule, *uploads: tuple[int, list[float]]) -> list[list[float]]:
    """Return the model after each (client, vector), rounded to 4 digits, for examples in docstrings and first tests.

    Every upload starts from the first model, w = 0, has the rule's preferred kind, and is from a client with one
    sample. A rule that works in rounds steps after the last upload. For a rule that cuts the model, vectors are of the
    clients' part, each client first sends one message with activation 1, and ``TrialPart`` is the server's part.
    """
    import numpy as np
    import torch

    d = len(uploads[0][1])
    model_d = torch.zeros(d + rule.needs.cuts)
    part: Any = TrialPart(d)
    first_d, models, iteration = model_d[:d].clone(), [], 0
    n = 1 + max(client for client, _ in uploads)
    equip(rule, Storage(), Streams(0), part=part).start(
        model_d, ClientTable(np.ones(n, dtype=int)), rule.upload_kinds[0]
    )
    if isinstance(rule, SplitRule):
        for client, _ in uploads:
            rule.dispatched(client)
        for client, _ in uploads:
            rule.receive_message(Message(client, 0, 1, 0, 0, 1, torch.ones(1, 1), torch.zeros(1, dtype=torch.long)))
            rule.replies()
    for number, (client, vector) in enumerate(uploads, start=1):
        vector_d = torch.tensor(vector, dtype=model_d.dtype)
        upload = Upload(client, vector_d, 0, iteration, samples=1, local_steps=1, base_d=first_d, second_d=first_d)
        iteration += rule.receive(upload)
        if number == len(uploads):
            rule.round()
        models.append([round(value, 4) for value in model_d.tolist()])
    return models
