"""What every server rule is, and the small parts several of them share.

Legend: n clients, d model parameters, t server iterations, tau staleness, eta server step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ..errors import ConfigError, Stopped, check
from ..ranges import Checked, above, at_least, one_of
from ..storage import Storage
from ..types import USUAL_ITERATIONS

if TYPE_CHECKING:
    import torch

    from ..randomness import Stream, Streams
    from ..types import ClientTable, Facts, Message, Reply, ServerPart, ServerTask, Upload
    from .caches import CacheConfig

StepOn = Annotated[str, one_of("auto", "arrival", "tick")]


@dataclass
class RuleConfig(Checked):
    """Settings of a rule; the base of all, with an answer to everything the rest of the package asks."""

    def on_clock(self, clock: str) -> None:
        """Puts what suits the clock, ticks or time, in the place of an `auto` on which ``steps_on_ticks`` depends;
        before all ``resolve``. ConfigError for what does not suit it."""

    def resolve(self, facts: Facts) -> None:
        """Puts values in the place of `auto` and null. Raises ConfigError for what does not fit the facts."""

    def take_distillation_steps(self) -> int | None:
        """Mini-batches of distillation that its own settings name; they name none then. None: distillation.steps is."""
        return None

    @property
    def proximal(self) -> tuple[str, float] | None:
        """(name, value) of the setting that is the clients' proximal weight; None: client.proximal is."""
        return None

    @property
    def first_k(self) -> tuple[str, int] | None:
        """(name, value) of the setting that is the clients' first K; None: client.local_steps or local_epochs is."""
        return None

    @property
    def caching(self) -> CacheConfig | None:
        """How the last vector of every client is kept; None: it is not, or nobody can choose how."""
        return None

    def uploads_per_iteration(self, n: int) -> int:
        """Uploads that one server iteration takes with n clients of equal speed, when none is lost. Of rules that work
        in rounds it is not asked."""
        return 1

    @property
    def steps_on_ticks(self) -> bool:
        """The server steps once per tick (tick clock only) instead of at arrivals."""
        return False

    def describe_cut_cost(self, width: int, classes: int) -> str | None:
        """What a server step costs with ``width`` activations a sample, where that decides how long a run takes, else
        None. ConfigError for a width with which the run would make no progress."""
        return None

    def linear_if(self) -> dict[str, tuple[object, object]]:
        """Settings without which a ``ServerRule.linear`` rule is not: by name the value and the one it must have."""
        return {}

    def for_dry_run(self) -> RuleConfig:
        """The same settings for a model of one parameter whose cache is of no interest."""
        return self

    def idle_proximal(self, facts: Facts) -> dict[str, str]:
        """The setting that is the clients' proximal weight, where they are never away from the model they received."""
        why = "in a single local step; client.local_steps or client.local_epochs has more"
        return {self.proximal[0]: why} if self.proximal and facts.one_step else {}


@dataclass
class RestartConfig(RuleConfig):
    """Fields of a rule that may stop work instead of leaving out what is too stale when it arrives.

    restart_at  R, server iterations; work whose model is R or more old is cancelled and restarted at once on the
                current one, in a newly drawn time; null: all work ends. Work whose upload availability will lose is
                never cancelled: its client is busy until the time fixed at its dispatch
    """

    restart_at: Annotated[int | None, at_least(1, null="to have all work end")] = None

    def resolve(self, facts: Facts) -> None:
        super().resolve(facts)
        allowed = "null with schedule=uniform_queue: work that waits behind what is stopped would have to move up"
        check(self.restart_at is None or not facts.queues, "restart_at", self.restart_at, allowed)


@dataclass
class StepConfig(RuleConfig):
    """Fields of a rule with a server step of its own.

    eta          server step; null means c * sqrt(n / T)
    c            the factor in that formula
    total_steps  T in that formula; null: the server iterations that the budget is enough for, or USUAL_ITERATIONS where
                 that is not known before the run
    """

    eta: Annotated[float | None, above(0, null="for c * sqrt(n / T)")] = None
    c: Annotated[float, above(0)] = 1.0
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
    """ConfigError for a buffer of more uploads than there can be before the model first changes."""
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

    def uploads_per_iteration(self, n: int) -> int:
        return self.buffer_size


def resolved_step_on(step_on: str, clock: str) -> str:
    """`arrival` or `tick` for ``step_on``. ConfigError for ticks where there are none."""
    if step_on == "auto":
        return "tick" if clock == "ticks" else "arrival"
    ok = step_on == "arrival" or clock == "ticks"
    check(ok, "step_on", step_on, f"arrival or auto: there are no ticks under clock={clock}")
    return step_on


class ServerRule:
    """Turns uploads into changes of the global model. Knows neither clock, data, model layers nor tracker.

    label            what reports call it; empty: as it was chosen, by the name of its yaml
    accepts          kinds of upload it can use, its own kind first
    first_round      asks for one upload of every client at w0 before anything else
    clients_keep     a vector of d floats each client keeps from one upload to the next: `previous`, its last upload, of
                     which it sends the change; `sum`, the sum of its uploads, around which it is regularised;
                     `variate`, an estimate of its gradient, by which with ``variate_d`` its local steps are corrected
                     and whose change comes along with its upload (``Upload.along_d``); or None
    variate_d        (d,) with clients_keep=variate the server's own, sent to clients along with the model
    needs_base       uploads come with the model their work started from (``Upload.base_d``)
    cuts             clients hold the first layers of the model alone. A task is K + 1 stages, uploads are of the
                     parameters of these layers; see ``hear``
    answers_together with ``cuts``: answers nobody before all under way have sent a message
    shows_rows       with ``cuts``: keeps what its last server step learned from, ``rows_of_step``: (B, numbers) of
                     activations and (B,) labels, not written to again; for diagnostics=dissimilarity
    needs_outputs    uploads come with what the local model says about the server's own samples (``Upload.outputs_uc``)
    waits_for        whose uploads it may wait for without end: of `all` clients, of those `given` work, or None
    one_at_a_time    keeps facts about the work that a client is under way with: no schedule may give it two pieces
    steps_on_ticks   takes its step in ``tick`` (tick clock only) instead of in ``receive``
    restart_at       server iterations; work in flight whose model is so many old or more is cancelled, and its client
                     begins anew on the current model: no upload is as stale as that. Work is not cancelled if its
                     upload will be lost. None: no work is cancelled
    steps_on_rounds  takes its step in ``round``: nothing is dispatched before all in flight have reported or are lost
    linear           each step adds a weighted sum of uploads, with weights that do not depend on what is in them, if
                     its settings are those of ``RuleConfig.linear_if``: what diagnostics=mse can take apart
    sets_k           decides the clients' K in ``work_for``, so that it may grow
    averaged         names in ``stats`` whose mean over server iterations says more than the last value
    arrival_facts    attributes (numbers) about the last arrival that a trace shows as columns of their own
    state_names      attributes that make up its state: tensors, numbers, lists
    bytes_before     that all clients together send the server before anything else; set by the end of ``start``
    decision_columns names of columns of numbers, a table of its own: see ``decisions``
    storage, draws   where to keep a vector per client, and random draws of its own, ``draws(client, count)``; set by
                     ``equip`` before ``start``. Counts of draws are part of its state
    server           what the server computes by itself, on samples of its own; None where it has none. Set by ``equip``
    part             with ``cuts`` the layers that the server holds; set by ``equip``
    stop             not empty as soon as the run is to stop; set by whoever builds the run
    server_samples   samples, its own or of messages, that the last call took through the network and back; a forward
                     pass is a third
    """

    Config = RuleConfig
    label = ""
    accepts: tuple[str, ...] = ("difference", "gradient")
    first_round = False
    clients_keep: str | None = None
    needs_base = False
    needs_outputs = False
    cuts = False
    answers_together = False
    shows_rows = False
    rows_of_step: tuple[torch.Tensor, torch.Tensor] | None = None
    one_at_a_time = False
    waits_for: str | None = None
    steps_on_ticks = False
    restart_at: int | None = None
    steps_on_rounds = False
    linear = False
    sets_k = False
    averaged: tuple[str, ...] = ()
    arrival_facts: tuple[str, ...] = ()
    state_names: tuple[str, ...] = ()
    bytes_before = 0
    decision_columns: tuple[str, ...] = ()
    storage = Storage()
    draws: Stream
    variate_d: torch.Tensor
    server: ServerTask | None = None
    part: ServerPart
    server_samples = 0.0
    stop: Sequence[int] = ()

    def __init__(self, config: RuleConfig | None = None, **settings):
        """Takes resolved settings, as an object or by name: ``FedBuff(eta=1.0, buffer_size=2)``."""
        self.config = config = self.Config(**settings) if config is None else config
        if isinstance(config, StepConfig) and config.eta is None:
            raise ConfigError("eta", None, "must be resolved to a number before the rule is built")
        self.steps_on_ticks = config.steps_on_ticks
        if isinstance(config, RestartConfig):
            self.restart_at = config.restart_at

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

    @property
    def sends_two(self) -> bool:
        """Whether every model and every upload is two vectors of d floats."""
        return self.clients_keep == "variate"

    def raise_if_stopped(self) -> None:
        """Raises ``Stopped`` as soon as the run is to stop."""
        if self.stop:
            raise Stopped

    def hear(self, message: Message) -> bool:
        """With ``cuts``: uses one message; exactly True when the server's part of the model changed (a server step, no
        server iteration), else exactly False. May raise ``Stopped``, see ``raise_if_stopped``: it then gets the same
        message again, in this process or in the one that resumes, and must give the result of an undisturbed call."""
        raise TypeError(f"{type(self).__name__} is a base class")

    def replies(self) -> list[tuple[int, Reply]]:
        """Asked after every message: (client, answer) of those who now go on with their tasks. Who is not named waits
        for an answer that comes with another one's message."""
        raise TypeError(f"{type(self).__name__} is a base class")

    def receive(self, upload: Upload) -> bool:
        """Uses one upload; exactly True when the global model changed (one server iteration), else exactly False."""
        raise TypeError(f"{type(self).__name__} is a base class")

    def tick(self) -> bool:
        """Called once per tick under the tick clock; True when the global model changed."""
        return False

    def round(self) -> bool:
        """Called when everybody in flight has reported or is lost, under ``schedule.dispatch=per_round``; True when the
        global model changed. A rule steps here or in ``tick``, not in both."""
        return False

    def work_for(self, client: int) -> int | None:
        """Called at each dispatch: K of this client's work, in the client's unit (local steps or passes over its data);
        None means the configured K."""
        return None

    def continues(self, client: int) -> tuple[int, torch.Tensor] | None:
        """Called at each dispatch: (its version, (d,) the model) of what this client's last work started from, where it
        is to go on with that, so that nothing is sent to it; None: it gets the current model."""
        return None

    def stats(self) -> dict[str, float]:
        """Cheap numbers about the last server iteration, by metric name."""
        return {}

    def arrival_values(self) -> tuple[float, ...]:
        """The ``arrival_facts`` of the last arrival."""
        return tuple(getattr(self, name) for name in self.arrival_facts)

    def decisions(self) -> list[tuple]:
        """What the rule decided in the last server iteration: rows of numbers in the order of ``decision_columns``.

        Asked once after each server iteration and written, behind its number, to rule.parquet (trace=true). Of a rule
        with the columns ``client`` and ``kept`` (0 or 1) clients.parquet counts whose uploads were kept.
        """
        return []

    def vectors(self, n: int) -> int:
        """Vectors of d floats the rule keeps on the device: what it costs in memory.

        Not counted are the model and what a setting ``cache`` (caches.CacheConfig) asks for.
        """
        return 0

    def numbers(self, n: int) -> int:
        """Single-precision numbers it keeps besides, in whatever shape."""
        return 0

    def split_numbers(self, d_server: int, under_way: int, message: int) -> int:
        """With ``cuts`` the same, for a server's part of ``d_server`` parameters, so many clients under way, and
        activations of ``message`` numbers in a mini-batch."""
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


def equip(
    rule: ServerRule,
    storage: Storage,
    streams: Streams,
    server: ServerTask | None = None,
    part: ServerPart | None = None,
) -> ServerRule:
    """Gives a rule what a run offers: every rule that is started was here, those of diagnostics and dry runs too."""
    rule.storage, rule.draws, rule.server = storage, streams.rule, server
    if part is not None:
        rule.part = part
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
