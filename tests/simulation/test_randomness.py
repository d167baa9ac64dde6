"""Draws are functions of their key."""

import numpy as np
import pytest

from asyncfl_bench.randomness import STREAMS, Stream, Streams


def test_a_draw_depends_on_its_key_and_not_on_what_was_drawn_before():
    stream = Stream(1, "batch")
    first = stream(3, 7).random(5)
    stream(3, 8).random(100)
    stream(4, 7).normal(size=3)
    np.testing.assert_array_equal(stream(3, 7).random(5), first)
    np.testing.assert_array_equal(Stream(1, "batch")(3, 7).random(5), first)


def test_a_generator_of_ones_own_gives_the_same_draws_whatever_the_stream_is_asked_meanwhile():
    stream = Streams(3).batch
    own = stream.separate_generator(4, 7)
    first = own.random(5)
    stream(1, 1).random(3)
    np.testing.assert_array_equal(np.concatenate([first, own.random(5)]), stream(4, 7).random(10))


def test_a_generator_left_in_the_middle_of_a_block_starts_afresh_for_the_next_key():
    stream = Stream(1, "batch")
    expected = stream(0, 1).integers(0, 100, 7)
    stream(0, 0).integers(0, 2**16, 3, dtype=np.uint16)  # leaves half a 32-bit word in the generator's buffer
    np.testing.assert_array_equal(stream(0, 1).integers(0, 100, 7), expected)


def test_streams_clients_and_counts_do_not_share_draws():
    keys = [(name, client, count) for name in STREAMS for client in range(3) for count in range(3)]
    draws = {float(Stream(0, name)(client, count).random()) for name, client, count in keys}
    assert len(draws) == len(keys)


def test_a_new_seed_changes_every_stream():
    one, other = Streams(0), Streams(1)
    for name in STREAMS:
        assert getattr(one, name)().random() != getattr(other, name)().random(), name


def test_neighbouring_keys_are_uncorrelated():
    stream = Stream(0, "delay")
    values = np.array([stream(client, 0).random() for client in range(4000)])
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
    assert values.mean() == pytest.approx(0.5, abs=0.02)
