"""Clients as processes of this machine. A process that dies is restarted, and its current work is lost.

One server thread per process exchanges messages with it, so a hanging process does not delay the others.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BenchError, locating_user_errors
from ..types import Work
from .choice import ProcessesConfig
from .messages import VECTORS, WorkVectors, compute_reply, end_with_parent, pack, read_reply, unpack
from .threaded_transport import ThreadedTransport

if TYPE_CHECKING:
    from ..clients.executors import SequentialComputer

PRELOADED = ["torch", "pandas", "asyncfl_bench.experiment.build"]  # once, for all processes
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # s before a process that died without work is started again


class Compute:
    """Main function of a client process, as a picklable callable.

    build     builds the computer of a run from its resolved config (experiment.build.build_computer)
    identity  of the run;  nap: s, mean of a random pause before each upload
    """

    def __init__(self, build: Callable[..., SequentialComputer], tree: dict, folders: list[Path], nap: float):
        self._build, self._tree, self._folders, self._nap = build, tree, folders, nap

    def __call__(self, pipe: Connection, identity: str, clients: Sequence[int]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
        threading.Thread(target=end_with_parent, daemon=True).start()
        hello: dict[str, Any] = {"hello": True}
        try:
            with locating_user_errors():
                computer = self._build(self._tree, self._folders, clients)
        except (BenchError, OSError) as error:
            hello = {"problem": str(error)}
        with suppress(EOFError, OSError):  # the server is gone
            pipe.send_bytes(pack(hello))
            while "problem" not in hello:
                facts, arrays = unpack(pipe.recv_bytes())
                time.sleep(np.random.default_rng().exponential(self._nap))
                pipe.send_bytes(compute_reply(computer, identity, Work(**facts), arrays))


class LocalProcesses(ThreadedTransport):
    """Processes of clients: client i is in process i modulo their number.

    options  of ``ThreadedTransport``
    """

    def __init__(self, config: ProcessesConfig, compute: Compute, *, n_clients: int, **options: Any):
        assert config.count is not None
        super().__init__(config, n_clients=n_clients, **options)
        self.compute, self.context = compute, multiprocessing.get_context("forkserver")
        self._processes = [_ClientProcess(self, range(first, n_clients, config.count)) for first in range(config.count)]

    def begin(self) -> None:
        self.context.set_forkserver_preload(PRELOADED)
        for process in self._processes:
            process.thread.start()

    def dismiss(self, client: int) -> None:
        super().dismiss(client)
        self._processes[client % len(self._processes)].dismiss(client)

    def close(self) -> None:
        self.closed = True
        for process in self._processes:
            process.end()

    def clients_here(self) -> set[int]:
        return {client for process in self._processes if process.here for client in process.clients}


class _ClientProcess:
    """The current process of some clients.

    here  the process has connected and lives
    """

    def __init__(self, transport: LocalProcesses, clients: Sequence[int]):
        self.clients, self.here = list(clients), False
        self.thread = threading.Thread(target=self._run, name=f"afl-clients-{clients[0]}", daemon=True)
        self._transport = transport
        self._in_hand: Work | None = None
        self._process: Any = None
        self._dismissed: set[int] = set()

    # -- the server's thread -----------------------------------------------------------------------------------------

    def dismiss(self, client: int) -> None:
        self._dismissed.add(client)
        if self._is_over:
            self.end()

    def end(self) -> None:
        """End the process. Its thread then ends, or starts another one."""
        with self._transport.changed:
            self._transport.changed.notify_all()
        if (process := self._process) is not None:
            process.kill()
            process.join(1.0)

    # -- the process's own thread --------------------------------------------------------------------------------------

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
                    self._transport.put_loss(self.clients, *lost)
                lost, pause = None, FIRST_PAUSE
                self._exchange(pipe)
            except BenchError as error:
                problem = str(error)
                self._transport.refusal = f"{name}: {problem}"
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
                self._transport.put_loss(self.clients, *lost)
            lost = None
            with self._transport.changed:
                self._transport.changed.wait_for(lambda: self._is_over, pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _start_process(self) -> Connection:
        """Start a process and wait for its hello. Raises EOFError or OSError, and BenchError if it cannot work."""
        transport, self._process = self._transport, None
        pipe, end = transport.context.Pipe()
        process = transport.context.Process(
            target=transport.compute, args=(end, transport.identity, self.clients), daemon=True
        )
        process.start()
        self._process = process  # not before: ``end`` cannot kill a process before its start
        end.close()
        if self._is_over:
            raise EOFError
        if not pipe.poll(transport.config.clients_wait):
            raise TimeoutError(f"no hello within live.clients_wait={transport.config.clients_wait:g} s")
        if problem := read_reply(pipe.recv_bytes(transport.largest), self.clients, 0).problem:
            raise BenchError(problem)
        return pipe

    def _exchange(self, pipe: Connection) -> None:
        """Exchange work and replies until the run is over. Raises EOFError or OSError if the process ended or hangs."""
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

    def _next_work(self) -> tuple[Work, WorkVectors] | None:
        while not self._is_over:
            with self._transport.changed:
                if (pair := self._transport.pop_work(self.clients.__contains__)) is not None:
                    return pair
                self._transport.changed.wait(0.2)
            if not self._process.is_alive():
                raise EOFError
        return None

    def _receive(self, pipe: Connection, work: Work) -> None:
        """Pass replies on, up to the reply to this work."""
        while True:
            try:
                content = pipe.recv_bytes(self._transport.largest)
            except OSError:
                if pipe.readable:  # not after a message that is too long
                    raise
                raise OSError(f"a reply of more than {self._transport.largest} bytes") from None
            reply = read_reply(content, self.clients, work.sequence)
            self._transport.replies.put(reply)
            if reply.sequence == work.sequence:
                return

    def _take_first(self, problem: str) -> tuple[Work, str] | None:
        pair = self._transport.pop_work(self.clients.__contains__)
        return None if pair is None else (pair[0], problem)

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
