"""GAS replayed by NumPy code in double precision that shares nothing with the package: from the order of messages and
uploads to the final weights. Two layers, cut between them; every client's mini-batch is all its data."""

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from replay_time import draws
from toy import write_noisy_classes

from asyncfl_bench import run

HIDDEN, CLASSES, FEATURES = 5, 3, 4
CASES = {
    "full": ["algorithm.ridge=0.05", "client.momentum=0.5"],
    "diagonal": [
        *("algorithm.covariance=diagonal", "algorithm.fill=largest", "algorithm.answer=after", "algorithm.every=3"),
        *("algorithm.weight_exponent=0", "client.weight_decay=0.01", "algorithm.weights=uniform"),
    ],
    "exponential": ["algorithm.weight_growth=exponential", "algorithm.weight_exponent=0.2", "algorithm.ridge=0.05"],
    "plain": ["algorithm.generate=false", "algorithm.adjust=false", "algorithm.server_clip=0.3"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "toy.npz"
    write_noisy_classes(path, CLASSES, FEATURES)
    return path


def in_order(directory):
    """(client, stage, version its task started from) of messages, and of uploads, whose stage is None."""
    messages = pd.read_parquet(directory / "exchanges.parquet").itertuples()
    uploads = pd.read_parquet(directory / "trace.parquet").itertuples()
    events = [(row.uploads, row.message, row.client, row.stage, row.dispatched_iteration) for row in messages]
    events += [(row.upload - 1, np.inf, row.client, None, row.dispatched_iteration) for row in uploads]
    return [event[2:] for event in sorted(events)]


def softmax(z):
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


class Sgd:
    def __init__(self, w, lr, momentum, decay, clip=None):
        self.w, self.velocity, self.settings = w.copy(), 0.0, (lr, momentum, decay, clip or np.inf)

    def step(self, g):
        lr, momentum, decay, clip = self.settings
        g = g * min(1, clip / np.linalg.norm(g)) + decay * self.w
        self.velocity = momentum * self.velocity + g
        self.w = self.w - lr * self.velocity


class Replay:
    def __init__(self, config, x, y, clients, w):
        self.config, self.x, self.y, self.clients = config, x, y, clients
        self.rule, self.local = config["algorithm"], config["client"]
        own = HIDDEN * (FEATURES + 1)
        self.u_versions = [w[:own]]
        names = ("lr", "momentum", "weight_decay", "clip")
        self.s = Sgd(w[own:], *(self.rule[f"server_{name}"] for name in names))
        self.tasks, self.messages, self.uploads, self.steps = {}, [], [], 0
        self.seen = []  # rows, weights and labels that the Gaussians are of

    def hidden(self, u, client):
        weight, bias = u[:-HIDDEN].reshape(HIDDEN, FEATURES), u[-HIDDEN:]
        return np.maximum(self.x[self.clients[client]] @ weight.T + bias, 0)

    def logits(self, a):
        return a @ self.s.w[:-CLASSES].reshape(CLASSES, HIDDEN).T + self.s.w[-CLASSES:]

    def error(self, a, y, bias=0.0):
        """Of the mean cross-entropy with respect to the logits."""
        return (softmax(self.logits(a) + bias) - np.eye(CLASSES)[y]) / len(y)

    def answer(self, client):
        a, y, bias = self.tasks[client][1], self.y[self.clients[client]], 0.0
        if self.rule["adjust"]:
            bias = np.log(np.bincount(y, minlength=CLASSES) / len(y) + 1e-12)
        self.tasks[client][2] = self.error(a, y, bias) @ self.s.w[:-CLASSES].reshape(CLASSES, HIDDEN)

    def hear(self, client, stage, version):
        if stage == 0:
            start = self.u_versions[version]
            sgd = Sgd(start, self.local["lr"], self.local["momentum"], self.local["weight_decay"])
            self.tasks[client] = [sgd, None, None]
        task = self.tasks[client]
        self.learn(client)
        task[1] = self.hidden(task[0].w, client)
        if self.rule["answer"] == "before":
            self.answer(client)
        progress = 1 + self.local["local_steps"] * version + stage
        self.messages.append((task[1], self.y[self.clients[client]], progress))
        if len(self.messages) == self.rule["activation_buffer"]:
            self.server_step()
        if self.rule["answer"] == "after":
            self.answer(client)

    def learn(self, client):
        """The client's step with the answer to its last message, if there was one."""
        sgd, a, answer = self.tasks[client]
        if answer is not None:
            back = answer * (a > 0)
            sgd.step(np.concatenate([(back.T @ self.x[self.clients[client]]).ravel(), back.sum(axis=0)]))

    def server_step(self):
        rows, labels = (np.concatenate(column) for column in list(zip(*self.messages, strict=True))[:2])
        sizes = [len(y) for _, y, _ in self.messages]
        if self.rule["generate"]:
            self.seen.append((rows, np.repeat([self.weight(m) for *_, m in self.messages], sizes), labels))
            if self.steps % self.rule["every"] == 0:
                rows, labels = self.filled(rows, labels, max(sizes))
        error = self.error(rows, labels)
        self.s.step(np.concatenate([(error.T @ rows).ravel(), error.sum(axis=0)]))
        self.messages.clear()
        self.steps += 1

    def weight(self, n):
        """s(n) = a n^b or a e^(b n), increasing, for any a (section 4.2)."""
        a, b = 3.0, self.rule["weight_exponent"]
        return a * (np.exp(b * n) if self.rule["weight_growth"] == "exponential" else float(n) ** b)

    def filled(self, rows, labels, batch):
        every_row, weights, every_label = (np.concatenate(column) for column in zip(*self.seen, strict=True))
        if len(set(every_label)) < CLASSES:
            return rows, labels
        seed = int(draws(self.config["seed"], "rule", 0, self.steps).integers(2**63 - 1))
        generator = torch.Generator().manual_seed(seed)
        counts = np.bincount(labels, minlength=CLASSES)
        wanted = counts.max() if self.rule["fill"] == "largest" else batch
        for label in range(CLASSES):
            if (count := wanted - counts[label]) <= 0:
                continue
            x, v = every_row[every_label == label], weights[every_label == label]
            mean = np.average(x, axis=0, weights=v)
            covariance = np.cov(x.T, aweights=v, ddof=0) + self.rule["ridge"] * np.eye(HIDDEN)
            if self.rule["covariance"] == "diagonal":
                covariance = np.diag(np.diag(covariance))
            normal = torch.empty((count, HIDDEN)).normal_(generator=generator).double().numpy()
            rows = np.concatenate([rows, mean + normal @ np.linalg.cholesky(covariance).T])
            labels = np.concatenate([labels, np.full(count, label)])
        return rows, labels

    def receive(self, client):
        self.learn(client)
        self.uploads.append((self.tasks.pop(client)[0].w, len(self.clients[client])))
        if len(self.uploads) == self.rule["model_buffer"]:
            models, samples = zip(*self.uploads, strict=True)
            weights = samples if self.rule["weights"] == "samples" else None
            self.u_versions.append(np.average(models, axis=0, weights=weights))
            self.uploads.clear()


@pytest.mark.parametrize("case", CASES)
def test_numpy_replay_of_gas_gives_the_final_weights(case, data):
    words = [
        *("algorithm=gas", "dataset=arrays", f"dataset.path={data}", "model=mlp", f"model.hidden=[{HIDDEN}]", "seed=2"),
        *("n_clients=6", "concurrency=4", "schedule=random_idle", "delay=exponential", "heterogeneity.min_samples=3"),
        *("client.batch_size=all", "client.local_steps=2", "client.lr=0.3", "algorithm.activation_buffer=3"),
        *("budget.server_iterations=15", "trace=true", "progress=false", "device=cpu", *CASES[case]),
    ]
    result = run(words)
    assert result.ok, result.summary["error"]
    files = ("model_initial", "model_final")
    weights = [torch.load(result.directory / f"{name}.pt", weights_only=True) for name in files]
    first, last = (np.concatenate([t.numpy().ravel() for t in w.values()]).astype(float) for w in weights)
    arrays, partition = np.load(data), np.load(result.directory / "partition.npz")
    clients = [partition[f"client_{i}"] for i in range(len(partition.files))]
    config = yaml.safe_load((result.directory / "config.yaml").read_text())
    replay = Replay(config, arrays["x_train"].astype(float), arrays["y_train"], clients, first)
    for client, stage, version in in_order(result.directory):
        if stage is None:
            replay.receive(client)
        else:
            replay.hear(client, stage, version)
    found = np.concatenate([replay.u_versions[-1], replay.s.w])
    assert np.abs(last - first).max() > 0.3
    np.testing.assert_allclose(last, found, atol=2e-5)
    assert replay.steps == result.summary["used"]["server_steps"] == result.summary["used"]["messages"] // 3
