from itertools import pairwise

import numpy as np
import pytest

from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.availability import Dropout, DropoutConfig, Suspension, SuspensionConfig
from asyncfl_bench.types import Work


def dropped(share, seed=0, n=50):
    dropout = Dropout(DropoutConfig(share=share, at_iteration=10))
    dropout.start(n, Streams(seed))
    assert not any(dropout.has_left(client, 9) for client in range(n))
    return {client for client in range(n) if dropout.has_left(client, 10)}


def test_dropout_takes_its_share_and_the_sets_are_nested():
    sets = [dropped(share) for share in (0.0, 0.1, 0.3, 0.7, 1.0)]
    assert [len(s) for s in sets] == [0, 5, 15, 35, 50]
    assert all(small < large for small, large in pairwise(sets))


def test_the_seed_decides_who_drops():
    assert dropped(0.3) == dropped(0.3)
    assert dropped(0.3) != dropped(0.3, seed=1)


@pytest.mark.slow
def test_everybody_is_as_likely_to_drop():
    counts = np.sum([[c in dropped(0.2, seed) for c in range(50)] for seed in range(200)], axis=0)
    assert counts.min() > 15 and counts.max() < 70


def suspended(probability, hang=3.0, seed=0, n=40, cycles=250, duration=2.0):
    """((n, cycles) whether the work is lost, (n, cycles) its time in durations)."""
    suspension = Suspension(SuspensionConfig(probability=probability, hang=hang))
    suspension.start(n, Streams(seed))
    work = [[Work(client, 0, 0, 0, 1, cycle=cycle) for cycle in range(cycles)] for client in range(n)]
    outcomes = np.array([[suspension.outcome(one, duration) for one in row] for row in work])
    return outcomes[:, :, 1] == 0, outcomes[:, :, 0] / duration


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9])
def test_suspension_takes_its_share_of_the_work_of_every_client_alike(probability):
    lost, taken = suspended(probability)
    assert lost.mean() == pytest.approx(probability, abs=0.012)
    per_client = lost.mean(axis=1)
    assert per_client.std() == pytest.approx((probability * (1 - probability) / 250) ** 0.5, rel=0.35, abs=1e-12)
    assert (taken[~lost] == 1).all()


def test_a_suspended_client_hangs_uniformly_up_to_three_durations_after_its_work():
    lost, taken = suspended(0.5)
    hang = taken[lost] - 1
    assert hang.min() >= 0 and hang.max() < 3
    np.testing.assert_allclose(np.quantile(hang, np.linspace(0, 1, 11)), np.linspace(0, 3, 11), atol=0.1)
    assert taken[lost].mean() == pytest.approx(2.5, abs=0.05)  # as in the authors' runs
    lost_short, taken_short = suspended(0.5, hang=0.0)
    assert (lost_short == lost).all() and (taken_short == 1).all()


@pytest.mark.slow
def test_how_long_it_hangs_says_nothing_about_how_probable_the_loss_was():
    lost, taken = suspended(0.05, cycles=2000)
    assert (taken[lost] - 1).mean() == pytest.approx(1.5, abs=0.05)


def test_suspension_is_nested_and_the_seed_decides_it():
    sets = [suspended(probability)[0] for probability in (0.1, 0.3, 0.9)]
    assert all((more >= fewer).all() for fewer, more in pairwise(sets))
    assert (suspended(0.3)[0] == sets[1]).all() and (suspended(0.3, seed=1)[0] != sets[1]).any()
