"""The few things that pass between the simulator, the clients and the server rules.

Legend: n clients, d model parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch

    Augmentation = tuple[np.ndarray, np.ndarray, np.ndarray]  # dy, dx, flip of a mini-batch's images: Task.batch

USUAL_ITERATIONS = 500  # of a run without any limit: the length that the ACE paper's factors c are for
NUMBER_BYTES = 4  # of a number that is sent
LEAST_SHARE = 1e-12  # of a class that a client does not hold: the logarithm of its share is finite


@dataclass(slots=True)
class Work:
    """One piece of work, fixed at its dispatch.

    client       who computes it, 0 .. n-1
    sequence     number of this dispatch in the run, from 0; orders events of equal time
    count        number of this dispatch among the client's own, from 0; keys the client's random draws
    iteration    server iterations done when it was dispatched: the version of the model it starts from
    local_steps  mini-batch steps to do (>= 1)
    due          virtual time of its arrival, or of the client's return when its upload is lost
    k            K, the amount of work in the client's unit: local steps or passes over its data
    samples      training samples it goes through, each as often as it is used
    cycle        number among the client's own that take virtual time (a first round takes none), from 0; keys the
                 draws of delays and availability
    start        virtual time of its dispatch
    lost         its upload never reaches the server
    stages       number of stages: 1, or K + 1 if clients hold a part of the model (Needs.cuts). The last stage ends
                 with the upload. Each other one ends with a message, and the reply begins the next one.
    stage        number of this stage, 0 .. stages - 1. ``sequence`` and ``due`` are of the stage, the rest of the work
    """

    client: int
    sequence: int
    count: int
    iteration: int
    local_steps: int
    due: float = 0.0
    k: int = 1
    samples: int = 0
    cycle: int = 0
    start: float = 0.0
    lost: bool = False
    stages: int = 1
    stage: int = 0

    @property
    def takes_slot(self) -> bool:
        """Whether the work uses one of the ``concurrency`` slots; work of a first round does not."""
        return self.cycle >= 0

    @property
    def is_last_stage(self) -> bool:
        """Whether the work ends with this stage, by an upload."""
        return self.stage + 1 == self.stages


@dataclass(slots=True)
class Delivery:
    """What an executor computed for one piece of work; vectors are lent until its next delivery or dispatch.

    vector_d    (d,) the upload: a gradient or a difference; None at the end of a stage that is not the last
    loss        mean training loss over the work's mini-batches, 0-d tensor
    base_d      (d,) the model the work started from, where the executor keeps it (Needs.base)
    outputs_uc  (u, C) logits of the local model on the server's own samples, where the rule asks for them
    second_d     (d,) the second vector of an upload, where the rule asks for one
    activations (B, *cut) of a mini-batch, and its labels (B,) on the CPU, at the end of a stage that is not the last
    """

    vector_d: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    base_d: torch.Tensor | None = None
    outputs_uc: torch.Tensor | None = None
    second_d: torch.Tensor | None = None
    activations: torch.Tensor | None = None
    labels: torch.Tensor | None = None


@dataclass(slots=True)
class Upload:
    """What reaches the server. Where clients hold a part of the model, vectors are of its parameters alone.

    vector_d        (d,) float tensor: a gradient, or local model minus received model; of doubles where clients send
                    changes (Needs.keeps). It is lent: a rule copies what it wants to keep.
    base_iteration  version of the model the work started from
    staleness       server iterations between dispatch and arrival, >= 0
    samples         training samples the client holds
    local_steps     mini-batch steps that were done
    loss            mean training loss over its mini-batches, 0-d tensor
    k               K, the amount of work in the client's unit: local steps or passes over its data
    delay           virtual time between dispatch and arrival
    base_d          (d,) the model the work started from, for rules that ask for it (Needs.base); lent
    outputs_uc      (u, C) logits of the local model on the server's own u samples, for rules that ask for them; lent
    second_d         (d,) a second vector, for rules that ask for one; lent
    """

    client: int
    vector_d: torch.Tensor
    base_iteration: int
    staleness: int
    samples: int
    local_steps: int
    loss: torch.Tensor | None = None
    k: int = 1
    delay: float = 0.0
    base_d: torch.Tensor | None = None
    outputs_uc: torch.Tensor | None = None
    second_d: torch.Tensor | None = None


@dataclass(slots=True)
class Message:
    """A message to the server at the end of a stage that is not the last: the outputs of the client's part of the model
    for one mini-batch. The client waits for a ``Reply``.

    stage           number of the stage, 0 .. k - 1
    k               K, mini-batches of the work
    base_iteration  version of the model that the work started from
    staleness       server iterations since, >= 0
    samples         training samples the client holds
    activations     (B, *cut) without a graph; lent: a rule copies what it keeps after its reply
    labels          (B,) int64 on the CPU, where the server reads them without waiting for a GPU; lent
    delay           virtual time since the dispatch
    """

    client: int
    stage: int
    k: int
    base_iteration: int
    staleness: int
    samples: int
    activations: torch.Tensor
    labels: torch.Tensor
    delay: float = 0.0

    @property
    def bytes(self) -> int:
        """Sent with it; a label is a number like the others."""
        return self.activations.element_size() * (self.activations.numel() + self.labels.numel())


@dataclass(slots=True)
class Reply:
    """The server's reply to a message.

    gradient  (B, *cut) of the client's loss with respect to its activations; not lent
    loss      that loss, a 0-d tensor
    """

    gradient: torch.Tensor
    loss: torch.Tensor

    @property
    def bytes(self) -> int:
        """Sent with it."""
        return self.gradient.element_size() * self.gradient.numel()


class ServerTask(Protocol):
    """What a server can compute by itself, on its u unlabelled samples; reaches a rule as ``rule.server``.

    samples  u;  classes  C
    """

    samples: int
    classes: int

    def gradient(
        self, w_d: torch.Tensor, rows_b: torch.Tensor, target_bc: torch.Tensor, out_d: torch.Tensor
    ) -> torch.Tensor:
        """Write the gradient at ``w_d`` of the mean over samples ``rows_b`` of the cross-entropy with ``target_bc``,
        whose rows need not sum to 1. Returns that cross-entropy in nats, a 0-d tensor."""
        ...


class ServerPart(Protocol):
    """The layers behind those that the clients hold, as functions of a flat vector of their parameters; reaches a rule
    that cuts the model as ``rule.part``.

    d_client    parameters of the clients' part, the first of the model's; the server's are the others
    classes     C
    activation  shape of what the clients' part makes of one sample; a (B, *activation) may also come as (B, numbers)
    """

    d_client: int
    classes: int
    activation: tuple[int, ...]

    def gradient(self, s_d: torch.Tensor, a: torch.Tensor, y: torch.Tensor, out_d: torch.Tensor) -> torch.Tensor:
        """Write the gradient at ``s_d`` of the mean cross-entropy of (a, y) into ``out_d``; return that loss.
        y (B,) may be on the CPU, here and in ``reply``."""
        ...

    def reply(
        self,
        s_d: torch.Tensor,
        a: torch.Tensor,
        y: torch.Tensor,
        bias_c: torch.Tensor | None = None,
        out_d: torch.Tensor | None = None,
    ) -> Reply:
        """Return the gradient of the mean cross-entropy of logits + ``bias_c`` with respect to ``a``, of its shape, and
        the loss. With ``out_d`` the same pass also writes the gradient at ``s_d`` there."""
        ...


class Recorder:
    """Optional base of a server rule that keeps more about its steps than ``ServerRule.stats``.

    decision_columns  names of the columns of ``decisions``; empty: the rule has no table
    bytes_before      bytes that all clients together send before anything else; set by the end of ``start``
    records_rows      of a split rule: it keeps the inputs of the server's last step
    rows_of_step      these inputs, (B, numbers) of activations and (B,) labels, not written to again; None before
    """

    decision_columns: tuple[str, ...] = ()
    bytes_before = 0
    records_rows = False
    rows_of_step: tuple[torch.Tensor, torch.Tensor] | None = None

    def decisions(self) -> list[tuple]:
        """Return decisions of the last server iteration: rows of numbers in the order of ``decision_columns``.

        Called once after each server iteration; rule.parquet (trace=true) has the rows with the iteration's number.
        clients.parquet counts kept uploads if there are columns ``client`` and ``kept`` (0 or 1).
        """
        return []


@dataclass(frozen=True)
class Footprint:
    """What a model costs: the computing of one sample, and numbers that are sent, each in single precision.

    parameters, client_parameters  d, and of these how many are in the layers that clients hold: all, or the first ones
    macs, client_macs              multiply-adds of one sample, once through all layers, and through the clients'
    activation                     numbers that the clients' layers make of one sample; 0 where they hold all layers
    at_cut                         the same with the first 1, 2, ... layers at the clients, of a model that is cut
    """

    parameters: int = 0
    client_parameters: int = 0
    macs: int = 0
    client_macs: int = 0
    activation: int = 0
    at_cut: tuple[Footprint, ...] = field(default=(), compare=False, repr=False)

    @property
    def model_bytes(self) -> int:
        return NUMBER_BYTES * self.parameters

    @property
    def client_bytes(self) -> int:
        """Of the part that clients hold."""
        return NUMBER_BYTES * self.client_parameters

    def message_bytes(self, samples: int) -> int:
        """Return the bytes of activations, without labels."""
        return NUMBER_BYTES * self.activation * samples


UNKNOWN_FOOTPRINT = Footprint()


@dataclass(frozen=True)
class ClientTable:
    """Facts about the clients that any part may know.

    samples_n   (n,) integers: training samples each client holds
    labels_nc   (n, C) integers: how many of them are of each class; None where the task has no classes
    groups_n    (n,) integers: the group of each client, 0 .. K-1, where the split plants groups; else None
    """

    samples_n: np.ndarray
    labels_nc: np.ndarray | None = None
    groups_n: np.ndarray | None = None

    @property
    def n(self) -> int:
        return len(self.samples_n)

    def log_shares(self, tau: float = 1.0) -> np.ndarray:
        """Return (n, C) tau times the logarithms of each client's label shares, from its samples of each class.

        Added to the logits of a client's loss they make a class cost what it is worth to that client (logit adjustment,
        GAS equation 6, whose printed numerator lacks a bracket). A class that it does not hold gets almost no gradient
        under any tau > 0: the logarithm of its share is -inf, and a small tau must not make the finite one here small.
        """
        import numpy as np

        assert self.labels_nc is not None
        share_nc = self.labels_nc / np.maximum(self.labels_nc.sum(axis=1, keepdims=True), 1)
        return np.where(self.labels_nc == 0, max(tau, 1.0), tau) * np.log(share_nc + LEAST_SHARE)


@dataclass(frozen=True)
class Workload:
    """How much a client does for a given K.

    k           what it does when the rule does not say, >= 1
    batch_size  samples per mini-batch, or `all`
    epochs      K counts passes over the client's data instead of mini-batch steps
    """

    k: int = 1
    batch_size: int | str = "all"
    epochs: bool = False

    @property
    def one_step(self) -> bool:
        """Whether K, where the rule does not say, is a single mini-batch step."""
        return self.k == 1 and not self.epochs

    def steps(self, held: int, k: int) -> int:
        """Return the mini-batch steps of a client that holds ``held`` samples."""
        return k * self._steps_per_pass(held) if self.epochs else k

    def samples(self, held: int, k: int) -> int:
        """Return the number of samples that it uses, with repetitions."""
        if self.epochs:
            return k * held
        passes, rest = divmod(k, self._steps_per_pass(held))
        return passes * held + (min(rest * self.batch_size, held) if isinstance(self.batch_size, int) else 0)

    def _steps_per_pass(self, held: int) -> int:
        return max(1, -(-held // self.batch_size)) if isinstance(self.batch_size, int) else 1


@dataclass(frozen=True)
class Facts:
    """What a part may know of the rest of a run when it resolves its own `auto` and null (``resolve`` of its Config).

    algorithm         the server rule's name, for messages
    n_clients, concurrency
    groups            groups of clients that the split plants; 0: none
    clock             ticks | time
    dispatch          when free slots are filled (schedules.ScheduleConfig); `auto` until the schedule is resolved
    rounds            the rule steps once per round
    upload_kinds      kinds of upload the rule can use, its own kind first
    proximal          name and value of the rule's setting that is the clients' proximal weight; None: it is theirs
    first_k           name and value of the rule's setting that is the clients' first K; None: it is theirs
    workload          what K means, and K where the rule does not say
    one_step          every piece of work is a single mini-batch step
    variates          clients keep the mean of their gradients (Needs.keeps), which an upload must tell
    lr                local step of the clients' first piece of work
    iterations        server iterations that the budget is enough for, or 0; None where it is unknown before the run
    dataset           the data set's name
    outputs           uploads come with what the local model says about the server's own samples
    cuts              clients hold the first layers of the model alone, and train them with the server step by step
    layers            of a model that can be cut; 0 of others
    momentum, weight_decay  of the clients' steps
    queues            the schedule may give a client work while it is busy
    """

    algorithm: str
    n_clients: int
    concurrency: int
    groups: int
    clock: str
    dispatch: str
    rounds: bool
    upload_kinds: tuple[str, ...]
    proximal: tuple[str, float] | None
    first_k: tuple[str, int] | None
    workload: Workload
    one_step: bool
    variates: bool
    lr: float
    iterations: int | None
    dataset: str = ""
    outputs: bool = False
    cuts: bool = False
    layers: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    queues: bool = False
