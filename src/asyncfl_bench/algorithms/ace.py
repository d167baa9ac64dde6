"""ACE: all-client engagement, a cache of every client's last gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ..errors import check
from ..ranges import one_of
from ..stateful import Stateful
from .base import FirstRoundRule, StepConfig, TickConfig
from .common.caches import CachingConfig, make_cache
from .common.sums import RunningSum
from .needs import Needs


@dataclass
class AceConfig(StepConfig, CachingConfig, TickConfig):
    """
    rule   direct: the server has the cache | incremental: the clients have it, same trajectory
    cache  with incremental the place of the clients' memories, which are in full precision: with rounding, server and
           clients would differ for ever
    """

    rule: Annotated[str, one_of("direct", "incremental")] = "direct"

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.rule == "direct" or self.cache.precision == "fp32"
        check(ok, "cache.precision", self.cache.precision, "fp32 with rule=incremental: the memories are the clients'")

    def adapt(self, needs: Needs) -> Needs:
        needs, keeps = super().adapt(needs), "previous" if self.rule == "incremental" else None
        # with the other rule uploads are changes of gradients
        return replace(needs, keeps=keeps, linear_if=(*needs.linear_if, ("rule", self.rule, "direct")))


class Ace(FirstRoundRule):
    """ACE (arXiv:2511.19066).

    Rule     start: U_i = g_i(w_0) for every i, w_1 = w_0 - eta * mean_i U_i          (Algorithm 1, lines 1-6)
             arrival of g_j:  U_j <- g_j;  w <- w - eta * (1/n) * sum over ALL i of U_i        (lines 8-12)
             incremental: clients send q_j = g_j - their previous gradient;  sum <- sum + q_j  (Algorithm a.5, 10-18)
             step_on=tick: every arrival of a tick enters the cache, then one step is taken
    Upload   gradient, shape (d,); incremental: change of the gradient
             cache.precision: the cache keeps rounded gradients, also in the first round (F.3.3; common/caches.py)
    State    cache (direct only), running sum, number of clients without an upload
    Memory   algorithm.rule=direct: cache and 5 d; algorithm.rule=incremental: 5 d
    Limits   n = 1 without delay: SGD.  ACED with tau_algo >= T is ACE
    Differs  the mean is a running sum, not a sum over n cached vectors. The sum and incremental messages are in
             double precision, so that rounding errors do not add up

    >>> after_each(Ace(eta=0.1), (0, [1.0]), (1, [3.0]), (0, [5.0]))
    [[0.0], [-0.2], [-0.6]]
    """

    label = "ACE"
    config: AceConfig

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        caching = self.config.cache
        self.cache = None if self.needs.keeps else make_cache(self.n, model_d, caching, self.storage)
        self.total = RunningSum(model_d)

    def parts(self) -> dict[str, Stateful]:
        return {"total": self.total} if self.cache is None else {"total": self.total, "cache": self.cache}

    def add(self, upload) -> None:
        if self.cache is None:
            self.total.add(upload.vector_d)
        else:
            self.cache.replace(upload.client, upload.vector_d, self.total)

    def step(self) -> bool:
        self.total.add_to(self.model_d, self.step_size / self.n)
        return True
