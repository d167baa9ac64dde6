"""Slots for clients in flight, and the moments at which free ones are filled."""

from __future__ import annotations

from collections.abc import Callable

from ..stateful import Stateful
from ..types import Work


class Slots(Stateful):
    """Slots for clients in flight, as many as the concurrency.

    schedule  chooses the next client; already started
    free      number of slots without work in flight
    queues    a client may have several pieces of work, and does one after another
    """

    state_names = ("free", "_changed", "_resting", "_restarting")

    def __init__(self, schedule, concurrency: int):
        self.schedule, self.free = schedule, concurrency
        self.per_round = schedule.config.dispatch == "per_round"
        self.queues = schedule.queues
        self._when = schedule.config.dispatch
        self._rests = schedule.config.rest == "until_update"
        self._resting: list[int] = []  # clients in order of their arrival
        self._restarting: list[int] = []  # clients whose work was cancelled; they keep their slots
        self._changed = False  # the global model, since slots were last filled

    def note_delivery(self, work: Work, changed: bool) -> None:
        """Free the slot of an upload that arrived. changed: True if it changed the model"""
        if work.takes_slot:
            self.free += 1
            if self._rests and not changed:
                self._resting.append(work.client)
            else:
                self.schedule.report(work.client)

    def note_lost_work(self, work: Work) -> None:
        """Free the slot of work whose upload will never arrive."""
        self.free += work.takes_slot
        if work.lost:  # whether its client has left is checked at its next work
            self.schedule.report(work.client)

    def note_cancelled_work(self, work: Work) -> None:
        """Note cancelled work, whose client will restart in the same slot."""
        self._restarting.append(work.client)

    def clients_to_restart(self, has_left: Callable[[int], bool]) -> list[int]:
        """Return the clients that restart now, in the order of their dispatches. A client that left frees its slot."""
        clients = [client for client in self._restarting if not has_left(client)]
        self.free += len(self._restarting) - len(clients)
        self._restarting.clear()
        return clients

    def note_model_change(self) -> None:
        """Note that the model changed, and wake resting clients."""
        self._changed = True
        self._wake()

    def _wake(self) -> None:
        for client in self._resting:
            self.schedule.report(client)
        self._resting.clear()

    def should_fill(self, any_in_flight: bool) -> bool:
        """Return True if free slots should be filled now."""
        changed, self._changed = self._changed, False
        # with no client in flight there is no update and no end of a round to wait for
        return not any_in_flight or self._when == "immediate" or (self._when == "after_update" and changed)

    def next_client(self, any_in_flight: bool) -> int | None:
        """Return the client for a free slot; None if there is no slot or no client."""
        if not self.free:
            return None
        client = self.schedule.next()
        if client is None and self._resting and not any_in_flight:
            self._wake()  # there is no update to wait for
            client = self.schedule.next()
        return client

    def parts(self) -> dict[str, Stateful]:
        return {"schedule": self.schedule}
