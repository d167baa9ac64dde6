"""How far the server's gradients are from those of the test samples: by NumPy, and that looking changes nothing."""

import io

import numpy as np
import pytest
import torch
from tiers import slow
from toy import write_noisy_classes

from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_run

HIDDEN, CLASSES, FEATURES, OWN = 5, 3, 4, 25
WORDS = [
    *("dataset=arrays", "dataset.path=toy.npz", "model=mlp", f"model.hidden=[{HIDDEN}]", "n_clients=4", "seed=3"),
    *("algorithm=gas", "algorithm.activation_buffer=3", "client.local_steps=4", "client.lr=0.2", "client.batch_size=8"),
    *("delay=exponential", "heterogeneity.alpha=0.3", "heterogeneity.min_samples=3", "executor=sequential"),
    *("budget.server_iterations=6", "device=cpu"),
]


@pytest.fixture(autouse=True)
def data(own_folder):
    return write_noisy_classes("toy.npz", CLASSES, FEATURES)


def built(*words):
    return build_run(compose([*WORDS, *words]))


def watched(*words):
    parts = built("diagnostics=dissimilarity", *words)
    parts.simulation.observers.append(parts.diagnostics)
    return parts


def gradient(s, a, y):
    """(weights, biases) of the mean cross-entropy of one linear layer."""
    logits = a @ s[:-CLASSES].reshape(CLASSES, HIDDEN).T + s[-CLASSES:]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = (p / p.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)
    return np.concatenate([(error.T @ a).ravel(), error.sum(axis=0)])


@pytest.mark.parametrize("executor", ["sequential", *slow("native")])
def test_the_measure_is_that_of_the_released_code(data, executor):
    x, y = data
    parts = watched("diagnostics.samples=20", f"executor={executor}")
    assert parts.diagnostics.measure({}) == {}  # before any server step
    parts.simulation.run()
    found = parts.diagnostics.measure({})
    w = parts.model_d.double().numpy()
    chosen = np.linspace(0, len(y) - 1, 20).astype(int)
    hidden = np.maximum(x[chosen] @ w[: OWN - HIDDEN].reshape(HIDDEN, FEATURES).T + w[OWN - HIDDEN : OWN], 0)
    reference = gradient(w[OWN:], hidden, y[chosen])
    rows, labels = (tensor.numpy() for tensor in parts.rule.rows_of_step)
    assert parts.rule.generated > 0 and len(labels) == parts.rule.rows
    own = gradient(w[OWN:], rows, labels)
    away = ((own - reference) ** 2).sum()
    assert found["dissimilarity/squared"] == pytest.approx(away / 2, rel=1e-4)  # a matrix and biases
    assert found["dissimilarity/relative"] == pytest.approx(away / (reference**2).sum(), rel=1e-4)
    cosine = own @ reference / np.linalg.norm(own) / np.linalg.norm(reference)
    assert found["dissimilarity/cosine"] == pytest.approx(cosine, rel=1e-4)


@pytest.mark.slow
def test_looking_changes_nothing_and_goes_on_where_a_run_was_cut():
    plain, looked = built(), watched()
    plain.simulation.run()
    for _ in range(70):
        looked.simulation.step()
    looked.diagnostics.measure({})
    file = io.BytesIO()
    torch.save(looked.diagnostics.state_dict(), file)
    file.seek(0)
    again = watched()
    again.diagnostics.load_state_dict(torch.load(file, weights_only=True))
    again.model_d.copy_(looked.model_d)
    assert again.diagnostics.measure({}) == looked.diagnostics.measure({}) != {}
    looked.simulation.run()
    assert torch.equal(plain.model_d, looked.model_d)
