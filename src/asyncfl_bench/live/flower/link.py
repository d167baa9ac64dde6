"""A SuperLink that only accepts nodes with registered keys, by default on the loopback address."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ...files import say
from .node import find_command

LOOPBACK = "127.0.0.1"


def main() -> None:
    """Replace this process by a SuperLink. A second process registers the keys of the app's nodes."""
    app = Path(sys.argv[0]).resolve().parent
    parser = argparse.ArgumentParser(
        "superlink.py", epilog="Other words are options of flower-superlink.", allow_abbrev=False
    )
    parser.add_argument("--host", default=LOOPBACK, help="address for nodes and for flwr run; default 127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="default 8000")
    arguments, options = parser.parse_known_args()
    command, flwr = find_command(parser, "flower-superlink"), find_command(parser, "flwr")
    keys = sorted((app / "keys").glob("*.pub"), key=lambda key: (len(key.name), key.name))
    if not keys:
        parser.error(f"{app / 'keys'}: has no keys of nodes; write the app again: afl-run --live-app")
    if "--insecure" in options:
        parser.error("--insecure: nodes prove their keys over TLS; leave it out")
    if arguments.host != LOOPBACK:
        say(f"superlink.py: each machine that reaches {arguments.host}:{arguments.port} can start an app on this one")
    link = os.getpid()
    if not os.fork():
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it ends with the SuperLink
        while os.getppid() == link:
            with suppress(OSError), socket.create_connection((arguments.host, arguments.port), 1.0):
                register_keys(flwr, keys, app / ".flwr")
                break
            time.sleep(0.1)
        os._exit(0)
    own = ["--host", arguments.host, "--port", str(arguments.port), "--enable-supernode-auth"]
    own += ["--ssl-ca-certfile", str(app / "tls/cert.pem"), "--ssl-certfile", str(app / "tls/cert.pem")]
    own += ["--ssl-keyfile", str(app / "tls/key.pem"), "--disable-runtime-dependency-installation"]
    os.execv(command, [str(command), *own, *options])


def register_keys(flwr: Path, keys: list[Path], home: Path) -> None:
    """Register the nodes' public keys and print their number or the problem. home: folder of config.toml"""
    problem = ""
    for key in keys:
        words = [str(flwr), "supernode", "register", str(key)]
        environment = os.environ | {"FLWR_HOME": str(home)}
        done = subprocess.run(words, env=environment, capture_output=True, encoding="utf-8", errors="replace")
        problem = f"{key}: not registered: {done.stderr or done.stdout}" if done.returncode else problem
    say(f"superlink.py: {problem or f'{len(keys)} nodes are registered'}")
