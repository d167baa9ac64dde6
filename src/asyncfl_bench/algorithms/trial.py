"""A rule tried out by hand: a few uploads and the model after each."""

from __future__ import annotations

from ..randomness import Streams
from ..storage import Storage
from ..types import ClientTable, Upload
from .base import ServerRule, equip


def after_each(rule: ServerRule, *uploads: tuple[int, list[float]]) -> list[list[float]]:
    """The model after each (client, vector), rounded to 4 digits, for examples in docstrings and first tests.

    Every upload started from the first model, w = 0; it is of the rule's own kind, from a client with one sample. A
    rule that works in rounds is asked for its step after the last one.
    """
    import numpy as np
    import torch

    model_d = torch.zeros(len(uploads[0][1]))
    first_d, models, iteration = model_d.clone(), [], 0
    n = 1 + max(client for client, _ in uploads)
    equip(rule, Storage(), Streams(0)).start(model_d, ClientTable(np.ones(n, dtype=int)), rule.accepts[0])
    for number, (client, vector) in enumerate(uploads, start=1):
        vector_d = torch.tensor(vector, dtype=model_d.dtype)
        upload = Upload(client, vector_d, 0, iteration, samples=1, local_steps=1, base_d=first_d, along_d=first_d)
        iteration += rule.receive(upload)
        if number == len(uploads):
            rule.round()
        models.append([round(value, 4) for value in model_d.tolist()])
    return models
