import numpy as np
import pytest
import torch
from toy import Scripted, final_model, simulate

from asyncfl_bench import run
from asyncfl_bench.algorithms.ace import Ace, AceConfig
from asyncfl_bench.algorithms.common.sums import RunningSum
from asyncfl_bench.clients.versions import ClientMemories
from asyncfl_bench.storage import bytes_of
from asyncfl_bench.types import ClientTable, Upload


def test_two_clients_worked_out_by_hand():
    # targets 0 and 4, w0 = 2: U = (2, -2), mean 0, w1 = 2; client 0 reports w1 - 0 = 2: mean 0; ...
    rule = Ace(AceConfig(eta=0.5, step_on="arrival"))
    _, recorder, _ = simulate(
        rule, n=2, delay=Scripted([[1], [10]]), targets=[[0.0], [6.0]], start=[2.0], server_iterations=4
    )
    # U = (2, -4), mean -1: w1 = 2.5.  U_0 = 2.5: mean -.75, w2 = 2.875.  U_0 = 2.875: mean -.5625, w3 = 3.15625
    np.testing.assert_allclose(
        np.array(recorder.models)[:, 0], [2.5, 2.875, 3.15625, 3.15625 - 0.5 * (3.15625 - 4) / 2]
    )


def test_the_direction_is_the_mean_of_all_cached_gradients_at_every_iteration():
    n, rng = 6, np.random.default_rng(0)
    rule = Ace(AceConfig(eta=0.1, step_on="arrival"))
    # client 5 never reports again: its gradient at w0 stays in the mean
    delay = Scripted([*rng.exponential(size=(n - 1, 50)).tolist(), [1e9]])
    _, recorder, _ = simulate(rule, n=n, delay=delay, server_iterations=80)
    cache = np.zeros((n, 3))
    before = np.zeros(3)
    iteration = 0
    for arrival in recorder.arrivals:
        cache[arrival.client] = arrival.vector
        if arrival.changed:
            after = recorder.models[iteration]
            np.testing.assert_allclose((before - after) / 0.1, cache.mean(axis=0), atol=1e-12)
            before, iteration = after, iteration + 1
    assert iteration == 80
    assert all(arrival.client != 5 for arrival in recorder.arrivals[n:])


@pytest.mark.slow
def test_incremental_and_direct_give_the_same_trajectory_in_a_run():
    words = ["scale=smoke", "n_clients=20", "budget.server_iterations=60", "model=softmax", "progress=false"]
    direct, incremental = (run([*words, "trace=true", f"algorithm.rule={rule}"]) for rule in ("direct", "incremental"))
    assert direct.summary["identity"] != incremental.summary["identity"]
    torch.testing.assert_close(final_model(direct), final_model(incremental), rtol=0, atol=1e-6)


def test_the_incremental_form_keeps_no_cache_on_the_server():
    direct, incremental = (Ace(AceConfig(eta=1.0, rule=rule)) for rule in ("direct", "incremental"))
    for rule in (direct, incremental):
        rule.start(torch.zeros(1000), ClientTable(np.ones(50, int)), "gradient")
    assert bytes_of(incremental.state_dict()) == 1000 * 8  # the sum is of doubles
    assert bytes_of(direct.state_dict()) == 1000 * 8 + 50 * 1000 * 4


def test_vectors_that_left_the_running_sum_leave_nothing_behind_in_it():
    torch.manual_seed(0)
    kept, plain = RunningSum(torch.zeros(50)), torch.zeros(50)
    for _ in range(2000):
        term = 1000 * torch.randn(50)
        kept.add(term)
        kept.subtract(term)
        kept.add(torch.full((50,), 0.001))
        plain += term
        plain -= term
        plain += 0.001
    target = torch.zeros(50)
    kept.add_to(target, 2.0)
    torch.testing.assert_close(target, torch.full((50,), 4.0), rtol=1e-6, atol=0)
    assert (plain - 2.0).abs().max() > 1e-3, "in single precision it would have drifted"


@pytest.mark.parametrize("step_on", ["arrival", "tick"])
def test_no_step_is_taken_before_every_client_was_heard(step_on):
    rule = Ace(AceConfig(eta=1.0, step_on=step_on))
    model = torch.zeros(2)
    rule.start(model, ClientTable(np.ones(3, int)), "gradient")
    for client in range(2):
        assert rule.receive(Upload(client, torch.ones(2), 0, 0, 1, 1)) is False
        assert rule.tick() is False
    assert model.abs().sum() == 0
    changed = rule.receive(Upload(2, torch.ones(2), 0, 0, 1, 1))
    assert (changed, rule.tick()) == ((True, False) if step_on == "arrival" else (False, True))
    torch.testing.assert_close(model, -torch.ones(2))


def test_the_incremental_sum_stays_with_its_clients_while_gradients_shrink_a_thousandfold():
    n, d, arrivals = 20, 50, 10_000
    draws = np.random.default_rng(0)
    rule = Ace(AceConfig(eta=1e-9, rule="incremental"))
    rule.start(torch.zeros(d), ClientTable(np.full(n, 10)), "gradient")
    memories = ClientMemories(n, torch.zeros(d))
    latest_nd = np.zeros((n, d), dtype=np.float32)
    for arrival in range(arrivals):
        client = arrival % n
        latest_nd[client] = draws.normal(size=d) * 1000 ** (-arrival / arrivals)
        vector_d = memories.message(client, torch.from_numpy(latest_nd[client].copy()))
        rule.receive(Upload(client, vector_d, 0, 0, 10, 1))
    exact_d = latest_nd.astype(np.float64).sum(axis=0)
    assert np.abs(rule.total.sum_d.numpy() - exact_d).max() < 1e-5 * np.abs(exact_d).max()
