"""Which client gets the next piece of work, and when it is dispatched."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated

from ..errors import check
from ..randomness import Stream
from ..ranges import Checked, one_of
from ..types import Facts


@dataclass
class ScheduleConfig(Checked):
    """Fields shared by all schedules.

    dispatch  `immediate`: a free slot is filled right after the arrival that freed it (and after the server
              iteration this arrival may have caused); `after_update`: only once the global model has changed, or nobody
              is in flight any more; `per_round`: once everybody in flight has reported or is lost; `auto`: per_round
              for rules that work in rounds, immediate for the others
    rest      `none`: a client that has delivered is idle; `until_update`: only once the global model has changed, or
              nobody is in flight and all others rest too, so that no client is in one buffer twice
    """

    dispatch: Annotated[str, one_of("auto", "immediate", "after_update", "per_round")] = "immediate"
    rest: Annotated[str, one_of("none", "until_update")] = "none"

    def resolve(self, facts: Facts) -> None:
        """Puts the moment that suits the rule in the place of `auto`. ConfigError where it cannot be another one."""
        if self.dispatch == "auto":
            self.dispatch = "per_round" if facts.rounds else "immediate"
        needed = f"auto or per_round for {facts.algorithm}, whose server steps once everybody in a round has reported"
        check(self.dispatch == "per_round" or not facts.rounds, "dispatch", self.dispatch, needed)


class SameClient:
    """A client that reports gets the next piece of work itself, so it contributes in proportion to its speed.

    With a concurrency below n, a random set of clients (fixed by the seed) takes part and the others never do.
    """

    Config = ScheduleConfig

    def __init__(self, config: ScheduleConfig):
        self.config = config

    def start(self, n: int, concurrency: int, stream: Stream) -> None:
        self._stream = stream
        order = range(n) if concurrency == n else stream().permutation(n)[:concurrency]
        self._waiting = deque(int(client) for client in order)

    def report(self, client: int) -> None:
        """The client has delivered and is idle."""
        self._waiting.append(client)

    def next(self) -> int | None:
        """Who takes a free slot; None when nobody can."""
        return self._waiting.popleft() if self._waiting else None

    def state_dict(self) -> dict:
        return {"waiting": list(self._waiting)}

    def load_state_dict(self, state: dict) -> None:
        self._waiting = deque(state["waiting"])


@dataclass
class RandomIdleConfig(ScheduleConfig):
    """
    rest      besides `turn`: the slot that a client frees goes to another one, unless none is idle
    """

    rest: Annotated[str, one_of("none", "turn", "until_update")] = "none"


class RandomIdle(SameClient):
    """A free slot goes to a client drawn uniformly among the idle ones, the reporter included.

    Source: FedBuff (Nguyen et al. 2022) and CA2FL as the ACE paper runs them, Algorithms a.2 and a.3; with `rest=turn`
    the code released with GAS (Yang, Liu 2024).
    """

    Config = RandomIdleConfig

    def start(self, n: int, concurrency: int, stream: Stream) -> None:
        self._stream = stream
        self._idle = list(range(n))
        self._turned: list[int] = []  # reporters whose slot has not gone to another client yet
        self._draws = 0

    def report(self, client: int) -> None:
        (self._turned if self.config.rest == "turn" else self._idle).append(client)

    def next(self) -> int | None:
        client = self._drawn()
        if self._turned:
            self._idle.append(self._turned.pop(0))
        return self._drawn() if client is None else client

    def _drawn(self) -> int | None:
        if not self._idle:
            return None
        place = int(self._stream(1, self._draws).integers(len(self._idle)))
        self._draws += 1
        # O(1) removal; the list's order is part of the state, so a resumed run draws the same clients
        self._idle[place], self._idle[-1] = self._idle[-1], self._idle[place]
        return self._idle.pop()

    def state_dict(self) -> dict:
        return {"idle": list(self._idle), "turned": list(self._turned), "draws": self._draws}

    def load_state_dict(self, state: dict) -> None:
        self._idle, self._draws = list(state["idle"]), state["draws"]
        self._turned = list(state.get("turned", ()))  # older checkpoints have none
