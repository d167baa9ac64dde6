"""Base classes of split learning, where clients hold the first layers of the model.

Legend: u the clients' part, s the server's part, d parameters of a part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from ...errors import Stopped
from ...ranges import at_least, greater_than, within
from ...stateful import Stateful
from ..base import RuleConfig, ServerRule
from .rounds import RoundConfig

if TYPE_CHECKING:
    import torch

    from ...types import ClientTable, Facts, Message, Reply, ServerPart, Upload


@dataclass
class SplitConfig(RuleConfig):
    """
    server_lr    step size of the server's part
    server_momentum, server_weight_decay  of its SGD
    server_clip  largest norm of its gradient, before weight decay
    """

    server_lr: Annotated[float | None, greater_than(0, null="for client.lr")] = None
    server_momentum: Annotated[float | None, within("[0, 1)", null="for client.momentum")] = None
    server_weight_decay: Annotated[float | None, at_least(0, null="for client.weight_decay")] = None
    server_clip: Annotated[float | None, greater_than(0, null="for none")] = None

    def describe_cut_cost(self, width: int, classes: int) -> str | None:
        """Return the cost of a server step with ``width`` activations a sample if it is high, else None.

        Raises ConfigError for a width that is too large to compute.
        """
        return None

    def resolve(self, facts: Facts) -> None:
        super().resolve(facts)
        if self.server_lr is None:
            self.server_lr = facts.lr
        if self.server_momentum is None:
            self.server_momentum = facts.momentum
        if self.server_weight_decay is None:
            self.server_weight_decay = facts.weight_decay


@dataclass
class SplitRoundConfig(SplitConfig, RoundConfig):
    """SplitConfig and RoundConfig have all fields."""


class SplitRule(ServerRule):
    """A rule whose clients hold the first layers of the model only. Their work has K + 1 stages: after each
    mini-batch a client sends a message and waits for a reply. Uploads are of the parameters of its layers.

    part      the layers that the server holds; set by ``equip``
    stop      not empty if the run is requested to stop; set when the run is built
    client_d  (d,) the clients' part of the model;  server_d  (d,) the server's part; both views of the model
    """

    upload_kinds = ("difference",)
    part: ServerPart
    stop: Sequence[int] = ()
    _set_by_run = (*ServerRule._set_by_run, "part", "stop", "client_d", "server_d")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.needs = replace(cls.needs, cuts=True)

    def start(self, model_d: torch.Tensor, clients: ClientTable, upload_kind: str) -> None:
        super().start(model_d, clients, upload_kind)
        self.client_d, self.server_d = model_d[: self.part.d_client], model_d[self.part.d_client :]

    @abstractmethod
    def receive_message(self, message: Message) -> bool:
        """Use one message, and set ``server_samples``. Return exactly True if the server's part of the model changed (a
        server step, not a server iteration), else exactly False.

        May raise ``Stopped`` (``raise_if_stopped``). The same message is then passed again, in this process or in the
        one that resumes, and the result must be that of an undisturbed call.
        """

    def raise_if_stopped(self) -> None:
        """Raise ``Stopped`` if the run is requested to stop."""
        if self.stop:
            raise Stopped

    @abstractmethod
    def replies(self) -> list[tuple[int, Reply]]:
        """Return (client, reply) of the clients that begin their next stage. Called after every message.

        A client without a reply waits until another client's message.
        """

    def receive(self, upload: Upload) -> bool:
        self.server_samples = 0.0
        return super().receive(upload)  # type: ignore[safe-super]  # of the rule's other base

    def split_numbers(self, d_server: int, in_flight: int, message: int) -> int:
        """Return the single-precision numbers that the rule keeps of messages and of copies of the server's part.

        d_server   parameters of the server's part
        in_flight  clients that have work at the same time
        message    numbers in the activations of a mini-batch
        """
        return 0


class ServerSgd(Stateful):
    """torch's SGD of a server's part, which it changes in place. Memory: d floats with momentum.

    s_d  (d,) the part, which is not part of the state
    """

    state_names = ("velocity_d",)

    def __init__(self, s_d: torch.Tensor, config: SplitConfig):
        assert config.server_lr is not None and config.server_weight_decay is not None
        self.s_d, self.lr, self._config = s_d, config.server_lr, config
        self.velocity_d = s_d.new_zeros(s_d.shape if config.server_momentum else (0,))

    def clip(self, gradient_d: torch.Tensor) -> torch.Tensor:
        """Return (d,) ``gradient_d``, scaled in place to at most the norm ``server_clip``."""
        most = self._config.server_clip
        if most is not None and (norm := float(gradient_d.norm())) > most:
            gradient_d.mul_(most / norm)
        return gradient_d

    def step(self, gradient_d: torch.Tensor) -> None:
        """Take a step. Overwrites (d,) ``gradient_d``."""
        config = self._config
        self.clip(gradient_d)
        if config.server_weight_decay:
            gradient_d.add_(self.s_d, alpha=config.server_weight_decay)
        if config.server_momentum:
            gradient_d = self.velocity_d.mul_(config.server_momentum).add_(gradient_d)
        self.s_d.add_(gradient_d, alpha=-self.lr)
