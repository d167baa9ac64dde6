"""Transport of work to clients on Flower's nodes, and of their replies.

For each node one thread of the server sends work and pulls replies, because Flower's ``pull_messages`` can hang for
minutes on a node that died during a reply. A node has one message at a time, because messages cannot be withdrawn.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from ...errors import ConfigError
from ...types import Work
from ..choice import RealConfig
from ..messages import VECTORS, WorkVectors, foreign_text, pack, read_reply, unpack, versions
from ..threaded_transport import ThreadedTransport

LOOK, POLL, PAUSE = 1.0, 0.5, 10.0  # s between checks of all nodes, between pulls, and before a retry


@dataclass
class NodeReply:
    """Flower's reply to a message. problem: reason without a reply;  gone: the node or its reply is gone"""

    content: bytes = b""
    problem: str = ""
    gone: bool = False


class MessageGrid(Protocol):
    """The used methods of Flower's Grid. Each call may take minutes."""

    def nodes(self) -> set[int]:
        """Return the numbers of the living nodes."""
        ...

    def push(self, node: int, kind: str, content: bytes) -> str:
        """Send a message and return its name. kind: query or train"""
        ...

    def pull(self, message: str) -> NodeReply | None:
        """Return the reply to a message, once; None if there is none yet."""
        ...


grids: list[MessageGrid] = []  # filled by the ServerApp, one in a process


def current_grid() -> MessageGrid:
    """Return the grid of this process's app. Raises ConfigError without an app."""
    if not grids:
        how = "runs as a Flower app: afl-run --live-app FOLDER algorithm=ca2fl writes one and says how to start it"
        needs = "needs pip install 'asyncfl_bench[flower]'"
        raise ConfigError("live", "flower", needs if find_spec("flwr") is None else how)
    return grids[-1]


@dataclass
class _Client:
    """
    node     node of the client, which may be gone
    current  sent work
    since    time of that sending, or since when the first queued work of an absent client waits
    """

    number: int
    node: _Node | None = None
    current: Work | None = None
    since: float = 0.0

    @property
    def is_here(self) -> bool:
        return self.node is not None and self.node.lives


class FlowerTransport(ThreadedTransport):
    """A client belongs to the node that reports it, unless another living node already has it.

    run      facts of the run for a node: resolved config and folders of parts
    options  of ``ThreadedTransport``
    """

    def __init__(self, config: RealConfig, grid: MessageGrid, run: dict[str, Any], *, n_clients: int, **options: Any):
        super().__init__(config, n_clients=n_clients, **options)
        self.grid, self.limit = grid, config.answer_within
        self.run = run | {"identity": self.identity, "within": self.limit}
        self.clients = [_Client(number) for number in range(n_clients)]
        self._nodes: dict[int, _Node] = {}

    # -- the server's thread -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        threading.Thread(target=self._look, name="afl-nodes", daemon=True).start()

    def clients_here(self) -> set[int]:
        return {client.number for client in self.clients if client.is_here}

    def send(self, work: Work, vectors: WorkVectors) -> None:
        client = self.clients[work.client]
        with self.changed:
            if client.current is None and not self._has_work(client):
                client.since = time.monotonic()
            super().send(work, vectors)

    def forget(self, work: Work) -> None:
        """Drop the work. The node still computes it, but its reply is not pulled."""
        client = self.clients[work.client]
        with self.changed:
            if client.current is not None and client.current.sequence == work.sequence:
                client.current = None
            super().forget(work)

    def dismiss(self, client: int) -> None:
        with self.changed:
            self.clients[client].current = None
            super().dismiss(client)

    def _has_work(self, client: _Client) -> bool:
        return any(work.client == client.number for work, _ in self._queue)

    def close(self) -> None:
        self.closed = True

    # -- the thread that checks all nodes ----------------------------------------------------------------------------

    def _look(self) -> None:
        while not self.closed:
            try:
                listed = self.grid.nodes()
            except Exception as error:  # Flower has ended the run, which is saved
                self.report(f"Flower ended the run ({type(error).__name__})")
                self._stop.append(signal.SIGTERM)
                return
            with self.changed:
                for number in listed - self._nodes.keys():
                    self._nodes[number] = _Node(self, number)
                    self._nodes[number].thread.start()
                for node in self._nodes.values():
                    node.listed = node.number in listed
                if self.is_open and self.limit is not None:
                    for client in self.clients:
                        self._lose_overdue_work(client, self.limit)
                self.changed.notify_all()
            time.sleep(LOOK)

    def _lose_overdue_work(self, client: _Client, limit: float) -> None:
        if time.monotonic() < client.since + limit:
            return
        if client.current is None and not client.is_here and (pair := self.pop_work(client.number.__eq__)):
            client.current, _ = pair
        self.lose_work(client, f"no upload within live.answer_within={limit:g} s")

    # -- nodes' threads ----------------------------------------------------------------------------------------------

    def lose_work(self, client: _Client, problem: str) -> None:
        """Report the sent work of a client, if any, as lost. Called with the lock."""
        if client.current is not None:
            self.put_loss([client.number], client.current, problem)
            client.current, client.since = None, time.monotonic()

    def next_work(self, node: _Node) -> tuple[_Client, Work, WorkVectors] | None:
        """Return the oldest queued work of the node's clients and mark it as sent; None if the node is gone."""
        with self.changed:
            while not self.closed and node.lives:
                for client in node.clients:
                    if not client.is_here:
                        self._put_on(client, node)
                if (pair := self.pop_work(lambda number: self.clients[number].node is node)) is not None:
                    client = self.clients[pair[0].client]
                    client.current, client.since = pair[0], time.monotonic()
                    return client, *pair
                self.changed.wait(LOOK)
        return None

    def _put_on(self, client: _Client, node: _Node) -> None:
        """Put a returned client on its node. Its sent work is only lost now, when a rule can send a current model."""
        before, client.node = client.node, node
        if before is not None:
            self.report(f"client {client.number}: back")
            self.lose_work(client, before.problem or "its node is gone")
        self.changed.notify_all()

    def take(self, client: _Client, work: Work, reply: NodeReply) -> None:
        """Pass on the reply to work, unless the work was given up meanwhile."""
        with self.changed:
            if client.current is not work:
                return
            problem = reply.problem
            if not problem:
                assert client.node is not None
                numbers = [one.number for one in client.node.clients]
                client_reply = read_reply(reply.content, numbers, work.sequence)
                self.replies.put(client_reply)
                problem = "" if client_reply.sequence == work.sequence else f"replied as number {client_reply.sequence}"
            if problem:
                self.lose_work(client, problem)
            client.current = None

    def remove(self, node: _Node) -> None:
        with self.changed:
            node.ended = True
            del self._nodes[node.number]
            for client in node.clients:
                if client.node is node and not self.closed:
                    self.report(f"client {client.number}: away: {node.problem or 'its node is gone'}")
                    client.since = client.since if client.current is not None else time.monotonic()
            self.failure = node.problem or self.failure
            self.changed.notify_all()


class _Gone(Exception):
    """A node or its reply is gone."""


class _Node:
    """A node and its thread.

    listed   Flower lists the node as living
    ended    the thread has ended
    clients  clients that the node reported
    problem  reason why the node is gone or cannot be used
    """

    def __init__(self, transport: FlowerTransport, number: int):
        self.number, self.clients = number, list[_Client]()
        self.listed, self.ended, self.problem = True, False, ""
        self.thread = threading.Thread(target=self._run, name=f"afl-node-{number}", daemon=True)
        self._transport = transport

    @property
    def lives(self) -> bool:
        return self.listed and not self.ended

    def _run(self) -> None:
        transport = self._transport
        try:
            self._greet()
            while (found := transport.next_work(self)) is not None:
                self._exchange(*found)
        except _Gone as gone:
            self.problem = str(gone)
        except Exception as error:  # each part of Flower has other errors; a living node is asked again
            self.problem = f"node {self.number}: {foreign_text(error) or type(error).__name__}"
            transport.report(self.problem)
            time.sleep(PAUSE)
        transport.remove(self)

    def _greet(self) -> None:
        """Ask for the node's clients. Raises ValueError for a node that cannot be used."""
        transport = self._transport
        reply = self._request("query", pack(transport.run), lambda: self.listed)
        if reply is None:
            return
        if reply.problem:
            raise ValueError(reply.problem)
        facts, _ = unpack(reply.content)
        numbers, known = facts.get("clients"), {str(client.number): client for client in transport.clients}
        if "problem" in facts or not isinstance(numbers, list) or not known.keys() >= {*map(str, numbers)}:
            raise ValueError(str(facts.get("problem", f"has clients {numbers}, not numbers below {len(known)}")))
        for name, here in versions().items():
            there = foreign_text(dict(facts.get("versions", {})).get(name))
            if there != here and name == "asyncfl_bench":
                raise ValueError(f"has asyncfl_bench {there}, not {here}")
            if there != here:
                transport.report(f"node {self.number}: has {name} {there}, not {here}: bits of a replay may differ")
        self.clients = [known[str(number)] for number in numbers]
        others = [str(client.number) for client in self.clients if client.is_here]
        if others:
            transport.report(f"node {self.number}: waits, as another node has client {', '.join(others)}")

    def _exchange(self, client: _Client, work: Work, vectors: WorkVectors) -> None:
        content = pack(self._transport.run | {"work": asdict(work)}, **dict(zip(VECTORS, vectors, strict=True)))
        reply = self._request("train", content, lambda: client.current is work)
        if reply is not None:
            self._transport.take(client, work, reply)

    def _request(self, kind: str, content: bytes, is_wanted: Callable[[], bool]) -> NodeReply | None:
        """Send a message and wait for the reply while ``is_wanted``; None if it is not wanted any more."""
        grid = self._transport.grid
        message = grid.push(self.number, kind, content)
        while is_wanted() and not self._transport.closed:
            if (reply := grid.pull(message)) is None:
                time.sleep(POLL)
            elif reply.gone:
                raise _Gone(f"its node is gone ({foreign_text(reply.problem)})")
            elif len(reply.content) > (largest := self._transport.largest):
                return NodeReply(problem=f"a reply of more than {largest} bytes")
            else:
                return reply
        return None
