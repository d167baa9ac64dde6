"""FedDyn: clients whose objectives are corrected by what they sent before."""

import numpy as np
import pytest
import torch
from toy import Scripted, ScriptedLoss, simulate

from asyncfl_bench.algorithms.feddyn import FedDyn, FedDynConfig
from asyncfl_bench.clients.versions import ClientSums, ModelVersions
from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.simulation.schedules import RandomIdle, ScheduleConfig
from asyncfl_bench.types import ClientTable, Delivery, Upload

N, D = 5, 3
RNG = np.random.default_rng(3)
TARGETS_ND = RNG.normal(size=(N, D))
CURVATURES_ND = RNG.uniform(0.2, 3.0, size=(N, D))
OPTIMUM_D = (CURVATURES_ND * TARGETS_ND).sum(axis=0) / CURVATURES_ND.sum(axis=0)


class ExactClients:
    """Each client minimises F_k(x) - <g_k, x> + (a/2) |x - w|^2 exactly, F_k(x) = sum_j c_kj (x_j - t_kj)^2 / 2."""

    def __init__(self, alpha):
        self.alpha, self.versions = alpha, ModelVersions()
        self.sums = ClientSums(N, torch.zeros(D, dtype=torch.float64))
        self.curvatures_nd, self.targets_nd = torch.tensor(CURVATURES_ND), torch.tensor(TARGETS_ND)

    def dispatch(self, work, model_d):
        self.versions.hold(work.iteration, model_d)

    def deliver(self, work):
        start_d, k = self.versions[work.iteration].clone(), work.client
        self.versions.release(work.iteration)
        pull_d = self.alpha * self.sums.proximal_center(k, start_d)
        local_d = (self.curvatures_nd[k] * self.targets_nd[k] + pull_d) / (self.curvatures_nd[k] + self.alpha)
        return Delivery(self.sums.message(k, local_d - start_d), torch.zeros(()))


class Paper(Observer):
    """The paper's own variables g_k and h and its own formulas, from the uploads alone."""

    def __init__(self, alpha):
        self.alpha, self.w, self.g_nd, self.h_d = alpha, np.zeros(D), np.zeros((N, D)), np.zeros(D)
        self.round: list[tuple[int, np.ndarray]] = []
        self.rounds = 0

    def received(self, upload, changed):
        self.round.append((upload.client, upload.vector_d.numpy().copy()))

    def round_ended(self, changed):
        assert changed == bool(self.round)
        if not self.round:
            return
        for k, difference in self.round:
            # the client's stationary point: grad F_k(x) - g_k + a (x - w) = 0
            residual = CURVATURES_ND[k] * (self.w + difference - TARGETS_ND[k]) - self.g_nd[k] + self.alpha * difference
            np.testing.assert_allclose(residual, 0, atol=1e-9)
            self.g_nd[k] -= self.alpha * difference
        differences = np.array([difference for _, difference in self.round])
        self.h_d -= self.alpha / N * differences.sum(axis=0)
        self.w = (self.w + differences).mean(axis=0) - self.h_d / self.alpha
        np.testing.assert_allclose(self.h_d, self.g_nd.mean(axis=0), atol=1e-12)
        self.round = []
        self.rounds += 1


def world(alpha, concurrency=N, rounds=30, **options):
    rule, paper = FedDyn(FedDynConfig(alpha=alpha)), Paper(alpha)
    executor = ExactClients(alpha)
    _, recorder, _ = simulate(
        rule,
        n=N,
        delay=Scripted([[1]] * N),
        targets=TARGETS_ND,
        kind="difference",
        executor=executor,
        concurrency=concurrency,
        schedule=RandomIdle(ScheduleConfig(dispatch="per_round")),
        observers=[paper],
        server_iterations=rounds,
        **options,
    )
    return rule, executor, paper, recorder


@pytest.mark.parametrize("concurrency", [2, 3, N])
def test_client_and_server_do_what_the_papers_formulas_say(concurrency):
    lost = ScriptedLoss({(0, 0), (1, 2), (3, 1), (4, 0)})
    rule, executor, paper, recorder = world(0.5, concurrency, availability=lost)
    np.testing.assert_allclose(recorder.models[-1], paper.w, rtol=1e-9)
    np.testing.assert_allclose(executor.sums.rows.rows_nd.numpy(), -paper.g_nd / 0.5, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(rule.sums_mean_d.numpy(), -paper.h_d / 0.5, rtol=1e-9)


@pytest.mark.parametrize("concurrency", [1, 2, N])
def test_h_is_the_mean_of_all_g_after_every_round_whoever_takes_part(concurrency):
    rule, executor, paper, _ = world(0.3, concurrency, rounds=20)
    assert paper.rounds == 20  # each of them compared
    sums = executor.sums.rows.rows_nd.mean(dim=0)
    torch.testing.assert_close(rule.sums_mean_d, sums, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("concurrency", "rounds"), [(N, 300), (2, 1500)])
def test_clients_that_solve_exactly_converge_to_the_global_optimum_also_when_two_of_five_take_part(concurrency, rounds):
    _, _, _, recorder = world(0.5, concurrency, rounds)
    np.testing.assert_allclose(recorder.models[-1], OPTIMUM_D, atol=1e-6)
    assert np.abs(OPTIMUM_D - TARGETS_ND.mean(axis=0)).max() > 0.1, "a mean of the local optima would not be it"


def test_with_alpha_towards_zero_the_first_round_goes_twice_the_mean_difference_from_w():
    for alpha in (1e-3, 1e-6):
        _, _, _, recorder = world(alpha, rounds=1)
        np.testing.assert_allclose(recorder.models[0], 2 * TARGETS_ND.mean(axis=0), rtol=100 * alpha)


def test_the_mean_of_the_clients_sums_counts_all_clients_and_not_only_the_rounds():
    rule, model = FedDyn(FedDynConfig()), torch.zeros(1, dtype=torch.float64)
    rule.start(model, ClientTable(np.ones(4, int)), "difference")
    for client, value in [(0, 4.0), (2, 8.0)]:
        rule.receive(Upload(client, torch.tensor([value], dtype=torch.float64), 0, 0, 9, 1))
    assert rule.round() is True
    assert rule.sums_mean_d.item() == 3.0  # (4 + 8) / 4
    assert model.item() == 6.0 + 3.0  # w + mean_S D + s
    assert rule.round() is False and model.item() == 9.0
    rule.receive(Upload(1, torch.tensor([-4.0], dtype=torch.float64), 1, 0, 9, 1))
    rule.round()
    assert (rule.sums_mean_d.item(), model.item()) == (2.0, 9.0 - 4.0 + 2.0)


def test_in_a_real_run_with_lost_work_server_and_clients_stay_in_step():
    words = ["algorithm=feddyn", "algorithm.alpha=0.1", "client.local_steps=3", "schedule=random_idle", "concurrency=4"]
    words += ["availability=suspension", "availability.probability=0.3", "scale=smoke", "executor=threads", "threads=2"]
    built = build_run(compose([*words, "delay=uniform"]))
    simulation, compared = built.simulation, 0
    while simulation.counters.iteration < 12:
        before = simulation.counters.iteration
        simulation.step()
        if simulation.counters.iteration > before:
            mean_d = built.executor.memories.rows.rows_nd.mean(dim=0)
            torch.testing.assert_close(built.rule.sums_mean_d, mean_d, rtol=1e-4, atol=1e-6)
            compared += 1
    built.executor.close()
    assert compared == 12 and simulation.counters.discarded > 3
