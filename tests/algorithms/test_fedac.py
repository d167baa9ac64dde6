"""FedAC as reconstructed: weights by direction, a look-ahead Adam, and what corrects the clients."""

import numpy as np
import pytest
import torch
from toy import Scripted, simulate, start_rule

from asyncfl_bench import run
from asyncfl_bench.algorithms.fedac import FedAc
from asyncfl_bench.clients.versions import ClientVariates, ModelVersions
from asyncfl_bench.simulation.schedules import SameClient, ScheduleConfig
from asyncfl_bench.types import Delivery, Upload, Work, Workload

RNG = np.random.default_rng(0)


def upload(client, vector, *, base=None, staleness=0, along=None):
    vector_d = torch.tensor(vector, dtype=torch.float64)
    second_d = torch.zeros_like(vector_d) if along is None else torch.tensor(along, dtype=torch.float64)
    base_d = torch.zeros_like(vector_d) if base is None else torch.tensor(base, dtype=torch.float64)
    return Upload(client, vector_d, 0, staleness, 1, 1, base_d=base_d, second_d=second_d)


def started(n=4, d=2, **settings):
    return start_rule(FedAc(**({"eta": 0.1, "buffer_size": 3} | settings)), n, torch.zeros(d))


def test_without_variates_and_staleness_it_is_adam_with_a_look_ahead_on_the_mean():
    rule, model = started(d=3, beta1=0.7, beta2=0.95, eps=1e-3)
    w, m, v = np.zeros(3), 0.0, 0.0
    for differences in RNG.normal(size=(10, 3, 3)):
        answers = [rule.receive(upload(i, row)) for i, row in enumerate(differences.tolist())]
        assert answers == [False, False, True]
        g = differences.mean(axis=0)
        m, v = 0.7 * m + 0.3 * g, 0.95 * v + 0.05 * g**2
        w = w + 0.1 * (0.7 * m + 0.3 * g) / (np.sqrt(v) + 1e-3)
        np.testing.assert_allclose(model.numpy(), w, rtol=1e-9)
    assert not rule.variate_d.any() and rule.similarity == 1


def test_uploads_along_the_way_the_model_went_weigh_more_and_none_nothing():
    rule, model = started(eta=1.0, beta1=0.0, beta2=0.0, eps=1e3)  # the step is very nearly G / 1000
    model.copy_(torch.tensor([1.0, 0.0]))
    base = [0.0, 0.0]
    rule.receive(upload(0, [3.0, 4.0], base=base, staleness=1, along=[1.0, 0.0]))  # cosine 0.6
    rule.receive(upload(1, [-2.0, 0.0], base=base, staleness=1, along=[0.0, 1.0]))  # -1: the floor, 0.1
    assert rule.receive(upload(2, [0.0, 1.0], along=[1.0, 1.0])) is True  # fresh: 1
    p = np.array([0.6, 0.1, 1.0]) / 1.7
    mean = p @ np.array([[3.0, 4.0], [-2.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose((model.numpy() - [1, 0]) * 1e3, mean, rtol=0.01)
    np.testing.assert_allclose(rule.variate_d.numpy(), p @ np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    assert rule.stats() == {"rule/similarity": pytest.approx(1.7 / 3)}


def test_an_upload_without_a_direction_has_the_least_weight():
    rule, model = started(eta=1.0, beta1=0.0, beta2=0.0, eps=1e3, buffer_size=2, floor=0.25)
    model.copy_(torch.tensor([1.0, 0.0]))
    rule.receive(upload(0, [0.0, 0.0], base=[0.0, 0.0], staleness=1, along=[1.0, 0.0]))
    assert rule.receive(upload(1, [0.0, 1.0], along=[0.0, 1.0])) is True
    np.testing.assert_allclose(rule.variate_d.numpy(), np.array([0.25, 1.0]) / 1.25)


def test_an_empty_client_sends_no_change_whatever_the_servers_variate():
    server_d = torch.ones(2)
    variates = ClientVariates(2, torch.zeros(2), server_d=lambda: server_d, lr=lambda work: 0.1)
    for client, samples, change in ((0, 0, [0.0, 0.0]), (1, 5, [-1.0, -1.0])):
        work = Work(client, client, 0, 0, 1, samples=samples)
        variates.hold(work)
        assert variates.variate_change(work, torch.zeros(2)).tolist() == change
        assert variates.rows[client].tolist() == change


def test_a_share_of_the_changes_keeps_the_servers_variate_at_the_clients_mean():
    (whole, _), (share, _) = started(n=12), started(n=12, variate_step="share")
    kept = np.zeros((12, 2))
    for first in range(0, 12, 3):
        for i in range(first, first + 3):
            kept[i] = RNG.normal(size=2)
            for rule in (whole, share):
                rule.receive(upload(i, [1.0, 1.0], along=kept[i].tolist()))
    np.testing.assert_allclose(share.variate_d.numpy(), kept.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(whole.variate_d.numpy(), 4 * kept.mean(axis=0), rtol=1e-9)


class CorrectedClients:
    """Clients that take K corrected gradient steps on |x - t_i|^2 / 2, keeping variates as real ones do."""

    def __init__(self, targets_nd, rule, lr, steps):
        self.targets_nd, self.lr, self.steps = torch.tensor(targets_nd), lr, steps
        self.versions = ModelVersions()
        like_d = torch.zeros(self.targets_nd.shape[1], dtype=torch.float64)
        self.variates = ClientVariates(
            len(targets_nd), like_d, server_d=lambda: rule.variate_d, lr=lambda work: self.lr
        )

    def dispatch(self, work, model_d):
        self.versions.hold(work.iteration, model_d)
        self.variates.hold(work)

    def deliver(self, work):
        start_d = self.versions[work.iteration].clone()
        w, shift_d = start_d.clone(), self.variates.shift(work)
        for _ in range(self.steps):
            w = w - self.lr * (w - self.targets_nd[work.client] + shift_d)
        second_d = self.variates.variate_change(work, w - start_d)
        self.versions.release(work.iteration)
        self.variates.release(work)
        return Delivery(w - start_d, torch.zeros(()), start_d, second_d=second_d)


def world(targets, steps=5, rounds=1, lr=0.1, **settings):
    """A run in which every buffer has every client once; (rule, clients, simulation) at its end."""
    n = len(targets)
    rule = FedAc(**({"eta": 0.05, "buffer_size": n} | settings))
    clients = CorrectedClients(targets, rule, lr, steps)
    simulation, _, _ = simulate(
        rule,
        n=n,
        delay=Scripted([[1.0]] * n),
        targets=targets,
        kind="difference",
        executor=clients,
        schedule=SameClient(ScheduleConfig(dispatch="after_update")),
        workload=Workload(steps, batch_size=1),
        server_iterations=rounds,
    )
    return rule, clients, simulation


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_clients_that_are_alike_have_the_servers_variate_after_each_buffer(rounds):
    rule, clients, _ = world(np.tile(RNG.normal(size=3), (4, 1)), rounds=rounds)
    assert rule.variate_d.abs().max() > 0.01
    for i in range(4):
        np.testing.assert_allclose(clients.variates.rows[i].numpy(), rule.variate_d.numpy(), rtol=1e-9)


def test_a_clients_variate_is_the_mean_of_its_gradients_without_what_they_gained():
    targets = RNG.normal(size=(3, 2))
    _, clients, _ = world(targets, steps=4, rounds=1)
    for i in range(3):
        w, gradients = np.zeros(2), []
        for _ in range(4):
            gradients.append(w - targets[i])
            w = w - 0.1 * gradients[-1]
        np.testing.assert_allclose(clients.variates.rows[i].numpy(), np.mean(gradients, axis=0), rtol=1e-9)


def test_corrected_clients_go_the_way_of_the_mean_whoever_they_are():
    targets = RNG.normal(size=(5, 3)) * 10
    _, clients, simulation = world(targets, rounds=30)
    whole = simulation.model_d - torch.tensor(targets.mean(axis=0))
    for work in simulation.in_flight.values():
        own = simulation.model_d - torch.tensor(targets[work.client])
        corrected = own + clients.variates.shift(work)
        assert (corrected - whole).norm() < 0.1 * (own - whole).norm()


def test_models_and_uploads_are_two_vectors_which_bytes_count(tmp_path):
    words = ["scale=smoke", "model=softmax", "progress=false", "algorithm.buffer_size=2", f"output_dir={tmp_path}"]
    fedac, fedbuff = (run([f"algorithm={name}", *words]).summary for name in ("fedac", "fedbuff"))
    for way in ("uplink", "downlink"):
        assert fedac["used"][f"{way}_bytes"] == 2 * fedbuff["used"][f"{way}_bytes"] > 0
