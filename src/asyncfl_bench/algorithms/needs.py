"""Needs of a server rule: the only facts about a rule that the package reads before its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..storage import CacheConfig


@dataclass(frozen=True)
class Needs:
    """Needs of a rule class; ``RuleConfig.adapt`` changes those that depend on settings.

    steps_on       moment of steps: at an `arrival`; in ``tick``, with the tick clock only; or in ``round``, with no
                   dispatch before all work in flight has arrived or is lost
    uploads        uploads per server iteration, of clients of equal speed and without losses: a number, or a function
                   of the number of clients n. Not used with steps_on=round
    base           uploads have the (d,) model that their work started from (``Upload.base_d``)
    outputs        uploads have the local model's logits on the server's samples (``Upload.outputs_uc``)
    first_round    every client uploads once at w0 before any other work
    keeps          a vector of d floats that each client keeps between uploads: `previous`, its last upload, of which
                   it sends the change; `sum`, the sum of its uploads, around which it is regularised; `variate`, an
                   estimate of its gradient, whose change it uploads too (``Upload.second_d``). With `variate` the
                   rule's ``variate_d`` is sent with the model; or None
    one_at_a_time  the rule keeps facts about a client's work in flight, so a client may not have two pieces in flight
    waits_for      clients for whose uploads the rule may wait for ever: `all` clients, those `given` work, or None
    restart_at     server iterations; work in flight whose model is this old or older is cancelled after a step, and
                   its client restarts on the current model. Lost work is not cancelled. None: no work is cancelled
    linear         each step adds a weighted sum of uploads, with weights that do not depend on their content, as
                   diagnostics=mse requires
    linear_if      (setting, value, required value) of settings that a linear rule depends on
    cache          settings of the cache of every client's last vector; None without such a cache
    proximal       name of the rule's setting that is the clients' proximal weight; None: client.proximal is
    first_k        name of the rule's setting that is the clients' first K; None: client.local_steps or local_epochs is
    chooses_k      ``work_for`` chooses K; set by overriding it
    cuts           clients hold the first layers of the model only; set by ``SplitRule``
    replies_together  with ``cuts``: the rule replies to no client before all clients in flight have sent a message
    """

    steps_on: str = "arrival"
    uploads: int | Callable[[int], int] = 1
    base: bool = False
    outputs: bool = False
    first_round: bool = False
    keeps: str | None = None
    one_at_a_time: bool = False
    waits_for: str | None = None
    restart_at: int | None = None
    linear: bool = False
    linear_if: tuple[tuple[str, object, object], ...] = ()
    cache: CacheConfig | None = None
    proximal: str | None = None
    first_k: str | None = None
    chooses_k: bool = False
    cuts: bool = False
    replies_together: bool = False

    @property
    def undeployable(self) -> str | None:
        """Reason why a live server (group `live`) cannot run the rule; None if it can."""
        return "its clients would wait for a reply of the server in each local step" if self.cuts else None

    @property
    def may_wait(self) -> bool:
        """Whether the server may wait for one client for ever."""
        return self.waits_for is not None or self.first_round or self.steps_on == "round"

    @property
    def second_vector(self) -> bool:
        """Whether every model and every upload is two vectors of d floats."""
        return self.keeps == "variate"

    def uploads_per_iteration(self, n: int) -> int:
        """Return ``uploads`` with n clients."""
        return self.uploads if isinstance(self.uploads, int) else self.uploads(n)
