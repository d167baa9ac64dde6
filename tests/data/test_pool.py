"""Which clients of many take part, and how their samples are split. Legend: N samples, n clients that take part."""

from __future__ import annotations

import numpy as np

from asyncfl_bench.data.pool import PoolConfig, join_parts, read_pool, split_pool
from asyncfl_bench.randomness import Streams

SIZES = [20, 9, 41, 100, 5, 30, 60, 12, 25, 33]  # of clients 0 to 9


def pool(path, sizes=SIZES, **change):
    """Client k's i-th sample is (k, i), its label i % 3; samples of all clients are mixed."""
    client = np.repeat(np.arange(len(sizes)), sizes)
    number = np.concatenate([np.arange(size) for size in sizes])
    mixed = np.lexsort((client, number))
    arrays = {"x": np.stack([client, number], 1).astype(np.uint8)[mixed], "y": number[mixed] % 3}
    np.savez(path / "pool.npz", **({**arrays, "client": client[mixed]} | change))
    return read_pool(path / "pool.npz", (2,), values=250, classes=3)


def split(pool, n=4, seed=0, shuffled=False, **settings):
    train, test, natural = split_pool(pool, PoolConfig(**settings), Streams(seed), n, shuffled=shuffled)
    return pool.x[train], pool.x[test], natural


def owners(x_train, natural):
    """The one client in the pool behind each client of the run."""
    assert all(len(set(x_train[own, 0])) == 1 for own in natural)
    return [int(x_train[own[0], 0]) for own in natural]


def test_each_client_trains_on_its_first_nine_tenths_and_the_rest_is_the_test_set(tmp_path):
    x_train, x_test, natural = split(pool(tmp_path), n=8)
    np.testing.assert_array_equal(np.concatenate(natural), np.arange(len(x_train)))
    chosen = owners(x_train, natural)
    assert sorted(chosen) == [0, 2, 3, 5, 6, 7, 8, 9]  # 9 and 5 samples are fewer than the 10 asked for
    n_train = {0: 18, 2: 36, 3: 90, 5: 27, 6: 54, 7: 10, 8: 22, 9: 29}  # floor(0.9 size)
    for client, own in zip(chosen, natural, strict=True):
        np.testing.assert_array_equal(x_train[own, 1], np.arange(n_train[client]))
    expected = [(k, i) for k in chosen for i in range(n_train[k], SIZES[k])]
    assert x_test.tolist() == [list(pair) for pair in expected]


def test_the_seed_alone_chooses_the_clients_and_more_of_them_are_the_same_and_further_ones(tmp_path):
    many = pool(tmp_path)
    chosen = owners(*split(many, n=5)[::2])
    for settings in ({"max_samples": 7}, {"test_share": 0.5}, {"shuffled": True}):
        assert owners(*split(many, n=5, **settings)[::2]) == chosen
    assert owners(*split(many, n=3)[::2]) == chosen[:3]
    assert owners(*split(many, n=8)[::2])[:5] == chosen
    # a higher minimum leaves out the small ones and moves nobody else
    able = owners(*split(many, n=8)[::2])
    assert owners(*split(many, n=4, min_samples=30)[::2]) == [k for k in able if SIZES[k] >= 30][:4]
    others = {tuple(owners(*split(many, n=5, seed=seed)[::2])) for seed in range(1, 6)}
    assert len(others) == 5 and tuple(chosen) not in others


def test_a_cap_is_taken_before_the_split_and_after_the_minimum(tmp_path):
    x_train, x_test, natural = split(pool(tmp_path), n=8, max_samples=11, test_share=0.25)
    assert [len(own) for own in natural] == [8] * 8 and len(x_test) == 8 * 3  # floor(0.75 * 11)
    assert x_train[:, 1].max() == 7 and sorted(set(x_test[:, 1])) == [8, 9, 10]


def test_shuffled_samples_are_the_same_ones_in_another_order_for_every_client(tmp_path):
    many = pool(tmp_path, [50, 50])
    x_train, x_test, natural = split(many, n=2, shuffled=True)
    first, second = (x_train[own, 1] for own in natural)
    assert len(first) == 45 and not np.array_equal(first, np.sort(first)) and not np.array_equal(first, second)
    held = x_test[x_test[:, 0] == x_train[0, 0], 1]
    assert sorted([*first, *held]) == list(range(50)) and max(held) - min(held) > 5
    again, _, _ = split(many, n=1, shuffled=True)
    np.testing.assert_array_equal(again[:, 1], first)  # whoever else takes part


def test_names_in_order_become_ids_whatever_the_order_of_the_parts():
    parts = [
        (["b", "c", "b"], np.array([[1], [2], [3]], np.uint8), np.array([4, 5, 6])),
        (["a"], np.array([[7]], np.uint8), np.array([8])),
    ]
    for order in (parts, parts[::-1]):
        arrays = join_parts(order, "somewhere")
        found = {
            (int(c), int(x), int(y)) for c, (x,), y in zip(arrays["client"], arrays["x"], arrays["y"], strict=True)
        }
        assert found == {(1, 1, 4), (2, 2, 5), (1, 3, 6), (0, 7, 8)}
        assert str(arrays["source"]) == "somewhere"
