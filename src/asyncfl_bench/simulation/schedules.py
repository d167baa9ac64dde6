"""Schedules: the choice of the client for the next piece of work, and the time of its dispatch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..errors import check
from ..randomness import Stream
from ..ranges import CheckedSettings, Configured, check_client_numbers, one_of
from ..stateful import Stateful
from ..types import Facts


@dataclass
class ScheduleConfig(CheckedSettings):
    """Fields shared by all schedules.

    dispatch  immediate: a free slot is filled after the arrival that freed it, and after the server iteration of this
              arrival | after_update: after a change of the global model, or if no client is in flight | per_round:
              after all clients in flight have reported or are lost | auto: per_round for rules that work in rounds,
              immediate for others
    rest      none: a client is idle after its upload | until_update: it is idle after a change of the global model, or
              if no client is in flight and all others rest too, so that no client is in one buffer twice
    """

    dispatch: Annotated[str, one_of("auto", "immediate", "after_update", "per_round")] = "immediate"
    rest: Annotated[str, one_of("none", "until_update")] = "none"

    def resolve(self, facts: Facts) -> None:
        """Replace `auto` by the value for the rule. Raises ConfigError for a value that the rule cannot use."""
        if self.dispatch == "auto":
            self.dispatch = "per_round" if facts.rounds else "immediate"
        needed = f"auto or per_round for {facts.algorithm}, which steps once all clients of a round have reported"
        check(self.dispatch == "per_round" or not facts.rounds, "dispatch", self.dispatch, needed)


class SameClient(Configured, Stateful):
    """The reporting client gets the next piece of work, so clients contribute in proportion to their speeds.

    With a concurrency below n, a random set of clients (fixed by the seed) takes part and the others never do.

    some_never  with fewer slots than clients, some clients never get work
    queues      a busy client may get more work, and does one piece after another
    """

    config: ScheduleConfig
    state_names: tuple[str, ...] = ("_waiting",)
    some_never = True
    queues = False

    def start(self, n: int, concurrency: int, stream: Stream) -> None:
        self._stream = stream
        order = range(n) if concurrency == n else stream().permutation(n)[:concurrency]
        self._waiting = deque(int(client) for client in order)

    def report(self, client: int) -> None:
        """Note that the client has delivered and is idle."""
        self._waiting.append(client)

    def drop_client(self, client: int) -> None:
        """Remove a client that ``next`` returned but that has left."""

    def next(self) -> int | None:
        """Return the client for a free slot; None if there is none."""
        return self._waiting.popleft() if self._waiting else None


@dataclass
class RandomIdleConfig(ScheduleConfig):
    """
    rest  turn: the slot of a reporting client goes to another client, unless no other is idle
    """

    rest: Annotated[str, one_of("none", "turn", "until_update")] = "none"


class RandomIdle(SameClient):
    """A free slot goes to a client drawn uniformly among the idle ones, including the reporting client.

    Source: FedBuff (Nguyen et al. 2022) and CA2FL as the ACE paper runs them, Algorithms a.2 and a.3; with `rest=turn`
    the code released with GAS (Yang, Liu 2024).
    """

    config: RandomIdleConfig
    state_names = ("_idle", "_turned", "_draws")
    some_never = False

    def start(self, n: int, concurrency: int, stream: Stream) -> None:
        self._stream = stream
        self._idle = list(range(n))
        self._turned: list[int] = []  # clients that reported and whose slot is free
        self._draws = 0

    def report(self, client: int) -> None:
        (self._turned if self.config.rest == "turn" else self._idle).append(client)

    def next(self) -> int | None:
        client = self._draw_client()
        if self._turned:
            self._idle.append(self._turned.pop(0))
        return self._draw_client() if client is None else client

    def _draw_client(self) -> int | None:
        """Draw an idle client uniformly and remove it from the idle ones; None if all are busy."""
        if not self._idle:
            return None
        index = int(self._stream(1, self._draws).integers(len(self._idle)))
        self._draws += 1
        # O(1) removal; the list's order is part of the state, so a resumed run draws the same clients
        self._idle[index], self._idle[-1] = self._idle[-1], self._idle[index]
        return self._idle.pop()


@dataclass
class UniformQueueConfig(ScheduleConfig):
    """
    rest     a client may be drawn right after its upload
    draw     random: independent draws | shuffled: each n pieces of work in a row go to all n clients in a new random
             order
    weights  weights of clients in the draw, one number > 0 each; not with shuffled; null: equal
    """

    dispatch: Annotated[str, one_of("auto", "immediate", "after_update")] = "immediate"
    rest: Annotated[str, one_of("none")] = "none"
    draw: Annotated[str, one_of("random", "shuffled")] = "random"
    weights: list[float] | None = None

    def resolve(self, facts: Facts) -> None:
        super().resolve(facts)
        check_client_numbers("weights", self.weights, facts.n_clients)

    def idle(self, facts: Facts) -> dict[str, str]:
        why = "with schedule.draw=shuffled; random has them"
        return super().idle(facts) | ({"weights": why} if self.draw == "shuffled" else {})


class UniformQueue(SameClient):
    """A free slot goes to a client drawn from all n, busy or not.

    The work of a busy client waits until its earlier work is done, and starts from the model of its dispatch. So all
    clients contribute equally (or by the weights) at any speed, and slow ones have long queues. The first pieces go to
    different clients; with fewer than n slots that is our choice.

    Source: Koloskova et al. 2022 (arXiv:2206.08307, Algorithm 2), Clipped ASGD (arXiv:2606.13287, Algorithm 2), AsGrad
    (arXiv:2310.20452: random and shuffled); with weights the routing of Generalized AsyncSGD (arXiv:2405.00017).
    Differs: AsGrad's released code uses the data of the client that just finished, and work that it queues at a busy
    client never starts. Generalized AsyncSGD also divides its step by n p_i; no rule here does.
    """

    config: UniformQueueConfig
    state_names = ("_waiting", "_draws", "_left")
    some_never = False
    queues = True

    def start(self, n: int, concurrency: int, stream: Stream) -> None:
        super().start(n, concurrency, stream)  # these clients are the first
        self._n, self._draws = n, 0
        self._left: set[int] = set()
        self._set_bounds()

    def _set_bounds(self) -> None:
        """Set the bounds of the draw. Clients that left have no weight, since drawing again might never end."""
        weights = np.array(self.config.weights or [1.0] * self._n)
        weights[list(self._left)] = 0.0
        total = np.cumsum(weights)
        self._bounds_n = total / total[-1] if total[-1] else total  # no client is left: none is drawn

    def report(self, client: int) -> None:
        """Do nothing: the draw does not depend on reports."""

    def drop_client(self, client: int) -> None:
        self._left.add(client)
        self._set_bounds()

    def next(self) -> int | None:
        if self._waiting:
            return self._waiting.popleft()
        if len(self._left) == self._n:
            return None
        number = self._draws
        self._draws += 1  # the engine refuses a client that left, and calls again
        if self.config.draw == "shuffled":
            # a pure function of the number, which alone is saved
            return int(self._stream(3, number // self._n).permutation(self._n)[number % self._n])
        return int(np.searchsorted(self._bounds_n, self._stream(2, number).random(), "right"))

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._set_bounds()
