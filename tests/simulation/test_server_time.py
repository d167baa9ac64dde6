"""A server that computes itself, and takes virtual time for it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy import Scripted, final_model, simulate, table_of

from asyncfl_bench import run
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_dry_run, build_run
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.delays import Exponential, ExponentialConfig


class Studious(Asgd):
    """ASGD whose server takes ten samples through its network at each arrival."""

    server_samples = 10.0


def arrivals(rate, rule=Studious, **world):
    simulation, recorder, ended_by = simulate(rule(StepConfig(eta=0.1)), server_rate=rate, **world)
    return simulation, recorder.arrivals, ended_by


def test_uploads_wait_for_a_busy_server_and_clients_are_sent_its_model_when_it_is_done():
    """Clients take 1 and 1.5, the server 2 after each: worked out by hand."""
    world = {"n": 2, "delay": Scripted([[1], [1.5]]), "uploads": 5}
    simulation, found, _ = arrivals(0.2, **world)
    # 0 at 1, busy to 3; 1, there since 1.5, at 3, busy to 5; 0, sent at 3 and there since 4, at 5; 1, sent at 5, at 7
    assert [(one.client, one.time) for one in found] == [(0, 1), (1, 3), (0, 5), (1, 7), (0, 9)]
    assert [one.staleness for one in found] == [0, 1, 1, 1, 1]
    assert simulation.counters.virtual_time == pytest.approx(11)
    _, free, _ = arrivals(0.0, **world)
    assert [(one.client, one.time) for one in free] == [(0, 1), (1, 1.5), (0, 2), (1, 3), (0, 3)]


@pytest.mark.parametrize("rate", [0.001, 0.05, 3.0])
def test_time_never_goes_back_and_long_gaps_leave_the_order_as_it_is(rate):
    world = {"n": 5, "uploads": 300, "concurrency": 1}
    delay = Exponential(ExponentialConfig(beta=2.0, compute=0.5, clients="equal", redraw=True))
    _, found, _ = arrivals(rate, delay=delay, **world)
    times = [one.time for one in found]
    assert times == sorted(times)
    _, free, _ = arrivals(0.0, delay=delay, **world)
    assert [one.client for one in found] == [one.client for one in free]
    waits = np.diff(times) - np.diff([one.time for one in free])
    np.testing.assert_allclose(waits, 10 * rate, atol=1e-9)


def test_a_server_that_never_catches_up_is_no_standstill_and_ends_with_its_time():
    world = {"n": 3, "delay": Scripted([[0.001]] * 3), "virtual_time": 12_000.0}
    simulation, found, ended_by = arrivals(0.1, **world)
    assert ended_by == "virtual_time" and len(found) == 12_000
    assert simulation.counters.virtual_time >= found[-1].time


def test_fedecho_pays_for_teachers_and_mini_batches_and_the_dry_run_knows():
    words = ["algorithm=fedecho", "n_clients=10", "algorithm.buffer_size=4", "delay=exponential", "clock=time"]
    words += ["model=softmax", "unlabelled.samples=60", "distillation.batch_size=25", "distillation.steps=3"]
    words += ["schedule=random_idle", "concurrency=1", "budget.uploads=12", "trace=true", "progress=false"]
    paid, free = (run([*words, *more]) for more in (["server_seconds_per_sample=0.01"], []))
    assert paid.ok and free.ok
    took = 0.01 * (12 * 60 / 3 + 3 * 60)
    spent = [one.summary["used"]["virtual_time"] for one in (paid, free)]
    assert spent[0] - spent[1] == pytest.approx(took)
    times = table_of(paid)["time"]
    settings = compose([*words, "server_seconds_per_sample=0.01"])
    built = build_run(settings)
    simulation, _ = build_dry_run(replace(built, streams=Streams(0)), built.executor.computer)
    seen = []
    while simulation.step() is None:
        seen.append(simulation.counters.virtual_time)
    assert simulation.counters.virtual_time == pytest.approx(spent[0])
    assert seen[-1] > times.iloc[-2]
    assert torch.equal(final_model(paid), final_model(free)), "one client at a time"


def test_a_price_of_zero_renames_no_run_and_any_rule_with_distillation_takes_one():
    words = ["algorithm=fedbuff", "delay=exponential"]
    assert compose([*words, "server_seconds_per_sample=0"]).identity == compose(words).identity
    priced = compose([*words, "distillation=fedecho", "server_seconds_per_sample=0.1"])
    assert priced.root.server_seconds_per_sample == 0.1
