"""AFBS: a buffer whose step leaves out uploads that are both small and stale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..errors import check
from ..ranges import at_least, one_of
from ..types import Recorder
from .base import BufferConfig, ServerRule
from .common.clustering import k_means, projected_shares
from .needs import Needs


@dataclass
class AfbsConfig(BufferConfig):
    """
    clusters    K, number of clusters; null: the groups of heterogeneity=clusters, else 1
    clustering  projected: k-means on noisy projections of label shares | planted: the groups of heterogeneity=clusters
                | none: all clients in one
    keep        uploads that are smaller and staler than the best of their cluster stay: random: with probability
                score / highest score | never
    maximum     where the highest score is: cluster | the whole buffer
    weight      freshest: (1 + least staleness of the buffer)^-1/2 for all | own: of each upload's staleness | none: 1
    sigma       standard deviation of the noise on label shares
    rank        r, dimensions of the projection, fewer than classes
    """

    clusters: Annotated[int | None, at_least(1, null="for the split's groups")] = None
    clustering: Annotated[str, one_of("projected", "planted", "none")] = "projected"
    keep: Annotated[str, one_of("random", "never")] = "random"
    maximum: Annotated[str, one_of("cluster", "buffer")] = "cluster"
    weight: Annotated[str, one_of("freshest", "own", "none")] = "freshest"
    sigma: Annotated[float, at_least(0)] = 1e-3
    rank: Annotated[int | None, at_least(1, null="for the number of classes less 1")] = None

    def resolve(self, facts) -> None:
        super().resolve(facts)
        allowed = "projected or none: the split plants no groups, heterogeneity=clusters does"
        check(self.clustering != "planted" or facts.groups > 0, "clustering", self.clustering, allowed)
        if self.clusters is None:
            groups = min(facts.groups, facts.n_clients)  # the split refuses more
            self.clusters = 1 if self.clustering == "none" else groups or 1
        check(self.clusters <= facts.n_clients, "clusters", self.clusters, f"at most n_clients={facts.n_clients}")

    def idle(self, facts) -> dict[str, str]:
        found = super().idle(facts)
        if self.clustering != "projected":
            found |= dict.fromkeys(("clusters", "sigma", "rank"), f"with algorithm.clustering={self.clustering}")
        elif self.clusters == 1:
            found |= dict.fromkeys(("sigma", "rank"), "with algorithm.clusters=1, which needs no clustering")
        one = self.clustering == "none" or (facts.groups if self.clustering == "planted" else self.clusters) == 1
        if self.keep == "never" or one:
            why = "with algorithm.keep=never" if self.keep == "never" else "where all clients are in one cluster"
            found["maximum"] = why
        return found


class Afbs(Recorder, ServerRule):
    """AFBS (Lu et al. 2025, arXiv:2506.12754, Algorithms 1 and 2).

    Rule     buffer of M entries (D_i = local - received, tau_i, n_i samples); when it is full, in each cluster:
               score = n_i / (tau_i + 1)^2;  m: the entry with the highest              (equation 11; lines 3 to 8)
               kept are those with n_i >= n_m or tau_i <= tau_m                                         (line 9)
               and every other one with probability score_i / score_m                             (equation 12)
             w <- w + eta lam mean of the kept D_i,  lam = (1 + least tau)^-1/2;  clear        (lines 11 to 13)
    Clusters k-means on (1 a_i + G_i) R^T of label shares a_i, once before training            (line 1; equation 9)
    Upload   difference, shape (d,)
    Tells    client, version, samples; once before training, noisy projections of label shares
    State    rows_md and entries (the buffer), decided (what the last flush did), flushes, cluster_n
    Memory   (M + 1) d; 2 n C r before training
    Limits   M = 1: FedBuff with M = 1 and the weight (1 + tau)^-1/2, bit for bit.  all tau = 0: FedBuff
             equal n_i, or equal tau, or no two clients of one cluster: nothing is dropped; with weight=own then FedBuff
             with staleness_weight=polynomial, bit for bit.  clusters=1: clustering=none
    Differs  equation 12 is in the text, not in Algorithm 2 (keep=never), and its maximum is over a set that may be the
             whole buffer (maximum=buffer). Algorithm 1 leaves lam open; the text has the least tau. Equal scores: the
             fresher one is m. Draws: noise of client i at (i, 0), R at (n, 0), k-means at (n + 1, 0), chances of the
             M entries of flush f = 1, 2, ... at (0, f)

    >>> after_each(Afbs(buffer_size=2, clusters=1), (0, [2.0]), (1, [4.0]), (0, [1.0]), (1, [3.0]))
    [[0.0], [3.0], [3.0], [4.4142]]
    """

    label = "AFBS"
    config: AfbsConfig
    upload_kinds = ("difference",)
    needs = Needs(linear=True)
    averaged = ("rule/kept", "rule/step_scale")
    decision_columns = ("client", "staleness", "samples", "cluster", "score", "kept", "weight")
    state_names = ("rows_md", "entries", "decided", "flushes", "cluster_n")

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.rows_md = model_d.new_zeros((self.config.buffer_size, *model_d.shape))
        self._sum_d = model_d.new_empty(model_d.shape)
        self.entries: list[tuple[int, int, int]] = []  # client, staleness, samples
        self.decided: list[tuple] = []  # rows of decision_columns
        self.flushes = 0
        self.cluster_n: list[int] = self._clusters(clients).tolist()

    def vectors(self, n: int) -> int:
        return self.config.buffer_size + 1

    def receive(self, upload) -> bool:
        self.rows_md[len(self.entries)].copy_(upload.vector_d)
        self.entries.append((upload.client, upload.staleness, upload.samples))
        if len(self.entries) < self.config.buffer_size:
            return False
        self.flushes += 1
        cluster_m = [self.cluster_n[client] for client, _, _ in self.entries]
        score_m = [samples / (staleness + 1) ** 2 for _, staleness, samples in self.entries]
        kept_m = self._select(cluster_m, score_m)
        lam_m, kept = self._weights(), sum(kept_m)
        self._sum_d.zero_()
        for row_d, lam, stays in zip(self.rows_md, lam_m, kept_m, strict=True):
            if stays:
                self._sum_d.add_(row_d, alpha=lam)
        self.model_d.add_(self._sum_d, alpha=self.step_size / kept)
        self.decided = [
            (*entry, cluster, score, int(stays), lam / kept if stays else 0.0)
            for entry, cluster, score, stays, lam in zip(self.entries, cluster_m, score_m, kept_m, lam_m, strict=True)
        ]
        self.entries = []
        return True

    def stats(self) -> dict[str, float]:
        """Return the number of entries in the last step, and its length relative to their plain mean."""
        kept, weight = (sum(row[column] for row in self.decided) for column in (-2, -1))
        return {"rule/kept": float(kept), "rule/step_scale": float(weight)}

    def decisions(self) -> list[tuple]:
        return self.decided

    def _select(self, cluster_m: list[int], score_m: list[float]) -> list[bool]:
        """Return for each entry of the full buffer whether it stays (Algorithm 2)."""
        best = {}  # by cluster: its entry m
        for row in sorted(range(len(score_m)), key=lambda row: (score_m[row], -self.entries[row][1])):
            best[cluster_m[row]] = row
        chance_m = self.draws(0, self.flushes).random(len(score_m))  # one each, used or not
        stays = []
        for row, (_, staleness, samples) in enumerate(self.entries):
            m = best[cluster_m[row]]
            beaten = samples < self.entries[m][2] and staleness > self.entries[m][1]
            highest = score_m[m] if self.config.maximum == "cluster" else max(score_m)
            # by an entry that has samples, so that highest > 0
            stays.append(not beaten or (self.config.keep == "random" and bool(chance_m[row] < score_m[row] / highest)))
        return stays

    def _weights(self) -> list[float]:
        """Return lam of each entry."""
        staleness_m = [staleness for _, staleness, _ in self.entries]
        if self.config.weight == "none":
            return [1.0] * len(staleness_m)
        if self.config.weight == "freshest":
            staleness_m = [min(staleness_m)] * len(staleness_m)
        return [(1 + staleness) ** -0.5 for staleness in staleness_m]

    def _clusters(self, clients) -> np.ndarray:
        """Return the (n,) clusters of clients."""
        config = self.config
        if config.clustering == "planted":
            return clients.groups_n
        if config.clustering == "none" or config.clusters == 1:
            return np.zeros(self.n, dtype=np.int64)
        assert config.clusters is not None
        allowed = "planted or none: this task has no labels that clients could have shares of"
        check(clients.labels_nc is not None, "algorithm.clustering", config.clustering, allowed)
        classes = clients.labels_nc.shape[1]
        rank = max(1, classes - 1) if config.rank is None else config.rank
        check(rank < max(2, classes), "algorithm.rank", rank, f"fewer than the {classes} classes of this task")
        sent_nf = projected_shares(clients.labels_nc, rank, config.sigma, self.draws)
        self.bytes_before = 4 * sent_nf.size
        return k_means(sent_nf, config.clusters, self.draws(self.n + 1, 0))
