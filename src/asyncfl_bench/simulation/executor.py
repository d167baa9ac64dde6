"""The interface of what computes work for the engine; `clients/` has the implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..types import Delivery, Reply, Work

if TYPE_CHECKING:
    import torch


class Executor(Protocol):
    """Computes work. The engine passes on every dispatch whose upload will arrive. Later it asks once for the result,
    or discards the work if its client left in the meantime."""

    def dispatch(self, work: Work, model_d: torch.Tensor) -> None: ...

    def deliver(self, work: Work) -> Delivery: ...

    def discard(self, work: Work) -> None: ...


class StagedExecutor(Executor, Protocol):
    """Computes tasks of several stages. ``dispatch`` and ``start_next_stage`` begin one. ``deliver`` gives the
    content of its message, or at the end of the last stage the upload."""

    def start_next_stage(self, work: Work, reply: Reply) -> None:
        """Begin the next stage of a task, with the reply to its last message."""
        ...
