"""A SuperNode and its worker: the process that has the data and computes, for all messages that the node gets."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BenchError, describe_error
from ...types import Work
from ..messages import pack, unpack, versions
from ..work import compute_reply, end_with_parent

if TYPE_CHECKING:
    from ...clients.executors import SequentialComputer

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # s; Flower's default is 1
}
Build = Callable[..., "SequentialComputer"]


def main(build: Build) -> None:
    """Become a SuperNode, beside its worker. build: see processes.Compute; it may load torch, which this does not"""
    command = Path(sys.executable).with_name("flower-supernode")
    parser = argparse.ArgumentParser(
        "node.py", epilog="Other words are options of flower-supernode.", allow_abbrev=False
    )
    parser.add_argument("clients", type=_read_clients, help="numbers of the node's clients: 0 or 2,3")
    arguments, options = parser.parse_known_args()
    if "--node-config" in options:
        parser.error("--node-config: is set by node.py; leave it out")
    if not command.exists():
        parser.error("needs pip install 'asyncfl_bench[flower]'")
    path, node = Path(tempfile.mkdtemp(prefix="afl-node-")) / "worker", os.getpid()  # a folder of this user's alone
    if not os.fork():
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the node's end is theirs
        while os.getppid() == node:
            worker = multiprocessing.get_context("fork").Process(target=serve, args=(build, arguments.clients, path))
            worker.start()
            while worker.is_alive() and os.getppid() == node:
                worker.join(0.2)
            worker.kill()
        shutil.rmtree(path.parent, ignore_errors=True)
        os._exit(0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path_of_flower = os.pathsep.join([str(command.parent), os.environ.get("PATH", "")])  # it starts others by name
    os.environ |= ENVIRONMENT | os.environ | {"PATH": path_of_flower}
    os.execv(command, [str(command), "--port", port, *options, "--node-config", f'worker="{path}"'])


def _read_clients(text: str) -> list[int]:
    if not all(one.isdecimal() for one in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: must be numbers of clients: 0 or 2,3")
    return [int(one) for one in text.split(",")]


def serve(build: Build, clients: list[int], path: Path) -> None:
    """Answer messages without end, one at a time."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    worker = Worker(build, clients)
    path.unlink(missing_ok=True)
    with Listener(str(path), "AF_UNIX") as listener:
        while True:
            with suppress(EOFError, OSError), listener.accept() as pipe:  # the ClientApp was killed
                pipe.send_bytes(worker.answer(pipe.recv_bytes()))


class Worker:
    """Computes the work of the node's clients, with the computer of the latest run."""

    def __init__(self, build: Build, clients: list[int]):
        self._build, self._clients = build, clients
        self._run: dict[str, Any] = {}
        self._computer: SequentialComputer | None = None

    def answer(self, content: bytes) -> bytes:
        facts, arrays = unpack(content)
        work, within = facts.pop("work", None), facts.pop("within")
        try:
            computer = self._computer_of(facts)
        except Exception as error:
            return pack({"problem": str(error) if isinstance(error, BenchError) else describe_error(error)})
        if work is None:
            return pack({"clients": self._clients, "versions": versions()})
        timer = threading.Timer(within or 0.0, os._exit, (1,))  # by then the server has given it up
        if within is not None:
            timer.start()
        try:
            return compute_reply(computer, facts["identity"], Work(**work), arrays)
        finally:
            timer.cancel()

    def _computer_of(self, run: dict[str, Any]) -> SequentialComputer:
        if self._computer is None or run != self._run:
            if max(self._clients) >= (n := run["tree"]["n_clients"]):
                raise BenchError(f"has clients {self._clients}, not numbers below {n}")
            self._computer = self._build(run["tree"], [Path(one) for one in run["folders"]], self._clients)
            self._run = run
        return self._computer
