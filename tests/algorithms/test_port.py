"""PORT: the weights of a buffer, and for whom a step waits."""

import numpy as np
import pytest
import torch
from toy import Scripted, ScriptedLoss, simulate

from asyncfl_bench.algorithms.port import Port
from asyncfl_bench.types import ClientTable, Upload

N = 5
WORLD = {"n": N, "kind": "difference", "lr": 0.3, "samples": [3, 1, 4, 1, 5]}
# from very fast to very slow
SPREAD = Scripted([[1.0], [1.3], [1.7], [9.1], [31.0]])


def run(rule, **world):
    return simulate(rule, **(WORLD | {"delay": SPREAD, "server_iterations": 40} | world))


@pytest.mark.parametrize(
    ("delta", "weights"),
    [([-3.0, 0.0], (4, 1.5)), ([0.0, 5.0], (4, 2)), ([2.0, 0.0], (4, 2.5))],
    ids=["against", "across", "along"],
)
def test_what_is_stale_weighs_less_and_least_where_it_points_backwards(delta, weights):
    rule, model = Port(buffer_size=2, bound=10, deltas="dispatched"), torch.zeros(2)
    rule.start(model, ClientTable(np.array([7, 7])), "difference")
    rule.moved_d.copy_(torch.tensor([1.0, 0.0]))
    fresh = [-1.0, 1.0]  # whose direction does not matter
    for client, (vector, tau) in enumerate([(fresh, 0), (delta, 10)]):
        rule.receive(Upload(client, torch.tensor(vector), 0, tau, 7, 1, base_d=model.clone()))
    p = np.array(weights) / sum(weights)
    assert p[1] == pytest.approx({1.5: 0.273, 2: 0.333, 2.5: 0.385}[weights[1]], abs=1e-3)
    np.testing.assert_allclose(model, p @ np.array([fresh, delta]), rtol=1e-6)


def test_by_staleness_alone_and_without_a_bound_the_model_is_the_mean_of_the_local_models_by_samples():
    _, recorder, _ = run(Port(buffer_size=3, bound=10**9, direction_weight=0.0))
    models, samples = [np.zeros(3), *recorder.models], np.array(WORLD["samples"])
    assert max(arrival.staleness for arrival in recorder.arrivals) > 5
    for step in range(40):
        three = recorder.arrivals[3 * step : 3 * step + 3]
        locals_ = [models[arrival.base_iteration] + arrival.vector for arrival in three]
        weights = samples[[arrival.client for arrival in three]]
        np.testing.assert_allclose(models[step + 1], weights @ np.array(locals_) / weights.sum(), atol=1e-7)


@pytest.mark.parametrize("bound", [0, 2, 5])
def test_a_step_waits_for_those_who_are_too_stale_and_no_upload_is_staler_than_one_more(bound):
    _, recorder, _ = run(Port(buffer_size=2, bound=bound))
    assert max(arrival.staleness for arrival in recorder.arrivals) == bound + 1
    assert len(recorder.arrivals) > 2 * 40  # uploads came while it waited, and count
    free = run(Port(buffer_size=2, bound=1000))[1].arrivals
    assert len(free) == 2 * 40 and max(arrival.staleness for arrival in free) > 6


def test_after_lost_work_it_waits_for_the_clients_next_upload():
    _, recorder, ended_by = run(Port(buffer_size=2, bound=2), availability=ScriptedLoss({(4, 0), (3, 1)}))
    assert ended_by == "server_iterations" and len(recorder.discards) == 2
    assert max(arrival.staleness for arrival in recorder.arrivals) == 3


def test_the_direction_of_an_upload_one_version_old_does_not_matter():
    rule, model = Port(buffer_size=2, bound=10, deltas="dispatched"), torch.zeros(2)
    rule.start(model, ClientTable(np.array([7, 7])), "difference")
    rule.moved_d.copy_(torch.tensor([1.0, 0.0]))
    for client, (vector, tau) in enumerate([([1.0, 0.0], 0), ([-1.0, 0.0], 1)]):
        rule.receive(Upload(client, torch.tensor(vector), 0, tau, 7, 1, base_d=model.clone()))
    fresh, late = 1 + 3, 1 + 3 * 10 / 11  # b_s (1 + 1) / 2 + b_t S / (tau + S)
    assert model[0].item() == pytest.approx((fresh - late) / (fresh + late))
