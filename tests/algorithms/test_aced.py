import numpy as np
import pytest
import torch
from toy import Scripted, simulate

from asyncfl_bench.algorithms.aced import Aced, AcedConfig
from asyncfl_bench.types import ClientTable, Upload


class Watched(Aced):
    """Notes the active set of every turn, from the definition rather than from the running sum."""

    def start(self, *args):
        super().start(*args)
        self.turns = []
        self.sent = {}  # client: turn at which it obtained the model of the work that it does
        self.start_of_cached = dict.fromkeys(range(self.n), 1)

    def dispatched(self, client):
        self.sent[client] = self.t
        super().dispatched(client)

    def receive(self, upload):
        if self.t:
            self.start_of_cached[upload.client] = self.sent[upload.client]
        return super().receive(upload)

    def step(self):
        t = self.t
        starts = self.start_of_cached if self.config.tstart == "gradient" else dict(enumerate(self.tstart_n))
        active = [c for c in range(self.n) if t == 0 or t - starts[c] <= self.config.tau_algo]
        moved = super().step()
        self.turns.append((active, self.active))
        return moved


def watched(tau_algo, n=30, iterations=200, tstart="dispatch", clock="time", seed=0, **world):
    step_on = "tick" if clock == "ticks" else "arrival"
    rule = Watched(AcedConfig(eta=0.01, tau_algo=tau_algo, tstart=tstart, step_on=step_on))
    delay = Scripted(np.random.default_rng(seed).exponential(3, size=(n, 200)).tolist())
    _, recorder, _ = simulate(rule, n=n, delay=delay, clock=clock, server_iterations=iterations, uploads=2000, **world)
    return rule, recorder


@pytest.mark.parametrize("tau_algo", [0, 1, 5, 12])
def test_as_printed_all_clients_are_active_first_and_at_most_tau_plus_1_afterwards(tau_algo):
    rule, _ = watched(tau_algo)
    sizes = [active for _, active in rule.turns]
    assert sizes[: tau_algo + 2] == [30] * (tau_algo + 2)  # t = 0 .. tau_algo + 1
    assert all(1 <= size <= tau_algo + 1 for size in sizes[tau_algo + 2 :])


@pytest.mark.parametrize("clock", ["time", "ticks"])
@pytest.mark.parametrize("tstart", ["dispatch", "gradient"])
def test_the_active_set_and_its_sum_follow_the_definition(clock, tstart):
    rule, _ = watched(4, tstart=tstart, clock=clock)
    assert all(len(active) == counted for active, counted in rule.turns)
    assert len({counted for _, counted in rule.turns}) > 2
    exact = sum(rule.cache.stored_vector(c) for c in range(30) if rule.active_n[c])
    torch.testing.assert_close(rule.total.sum_d, exact + torch.zeros(3), rtol=1e-9, atol=1e-12)


def test_a_client_that_arrives_is_active_from_the_next_turn_on_for_tau_plus_1_turns():
    rule = Watched(AcedConfig(eta=0.1, tau_algo=2, step_on="arrival"))
    # after the first round client 2 reports once, at 4.5; the others take turns
    _, recorder, _ = simulate(rule, n=3, delay=Scripted([[1], [1], [4.5, 99]]), server_iterations=18)
    turn = next(t for t, a in enumerate(recorder.arrivals[3:], start=1) if a.client == 2)
    assert turn == 9
    present = [2 in active for active, _ in rule.turns]
    assert present[turn] is False
    assert present[turn + 1 : turn + 5] == [True, True, True, False]


def test_with_tau_0_the_step_uses_the_gradient_that_arrived_one_iteration_earlier():
    rule = Aced(AcedConfig(eta=0.1, tau_algo=0, step_on="arrival"))
    delay = Scripted(np.random.default_rng(1).exponential(size=(5, 60)).tolist())
    _, recorder, _ = simulate(rule, n=5, delay=delay, server_iterations=50)
    steps = -np.diff(np.array(recorder.models), axis=0) / 0.1
    arrivals = recorder.arrivals[5:]  # the first of them is turn 1
    for step, now, before in zip(steps[1:], arrivals[1:], arrivals, strict=False):
        # the client heard one turn ago, with its newest gradient should it report twice running
        expected = now if now.client == before.client else before
        np.testing.assert_allclose(step, expected.vector, atol=1e-12)


@pytest.mark.parametrize(("n", "tau_algo", "moves"), [(1, 0, 60), (3, 2, 58), (3, 1, 3)])
def test_by_gradient_age_each_gradient_is_judged_by_its_own_model(n, tau_algo, moves):
    """With equal durations a gradient is n - 1 turns old when it arrives; those of the first model are younger."""
    rule = Aced(AcedConfig(eta=0.1, tau_algo=tau_algo, tstart="gradient", step_on="arrival"))
    simulation, _, _ = simulate(rule, n=n, delay=Scripted([[1]] * n), uploads=60)
    assert simulation.counters.iteration == moves


def test_by_gradient_age_the_step_uses_the_gradients_of_models_at_most_tau_turns_old():
    rule = Aced(AcedConfig(eta=1.0, tau_algo=1, tstart="gradient", step_on="arrival"))
    model = torch.zeros(1, dtype=torch.float64)
    rule.start(model, ClientTable(np.ones(2, int)), "gradient")

    def arrive(client, value):
        changed = rule.receive(Upload(client, torch.tensor([value], dtype=torch.float64), 0, 0, 1, 1))
        rule.dispatched(client)
        return changed, model.item()

    rule.dispatched(0), rule.dispatched(1)
    arrive(0, 2.0)
    assert arrive(1, 4.0) == (True, -3.0)  # w1 = -(2 + 4) / 2; client 1 obtains w1
    rule.dispatched(0)  # and so does client 0
    assert arrive(0, 6.0) == (True, -8.0)  # t=1: ages 0 and 0, (6 + 4) / 2; client 0 obtains w2
    assert arrive(0, 8.0) == (True, -14.0)  # t=2: ages 0 and 1, (8 + 4) / 2; client 0 obtains w3
    assert arrive(0, 1.0) == (True, -15.0)  # t=3: ages 0 and 2, 1 alone; client 0 obtains w4
    assert arrive(1, 5.0) == (True, -16.0)  # t=4: of w1, age 3, and of w3, age 1: client 0 alone, 1; obtains w5
    assert arrive(1, 7.0) == (True, -23.0)  # t=5: of w5, age 0, and of w3, age 2: client 1 alone, 7
    assert arrive(0, 9.0) == (True, -30.0)  # t=6: of w4, age 2, and of w5, age 1: client 1 alone, 7


def test_by_gradient_age_an_empty_active_set_leaves_the_model_and_time_goes_on():
    rule, recorder = watched(1, tstart="gradient", iterations=20)
    empty = [counted for _, counted in rule.turns].count(0)
    assert empty > 50  # with 30 clients nearly every gradient is older than one iteration
    assert sum(a.changed for a in recorder.arrivals) == len(recorder.models)
    assert rule.t == len(rule.turns) == len(recorder.models) + empty


def test_as_printed_the_active_set_is_never_empty():
    for seed in range(5):
        rule, _ = watched(3, seed=seed)
        assert min(counted for _, counted in rule.turns) >= 1


def test_two_clients_worked_out_by_hand():
    rule = Aced(AcedConfig(eta=1.0, tau_algo=1, step_on="arrival"))
    model = torch.zeros(1, dtype=torch.float64)
    rule.start(model, ClientTable(np.ones(2, int)), "gradient")

    def arrive(client, value):
        changed = rule.receive(Upload(client, torch.tensor([value], dtype=torch.float64), 0, 0, 1, 1))
        return changed, model.item()

    assert arrive(0, 2.0) == (False, 0.0)
    assert arrive(1, 4.0) == (True, -3.0)  # w1 = -(2 + 4) / 2, tstart = (1, 1)
    assert arrive(0, 6.0) == (True, -8.0)  # t=1: both active, (6 + 4) / 2; tstart = (2, 1)
    assert arrive(0, 8.0) == (True, -14.0)  # t=2: 2-1 <= 1, both active, (8 + 4) / 2; tstart = (3, 1)
    assert arrive(0, 1.0) == (True, -15.0)  # t=3: client 1 has expired, 1 alone; tstart = (4, 1)
    assert arrive(1, 5.0) == (True, -16.0)  # t=4: its tstart is still 1, so client 0 alone again; tstart = (4, 5)
    assert arrive(0, 3.0) == (True, -20.0)  # t=5: both, (3 + 5) / 2
