"""Amounts that a run has used, and the budget that ends it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from ..ranges import CheckedSettings, absent, greater_than, within
from ..types import USUAL_ITERATIONS

TARGET = "target_accuracy"
COUNTED = ("server_iterations", "uploads", "client_steps", "bytes", "messages", "server_steps")


@dataclass(slots=True)
class Counters:
    """Amounts that a run has used. Every line of metrics.jsonl has them under the same names."""

    iteration: int = 0
    uploads: int = 0
    client_steps: int = 0
    virtual_time: float = 0.0
    discarded: int = 0  # pieces of work whose upload never reached the server
    uplink_bytes: int = 0  # of uploads that reached the server, of messages, and before the first work
    downlink_bytes: int = 0  # of models sent to clients, also for work that was lost, and of replies
    messages: int = 0  # of clients that hold a part of the model, before their uploads
    server_steps: int = 0  # changes of the server's part of a split model, which are not server iterations
    cancelled: int = 0  # pieces of work that were stopped and restarted on a newer model

    @property
    def bytes(self) -> int:
        return self.uplink_bytes + self.downlink_bytes

    def used_of(self, limit: str) -> float:
        """Return the amount used of a limit, by its name in ``budget``."""
        return self.iteration if limit == "server_iterations" else getattr(self, limit)


@dataclass
class BudgetConfig(CheckedSettings):
    """Limits of a run, which ends at the first one; null means no limit.
    A limit on the command line replaces those of files.

    server_iterations  changes of the global model (ACE's first full round is one); 500 if no limit is given
    uploads            uploads that reached the server. ACE's first full round is n and is never cut short, nor is a
                       tick of a rule that steps once per tick
    client_steps       local steps (mini-batches) in delivered work
    virtual_time       ticks or seconds of the virtual clock; events at this very time still count
    bytes              sent to and by clients
    messages           mini-batches of activations, of clients that hold a part of the model, before their uploads
    server_steps       changes of the server's part of such a model
    target_accuracy    test accuracy of an evaluation, a share; add another limit, because a run may miss it
    """

    server_iterations: Annotated[int | None, greater_than(0, null="for no limit")] = None
    uploads: Annotated[int | None, greater_than(0, null="for no limit")] = None
    client_steps: Annotated[int | None, greater_than(0, null="for no limit")] = None
    virtual_time: Annotated[float | None, greater_than(0, null="for no limit")] = None
    bytes: Annotated[int | None, greater_than(0, null="for no limit")] = None
    messages: Annotated[int | None, greater_than(0, null="for no limit")] = None
    server_steps: Annotated[int | None, greater_than(0, null="for no limit")] = None
    target_accuracy: Annotated[float | None, within("(0, 1]", null="for no limit"), absent(None)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.amounts:
            self.server_iterations = USUAL_ITERATIONS

    @property
    def amounts(self) -> dict[str, float]:
        """Limits on amounts, by name; without the target, because a run may miss it."""
        return {name: limit for name, limit in asdict(self).items() if name != TARGET and limit is not None}

    @property
    def only_time(self) -> bool:
        return all(self.__dict__[name] is None for name in COUNTED)

    def iterations(self, uploads: int | None, steps: int | None, ticks: bool) -> int | None:
        """Return the server iterations that the budget allows; None if they are unknown before the run.

        uploads  number for one server iteration; None if it is unknown
        steps    mini-batch steps of one upload; None if clients differ
        ticks    True if an iteration is a tick
        """
        known = [self.server_iterations]
        if uploads is not None:
            known.append(None if self.uploads is None else self.uploads // uploads)
            if steps is not None and self.client_steps is not None:
                known.append(self.client_steps // (steps * uploads))
        if ticks and self.virtual_time is not None:
            known.append(int(self.virtual_time))
        return min((limit for limit in known if limit is not None), default=None)

    def used_up(self, used: Counters) -> str | None:
        """Return the name of the first limit on a count that is reached; None if there is none."""
        for name in COUNTED:
            limit = self.__dict__[name]
            if limit is not None and used.used_of(name) >= limit:
                return name
        return None
