"""Runs that share stacks have the bits that they have alone, also when one of them fails or is stopped."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from fake_graph import FakeGraphs, Launches, use_fake_graphs
from members_process import MEMBERS as EIGHT
from members_process import WORDS
from resuming import built

from asyncfl_bench.clients.run_group import RunGroup
from asyncfl_bench.clients.stacked import ROWS

BATCHED = ["executor=batched"]  # rows begin at a multiple of 64 bytes: where they do not, a CPU sums in another order
ROOT = Path(__file__).parents[2]
MEMBERS = EIGHT[:5]


def words_of(member):
    return [*WORDS, *([] if "executor=sequential" in member else BATCHED), *member]


def run_alone(words):
    parts, _ = built(words_of(words))
    parts.simulation.run()
    return parts.model_d.clone()


def run_together(members, spoil=None):
    """The model of each run, or its error, and the group."""
    group, found = RunGroup(ROWS), {}
    every = [built(words_of(words))[0] for words in members]
    if spoil is not None:
        spoil(every)

    def run(number, parts):
        with group.joining(parts.executor):
            try:
                parts.simulation.run()
                found[number] = parts.model_d.clone()
            except Exception as error:
                found[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(every)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    return [found[number] for number in range(len(members))], group


@pytest.fixture
def graphs(monkeypatch):
    graphs = FakeGraphs()
    use_fake_graphs(monkeypatch, graphs)
    return graphs


def test_every_run_has_the_bits_that_it_has_alone(graphs):
    alone = [run_alone(words) for words in MEMBERS]
    captured = len(graphs.captured)
    together, group = run_together(MEMBERS)
    assert all(map(torch.equal, together, alone))
    assert len(graphs.captured) - captured == 2  # one of gradients, one of differences
    assert group.rows / group.waves > 6


def test_a_run_that_fails_leaves_the_bits_of_the_others(graphs):
    def spoil(every):
        count, receive = iter(range(9)), every[2].rule.receive

        def fail(*given, **named):
            if next(count) == 5:
                raise ValueError("of this run alone")
            return receive(*given, **named)

        every[2].rule.receive = fail

    together, _ = run_together(MEMBERS, spoil)
    assert str(together[2]) == "of this run alone"
    for number in (0, 1, 3, 4):
        assert torch.equal(together[number], run_alone(MEMBERS[number]))


@pytest.mark.slow
def test_an_update_of_w1_takes_at_most_ten_operators_in_company_of_eight(graphs):
    """W1 of scripts/benchmark.py with a small network: clients, concurrency and buffer are what counts."""
    words = ["algorithm=fedbuff", "algorithm.buffer_size=10", "schedule=random_idle", "concurrency=20", "n_clients=100"]
    words += ["delay=exponential", "heterogeneity=iid", "client.batch_size=1", "model=softmax", "progress=false"]
    words += ["budget.uploads=100", "algorithm.eta=0.001", "evaluation.every=9999", "executor=batched"]

    def count_operators(runs):
        """Operators of an update, views included; a replay is one."""
        group, replays = RunGroup(ROWS), graphs.replays
        members = [built([*words, f"seed={seed}"])[0] for seed in range(runs)]

        def count(parts):
            parts.simulation.observers.clear()
            with group.joining(parts.executor), Launches(graphs) as launches:
                parts.simulation.run()
            return launches.dispatched

        with ThreadPoolExecutor(runs) as pool:
            operators = sum(pool.map(count, members))
        return (operators + graphs.replays - replays) / (100 * runs)

    together, alone = count_operators(8), count_operators(1)
    assert together <= 10 and together < 0.8 * alone


@pytest.mark.slow
def test_every_rule_has_the_bits_that_it_has_alone(graphs):
    rules = sorted(path.stem for path in (ROOT / "conf/algorithm").glob("*.yaml"))
    split = {"gas", "minibatch_sfl", "s2fl", "splitfed"}  # compute beside the others
    members = [
        [f"algorithm={rule}", f"seed={seed}", *(["executor=sequential"] if rule in split else [])]
        for seed, rule in enumerate(rules)
    ]
    alone = [run_alone(words) for words in members]
    together, group = run_together(members)
    assert (
        len(rules) == 33
        and [rule for rule, one, other in zip(rules, together, alone, strict=True) if not torch.equal(one, other)] == []
    )
    assert group.most > 16
