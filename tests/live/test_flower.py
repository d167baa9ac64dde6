"""Clients on Flower's nodes, with a script in the place of Flower, which need not be installed."""

from __future__ import annotations

import io
import shlex
import signal
import sys
import threading
import time
import tomllib
import tracemalloc
import zipfile
from itertools import count

import numpy as np
import pytest

from asyncfl_bench.cli import live_app
from asyncfl_bench.cli.command import _main
from asyncfl_bench.errors import BenchError, Stopped
from asyncfl_bench.live.choice import RealConfig
from asyncfl_bench.live.flower import link, node
from asyncfl_bench.live.flower import transport as flower
from asyncfl_bench.live.flower.transport import FlowerTransport, NodeReply
from asyncfl_bench.live.messages import pack, unpack, versions
from asyncfl_bench.live.replies import Inbox
from asyncfl_bench.types import Work

D = 3
ONES_D = np.ones(D, np.float32)
HANGS = object()


class ScriptedGrid:
    """Flower, whose nodes answer as a script says: what a node does with a message of work."""

    def __init__(self):
        self.there, self.names, self.sent, self.seen = {}, count(), {}, []
        self.hangs, self.may_return = threading.Event(), threading.Event()  # pulls that hang
        self.error = None

    def add(self, number, clients, does=None, **hello):
        """does(facts, arrays): the reply as bytes, an NodeReply, None for no answer yet, or HANGS."""
        self.there[number] = pack({"clients": clients, "versions": versions()} | hello), does or upload

    def nodes(self):
        if self.error is not None:
            raise self.error
        return {*self.there}

    def push(self, number, kind, content):
        name = f"{next(self.names)}"
        self.sent[name] = number, kind, content, self.there[number]
        return name

    def pull(self, name):
        number, kind, content, (hello, does) = self.sent[name]
        if kind == "query":
            return NodeReply(hello)
        facts, arrays = unpack(content)
        answer = does(facts, arrays)
        if answer is HANGS:
            self.hangs.set()
            self.may_return.wait(5)
            answer = upload(facts, arrays)
        if answer is None:
            return None
        self.seen.append((number, facts["work"]["client"]))
        return answer if isinstance(answer, NodeReply) else NodeReply(answer)


def upload(facts, arrays, **changes):
    said = {"sequence": facts["work"]["sequence"], "identity": facts["identity"], "loss": 0.5} | changes
    vector = said.pop("vector", arrays["start"] + 1)
    return pack(said, vector=vector)


class Server:
    """An inbox over Flower, with the number of clients that the test needs."""

    def __init__(self, grid, n=2, **config):
        self.said, self.stop = [], []
        self.config = RealConfig(**({"clients_wait": 5.0} | config))
        self.transport = FlowerTransport(
            self.config, grid, {"tree": {}, "folders": []}, n_clients=n, identity="mine", largest=2000,
            report=self.said.append,
        )  # fmt: skip
        self.inbox = Inbox(
            self.transport, d=D, shape_uc=None, identity="mine", strikes=3, must_stay="", stop=self.stop,
            report=self.said.append,
        )  # fmt: skip
        self.inbox.vectors = lambda work: [np.zeros(D, np.float32), None, None]
        self.client_of = []

    def send(self, client):
        work = Work(client, len(self.client_of), 0, 0, local_steps=1)
        self.client_of.append(client)
        self.inbox.send(work)
        return work

    def next(self, seconds=3.0):
        """(client, what was wrong) of the next reply, or None."""
        until = time.monotonic() + seconds
        reply = self.inbox.next_reply(lambda: until - time.monotonic())
        if reply is not None:
            self.inbox._unused.pop(reply.sequence)
        return reply and (self.client_of[reply.sequence], reply.problem)

    def wait_until(self, text):
        until = time.monotonic() + 3
        while not any(text in line for line in self.said):
            assert time.monotonic() < until, self.said
            time.sleep(0.002)


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(flower, "LOOK", 0.005)
    monkeypatch.setattr(flower, "POLL", 0.002)
    monkeypatch.setattr(flower, "PAUSE", 0.005)
    servers = []

    def build(grid, n=2, **config):
        servers.append(Server(grid, n, **config))
        return servers[-1]

    yield build
    for one in servers:
        one.transport.close()
        one.transport.grid.may_return.set()


def test_a_pull_that_hangs_delays_no_other_node_and_its_client_works_on_when_its_node_is_back(serve):
    grid = ScriptedGrid()
    grid.add(1, [0], lambda facts, arrays: HANGS)
    grid.add(2, [1])
    server = serve(grid)
    server.send(0)
    for _ in range(5):
        server.send(1)
        assert server.next() == (1, "")
    assert server.transport.status() == "2 here"
    assert grid.hangs.wait(3)  # work that was not sent would wait for another node
    del grid.there[1]
    while server.transport.status() != "1 here, 1 away":
        time.sleep(0.002)
    assert server.next(0.05) is None  # it may be back
    grid.add(3, [0])
    assert server.next() == (0, "its node is gone")
    server.send(0)
    assert server.next() == (0, "")
    grid.may_return.set()
    assert server.next(0.05) is None and not server.inbox.refusals  # the answer of the dead node is passed over


def test_work_of_a_node_that_died_is_lost_when_it_is_back_or_at_the_limit(serve):
    grid = ScriptedGrid()

    def dies(facts, arrays):
        grid.there.pop(1, None)
        return NodeReply(problem="heartbeat", gone=True)

    grid.add(1, [0], dies)
    server = serve(grid, n=1)
    server.send(0)
    server.inbox.start()
    server.wait_until("client 0: away: its node is gone (heartbeat)")
    assert server.next(0.03) is None
    grid.add(4, [0])
    assert server.next() == (0, "its node is gone (heartbeat)")

    grid = ScriptedGrid()
    grid.add(1, [0], dies)
    server = serve(grid, n=1, answer_within=0.05)
    for _ in range(2):  # the second one finds no node
        server.send(0)
        assert server.next() == (0, "no upload within live.answer_within=0.05 s")


def test_a_slow_client_loses_its_work_at_the_limit_and_gets_the_next(serve):
    grid, slow = ScriptedGrid(), [True]
    grid.add(
        1, [0, 1], lambda facts, arrays: None if facts["work"]["sequence"] == 0 and slow else upload(facts, arrays)
    )
    server = serve(grid, answer_within=0.05)
    server.send(0), server.send(1)
    assert {server.next(), server.next()} == {(0, "no upload within live.answer_within=0.05 s"), (1, "")}
    slow.clear()
    server.send(0)
    assert server.next() == (0, "") and grid.seen == [(1, 1), (1, 0)]


def test_cancelled_work_is_not_waited_for(serve):
    grid = ScriptedGrid()
    grid.add(1, [0], lambda facts, arrays: None if facts["work"]["sequence"] == 0 else upload(facts, arrays))
    server = serve(grid, n=1)
    first = server.send(0)
    server.inbox.start()
    while server.transport.clients[0].current is None:
        time.sleep(0.002)
    server.inbox.forget(first)
    server.send(0)
    assert server.next() == (0, "")


FAULTS = {
    "shape": (lambda f, a: upload(f, a, vector=ONES_D[:2]), "upload of shape (2,) float32, not (3,) float32"),
    "nan": (lambda f, a: upload(f, a, vector=ONES_D * np.nan), "upload with numbers that are not finite"),
    "run": (lambda f, a: upload(f, a, identity="other"), "belongs to run other, not to mine"),
    "empty": (lambda f, a: pack({"sequence": f["work"]["sequence"], "identity": "mine"}), "has no upload"),
    "raises": (lambda f, a: pack({"problem": "ValueError: no data"}), "ValueError: no data"),
    "crashes": (lambda f, a: NodeReply(problem="ClientApp crashed"), "ClientApp crashed"),
    "no message": (lambda f, a: b"noise", "not a message (BadZipFile)"),
    "number": (lambda f, a: upload(f, a, sequence=10**20), "replied as number -1"),
    "long": (lambda f, a: 2001 * b"x", "a reply of more than 2000 bytes"),
    "repeats": (lambda f, a: upload(f, a, sequence=0), "replied as number 0"),
    "unknown": (lambda f, a: upload(f, a, sequence=99), "replied as number 99"),
}  # fmt: skip


def test_each_wrong_reply_is_refused_by_its_reason_and_the_client_gets_new_work(serve):
    grid, faults = ScriptedGrid(), iter(FAULTS.values())
    plan = {2 * number + 1: fault for number, (fault, _) in enumerate(FAULTS.values())}
    grid.add(1, [0], lambda facts, arrays: plan.get(facts["work"]["sequence"], upload)(facts, arrays))
    server = serve(grid, n=1)
    for _, why in faults:
        server.send(0)
        assert server.next() == (0, "")
        server.send(0)
        assert server.next() == (0, why)
    refused = server.inbox.refusals
    assert refused["repeats number 0"] == refused["claims number 99, which no work has"] == 1
    assert {*refused} | {*server.inbox.losses} >= {why for _, why in FAULTS.values()}


def test_a_client_stays_on_its_node_while_that_lives(serve):
    grid = ScriptedGrid()
    grid.add(1, [0])
    server = serve(grid, n=1)
    server.inbox.start()
    grid.add(2, [0])
    server.wait_until("node 2: waits, as another node has client 0")
    server.send(0)
    assert server.next() == (0, "")
    del grid.there[1]
    server.wait_until("client 0: back")
    server.send(0)
    assert server.next() == (0, "") and grid.seen == [(1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        ({"clients": [0, 2]}, r"node 7: has clients \[0, 2\], not numbers below 2"),
        ({"clients": "0"}, "node 7: has clients 0, not numbers below 2"),
        ({"versions": {"asyncfl_bench": "0.0.1"}}, "node 7: has asyncfl_bench 0.0.1, not "),
        ({"problem": "DataError: no digits"}, "node 7: DataError: no digits"),
        ({"problem": "\x1b[2Jgone\n"}, r"node 7: \\x1b\[2Jgone\\n\)"),
        ({"problem": 3000 * "!"}, "node 7: a reply of more than 2000 bytes"),
    ],
)
def test_a_node_that_cannot_be_used_is_named(serve, hello, said):
    grid = ScriptedGrid()
    grid.add(7, **{"clients": [0, 1]} | hello)
    with pytest.raises(BenchError, match=rf"0 of 2 .* after live.clients_wait=0.1 s; missing: 0, 1 \({said}"):
        serve(grid, clients_wait=0.1).inbox.start()


def test_a_run_that_flower_ends_is_stopped_with_all_that_arrived(serve):
    grid = ScriptedGrid()
    grid.add(1, [0, 1])
    server = serve(grid)
    server.send(0)
    assert server.next() == (0, "")
    server.send(1)
    grid.error = RuntimeError("the run is not running")
    with pytest.raises(Stopped):
        while server.next() is None or True:
            pass
    assert server.stop == [signal.SIGTERM] and "Flower ended the run (RuntimeError)" in server.said


def deflated(vector_d: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, facts="{}", vector=vector_d)
    return file.getvalue()


def overlapping(vector_d: np.ndarray) -> bytes:
    """A message whose directory names one file a hundred times."""
    plain = pack({}, vector=vector_d)
    with zipfile.ZipFile(io.BytesIO(plain)) as archive:
        start, entries = archive.start_dir, archive.infolist()
    file = io.BytesIO(plain[:start])
    file.seek(start)
    with zipfile.ZipFile(file, "a") as archive:
        archive.filelist[:] = [*entries, *[entries[-1]] * 100]
        archive._didModify = True
        archive.start_dir = start
    return file.getvalue()


@pytest.mark.parametrize("make", [deflated, overlapping])
def test_a_message_that_is_larger_unpacked_is_refused_before_it_is_unpacked(make):
    content = make(np.zeros(2**22, np.float32))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not a message"):
            unpack(content)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    facts, arrays = unpack(pack({"loss": 0.5}, vector=ONES_D))
    assert facts == {"loss": 0.5} and arrays["vector"].tolist() == [1.0] * D


def test_a_worker_builds_a_run_once_and_says_what_is_wrong_with_it():
    built = []

    def build(tree, folders, clients):
        built.append(tree)
        if tree["seed"] == 2:
            raise BenchError("no such data")
        return object()

    worker = node.Worker(build, [2, 3])

    def ask(seed, n=4):
        run = {"tree": {"seed": seed, "n_clients": n}, "folders": [], "identity": "mine", "within": None}
        return unpack(worker.reply_to(pack(run)))[0]

    for seed in (1, 1, 3, 1):
        assert ask(seed) == {"clients": [2, 3], "versions": versions()}
    assert ask(2) == {"problem": "no such data"}
    assert ask(4, n=3) == {"problem": "has clients [2, 3], not numbers below 3"}
    assert [tree["seed"] for tree in built] == [1, 3, 1, 2]


@pytest.mark.parametrize(
    ("words", "said"), [([], "required: clients"), (["1,x"], "1,x: must be numbers of clients: 0 or 2,3")]
)
def test_a_node_without_its_clients_is_refused(words, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["node.py", *words])
    with pytest.raises(SystemExit, match="2"):
        node.main(build=None)
    assert said in capsys.readouterr().err


@pytest.fixture
def app(tmp_path, monkeypatch):
    """An app whose only key is of client 0, beside a Flower that is not installed."""
    (tmp_path / "app" / "keys").mkdir(parents=True)
    for name in ("0", "0.pub"):
        (tmp_path / "app" / "keys" / name).touch()
    for module in (node, link):
        monkeypatch.setattr(module, "find_command", lambda parser, name: tmp_path / name)
    return tmp_path / "app"


@pytest.mark.parametrize(
    ("script", "main", "words", "said"),
    [
        ("superlink.py", link.main, ["--insecure"], "--insecure: nodes prove their keys over TLS; leave it out"),
        ("superlink.py", link.main, ["--host", "0.0.0.0"], "app/keys: has no keys of nodes; write the app again"),
        ("node.py", node.main, ["2"], "app/keys/2: no such key; --auth-supernode-private-key names another one"),
        ("node.py", node.main, ["0", "--node-config", "a=1"], "--node-config: is set by node.py; leave it out"),
    ],
)
def test_a_server_without_keys_and_a_node_without_its_key_are_refused(
    script, main, words, said, app, monkeypatch, capsys
):
    if "--host" in words:
        (app / "keys" / "0.pub").unlink()
    monkeypatch.setattr(sys, "argv", [str(app / script), *words])
    with pytest.raises(SystemExit, match="2"):
        main(None) if main is node.main else main()
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_takes_registered_nodes_on_the_loopback_address_unless_another_is_named(
    host, app, monkeypatch, capsys
):
    started = []
    monkeypatch.setattr("os.fork", lambda: 1)
    monkeypatch.setattr("os.execv", lambda command, words: started.append(words))
    monkeypatch.setattr(
        sys, "argv", [str(app / "superlink.py"), "--log-file", "a", *["--host", host] * (host[0] == "0")]
    )
    link.main()
    words = " ".join(started[0])
    assert f"--host {host} --port 8000 --enable-supernode-auth" in words and words.endswith("--log-file a")
    warned = "each machine that reaches 0.0.0.0:8000 can start an app on this one" in capsys.readouterr().err
    assert warned == (host == "0.0.0.0")


def test_all_keys_are_registered_and_a_failure_is_said(app, capsys):
    flwr = app / "flwr"
    flwr.write_text(f"#!/bin/sh\necho $FLWR_HOME $@ >> {app}/asked\n[ ! -e {app}/fails ] || {{ echo no; exit 1; }}\n")
    flwr.chmod(0o700)
    keys = [app / "keys" / "0.pub", app / "keys" / "1.pub"]
    for said in ("superlink.py: 2 nodes are registered\n", f"superlink.py: {keys[1]}: not registered: no\n\n"):
        link.register_keys(flwr, keys, app / ".flwr")
        assert capsys.readouterr().err == said
        (app / "fails").touch()
    assert (app / "asked").read_text().splitlines() == [f"{app}/.flwr supernode register {key}" for key in keys] * 2


def test_a_supernode_that_fails_is_started_again_with_its_worker(app, monkeypatch, capfd):
    monkeypatch.setattr(node, "PAUSE", 0.01)
    command = app.parent / "flower-supernode"
    command.write_text(f"#!/bin/sh\necho $@\n[ -e {app}/died ] && exit 0\ntouch {app}/died\nkill -9 $$\n")
    command.chmod(0o700)
    monkeypatch.setattr(sys, "argv", [str(app / "node.py"), "0,1", "--superlink", "here"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        node.main(build=None)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    said = capfd.readouterr()
    assert "node.py: the SuperNode ended with code -9; the next one starts in 0.01 s" in said.err
    first, second = said.out.splitlines()
    assert first.startswith(f"--superlink here --auth-supernode-private-key {app}/keys/0 --node-config worker=")
    assert second.partition(" --port ")[0] == first.partition(" --port ")[0]


# -- the command -------------------------------------------------------------------------------------------------------


def test_an_app_is_written_with_its_words_and_says_how_it_is_started(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert _main(["--live-app", "my app", "algorithm=asgd", "n_clients=3", "model=softmax"]) == 0
    said = capsys.readouterr().out
    app = tmp_path / "my app"
    files = {str(path.relative_to(app)) for path in app.rglob("*") if path.is_file()}
    keys = [app / "keys" / str(client) for client in range(3)]
    assert files == live_app.FILES.keys() | {f"keys/{key.name}{end}" for key in keys for end in ("", ".pub")}
    assert [path.stat().st_mode & 0o777 for path in (app / "keys", *keys)] == [0o700] + [0o600] * 3
    public = [key.with_suffix(".pub").read_text() for key in keys]
    assert len({*public}) == 3 and all(text.startswith("ecdsa-sha2-nistp384 ") for text in public)
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert config["config"] == {
        "words": "live=flower algorithm=asgd n_clients=3 model=softmax",
        "folders": "",
        "directory": str(tmp_path),
    }
    link = tomllib.loads((app / ".flwr" / "config.toml").read_text())["superlink"]
    assert link["live"] == {"address": "127.0.0.1:8000", "root-certificates": str(app / "tls" / "cert.pem")}
    assert "for i in 0 1 2; do python 'my app'/node.py $i" in said and "flwr run 'my app' --stream" in said
    live_app.write(app, ["live=flower", "algorithm='a b'"], 2)  # again, with other words
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert shlex.split(config["words"]) == ["live=flower", "algorithm='a b'"]
    assert [key.with_suffix(".pub").read_text() for key in keys] == public
    assert "Other users of this machine can start an app at 127.0.0.1:8000 too" in said
