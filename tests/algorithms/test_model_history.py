"""Rules that look back at the model an upload started from: of all past models only those still needed are kept."""

from itertools import product

import pytest
import torch
from tiers import slow

from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.simulation.observer import Observer

RULES, EXECUTORS = ("asyncfeded", "fedasync", "fedfa"), ("batched", "threads", "sequential")
FAST = [*zip(RULES, EXECUTORS, strict=True)]
WORDS = ["scale=smoke", "model=softmax", "progress=false", "client.local_steps=3", "delay=lognormal", "threads=2"]


class Everything(Observer):
    """The unbounded history: a copy of the model at every iteration, which each upload's own copy is held against."""

    def __init__(self, model_d):
        self.model_d = model_d
        self.models = [model_d.clone()]
        self.compared = self.older = 0

    def received(self, upload, changed):
        assert torch.equal(upload.base_d, self.models[upload.base_iteration])
        self.compared += 1
        self.older += upload.staleness > 0

    def iterated(self, counters):
        self.models.append(self.model_d.clone())


@pytest.mark.parametrize(
    ("rule", "executor"), [*FAST, *slow(*(one for one in product(RULES, EXECUTORS) if one not in FAST))]
)
def test_a_bounded_history_gives_the_bits_of_an_unbounded_one_and_holds_no_more_than_is_needed(rule, executor):
    words = [
        *WORDS,
        f"algorithm={rule}",
        f"executor={executor}",
        "availability=suspension",
        "availability.probability=0.3",
    ]
    built = build_run(compose(words))
    simulation, versions = built.simulation, built.executor.versions
    everything = Everything(built.model_d)
    simulation.observers.append(everything)
    simulation.step()
    while everything.compared < 120:
        simulation.step()
        held = {work.iteration for work in simulation.in_flight.values() if not work.lost}
        assert len(versions) == len(held) <= 10
        assert all(torch.equal(versions[iteration], everything.models[iteration]) for iteration in held)
    dropped = next(i for i in range(simulation.counters.iteration) if i not in held)
    with pytest.raises(KeyError):
        versions[dropped]
    built.executor.close()
    assert everything.older > 100 and simulation.counters.discarded > 20
