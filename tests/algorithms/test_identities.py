"""Limits and equivalences between the algorithms, on real numbers, over whole simulated runs."""

import numpy as np
import pytest
import torch
from toy import Scripted, asgd, simulate

from asyncfl_bench.algorithms.ace import Ace, AceConfig
from asyncfl_bench.algorithms.aced import Aced, AcedConfig
from asyncfl_bench.algorithms.afbs import Afbs, AfbsConfig
from asyncfl_bench.algorithms.ca2fl import Ca2fl
from asyncfl_bench.algorithms.delay_adaptive_asgd import DelayAdaptiveAsgd, DelayAdaptiveAsgdConfig
from asyncfl_bench.algorithms.fedbuff import FedBuff, FedBuffConfig
from asyncfl_bench.algorithms.mifa import Mifa, MifaConfig

N = 8
DELAY = Scripted(np.random.default_rng(2).exponential(size=(N, 100)).tolist())
TARGETS = np.random.default_rng(1).normal(size=(N, 3))


def models(rule, iterations=60, **world):
    """(iterations, 3) global model after every server iteration."""
    world = {"n": N, "delay": DELAY, "targets": TARGETS, "kind": rule.upload_kinds[0]} | world
    _, recorder, _ = simulate(rule, server_iterations=iterations, **world)
    return np.array(recorder.models)


def ace(eta=0.1, step_on="arrival"):
    return Ace(AceConfig(eta=eta, step_on=step_on))


def aced(tau_algo, eta=0.1, step_on="arrival", tstart="dispatch"):
    return Aced(AcedConfig(eta=eta, tau_algo=tau_algo, step_on=step_on, tstart=tstart))


def fedbuff(**config):
    return FedBuff(FedBuffConfig(**{"eta": 1.0, "buffer_size": 3} | config))


def test_aced_with_a_threshold_beyond_the_horizon_is_ace_on_ticks_too_bit_for_bit():
    one = models(ace(step_on="tick"), clock="ticks")
    np.testing.assert_array_equal(one, models(aced(60, step_on="tick"), clock="ticks"))
    assert not np.array_equal(one, models(aced(2, step_on="tick"), clock="ticks"))


def test_ace_on_ticks_without_delay_is_full_participation_sgd():
    one = models(ace(step_on="tick"), delay=Scripted([[1]] * N), clock="ticks")
    expected = [(1 - 0.9**t) * TARGETS.mean(axis=0) for t in range(1, 61)]
    np.testing.assert_allclose(one, expected, rtol=1e-9)


def test_fedbuff_with_a_polynomial_weight_of_exponent_zero_has_no_weight():
    weighted = fedbuff(staleness_weight="polynomial", staleness_exponent=0.0)
    np.testing.assert_array_equal(models(weighted, lr=0.2), models(fedbuff(), lr=0.2))


def test_fedbuff_with_a_buffer_of_one_has_one_polynomial_weight_bit_for_bit():
    one, other = (fedbuff(buffer_size=1, staleness_weight=weight) for weight in ("freshest", "polynomial"))
    np.testing.assert_array_equal(models(one, lr=0.2), models(other, lr=0.2))


def test_afbs_that_drops_nothing_is_fedbuff_with_the_weight_of_the_freshest():
    one = models(Afbs(AfbsConfig(buffer_size=3, clusters=1)), lr=0.2)  # all clients hold one sample
    np.testing.assert_allclose(one, models(fedbuff(staleness_weight="freshest"), lr=0.2), rtol=1e-12)
    assert np.abs(one - models(fedbuff(staleness_weight="polynomial"), lr=0.2)).max() > 1e-3


def test_the_first_buffer_of_ca2fl_is_that_of_fedbuff_and_the_second_is_not():
    delay = Scripted([[1 + c / 10] for c in range(N)])  # no client twice in the first buffer
    one = models(Ca2fl(eta=1.0, buffer_size=6), lr=0.2, iterations=2, delay=delay)
    other = models(fedbuff(buffer_size=6), lr=0.2, iterations=2, delay=delay)
    np.testing.assert_allclose(one[0], other[0], rtol=1e-12)
    assert np.abs(one[1] - other[1]).max() > 1e-3


def test_mifa_steps_with_what_all_were_last_heard_to_say():
    once = {"delay": Scripted([[1, 100], [2, 100], [100, 100]]), "n": 3, "targets": [[3.0], [6.0], [9.0]]}
    first, second = models(Mifa(MifaConfig(buffer_size=1)), iterations=2, lr=1.0, **once)
    assert first.tolist() == [1.0] and second.tolist() == [1.0 + (3 + 6) / 3]


def test_ca2fl_with_constant_differences_ends_in_their_mean_for_any_buffer():
    rule = Ca2fl(eta=1.0, buffer_size=3)
    model = torch.zeros(3, dtype=torch.float64)
    from asyncfl_bench.types import ClientTable, Upload

    rule.start(model, ClientTable(np.ones(N, int)), "difference")
    rng = np.random.default_rng(0)
    for client in [*range(N), 0, *rng.integers(0, N, 90)]:  # 9 arrivals fill all caches and end at a flush
        before = model.clone()
        if rule.receive(Upload(int(client), torch.tensor(TARGETS[client]), 0, 0, 1, 1)):
            moved = (model - before).numpy()
    np.testing.assert_allclose(moved, TARGETS.mean(axis=0), rtol=1e-9)


@pytest.mark.parametrize("variant", ["koloskova", "drop"])
def test_delay_adaptive_with_an_infinite_threshold_is_vanilla_asgd_bit_for_bit(variant):
    rule = DelayAdaptiveAsgd(DelayAdaptiveAsgdConfig(eta=0.1, tau_c=10**9, variant=variant))
    np.testing.assert_array_equal(models(rule), models(asgd()))


def test_rules_with_one_update_per_arrival_meet_the_same_arrivals():
    orders = []
    for rule in (asgd(), aced(3), ace()):
        first_round = N if rule.needs.first_round else 0
        _, recorder, _ = simulate(
            rule, n=N, delay=DELAY, targets=TARGETS, uploads=100 + first_round, server_iterations=999
        )
        orders.append([(a.client, a.time) for a in recorder.arrivals][first_round:])
    assert orders[0] == orders[1] == orders[2]
    assert {client for client, _ in orders[0]} == set(range(N))


def test_a_gradient_and_its_negative_as_a_difference_move_every_rule_alike():
    for make in (asgd, ace, lambda: aced(4)):
        as_difference = models(make(), kind="difference", lr=1.0)
        np.testing.assert_allclose(models(make(), kind="gradient"), as_difference, rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ace(),
        lambda: aced(3),
        asgd,
        lambda: fedbuff(momentum=0.5),
        lambda: Ca2fl(),
        lambda: DelayAdaptiveAsgd(DelayAdaptiveAsgdConfig(eta=0.1, tau_c=2)),
    ],
)
def test_uploads_of_zero_leave_the_model_where_it_is(make):
    rule = make()
    at_target = np.ones((N, 3))
    moved = models(rule, targets=at_target, start=[1.0, 1.0, 1.0])
    np.testing.assert_array_equal(moved, np.ones_like(moved))
