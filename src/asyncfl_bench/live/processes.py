"""Clients as processes of this machine. A process that dies is started again; its work in hand is lost then.

Each process has a thread of the server's, which alone talks to it: a process that hangs delays no other one.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BenchError, describe_error
from ..types import Work
from .choice import ProcessesConfig
from .messages import pack, unpack
from .replies import Reply, Vectors

if TYPE_CHECKING:
    from ..clients.executors import SequentialComputer

PRELOADED = ["torch", "pandas", "asyncfl_bench.experiment.build"]  # once, for all processes
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # s before a process that dies without having worked is started again
SECONDS_BETWEEN_LINES = 5.0
VECTORS = ("start", "center", "shift")  # sent with work: WorkQueue.start


class Compute:
    """What a process does. A callable that another process can be given.

    build     makes the computer of a run from its resolved config (experiment.build.build_computer)
    identity  of the run;  nap: s, mean of a random pause before each upload
    """

    def __init__(self, build: Callable[..., SequentialComputer], tree: dict, folders: list[Path], nap: float):
        self._build, self._tree, self._folders, self._nap = build, tree, folders, nap

    def __call__(self, pipe: Connection, identity: str, clients: Sequence[int]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
        threading.Thread(target=_end_with_server, daemon=True).start()
        computer = self._build(self._tree, self._folders, clients)
        with suppress(EOFError, OSError):  # the server is gone
            pipe.send_bytes(pack({"hello": True}))
            while True:
                pipe.send_bytes(self._answer(computer, identity, *unpack(pipe.recv_bytes())))

    def _answer(self, computer: SequentialComputer, identity: str, facts: dict, arrays: dict) -> bytes:
        """Do a piece of work. Returns the reply, also to work that fails."""
        import torch

        from ..clients.versions import Blocks

        work, start = Work(**facts), tuple(_tensor(arrays.get(name)) for name in VECTORS)
        answer: dict[str, Any] = {"sequence": work.sequence, "identity": identity}
        try:
            time.sleep(np.random.default_rng().exponential(self._nap))
            out_pd = torch.empty(1, len(arrays["start"]))
            (upload,) = computer.begin([work], lambda _: start, out_pd, Blocks())()
            outputs = None if upload.outputs_uc is None else upload.outputs_uc.numpy()
            return pack(answer | {"loss": float(upload.loss)}, vector=out_pd[0].numpy(), outputs=outputs)
        except Exception as error:
            return pack(answer | {"problem": describe_error(error)})


def _end_with_server() -> None:
    """End this process, which may be busy, when the server was killed."""
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    os._exit(1)


def _tensor(array: np.ndarray | None) -> Any:
    import torch

    return None if array is None else torch.from_numpy(array)


class LocalProcesses:
    """See replies.Transport. Client i is in process i modulo their number.

    largest  bytes of a reply; a larger one is not read
    report   receives lines for a person
    """

    def __init__(
        self,
        config: ProcessesConfig,
        compute: Compute,
        *,
        n_clients: int,
        identity: str,
        largest: int,
        report: Callable[[str], None],
    ):
        assert config.count is not None
        self.replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self.changed = threading.Condition()
        self.closed, self.is_open, self.failure = False, False, ""
        self.config, self.compute, self.identity, self.largest, self.report = config, compute, identity, largest, report
        self.context = multiprocessing.get_context("forkserver")
        self._places = [_Place(self, range(first, n_clients, config.count)) for first in range(config.count)]
        self._n, self._started = n_clients, False

    def start(self, stop: Sequence) -> None:
        if self._started:
            return
        self._started = True
        self.context.set_forkserver_preload(PRELOADED)
        for place in self._places:
            place.thread.start()
        said = time.monotonic()
        until = said + self.config.clients_wait
        while not stop and (here := self._count_here()) < self._n:
            if time.monotonic() > until:
                why = f" ({self.failure})" if self.failure else ""
                waited = f"live.clients_wait={self.config.clients_wait:g} s"
                raise BenchError(f"{here} of {self._n} clients are here after {waited}{why}")
            if time.monotonic() > said + SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                self.report(f"{here} of {self._n} clients are here")
            with self.changed:
                self.changed.wait(0.2)
        if not stop:
            self.is_open = True
            self.report(f"{self._n} of {self._n} clients are here")

    def send(self, work: Work, vectors: Vectors) -> None:
        self._place_of(work.client).add(work, vectors)

    def receive(self, seconds: float) -> list[Reply]:
        try:
            return [self.replies.get(timeout=seconds)]
        except queue.Empty:
            return []

    def forget(self, work: Work) -> None:
        self._place_of(work.client).remove(work)

    def dismiss(self, client: int) -> None:
        self._place_of(client).dismiss(client)

    def status(self) -> str:
        here = self._count_here()
        return f"{here} here" + (f", {self._n - here} away" if here < self._n else "")

    def close(self) -> None:
        self.closed = True
        for place in self._places:
            place.end()

    def _place_of(self, client: int) -> _Place:
        return self._places[client % len(self._places)]

    def _count_here(self) -> int:
        return sum(len(place.clients) for place in self._places if place.here)


class _Place:
    """A process, whichever it is just now, its clients, and the work that it has not answered.

    here  it has said hello and lives
    """

    def __init__(self, transport: LocalProcesses, clients: Sequence[int]):
        self.clients, self.here = list(clients), False
        self.thread = threading.Thread(target=self._run, name=f"afl-clients-{clients[0]}", daemon=True)
        self._transport = transport
        self._work: deque[tuple[Work, Vectors]] = deque()
        self._ready = threading.Condition()
        self._in_hand: Work | None = None
        self._process: Any = None
        self._dismissed: set[int] = set()

    # -- the server's thread -----------------------------------------------------------------------------------------

    def add(self, work: Work, vectors: Vectors) -> None:
        with self._ready:
            self._work.append((work, vectors))
            self._ready.notify()

    def remove(self, work: Work) -> None:
        with self._ready:
            self._work = deque(pair for pair in self._work if pair[0].sequence != work.sequence)

    def dismiss(self, client: int) -> None:
        with self._ready:
            self._dismissed.add(client)
            self._work = deque(pair for pair in self._work if pair[0].client != client)
        if self._is_over:
            self.end()

    def end(self) -> None:
        """End the process. Its thread then ends, or starts another one."""
        with self._ready:
            self._ready.notify()
        if (process := self._process) is not None:
            process.kill()
            process.join(1.0)

    # -- the place's own thread --------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._transport.closed or self._dismissed.issuperset(self.clients)

    def _run(self) -> None:
        name = f"client{'s' * (len(self.clients) > 1)} {', '.join(map(str, self.clients))}"
        lost, pause = None, FIRST_PAUSE
        while not self._is_over:
            pipe, self._in_hand, problem = None, None, ""
            try:
                pipe = self._start_process()
                self._set_here(True)
                if lost is not None:
                    self._transport.report(f"{name}: back")
                    self._put_loss(*lost)
                lost, pause = None, FIRST_PAUSE
                self._exchange(pipe)
            except (EOFError, OSError) as error:
                problem = "" if self._is_over else self._describe_end(error)
            was_here = self.here
            self._set_here(False)
            if self._process is not None:
                self._process.kill()
            if pipe is not None:
                pipe.close()
            if self._is_over:
                return
            self._transport.failure = problem
            if was_here:
                self._transport.report(f"{name}: away: {problem}")
                lost = None if self._in_hand is None else (self._in_hand, problem)
                continue
            if (lost := lost or self._take_first(problem)) is not None:  # it may never be back
                self._put_loss(*lost)
            lost = None
            with self._ready:
                self._ready.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _start_process(self) -> Connection:
        """Start a process and wait for its hello. Raises EOFError or OSError."""
        transport, self._process = self._transport, None
        pipe, end = transport.context.Pipe()
        process = transport.context.Process(
            target=transport.compute, args=(end, transport.identity, self.clients), daemon=True
        )
        process.start()
        self._process = process  # not before: ``end`` cannot kill what has not started
        end.close()
        if self._is_over:
            raise EOFError
        if not pipe.poll(transport.config.clients_wait):
            raise TimeoutError(f"no hello within live.clients_wait={transport.config.clients_wait:g} s")
        pipe.recv_bytes(transport.largest)
        return pipe

    def _exchange(self, pipe: Connection) -> None:
        """Work and replies, until the place is over. Raises EOFError or OSError when the process ended or hangs."""
        while (pair := self._next_work()) is not None:
            self._in_hand, vectors = pair
            with self._time_limit():
                pipe.send_bytes(pack(asdict(self._in_hand), **dict(zip(VECTORS, vectors, strict=True))))
                self._receive(pipe, self._in_hand)
            self._in_hand = None

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """Kill a process that takes too long, which ends any call that waits for it, and raise TimeoutError."""
        if (limit := self._transport.config.answer_within) is None:
            yield
            return
        until, timer = time.monotonic() + limit, threading.Timer(limit, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (EOFError, OSError):
            if time.monotonic() < until:
                raise
            raise TimeoutError(f"no upload within live.answer_within={limit:g} s") from None
        finally:
            timer.cancel()

    def _next_work(self) -> tuple[Work, Vectors] | None:
        while not self._is_over:
            with self._ready:
                if self._work and self._transport.is_open:
                    return self._work.popleft()
                self._ready.wait(0.2)
            if not self._process.is_alive():
                raise EOFError
        return None

    def _receive(self, pipe: Connection, work: Work) -> None:
        """Pass on what comes until this work is answered."""
        while True:
            reply = _read_reply(self._receive_bytes(pipe), self.clients, work.sequence)
            self._transport.replies.put(reply)
            if reply.sequence == work.sequence:
                return

    def _receive_bytes(self, pipe: Connection) -> bytes:
        try:
            return pipe.recv_bytes(self._transport.largest)
        except OSError:
            if pipe.readable:  # not after a message that is too long
                raise
            raise OSError(f"a reply of more than {self._transport.largest} bytes") from None

    def _take_first(self, problem: str) -> tuple[Work, str] | None:
        with self._ready:
            return (self._work.popleft()[0], problem) if self._work and self._transport.is_open else None

    def _put_loss(self, work: Work, problem: str) -> None:
        self._transport.replies.put(Reply(self.clients, work.sequence, problem=problem))

    def _set_here(self, here: bool) -> None:
        with self._transport.changed:
            self.here = here
            self._transport.changed.notify_all()

    def _describe_end(self, error: Exception) -> str:
        if self._process is None or isinstance(error, TimeoutError):
            return str(error) or type(error).__name__
        self._process.join(1.0)
        code = self._process.exitcode
        if code is None:
            return str(error) or type(error).__name__
        what = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process {'ended' if self.here else 'did not start'} ({what})"


def _read_reply(content: bytes, clients: Sequence[int], sequence: int) -> Reply:
    """What a process sent, as the answer to work of that number where it says none."""
    try:
        facts, arrays = unpack(content)
        number, loss = facts.get("sequence", sequence), facts.get("loss", math.nan)
        return Reply(
            clients,
            number if isinstance(number, int) else -1,
            str(facts.get("identity", "")),
            arrays.get("vector"),
            loss if isinstance(loss, float) else math.nan,
            arrays.get("outputs"),
            str(facts.get("problem", "")),
        )
    except ValueError as error:
        return Reply(clients, sequence, problem=str(error))
