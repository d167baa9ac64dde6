"""A run on Flower itself, on this machine with TLS, by the commands that ``afl-run --live-app`` prints."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
from live_clients import children

from asyncfl_bench.errors import BenchError, RunInUse

pytest.importorskip("flwr")  # an optional extra, which has an environment of its own: flwr holds packages back
pytestmark = [pytest.mark.process, pytest.mark.slow]
WORDS = [
    "algorithm=ca2fl",
    "model=softmax",
    "n_clients=3",
    "budget.uploads=24",
    "evaluation.every=2",
    "algorithm.buffer_size=4",
]


class Deployment:
    """The app, and what runs of it; all of it ends with the test."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        self.environment = os.environ | quiet | {"PATH": os.pathsep.join(paths), "FLWR_HOME": str(folder / "app/.flwr")}
        self.folder, self.started, self.links = folder, [], 0
        said = subprocess.check_output(
            [sys.executable, "-m", "asyncfl_bench", "--live-app", "app", *WORDS], text=True, env=self.environment
        )
        self.commands = dict.fromkeys(("openssl", "superlink.py", "node.py", "flwr"))
        for name in self.commands:
            (self.commands[name],) = (
                line for line in said.splitlines() if name in line.replace("/.flwr", "") and "Flower app" not in line
            )
        subprocess.run(shlex.split(self.commands["openssl"]), check=True, capture_output=True)
        config = folder / "app/.flwr/config.toml"
        config.write_text(config.read_text().replace("8000", self.port))

    def start(self, name, *words):
        """Start a command in the background."""
        log = (self.folder / f"{name}.log").open("ab")
        one = subprocess.Popen(words, stdout=log, stderr=log, env=self.environment, start_new_session=True)
        self.started.append(one)
        return one

    def start_link(self):
        link = self.start("link", *shlex.split(self.commands["superlink.py"]), "--port", self.port)
        self.links += 1
        until = time.monotonic() + 120
        while time.monotonic() < until:  # neither flwr run nor a node waits for it
            if (self.folder / "link.log").read_text().count("3 nodes are registered") == self.links:
                return link
            time.sleep(0.1)
        raise AssertionError((self.folder / "link.log").read_text())

    def start_node(self, clients, *options):
        command = self.commands["node.py"].partition("; do ")[2].partition(" &")[0]
        words = shlex.split(command.replace("$i", clients).replace("8000", self.port))
        return self.start("nodes", *words, *options)

    def start_run(self):
        return self.start("run", *shlex.split(self.commands["flwr"].partition(" ")[2]))

    def wait_for(self, what, count):
        """Until a file of the run has that number of lines, or the log of the run that text."""
        until = time.monotonic() + 240
        while time.monotonic() < until:
            said = (self.folder / "run.log").read_text()
            rows = sum(path.read_bytes().count(b"\n") for path in Path("runs").glob("*/arrivals.csv"))
            if (said.count(what) if what else rows) >= count:
                return rows
            time.sleep(0.2)
        raise AssertionError(said)

    def end(self):
        for one in reversed(self.started):
            if one.poll() is None:
                one.terminate()
        for one in self.started:
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


@pytest.fixture
def deployment(tmp_path):
    one = Deployment(tmp_path)
    yield one
    one.end()


def test_a_run_whose_node_and_superlink_are_killed_is_replayed_to_the_bit(deployment, afl_run):
    link = deployment.start_link()
    first, _ = deployment.start_node("0,1"), deployment.start_node("2")
    deployment.start_run()
    deployment.wait_for("", 5)
    (node,) = (pid for pid in children(first.pid) if "supernode" in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(node, signal.SIGKILL)
    deployment.wait_for("client 1: back", 1)
    rows = deployment.wait_for("", 1)
    deployment.wait_for("", rows + 4)

    link.send_signal(signal.SIGKILL)
    link.wait()
    deployment.wait_for("", 1)
    until = time.monotonic() + 60
    while not [path for path in Path("runs").glob("*/summary.json")]:
        assert time.monotonic() < until
        time.sleep(0.2)
    (directory,) = Path("runs").iterdir()
    assert json.loads((directory / "summary.json").read_text())["exit_status"] == "interrupted"
    kept = (directory / "arrivals.csv").read_text()
    deployment.end()  # nodes do not outlive the SuperLink that knew them

    deployment.start_link()
    deployment.start_node("0,1"), deployment.start_node("2")
    assert deployment.start_run().wait(300) == 0
    assert (directory / "arrivals.csv").read_text().startswith(kept)  # a stop loses nothing
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["exit_status"] == "ok" and summary["used"]["uploads"] == 24
    done = afl_run("--replay", str(directory))
    assert (done.returncode, done.stdout.splitlines()[-1].partition(",")[0]) == (0, "same bits: model")


def test_a_node_whose_key_is_not_registered_is_refused(deployment):
    deployment.start_link()
    key = deployment.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
    stranger = deployment.start_node("2", "--auth-supernode-private-key", str(key))
    log, until = deployment.folder / "nodes.log", time.monotonic() + 60
    while "the SuperNode ended with code 1" not in log.read_text():
        assert time.monotonic() < until and stranger.poll() is None, log.read_text()
        time.sleep(0.1)


def test_a_run_that_is_refused_ends_the_app_with_its_message_and_no_stack(monkeypatch, tmp_path):
    from asyncfl_bench.live.flower import server_app  # needs flwr

    def refuse(words, config_dir):
        raise RunInUse("runs/a: another process is working on this run")

    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    monkeypatch.setattr(server_app, "grids", [])
    monkeypatch.chdir(tmp_path)
    config = {"words": "live=flower", "folders": "", "directory": str(tmp_path)}
    with pytest.raises(BenchError) as caught:
        server_app.build_app(refuse)(None, SimpleNamespace(run_config=config))
    said = "asyncfl_bench.errors.BenchError: runs/a: another process is working on this run\n"
    assert traceback.format_exception(caught.value) == [said]
