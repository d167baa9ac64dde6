import json

import pytest
from algorithms.golden import DIGESTS, FILE, compute_bits, is_comparable, trajectory, unversioned_rules
from tiers import alternate

from asyncfl_bench.config import options

GOLDEN = json.loads(FILE.read_text())


@pytest.mark.parametrize("key", alternate(*GOLDEN))
def test_a_trajectory_is_what_it_was(key):
    found, expected = trajectory(*key.split()), GOLDEN[key]
    assert found["clients"] == expected["clients"]
    assert found["staleness"] == expected["staleness"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=2e-4)
    assert found["norm"] == pytest.approx(expected["norm"], rel=2e-4)


def test_every_algorithm_has_its_golden_trajectories():
    assert {key.split()[0] for key in GOLDEN} == set(options("algorithm"))


@pytest.mark.process
def test_no_bit_of_a_trajectory_changes_under_the_same_results_version():
    """golden.json allows 2e-4, and a rule whose last bits change no longer repeats its archived runs."""
    kept, found = json.loads(DIGESTS.read_text()), compute_bits(options("algorithm"))
    if not is_comparable(kept, found):
        (kept_by, here) = (f"{one['maker']}, torch {one['torch']}" for one in (kept, found))
        pytest.skip(f"the digests are of {kept_by}, and this is {here}")
    assert not unversioned_rules(kept, found), "raise RULE_VERSIONS"
    assert found == kept, "make golden"


def test_changed_bits_need_a_higher_results_version():
    kept = {"rules": {"ace": "3:aa", "port": "4:bb"}}
    assert unversioned_rules(kept, {"rules": {"ace": "3:ab", "port": "4:bb", "new": "3:cc"}}) == ["ace"]
    assert unversioned_rules(kept, {"rules": {"ace": "4:ab", "port": "4:bb"}}) == []
