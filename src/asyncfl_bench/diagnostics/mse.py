"""Mean squared error of a server step, split into sampling noise, participation bias and delay.

Legend: n clients, d parameters, t server iteration, g_i client i's latest arrived gradient, v_i the model version at
which it was computed (0 before the first), G_i the gradient of F_i over all samples of client i, F = mean_i F_i.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BenchError, ConfigError, check, format_value
from ..ranges import Count
from ..stateful import Stateful
from ..types import Upload, Work
from .base import Diagnostics, DiagnosticsConfig

if TYPE_CHECKING:
    import torch

    from ..tracking.rundir import Trace

UNBIASED = "a mini-batch is to be an unbiased sample of the client's gradient"
LINEAR = "a step is to be a weighted sum of gradients"
ARRIVALS_NAME = "mse_arrivals.parquet"
ARRIVAL_TYPES = {
    "iteration": np.int64,  # server iterations done when it arrived
    "client": np.int64,
    "staleness": np.int64,
    "drift": np.float64,  # |w_t - w^{v_i}|^2
    "noise": np.float64,  # |g_i - G_i(v_i)|^2
}
LAGS = (1, 10, 25, 50)  # server iterations
CHUNK = 512  # samples of one pass: more would only need more memory


@dataclass
class MseConfig(DiagnosticsConfig):
    """
    every  server iterations between measured steps. A measured step costs the full gradient of every client
    """

    every: Count = 10


class Mse(Diagnostics):
    """Error of the step from w_t (arXiv:2511.19066, equations 3 and 4).

        u       the step on the scale of a gradient: w_{t+1} = w_t - eta u
        ubar    the same step with every g_i replaced by G_i(v_i)
        Fstale  (1/n) sum_i G_i(v_i)
        A = u - ubar            noise of mini-batches
        B = ubar - Fstale       participation and weights
        C = Fstale - grad F(w_t)     age of the gradients
        A + B + C = u - grad F(w_t), whose square is the step's error

    Each evaluation has these numbers as ``mse/noise`` and so on, means over the measured steps since the last point:

        noise, bias, delay        |A|^2, |B|^2, |C|^2
        error, update, gradient   |u - grad F(w_t)|^2, |u|^2, |grad F(w_t)|^2
        residual                  relative distance of A + B + C from u - grad F(w_t), due to rounding
        sigma2, sigma2_cached     |g - G|^2 of uploads since the last point, and of each client's latest upload
        zeta2                     mean_i |G_i(w_t) - grad F(w_t)|^2
        drift, drift_arrivals     |w_t - w(v_i)|^2 over clients, and over uploads at their arrival
        age_mean, age_max         t - v_i over all clients
        frozen                    |(1/n) sum (G_i(v_i) - G_i(w_t))|^2 over clients that dropped out
        noise_correlation_k       correlation of A(t) and A(t+k), k = 1, 10, 25, 50, since the start

    ``diagnosed.drift`` in summary.json covers the second half of the iterations: ``staleness_mean``, ``slope`` and
    ``bins`` (b, uploads, mean staleness and mean drift for staleness 2^b to 2^(b+1) - 1).

    ubar needs no formula for each rule: a *shadow*, a second rule of the same kind, receives G_i(v_i) instead of g_i.
    For a rule that adds weighted sums of its uploads (``Needs.linear``) the shadow's step is ubar. A difference counts
    as -lr times a gradient, as one step of SGD computes it.

    Cost: a full local gradient for each upload, n of them for each measured step, and the vectors of ``vectors``.
    """

    config: MseConfig
    state_names = ("t", "version_n", "stale_nd", "stale_sum_d", "noise_n", "_rows", "_noise", "_drift")

    @classmethod
    def check_run(cls, settings) -> None:
        client = settings.parts["client"].config

        def need(value: object, needed: object, key: str, why: str) -> None:
            check(value == needed, key, value, f"{format_value(needed)} with diagnostics=mse: {why}")

        name = settings.choices.get("algorithm")
        allowed = f"none: a step of algorithm={name} is not a weighted sum of its uploads"
        check(settings.needs.linear, "diagnostics", "mse", allowed)
        distils = settings.parts["distillation"].config.takes_place
        need(settings.choices.get("distillation") if distils else "none", "none", "distillation", LINEAR)
        for key, value, needed in settings.needs.linear_if:
            need(value, needed, f"algorithm.{key}", LINEAR)
        if client.upload == "difference":
            several = "several local steps are no gradient at one model"
            need(client.local_steps, 1, "client.local_steps", several)
            need(client.local_epochs, None, "client.local_epochs", several)
            need(client.lr_decay, 1, "client.lr_decay", "uploads are divided by one local step")
            need(client.optimizer, "sgd", "client.optimizer", "an AdamW step is not on the scale of a gradient")
        need(client.clip, None, "client.clip", "the mean of shortened gradients is not a gradient")
        need(client.augment, False, "client.augment", UNBIASED)
        need(client.logit_adjustment, 0, "client.logit_adjustment", "F_i is the mean of the plain cross-entropy")
        norm = "batch" if settings.parts["model"].config.batch_norm else "group"
        need(norm, "group", "model.norm", UNBIASED)

    def vectors(self, rule, n: int, concurrency: int) -> int:
        anchors = LAGS[-1] // self.config.every + 1
        versions = n + min(n, concurrency)
        cached = n if rule.needs.cache is not None else 0
        workspace = 16  # much of it in double precision
        return rule.vectors(n) + cached + n + versions + anchors + workspace

    def start(self, *, rule, shadow, model_d, task, client, has_left) -> None:
        import torch

        from ..clients.versions import ModelVersions

        if task.flat.has_statistics or any("Dropout" in type(m).__name__ for m in task.flat.module.modules()):
            raise ConfigError("diagnostics", "mse", f"must be none: this model's layers are random, and {UNBIASED}")
        self.model_d, self.has_left, self.n = model_d, has_left, task.clients.n
        self.objective = Objective(task, client.weight_decay if client.optimizer == "sgd" else 0.0)
        self.shadow = shadow
        # no rule looks at the model it moves; starting each step at zero spares the digits that w would take
        self.shadow_model_d = model_d.new_zeros(model_d.shape)
        shadow.start(self.shadow_model_d, task.clients, client.upload)
        self.upload_scale = -client.lr if client.upload == "difference" else 1.0
        self.step_scale = shadow.step_size * self.upload_scale
        self.t = 0
        self.before_d = model_d.clone()  # w_t
        # the start versions of each client's last upload and of the work in flight
        self.versions = ModelVersions(model_d.device)
        self.version_n = [0] * self.n
        self.stale_nd = model_d.new_empty((self.n, model_d.numel()))  # G_i(v_i)
        self.noise_n = [float("nan")] * self.n  # |g_i - G_i(v_i)|^2, not a number before the first upload
        self.memory = NoiseMemory(model_d.device)
        self._work_d = model_d.new_empty(model_d.shape)
        for i, gradient_d in self.objective.gradients(model_d, self._work_d):
            self.versions.hold(0, model_d)
            self.stale_nd[i].copy_(gradient_d)
        self.stale_sum_d = self.stale_nd.sum(dim=0, dtype=torch.double)
        self._table: Trace | None = None
        self._clear()

    def _clear(self) -> None:
        self._rows: list[dict[str, float]] = []  # one per measured step since the last line
        self._noise: list[float] = []  # one per upload since the last line
        self._drift: list[float] = []

    def open(self, directory) -> None:
        self._table = directory.open_table(ARRIVALS_NAME, ARRIVAL_TYPES)

    # -- events ------------------------------------------------------------------------------------------------------

    def dispatched(self, work: Work, model_d) -> None:
        self.versions.hold(work.iteration, model_d)
        self.shadow.dispatched(work.client)

    def discarded(self, work: Work) -> None:
        self.versions.release(work.iteration)

    def received(self, upload: Upload, changed: bool) -> None:
        client, start_d = upload.client, self.versions[upload.base_iteration]
        expected_d = self.objective.gradient(client, start_d, self._work_d)
        noise = _squared_norm((upload.vector_d / self.upload_scale).sub_(expected_d))
        moved = _squared_norm(self.before_d - start_d)
        self._noise.append(noise)
        self._drift.append(moved)
        self.noise_n[client] = noise
        if self._table is not None:
            self._table.add((self.t, client, upload.staleness, moved, noise))
        self.stale_sum_d += expected_d.double() - self.stale_nd[client].double()
        self.stale_nd[client].copy_(expected_d)
        self.versions.release(self.version_n[client])
        self.version_n[client] = upload.base_iteration
        self._follow_step(self.shadow.receive(replace(upload, vector_d=expected_d.mul_(self.upload_scale))), changed)

    def ticked(self, changed: bool) -> None:
        self._follow_step(self.shadow.tick(), changed)

    def round_ended(self, changed: bool) -> None:
        self._follow_step(self.shadow.round(), changed)

    def _follow_step(self, shadow_changed: bool, changed: bool) -> None:
        """Measure the last step of the model. Raises BenchError if only one of the two rules stepped."""
        if shadow_changed != changed:
            raise BenchError(f"diagnostics=mse: {type(self.shadow).__name__} steps or not by what is in its uploads")
        if not changed:
            return
        update_d = (self.before_d.double() - self.model_d.double()).div_(-self.step_scale)
        expected_d = self.shadow_model_d.double().div_(self.step_scale)
        noise_d = update_d - expected_d
        measured = (self.t + 1) % self.config.every == 0
        self.memory.add_step(self.t, noise_d.to(self.model_d.dtype), anchor=measured)
        if measured:
            self._rows.append(self._measure_step(update_d, expected_d, noise_d))
        self.shadow_model_d.zero_()
        self.before_d.copy_(self.model_d)
        self.t += 1

    def _measure_step(self, update_d, expected_d, noise_d) -> dict[str, float]:
        """Return the parts of the error of the last step, from w_t = ``before_d``."""
        gradient_d = update_d.new_zeros(update_d.shape)  # of F at w_t
        frozen_d = update_d.new_zeros(update_d.shape)
        squares, frozen = 0.0, 0
        for i, own_d in self.objective.gradients(self.before_d, self._work_d):
            gradient_d += own_d
            squares += _squared_norm(own_d)
            if self.has_left(i, self.t):
                frozen += 1
                frozen_d += self.stale_nd[i].double() - own_d.double()
        gradient_d /= self.n
        stale_d = self.stale_sum_d / self.n
        bias_d, delay_d = expected_d - stale_d, stale_d - gradient_d
        error_d = update_d - gradient_d
        residual = _squared_norm(noise_d + bias_d + delay_d - error_d)
        age_n = [self.t - version for version in self.version_n]
        moved = {version: _squared_norm(self.before_d - self.versions[version]) for version in set(self.version_n)}
        row = {
            "mse/noise": _squared_norm(noise_d),
            "mse/bias": _squared_norm(bias_d),
            "mse/delay": _squared_norm(delay_d),
            "mse/error": _squared_norm(error_d),
            "mse/residual": (residual / max(_squared_norm(error_d), 1e-300)) ** 0.5,
            "mse/update": _squared_norm(update_d),
            "mse/gradient": _squared_norm(gradient_d),
            "mse/zeta2": squares / self.n - _squared_norm(gradient_d),
            "mse/drift": sum(moved[version] for version in self.version_n) / self.n,
            "mse/age_mean": sum(age_n) / self.n,
            "mse/age_max": float(max(age_n)),
        }
        return row | ({"mse/frozen": _squared_norm(frozen_d / self.n)} if frozen else {})

    # -- metrics and state --------------------------------------------------------------------------------------------

    def measure(self, point: Mapping[str, Any]) -> dict[str, float]:
        row: dict[str, float] = {}
        if self._rows:
            names = dict.fromkeys(name for step in self._rows for name in step)
            means = {name: np.mean([step[name] for step in self._rows if name in step]) for name in names}
            row = {name: float(mean) for name, mean in means.items()}
            row["mse/sigma2_cached"] = float(np.nanmean(self.noise_n))
        if self._noise:
            row |= {"mse/sigma2": float(np.mean(self._noise)), "mse/drift_arrivals": float(np.mean(self._drift))}
        self._clear()
        return row | self.memory.metrics()

    def summary(self) -> dict:
        if self._table is None:
            return {}
        table = self._table.columns()
        return {"drift": summarize_drift(table["iteration"], table["staleness"], table["drift"])}

    def parts(self) -> dict[str, Stateful]:
        table = {} if self._table is None else {"table": self._table}
        return {"shadow": self.shadow, "versions": self.versions, "memory": self.memory, **table}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.before_d.copy_(self.model_d)


def _squared_norm(vector_d: torch.Tensor) -> float:
    """Return the squared Euclidean norm in double precision."""
    is_double = vector_d.element_size() == 8
    return float(vector_d @ vector_d) if is_double else float(vector_d.double().square_().sum())


def summarize_drift(iteration_u: np.ndarray, staleness_u: np.ndarray, drift_u: np.ndarray) -> dict:
    """Return the mean staleness, the slope and the bins of the u uploads in the second half of the iterations.

    In the first half the way from the initial model hides the share of noise and skew in the drift |w_t - w_v|^2.

    staleness_mean  mean staleness [server iterations]; None without uploads
    slope           least squares: growth of the drift for an iteration of staleness; None if all staleness is equal
    bins            [b, uploads, mean staleness, mean drift] of uploads whose staleness is 2^b to 2^(b+1) - 1
    """
    late_u = iteration_u >= iteration_u.max(initial=0) / 2
    staleness_u, drift_u = staleness_u[late_u].astype(float), drift_u[late_u]
    if not len(staleness_u):
        return {"staleness_mean": None, "slope": None, "bins": []}
    off_u = staleness_u - staleness_u.mean()
    spread = float(off_u @ off_u)
    stale_s, drift_s = staleness_u[staleness_u > 0], drift_u[staleness_u > 0]
    bin_s = np.floor(np.log2(stale_s)).astype(int)
    bins = [(int(b), bin_s == b) for b in np.unique(bin_s)]
    return {
        "staleness_mean": float(staleness_u.mean()),
        "slope": float(off_u @ drift_u) / spread if spread else None,
        "bins": [[b, int(own.sum()), float(stale_s[own].mean()), float(drift_s[own].mean())] for b, own in bins],
    }


def merge_bins(bins: list[list]) -> dict[int, tuple[int, float, float]]:
    """Merge the bins of several runs: b -> (uploads, mean staleness, mean drift), in order."""
    found = {}
    for b in sorted({int(of[0]) for of in bins}):
        uploads, staleness, drift = np.array([of[1:] for of in bins if of[0] == b], dtype=float).T
        found[b] = (int(uploads.sum()), *(math.fsum(uploads * x) / uploads.sum() for x in (staleness, drift)))
    return found


class Objective:
    """Gradients G_i(w) of the objectives F_i, by a network that the run does not use.

    task    models.task.Task, without batch normalisation
    decay   weight decay of the clients' training: F_i includes decay / 2 * |w|^2
    """

    def __init__(self, task, decay: float):
        self.task, self.decay = task, decay
        self._network = task.compiled or task.flat.clone_for_thread()
        self._part_d = task.flat.initial_d()

    def gradient(self, client: int, w_d: torch.Tensor, out_d: torch.Tensor) -> torch.Tensor:
        """Write G_i(w) into ``out_d`` and return it. It is zero for a client without samples, as its uploads are."""
        own = self.task.partition[client]
        out_d.zero_()
        if not len(own):
            return out_d
        for first in range(0, len(own), CHUNK):
            chunk = own[first : first + CHUNK]
            self._network.gradient(w_d, *self.task.batch(chunk), self._part_d)
            out_d.add_(self._part_d, alpha=len(chunk) / len(own))
        return out_d.add_(w_d, alpha=self.decay) if self.decay else out_d

    def gradients(self, w_d: torch.Tensor, out_d: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (i, G_i(w)) of each client, all in the same ``out_d``."""
        for client in range(len(self.task.partition)):
            yield client, self.gradient(client, w_d, out_d)


class NoiseMemory(Stateful):
    """Correlation of the noise A_t of a step with A_{t+k}, over pairs whose first step is an anchor.

        sum <A_t, A_{t+k}> / sqrt(sum |A_t|^2 * sum |A_{t+k}|^2)

    0 if each step has fresh samples, as Lemma a.6 of arXiv:2511.19066 assumes. (1 - 1/n)^k for ACE with one arrival
    per step, as cached samples are reused until they are replaced.
    Memory: d floats for every anchor of the last 50 iterations.
    """

    state_names = ("_anchors", "_sums")

    def __init__(self, device: torch.device | None = None):
        """device: of the vectors of a loaded state."""
        self.state_device = device
        self._anchors: list[tuple[int, torch.Tensor]] = []
        self._sums = {lag: [0.0, 0.0, 0.0] for lag in LAGS}

    def add_step(self, t: int, noise_d: torch.Tensor, anchor: bool) -> None:
        """Add A_t of the next step. anchor: keep a copy, with which later steps are compared."""
        for start, kept_d in self._anchors:
            if (sums := self._sums.get(t - start)) is not None:
                for index, (one_d, other_d) in enumerate(((kept_d, noise_d), (kept_d, kept_d), (noise_d, noise_d))):
                    sums[index] += float(one_d @ other_d)
        self._anchors = [(start, kept_d) for start, kept_d in self._anchors if t - start < LAGS[-1]]
        if anchor:
            self._anchors.append((t, noise_d.clone()))

    def metrics(self) -> dict[str, float]:
        """Return the correlations over all pairs since the start of the run."""
        return {
            f"mse/noise_correlation_{lag}": product / (one * other) ** 0.5
            for lag, (product, one, other) in self._sums.items()
            if one > 0 and other > 0
        }
