"""What every server rule is, and the small parts several of them share.

Legend: n clients, d model parameters, t server iterations, tau staleness, eta server step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError, check
from ..storage import Storage

if TYPE_CHECKING:
    import torch

    from ..randomness import Stream, Streams
    from ..types import ClientTable, Upload

STEP_ON = ("auto", "arrival", "tick")  # `auto` is resolved when the run is composed: tick under the tick clock


@dataclass
class RuleConfig:
    """Settings of a rule; the base of all."""

    def __post_init__(self) -> None:
        pass

    def for_clients(self) -> dict[str, str]:
        """Settings of the group `client` that are this rule's to decide: their names and its own."""
        return {}


@dataclass
class StepConfig(RuleConfig):
    """Fields of a rule with a server step of its own.

    eta          server step > 0; null means c * sqrt(n / T)
    c            the factor in that formula, > 0
    total_steps  T in that formula, server iterations >= 1; null: the budget's, or its uploads / uploads per iteration
    """

    eta: float | None = None
    c: float = 1.0
    total_steps: int | None = None

    def __post_init__(self) -> None:
        check(self.eta is None or self.eta > 0, "eta", self.eta, "a number > 0, or null for c * sqrt(n / T)")
        check(self.c > 0, "c", self.c, "a number > 0")
        ok = self.total_steps is None or self.total_steps >= 1
        check(ok, "total_steps", self.total_steps, "a whole number >= 1, or null for the budget's server iterations")


class ServerRule:
    """Turns uploads into changes of the global model. Knows neither clock, data, model layers nor tracker.

    accepts          kinds of upload it can use, its own kind first
    first_round      asks for one upload of every client at w0 before anything else
    clients_keep     a vector of d floats each client keeps from one upload to the next: `previous`, its last upload, of
                     which it sends the change; `sum`, the sum of its uploads, around which it is regularised; or None
    needs_base       uploads come with the model their work started from (``Upload.base_d``)
    moves_each_tick  takes its step in ``tick`` (tick clock only) instead of in ``receive``
    moves_each_round takes its step in ``round``: nobody is handed work before all who were have reported
    linear           each step adds a weighted sum of uploads, with weights that do not depend on what is in them:
                     what diagnostics=mse can take apart
    averaged         names in ``stats`` whose mean over server iterations says more than the last value
    arrival_facts    attributes (numbers) about the last arrival that a trace shows as columns of their own
    state_names      attributes that make up its state: tensors, numbers, lists
    decision_columns names of columns of numbers, a table of its own: see ``decisions``
    storage, draws   where to keep a vector per client, and random draws of its own, ``draws(client, count)``; set by
                     ``equip`` before ``start``. Counts of draws are part of its state
    """

    Config = RuleConfig
    accepts: tuple[str, ...] = ("difference", "gradient")
    first_round = False
    clients_keep: str | None = None
    needs_base = False
    moves_each_tick = False
    moves_each_round = False
    linear = False
    averaged: tuple[str, ...] = ()
    arrival_facts: tuple[str, ...] = ()
    state_names: tuple[str, ...] = ()
    decision_columns: tuple[str, ...] = ()
    storage = Storage()
    draws: Stream

    def __init__(self, config: RuleConfig):
        if isinstance(config, StepConfig) and config.eta is None:
            raise ConfigError("eta", None, "must be resolved to a number before the rule is built")
        self.config = config
        self.moves_each_tick = getattr(config, "step_on", None) == "tick"

    def start(self, model_d: torch.Tensor, clients: ClientTable, upload_kind: str) -> None:
        """Takes the (d,) global model, which it changes in place from now on, and makes its state."""
        if upload_kind not in self.accepts:
            raise ConfigError("client.upload", upload_kind, f"must be one of {', '.join(self.accepts)}")
        self.model_d = model_d
        self.n = clients.n
        eta = self.config.eta if isinstance(self.config, StepConfig) else 1.0
        assert eta is not None
        # a rule adds step_size * u; a gradient points uphill, a difference downhill
        self.step_size = eta if upload_kind == "difference" else -eta

    def receive(self, upload: Upload) -> bool:
        """Uses one upload; exactly True when the global model changed (one server iteration), else exactly False."""
        raise TypeError(f"{type(self).__name__} is a base class")

    def tick(self) -> bool:
        """Called once per tick under the tick clock; True when the global model changed."""
        return False

    def round(self) -> bool:
        """Called when everybody who was handed work has reported or is lost, under ``schedule.dispatch=per_round``;
        True when the global model changed. A rule steps here or in ``tick``, not in both."""
        return False

    def work_for(self, client: int) -> int | None:
        """Called at each dispatch: K of this client's work, in the client's unit (local steps or passes over its data);
        None means the configured K."""
        return None

    def stats(self) -> dict[str, float]:
        """Cheap numbers about the last server iteration, by metric name."""
        return {}

    def decisions(self) -> list[tuple]:
        """What the rule decided in the last server iteration: rows of numbers in the order of ``decision_columns``.

        Asked once after each server iteration and written, behind its number, to rule.parquet (trace=true).
        """
        return []

    def vectors(self, n: int) -> int:
        """Vectors of d floats the rule keeps on the device: what it costs in memory.

        Not counted are the model and what a setting ``cache`` (caches.CacheConfig) asks for.
        """
        return 0

    def parts(self) -> dict:
        """Shared parts with a state of their own, by name."""
        return {}

    def state_dict(self) -> dict:
        state = {name: getattr(self, name) for name in self.state_names}
        return state | {name: part.state_dict() for name, part in self.parts().items()}

    def load_state_dict(self, state: dict) -> None:
        for name in self.state_names:
            mine, saved = getattr(self, name), state[name]
            if hasattr(mine, "copy_"):
                mine.copy_(saved)
            else:
                setattr(self, name, saved)
        for name, part in self.parts().items():
            part.load_state_dict(state[name])


def equip(rule: ServerRule, storage: Storage, streams: Streams) -> ServerRule:
    """Gives a rule what a run offers: every rule that is started was here, those of diagnostics and dry runs too."""
    rule.storage, rule.draws = storage, streams.rule
    return rule


class RunningSum:
    """(d,) sum that vectors enter and leave, kept in double precision.

    Thousands of cached vectors come and go without the sum ever being formed anew: whatever single-precision vector
    leaves takes exactly with it what it brought, and what rounding remains is some 1e-16 of the largest value seen.
    Memory: 5 d floats (the sum and a workspace are doubles).
    """

    def __init__(self, like_d: torch.Tensor):
        self.sum_d = like_d.new_zeros(like_d.shape).double()
        self._wide_d = self.sum_d.clone()  # widening first is several times faster than adding mixed types
        self._narrow_d = like_d.new_empty(like_d.shape)

    def add(self, vector_d: torch.Tensor) -> None:
        self.sum_d.add_(self._wide_d.copy_(vector_d))

    def subtract(self, vector_d: torch.Tensor) -> None:
        self.sum_d.sub_(self._wide_d.copy_(vector_d))

    def add_to(self, target_d: torch.Tensor, scale: float) -> None:
        """target <- target + scale * sum"""
        target_d.add_(self._narrow_d.copy_(self.sum_d), alpha=scale)

    def zero(self) -> None:
        self.sum_d.zero_()

    def state_dict(self) -> dict:
        return {"sum_d": self.sum_d}

    def load_state_dict(self, state: dict) -> None:
        self.sum_d.copy_(state["sum_d"])
