"""How alike clients' models are: by NumPy, in a toy world whose models can be followed."""

import io

import numpy as np
import pytest
import torch
from toy import Scripted, ScriptedLoss, simulate

from asyncfl_bench.algorithms.fedbuff import FedBuff, FedBuffConfig
from asyncfl_bench.diagnostics.similarity import Similarity, SimilarityConfig
from asyncfl_bench.types import ClientTable

GROUPS = np.array([0, 1, 0, 1, 0])


class Task:
    clients = ClientTable(np.ones(5, dtype=int), groups_n=GROUPS)


def watched(most=20, lost=()):
    """A run in which clients 0 and 1 are fast, with the measure at its end, and the arrivals of the run."""
    diagnostics = Similarity(SimilarityConfig(clients=most))
    diagnostics.start(rule=None, shadow=None, model_d=torch.zeros(3), task=Task, client=None, has_left=None)
    assert diagnostics.measure({}) == {}
    simulation, recorder, _ = simulate(
        FedBuff(FedBuffConfig(buffer_size=2)),
        n=5,
        delay=Scripted([[1.0], [1.0], [9.0], [9.0], [9.0]]),
        availability=ScriptedLoss(set(lost)),
        kind="difference",
        lr=0.3,
        observers=[diagnostics],
        uploads=40,
    )
    return diagnostics, simulation, recorder


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("lost", [(), [(0, 4), (2, 0)]])
def test_the_means_are_those_over_the_pairs_of_the_last_uploaded_models(lost):
    diagnostics, _, recorder = watched(lost=lost)
    versions = [np.zeros(3), *recorder.models]
    last = {one.client: one for one in recorder.arrivals}
    models = {client: versions[one.base_iteration] + one.vector for client, one in last.items()}
    started = {client: one.base_iteration for client, one in last.items()}
    fresh = {
        client for client, version in started.items() if 2 * version > sum(f(started.values()) for f in (min, max))
    }
    pairs = {"same": [], "different": [], "same_apart": [], "different_fresh": []}
    for a, b in ((a, b) for a in models for b in models if a < b):
        value, same = cosine(models[a], models[b]), GROUPS[a] == GROUPS[b]
        pairs["same" if same else "different"].append(value)
        if same and len({a, b} & fresh) == 1:
            pairs["same_apart"].append(value)
        if not same and {a, b} <= fresh:
            pairs["different_fresh"].append(value)
    assert len(models) == 5 and all(pairs.values())
    expected = {f"similarity/{name}": pytest.approx(np.mean(values)) for name, values in pairs.items()}
    assert diagnostics.measure({}) == expected


def test_a_saved_measure_is_the_same_and_few_clients_are_watched():
    diagnostics, _, _ = watched(most=3)
    assert set(diagnostics.measure({})) == {
        f"similarity/{name}" for name in ("same", "different", "same_apart", "different_fresh")
    }
    file = io.BytesIO()
    torch.save(diagnostics.state_dict(), file)
    file.seek(0)
    again = Similarity(SimilarityConfig(clients=3))
    again.start(rule=None, shadow=None, model_d=torch.zeros(3), task=Task, client=None, has_left=None)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.measure({}) == diagnostics.measure({})
