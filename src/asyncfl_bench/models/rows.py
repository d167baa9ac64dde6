"""A model whose samples read a few rows of a large embedding, as a small model of these rows alone.

Gradients of all other rows are zero, so local work moves them in a way that needs no gradient
(``write_upload_of_zero_gradients``), and computes with what its own samples read: the time of a step no longer grows
with the number of words.

Legend: d parameters of the model, s of the small one, E numbers a row, R rows read, m samples of a
piece of work, e their words and bigrams, B samples of a mini-batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from .networks import FastTextNetwork


class SelectedRows:
    """The rows that some samples read and the linear layer, as a model with its own flat vectors.

    Such a vector has s numbers: the rows in their order, then weight and bias of the linear layer.
    x (m, L) token ids with labels y (m,); steps: (B,) their places, step by step; bias_c: (C,) joins the logits
    """

    def __init__(self, network: FastTextNetwork, x: Tensor, y: Tensor, steps: Iterator[Tensor], bias_c: Tensor | None):
        self._y, self._steps, self._bias_c = y, steps, bias_c
        self._embedded = network.embedding.weight.numel()  # the embedding comes first in the flat vector
        self._width, self._classes = network.embedding.embedding_dim, network.output.out_features
        row, there = network.rows(x)
        row_e = row[there]  # of each word or bigram, sample after sample
        read = torch.zeros(network.embedding.num_embeddings, dtype=torch.bool, device=x.device)
        read[row_e] = True  # and not torch.unique, which sorts them
        self._rows_r = read.nonzero().view(-1)
        place = torch.empty(len(read), dtype=torch.int64, device=x.device)
        place[self._rows_r] = torch.arange(len(self._rows_r), device=x.device)
        self._place_e = place[row_e]
        self._count_m = there.sum(dim=1)
        self._first_m = self._count_m.cumsum(0) - self._count_m
        self._numbers = len(self._rows_r) * self._width

    def select_rows(self, w_d: Tensor) -> Tensor:
        """(s,) copy of the numbers of the small model, out of the (d,) model."""
        rows, rest = self._halves(w_d)
        return torch.cat([rows[self._rows_r].view(-1), rest])

    def write_rows(self, w_s: Tensor, out_d: Tensor) -> None:
        """Write the numbers of the small model back to their positions in ``out_d``."""
        rows, rest = self._halves(out_d)
        rows[self._rows_r] = w_s[: self._numbers].view(-1, self._width)
        rest.copy_(w_s[self._numbers :])

    def gradient(self, w_s: Tensor, out_s: Tensor) -> Tensor:
        """As ``FlatModel.gradient`` of the next mini-batch, with vectors of s numbers."""
        chosen_b = next(self._steps)
        count_b, y = self._count_m[chosen_b], self._y[chosen_b]
        ends_b = count_b.cumsum(0)
        sample = torch.repeat_interleave(torch.arange(len(y), device=y.device), count_b)
        shift_b = self._first_m[chosen_b] - ends_b + count_b
        place = self._place_e[torch.arange(len(sample), device=y.device) + shift_b[sample]]
        embedding, weight, bias = self._parts(w_s)
        mean = F.embedding_bag(place, embedding, ends_b - count_b, mode="mean")
        logits = torch.addmm(bias, mean, weight.T)
        log_bc = torch.log_softmax(logits if self._bias_c is None else logits + self._bias_c, dim=1)
        loss = F.nll_loss(log_bc, y)
        # gradient of the loss with respect to the logits: (softmax - one-hot) / B
        error = log_bc.exp().scatter_add_(1, y[:, None], log_bc.new_full((1, 1), -1.0).expand(len(y), 1)).div_(len(y))
        embedding_out, weight_out, bias_out = self._parts(out_s)
        torch.mm(error.T, mean, out=weight_out)
        torch.sum(error, dim=0, out=bias_out)
        each = torch.mm(error, weight).div_(count_b[:, None])  # of each word or bigram of a sample
        embedding_out.zero_().index_add_(0, place, each[sample])
        return loss

    def _halves(self, w_d: Tensor) -> tuple[Tensor, Tensor]:
        """Views: the whole embedding, (rows, E), and what is behind it."""
        return w_d[: self._embedded].view(-1, self._width), w_d[self._embedded :]

    def _parts(self, w_s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views: embedding (R, E), weight (C, E) and bias (C,)."""
        width, classes = self._width, self._classes
        rows, weight, bias = w_s.split([self._numbers, classes * width, classes])
        return rows.view(-1, width), weight.view(classes, width), bias
