"""Rules that leave their numbers on the device give the bits of the archived runs, whose rules read them.

The functions here are the formulas of those runs: never to be changed. Legend: d model parameters.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from asyncfl_bench.algorithms.base import equip
from asyncfl_bench.algorithms.clipped_asgd import ClippedAsgd
from asyncfl_bench.algorithms.common.scalars import divide
from asyncfl_bench.algorithms.distillation import Adam, Distillation, DistillationConfig, Distilled
from asyncfl_bench.algorithms.fedac import FedAc
from asyncfl_bench.algorithms.fedbuff import FedBuff
from asyncfl_bench.algorithms.port import Port
from asyncfl_bench.randomness import Streams
from asyncfl_bench.storage import Storage
from asyncfl_bench.types import ClientTable, Upload

D, N = 41, 4


class ArchivedClippedAsgd(ClippedAsgd):
    def receive(self, upload):
        clip = self.config.clip
        norm = float(upload.vector_d.norm())
        self.clipped = float(norm > clip)
        alpha = self.step_size if norm <= clip else self.step_size * clip / norm
        self.model_d.add_(upload.vector_d, alpha=alpha)
        return True


class ArchivedFedAc(FedAc):
    def add(self, upload):
        similarity = self._similarity(upload)
        self.sum_d.add_(upload.vector_d, alpha=similarity)
        self.change_d.add_(upload.second_d, alpha=similarity)
        self.weight += similarity

    def _similarity(self, upload):
        if not upload.staleness:
            return 1.0
        moved_d, difference_d = self.model_d - upload.base_d, upload.vector_d
        lengths = float(moved_d.norm() * difference_d.norm())
        along = float(moved_d.mul_(difference_d).sum())
        return max(along / lengths, self.config.floor) if lengths else self.config.floor


class ArchivedPort(Port):
    def receive(self, upload):
        config = self.config
        self.versions.pop(upload.client, None)
        self._delta_d.copy_(upload.vector_d)
        if config.deltas == "current":
            self._delta_d.add_(upload.base_d).sub_(self.model_d)
        fresh = config.bound / (upload.staleness + config.bound) if upload.staleness else 1.0
        direction = (1 + self._cosine(upload.staleness)) / 2
        weight = upload.samples * (config.direction_weight * direction + config.staleness_weight * fresh)
        self.sum_d.add_(self._delta_d, alpha=weight)
        self.weight += weight
        self.count += 1
        oldest = min(self.versions.values(), default=self.iteration)
        if self.count < config.buffer_size or self.iteration - oldest > config.bound or not self.weight:
            return False
        self.moved_d.copy_(self.sum_d).mul_(self.step_size / self.weight)
        self.model_d.add_(self.moved_d)
        self.sum_d.zero_()
        self.weight, self.count = 0.0, 0
        self.iteration += 1
        return True

    def _cosine(self, staleness):
        lengths = float(self.moved_d.norm() * self._delta_d.norm())
        if staleness <= 1 or not lengths:
            return 1.0
        return float((self.moved_d * self._delta_d).sum()) / lengths


PAIRS = {
    "clipped_asgd": (ClippedAsgd, ArchivedClippedAsgd, {"eta": 0.3, "clip": 2.0}),
    "fedac": (FedAc, ArchivedFedAc, {"buffer_size": 3, "eta": 0.05}),
    "fedac, a share": (FedAc, ArchivedFedAc, {"buffer_size": 3, "variate_step": "share", "floor": 0.3}),
    "port": (Port, ArchivedPort, {"buffer_size": 3}),
    "port, weights of 0": (
        *(Port, ArchivedPort),
        {"buffer_size": 2, "bound": 0, "direction_weight": 0.0, "deltas": "dispatched"},
    ),
}


def uploads(count, seed):
    rng = np.random.default_rng(seed)
    for number in range(count):
        vector_d, base_d, second_d = torch.from_numpy(rng.normal(size=(3, D)).astype(np.float32) * rng.uniform(0.01, 1))
        if number == count // 2:
            vector_d.zero_()
        client, staleness, samples = (int(rng.integers(0, high)) for high in (N, 4, 60))
        yield Upload(client, vector_d, 0, staleness, samples * (number % 5 > 0), 1, base_d=base_d, second_d=second_d)
    yield Upload(0, torch.full((D,), torch.inf), 0, 2, 1, 1, base_d=base_d, second_d=second_d)  # a model that diverges


@pytest.mark.parametrize("case", PAIRS)
def test_a_rule_has_the_bits_of_the_archived_runs(case):
    *kinds, settings = PAIRS[case]
    for seed in range(5):
        rules = [kind(**settings) for kind in kinds]
        for rule in rules:
            rule.start(torch.ones(D), ClientTable(np.full(N, 10)), rule.upload_kinds[0])
        for upload in uploads(60, seed):
            for rule in rules:
                rule.dispatched(upload.client)
            answers = [rule.receive(upload) for rule in rules]
            assert answers[0] is answers[1]
            np.testing.assert_array_equal(*(rule.model_d.numpy() for rule in rules))
            np.testing.assert_array_equal(
                *([float(getattr(rule, name, 0)) for name in ("weight", "similarity", "clipped")] for rule in rules)
            )


class ArchivedDistillation(Distilled):
    def _distil(self):
        config, model_d, grad_d = self.settings, self.model_d, self._gradient_d
        rule_step = float((model_d - self._before_d).norm())
        self._before_d.copy_(model_d)
        alphas, entropies, norms = [], [], []
        y_uc = self.teacher.mean()
        log_uc = y_uc.log_softmax(dim=1)
        soft_uc = log_uc.exp()
        hard_uc = F.one_hot(y_uc.argmax(dim=1), self.server.classes).to(soft_uc.dtype)
        entropy_u = -(soft_uc * log_uc).sum(dim=1) / math.log(self.server.classes)
        adam = Adam(model_d) if config.optimizer == "adam" else None
        for rows_b in self._batches():
            entropy = float(entropy_u[rows_b].mean())
            alpha = entropy * config.alpha_max + (1 - entropy) * config.alpha_min
            soft = alpha / self.server.classes if config.kl_mean == "elements" else alpha
            target_bc = soft * soft_uc[rows_b] + (1 - alpha) * hard_uc[rows_b]
            self.server.gradient(model_d, rows_b, target_bc, grad_d)
            norm = float(grad_d.norm())
            if config.clip is not None and norm > config.clip:
                grad_d.mul_(config.clip / norm)
            if adam is None:
                model_d.add_(grad_d, alpha=-config.rate)
            else:
                adam.step(model_d, grad_d, config.rate)
            alphas.append(alpha)
            entropies.append(entropy)
            norms.append(norm)
        clipped = [config.clip is not None and norm > config.clip for norm in norms]
        distilled_step = float((model_d - self._before_d).norm())
        self._before_d.copy_(model_d)
        means = [sum(values) / len(values) for values in (entropies, alphas, clipped, norms)]
        values = (float(self.teacher.reports), *means, rule_step, distilled_step)
        self.told = dict(zip(self.own_columns, values, strict=True))


class LinearServer:
    """Softmax regression on 12 samples."""

    samples, classes = 12, 4

    def __init__(self):
        self.x = torch.randn(12, 9, generator=torch.Generator().manual_seed(3))

    def gradient(self, w_d, rows_b, target_bc, out_d):
        w = w_d[:36].clone().requires_grad_()
        loss = F.cross_entropy(self.x[rows_b] @ w.view(9, 4), target_bc)
        out_d.zero_()
        out_d[:36].copy_(torch.autograd.grad(loss, w)[0])
        return loss.detach()


@pytest.mark.parametrize(
    "settings", [{}, {"clip": 0.1}, {"clip": None, "optimizer": "sgd"}, {"clip": 0.3, "kl_mean": "elements"}]
)
def test_distillation_has_the_bits_of_the_archived_runs(settings):
    config = DistillationConfig(steps=5, batch_size=5, **{"rate": 0.03} | settings)
    wrapped = []
    for kind in (Distilled, ArchivedDistillation):
        rule = equip(FedBuff(eta=0.5, buffer_size=2), Storage(), Streams(0), LinearServer())
        rule = Distillation(config).wrap_rule(rule, Streams(0)) if kind is Distilled else kind(rule, config, Streams(0))
        rule.start(torch.zeros(D), ClientTable(np.full(N, 10)), "difference")
        wrapped.append(rule)
    drawn = torch.Generator().manual_seed(1)
    for upload in itertools.islice(uploads(40, 0), 40):
        upload.outputs_uc = 2 * torch.randn(12, 4, generator=drawn)
        for rule in wrapped:
            rule.receive(upload)
        found, expected = wrapped
        assert torch.equal(found.model_d, expected.model_d) and found.told == expected.told
    assert found.rounds == 20 and found.told["alpha"] > 0.2


def test_a_number_is_divided_by_a_tensor_with_one_rounding():
    rng = np.random.default_rng(0)
    for number, divisor in rng.uniform(0.1, 9, size=(2000, 2)).tolist():
        assert (
            divide(number, torch.tensor(divisor, dtype=torch.double)).item()
            == number / divisor
            == divide(number, divisor)
        )
