from itertools import pairwise

import numpy as np

from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.availability import Dropout, DropoutConfig


def dropped(share, seed=0, n=50):
    dropout = Dropout(DropoutConfig(share=share, at_iteration=10))
    dropout.start(n, Streams(seed))
    assert not any(dropout.gone(client, 9) for client in range(n))
    return {client for client in range(n) if dropout.gone(client, 10)}


def test_dropout_takes_its_share_and_the_sets_are_nested():
    sets = [dropped(share) for share in (0.0, 0.1, 0.3, 0.7, 1.0)]
    assert [len(s) for s in sets] == [0, 5, 15, 35, 50]
    assert all(small < large for small, large in pairwise(sets))


def test_the_seed_decides_who_drops():
    assert dropped(0.3) == dropped(0.3)
    assert dropped(0.3) != dropped(0.3, seed=1)


def test_everybody_is_as_likely_to_drop():
    counts = np.sum([[c in dropped(0.2, seed) for c in range(50)] for seed in range(200)], axis=0)
    assert counts.min() > 15 and counts.max() < 70
