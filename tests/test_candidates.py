"""scripts/candidates.py: a candidate that computes something else would be timed for nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "scripts" / "candidates.py"


@pytest.fixture(scope="module")
def candidates():
    spec = importlib.util.spec_from_file_location("candidates_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("name", ["shared_weights", "lockstep"])
def test_a_candidate_gives_the_gradients_of_the_present_way(candidates, name):
    for pair in candidates.CANDIDATES[name]():
        present_pd = pair.present().clone()
        assert present_pd.abs().max() > 0
        torch.testing.assert_close(pair.candidate(), present_pd, rtol=1e-4, atol=1e-6)


def test_a_row_reports_how_far_a_candidate_is_off(candidates):
    # the second entry is 0.5 short, the largest is 2: 0.25, printed to one digit
    pair = candidates.Pair("off", lambda: torch.tensor([1.0, 2.0]), lambda: torch.tensor([1.0, 1.5]), gradients=1)
    assert candidates.row(pair, repeats=2).split("|")[-2].strip() == "2e-01"
