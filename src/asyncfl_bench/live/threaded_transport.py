"""Base class of transports whose threads queue replies."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ..errors import BenchError, list_some
from ..types import Work
from .choice import RealConfig
from .messages import ClientReply, WorkVectors

SECONDS_BETWEEN_LINES = 5.0


class ThreadedTransport(ABC):
    """Carries work to clients and replies back, by threads.

    report   prints a line
    changed  condition, notified when clients connect or leave
    is_open  all clients were connected, so work may be sent;  closed: the run is over
    failure  why a client is not connected;  refusal: why one can never connect, with its number
    config   settings of the group `live`;  identity: of the run;  largest: most bytes of a reply
    """

    def __init__(
        self, config: RealConfig, *, n_clients: int, identity: str, largest: int, report: Callable[[str], None]
    ):
        self.config, self.identity, self.largest = config, identity, largest
        self.replies: queue.SimpleQueue[ClientReply] = queue.SimpleQueue()
        self.changed = threading.Condition()
        self.closed, self.is_open, self.report = False, False, report
        self.failure = self.refusal = ""
        self._n, self._started = n_clients, False
        self._stop: list[int] = []
        self._queue: list[tuple[Work, WorkVectors]] = []

    @abstractmethod
    def begin(self) -> None:
        """Start the threads."""

    @abstractmethod
    def clients_here(self) -> set[int]:
        """Return the connected clients."""

    def send(self, work: Work, vectors: WorkVectors) -> None:
        """Queue work for its client, after the client's earlier work."""
        with self.changed:
            self._queue.append((work, vectors))
            self.changed.notify_all()

    def forget(self, work: Work) -> None:
        """Drop work that is not needed any more."""
        with self.changed:
            self._queue = [pair for pair in self._queue if pair[0].sequence != work.sequence]

    def dismiss(self, client: int) -> None:
        """Send no more work to the client."""
        with self.changed:
            self._queue = [pair for pair in self._queue if pair[0].client != client]

    def pop_work(self, is_ready: Callable[[int], bool]) -> tuple[Work, WorkVectors] | None:
        """Return the oldest queued work of a client that is ready; None without it, and before all clients were
        connected."""
        with self.changed:
            indices = (index for index, (work, _) in enumerate(self._queue) if self.is_open and is_ready(work.client))
            return None if (index := next(indices, None)) is None else self._queue.pop(index)

    @abstractmethod
    def close(self) -> None:
        """End threads and processes."""

    def start(self, stop: list[int]) -> None:
        """Wait until all clients are connected, or ``stop`` has a signal. Raises BenchError if they do not connect.

        A transport that cannot continue adds a signal to ``stop``; the run then saves its state and ends.
        """
        if self._started:
            return
        self._started, self._stop = True, stop
        self.begin()
        said = time.monotonic()
        until = said + self.config.clients_wait
        while not stop and (here := len(self.clients_here())) < self._n:
            if self.refusal:
                raise BenchError(self.refusal)
            if time.monotonic() > until:
                why = f" ({self.failure})" if self.failure else ""
                waited = f"live.clients_wait={self.config.clients_wait:g} s"
                missing = list_some(str(one) for one in range(self._n) if one not in self.clients_here())
                raise BenchError(f"{here} of {self._n} clients are here after {waited}; missing: {missing}{why}")
            if time.monotonic() > said + SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                self.report(f"{here} of {self._n} clients are here")
            with self.changed:
                self.changed.wait(0.2)
        if not stop:
            self.is_open = True
            self.report(f"{self._n} of {self._n} clients are here")

    def receive(self, seconds: float) -> list[ClientReply]:
        """Return the replies that came, after at most ``seconds``."""
        try:
            return [self.replies.get(timeout=seconds)]
        except queue.Empty:
            return []

    def put_loss(self, clients: Sequence[int], work: Work, problem: str) -> None:
        self.replies.put(ClientReply(clients, work.sequence, problem=problem))

    def status(self) -> str:
        """Return the numbers of connected and missing clients as text."""
        here = len(self.clients_here())
        return f"{here} here" + (f", {self._n - here} away" if here < self._n else "")
