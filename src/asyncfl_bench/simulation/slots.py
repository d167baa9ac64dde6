"""The places for clients in flight: how many are free, when they are filled, and by which client."""

from __future__ import annotations

from collections.abc import Callable

from ..stateful import Stateful
from ..types import Work


class Slots(Stateful):
    """
    schedule  which idle client goes next; already started
    free      places without work in flight
    queues    a client may have several pieces of work, of which it does one after another
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
        """An upload arrived and frees its slot. changed: it changed the model."""
        if work.takes_slot:
            self.free += 1
            if self._rests and not changed:
                self._resting.append(work.client)
            else:
                self.schedule.report(work.client)

    def note_lost_work(self, work: Work) -> None:
        """An upload will never arrive: free its slot."""
        self.free += work.takes_slot
        if work.lost:  # its client comes back, or is found to have left when it is to get its next work
            self.schedule.report(work.client)

    def note_cancelled_work(self, work: Work) -> None:
        """Work was cancelled; its client will restart in the same slot."""
        self._restarting.append(work.client)

    def clients_to_restart(self, has_left: Callable[[int], bool]) -> list[int]:
        """Clients that restart now, in the order in which their work was dispatched. A client that left frees its
        slot."""
        clients = [client for client in self._restarting if not has_left(client)]
        self.free += len(self._restarting) - len(clients)
        self._restarting.clear()
        return clients

    def note_model_change(self) -> None:
        """The model changed: wake resting clients."""
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
        """For a free slot; None where there is no slot, or no client for it."""
        if not self.free:
            return None
        client = self.schedule.next()
        if client is None and self._resting and not any_in_flight:
            self._wake()  # there is no update to wait for
            client = self.schedule.next()
        return client

    def parts(self) -> dict[str, Stateful]:
        return {"schedule": self.schedule}
