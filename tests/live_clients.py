"""Transports of live runs that need no process, for tests: threads with random naps, and a script without any time."""

from __future__ import annotations

import copy
import queue
import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import torch

from asyncfl_bench import run
from asyncfl_bench.clients.versions import Blocks
from asyncfl_bench.config.check import check_settings
from asyncfl_bench.experiment import build, execute
from asyncfl_bench.experiment.replay import compare, replay_settings
from asyncfl_bench.live.messages import ClientReply

LIVE = ["live=processes", "progress=false", "threads=1"]


def compute(computer, work, vectors):
    """(loss, vector, outputs) of a piece of work."""
    start = tuple(None if one is None else torch.from_numpy(one) for one in vectors)
    out_pd = torch.empty(1, len(vectors[0]))
    (upload,) = computer.begin([work], lambda _: start, out_pd, Blocks())()
    return float(upload.loss), out_pd[0].numpy(), None if upload.outputs_uc is None else upload.outputs_uc.numpy()


class Clients:
    """What all transports of tests share. Client i alone is in its process."""

    def __init__(self, config, compute, *, n_clients, identity, largest, report):
        self.n, self.identity = n_clients, identity
        self.build = lambda clients=None: compute._build(compute._tree, [], clients)
        self.dismissed = set()

    def start(self, stop):
        pass

    def forget(self, work):
        pass

    def dismiss(self, client):
        self.dismissed.add(client)

    def status(self):
        return f"{self.n} here"

    def close(self):
        pass

    def reply(self, computer, work, vectors):
        loss, vector_d, outputs_uc = compute(computer, work, vectors)
        return ClientReply([work.client], work.sequence, self.identity, vector_d, loss, outputs_uc)


class Threads(Clients):
    """A thread for each client, four computers, naps that differ from run to run; some work is lost."""

    lose, nap, workers, own = 0.0, 0.002, 4, False

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.done, self.work = queue.SimpleQueue(), [queue.SimpleQueue() for _ in range(self.n)]
        self.computers = [(self.build([i] if self.own else None), threading.Lock()) for i in range(self.workers)]
        self.threads = [threading.Thread(target=self.serve, args=(i,), daemon=True) for i in range(self.n)]
        for thread in self.threads:
            thread.start()

    def serve(self, i):
        torch.set_num_threads(1)
        draws = random.Random()
        computer, lock = self.computers[i % self.workers]
        while (pair := self.work[i].get()) is not None:
            time.sleep(draws.expovariate(1 / self.nap) * (1 + i % 5))
            if draws.random() < self.lose:
                self.done.put(ClientReply([i], pair[0].sequence, problem="killed"))
                continue
            with lock:
                self.done.put(self.reply(computer, *pair))

    def send(self, work, vectors):
        self.work[work.client].put((work, vectors))

    def receive(self, seconds):
        try:
            return [self.done.get(timeout=seconds)]
        except queue.Empty:
            return []

    def close(self):
        for one in self.work:
            one.put(None)


@contextmanager
def transport(monkeypatch, cls):
    """Live runs have this transport while the block is open."""
    with monkeypatch.context() as patch:
        patch.setattr(build, "LocalProcesses", cls)
        yield


def computed_replay(directory):
    """The comparison with a replay that computes all work, also of a run that kept its uploads."""
    settings = replay_settings(directory)
    tree = copy.deepcopy(settings.tree) | {"live": {"_target_": "asyncfl_bench.live.choice.Simulated"}}
    tree["choices"]["live"] = "none"
    return compare(directory, execute(check_settings(tree)).directory)


def live_and_replayed(monkeypatch, cls, words):
    """(result of a live run, comparison with its replay)."""
    with transport(monkeypatch, cls):
        live = run([*LIVE, *words])
    assert live.ok, live.summary["error"]
    replayed = execute(replay_settings(live.directory))
    assert replayed.ok, replayed.summary["error"]
    return live, compare(live.directory, replayed.directory)


def children(parent):
    """Process numbers of the children of a process."""
    stats = [
        (path.parent.name, path.read_text().rpartition(")")[2].split()) for path in Path("/proc").glob("[0-9]*/stat")
    ]
    return [int(number) for number, fields in stats if int(fields[1]) == parent]
