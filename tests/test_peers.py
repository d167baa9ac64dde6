"""scripts/peers/compare.py: what it makes of the workers' answers, and of peers that cannot be measured."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "peers" / "compare.py"


@pytest.fixture(scope="module")
def peers():
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("peers_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "images.npz"
    np.savez(path, x_train=np.zeros((50, 28, 28), np.uint8), y_train=np.zeros(50, np.int64))
    return path


def test_a_ratio_compares_a_turn_with_the_bare_loops_around_it(peers):
    # turns of 2, 4 and 1 ms per update; the bare loop takes 2 ms on average around each, so 1.0, 0.5 and 2.0
    found = {"version": "0.4.4", "peer": [0.002, 0.004, 0.001], "bare": [0.001, 0.003, 0.002, 0.002, 0.003, 0.001]}
    *_, updates, steps, ratio, _ = (cell.strip() for cell in peers.row("W1", "flgo", found).split("|"))
    assert (updates, steps, ratio) == ("500", "500", "**1.00** (0.50 to 2.00)")


def test_a_ratio_of_a_thousandth_is_told(peers):
    found = {"version": None, "peer": [2.0], "bare": [0.002, 0.003]}
    assert "**0.0013** (0.0013 to 0.0013)" in peers.row("W1", "flgo", found)


def test_a_peer_whose_python_is_missing_fails_with_its_path(peers, data):
    with pytest.raises(peers.Failed, match="/nowhere/python"):
        peers.measured("flgo", "/nowhere/python", "W3a", data, repeats=1)


@pytest.mark.process
def test_a_peer_that_is_not_installed_fails_with_the_import_error(peers, data):
    with pytest.raises(peers.Failed, match="No module named 'flgo'"):
        peers.measured("flgo", sys.executable, "W3a", data, repeats=1)


def test_every_peer_says_what_it_does_in_every_workload(peers):
    for peer in ("ours", *peers.PINS):
        module = importlib.import_module(f"{peer}_peer")
        assert set(module.DOES) == set(peers.WORKLOADS)
    assert "synchronous**" in importlib.import_module("fedlab_peer").DOES["W1"]
