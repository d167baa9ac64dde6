import json

import pytest
from algorithms.golden import FILE, trajectory

from asyncfl_bench.config import options

GOLDEN = json.loads(FILE.read_text())


@pytest.mark.parametrize("key", GOLDEN)
def test_a_trajectory_is_what_it_was(key):
    found, expected = trajectory(*key.split()), GOLDEN[key]
    assert found["clients"] == expected["clients"]
    assert found["staleness"] == expected["staleness"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=2e-4)
    assert found["norm"] == pytest.approx(expected["norm"], rel=2e-4)


def test_every_algorithm_has_its_golden_trajectories():
    assert {key.split()[0] for key in GOLDEN} == set(options("algorithm"))
