"""What clients tell of their labels, and the clusters made of it. Legend: n clients, C classes, r dimensions."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from asyncfl_bench.algorithms.common.clustering import k_means, projected_shares
from asyncfl_bench.data.partition import Clusters, ClustersConfig
from asyncfl_bench.randomness import Stream, Streams


def labels(groups, clients=60, samples=12_000, classes=10, **config):
    """(labels_nc, planted groups)."""
    y = np.tile(np.arange(classes), samples // classes)
    split = Clusters(ClustersConfig(groups=groups, **config))
    partition = split.split(y, clients, Streams(0))
    return np.array([np.bincount(y[part], minlength=classes) for part in partition]), split.groups_n


def told(labels_nc, rank=9, sigma=1e-3, seed=0):
    return projected_shares(labels_nc, rank, sigma, Streams(seed).rule)


class Rotation:
    """In the place of the stream: no noise, and a rotation as the matrix that all clients share."""

    def __init__(self, n, classes):
        self.n = n
        self.turn_cc = np.linalg.qr(np.random.default_rng(0).normal(size=(classes, classes)))[0]

    def __call__(self, client, count):
        self.key = (client, count)
        return self

    def normal(self, mean, deviation, shape):
        return self.turn_cc if self.key == (self.n, 0) else np.zeros(shape)


def test_without_noise_and_under_a_rotation_squared_distances_are_c_times_those_of_the_shares():
    labels_nc, _ = labels(3)
    share_nc = labels_nc / labels_nc.sum(axis=1, keepdims=True)
    x = projected_shares(labels_nc, 10, 0.0, Rotation(60, 10))
    for i, j in ((0, 1), (5, 40), (30, 59)):
        expected = 10 * ((share_nc[i] - share_nc[j]) ** 2).sum()
        assert ((x[i] - x[j]) ** 2).sum() == pytest.approx(expected, rel=1e-12)


def test_noise_fills_every_rank_and_the_projection_takes_it_down_to_r():
    labels_nc, _ = labels(3)
    for rank in (1, 4, 9):
        assert {np.linalg.matrix_rank(one.reshape(10, rank)) for one in told(labels_nc, rank)} == {rank}
    shares_alone = projected_shares(labels_nc, 9, 0.0, Streams(0).rule)
    assert {np.linalg.matrix_rank(one.reshape(10, 9)) for one in shares_alone} == {1}


def test_every_client_adds_noise_of_its_own_and_all_share_one_projection():
    same = np.tile([5, 3, 2], (4, 1))
    noisy, exact = (projected_shares(same, 2, sigma, Streams(0).rule).reshape(4, 3, 2) for sigma in (0.01, 0.0))
    assert len(np.unique(noisy.round(9))) == noisy.size
    assert np.ptp(exact, axis=0).max() == 0
    assert np.abs(noisy - exact).mean() == pytest.approx(0.01, rel=0.6)
    assert not np.allclose(projected_shares(same, 2, 0.0, Streams(1).rule), exact.reshape(4, 6))


def test_a_client_without_samples_tells_nothing_but_noise():
    x = projected_shares(np.array([[0, 0], [3, 1]]), 1, 0.0, Streams(0).rule)
    assert (x[0] == 0).all() and (x[1] != 0).all()


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_planted_groups_are_recovered_where_clients_hold_200_samples(groups):
    labels_nc, groups_n = labels(groups, volume_sigma=0.0)
    assert labels_nc.sum(axis=1).mean() == 200
    found_n = k_means(told(labels_nc), groups, Stream(0, "rule")(999))
    assert adjusted_rand_score(groups_n, found_n) == 1


def test_the_order_of_clients_changes_only_the_numbers_of_clusters():
    x = told(labels(3, volume_sigma=0.0)[0])
    order = np.random.default_rng(0).permutation(60)
    one, other = (k_means(rows, 3, np.random.default_rng(1)) for rows in (x, x[order]))
    assert adjusted_rand_score(one[order], other) == 1


@pytest.mark.parametrize(("n", "f", "k"), [(40, 3, 4), (30, 90, 3), (12, 2, 12)])
def test_clusters_are_as_tight_as_those_of_another_k_means(n, f, k):
    x = np.random.default_rng(n).normal(size=(n, f))
    found_n = k_means(x, k, np.random.default_rng(0))
    within = sum(((x[found_n == c] - x[found_n == c].mean(axis=0)) ** 2).sum() for c in np.unique(found_n))
    assert within <= KMeans(k, n_init=10, random_state=0).fit(x).inertia_ * 1.03 + 1e-9


def test_equal_rows_fewer_than_clusters_and_a_single_cluster_end():
    same = np.ones((6, 3))
    assert set(k_means(same, 4, np.random.default_rng(0))) <= {0, 1, 2, 3}
    assert set(k_means(np.random.default_rng(0).normal(size=(6, 3)), 1, np.random.default_rng(0))) == {0}
