"""A SuperNode and its worker, the process with the data, which computes for all messages of the node."""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BenchError, describe_error
from ...files import say
from ...types import Work
from ..messages import compute_reply, end_with_parent, pack, unpack, versions

if TYPE_CHECKING:
    from ...clients.executors import SequentialComputer

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # s; Flower's default is 1
}
PAUSE = 30.0  # s; for up to 60 s Flower treats a dead node as alive, and refuses its successor
PRIVATE_KEY = "--auth-supernode-private-key"
Build = Callable[..., "SequentialComputer"]


def main(build: Build) -> None:
    """Run a SuperNode and its worker until a signal arrives or the SuperNode ends with success. Restart failed ones.

    build  see processes.Compute; it may load torch
    """
    parser = argparse.ArgumentParser(
        "node.py", epilog="Other words are options of flower-supernode.", allow_abbrev=False
    )
    parser.add_argument("clients", type=_read_clients, help="numbers of the node's clients: 0 or 2,3")
    arguments, options = parser.parse_known_args()
    if "--node-config" in options:
        parser.error("--node-config: is set by node.py; leave it out")
    command = find_command(parser, "flower-supernode")
    if not any(option.startswith(PRIVATE_KEY) for option in options):
        key = Path(sys.argv[0]).resolve().parent / "keys" / str(arguments.clients[0])
        if not key.is_file():
            parser.error(f"{key}: no such key; {PRIVATE_KEY} names another one")
        options += [PRIVATE_KEY, str(key)]
    path = Path(tempfile.mkdtemp(prefix="afl-node-")) / "worker"  # a folder only for this user
    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: stop.append(number))
    words = [str(command), *options, "--node-config", f'worker="{path}"']
    context, start_at = multiprocessing.get_context("fork"), 0.0
    node: subprocess.Popen | None = None
    worker: Any = None
    try:
        while not stop and (node is None or node.poll() not in (0, 2)):  # 2: an unknown option
            if worker is None or not worker.is_alive():
                worker = context.Process(target=serve, args=(build, arguments.clients, path))
                worker.start()
            if node is not None and node.poll() is not None:
                say(f"node.py: the SuperNode ended with code {node.returncode}; the next one starts in {PAUSE:g} s")
                node, start_at = None, time.monotonic() + PAUSE
            if node is None and time.monotonic() >= start_at:
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    port = str(free.getsockname()[1])
                node = subprocess.Popen([*words, "--port", port], preexec_fn=_end_with_parent_process)
            time.sleep(0.2)
    finally:
        if node is not None:
            node.terminate()
            node.wait()
        if worker is not None:
            worker.kill()
        shutil.rmtree(path.parent, ignore_errors=True)


def _end_with_parent_process() -> None:
    """Let Linux end this process when its parent is killed; other systems do not."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def find_command(parser: argparse.ArgumentParser, name: str) -> Path:
    """Return the path of a command of Flower, and set its environment. Exits with an error without Flower."""
    command = Path(sys.executable).with_name(name)
    if not command.exists():
        parser.error("needs pip install 'asyncfl_bench[flower]'")
    path = os.pathsep.join([str(command.parent), os.environ.get("PATH", "")])  # it starts other commands by name
    os.environ |= ENVIRONMENT | os.environ | {"PATH": path}
    return command


def _read_clients(text: str) -> list[int]:
    if not all(one.isdecimal() for one in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: must be numbers of clients: 0 or 2,3")
    return [int(one) for one in text.split(",")]


def serve(build: Build, clients: list[int], path: Path) -> None:
    """Reply to messages without end, one at a time."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the node ends it
    threading.Thread(target=end_with_parent, daemon=True).start()
    worker = Worker(build, clients)
    path.unlink(missing_ok=True)
    with Listener(str(path), "AF_UNIX") as listener:
        while True:
            with suppress(EOFError, OSError), listener.accept() as pipe:  # the ClientApp was killed
                pipe.send_bytes(worker.reply_to(pipe.recv_bytes()))


class Worker:
    """Computes the work of the node's clients with the executor of the latest run."""

    def __init__(self, build: Build, clients: list[int]):
        self._build, self._clients = build, clients
        self._run: dict[str, Any] = {}
        self._computer: SequentialComputer | None = None

    def reply_to(self, content: bytes) -> bytes:
        facts, arrays = unpack(content)
        work, within = facts.pop("work", None), facts.pop("within")
        try:
            if self._computer is None or facts != self._run:
                if max(self._clients) >= (n := facts["tree"]["n_clients"]):
                    raise BenchError(f"has clients {self._clients}, not numbers below {n}")
                self._computer = self._build(facts["tree"], [Path(one) for one in facts["folders"]], self._clients)
                self._run = facts
        except Exception as error:
            return pack({"problem": str(error) if isinstance(error, BenchError) else describe_error(error)})
        if work is None:
            return pack({"clients": self._clients, "versions": versions()})
        timer = threading.Timer(within or 0.0, os._exit, (1,))  # the server has given it up by then
        if within is not None:
            timer.start()
        try:
            return compute_reply(self._computer, facts["identity"], Work(**work), arrays)
        finally:
            timer.cancel()
