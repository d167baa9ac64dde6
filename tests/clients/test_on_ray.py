"""The executor on Ray: the bits of one after another, whatever is lost on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from toy import assert_same_bits

from asyncfl_bench import run
from asyncfl_bench.clients.on_ray import _connect

WORDS = ["algorithm=fedbuff", "n_clients=20", "progress=false", "threads=2", "trace=true", "client.local_steps=30"]
FAULTY = [*WORDS, "budget.uploads=500", "checkpoint.every=3", "evaluation.every=3"]


@pytest.fixture(autouse=True, scope="module")
def token():
    """The token of every Ray that the tests start, as each test has another home folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "token")
        patched.setenv("RAY_AUTH_TOKEN", "0" * 64)
        yield


def assert_same_folders(*folders):
    assert_same_bits(*(SimpleNamespace(directory=folder) for folder in folders))


def test_a_plan_is_refused_as_the_run_is(monkeypatch, afl_run):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["algorithm=fedbuff", "scale=smoke", "model=softmax", "executor=ray"]
    assert "executor=ray: needs pip install" in afl_run(*words).stderr
    planned = afl_run(*words, "--plan")
    assert planned.returncode == 2 and "refused: executor=ray: needs pip install" in planned.stdout


def test_a_ray_of_this_machine_binds_to_the_loopback_and_a_named_cluster_does_not(monkeypatch):
    constants, seen = SimpleNamespace(ENABLE_RAY_CLUSTER=True), []
    private = ModuleType("ray._private")
    private.ray_constants = constants
    ray = SimpleNamespace(init=lambda *_, **__: seen.append(constants.ENABLE_RAY_CLUSTER), is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray._private", private)
    for address in ("", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert _connect(1) and constants.ENABLE_RAY_CLUSTER
    assert seen == [False, True]


LISTENING = """
import json, os
from pathlib import Path
from asyncfl_bench.clients.on_ray import _connect

def processes():
    return {path for path in Path("/proc").glob("[0-9]*")}

before = processes()
_connect(1)
sockets = {}
for name in ("tcp", "tcp6"):
    for words in map(str.split, Path("/proc/net", name).read_text().splitlines()[1:]):
        if words[3] == "0A":
            sockets[f"socket:[{words[9]}]"] = words[1].partition(":")[0]
found = set()
for process in {*(processes() - before), Path("/proc/self")}:
    for file in Path(process, "fd").iterdir():
        if file.is_symlink():
            found.add(sockets.get(os.readlink(file)))
print(json.dumps([os.environ.get("RAY_AUTH_MODE"), sorted(found - {None})]))
"""


@pytest.mark.slow
@pytest.mark.process
def test_ray_on_one_machine_listens_on_the_loopback_alone_and_asks_for_a_token(monkeypatch):
    pytest.importorskip("ray.cluster_utils", reason="see below")
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    answer = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True)
    mode, addresses = json.loads(answer.stdout.splitlines()[-1])
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert mode == "token" and addresses and {*addresses} <= loopback


@pytest.mark.slow
@pytest.mark.process
def test_ray_gives_the_bits_of_one_after_another_with_all_vectors_that_work_starts_from(tmp_path, monkeypatch):
    pytest.importorskip("ray.cluster_utils", reason="the extra ray holds joblib back, so tests go without it")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    for executor in ("sequential", "ray"):
        words = ["algorithm=feddyn", "client.local_steps=3", "client.lr_decay=0.8", "budget.uploads=60"]
        result = run([*WORDS[1:-1], *words, f"executor={executor}", f"hydra.run.dir={tmp_path}/{executor}"])
        assert result.ok and result.summary["executor"] == executor
    assert_same_folders(tmp_path / "sequential", tmp_path / "ray")
    assert signal.getsignal(signal.SIGTERM) == before


def workers(parents):
    """Ids of Ray's processes whose parent is one of these and which compute, or did so and wait for more."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in parents and (folder / "cmdline").read_bytes().startswith((b"ray::compute", b"ray::IDLE")):
                found.append(int(folder.name))
    return found


def wait_for(happened):
    until = time.monotonic() + 120
    while not (value := happened()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return value


@pytest.mark.slow
@pytest.mark.process
def test_a_killed_worker_ctrl_c_a_lost_node_and_a_killed_server_change_no_bit(tmp_path, monkeypatch):
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="see above")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    lines, folder, started = tmp_path / "faults/metrics.jsonl", tmp_path / "faults", []

    def start():
        command = [sys.executable, "-m", "asyncfl_bench", *FAULTY, "executor=ray", f"hydra.run.dir={folder}"]
        with open(tmp_path / "err", "w") as err:
            started.append(subprocess.Popen(command, stderr=err, start_new_session=True))
        return started[-1]

    def wait_for_lines(more):
        seen = len(lines.read_text().splitlines()) if lines.exists() else 0
        wait_for(lambda: lines.exists() and len(lines.read_text().splitlines()) >= seen + more)

    try:
        node = cluster.add_node(num_cpus=1)
        raylets = [one.all_processes["raylet"][0].process.pid for one in (cluster.head_node, node)]
        first = start()
        wait_for_lines(2)
        os.kill(wait_for(lambda: workers(raylets))[0], signal.SIGKILL)
        wait_for_lines(2)
        os.killpg(first.pid, signal.SIGINT)
        assert first.wait(timeout=60) == 75
        err = (tmp_path / "err").read_text()
        assert "nodes: 2" in err and "Traceback" not in err
        second = start()
        wait_for_lines(2)
        wait_for(lambda: workers(raylets[1:]))
        cluster.remove_node(node, allow_graceful=False)
        wait_for_lines(2)
        second.kill()
        assert start().wait(timeout=300) == 0
    finally:
        for process in started:
            process.kill()
            process.wait()
        cluster.shutdown()
    assert run([*FAULTY, "executor=sequential", f"hydra.run.dir={tmp_path}/sequential"]).ok
    assert_same_folders(tmp_path / "sequential", folder)
