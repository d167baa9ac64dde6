"""An independent replay: from a run directory's files and plain NumPy in double precision to the final weights.

Shares no code with the package. Softmax regression with every client's full data, so each gradient is determined.
"""

from __future__ import annotations

import itertools
import json
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml


class Replay:
    def __init__(self, directory: Path, data: Path):
        self.config = yaml.safe_load((directory / "config.yaml").read_text())
        self.trace = pd.read_parquet(directory / "trace.parquet")
        self.summary = json.loads((directory / "summary.json").read_text())
        arrays = np.load(data)
        self.x, self.y = arrays["x_train"].astype(np.float64), arrays["y_train"]
        self.classes = int(max(arrays["y_train"].max(), arrays["y_test"].max())) + 1
        partition = np.load(directory / "partition.npz")
        self.clients = [partition[f"client_{i}"] for i in range(len(partition.files))]
        self.n = len(self.clients)
        initial = torch.load(directory / "model_initial.pt", weights_only=True)
        final = torch.load(directory / "model_final.pt", weights_only=True)
        names = list(initial)
        self.shapes = [tuple(initial[name].shape) for name in names]
        self.w = np.concatenate([initial[name].numpy().ravel() for name in names]).astype(np.float64)
        self.final = np.concatenate([final[name].numpy().ravel() for name in names])
        self.versions = [self.w.copy()]
        self.kept = [0] * self.n  # of each client, vectors that entered a cache so far

    def gradient(self, client: int, w: np.ndarray) -> np.ndarray:
        """Mean cross-entropy gradient over all the client's samples, weight (C, F) then bias (C,)."""
        (c, f), _ = self.shapes
        weight, bias = w[: c * f].reshape(c, f), w[c * f :]
        x, y = self.x[self.clients[client]], self.y[self.clients[client]]
        z = x @ weight.T + bias
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        return np.concatenate([(p.T @ x / len(y)).ravel(), p.mean(axis=0)])

    def upload(self, row) -> np.ndarray:
        g = self.gradient(row.client, self.versions[row.dispatched_iteration])
        return g if self.config["client"]["upload"] == "gradient" else -self.config["client"]["lr"] * g

    def stored(self, row) -> np.ndarray:
        """The upload as the cache keeps it: with 8 bits rounded by the draws of the run's own stream."""
        g, count = self.upload(row), self.kept[row.client]
        self.kept[row.client] += 1
        if self.config["algorithm"]["cache"]["precision"] != "int8":
            return g
        key = np.random.SeedSequence([self.config["seed"], zlib.crc32(b"cache")]).generate_state(2, np.uint64)
        draws = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, count, row.client]))
        generator = torch.Generator().manual_seed(int(draws.integers(2**63 - 1)))
        u = torch.empty(len(g)).uniform_(generator=generator).numpy()
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)])
        steps = np.concatenate([np.full(b - a, np.abs(g[a:b]).max() / 127) for a, b in itertools.pairwise(ends)])
        return np.floor(g / steps + u) * steps

    def step(self, direction: np.ndarray) -> None:
        sign = -1 if self.config["client"]["upload"] == "gradient" else 1
        self.w = self.w + sign * self.config["algorithm"]["eta"] * direction
        self.versions.append(self.w.copy())

    def turns(self):
        """Groups of uploads between which the server acts: single arrivals, or the arrivals of each tick."""
        rows = list(self.trace.itertuples())
        if self.config["algorithm"].get("step_on") == "tick":
            last = int(self.summary["used"]["virtual_time"])
            by_tick = {tick: [] for tick in range(last + 1)}
            for row in rows:
                by_tick[int(row.time)].append(row)
            return list(by_tick.values())
        first = self.n if self.config["choices"]["algorithm"] in ("ace", "aced") else 1
        return [rows[:first]] + [[row] for row in rows[first:]]

    def run(self) -> np.ndarray:
        getattr(self, self.config["choices"]["algorithm"])()
        return self.w

    def ace(self):
        cache = np.zeros((self.n, len(self.w)))
        for turn in self.turns():
            for row in turn:
                cache[row.client] = self.stored(row)
            self.step(cache.mean(axis=0))

    def aced(self):
        config = self.config["algorithm"]
        cache = np.zeros((self.n, len(self.w)))
        tstart = np.ones(self.n, dtype=int)
        # the turn t at which the server last sent each client a model, and the one its arriving work was sent at
        sent = np.zeros(self.n, dtype=int)
        for t, turn in enumerate(self.turns()):
            for row in turn:
                cache[row.client] = self.stored(row)
            active = np.flatnonzero(t - tstart <= config["tau_algo"]) if t else np.arange(self.n)
            if len(active):
                self.step(cache[active].mean(axis=0))
            for row in turn:
                if t:
                    tstart[row.client] = t + 1 if config["tstart"] == "dispatch" else sent[row.client]
                sent[row.client] = t + 1

    def fedbuff(self):
        config, velocity, buffer = self.config["algorithm"], 0.0, []
        for row in self.trace.itertuples():
            if config["max_staleness"] is not None and row.staleness > config["max_staleness"]:
                continue
            exponent = config["staleness_exponent"] if config["staleness_weight"] == "polynomial" else 0
            buffer.append((1 + row.staleness) ** -exponent * self.upload(row))
            if len(buffer) == config["buffer_size"]:
                velocity = config["momentum"] * velocity + sum(buffer) / len(buffer)
                self.step(velocity)
                buffer = []

    def ca2fl(self):
        h = np.zeros((self.n, len(self.w)))
        mean, total, count = h.mean(axis=0), 0.0, 0
        for row in self.trace.itertuples():
            difference = self.upload(row)
            total = total + difference - h[row.client]
            h[row.client] = self.stored(row)
            count += 1
            if count == self.config["algorithm"]["buffer_size"]:
                self.step(mean + total / count)
                mean, total, count = h.mean(axis=0), 0.0, 0

    def asgd(self):
        for row in self.trace.itertuples():
            self.step(self.upload(row))

    def delay_adaptive_asgd(self):
        config = self.config["algorithm"]
        for row in self.trace.itertuples():
            tau, limit = row.staleness, config["tau_c"]
            factor = {"mishchenko": limit / max(tau, 1), "koloskova": 1 / max(tau, 1), "drop": 0.0}[config["variant"]]
            factor = 1.0 if tau <= limit else factor
            if factor:
                self.step(factor * self.upload(row))
