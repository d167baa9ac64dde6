"""Gradient dissimilarity between the server's training rows and the test samples (GAS, figure 2a).

Legend: u the clients' part, s the server's, d parameters of a part, B rows of the last server step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import check
from ..ranges import Count
from ..types import Message, Recorder
from .base import Diagnostics, DiagnosticsConfig

if TYPE_CHECKING:
    import torch

CHUNK = 256  # samples of one pass through the clients' part


@dataclass
class DissimilarityConfig(DiagnosticsConfig):
    """
    samples  test samples, evenly spaced and the same at every point, or all if the set has fewer. The authors' code
             takes 10 random batches of 128
    """

    samples: Count = 1280


class Dissimilarity(Diagnostics):
    """Gradient dissimilarity of the server's part (Yang, Liu 2024, arXiv:2409.01251, section 5.1 and Lemma 1).

    At every evaluation, with the evaluated u and s and the mean cross-entropy l, without weight decay, clipping or
    logit adjustment:

        g      dl/ds of the rows of the last step of s, generated rows included
        g_ref  dl/ds of the test samples, with activations from u
        squared   |g - g_ref|^2 / number of s's parameter tensors
        relative  |g - g_ref|^2 / |g_ref|^2
        cosine    of g and g_ref

    The paper's text defines none of this. `squared` follows the authors' code, which takes 10 random mini-batches of
    128 test samples. As there, s has already made its step, and the rows are activations of earlier u. Hence g is
    somewhat smaller than the gradient of that step.
    Cost: at each evaluation a forward pass of the model and a gradient of s for each sample and row; 2 d floats.
    """

    config: DissimilarityConfig
    state_names = ("_stepped_on",)

    @classmethod
    def check_run(cls, settings) -> None:
        name, target = settings.choices.get("algorithm"), settings.parts["algorithm"].target
        allowed = f"none: algorithm={name} shows no rows that a server's part learns from; gas does"
        check(issubclass(target, Recorder) and target.records_rows, "diagnostics", "dissimilarity", allowed)

    def start(self, *, rule, shadow, model_d, task, client, has_left) -> None:
        import torch

        self.rule, self.model_d, self.part = rule, model_d, shadow.part
        self.state_device = model_d.device
        self._clients_part = self.part.client.clone_for_thread()
        tests = int(task.tests_c.sum())
        rows = np.linspace(0, tests - 1, min(self.config.samples, tests)).astype(np.int64)
        self._x, self._y = task.test_samples(torch.from_numpy(rows))
        self._stepped_on: tuple[torch.Tensor, torch.Tensor] | None = None
        server_d = model_d[self.part.d_client :]
        self._gradient_d, self._reference_d = torch.empty_like(server_d), torch.empty_like(server_d)

    def message_received(self, message: Message, stepped: bool, time: float) -> None:
        if stepped:
            self._stepped_on = self.rule.rows_of_step

    def measure(self, point: Mapping[str, Any]) -> dict[str, float]:
        import torch

        if self._stepped_on is None:
            return {}
        u_d, s_d = self.model_d.split([self.part.d_client, len(self._gradient_d)])
        a = torch.cat([self._clients_part.forward(u_d, x)[0] for x in self._x.split(CHUNK)])
        self.part.gradient(s_d, a, self._y, self._reference_d)
        self.part.gradient(s_d, *self._stepped_on, self._gradient_d)
        g_d, reference_d = self._gradient_d.double(), self._reference_d.double()
        squared, own, other = (float(v @ v) for v in (g_d - reference_d, g_d, reference_d))
        return {
            "dissimilarity/squared": squared / self.part.server_tensors,
            "dissimilarity/relative": squared / max(other, 1e-300),
            "dissimilarity/cosine": float(g_d @ reference_d) / max((own * other) ** 0.5, 1e-300),
        }
