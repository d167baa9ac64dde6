"""ACE: all-client engagement, a cache of every client's last gradient."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import check_choice
from .base import STEP_ON, RuleConfig, RunningSum, ServerRule, VectorCache


@dataclass
class AceConfig(RuleConfig):
    """rule: `direct` keeps the cache on the server; `incremental` leaves it with the clients, same trajectory.
    step_on: `arrival`, `tick`, or `auto` (tick under the tick clock, else arrival)."""

    rule: str = "direct"
    step_on: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("rule", self.rule, ("direct", "incremental"))
        check_choice("step_on", self.step_on, STEP_ON)


class Ace(ServerRule):
    """ACE (arXiv:2511.19066).

    Rule     start: U_i = g_i(w_0) for every i, w_1 = w_0 - eta * mean_i U_i          (Algorithm 1, lines 1-6)
             arrival of g_j:  U_j <- g_j;  w <- w - eta * (1/n) * sum over ALL i of U_i        (lines 8-12)
             incremental: clients send q_j = g_j - their previous gradient;  sum <- sum + q_j  (Algorithm a.5, 10-18)
             step_on=tick: every arrival of a tick enters the cache, then one step is taken
    Upload   gradient, shape (d,); incremental: change of the gradient
    State    cache_nd (direct only), running sum, number of clients not heard yet
    Memory   direct n d + 5 d floats; incremental 5 d on the server and d on each client
    Limits   n = 1 without delay: SGD.  Aced with tau_algo >= T is this rule
    Differs  the mean is a running sum in double precision instead of a sum over n cached vectors
    """

    Config = AceConfig
    config: AceConfig
    accepts = ("gradient", "difference")
    first_round = True
    linear = True
    state_names = ("unheard",)

    def __init__(self, config: AceConfig):
        super().__init__(config)
        self.sends_changes = config.rule == "incremental"

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.cache = None if self.sends_changes else VectorCache(self.n, model_d)
        self.total = RunningSum(model_d)
        self.unheard = self.n

    def vectors(self, n: int) -> int:
        return 5 if self.sends_changes else n + 5

    def parts(self) -> dict:
        return {"total": self.total} if self.cache is None else {"total": self.total, "cache": self.cache}

    def receive(self, upload) -> bool:
        self.total.add(upload.vector_d)
        if self.cache is not None:
            self.total.subtract(self.cache[upload.client])
            self.cache.put(upload.client, upload.vector_d)
        if self.unheard:
            self.unheard -= 1
        if self.unheard or self.moves_each_tick:
            return False
        return self._step()

    def tick(self) -> bool:
        if self.unheard or not self.moves_each_tick:
            return False
        return self._step()

    def _step(self) -> bool:
        self.total.add_to(self.model_d, self.step_size / self.n)
        return True
