"""Base classes of server rules and of their settings.

Legend: n clients, d model parameters, t server iterations, tau staleness, eta server step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from ..errors import ConfigError, check
from ..ranges import CheckedSettings, Configured, at_least, greater_than, one_of, within
from ..stateful import RunAttributes, Stateful
from ..storage import Storage
from ..types import USUAL_ITERATIONS
from .needs import Needs

if TYPE_CHECKING:
    import torch

    from ..randomness import Stream, Streams
    from ..types import ClientTable, Facts, ServerPart, ServerTask, Upload

StepOn = Annotated[str, one_of("auto", "arrival", "tick")]


@dataclass
class RuleConfig(CheckedSettings):
    """Base class of all rule settings. The defaults describe a rule whose needs do not depend on them."""

    def adapt(self, needs: Needs) -> Needs:
        """Return the needs of the rule's class, changed by these settings. Also called before ``resolve``."""
        return needs


def idle_proximal(name: str, facts: Facts) -> dict[str, str]:
    """Return for ``idle`` that the proximal weight ``name`` has no effect in a single local step."""
    why = "in a single local step; client.local_steps or client.local_epochs has more"
    return {name: why} if facts.one_step else {}


@dataclass
class TickConfig(RuleConfig):
    """Fields of a rule that can step once per tick instead of at every arrival.

    step_on  arrival | tick | auto: tick under the tick clock, else arrival
    """

    step_on: StepOn = "auto"

    def resolve_clock(self, clock: str) -> None:
        """Replace `auto` by the value for the clock, `ticks` or `time`. Called before all ``resolve``.

        Raises ConfigError for `tick` without ticks.
        """
        if self.step_on == "auto":
            self.step_on = "tick" if clock == "ticks" else "arrival"
        ok = self.step_on == "arrival" or clock == "ticks"
        check(ok, "step_on", self.step_on, f"arrival or auto: there are no ticks under clock={clock}")

    def adapt(self, needs: Needs) -> Needs:
        needs = super().adapt(needs)
        return replace(needs, steps_on="tick") if self.step_on == "tick" else needs


@dataclass
class RestartConfig(RuleConfig):
    """Fields of a rule that may cancel stale work instead of dropping stale uploads.

    restart_at  R, server iterations; work from a model of age R or more restarts at once on the current one, with a
                newly drawn duration; null: late uploads are dropped. Work that availability loses never restarts,
                because its client is busy until the time that its dispatch fixed
    """

    restart_at: Annotated[int | None, at_least(1, null="to have all work end")] = None

    def adapt(self, needs: Needs) -> Needs:
        return replace(super().adapt(needs), restart_at=self.restart_at)

    def resolve(self, facts: Facts) -> None:
        super().resolve(facts)
        allowed = "null with schedule=uniform_queue: work that waits behind cancelled work would have to move up"
        check(self.restart_at is None or not facts.queues, "restart_at", self.restart_at, allowed)


@dataclass
class StepConfig(RuleConfig):
    """Fields of a rule with its own server step.

    eta          server step
    c            the factor in that formula; the ACE paper searches 10, 5, 2, 1, 0.5, 0.2, 0.1 and prints 0.2 for its
                 rules, other values are ours
    total_steps  T in that formula; null: the server iterations that the budget allows, or 500 if they are unknown
                 before the run (docs/explanation/time.md)
    """

    eta: Annotated[float | None, greater_than(0, null="for c * sqrt(n / T)")] = None
    c: Annotated[float, greater_than(0)] = 1.0
    total_steps: Annotated[int | None, at_least(1, null="for the budget's server iterations")] = None
    _by_formula = False

    def resolve(self, facts: Facts) -> None:
        super().resolve(facts)
        total, self.total_steps = self.total_steps or facts.iterations, None  # runs of one eta are the same run
        if self.eta is None:
            self.eta = self.c * (facts.n_clients / (USUAL_ITERATIONS if total is None else max(1, total))) ** 0.5
            self._by_formula = True

    def idle(self, facts: Facts) -> dict[str, str]:
        if self._by_formula:
            return super().idle(facts)
        why = f"with algorithm.eta={self.eta:g}; algorithm.eta=null takes c * sqrt(n / T)"
        return super().idle(facts) | {"c": why, "total_steps": why}


def check_it_fills(name: str, size: int, facts: Facts) -> None:
    """Raise ConfigError for a buffer that cannot fill before the model first changes."""
    fills = facts.dispatch != "after_update" or size <= facts.concurrency
    allowed = f"at most {facts.concurrency}, the clients in flight, with schedule.dispatch=after_update"
    check(fills, name, size, f"{allowed}: it would never fill")


@dataclass
class BufferConfig(StepConfig):
    """Fields of a rule that steps once per full buffer.

    buffer_size  M, uploads per server iteration
    """

    eta: float | None = 1.0
    buffer_size: Annotated[int, at_least(1)] = 10

    def resolve(self, facts: Facts) -> None:
        super().resolve(facts)
        check_it_fills("buffer_size", self.buffer_size, facts)
        check(facts.iterations != 0, "buffer_size", self.buffer_size, "less: the budget ends before it is full once")

    def adapt(self, needs: Needs) -> Needs:
        return replace(super().adapt(needs), uploads=self.buffer_size)


@dataclass
class MomentConfig(BufferConfig):
    """Fields of a rule with an adaptive server step on each full buffer.

    beta1  b1, of the first moment
    beta2  b2, of the second moment
    eps    added to the divisor, so that it is above 0
    """

    eta: float | None = 0.001
    beta1: Annotated[float, within("[0, 1)")] = 0.9
    beta2: Annotated[float, within("[0, 1)")] = 0.99
    eps: Annotated[float, greater_than(0)] = 1e-8


class ServerRule(Configured, RunAttributes, Stateful, ABC):
    """Changes the global model with uploads. Does not depend on clock, data, layers of the model or tracker.

    label            name in reports; empty: the name of its yaml
    needs            its needs of a run; those of an instance depend on its settings
    upload_kinds     kinds of upload that it accepts, the preferred kind first
    averaged         names in ``stats`` that are logged as means over server iterations, not as last values
    arrival_facts    attributes (numbers) about the last arrival, which are columns of the trace
    storage, draws   storage for vectors of clients, and random draws, ``draws(client, count)``; set by ``equip`` before
                     ``start``. Counts of draws are part of the state
    variate_d        (d,) the server's control variate, sent with the model (``Needs.keeps``); set by ``start``
    server           computes on the server's samples; None without samples. Set by ``equip``
    server_samples   samples of the server or of messages that the last call computed: 1 for a forward and backward
                     pass, 1/3 for a forward pass
    kept_vectors     vectors of d floats that the rule keeps on the device, without the model and the cache of a setting
                     ``cache`` (storage.CacheConfig). A rule whose number is not constant overrides ``vectors``

    The example in a rule's docstring prints the model after each (client, upload), from w = 0 (common/trial.py).
    """

    config: RuleConfig
    label = ""
    needs = Needs()
    upload_kinds: tuple[str, ...] = ("difference", "gradient")
    averaged: tuple[str, ...] = ()
    arrival_facts: tuple[str, ...] = ()
    storage = Storage()
    draws: Stream
    variate_d: torch.Tensor
    server: ServerTask | None = None
    server_samples = 0.0
    kept_vectors = 0
    _set_by_run: tuple[str, ...] = ("model_d", "n", "step_size", "state_device", "storage", "draws", "server")
    _settable = ("step_size",)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.label = vars(cls).get("label", "")  # a subclass of a rule is another rule
        if cls.work_for is not ServerRule.work_for:
            cls.needs = replace(cls.needs, chooses_k=True)

    def __init__(self, config: RuleConfig | None = None, **settings):
        """Take resolved settings, as an object or by name: ``FedBuff(eta=1.0, buffer_size=2)``."""
        self.config = config = self.Config(**settings) if config is None else config
        if isinstance(config, StepConfig) and config.eta is None:
            raise ConfigError("eta", None, "must be resolved to a number before the rule is built")
        self.needs = config.adapt(self.needs)

    def start(self, model_d: torch.Tensor, clients: ClientTable, upload_kind: str) -> None:
        """Receive the (d,) global model, which the rule changes in place from now on, and create the state."""
        if upload_kind not in self.upload_kinds:
            raise ConfigError("client.upload", upload_kind, f"must be one of {', '.join(self.upload_kinds)}")
        self.model_d, self.state_device = model_d, model_d.device
        self.n = clients.n
        eta = self.config.eta if isinstance(self.config, StepConfig) else 1.0
        assert eta is not None
        # a rule adds step_size * u; a gradient points uphill, a difference downhill
        self.step_size = eta if upload_kind == "difference" else -eta

    @abstractmethod
    def receive(self, upload: Upload) -> bool:
        """Use an upload. Return exactly True if the global model changed (a server iteration), else exactly False."""

    def tick(self) -> bool:
        """Take the step of a tick, with the tick clock. Return True if the global model changed."""
        return False

    def round(self) -> bool:
        """Take the step of a round, with ``schedule.dispatch=per_round``. Return True if the global model changed.

        Called after all work in flight has arrived or is lost. A rule steps here or in ``tick``, not in both.
        """
        return False

    def dispatched(self, client: int) -> None:
        """Note a dispatch to the client. Called before ``work_for``."""

    def work_for(self, client: int) -> int | None:
        """Return K of the client's next work, in local steps or passes over its data; None: the configured K.

        Only rules that choose K override it. It changes no state.
        """
        return None

    def resumes_from(self, client: int) -> tuple[int, torch.Tensor] | None:
        """Return (version, (d,) model) of the client's last work if it continues from that, so that no model is sent.

        None: it receives the current model. Called at each dispatch.
        """
        return None

    def stats(self) -> dict[str, Any]:
        """Return numbers about the last server iteration by metric name; on a GPU 0-d tensors, read when a point is
        logged."""
        return {}

    def vectors(self, n: int) -> int:
        """Return the vectors of d floats that the rule keeps on the device with n clients."""
        return self.kept_vectors


class BufferRule(ServerRule):
    """A rule that steps once per full buffer. count: uploads in it."""

    config: BufferConfig
    state_names: tuple[str, ...] = ("count",)

    def start(self, model_d: torch.Tensor, clients: ClientTable, upload_kind: str) -> None:
        super().start(model_d, clients, upload_kind)
        self.count = 0

    def receive(self, upload: Upload) -> bool:
        self.add(upload)
        self.count += 1
        if self.count < self.config.buffer_size:
            return False
        self.step()
        self.count = 0
        return True

    @abstractmethod
    def add(self, upload: Upload) -> None:
        """Put an upload into the buffer."""

    @abstractmethod
    def step(self) -> None:
        """Change the model by a full buffer, and empty it."""


class FirstRoundRule(ServerRule):
    """A rule with a first round of all clients, then a step per arrival or tick. unheard: clients without upload"""

    upload_kinds = ("gradient", "difference")
    needs = Needs(first_round=True, linear=True)
    state_names: tuple[str, ...] = ("unheard",)
    kept_vectors = 5

    def start(self, model_d: torch.Tensor, clients: ClientTable, upload_kind: str) -> None:
        super().start(model_d, clients, upload_kind)
        self.unheard = self.n

    def receive(self, upload: Upload) -> bool:
        self.add(upload)
        self.unheard = max(0, self.unheard - 1)
        return not self.unheard and self.needs.steps_on != "tick" and self.step()

    def tick(self) -> bool:
        return not self.unheard and self.needs.steps_on == "tick" and self.step()

    @abstractmethod
    def add(self, upload: Upload) -> None:
        """Use an upload, without a step."""

    @abstractmethod
    def step(self) -> bool:
        """Change the model. Return True if it changed."""


def equip(
    rule: ServerRule,
    storage: Storage,
    streams: Streams,
    server: ServerTask | None = None,
    part: ServerPart | None = None,
) -> ServerRule:
    """Set the attributes of a rule that a run provides. Called before each ``start``."""
    rule.storage, rule.draws, rule.server = storage, streams.rule, server
    if part is not None:
        rule.part = part  # type: ignore[attr-defined]  # of a SplitRule
    return rule
