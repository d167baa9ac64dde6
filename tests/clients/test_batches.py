import numpy as np
import pytest

from asyncfl_bench.clients.samples import Batches
from asyncfl_bench.randomness import Streams
from asyncfl_bench.types import Work

PARTITION = [np.arange(0, 10), np.arange(10, 13), np.array([], dtype=np.int64), np.array([99])]


def batches(client=0, count=0, steps=1, batch_size=4, seed=0):
    return Batches(PARTITION, batch_size, Streams(seed)).batches_of(Work(client, 0, count, 0, steps))


def test_a_pass_sees_every_sample_once_and_ends_with_the_rest():
    drawn = batches(steps=3)
    assert [len(b) for b in drawn] == [4, 4, 2]
    assert sorted(np.concatenate(drawn)) == list(range(10))


def test_further_passes_are_shuffled_anew():
    drawn = batches(steps=6)
    first, second = np.concatenate(drawn[:3]), np.concatenate(drawn[3:])
    assert sorted(second) == list(range(10))
    assert list(first) != list(second)


def test_the_draw_depends_on_seed_client_and_count_alone():
    np.testing.assert_array_equal(batches(count=5)[0], batches(count=5)[0])
    assert list(batches(count=5)[0]) != list(batches(count=6)[0])
    assert list(batches(count=5)[0]) != list(batches(count=5, seed=1)[0])
    np.testing.assert_array_equal(batches(count=5, steps=1)[0], batches(count=5, steps=3)[0])


def test_a_client_with_fewer_samples_than_a_batch_uses_all_it_has():
    assert sorted(batches(client=1)[0]) == [10, 11, 12]
    assert list(batches(client=3)[0]) == [99]


def test_all_is_the_full_local_data_in_order_at_every_step():
    drawn = batches(steps=2, batch_size="all")
    np.testing.assert_array_equal(drawn, [np.arange(10)] * 2)


def test_an_empty_client_has_empty_batches():
    assert [len(b) for b in batches(client=2, steps=3)] == [0, 0, 0]


@pytest.mark.slow
def test_every_sample_is_as_likely_to_be_drawn():
    counts = np.bincount(np.concatenate([batches(count=k)[0] for k in range(2000)]), minlength=10)
    assert counts.sum() == 8000
    assert np.abs(counts - 800).max() < 5 * np.sqrt(2000 * 0.4 * 0.6)  # five standard deviations


def test_batches_drawn_one_by_one_are_those_drawn_together():
    work, many = Work(0, 0, 2, 0, 8), Batches(PARTITION, 4, Streams(0))
    one_by_one = many.one_by_one(work)
    other = many.batches_of(Work(1, 0, 2, 0, 1))  # the shared generator moves on, this work's own does not
    assert len(other[0]) == 3
    for batch, expected in zip(one_by_one, many.batches_of(work), strict=True):
        np.testing.assert_array_equal(batch, expected)
