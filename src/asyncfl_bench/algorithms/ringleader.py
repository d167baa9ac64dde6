"""Ringleader ASGD: rounds in which every client steps once, along the mean of all clients' mean gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ..errors import check
from ..ranges import one_of
from ..stateful import Stateful
from .base import ServerRule, StepConfig
from .common.sums import RunningSum
from .needs import Needs


@dataclass
class RingleaderConfig(StepConfig):
    """
    continue_on  the next model of a client whose upload does not step: own: its last one | current, as in the authors'
                 code | auto: own, with schedule=uniform_queue current
    """

    continue_on: Annotated[str, one_of("auto", "own", "current")] = "auto"

    def adapt(self, needs: Needs) -> Needs:
        return replace(super().adapt(needs), base=self.continue_on != "current")

    def resolve(self, facts) -> None:
        super().resolve(facts)
        if self.continue_on == "auto":
            self.continue_on = "current" if facts.queues else "own"
        allowed = "current with schedule=uniform_queue, under which a client may have work from several models"
        check(self.continue_on != "own" or not facts.queues, "continue_on", self.continue_on, allowed)


class Ringleader(ServerRule):
    """Ringleader ASGD (Maranjyan and Richtarik, ICLR 2026, arXiv:2509.22860).

    Rule     state G_i = 0 and b_i = 0 for every client: the sum and the number of its gradients
             arrival of g_i:  G_i <- G_i + g_i,  b_i <- b_i + 1
             if some b_j = 0 nothing else happens. Once all are there every arrival steps:
               w <- w - (eta / n) sum_j G_j / b_j
             of a client that has stepped in this round further gradients are for the next one, its G_i and b_i there;
             they do not step. After n steps, one of each client, the next round begins with what there is
             a client whose upload does not step continues with its model, so each G_i is of one model (continue_on)
    Upload   gradient, shape (d,)
    Steps    in rounds of n steps, one at an upload of each client, once all have uploaded
    State    sums_nd (G_i, of the next round for clients that have stepped), counts, stepped; the sums of G_i / b_i of
             this round and of the next one; each client's model and its version
    Memory   (2 n + 11) d, versions; with continue_on=current (n + 11) d
    Limits   every round has n steps, one of each client, and without schedule=uniform_queue no gradient is of a model
             more than 2 n - 2 steps old
             gradients without noise: ends in the optimum of the mean objective, whatever the speeds
             one client: SGD.  equal durations: two units of time a round
    Differs  in the authors' code clients continue with the current model (continue_on=current), so a mean may be over
             gradients of several; for two clients it is the same. Two tables are kept in one: whoever has stepped
             needs its sum of this round no more. A client that never returns would stop the rule for ever

    >>> after_each(Ringleader(eta=0.5), (0, [2.0]), (0, [4.0]), (1, [7.0]), (1, [9.0]), (0, [6.0]))
    [[0.0], [0.0], [-2.5], [-2.5], [-5.25]]
    """

    label = "Ringleader"
    config: RingleaderConfig
    upload_kinds = ("gradient", "difference")
    needs = Needs(linear=True, waits_for="all", uploads=lambda n: min(2, n))  # 2 n - 1 make a round of n steps
    state_names = ("sums_nd", "counts", "stepped", "own_nd", "own_versions")

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.sums_nd = model_d.new_zeros((self.n, *model_d.shape))
        self.counts, self.stepped = [0] * self.n, [False] * self.n
        self.own_versions: list[int | None] = [None] * self.n  # None: gets the current model
        self.own_nd = model_d.new_empty((self.n if self.needs.base else 0, *model_d.shape))
        self.total, self.later = RunningSum(model_d), RunningSum(model_d)  # of means, of this round and the next

    def vectors(self, n: int) -> int:
        return (2 * n if self.needs.base else n) + 11  # with a mean

    def parts(self) -> dict[str, Stateful]:
        return {"total": self.total, "later": self.later}

    def resumes_from(self, client: int):
        version = self.own_versions[client]
        return None if version is None else (version, self.own_nd[client])

    def receive(self, upload) -> bool:
        steps = self._add_gradient(upload)
        if self.needs.base:
            self.own_versions[upload.client] = None if steps else upload.base_iteration
            if not steps:
                self.own_nd[upload.client].copy_(upload.base_d)
        return steps

    def _add_gradient(self, upload) -> bool:
        client, done = upload.client, self.stepped[upload.client]
        self._add_to_mean(client, upload.vector_d, self.later if done else self.total)
        if done or (0 in self.counts and not any(self.stepped)):
            return False
        self.total.add_to(self.model_d, self.step_size / self.n)
        self.sums_nd[client].zero_()
        self.counts[client], self.stepped[client] = 0, True
        if all(self.stepped):
            self.total, self.later = self.later, self.total
            self.later.zero()
            self.stepped = [False] * self.n
        return True

    def _add_to_mean(self, client: int, vector_d, total: RunningSum) -> None:
        """Add a gradient to G_i and b_i, and update their mean in ``total``."""
        if self.counts[client]:
            total.subtract(self.sums_nd[client] / self.counts[client])
        self.sums_nd[client] += vector_d
        self.counts[client] += 1
        total.add(self.sums_nd[client] / self.counts[client])
