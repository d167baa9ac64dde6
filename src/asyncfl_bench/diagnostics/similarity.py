"""Similarity of the models of clients with the same label mix and with different ones (AFBS, figure 5).

Legend: m watched clients, d parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ..errors import check
from ..ranges import at_least
from ..types import Upload, Work
from .base import Diagnostics, DiagnosticsConfig

if TYPE_CHECKING:
    import torch


@dataclass
class SimilarityConfig(DiagnosticsConfig):
    """
    clients  most clients that are compared: the first ones with work
    """

    clients: Annotated[int, at_least(2)] = 20


class Similarity(Diagnostics):
    """Mean cosine similarity of pairs of clients' models (Lu et al. 2025, arXiv:2506.12754, section 3.4).

    A client's model is its last uploaded one. Clients of a group of the split have the same label mix. At every
    evaluation, over the pairs of watched clients with an upload:

        same, different   pairs of the same group, and of different groups
        same_apart        the same group, one model fresh and one outdated
        different_fresh   different groups, both models fresh

    A model is fresh if its start version is in the newer half of the range of versions. If all have one version, no
    pair is apart. A mean over no pair is left out. The paper draws two pairs of each kind and does not say which.
    Cost: a product of m x m vectors at each evaluation.
    """

    config: SimilarityConfig
    state_names = ("_started", "_models", "_versions")

    @classmethod
    def check_run(cls, settings) -> None:
        upload, keeps = settings.parts["client"].config.upload, settings.needs.keeps
        name = settings.choices.get("algorithm")
        check(upload == "difference", "client.upload", upload, "difference with diagnostics=similarity, to have models")
        allowed = f"none: uploads of algorithm={name} are not the clients' models"
        check(keeps is None and not settings.needs.cuts, "diagnostics", "similarity", allowed)
        split = settings.choices.get("heterogeneity")
        allowed = f"none: heterogeneity={split} makes no groups of clients; use clusters with two groups or more"
        groups = settings.parts["heterogeneity"].config.planted_groups
        check(groups > 1, "diagnostics", "similarity", allowed)

    def vectors(self, rule, n: int, concurrency: int) -> int:
        return 3 * min(n, self.config.clients)  # models, starts of the work in flight, copies for a product

    def start(self, *, rule, shadow, model_d, task, client, has_left) -> None:
        self.state_device = model_d.device
        self._group_n: np.ndarray = task.clients.groups_n
        self._started: dict[int, list[torch.Tensor]] = {}  # by client: (d,) starts of its work in flight, in order
        self._models: dict[int, torch.Tensor] = {}  # by client: (d,) its last local model
        self._versions: dict[int, int] = {}

    def dispatched(self, work: Work, model_d: torch.Tensor) -> None:
        if work.client in self._started or len(self._started) < self.config.clients:
            self._started.setdefault(work.client, []).append(model_d.clone())

    def discarded(self, work: Work) -> None:
        if work.client in self._started:
            self._started[work.client].pop(0)

    def received(self, upload: Upload, changed: bool) -> None:
        if upload.client in self._started:
            self._models[upload.client] = self._started[upload.client].pop(0).add_(upload.vector_d)
            self._versions[upload.client] = upload.base_iteration

    def measure(self, point: Mapping[str, Any]) -> dict[str, float]:
        import torch

        if len(self._models) < 2:
            return {}
        clients = sorted(self._models)
        unit_md = torch.nn.functional.normalize(torch.stack([self._models[one] for one in clients]).double())
        cosine_mm = (unit_md @ unit_md.T).cpu().numpy()
        group_m, version_m = self._group_n[clients], np.array([self._versions[one] for one in clients])
        fresh_m = 2 * version_m > version_m.min() + version_m.max()
        same_mm, fresh_mm = group_m[:, None] == group_m, fresh_m[:, None] & fresh_m
        pairs = {
            "same": same_mm,
            "different": ~same_mm,
            "same_apart": same_mm & (fresh_m[:, None] != fresh_m) & (version_m.min() < version_m.max()),
            "different_fresh": ~same_mm & fresh_mm,
        }
        above_mm = np.triu(np.ones_like(same_mm), 1)
        return {
            f"similarity/{name}": float(cosine_mm[of & above_mm].mean())
            for name, of in pairs.items()
            if (of & above_mm).any()
        }
