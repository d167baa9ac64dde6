"""Replies of clients in the order in which they came, checked before their use.

Legend: d model parameters, u samples of the server, C classes.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import BenchError, Stopped
from ..types import Work
from .messages import ClientReply, WorkVectors
from .threaded_transport import ThreadedTransport

POLL = 0.2  # s between checks whether the run is requested to stop


class Inbox:
    """Work that was sent, until its reply has been used.

    vectors      returns the vectors of a piece of work, to send
    shape_uc     of ``Upload.outputs_uc``; None: the rule needs none
    must_stay    reason why no client may leave, for a message; empty: clients may leave
    stop         received signals
    refusals, losses  reason -> number of refused replies; reason -> number of losses
    on_wait      called several times a second while the server waits for replies
    """

    def __init__(
        self,
        transport: ThreadedTransport,
        *,
        d: int,
        shape_uc: tuple[int, int] | None,
        identity: str,
        strikes: int,
        must_stay: str,
        stop: list[int],
        report: Callable[[str], None],
    ):
        self.transport, self.refusals, self.losses = transport, Counter[str](), Counter[str]()
        self.vectors: Callable[[Work], WorkVectors]
        self.on_wait: Callable[[], None] = lambda: None
        self._d, self._shape_uc, self._identity = d, shape_uc, identity
        self._most_strikes, self._must_stay, self._stop, self._report = strikes, must_stay, stop, report
        self._without_reply: dict[int, Work] = {}  # sent
        self._sent_at: dict[int, float] = {}  # of these
        self._free_at: dict[int, float] = {}  # by client, time of its latest reply
        self._here_since = 0.0  # time at which all clients were connected
        self._cancelled: dict[int, int] = {}  # number -> client of work that is not needed any more
        self._unused: dict[int, ClientReply] = {}  # checked and not used yet
        self._order: deque[int] = deque()  # numbers of these without a stamp
        self._highest = -1
        self._strikes: Counter[int] = Counter()  # of each client, since its latest upload

    # -- the queue's side --------------------------------------------------------------------------------------------

    def send(self, work: Work) -> None:
        self._without_reply[work.sequence] = work
        self._highest = max(self._highest, work.sequence)
        self._sent_at[work.sequence] = time.monotonic()
        self.transport.send(work, self.vectors(work))

    def forget(self, work: Work) -> None:
        """Drop work that will never be delivered."""
        if self._without_reply.pop(work.sequence, None) is not None:
            self._cancelled[work.sequence] = work.client
            del self._sent_at[work.sequence]
            self.transport.forget(work)
        elif self._unused.pop(work.sequence, None) is not None and work.sequence in self._order:
            self._order.remove(work.sequence)

    def take(self, work: Work) -> ClientReply:
        """Return the upload of this work. Waits for it in a first round, and sends the work again after a loss."""
        while True:
            while work.sequence not in self._unused:
                self._wait(POLL)
            reply = self._unused.pop(work.sequence)
            if work.sequence in self._order:
                self._order.remove(work.sequence)
            if reply.vector_d is not None:
                return reply
            if reply.left:
                why = f"the first round needs an upload of every client ({reply.problem})"
                raise BenchError(f"client {work.client} is out, and {why}")
            self.send(work)

    # -- the timeline's side -----------------------------------------------------------------------------------------

    def next_reply(self, seconds_left: Callable[[], float]) -> ClientReply | None:
        """Return the next reply, an upload or a loss; None if no time is left.

        Raises Stopped, and BenchError if a client left that may not leave.
        """
        while not self._order:
            left = seconds_left()
            if (
                not self._wait(max(0.0, min(POLL, left))) and left <= 0
            ):  # replies that came while the server was busy count
                return None
        reply = self._unused[self._order.popleft()]
        if reply.left and self._must_stay:
            said = f"{self._most_strikes} refused or lost uploads in a row, the last one: {reply.problem}"
            raise BenchError(f"client {reply.clients[0]} is out after {said}; {self._must_stay}")
        return reply

    def is_lost(self, work: Work) -> bool:
        return self._unused[work.sequence].vector_d is None

    def start(self) -> None:
        """Wait until all clients are connected. Raises Stopped."""
        self.transport.start(self._stop)
        if self._stop:
            raise Stopped
        self._here_since = self._here_since or time.monotonic()

    # -- the clients' side -------------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> bool:
        """Return True if something came."""
        self.start()
        received = self._receive_all(seconds)
        self.on_wait()
        return received

    def _receive_all(self, seconds: float) -> bool:
        """Return True if something came."""
        replies = self.transport.receive(seconds)
        for reply in replies:
            self._receive(reply)
        return bool(replies)

    def _receive(self, reply: ClientReply) -> None:
        if self._cancelled.get(reply.sequence) in reply.clients:
            self._free_at[self._cancelled.pop(reply.sequence)] = reply.received_at
            return
        work = self._without_reply.get(reply.sequence)
        if work is None or work.client not in reply.clients:
            self._refuse(reply, reply.clients, self._describe_false_number(reply, work))
            return
        if reply.problem:
            self.losses[reply.problem] += 1
            self._report(f"client {work.client}: no upload: {reply.problem}")
            self._strike(reply, [work.client], reply.problem, lost=work)
        elif why := self._describe_fault(reply):
            self._refuse(reply, [work.client], why, lost=work)
        else:
            self._strikes[work.client] = 0
            self._accept(reply)

    def _describe_false_number(self, reply: ClientReply, work: Work | None) -> str:
        number = f"number {reply.sequence}"
        if work is not None:
            return f"claims {number}, which is client {work.client}'s"
        return f"repeats {number}" if 0 <= reply.sequence <= self._highest else f"claims {number}, which no work has"

    def _describe_fault(self, reply: ClientReply) -> str:
        """Return the fault of an upload of known work; an empty text if there is none."""
        if reply.identity != self._identity:
            return f"belongs to run {reply.identity or 'none'}, not to {self._identity}"
        arrays: list[tuple[str, np.ndarray | None, tuple[int, ...]]] = [("upload", reply.vector_d, (self._d,))]
        if self._shape_uc is not None:
            arrays.append(("outputs", reply.outputs_uc, self._shape_uc))
        for name, array, shape in arrays:
            if array is None:
                return f"has no {name}"
            if array.dtype != np.float32 or array.shape != shape:
                return f"{name} of shape {array.shape} {array.dtype!s:.40}, not {shape} float32"
            if not np.isfinite(array).all():
                return f"{name} with numbers that are not finite"
        return "" if abs(reply.loss) <= float(np.finfo(np.float32).max) else f"loss {reply.loss}"

    def _refuse(self, reply: ClientReply, clients: Sequence[int], why: str, lost: Work | None = None) -> None:
        """Count and report a refusal. lost: work that ended with it"""
        self.refusals[why] += 1
        named = f"client {clients[0]}" if len(clients) == 1 else f"a process of clients {', '.join(map(str, clients))}"
        self._report(f"{named}: refused: {why}")
        self._strike(reply, clients, why, lost)

    def _strike(self, reply: ClientReply, clients: Sequence[int], why: str, lost: Work | None) -> None:
        """Count a strike against clients. End the ``lost`` work, and all work of clients with too many strikes."""
        ended = {} if lost is None else {lost.sequence: lost}
        for client in clients:
            self._strikes[client] += 1
            if self._strikes[client] >= self._most_strikes:
                ended |= {number: work for number, work in self._without_reply.items() if work.client == client}
        for work in ended.values():
            left = self._strikes[work.client] >= self._most_strikes
            if left:
                self._report(f"client {work.client}: out after {self._most_strikes} refused or lost uploads in a row")
                self.transport.dismiss(work.client)
            if work is not lost:
                self._cancelled[work.sequence] = work.client
            self._accept(
                ClientReply([work.client], work.sequence, problem=why, received_at=reply.received_at, left=left)
            )

    def _accept(self, reply: ClientReply) -> None:
        client = self._without_reply.pop(reply.sequence).client
        began = max(self._sent_at.pop(reply.sequence), self._free_at.get(client, self._here_since))
        reply.seconds = reply.received_at - began
        self._free_at[client] = reply.received_at
        self._unused[reply.sequence] = reply
        self._order.append(reply.sequence)

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        """Return the state, with all replies that came and were not used."""
        import torch

        while self._receive_all(0.0):
            pass

        def tensor(array: np.ndarray | None) -> Any:
            return None if array is None else torch.from_numpy(np.array(array))

        def saved(reply: ClientReply) -> dict[str, Any]:
            tensors = {name: tensor(getattr(reply, name)) for name in ("vector_d", "outputs_uc")}
            state = vars(reply) | {"clients": list(reply.clients)} | tensors
            del state["received_at"]  # a moment of this process
            return state

        return {
            "unused": [saved(reply) for reply in self._unused.values()],
            "order": list(self._order),
            "refusals": dict(self.refusals),
            "losses": dict(self.losses),
            "strikes": dict(self._strikes),
        }

    def load_state_dict(self, state: dict, in_flight: Sequence[Work]) -> None:
        """Restore unused replies, and send the other work in flight again."""
        for saved in state.get("unused", state.get("came", ())):  # came: in earlier checkpoints
            tensors = {name: saved[name] for name in ("vector_d", "outputs_uc") if saved[name] is not None}
            arrays = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
            self._unused[saved["sequence"]] = ClientReply(**saved | arrays)
        self._order.extend(state["order"])
        self.refusals.update(state["refusals"])
        self.losses.update(state["losses"])
        self._strikes.update(state["strikes"])
        for work in in_flight:
            self._highest = max(self._highest, work.sequence)
            if work.sequence not in self._unused:
                self.send(work)
