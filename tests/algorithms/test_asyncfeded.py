"""AsyncFedED: steps by distance, and how many local steps that leads to."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from toy import Scripted, ScriptedLoss, simulate, start_rule

from asyncfl_bench.algorithms.asyncfeded import AsyncFedEd, AsyncFedEdConfig
from asyncfl_bench.algorithms.fedasync import FedAsync, FedAsyncConfig
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.types import ClientTable, Upload

D = 6
RNG = np.random.default_rng(0)
W_D, BASE_D, DIFFERENCE_D = RNG.normal(size=(3, D))


def started(w=W_D, **config):
    return start_rule(AsyncFedEd(AsyncFedEdConfig(**{"k_initial": 10} | config)), 3, w)


def arrive(rule, base, difference, client=1):
    return rule.receive(Upload(client, torch.tensor(difference), 0, 0, 5, 1, k=7, base_d=torch.tensor(base)))


def step(w=W_D, base=BASE_D, difference=DIFFERENCE_D, **config):
    """(gamma, eta_g, the model after it) of one arrival."""
    rule, model = started(w, **config)
    arrive(rule, base, difference)
    return rule.gamma, rule.eta_g, model.numpy()


def at_gamma(gamma, times=1, **config):
    """The real number k and the K of a client after arrivals of this staleness."""
    rule, _ = started(**config)
    for _ in range(times):
        w = rule.model_d.numpy().copy()
        arrive(rule, w - gamma * DIFFERENCE_D, DIFFERENCE_D)
        assert rule.gamma == pytest.approx(gamma)
    return rule.k_n[1], rule.work_for(1)


def test_a_step_worked_out_by_hand():
    # the model has moved by (3, 4), the upload is (0, 2): gamma = 5 / 2, eps = 5 / 2, eta = 5 / (2.5 + 2.5) = 1
    gamma, eta, model = step(np.array([3.0, 4.0]), np.zeros(2), np.array([0.0, 2.0]), lam=5.0, lam_over_eps=2.0)
    assert (gamma, eta) == (2.5, 1.0)
    np.testing.assert_array_equal(model, [3.0, 6.0])


@pytest.mark.parametrize(("lam", "lam_over_eps"), [(5.0, 1.0), (1.0, 1.0), (5.0, 0.5)])
def test_without_staleness_gamma_is_zero_and_the_step_is_the_largest(lam, lam_over_eps):
    gamma, eta, model = step(base=W_D, lam=lam, lam_over_eps=lam_over_eps)
    assert (gamma, eta) == (0.0, lam_over_eps)
    np.testing.assert_allclose(model, W_D + lam_over_eps * DIFFERENCE_D)


def test_the_step_falls_strictly_with_gamma_between_its_maximum_and_zero():
    pairs = [step(base=W_D - gamma * DIFFERENCE_D, lam=5.0, lam_over_eps=0.5)[:2] for gamma in (0, 0.1, 1, 30, 1e9)]
    assert all(later[0] > earlier[0] and later[1] < earlier[1] for earlier, later in pairwise(pairs))
    assert all(0 < eta <= 0.5 for _, eta in pairs)
    for gamma, eta in pairs:
        assert eta == pytest.approx(5 / (gamma + 10))


def test_scaling_models_and_differences_together_changes_neither_gamma_nor_the_step():
    gamma, eta, _ = step()
    scaled = step(3e4 * W_D, 3e4 * BASE_D, 3e4 * DIFFERENCE_D)
    assert scaled[:2] == pytest.approx((gamma, eta), rel=1e-12)


def test_scaling_only_the_difference_divides_gamma_by_as_much():
    assert step(difference=4 * DIFFERENCE_D)[0] == pytest.approx(step()[0] / 4, rel=1e-12)


@pytest.mark.parametrize(("lam", "lam_over_eps"), [(5.0, 1.0), (1.0, 3.0)])
def test_the_length_of_a_step_follows_from_the_two_distances(lam, lam_over_eps):
    _, _, model = step(lam=lam, lam_over_eps=lam_over_eps)
    moved, length = np.linalg.norm(W_D - BASE_D), np.linalg.norm(DIFFERENCE_D)
    expected = lam * length**2 / (moved + lam / lam_over_eps * length)
    assert np.linalg.norm(model - W_D) == pytest.approx(expected, rel=1e-12)
    assert expected <= lam_over_eps * length


def test_fresh_uploads_with_a_largest_step_of_one_copy_the_local_model_as_fedasync_with_alpha_one_does():
    rule, model = FedAsync(FedAsyncConfig(alpha=1.0)), torch.tensor(W_D)
    rule.start(model, ClientTable(np.ones(3, int)), "difference")
    arrive(rule, W_D, DIFFERENCE_D)
    np.testing.assert_allclose(step(base=W_D)[2], model.numpy(), rtol=1e-15)


def test_norms_are_summed_in_double_precision():
    base = torch.zeros(400_000)
    rule, model = AsyncFedEd(AsyncFedEdConfig(k_initial=1)), torch.full((400_000,), 0.1)
    rule.start(model, ClientTable(np.ones(1, int)), "difference")
    rule.receive(Upload(0, torch.full((400_000,), 0.3), 0, 0, 1, 1, base_d=base))
    assert rule.gamma == pytest.approx(float(torch.tensor(0.1).double() / torch.tensor(0.3).double()), rel=1e-12)


# -- an upload of zero -----------------------------------------------------------------------------------------------


def test_an_upload_of_zero_on_a_model_that_moved_is_infinitely_stale_and_changes_nothing_but_k():
    rule, model = started()
    assert arrive(rule, BASE_D, np.zeros(D)) is False
    assert (rule.gamma, rule.eta_g) == (math.inf, 0.0)
    np.testing.assert_array_equal(model.numpy(), W_D)
    assert (rule.k_n, rule.work_for(1)) == ([10.0, 1.0, 10.0], 1)
    assert rule.stats()["rule/gamma"] == 0.0, "averages are over arrivals that moved the model"


def test_an_upload_of_zero_on_a_model_that_did_not_move_is_not_stale():
    gamma, eta, model = step(base=W_D, difference=np.zeros(D))
    assert (gamma, eta) == (0.0, 1.0)
    np.testing.assert_array_equal(model, W_D)


def test_an_upload_of_zero_is_never_a_server_iteration():
    rule, _ = started()
    assert arrive(rule, W_D, np.zeros(D)) is False
    assert rule.k_n[1] == 13.0, "gamma = 0 raises K by gamma_bar * kappa all the same"


def test_an_upload_of_zero_leaves_a_constant_k_alone():
    rule, _ = started(kappa=0.0)
    arrive(rule, BASE_D, np.zeros(D))
    assert rule.k_n == [10.0] * 3


# -- K ---------------------------------------------------------------------------------------------------------------


def test_k_grows_below_gamma_bar_falls_above_it_and_stays_at_it():
    assert at_gamma(3.0, gamma_bar=3.0)[0] == pytest.approx(10)
    assert at_gamma(1.0, gamma_bar=3.0, kappa=0.5)[0] == pytest.approx(11)
    assert at_gamma(5.0, gamma_bar=3.0, kappa=0.5)[0] == pytest.approx(9)


def test_only_the_k_of_the_client_that_reported_changes():
    rule, _ = started()
    arrive(rule, W_D, DIFFERENCE_D, client=2)
    assert rule.k_n == [10.0, 10.0, 13.0]
    assert [rule.work_for(client) for client in range(3)] == [10, 10, 13]


def test_k_is_never_below_one_nor_above_its_cap():
    assert at_gamma(50.0, times=3) == (1.0, 1)
    assert at_gamma(0.5, times=9, k_max=14) == (14.0, 14)
    assert at_gamma(0.5, times=9)[1] == 32  # without one: 10 + 9 * 2.5


def test_kappa_of_zero_keeps_k():
    for gamma in (0.0, 2.0, 80.0):
        assert at_gamma(gamma, times=4, kappa=0.0) == (10.0, 10)


@pytest.mark.parametrize(
    ("rule", "up", "down"),
    [("accumulate", 11, 9), ("literal", 10, 3), ("round", 10, 10)],
)
def test_with_the_papers_kappa_for_femnist_only_an_accumulated_k_can_rise(rule, up, down):
    femnist = {"gamma_bar": 3.0, "kappa": 0.05, "k_rule": rule}
    assert at_gamma(0.0, times=7, **femnist)[1] == up  # 7 changes of 0.15
    assert at_gamma(5.0, times=7, **femnist)[1] == down  # 7 changes of -0.1


def test_rounding_takes_each_change_to_the_nearest_whole_number():
    assert at_gamma(1.3, kappa=1.0, k_rule="round")[0] == 12  # 1.7
    assert at_gamma(1.3, kappa=1.0, k_rule="literal")[0] == 11


def test_a_suspended_client_comes_back_with_the_k_it_had():
    rule = AsyncFedEd(AsyncFedEdConfig(k_initial=4, kappa=0.5))
    seen = []

    class Watch(Observer):
        def dispatched(self, work, model_d):
            seen.append((work.cycle, work.k, work.lost))

    simulate(
        rule,
        n=1,
        delay=Scripted([[1]]),
        kind="difference",
        lr=0.1,
        availability=ScriptedLoss({(0, 1), (0, 2)}, hang=1.5),
        observers=[Watch()],
        server_iterations=3,
    )
    # gamma = 0 with one client, so each delivery adds 1.5 and lost work adds nothing
    assert seen == [(0, 4, False), (1, 5, True), (2, 5, True), (3, 5, False), (4, 7, False), (5, 8, False)]


# -- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rotation", "permutation"])
def test_the_rule_commutes_with_rotations_and_permutations_of_the_coordinates(kind):
    targets = RNG.normal(size=(5, 4))
    turn = np.linalg.qr(RNG.normal(size=(4, 4)))[0] if kind == "rotation" else np.eye(4)[[2, 0, 3, 1]]
    delay = Scripted(np.random.default_rng(1).exponential(size=(5, 30)).tolist())
    ends = []
    for world_targets in (targets, targets @ turn):
        rule = AsyncFedEd(AsyncFedEdConfig(k_initial=3))
        world = {"n": 5, "delay": delay, "targets": world_targets, "kind": "difference", "lr": 0.3}
        _, recorder, _ = simulate(rule, server_iterations=60, **world)
        ends.append((np.array(recorder.models), rule.k_n))
    np.testing.assert_allclose(ends[0][0] @ turn, ends[1][0], rtol=1e-9, atol=1e-12)
    assert ends[0][1] == pytest.approx(ends[1][1])
    assert np.abs(ends[0][0] - ends[1][0]).max() > 0.1
