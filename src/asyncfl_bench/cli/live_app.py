"""A live run as a Flower app: a folder that ``flwr run`` takes, and what starts a node."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

from ..config.part_sources import named_folders
from ..errors import ConfigError, InputError
from ..files import atomic_write

ADDRESS = "127.0.0.1:8000"  # Flower's default
FILES = {
    "pyproject.toml": """\
# Written by afl-run --live-app.
[project]
name = "afl-live"
version = "0.1.0"
description = "A live run of asyncfl_bench"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "afl"

[tool.flwr.app.components]
serverapp = "afl_live.server:app"
clientapp = "afl_live.client:app"

[tool.flwr.app.config]
words = {words}
folders = {folders}
directory = {directory}
""",
    "afl_live/__init__.py": "",
    "afl_live/server.py": """\
from asyncfl_bench import run
from asyncfl_bench.live.flower.server_app import build_app

app = build_app(run)
""",
    "afl_live/client.py": """\
from asyncfl_bench.live.flower.client_app import app

__all__ = ["app"]
""",
    "node.py": """\
from asyncfl_bench.live.flower.node import main


def build(*arguments):
    from asyncfl_bench.experiment.build import build_computer  # brings torch, which only the worker needs

    return build_computer(*arguments)


main(build)
""",
    "superlink.py": """\
from asyncfl_bench.live.flower.link import main

main()
""",
    ".flwr/config.toml": """\
[superlink]
default = "live"

[superlink.live]
address = "{address}"
root-certificates = {certificate}
""",
}
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj /CN=localhost"
    " -addext subjectAltName=IP:127.0.0.1,DNS:localhost -addext keyUsage=critical,digitalSignature,keyCertSign"
    " -keyout {app}/tls/key.pem -out {app}/tls/cert.pem"
)
COMMANDS = """\
{app}: a Flower app. In three terminals, after a certificate for this machine (once):

{certificate}

python {app}/superlink.py

for i in {clients}; do python {app}/node.py $i --superlink {address} --root-certificates {app}/tls/cert.pem & done; wait

FLWR_HOME={app}/.flwr flwr run {app} --stream

Other users of this machine can start an app at {address} too: use a container or a separate machine."""


def write_keys(folder: Path, n_clients: int) -> None:
    """Write a pair of keys for each client's node, unless it is there; others of this machine cannot read the folder.

    Raises InputError without ssh-keygen.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    for client in range(n_clients):
        key = folder / str(client)
        if key.exists() and key.with_suffix(".pub").exists():
            continue
        key.unlink(missing_ok=True)
        words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", f"client {client}", "-f", str(key)]
        try:
            subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise InputError("--live-app needs ssh-keygen for the nodes' keys: install OpenSSH's client") from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            raise InputError(f"{key}: ssh-keygen made no key: {said}") from None


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML, which has no surrogate pairs


def write(folder: Path, words: list[str], n_clients: int) -> str:
    """Write the app, or renew it. Returns how to start it. Raises ConfigError for a folder with something else."""
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    mark, project = FILES["pyproject.toml"].partition("\n")[0], folder / "pyproject.toml"
    is_own = project.is_file() and project.read_text(encoding="utf-8", errors="replace").startswith(mark)
    if not (is_free or is_own):
        raise ConfigError("--live-app", folder, "must be a new folder, or one that --live-app wrote")
    texts = {
        "words": _toml_string(shlex.join(words)),
        "folders": _toml_string(shlex.join(str(one) for one in named_folders())),
        "directory": _toml_string(os.getcwd()),
        "certificate": _toml_string(str(folder.resolve() / "tls" / "cert.pem")),
        "address": ADDRESS,
    }
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write((text.format(**texts) if path.suffix == ".toml" else text).encode())
    (folder / "tls").mkdir(exist_ok=True)
    write_keys(folder / "keys", n_clients)
    app = shlex.quote(str(folder))
    clients = " ".join(map(str, range(n_clients)))
    return COMMANDS.format(app=app, certificate=CERTIFICATE.format(app=app), clients=clients, address=ADDRESS)
