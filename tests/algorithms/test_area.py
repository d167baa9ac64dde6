"""AREA: the global model and what waits in the buffer together are the mean of all clients' last local models."""

import numpy as np
import pytest
import torch
from toy import Scripted, random_delays, simulate

from asyncfl_bench.algorithms.area import Area
from asyncfl_bench.types import ClientTable, Upload

N = 5
WORLD = {"n": N, "delay": random_delays(N), "lr": 0.3}
WORLD |= {"kind": "difference", "start": [1.0, -2.0, 0.5]}


def models(rule, iterations=40, **world):
    """(iterations, 3) global model after every server iteration."""
    return np.array(simulate(rule, server_iterations=iterations, **(WORLD | world))[1].models)


def fed(rule, locals_, base):
    """The model after each (client, local model), computed from ``base``."""
    model, found = torch.tensor([base], dtype=torch.float64), []
    rule.start(model, ClientTable(np.ones(1 + max(client for client, _ in locals_), int)), "difference")
    base_d = model.clone()
    for client, local in locals_:
        rule.receive(Upload(client, torch.tensor([local]) - base_d, 0, 0, 1, 1, base_d=base_d))
        found.append(model.item())
    return found


def test_each_client_replaces_its_own_share_and_the_divisor_is_n():
    # local models go half the way to 0 and 4; client 1 starts from 2
    halves = {"n": 2, "delay": Scripted([[1], [2.5]]), "targets": [[0.0], [4.0]], "start": [2.0], "lr": 0.5}
    assert models(Area(buffer_size=1), iterations=3, **halves)[:, 0].tolist() == [1.5, 1.375, 1.875]
    found = fed(Area(buffer_size=2), [(0, 3.0), (1, 1.0), (1, 6.0), (2, 3.0)], base=0.0)
    assert found == pytest.approx([0, 4 / 3, 4 / 3, (3 + 6 + 3) / 3], rel=1e-6)


@pytest.mark.parametrize("buffer_size", [1, 3, 7])
def test_the_model_and_the_buffer_are_the_mean_of_all_last_local_models_at_all_times(buffer_size):
    last, apart = {}, []

    class Watched(Area):
        def receive(self, upload):
            changed = super().receive(upload)
            last[upload.client] = (upload.base_d + upload.vector_d).numpy()
            mean = np.mean([last.get(i, self.first_d.numpy()) for i in range(self.n)], axis=0)
            whole = self.model_d + self.total.sum_d / self.n
            apart.append(np.abs(whole.numpy() - mean).max())
            return changed

    models(Watched(buffer_size=buffer_size))
    assert max(apart) < 2e-6 and len(apart) == 40 * buffer_size


def test_differences_of_zero_leave_the_model_where_it_is():
    found = models(Area(buffer_size=2), targets=[[1.0, -2.0, 0.5]] * N)
    np.testing.assert_array_equal(found, np.tile(np.float32([1.0, -2.0, 0.5]), (40, 1)))
