"""An independent replay: from a run directory's files and plain NumPy in double precision to the final weights.

Shares no code with the package. Softmax regression with every client's full data, so each gradient is determined.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml
from replay_time import counts_of, draws


class Replay:
    def __init__(self, directory: Path, data: Path):
        self.config = yaml.safe_load((directory / "config.yaml").read_text())
        self.trace = pd.read_parquet(directory / "trace.parquet")
        self.summary = json.loads((directory / "summary.json").read_text())
        arrays = np.load(data)
        self.x, self.y = arrays["x_train"].astype(np.float64), arrays["y_train"]
        self.classes = int(max(arrays["y_train"].max(), arrays["y_test"].max())) + 1
        self.server_x = None  # the server's own samples
        if self.config["choices"]["unlabelled"] == "held_back":
            count = self.config["unlabelled"]["samples"] or min(2000, len(self.y) // 5)
            held = np.isin(
                np.arange(len(self.y)), draws(self.config["seed"], "unlabelled", 0, 0).permutation(len(self.y))[:count]
            )
            self.server_x, self.x, self.y = self.x[held], self.x[~held], self.y[~held]
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
        self.sums = np.zeros((self.n, len(self.w)))  # of each client's uploads, where it is pulled around them
        self.variates = np.zeros((self.n, len(self.w)))  # of each client, what corrects its gradients
        self.server_variates = [np.zeros(len(self.w))]  # of each version
        self.facts: list[tuple] = []  # of each arrival, as the trace's last columns should have them
        self.decisions: list[tuple] = []  # what rule.parquet should have, but for AFBS's numbers of clusters
        self.reports: dict[int, tuple[int, np.ndarray]] = {}  # client: version of the model, its logits
        first_round = self.config["choices"]["algorithm"] in ("ace", "aced")
        self.counts = counts_of(self.config, self.trace["client"].tolist(), first_round, self.n)

    def gradient(self, client: int, w: np.ndarray) -> np.ndarray:
        """Mean cross-entropy gradient over all the client's samples, weight (C, F) then bias (C,)."""
        (c, f), _ = self.shapes
        weight, bias = w[: c * f].reshape(c, f), w[c * f :]
        x, y = self.x[self.clients[client]], self.y[self.clients[client]]
        z = x @ weight.T + bias
        if tau := self.config["client"]["logit_adjustment"]:
            held = np.bincount(y, minlength=c)
            z += np.where(held, tau, max(tau, 1)) * np.log(held / len(y) + 1e-12)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        return np.concatenate([(p.T @ x / len(y)).ravel(), p.mean(axis=0)])

    def upload(self, row) -> np.ndarray:
        """A gradient, or what the work's local steps make of the received model, all with the client's full data."""
        client, start = self.config["client"], self.versions[row.dispatched_iteration]
        if client["upload"] == "gradient":
            g = self.gradient(row.client, start)
            self.hear(row, start - client["lr"] * g)
            return g
        w, velocity, anchor = start, 0.0, start - self.sums[row.client]
        lr = self.lr(row)
        shift = self.server_variates[min(row.dispatched_iteration, len(self.server_variates) - 1)]
        shift = shift - self.variates[row.client]
        for _ in range(row.local_steps):
            g = self.gradient(row.client, w) + client["proximal"] * (w - anchor) + client["weight_decay"] * w + shift
            velocity = client["momentum"] * velocity + g
            w = w - lr * velocity
        self.hear(row, w)
        return w - start

    def lr(self, row) -> float:
        return self.config["client"]["lr"] * self.config["client"]["lr_decay"] ** self.counts[row.upload - 1]

    def logits(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        (c, f), _ = self.shapes
        return x @ w[: c * f].reshape(c, f).T + w[c * f :]

    def hear(self, row, w: np.ndarray) -> None:
        if self.server_x is not None:
            self.reports[row.client] = row.dispatched_iteration, self.logits(w, self.server_x)

    def distilled(self, start: np.ndarray) -> np.ndarray:
        """Where distillation brings the model that a step has moved to ``start``."""
        config, t, w = self.config["distillation"], len(self.versions), start
        oldest = -1 if config["max_age"] is None else t - 1 - config["max_age"]
        heard = [y for version, y in self.reports.values() if version >= oldest]
        told, m, v, k = [], 0.0, 0.0, 0
        if heard:
            y, c = np.mean(heard, axis=0), self.classes
            p = np.exp(y - y.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            hard, entropy = np.eye(c)[y.argmax(axis=1)], -(p * np.log(p)).sum(axis=1) / np.log(c)
            order = draws(self.config["seed"], "unlabelled", 0, t).permutation(len(y))
            for rows in np.split(order, range(config["batch_size"], len(y), config["batch_size"])):
                h = entropy[rows].mean()
                alpha = h * config["alpha_max"] + (1 - h) * config["alpha_min"]
                z = self.logits(w, self.server_x[rows])
                q = np.exp(z - z.max(axis=1, keepdims=True))
                q /= q.sum(axis=1, keepdims=True)
                kl = alpha / (c if config["kl_mean"] == "elements" else 1)
                error = kl * (q - p[rows]) + (1 - alpha) * (q - hard[rows])
                g = np.concatenate([(error.T @ self.server_x[rows]).ravel(), error.sum(axis=0)]) / len(rows)
                norm = np.linalg.norm(g)
                g = g * min(1, (config["clip"] or np.inf) / norm)
                k += 1
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                adam = (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
                w = w - config["rate"] * (adam if config["optimizer"] == "adam" else g)
                told.append((h, alpha, norm > (config["clip"] or np.inf), norm))
        means = np.mean(told, axis=0) if told else np.zeros(4)
        lengths = np.linalg.norm(start - self.w), np.linalg.norm(w - start)
        self.decisions.append((t, len(heard), *means, *lengths))
        return w

    def stored(self, row) -> np.ndarray:
        """The upload as the cache keeps it: with 8 bits rounded by the draws of the run's own stream."""
        g, count = self.upload(row), self.kept[row.client]
        self.kept[row.client] += 1
        if self.config["algorithm"]["cache"]["precision"] != "int8":
            return g
        drawn = draws(self.config["seed"], "cache", row.client, count).integers(2**63 - 1)
        generator = torch.Generator().manual_seed(int(drawn))
        u = torch.empty(len(g)).uniform_(generator=generator).numpy()
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)])
        steps = np.concatenate([np.full(b - a, np.abs(g[a:b]).max() / 127) for a, b in itertools.pairwise(ends)])
        return np.floor(g / steps + u) * steps

    def step(self, direction: np.ndarray) -> None:
        sign = -1 if self.config["client"]["upload"] == "gradient" else 1
        self.move_to(self.w + sign * self.config["algorithm"]["eta"] * direction)

    def move_to(self, w: np.ndarray) -> None:
        self.w = w if self.server_x is None else self.distilled(w)
        self.versions.append(self.w)

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
        """Algorithm a.1 of the paper. With tstart=gradient, tstart is what section 3 and the notation say: the
        iteration at which a client obtained the model upon which its currently cached gradient was computed."""
        tau, as_printed = self.config["algorithm"]["tau_algo"], self.config["algorithm"]["tstart"] == "dispatch"
        cache = np.zeros((self.n, len(self.w)))
        tstart = np.ones(self.n, dtype=int)  # line 2
        obtained = np.ones(self.n, dtype=int)  # by each client: the t of its newest model
        first, *turns = self.turns()
        for row in first:
            cache[row.client] = self.stored(row)
        self.step(cache.mean(axis=0))
        for t, turn in enumerate(turns, start=1):
            for row in turn:  # lines 4 and 5
                cache[row.client] = self.stored(row)
                if not as_printed:
                    tstart[row.client] = obtained[row.client]
            active = np.flatnonzero(t - tstart <= tau)  # line 6
            if len(active):  # lines 7 to 9
                self.step(cache[active].mean(axis=0))
            for row in turn:  # line 10
                obtained[row.client] = t + 1
                if as_printed:
                    tstart[row.client] = t + 1

    def fedbuff(self):
        config, velocity, buffer = self.config["algorithm"], 0.0, []
        for row in self.trace.itertuples():
            upload = self.upload(row)  # a teacher hears it, however old
            if config["max_staleness"] is not None and row.staleness > config["max_staleness"]:
                continue
            buffer.append((row.staleness, upload))
            if len(buffer) == config["buffer_size"]:
                least = min(tau for tau, _ in buffer)
                exponent = config["staleness_exponent"] if config["staleness_weight"] != "constant" else 0
                taus = [least if config["staleness_weight"] == "freshest" else tau for tau, _ in buffer]
                sums = sum((1 + tau) ** -exponent * v for tau, (_, v) in zip(taus, buffer, strict=True))
                velocity = config["momentum"] * velocity + sums / len(buffer)
                self.step(velocity)
                buffer = []

    fedecho = fedbuff  # what follows its steps follows them all

    def told_clusters(self):
        """Of AFBS, by another k-means: the same groups of clients, under other numbers."""
        from sklearn.cluster import KMeans

        config, seed, n = self.config["algorithm"], self.config["seed"], self.n
        if config["clustering"] == "none" or config["clusters"] == 1:
            return np.zeros(n, dtype=int)
        c = self.classes
        r = config["rank"] or c - 1
        secret = draws(seed, "rule", n, 0).normal(0, np.sqrt(1 / r), (r, c))
        told = []
        for i, samples in enumerate(self.clients):
            share = np.bincount(self.y[samples], minlength=c) / len(samples)
            noise = draws(seed, "rule", i, 0).normal(0, config["sigma"], (c, c))
            told.append((secret @ (np.tile(share, (c, 1)) + noise).T).T.ravel())
        return KMeans(config["clusters"], n_init=50, random_state=0).fit_predict(np.array(told))

    def afbs(self):
        config, buffer, flush = self.config["algorithm"], [], 0
        cluster = self.told_clusters()
        for row in self.trace.itertuples():
            buffer.append((row.client, row.staleness, row.samples, cluster[row.client], self.upload(row)))
            if len(buffer) < config["buffer_size"]:
                continue
            flush += 1
            luck = draws(self.config["seed"], "rule", 0, flush).random(len(buffer))
            scores = [n / (1 + tau) ** 2 for _, tau, n, _, _ in buffer]
            lam = {"freshest": min(tau for _, tau, *_ in buffer), "none": 0}.get(config["weight"])
            step, rows = 0.0, []
            for (client, tau, n, k, difference), score, chance in zip(buffer, scores, luck, strict=True):
                same = [j for j, entry in enumerate(buffer) if entry[3] == k]
                top = min(same, key=lambda j: (-scores[j], buffer[j][1], -buffer[j][2], j))
                highest = scores[top] if config["maximum"] == "cluster" else max(scores)
                kept = n >= buffer[top][2] or tau <= buffer[top][1]
                kept = kept or (config["keep"] == "random" and chance < score / highest)
                weight = kept * (1 + (tau if lam is None else lam)) ** -0.5
                step = step + weight * difference
                rows.append((flush, client, tau, n, score, kept, weight))
            stay = sum(kept for *_, kept, _ in rows)
            self.step(step / stay)
            self.decisions += [(*row[:-1], row[-1] / stay) for row in rows]
            buffer = []

    def fadas(self):
        config, buffer, k, m, v, largest = self.config["algorithm"], [], 0, 0.0, 0.0, 0.0
        b1, b2, eta = config["beta1"], config["beta2"], config["eta"]
        for row in self.trace.itertuples():
            buffer.append((row.staleness, self.upload(row)))
            if len(buffer) < config["buffer_size"]:
                continue
            k += 1
            stalest, g = max(tau for tau, _ in buffer), np.mean([upload for _, upload in buffer], axis=0)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            largest = np.maximum(largest, v)
            c1, c2 = (1 - b1**k, 1 - b2**k) if config["bias_correction"] else (1, 1)
            shorter = {"none": eta, "code": eta / max(stalest, 1), "paper": min(eta, 1 / max(stalest, 1))}
            scale = shorter[config["delay_adaptive"]] / eta if stalest > config["tau_c"] else 1
            self.step(scale * (m / c1) / (np.sqrt(largest / c2) + config["eps"]))
            buffer = []

    def fedac(self):
        config, buffer, m, v = self.config["algorithm"], [], 0.0, 0.0
        b1, b2 = config["beta1"], config["beta2"]
        for row in self.trace.itertuples():
            d, start = self.upload(row), self.versions[row.dispatched_iteration]
            change = -d / (row.local_steps * self.lr(row)) - self.server_variates[row.dispatched_iteration]
            self.variates[row.client] += change
            away = self.w - start
            cosine = away @ d / np.linalg.norm(away) / np.linalg.norm(d) if row.staleness else 1.0
            buffer.append((max(cosine, config["floor"]), d, change))
            if len(buffer) < config["buffer_size"]:
                continue
            r, differences, changes = map(np.array, zip(*buffer, strict=True))
            p = r / r.sum()
            g = p @ differences
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            share = len(buffer) / self.n if config["variate_step"] == "share" else 1
            self.server_variates.append(self.server_variates[-1] + share * p @ changes)
            self.step((b1 * m + (1 - b1) * g) / (np.sqrt(v) + config["eps"]))
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

    def mifa(self):
        config = self.config["algorithm"]
        h = np.zeros((self.n, len(self.w)))
        samples = np.array([len(own) for own in self.clients], dtype=float)
        share = samples / samples.sum() if config["weights"] == "samples" else np.full(self.n, 1 / self.n)
        for count, row in enumerate(self.trace.itertuples(), start=1):
            h[row.client] = self.upload(row)
            if count % config["buffer_size"] == 0:
                self.step(share @ h)

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

    def ringmaster(self):
        for row in self.trace.itertuples():
            if row.staleness < self.config["algorithm"]["threshold"]:
                self.step(self.upload(row))

    def rennala(self):
        gathered = []
        for row in self.trace.itertuples():
            gathered += [self.upload(row)] if row.dispatched_iteration == len(self.versions) - 1 else []
            if len(gathered) == self.config["algorithm"]["buffer_size"]:
                self.step(np.mean(gathered, axis=0))
                gathered = []

    def malenia(self):
        gathered = [[] for _ in range(self.n)]
        for row in self.trace.itertuples():
            if row.dispatched_iteration == len(self.versions) - 1:
                gathered[row.client].append(self.upload(row))
            counts = np.array([len(own) for own in gathered], dtype=float)
            if counts.all() and 1 / np.mean(1 / counts) > self.config["algorithm"]["batch"] / self.n:
                self.step(np.mean([np.mean(own, axis=0) for own in gathered], axis=0))
                gathered = [[] for _ in range(self.n)]

    def ringleader(self):
        now, later, stepped = ([[] for _ in range(self.n)] for _ in range(3))
        for row in self.trace.itertuples():
            own = (later if stepped[row.client] else now)[row.client]
            own.append(self.upload(row))
            if stepped[row.client] or not all(now):
                continue
            self.step(np.mean([np.mean(own, axis=0) for own in now], axis=0))
            stepped[row.client] = True
            if all(stepped):
                now, later, stepped = later, *([[] for _ in range(self.n)] for _ in range(2))

    def rescaled_asgd(self):
        taken: dict[int, list[float]] = {}
        for row in self.trace.itertuples():
            taken.setdefault(row.client, []).append(row.delay)
            scale = np.mean(taken[row.client]) / np.mean([np.mean(own) for own in taken.values()])
            self.step(scale * self.upload(row))

    def clipped_asgd(self):
        for row in self.trace.itertuples():
            g = self.upload(row)
            self.step(g * min(1, self.config["algorithm"]["clip"] / np.linalg.norm(g)))

    def delayed_nesterov(self):
        config, m, window = self.config["algorithm"], 0.0, []
        n, b, c = config["window"], config["beta"], config["spread"]
        for row in self.trace.itertuples():
            window.append(self.upload(row))
            last = window[-1]
            if len(window) == n:
                m, window = b * m + np.mean(window, axis=0), []
            self.step((c if window else 1 - c * n + c) * b * m + last / n)

    def area(self):
        last, pending = np.tile(self.w, (self.n, 1)), np.zeros(len(self.w))
        for count, row in enumerate(self.trace.itertuples(), start=1):
            local = self.versions[row.dispatched_iteration] + self.upload(row)
            pending = pending + local - last[row.client]
            last[row.client] = local
            if count % self.config["algorithm"]["buffer_size"] == 0:
                self.step(pending / self.n)
                pending = np.zeros(len(self.w))

    def fedstale_async(self):
        config, buffer = self.config["algorithm"], []
        h, heard = np.zeros((self.n, len(self.w))), np.zeros(self.n, dtype=bool)
        held = np.array([len(own) for own in self.clients], dtype=float)
        for row in self.trace.itertuples():
            buffer.append((row.client, self.upload(row)))
            if len(buffer) < config["buffer_size"]:
                continue
            heard[[client for client, _ in buffer]] = True
            a = held if config["weights"] == "samples" else np.ones(self.n)
            a = a * (heard if config["over"] == "heard" else 1)
            p = config["p"][0] if config["p"] else len(buffer) / np.count_nonzero(a)
            a = a / a.sum()
            step = config["beta"] * a @ h
            for client, difference in buffer:
                step = step + a[client] / p * (config["alpha"] * difference - config["beta"] * h[client])
                h[client] = difference
            self.step(step)
            buffer = []

    def port(self):
        config, buffer, before = self.config["algorithm"], [], self.w
        started = self.trace["dispatched_iteration"].tolist()
        for count, row in enumerate(self.trace.itertuples(), start=1):
            t = len(self.versions) - 1
            delta = self.upload(row)
            if config["deltas"] == "current":
                delta = delta + self.versions[row.dispatched_iteration] - self.w
            moved, cosine = self.w - before, 1.0
            if row.staleness > 1:
                cosine = moved @ delta / np.linalg.norm(moved) / np.linalg.norm(delta)
            fresh = config["bound"] / (row.staleness + config["bound"])
            r = config["direction_weight"] * (1 + cosine) / 2 + config["staleness_weight"] * fresh
            buffer.append((r * row.samples, delta))
            waits = any(version < t - config["bound"] for version in started[count:])
            # what is still under way at the end is not in the trace: it may have held back all there was
            if len(buffer) < config["buffer_size"] or waits or t == self.summary["used"]["server_iterations"]:
                continue
            before, weights = self.w, np.array([weight for weight, _ in buffer])
            self.step(weights @ np.array([delta for _, delta in buffer]) / weights.sum())
            buffer = []

    def fedasmu_server(self):
        config = self.config["algorithm"]
        for row in self.trace.itertuples():
            t, tau = len(self.versions), row.staleness
            if config["bound"] is None or tau < config["bound"]:
                x = config["iota"] + config["lam"] * t**-0.5 * (1 + tau) ** -config["exponent"]
                mixing = 1 - 1 / (1 + config["mu"] * x)
                local = self.versions[row.dispatched_iteration] + self.upload(row)
                self.move_to(self.w + mixing * (local - self.w))
            self.facts.append((mixing,))

    def rounds(self):
        """(clients, their differences) of every complete round in which somebody delivered."""
        for iteration, group in self.trace.groupby("dispatched_iteration"):
            if iteration < self.summary["used"]["server_iterations"]:
                rows = list(group.itertuples())
                yield [row.client for row in rows], np.array([self.upload(row) for row in rows])

    def fedavg(self):
        uniform = self.config["algorithm"]["weights"] == "uniform"
        for clients, differences in self.rounds():
            p = np.array([1 if uniform else len(self.clients[i]) for i in clients])
            self.step(p @ differences / p.sum())

    fedprox = fedavg  # what its clients do is in their uploads

    def fedopt(self):
        config = self.config["algorithm"]
        b1, b2, m, v = config["beta1"], config["beta2"], 0.0, config["tau"] ** 2
        for _, differences in self.rounds():
            g = differences.mean(axis=0)
            m = b1 * m + (1 - b1) * g
            v = {
                "adam": b2 * v + (1 - b2) * g**2,
                "yogi": v - (1 - b2) * g**2 * np.sign(v - g**2),
                "adagrad": v + g**2,
            }[config["optimizer"]]
            self.step(m / (np.sqrt(v) + config["tau"]))

    def feddyn(self):
        a, h = self.config["algorithm"]["alpha"], 0.0
        for clients, differences in self.rounds():
            local = self.w + differences
            h = h - a / self.n * differences.sum(axis=0)
            self.sums[clients] += differences
            self.move_to(local.mean(axis=0) - h / a)

    def fedasync(self):
        config = self.config["algorithm"]
        for row in self.trace.itertuples():
            lag = row.staleness if config["lag"] == "iterations" else row.delay
            beyond = max(0.0, lag - config["hinge_b"])
            s = {
                "constant": 1.0,
                "hinge": 1 / (config["hinge_a"] * beyond + 1),
                "polynomial": (1 + lag) ** -config["exponent"],
            }[config["staleness_weight"]]
            alpha = config["alpha"] * s
            self.facts.append((alpha,))
            local = self.versions[row.dispatched_iteration] + self.upload(row)
            self.move_to((1 - alpha) * self.w + alpha * local)

    def fedfa(self):
        config, models = self.config["algorithm"], []
        for row in self.trace.itertuples():
            models.append(self.versions[row.dispatched_iteration] + self.upload(row))
            if (late := len(models) - config["queue"]) >= 0 and late % config["every"] == 0:
                self.move_to(np.mean(models[-config["queue"] :], axis=0))

    def asyncfeded(self):
        config, k = self.config["algorithm"], [float(self.config["algorithm"]["k_initial"])] * self.n
        for row in self.trace.itertuples():
            difference = self.upload(row)
            gamma = np.linalg.norm(self.w - self.versions[row.dispatched_iteration]) / np.linalg.norm(difference)
            eta = config["lam"] / (gamma + config["lam"] / config["lam_over_eps"])
            self.facts.append((gamma, eta, math.floor(k[row.client])))
            change = (config["gamma_bar"] - gamma) * config["kappa"]
            change = math.floor(change) if config["k_rule"] == "literal" else change
            k[row.client] = max(1, k[row.client] + change)
            self.move_to(self.w + eta * difference)
