"""ACED: ACE restricted to clients with a recent upload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ..ranges import at_least, one_of
from ..stateful import Stateful
from .base import FirstRoundRule, StepConfig, TickConfig
from .common.caches import CachingConfig, make_cache
from .common.sums import RunningSum


@dataclass
class AcedConfig(StepConfig, CachingConfig, TickConfig):
    """
    tau_algo  a client is active while t - tstart <= tau_algo; the paper: 10 in figure 3, 50 in tables
    tstart    dispatch: reset at each dispatch to the client, as printed | gradient: version of the cached gradient
    """

    tau_algo: Annotated[int, at_least(0)] = 10
    tstart: Annotated[str, one_of("dispatch", "gradient")] = "dispatch"


class Aced(FirstRoundRule):
    """ACED (arXiv:2511.19066, Algorithm a.1).

    Rule     start: U_i = g_i(w_0), tstart_i = 1 for every i, w_1 = w_0 - eta * mean_i U_i            (line 2)
             t = 1, 2, ...  one arrival (or one tick's arrivals) each:
               U_j <- g_j                                                                            (lines 4-5)
               A(t) = {i : t - tstart_i <= tau_algo}                                                 (line 6)
               w <- w - eta * (1/|A(t)|) * sum over A(t) of U_i, or w stays if A(t) is empty         (lines 7-9)
               tstart_j <- t + 1                                                                     (line 10)
    tstart   `dispatch` (as printed): reset to t + 1 after the step, when j receives the new model; A(t) uses j's old
             value. A stale gradient counts as fresh after its arrival, and with one arrival per iteration at most
             tau_algo + 1 clients are active.
             `gradient` (section 3, notation and proof): the t at which the client received the model of its cached
             gradient. It is set with the cache, in line 5, and line 10 does not reset it. A(t) has only gradients at
             most tau_algo old, including that of j, and may be empty. Then t advances, the model stays, and there is no
             server iteration.
    Upload   gradient, shape (d,)
    State    cache, running sum over the active set, tstart_n, dispatched_n, active_n, t, arrived
    Memory   cache and 5 d
    Work     O(d) per arrival: clients enter and leave the running sum
    Limits   tau_algo >= T is Ace, bit for bit.  tau_algo = 0 steps with the gradient that arrived one iteration
             earlier, and with tstart=gradient only with a gradient of the current model

    >>> after_each(Aced(eta=0.1, tau_algo=0), (0, [1.0]), (1, [3.0]), (0, [5.0]), (1, [1.0]))
    [[0.0], [-0.2], [-0.6], [-1.1]]
    """

    label = "ACED"
    config: AcedConfig
    needs = replace(FirstRoundRule.needs, one_at_a_time=True)
    averaged = ("rule/active_clients",)
    state_names = ("unheard", "t", "tstart_n", "dispatched_n", "active_n", "arrived", "active")

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.cache = make_cache(self.n, model_d, self.config.cache, self.storage)
        self.total = RunningSum(model_d)  # over the active set
        self.t = 0
        self.tstart_n = [1] * self.n
        self.dispatched_n = [0] * self.n
        self.active_n = [True] * self.n
        self.active = self.n  # size of the active set of the last turn
        self.arrived: list[int] = []  # clients with an upload since the last turn
        self._schedule_expiries()

    def parts(self) -> dict[str, Stateful]:
        return {"total": self.total, "cache": self.cache}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._schedule_expiries()

    def dispatched(self, client: int) -> None:
        self.dispatched_n[client] = self.t

    def add(self, upload) -> None:
        client = upload.client
        if self.active_n[client]:
            self.cache.replace(client, upload.vector_d, self.total)
        else:
            self.cache.put(client, upload.vector_d)
        self.arrived.append(client)

    def stats(self) -> dict[str, float]:
        return {"rule/active_clients": float(self.active)}

    def step(self) -> bool:
        by_gradient = self.config.tstart == "gradient"
        if self.t == 0:  # the first round: tstart stays 1 for all
            self.active = self.n
        else:
            if by_gradient:
                for client in self.arrived:
                    self._restart(client, self.dispatched_n[client])
            for client in self._expiries.pop(self.t, ()):
                if self.active_n[client] and self.t - self.tstart_n[client] > self.config.tau_algo:
                    self._evict(client)
            self.active = self._active_count
        if changed := self.active > 0:
            self.total.add_to(self.model_d, self.step_size / self.active)
        if self.t > 0 and not by_gradient:
            for client in self.arrived:
                self._restart(client, self.t + 1)
        self.arrived = []
        self.t += 1
        return changed

    def _restart(self, client: int, tstart: int) -> None:
        self.tstart_n[client] = tstart
        expiry = tstart + self.config.tau_algo + 1
        if expiry > self.t:
            self._expiries.setdefault(expiry, []).append(client)
            if not self.active_n[client]:
                self.active_n[client] = True
                self._active_count += 1
                self.total.add(self.cache.stored_vector(client))
        elif self.active_n[client]:
            self._evict(client)

    def _evict(self, client: int) -> None:
        self.active_n[client] = False
        self._active_count -= 1
        self.total.subtract(self.cache.stored_vector(client))
        if self._active_count == 0:
            self.total.zero()

    def _schedule_expiries(self) -> None:
        """Store by turn the clients that may expire then: O(1) per turn instead of a scan over n clients."""
        self._expiries: dict[int, list[int]] = {}
        self._active_count = sum(self.active_n)
        for client, active in enumerate(self.active_n):
            if active:
                self._expiries.setdefault(self.tstart_n[client] + self.config.tau_algo + 1, []).append(client)
