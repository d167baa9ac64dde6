"""Live runs with real processes, some of which are killed, hang or fail."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from faulty_clients import faulty_build
from live_clients import children, computed_replay

from asyncfl_bench import run
from asyncfl_bench.experiment import build, execute
from asyncfl_bench.experiment.replay import compare, replay_settings

pytestmark = pytest.mark.process
WORDS = ["live=processes", "model=softmax", "n_clients=4", "evaluation.every=10", "threads=1"]


def lost(directory):
    """(client, reason) of the rows without an upload."""
    rows = [line.split(",", 6) for line in (directory / "arrivals.csv").read_text().splitlines()[1:]]
    return {(int(row[0]), re.sub(r"\(/.*", "(tests)", row[6].strip('"'))) for row in rows if row[3] == "0"}


def assert_same_bits(directory):
    replayed = execute(replay_settings(directory))
    comparison = compare(directory, replayed.directory)
    assert not comparison.difference, comparison
    return comparison


def test_clients_that_die_in_each_phase_raise_hang_or_send_noise_lose_that_work_alone(monkeypatch, tmp_path, capsys):
    faults = {
        (0, 2): "computing",
        (1, 2): "sending",
        (2, 2): "raises",
        (3, 2): "hangs",
        (2, 4): "noise",
        (0, 0): "start",
    }
    monkeypatch.setattr(build, "build_computer", faulty_build(tmp_path, faults))
    # rounds wait for each loss, and one of them is lost whole
    live = run([*WORDS, "algorithm=fedavg", "budget.server_iterations=6", "live.answer_within=5"])
    said = capsys.readouterr().err
    assert live.ok, said
    assert lost(live.directory) == {
        (0, "its process ended (exit code 8)"),
        (1, "its process ended (exit code 9)"),
        (2, "ValueError: no data (tests)"),
        (3, "no upload within live.answer_within=5 s"),
        (2, "not a message (BadZipFile)"),
    }
    assert live.summary["used"] | {"uploads": 28 - 5, "discarded": 5} == live.summary["used"]
    assert "client 0: away: its process ended (exit code 8)" in said and "client 0: back" in said
    assert assert_same_bits(live.directory).arrivals == 28 - 5


class Command:
    """afl-run in a process, which ends or is killed."""

    def __init__(self, *words):
        command = [sys.executable, "-m", "asyncfl_bench", *WORDS, *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def wait_for_rows(self, count):
        """Until the record has that number of rows. Returns the run's directory."""
        until = time.monotonic() + 120
        while time.monotonic() < until:
            assert self.process.poll() is None, self.process.stderr.read()
            for path in Path("runs").glob("*/arrivals.csv"):
                if path.read_bytes().count(b"\n") > count:
                    return path.parent
            time.sleep(0.01)
        raise AssertionError("too slow")

    @property
    def clients(self):
        return [client for child in children(self.process.pid) for client in children(child)]

    def end(self, number=None):
        """(exit code, standard error)"""
        if number is not None:
            os.kill(self.process.pid, number)
        said = self.process.communicate(timeout=180)[1]
        return self.process.returncode, said


SERVER = """
import gc, multiprocessing, os, signal, time
from multiprocessing.connection import Connection
from asyncfl_bench.live.processes import Compute

def hang(tree, folders, clients):
    (pipe,) = (one for one in gc.get_objects() if type(one) is Connection and not one.closed)
    pipe.send_bytes(b"hangs")
    time.sleep(600)

if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("forkserver")
    client = context.Process(target=Compute(hang, {}, [], 0.0), args=(theirs, "mine", [0]), daemon=True)
    client.start()
    theirs.close()
    print(client.pid, ours.recv_bytes().decode(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_client_that_hangs_ends_with_a_server_that_is_killed(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    server = subprocess.Popen([sys.executable, str(tmp_path / "server.py")], stdout=subprocess.PIPE, text=True)
    client, what = server.stdout.readline().split()
    assert what == "hangs" and server.wait(10) == -signal.SIGKILL
    until = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(int(client), 0)
            time.sleep(0.02)
        os.kill(int(client), signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the clients in /proc")
def test_a_run_whose_client_and_server_are_killed_and_stopped_is_replayed_to_the_bit(afl_run):
    words = ["algorithm=ca2fl", "algorithm.buffer_size=5", "live.nap=0.05", "budget.uploads=150", "checkpoint.every=3"]
    words.append("live.keep_uploads=true")
    first = Command(*words)
    directory = first.wait_for_rows(20)
    clients = first.clients
    assert len(clients) == 4
    os.kill(random.choice(clients), signal.SIGKILL)
    rows = (directory / "arrivals.csv").read_bytes().count(b"\n")
    first.wait_for_rows(rows + 20)
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    until = time.monotonic() + 20
    while any(Path(f"/proc/{client}").exists() for client in clients) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [client for client in clients if Path(f"/proc/{client}").exists()]  # nothing is left of it

    second = Command(*words)
    before = (directory / "arrivals.csv").read_text().splitlines()
    while (directory / "arrivals.csv").read_text().splitlines() == before:
        second.wait_for_rows(0)
    code, said = second.end(signal.SIGINT)
    assert code == 75 and "4 of 4 clients are here" in said
    kept = (directory / "arrivals.csv").read_text().splitlines()
    code, said = Command(*words).end()
    assert code == 0, said
    assert (directory / "arrivals.csv").read_text().splitlines()[: len(kept)] == kept  # a stop loses nothing

    summary = json.loads((directory / "summary.json").read_text())
    assert summary["used"]["uploads"] == 150 and summary["used"]["discarded"] <= 1
    done = afl_run("--replay", str(directory))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "same bits with kept uploads: model, 150 arrivals, 4 evaluations",
    )
    assert not computed_replay(directory).difference  # nor did the uploads matter


def test_a_client_that_cannot_build_its_data_ends_the_run_with_the_reason(tmp_path):
    for name, x in (("0", 0.0), ("1", np.nan), ("test", 0.0)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((20, 3), x, np.float32), y=np.arange(20) % 2)
    words = ["n_clients=2", "dataset=local", f"dataset.folder={tmp_path}", "dataset.classes=2", "budget.uploads=9"]
    failed = run([*WORDS, *words, "algorithm=asgd", "live.clients_wait=60"])
    assert failed.summary["exit_status"] == "failed" and failed.summary["wall_seconds"] < 60
    assert re.match(r"client 1: .*1\.npz: .*NaN", failed.summary["error"]), failed.summary["error"]
