"""A world small enough to work out by hand: quadratic clients, scripted delays, no data.

Client i's gradient at w is w - target_i, so everything can be followed in plain NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from asyncfl_bench import run
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import equip
from asyncfl_bench.algorithms.needs import Needs
from asyncfl_bench.clients.versions import ModelVersions
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.availability import Always, AlwaysConfig
from asyncfl_bench.simulation.budget import BudgetConfig
from asyncfl_bench.simulation.delay import Delay, DelayConfig
from asyncfl_bench.simulation.engine import Simulation
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.simulation.schedules import SameClient, ScheduleConfig
from asyncfl_bench.types import ClientTable, Delivery, Workload
from asyncfl_bench.types import Recorder as RuleRecorder


class QuadraticExecutor:
    """Uploads w - target_i (gradient) or -lr (w - target_i) (difference), at the version the work started from."""

    def __init__(self, targets_nd, kind="gradient", lr=1.0):
        self.targets_nd = torch.as_tensor(targets_nd, dtype=torch.float64)
        self.scale = 1.0 if kind == "gradient" else -lr
        self.versions = ModelVersions()
        self.delivered, self.discarded = [], []

    def dispatch(self, work, model_d):
        self.versions.hold(work.iteration, model_d)

    def deliver(self, work):
        self.base_d = self.versions[work.iteration]
        vector_d = self.scale * (self.base_d - self.targets_nd[work.client])
        self.versions.release(work.iteration)
        self.delivered.append(work)
        return Delivery(vector_d, torch.zeros(()), self.base_d)

    def discard(self, work):
        self.versions.release(work.iteration)
        self.discarded.append(work)


class ScriptedLoss(Always):
    """Loses the pieces of work in a set of (client, cycle); their clients hang for ``hang`` times their duration."""

    def __init__(self, lost, hang=0.0):
        super().__init__(AlwaysConfig())
        self.lost, self.hang = lost, hang

    def outcome(self, work, duration):
        lost = (work.client, work.cycle) in self.lost
        return duration * (1 + self.hang * lost), not lost


class Leaves(Always):
    """Client ``client`` gets no more work from ``time`` on; what it has begun arrives."""

    ends_for_some = True

    def __init__(self, client, time):
        super().__init__(AlwaysConfig())
        self.client, self.time = client, time

    def has_left(self, client, iteration, time=0.0):
        return client == self.client and time >= self.time

    def outcome(self, work, duration):
        assert not self.has_left(work.client, work.iteration, work.start)
        return duration, True


class Scripted(Delay):
    """Durations read from a table: durations[client][count], the last one repeated."""

    def __init__(self, durations):
        super().__init__(DelayConfig())
        self.durations = durations

    def duration(self, work):
        row = self.durations[work.client]
        return float(row[min(work.cycle, len(row) - 1)])


class CoinFlips(RuleRecorder, Asgd):
    """ASGD that leaves out each upload with probability 1/2, and tells which one it used and how many it left out."""

    decision_columns = ("client", "staleness", "left_out")
    state_names = ("count", "left_out")

    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.count = self.left_out = 0
        self.used = (-1, 0)

    def receive(self, upload):
        self.count += 1
        if self.draws(upload.client, self.count).random() < 0.5:
            self.left_out += 1
            return False
        self.used = (upload.client, upload.staleness)
        return super().receive(upload)

    def decisions(self):
        return [(*self.used, self.left_out)]


class Listener(Asgd):
    """ASGD that asks for what models say about the server's samples, and remembers how certain they were."""

    needs = Needs(linear=True, outputs=True)
    state_names = ("certainty",)

    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.certainty = 0.0

    def receive(self, upload):
        assert upload.outputs_uc.shape == (self.server.samples, self.server.classes)
        self.certainty = float(upload.outputs_uc.softmax(1).amax(1).mean())
        return super().receive(upload)

    def stats(self):
        return {"rule/certainty": self.certainty}


class Forgetful(Asgd):
    """ASGD with a momentum that its state lacks."""

    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.velocity_d = torch.zeros_like(model_d)

    def receive(self, upload):
        self.velocity_d.mul_(0.9).add_(upload.vector_d)
        self.model_d.add_(self.velocity_d, alpha=self.step_size)
        return True


@dataclass
class Arrival:
    client: int
    base_iteration: int
    staleness: int
    changed: bool
    time: float
    vector: np.ndarray


class Recorder(Observer):
    """Everything that arrived, the work that never did, and the model after every server iteration."""

    def __init__(self):
        self.arrivals: list[Arrival] = []
        self.models: list[np.ndarray] = []
        self.discards = []
        self.simulation = None

    def discarded(self, work):
        self.discards.append(work)

    def arrived(self, upload, changed, time):
        vector = upload.vector_d.clone().numpy()
        self.arrivals.append(Arrival(upload.client, upload.base_iteration, upload.staleness, changed, time, vector))

    def iterated(self, counters):
        self.models.append(self.simulation.model_d.clone().numpy())


def simulate(
    rule,
    *,
    n,
    delay,
    targets=None,
    kind="gradient",
    lr=1.0,
    clock="time",
    tick_rounding="down",
    schedule=None,
    availability=None,
    concurrency=None,
    seed=0,
    start=None,
    samples=None,
    workload=None,
    executor=None,
    observers=(),
    server_rate=0.0,
    **budget,
):
    """Runs a toy world to the end of its budget. Returns (simulation, recorder, ended_by)."""
    targets = np.random.default_rng(7).normal(size=(n, 3)) if targets is None else np.asarray(targets, dtype=float)
    budget.setdefault("server_iterations", None)
    recorder, streams = Recorder(), Streams(seed)
    simulation = Simulation(
        rule=equip(rule, rule.storage, streams),
        model_d=torch.zeros(targets.shape[1], dtype=torch.float64) if start is None else torch.as_tensor(start).clone(),
        clients=ClientTable(np.ones(n, dtype=int) if samples is None else np.asarray(samples)),
        upload_kind=kind,
        workload=workload or Workload(),
        executor=executor or QuadraticExecutor(targets, kind, lr),
        delay=delay,
        availability=availability or Always(AlwaysConfig()),
        schedule=schedule or SameClient(ScheduleConfig()),
        clock=clock,
        tick_rounding=tick_rounding,
        concurrency=concurrency or n,
        budget=BudgetConfig(**budget),
        streams=streams,
        server_rate=server_rate,
    )
    simulation.observers += [recorder, *observers]
    recorder.simulation = simulation
    return simulation, recorder, simulation.run()


def models(rule, iterations=40, **world):
    """(iterations, 3) global model after every server iteration; world as for ``simulate``."""
    return np.array(simulate(rule, server_iterations=iterations, **world)[1].models)


def write_noisy_classes(path="toy.npz", classes=3, features=4):
    """Write normal classes, 240 samples to train and 60 to test. Returns x and y of the test set."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, classes, 300)
    x = (rng.normal(size=(classes, features))[y] + rng.normal(size=(300, features))).astype(np.float32)
    np.savez(path, x_train=x[:240], y_train=y[:240], x_test=x[240:], y_test=y[240:])
    return x[240:], y[240:]


def random_delays(n, seed=4, cycles=60):
    return Scripted(np.random.default_rng(seed).exponential(size=(n, cycles)).tolist())


def start_rule(rule, n, model_d, kind="difference"):
    """(rule, (d,) its model) before the first upload of n clients with one sample each."""
    model_d = torch.as_tensor(model_d, dtype=torch.float64).clone()
    rule.start(model_d, ClientTable(np.ones(n, int)), kind)
    return rule, model_d


def finish_run(*words, **more):
    """The result of a run that ended well."""
    result = run([*words], **more)
    assert result.ok, result.summary["error"]
    return result


def table_of(result, name="trace"):
    """A table of a run's directory."""
    return pd.read_parquet(result.directory / f"{name}.parquet")


def final_model(result):
    """(d,) the flat weights of a run at its end."""
    weights = torch.load(result.directory / "model_final.pt", weights_only=True)
    return torch.cat([value.flatten() for value in weights.values()])


def assert_same_bits(one, other):
    """Of the trace and the final weights of two runs."""
    pd.testing.assert_frame_equal(table_of(one), table_of(other), check_exact=True)
    assert torch.equal(final_model(one), final_model(other))


def asgd(eta=0.1):
    return Asgd(eta=eta)


def facts(recorder):
    """(time, client, version, staleness) of each arrival."""
    return [(a.time, a.client, a.base_iteration, a.staleness) for a in recorder.arrivals]
