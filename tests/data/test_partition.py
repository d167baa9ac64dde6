"""Legend: n clients, N samples, C classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncfl_bench.data.partition import (
    Clusters,
    ClustersConfig,
    Dirichlet,
    DirichletConfig,
    Iid,
    Natural,
    PartitionConfig,
    Shards,
    ShardsConfig,
    _repair,
)
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.randomness import Streams

LABELS = np.tile(np.arange(10), 200)  # 2000 samples, 10 balanced classes


def dirichlet(y=LABELS, n=20, seed=0, **config):
    return Dirichlet(DirichletConfig(**config)).split(y, n, Streams(seed))


def assert_each_sample_once(partition, samples):
    np.testing.assert_array_equal(np.sort(np.concatenate(partition)), np.arange(samples))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in partition)


def share_nc(partition, y, classes=10):
    """(n, C) share of each class in a client's samples."""
    return np.array([np.bincount(y[part], minlength=classes) / len(part) for part in partition])


@pytest.mark.parametrize(
    "rule",
    [
        Dirichlet(DirichletConfig()),
        Dirichlet(DirichletConfig(cap=True)),
        Iid(PartitionConfig()),
        Shards(ShardsConfig()),
        Shards(ShardsConfig(shards_per_client=3)),
        Clusters(ClustersConfig()),
        Clusters(ClustersConfig(groups=1, volume_sigma=0.0)),
    ],
)
def test_every_sample_belongs_to_one_client_and_the_seed_decides_to_which(rule):
    first, again, other = (rule.split(LABELS, 23, Streams(seed)) for seed in (0, 0, 1))
    assert len(first) == 23
    assert_each_sample_once(first, 2000)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    size_c=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    n=st.integers(1, 30),
    least=st.integers(1, 6),
    alpha=st.sampled_from([1e-300, 1e-6, 0.05, 0.3, 1.0, 1e6, 1e308]),
    seed=st.integers(0, 5),
)
def test_dirichlet_always_ends_with_the_minimum_or_refuses(size_c, n, least, alpha, seed):
    y = np.repeat(np.arange(len(size_c)), size_c)
    if n * least > len(y):
        with pytest.raises(ConfigError, match=r"^min_samples="):
            dirichlet(y, n, seed, alpha=alpha, min_samples=least, tries=3)
        return
    partition = dirichlet(y, n, seed, alpha=alpha, min_samples=least, tries=3)
    assert_each_sample_once(partition, len(y))
    assert min(map(len, partition)) >= least


def test_class_shares_over_clients_have_the_dirichlet_mean_and_variance():
    n, alpha, y = 5, 2.0, np.tile(np.arange(10), 300)
    share = []
    for seed in range(150):
        for part in dirichlet(y, n, seed, alpha=alpha, min_samples=1):
            share.append(np.bincount(y[part], minlength=10) / 300)
    # a share of a symmetric Dirichlet: mean 1/n, variance (1/n)(1 - 1/n) / (n alpha + 1)
    assert np.mean(share) == pytest.approx(1 / n, abs=1e-9)
    assert np.var(share) == pytest.approx((1 / n) * (1 - 1 / n) / (n * alpha + 1), rel=0.05)


def test_small_alpha_is_more_skewed_than_large_alpha():
    def largest_share(alpha):
        return share_nc(dirichlet(alpha=alpha), LABELS).max(axis=1).mean()

    assert largest_share(0.1) > 0.5 > 0.25 > largest_share(10) > largest_share(1e6)
    assert largest_share(1e6) == pytest.approx(0.1, abs=0.01)


def test_digits_over_a_hundred_clients_are_repaired_and_the_split_knows_how_many_samples_moved():
    y = np.random.default_rng(0).integers(0, 10, 1437)
    split = Dirichlet(DirichletConfig(alpha=0.1, min_samples=5))
    partition = split.split(y, 100, Streams(0))
    size_n = np.array([len(part) for part in partition])
    assert_each_sample_once(partition, 1437)
    assert size_n.min() == 5 and size_n.max() > 30
    assert 0 < split.moved < 100
    assert share_nc(partition, y).max(axis=1).mean() > 0.5  # still skewed: iid clients of this size have about 0.22


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 10.0])
def test_no_place_in_the_list_of_clients_gets_more_samples_than_another(alpha):
    y = np.random.default_rng(0).integers(0, 10, 1437)
    split = Dirichlet(DirichletConfig(alpha=alpha, min_samples=0))
    size_sn = np.array([[len(part) for part in split.split(y, 100, Streams(seed))] for seed in range(150)])
    error = size_sn.std() / 150**0.5
    # rounding every share down gave the first client 4 samples fewer than the others and the last one 5 to 8 more
    for place in (0, 50, 99):
        assert abs(size_sn[:, place].mean() - 14.37) < 4 * error
    assert size_sn[:, [0, 99]].std() == pytest.approx(size_sn.std(), rel=0.25)


def test_a_repair_takes_from_the_largest_client_until_nobody_is_short():
    count_cn = np.array([[10, 6, 0], [0, 0, 2]])
    moved = _repair(count_cn, 5, np.random.default_rng(0))
    # sizes 10, 6, 2: three samples go from the first (10, 9, 8) to the third; the second never is the largest
    assert moved == 3 and count_cn.tolist() == [[7, 6, 3], [0, 0, 2]]


def test_a_repair_moves_the_givers_classes_in_proportion():
    count_cn = np.array([[3000, 0], [1000, 0]])
    _repair(count_cn, 1000, np.random.default_rng(0))
    assert count_cn.sum(axis=0).tolist() == [3000, 1000]
    assert abs(count_cn[0, 1] - 750) < 4 * np.sqrt(1000 * 0.75 * 0.25)


def test_a_partition_that_meets_the_minimum_is_left_alone():
    split = Dirichlet(DirichletConfig(alpha=5.0, min_samples=5))
    sizes = [len(part) for part in split.split(LABELS, 20, Streams(0))]
    assert sizes == [len(part) for part in dirichlet(alpha=5.0, min_samples=1)] and split.moved == 0


def test_redrawing_finds_the_minimum_without_moving_samples():
    split = Dirichlet(DirichletConfig(alpha=0.3, min_samples=100))
    assert min(map(len, split.split(LABELS, 10, Streams(0)))) >= 100 and split.moved == 0
    once = Dirichlet(DirichletConfig(alpha=0.3, min_samples=100, tries=1))
    once.split(LABELS, 10, Streams(0))
    assert once.moved > 0  # the same first draw, without the chance to draw again


def test_all_samples_there_are_can_be_asked_for():
    assert [len(part) for part in dirichlet(min_samples=100)] == [100] * 20


def test_iid_clients_differ_by_one_sample_and_hold_all_classes():
    partition = Iid(PartitionConfig()).split(LABELS, 7, Streams(0))
    assert sorted(map(len, partition)) == [285] * 2 + [286] * 5
    assert np.abs(share_nc(partition, LABELS) - 0.1).max() < 0.08


def test_two_shards_show_a_client_at_most_two_classes():
    partition = Shards(ShardsConfig()).split(LABELS, 20, Streams(0))  # 40 shards of 50 samples, 4 to a class
    classes_n = [len(set(LABELS[part])) for part in partition]
    assert max(classes_n) == 2 and [len(part) for part in partition] == [100] * 20


def test_natural_clients_are_kept_and_counted():
    natural = [np.array([3, 1]), np.array([0, 2, 4])]
    rule = Natural(PartitionConfig())
    assert [part.tolist() for part in rule.split(np.zeros(5), 2, Streams(0), natural)] == [[1, 3], [0, 2, 4]]


MANY = np.tile(np.arange(10), 2400)  # as many samples as clients of the paper's mean volume need, 24 000 over 240


def clusters(y=MANY, n=240, seed=0, **config):
    """(partition, planted group of each client)."""
    split = Clusters(ClustersConfig(**config))
    return split.split(y, n, Streams(seed)), split.groups_n


def test_planted_groups_are_of_one_size_and_spread_over_all_clients():
    _, groups_n = clusters(n=23, groups=5)
    assert np.bincount(groups_n).tolist() == [5, 5, 5, 4, 4]
    assert (np.diff(groups_n) != 0).sum() > 8 and not np.array_equal(groups_n, clusters(n=23, groups=5, seed=1)[1])


@pytest.mark.parametrize("groups", [3, 5])
def test_labels_differ_between_planted_groups_and_not_within_one(groups):
    partition, groups_n = clusters(groups=groups)
    count_nc = np.array([np.bincount(MANY[part], minlength=10) for part in partition])
    share_kc = np.array([count_nc[groups_n == k].sum(axis=0) / count_nc[groups_n == k].sum() for k in range(groups)])
    apart = np.abs(share_kc[:, None] - share_kc[None]).sum(axis=2)
    assert apart[~np.eye(groups, dtype=bool)].min() > 0.5
    for part, group in zip(partition, groups_n, strict=True):
        expected = share_kc[group] * len(part)
        found = np.bincount(MANY[part], minlength=10)
        assert (np.abs(found - expected) < 5 * np.sqrt(expected) + 3).all()  # counts of a random sample


def test_a_class_is_cut_over_planted_groups_by_a_dirichlet():
    share = []
    for seed in range(200):
        partition, groups_n = clusters(MANY[:2000], 8, seed, groups=4, alpha=2.0)
        held_k = [np.concatenate([partition[i] for i in np.flatnonzero(groups_n == k)]) for k in range(4)]
        share += [np.bincount(MANY[held], minlength=10) / 200 for held in held_k]
    assert np.mean(share) == pytest.approx(1 / 4, abs=1e-9)
    assert np.var(share) == pytest.approx((1 / 4) * (3 / 4) / (4 * 2 + 1), rel=0.06)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_volumes_are_log_normal_with_the_groups_total(sigma):
    partition, groups_n = clusters(groups=2, volume_sigma=sigma, min_samples=1)
    log_n = np.log([len(part) for part in partition])
    for group in range(2):
        own = log_n[groups_n == group]
        assert own.std() == pytest.approx(sigma, rel=0.2, abs=0.02)
        if sigma:  # symmetric on the scale of logarithms
            assert abs(np.mean((own - own.mean()) ** 3)) / own.std() ** 3 < 0.8


def test_without_groups_only_the_volumes_differ():
    partition, groups_n = clusters(groups=1)
    size_n = np.array([len(part) for part in partition])
    assert set(groups_n) == {0} and size_n.min() >= 2
    assert np.median(size_n) == pytest.approx(100 * np.exp(-0.5), rel=0.2)  # of a log-normal of mean 100
    large = [part for part in partition if len(part) > 150]
    assert np.abs(share_nc(large, MANY) - 0.1).max() < 0.1


def test_every_client_of_a_planted_group_holds_the_minimum_and_what_was_moved_is_told():
    split = Clusters(ClustersConfig(groups=3, volume_sigma=2.0, min_samples=10))
    partition = split.split(MANY, 240, Streams(0))
    assert_each_sample_once(partition, len(MANY))
    assert min(map(len, partition)) == 10 and split.moved > 0
    assert max(map(len, clusters(groups=1, volume_sigma=1e6)[0])) == len(MANY) - 239 * 2  # the rest have the minimum


def test_without_alpha_classes_are_whole_and_sizes_still_differ():
    partition, groups_n = clusters(groups=10, alpha=None)
    assert all((MANY[own] == group).all() for own, group in zip(partition, groups_n, strict=True))
    assert max(map(len, partition)) > 5 * min(map(len, partition))
    partition, groups_n = clusters(groups=4, alpha=None)
    assert all((MANY[own] % 4 == group).all() for own, group in zip(partition, groups_n, strict=True))


def test_a_task_tells_its_clients_groups():
    from asyncfl_bench.config import compose
    from asyncfl_bench.experiment.build import build_run

    words = ["heterogeneity=clusters", "heterogeneity.groups=3", "n_clients=20", "model=softmax", "progress=false"]
    built = build_run(compose(words))
    assert np.bincount(built.task.clients.groups_n).tolist() == [7, 7, 6]
    assert built.task.clients.labels_nc.shape == (20, 10)
    built.executor.close()


@pytest.mark.parametrize("alpha", [1e-6, 0.1, 10.0])
def test_a_capped_client_takes_no_class_after_it_holds_its_part_of_the_samples(alpha):
    for seed in range(5):
        config = {"alpha": alpha, "min_samples": 0, "n": 20, "seed": seed}
        capped, free = dirichlet(cap=True, **config), dirichlet(**config)
        assert_each_sample_once(capped, 2000)
        held_nc = np.array([np.bincount(LABELS[part], minlength=10) for part in capped])
        before_nc = np.cumsum(held_nc, axis=1) - held_nc
        assert (before_nc[held_nc > 0] < 100).all()
        assert max(map(len, capped)) < 100 + 200
        if alpha == 0.1:
            assert np.std([len(part) for part in capped]) < np.std([len(part) for part in free])


def shards(y, n, each, per_class):
    return Shards(ShardsConfig(shards_per_client=each, per_class=per_class)).split(y, n, Streams(0))


@pytest.mark.parametrize(("n", "each"), [(20, 2), (20, 3), (50, 2), (10, 1)])
def test_shards_of_each_class_leave_a_client_with_no_more_classes_than_shards(n, each):
    uneven = np.repeat(np.arange(10), 200 + 7 * np.arange(10))
    for y in (LABELS, uneven):
        partition = shards(y, n, each, per_class=True)
        assert_each_sample_once(partition, len(y))
        of_one = np.bincount(y) * 10 / (n * each)
        for part in partition:
            counts = np.bincount(y[part], minlength=10)
            assert (counts > 0).sum() <= each
            whole = np.round(counts / of_one)
            assert (abs(counts - whole * of_one) <= whole).all()
    if len(LABELS) % (n * each) == 0:
        found = zip(shards(LABELS, n, each, per_class=True), shards(LABELS, n, each, per_class=False), strict=True)
        assert all(np.array_equal(one, other) for one, other in found)
