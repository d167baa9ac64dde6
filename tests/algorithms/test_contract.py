"""What every yaml in conf/algorithm must do, whoever wrote it."""

import copy
import math

import numpy as np
import pytest
import torch
from tiers import slow
from toy import ToyServer

from asyncfl_bench import run
from asyncfl_bench.algorithms.base import BufferConfig, equip
from asyncfl_bench.algorithms.trial import TrialPart
from asyncfl_bench.config import compose, options
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.randomness import Streams
from asyncfl_bench.storage import Storage
from asyncfl_bench.types import ClientTable, Message, Upload

N, D = 5, 7
CLIENTS = ClientTable(np.full(N, 10), np.eye(N, 3, dtype=int) * 8 + 1)
ALGORITHMS = options("algorithm")
CLOCKS = ("delay=exponential", "delay=exp_beta5")


def built(name, clock="delay=exponential"):
    """The rule under small settings, and the kind of upload it takes."""
    words = [f"algorithm={name}", f"n_clients={N}", clock, "heterogeneity=iid"]
    settings = compose(words)
    if isinstance(settings.parts["algorithm"].config, BufferConfig):
        settings = compose([*words, "algorithm.buffer_size=3"])
    streams = Streams(settings.root.seed)
    rule = equip(settings.parts["algorithm"].build(), Storage(), streams, ToyServer(), TrialPart(D - 1))
    rule = settings.parts["distillation"].build().after(rule, streams)
    return rule, settings.parts["client"].config.upload


def arrivals(count, seed=0):
    generator = np.random.default_rng(seed)
    clients = [*range(N), *generator.integers(0, N, count)]
    return [(int(c), torch.tensor(generator.normal(size=D)).float(), int(generator.integers(0, 4))) for c in clients]


def send(rule, client, vector, iteration):
    """Where clients hold a part of the model: a dispatch, a message whose tensors are recycled after the answers."""
    if rule.cuts:
        rule.work_for(client)
        activations, labels = vector[:3, None].clone(), torch.tensor([0, 1, 0])
        stepped = rule.hear(Message(client, 0, 1, iteration, 0, 10, activations, labels))
        assert stepped is True or stepped is False
        assert all(torch.isfinite(reply.gradient).all() for _, reply in rule.replies())
        activations.fill_(float("nan"))
        labels.fill_(-1)


def uploaded(rule, vector):
    """Of a vector what the client sends."""
    return vector[: D - 1] if rule.cuts else vector


def feed(rule, model, events, iteration=0):
    """Hands over uploads as the engine would; returns the answers and the iterations done."""
    answers = []
    for number, (client, vector, staleness) in enumerate(events):
        base = max(0, iteration - staleness)
        send(rule, client, vector, base)
        upload = Upload(client, uploaded(rule, vector.clone()), base, staleness, 10, 1)
        upload.base_d = uploaded(rule, torch.full((D,), 0.05 * staleness))
        upload.along_d = -0.3 * upload.vector_d
        upload.outputs_uc = ToyServer().outputs(vector)
        moved = 0
        # a tick after every arrival, a round after every fourth
        for ask in (lambda upload=upload: rule.receive(upload), rule.tick, *([rule.round] if number % 4 == 3 else [])):
            before = model.clone()
            changed = ask()
            assert changed is True or changed is False
            assert changed == (not torch.equal(before, model)), "True exactly when the global model changed"
            moved += changed
        iteration += moved
        answers.append(moved)
        rule.work_for(client)
    return answers, iteration


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_rule_moves_the_model_stays_finite_and_says_exactly_when(name, clock):
    rule, kind = built(name, clock)
    model = torch.zeros(D)
    rule.start(model, CLIENTS, kind)
    answers, _ = feed(rule, model, arrivals(40))
    assert sum(answers) >= 2, "at least two server iterations"
    assert torch.isfinite(model).all() and model.abs().max() > 0
    assert all(math.isfinite(value) and "/" in key for key, value in rule.stats().items())


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_rule_restored_from_its_state_goes_on_bit_for_bit(name, clock):
    rule, kind = built(name, clock)
    model = torch.zeros(D)
    rule.start(model, CLIENTS, kind)
    events = arrivals(60)
    _, iteration = feed(rule, model, events[:23])
    saved, saved_model = copy.deepcopy(rule.state_dict()), model.clone()

    restored, _ = built(name, clock)
    other = torch.zeros(D)
    restored.start(other, CLIENTS, kind)
    other.copy_(saved_model)
    restored.load_state_dict(saved)

    first = feed(rule, model, events[23:], iteration)
    second = feed(restored, other, events[23:], iteration)
    assert first == second
    assert torch.equal(model, other)
    assert rule.stats() == restored.stats()
    assert rule.decisions() == restored.decisions()
    assert all(len(row) == len(rule.decision_columns) for row in rule.decisions())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_uploads_are_only_lent_to_a_rule(name):
    rule, kind = built(name)
    model = torch.zeros(D)
    rule.start(model, CLIENTS, kind)
    reused, base, along = (uploaded(rule, torch.zeros(D)) for _ in range(3))
    twin_rule = built(name)[0]
    outputs = torch.zeros(ToyServer.samples, ToyServer.classes)
    twin_model = torch.zeros(D)
    twin_rule.start(twin_model, CLIENTS, kind)
    for client, vector, staleness in arrivals(30):
        for each in (rule, twin_rule):
            send(each, client, vector, 0)
        outputs.copy_(ToyServer().outputs(vector))
        vector = uploaded(rule, vector)
        reused.copy_(vector)
        base.fill_(0.05 * staleness)
        along.copy_(-0.3 * vector)
        lent_with = {"base_d": base, "along_d": along, "outputs_uc": outputs}
        rule.receive(Upload(client, reused, 0, staleness, 10, 1, **lent_with))
        kept = {name: tensor.clone() for name, tensor in lent_with.items()}
        twin_rule.receive(Upload(client, vector, 0, staleness, 10, 1, **kept))
        for lent in (reused, *lent_with.values()):
            lent.fill_(float("nan"))  # the executor recycles it
        assert rule.round() == twin_rule.round()
    assert torch.equal(model, twin_model)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    ("setting", "value"),
    [("eta", "-1"), ("eta", "0"), ("eta", "fast"), ("c", "0"), ("bufer_size", "3"), ("eta", ".inf")],
)
def test_a_bad_setting_is_refused_with_its_key_and_value(name, setting, value):
    with pytest.raises(ConfigError) as caught:
        compose([f"algorithm={name}", f"algorithm.{setting}={value}"])
    assert caught.value.key == f"algorithm.{setting}"
    assert "\n" not in str(caught.value)


FAST = ("ace", "fedbuff", "fedavg", "gas")  # one of each kind; golden trajectories run all


@pytest.mark.parametrize("name", [*FAST, *slow(*(name for name in ALGORITHMS if name not in FAST))])
def test_a_few_iterations_run_from_the_command_line_words_on_both_clocks(name):
    for clock in CLOCKS:
        result = run([f"algorithm={name}", clock, "scale=smoke", "progress=false"])
        assert result.ok, result.summary["error"]
        assert result.summary["used"]["server_iterations"] == 20
        assert result.summary["algorithm"] == name
