"""Rules of split learning: what they are equal to, and that nothing of it depends on how it is computed."""

import numpy as np
import pytest
from resuming import assert_goes_on

from asyncfl_bench.algorithms.s2fl import balance_groups
from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.simulation.observer import Observer

WORLD = [
    "model.hidden=[16]",
    "client.batch_size=8",
    "n_clients=6",
    "delay=exponential",
    "seed=3",
    "device=cpu",
    "executor=sequential",
]
RULES = {
    "splitfed": ["concurrency=4", "schedule=random_idle", "client.momentum=0.5"],
    "minibatch_sfl": ["concurrency=4", "schedule=random_idle", "algorithm.server_momentum=0.5"],
    "s2fl": ["concurrency=4", "schedule=random_idle", "algorithm.server_clip=0.5"],
    "gas": ["concurrency=4", "schedule=random_idle", "algorithm.activation_buffer=3", "client.momentum=0.5"],
    "gas after": ["algorithm.answer=after", "algorithm.covariance=diagonal", "algorithm.every=2"],
}


def built(*words):
    return build_run(compose([*WORLD, *words]))


def run(*words, iterations=12):
    """The parts of a finished run."""
    parts = built(*words, f"budget.server_iterations={iterations}")
    parts.simulation.run()
    parts.executor.close()
    return parts


def model(*words, **options):
    return run(*words, **options).model_d.numpy()


def of(rule):
    return [f"algorithm={rule.split()[0]}", "client.local_steps=3", "client.lr=0.1", *RULES[rule], "threads=2"]


@pytest.mark.slow
def test_s2fl_with_equal_groups_and_batches_is_minibatch_sfl():
    one = ["client.local_steps=3", "client.lr=0.1", "algorithm.server_momentum=0.5"]
    whole = model("algorithm=minibatch_sfl", *one)
    two = model("algorithm=s2fl", "algorithm.groups=2", *one)
    np.testing.assert_allclose(two, whole, rtol=1e-3, atol=1e-5)


def test_groups_of_s2fl_share_the_classes():
    labels_mc = np.array([[10, 0], [10, 0], [0, 10], [0, 10]])
    group_m = balance_groups(labels_mc, 2)
    assert sorted(group_m.tolist()) == [0, 0, 1, 1]
    assert [labels_mc[group_m == group].sum(axis=0).tolist() for group in range(2)] == [[10, 10]] * 2
    first, second, other = balance_groups(labels_mc[:3], 2)
    assert first != second and other in (first, second)


@pytest.mark.slow
@pytest.mark.parametrize("buffer", [1, 3, 7])
def test_the_server_steps_once_per_full_buffer(buffer):
    parts = run("algorithm=gas", f"algorithm.activation_buffer={buffer}", "client.local_steps=3")
    counters = parts.simulation.counters
    assert counters.server_steps == counters.messages // buffer > 0
    assert counters.uploads == 12 * 6


class Heard(Observer):
    def __init__(self):
        self.rows = []

    def message_received(self, message, stepped, time):
        self.rows.append((time, message.client, message.stage, message.staleness, stepped, message.labels.tolist()))


@pytest.mark.slow
def test_generation_changes_neither_arrivals_nor_mini_batches():
    seen, models = [], []
    for generate in ("true", "false"):
        parts = built(*of("gas"), f"algorithm.generate={generate}", "budget.server_iterations=8")
        parts.simulation.observers.append(heard := Heard())
        parts.simulation.run()
        parts.executor.close()
        seen.append(heard.rows)
        models.append(parts.model_d.numpy())
    assert seen[0] == seen[1] and len(seen[0]) > 50
    assert np.abs(models[0] - models[1]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_threads_and_one_after_another_have_the_same_bits(rule):
    one, other = (model(*of(rule), f"executor={executor}") for executor in ("sequential", "threads"))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("rule", RULES)
def test_a_run_goes_on_in_the_middle_of_its_tasks_bit_for_bit(rule):
    assert_goes_on([*WORLD, *of(rule), "budget.server_iterations=8"], every=17)
