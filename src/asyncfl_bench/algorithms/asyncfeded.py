"""AsyncFedED: server steps and local work that depend on the distance that the model has moved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from ..errors import BenchError, check
from ..ranges import at_least, greater_than, one_of
from .base import RuleConfig, ServerRule
from .needs import Needs

MAX_K = 1_000_000  # larger values make no sense; a list of mini-batches is made of it


@dataclass
class AsyncFedEdConfig(RuleConfig):
    """
    lam           lambda
    lam_over_eps  lambda / epsilon, the largest server step
    gamma_bar     target staleness of the adaptive K
    kappa         gain of the adaptation of K; 0: constant K
    k_initial     every client's first K; null: client.local_epochs or client.local_steps
    k_max         cap on K; null: none
    k_rule        accumulate: K is a real number, rounded down when used | literal: each change is rounded down, as
                  equation 8 prints it | round: each change is rounded to the nearest whole number
    """

    lam: Annotated[float, greater_than(0)] = 5.0
    lam_over_eps: Annotated[float, greater_than(0)] = 1.0
    gamma_bar: Annotated[float, at_least(0)] = 3.0
    kappa: Annotated[float, at_least(0)] = 1.0
    k_initial: Annotated[int | None, at_least(1)] = None
    k_max: Annotated[int | None, at_least(1)] = None
    k_rule: Annotated[str, one_of("accumulate", "literal", "round")] = "accumulate"

    def resolve(self, facts) -> None:
        super().resolve(facts)
        first = self.k_initial = self.k_initial or facts.workload.k
        ok = self.k_max is None or first <= self.k_max
        check(ok, "k_max", self.k_max, f"at least the first K, which is {first}, or null for no cap")

    def idle(self, facts) -> dict[str, str]:
        why = "with algorithm.kappa=0, which keeps K"
        return {} if self.kappa else dict.fromkeys(("gamma_bar", "k_max", "k_rule"), why)


class AsyncFedEd(ServerRule):
    """AsyncFedED (Wang et al. 2022, arXiv:2205.13797, Algorithm 1).

    Rule     arrival of D_i, computed from w_o with K_i:                                               (line 6)
             gamma = ||w - w_o|| / ||D_i||              (line 8, equation 6; over all trainable parameters)
             eta = lam / (gamma + eps)                                            (line 9, equation 7)
             w <- w + eta D_i                                                                (line 10)
             k_i <- max(1, k_i + (gamma_bar - gamma) kappa),  K_i = floor(k_i)       (line 11, equation 8)
    Upload   difference, shape (d,), with the model the work started from: of the history of all models only the
             versions are kept that some client in flight holds
    State    k_i of every client; gamma, eta and K of the last arrival
    Memory   d, versions
    Limits   no staleness: gamma = 0 and eta = lam / eps, its maximum; with lam / eps = 1 then w = w_i, as FedAsync
             with alpha = 1.  kappa = 0: constant K
    Differs  equation 8 rounds the change of K down, so that with a small kappa K could only fall; the authors' runs
             show it rise, so the real number is kept (k_rule). K is at least 1, which the paper leaves open. A D_i of
             zero counts as infinitely stale (gamma = 0 if the model has not moved either) and changes nothing

    >>> after_each(AsyncFedEd(lam=1.0, k_initial=5), (0, [2.0]), (1, [4.0]))
    [[2.0], [4.6667]]
    """

    label = "AsyncFedED"
    config: AsyncFedEdConfig
    upload_kinds = ("difference",)
    needs = Needs(base=True, first_k="k_initial")
    averaged = ("rule/gamma", "rule/eta_g")
    arrival_facts = ("gamma", "eta_g", "k")
    state_names = ("k_n", "gamma", "eta_g", "k", "applied")
    kept_vectors = 1

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        assert self.config.k_initial is not None
        self.k_n = [float(self.config.k_initial)] * self.n
        self.gamma, self.eta_g, self.k = 0.0, 0.0, 0
        self.applied = (0.0, 0.0)  # gamma and eta of the last arrival that changed the model
        self._distance_d = model_d.new_empty(model_d.shape)

    def work_for(self, client: int) -> int:
        return math.floor(self.k_n[client])

    def receive(self, upload) -> bool:
        config = self.config
        self.gamma = self._staleness_of(upload)
        self.eta_g = config.lam / (self.gamma + config.lam / config.lam_over_eps)
        self.k = upload.k
        self._adapt_k(upload.client)
        if not self.eta_g or not self._length:
            return False
        self.model_d.add_(upload.vector_d, alpha=self.eta_g)
        self.applied = (self.gamma, self.eta_g)
        return True

    def stats(self) -> dict[str, float]:
        gamma, eta = self.applied
        return {"rule/gamma": gamma, "rule/eta_g": eta, "rule/mean_k": sum(map(math.floor, self.k_n)) / self.n}

    def _staleness_of(self, upload) -> float:
        """Return gamma, with norms in double precision."""
        import torch

        torch.sub(self.model_d, upload.base_d, out=self._distance_d)
        norms = [torch.linalg.vector_norm(v, dtype=torch.float64) for v in (self._distance_d, upload.vector_d)]
        distance, self._length = torch.stack(norms).tolist()  # one wait for the device
        if not distance:
            return 0.0
        return distance / self._length if self._length else math.inf

    def _adapt_k(self, client: int) -> None:
        config = self.config
        change = (config.gamma_bar - self.gamma) * config.kappa if config.kappa else 0.0
        if math.isfinite(change) and config.k_rule != "accumulate":
            change = math.floor(change) if config.k_rule == "literal" else round(change)
        k = max(1.0, self.k_n[client] + change)
        self.k_n[client] = k if config.k_max is None else min(k, float(config.k_max))
        if self.k_n[client] > MAX_K:
            advice = "algorithm.k_max or a smaller algorithm.kappa keeps it down"
            raise BenchError(f"K of client {client} would be {self.k_n[client]:g}: more than {MAX_K}; {advice}")
