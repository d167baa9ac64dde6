"""How much work K is."""

import numpy as np
import pytest

from asyncfl_bench import run
from asyncfl_bench.clients.samples import Batches
from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.randomness import Streams
from asyncfl_bench.types import Work, Workload


@pytest.mark.parametrize("epochs", [True, False])
@pytest.mark.parametrize("batch_size", [1, 7, 32, 100, "all"])
@pytest.mark.parametrize("held", [1, 7, 50, 100])
def test_steps_and_samples_are_those_that_the_mini_batches_make(held, batch_size, epochs):
    workload = Workload(batch_size=batch_size, epochs=epochs)
    batches = Batches([np.arange(held)], batch_size, Streams(0))
    for k in (1, 2, 5, 23):
        steps = workload.steps(held, k)
        seen = batches.batches_of(Work(0, 0, 0, 0, steps))
        assert len(seen) == steps
        assert sum(len(batch) for batch in seen) == workload.samples(held, k)
        if epochs:  # every sample exactly K times
            assert (np.bincount(np.concatenate(seen), minlength=held) == k).all()


def test_k_passes_are_k_times_as_many_steps_as_a_pass_has_mini_batches():
    passes = Workload(k=3, batch_size=10, epochs=True)
    assert [passes.steps(held, 3) for held in (1, 10, 11, 95)] == [3, 3, 6, 30]
    assert Workload(batch_size=10).steps(95, 3) == 3
    assert Workload(batch_size="all", epochs=True).steps(95, 3) == 3


def test_a_client_without_samples_does_one_empty_step_per_pass():
    workload = Workload(batch_size=10, epochs=True)
    assert (workload.steps(0, 4), workload.samples(0, 4)) == (4, 0)


def test_a_run_counts_the_steps_of_its_passes():
    words = ["client.local_epochs=2", "client.batch_size=20", "budget.server_iterations=3", "trace=true"]
    result = run([*words, "algorithm=fedavg", "scale=smoke", "model=softmax", "progress=false", "delay=uniform"])
    sizes = np.load(result.directory / "partition.npz")
    expected = 3 * sum(2 * -(-len(sizes[f"client_{i}"]) // 20) for i in range(10))
    assert result.summary["used"]["client_steps"] == expected


def test_the_rule_may_say_k_for_each_client_and_its_unit_is_the_clients():
    words = ["algorithm=asyncfeded", "algorithm.k_initial=4", "client.local_epochs=2", "client.batch_size=16"]
    built = build_run(compose([*words, "scale=smoke", "model=softmax", "delay=uniform"]))
    built.simulation.step()
    for work in built.simulation.in_flight.values():
        held = len(built.task.partition[work.client])
        assert (work.k, work.local_steps, work.samples) == (4, 4 * -(-held // 16), 4 * held)
    built.executor.close()


def test_without_a_first_k_of_its_own_asyncfeded_starts_with_the_configured_one():
    assert compose(["algorithm=asyncfeded", "client.local_epochs=7"]).parts["algorithm"].config.k_initial == 7
    assert compose(["algorithm=asyncfeded", "client.local_steps=5"]).parts["algorithm"].config.k_initial == 5
