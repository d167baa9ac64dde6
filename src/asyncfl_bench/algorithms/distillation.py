"""Distillation: after a rule's step the model learns from the outputs of clients' models on the server's samples.

Legend: n clients, d model parameters, u samples of the server, B of a mini-batch, C classes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from ..errors import check
from ..ranges import CheckedSettings, Configured, at_least, greater_than, one_of, within
from ..stateful import Stateful
from ..storage import send
from ..types import Recorder
from .base import ServerRule
from .common.scalars import divide

if TYPE_CHECKING:
    import torch

    from ..randomness import Streams
    from ..types import Facts, ServerTask, Upload

FORWARD = 1 / 3  # of the arithmetic of a forward and backward pass


@dataclass
class NoDistillationConfig(CheckedSettings):
    takes_place = False


@dataclass
class DistillationConfig(CheckedSettings):
    """
    steps       mini-batches after each step of the rule; 0: none
    batch_size  B, samples of a mini-batch
    rate        eta_d, step size of a mini-batch
    optimizer   adam: with a new state after each step of the rule | sgd: the plain step of equation 2
    clip        nu, largest norm of a mini-batch's gradient
    alpha_min   weight of soft targets (KL) if the teacher's entropy is 0
    alpha_max   their weight if it is largest, >= alpha_min. Hard labels (CE) have the rest
    kl_mean     batch: KL averaged over the samples of a batch | elements: over their C classes too, as F.kl_div does by
                default, so C times less
    max_age     server iterations since the model that a report started from; the teacher leaves out older reports
    """

    steps: Annotated[int | None, at_least(0, null="for one pass over the samples")] = None
    batch_size: Annotated[int, at_least(1)] = 50
    rate: Annotated[float, greater_than(0)] = 3e-6
    optimizer: Annotated[str, one_of("adam", "sgd")] = "adam"
    clip: Annotated[float | None, greater_than(0, null="for none")] = 5.0
    alpha_min: Annotated[float, within("[0, 1]")] = 0.2
    alpha_max: Annotated[float, within("[0, 1]")] = 0.8
    kl_mean: Annotated[str, one_of("batch", "elements")] = "batch"
    max_age: Annotated[int | None, at_least(0, null="for all reports")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.alpha_min <= self.alpha_max
        check(ok, "alpha_min", self.alpha_min, f"at most distillation.alpha_max={self.alpha_max:g}")

    @property
    def takes_place(self) -> bool:
        return self.steps != 0

    def idle(self, facts: Facts) -> dict[str, str]:
        if not self.takes_place:
            return dict.fromkeys((name for name in vars(self) if name != "steps"), "with distillation.steps=0")
        return {} if self.alpha_max else {"kl_mean": "with distillation.alpha_max=0, which gives KL no weight"}


class Distillation(Configured):
    """Distillation after a rule's step (FedEcho, Wang et al. 2025, arXiv:2511.19966, Algorithm 1, lines 5 and 12-16).

    Rule     arrival from i:  Y_i <- logits of i's model on the server's u samples, in place of its last      (line 5)
             after each step to w, for each mini-batch B of them:
               y = mean of Y_i over clients that have reported;  p = softmax(y)                               (line 14)
               alpha = H alpha_max + (1 - H) alpha_min,  H = mean entropy of p on B / ln C           (equation 4)
               f = mean over B of  alpha KL(p || q) + (1 - alpha) CE(q, argmax y),  q = softmax(logits(w, B))     (3)
               w <- w - eta_d clip(grad f, nu), or a step of Adam with that                                   (2)
    The gradient of f is that of one cross-entropy, with targets alpha p + (1 - alpha) onehot(argmax y).
    """

    config: DistillationConfig

    def wrap_rule(self, rule: ServerRule, streams: Streams) -> ServerRule:
        """Return the rule with distillation after each of its steps."""
        return Distilled(rule, self.config, streams) if self.config.takes_place else rule


class NoDistillation(Distillation):
    """No distillation after a step of the rule."""

    Config = NoDistillationConfig


class Distilled(Recorder, ServerRule):
    """A rule with distillation after each of its steps; all other calls are passed to the rule.

    State    teacher (Y and the clients that have reported), rounds; mini-batches are drawn at (0, rounds)
    Memory   n u C numbers; 5 d floats (the model before, a gradient, Adam's three)
    seconds  wall-clock time of each distillation of this process, without the logits of uploads
    """

    server: ServerTask
    seconds: list[float]
    state_names = ("rounds", "told")
    own_columns = ("reports", "entropy", "alpha", "clipped_share", "gradient_norm", "rule_step", "distilled_step")

    def __init__(self, rule: ServerRule, config: DistillationConfig, streams: Streams):
        assert rule.server is not None, "a rule is equipped first"
        super().__init__(rule.config)
        self.rule, self.settings, self.server, self._draws = rule, config, rule.server, streams.unlabelled
        self.label, self.upload_kinds = rule.label, rule.upload_kinds
        self.storage, self.draws = rule.storage, rule.draws
        self.needs = replace(rule.needs, outputs=True, linear=False)
        self.averaged = (*rule.averaged, "rule/alpha", "rule/clipped_share", "rule/distilled_step")
        self.arrival_facts = rule.arrival_facts
        self._columns = rule.decision_columns if isinstance(rule, Recorder) else ()
        self.decision_columns = (*self._columns, *self.own_columns)

    def start(self, model_d: torch.Tensor, clients, upload_kind: str) -> None:
        super().start(model_d, clients, upload_kind)
        self.rule.start(model_d, clients, upload_kind)
        if self.needs.keeps == "variate":
            self.variate_d = self.rule.variate_d
        self.bytes_before = self.rule.bytes_before if isinstance(self.rule, Recorder) else 0
        self.teacher = Teacher(clients.n, model_d.new_zeros((self.server.samples, self.server.classes)))
        self.rounds, self.seconds = 0, []
        self.told = dict.fromkeys(self.own_columns, 0.0)
        self._before_d, self._gradient_d = model_d.clone(), model_d.new_empty(model_d.shape)

    def dispatched(self, client: int) -> None:
        self.rule.dispatched(client)

    def work_for(self, client: int) -> int | None:
        return self.rule.work_for(client)

    def resumes_from(self, client: int) -> tuple[int, torch.Tensor] | None:
        return self.rule.resumes_from(client)

    def receive(self, upload: Upload) -> bool:
        self.teacher.add_report(upload.client, upload.base_iteration, upload.outputs_uc)
        changed = self.rule.receive(upload)
        vars(self).update({name: getattr(self.rule, name) for name in self.arrival_facts})
        return self._distil_after(changed, self.server.samples * FORWARD)

    def tick(self) -> bool:
        return self._distil_after(self.rule.tick())

    def round(self) -> bool:
        return self._distil_after(self.rule.round())

    def _distil_after(self, changed: bool, computed: float = 0.0) -> bool:
        """Distil if the rule changed the model, and return ``changed``. computed: samples that the rule computed."""
        self.server_samples = self.rule.server_samples + computed
        if changed:
            self.rounds += 1
            began = time.monotonic()
            self._distil()  # ends with a number from the device, so its work is done
            self.seconds.append(time.monotonic() - began)
        return changed

    def _distil(self) -> None:
        import torch
        from torch.nn import functional as F

        config, model_d, grad_d = self.settings, self.model_d, self._gradient_d
        if config.max_age is not None:
            self.teacher.drop_reports_before(self.rounds - 1 - config.max_age)  # the step was from version rounds - 1
        rule_step = (model_d - self._before_d).norm()
        self._before_d.copy_(model_d)
        numbers: list[torch.Tensor] = []  # entropy, alpha and norm of each mini-batch, read together at the end
        if self.teacher.reports:
            y_uc = self.teacher.mean()
            log_uc = y_uc.log_softmax(dim=1)
            soft_uc = log_uc.exp()
            hard_uc = F.one_hot(y_uc.argmax(dim=1), self.server.classes).to(soft_uc.dtype)
            entropy_u = -(soft_uc * log_uc).sum(dim=1) / math.log(self.server.classes)
            adam = Adam(model_d) if config.optimizer == "adam" else None
            for rows_b in self._batches():
                entropy = entropy_u[rows_b].mean().double()
                alpha = entropy * config.alpha_max + (1 - entropy) * config.alpha_min
                soft = alpha / self.server.classes if config.kl_mean == "elements" else alpha
                target_bc = soft * soft_uc[rows_b] + (1 - alpha) * hard_uc[rows_b]
                self.server.gradient(model_d, rows_b, target_bc, grad_d)
                norm = grad_d.norm().double()
                if config.clip is not None:
                    grad_d.mul_(torch.where(norm > config.clip, divide(config.clip, norm), 1.0))
                if adam is None:
                    model_d.add_(grad_d, alpha=-config.rate)
                else:
                    adam.step(model_d, grad_d, config.rate)
                self.server_samples += len(rows_b)
                numbers += entropy, alpha, norm
        distilled_step = (model_d - self._before_d).norm()
        self._before_d.copy_(model_d)
        steps = torch.stack([rule_step.double(), distilled_step.double(), *numbers]).tolist()
        entropies, alphas, norms = steps[2::3], steps[3::3], steps[4::3]
        clipped = [config.clip is not None and norm > config.clip for norm in norms]
        means = (_mean(entropies), _mean(alphas), _mean(clipped), _mean(norms))
        values = (float(self.teacher.reports), *means, *steps[:2])
        self.told = dict(zip(self.own_columns, values, strict=True))

    def _batches(self) -> Iterator[torch.Tensor]:
        """Yield the samples of each mini-batch, from shuffled passes over all samples."""
        generator, size, done = self._draws.separate_generator(0, self.rounds), self.settings.batch_size, 0
        while True:
            order_u = send(generator.permutation(self.server.samples), self.model_d.device)
            for rows_b in order_u.split(size):
                yield rows_b
                done += 1
                if done == self.settings.steps:
                    return
            if self.settings.steps is None:
                return

    def stats(self) -> dict[str, float]:
        return self.rule.stats() | {f"rule/{name}": value for name, value in self.told.items()}

    def wall_times(self) -> dict[str, dict[str, float]]:
        """Return count, mean, least and most wall seconds of this process's distillations, as ``distillation``."""
        if not (seconds := self.seconds):
            return {}
        facts = {"count": len(seconds), "mean": _mean(seconds), "least": min(seconds), "most": max(seconds)}
        return {"distillation": facts}

    def decisions(self) -> list[tuple]:
        """Return the rule's decisions, or one row, with the columns of the distillation."""
        rows = self.rule.decisions() if isinstance(self.rule, Recorder) and self._columns else [()]
        return [(*row, *self.told.values()) for row in rows]

    def vectors(self, n: int) -> int:
        return self.rule.vectors(n) + (5 if self.settings.optimizer == "adam" else 2)

    def parts(self) -> dict[str, Stateful]:
        return {"rule": self.rule, "teacher": self.teacher}

    def load_state_dict(self, state: dict) -> None:
        """Restore the state. The model must have been restored before."""
        super().load_state_dict(state)
        self._before_d.copy_(self.model_d)


class Adam:
    """Adam as in torch.optim, whose import takes as long as a short run. Memory: 3 d floats."""

    BETA1, BETA2, EPS = 0.9, 0.999, 1e-8

    def __init__(self, like_d: torch.Tensor):
        self.first_d, self.second_d = like_d.new_zeros(like_d.shape), like_d.new_zeros(like_d.shape)
        self._root_d, self.steps = like_d.new_empty(like_d.shape), 0

    def step(self, model_d: torch.Tensor, gradient_d: torch.Tensor, rate: float) -> None:
        import torch

        self.steps += 1
        self.first_d.lerp_(gradient_d, 1 - self.BETA1)
        self.second_d.mul_(self.BETA2).addcmul_(gradient_d, gradient_d, value=1 - self.BETA2)
        torch.sqrt(self.second_d, out=self._root_d).div_(math.sqrt(1 - self.BETA2**self.steps)).add_(self.EPS)
        model_d.addcdiv_(self.first_d, self._root_d, value=-rate / (1 - self.BETA1**self.steps))


class Teacher(Stateful):
    """The mean of the newest logits on the server's samples, over clients that have reported.

    like_uc  zeros of the reports' shape
    Memory   n u C numbers
    """

    state_names = ("logits_nuc", "version_n")

    def __init__(self, n: int, like_uc: torch.Tensor):
        self.logits_nuc = like_uc.new_zeros((n, *like_uc.shape))  # zeros for clients without a report
        self.version_n: list[int | None] = [None] * n  # of the model that the report started from

    @property
    def reports(self) -> int:
        return sum(version is not None for version in self.version_n)

    def add_report(self, client: int, version: int, logits_uc: torch.Tensor | None) -> None:
        """Replace the client's last report by a copy of this one."""
        assert logits_uc is not None
        self.logits_nuc[client].copy_(logits_uc)
        self.version_n[client] = version

    def drop_reports_before(self, oldest: int) -> None:
        """Remove reports from versions of the model before ``oldest``."""
        for client, version in enumerate(self.version_n):
            if version is not None and version < oldest:
                self.logits_nuc[client].zero_()
                self.version_n[client] = None

    def mean(self) -> torch.Tensor:
        """Return the (u, C) mean of at least one report. A running sum would keep a report that was not finite."""
        import torch

        return (self.logits_nuc.sum(dim=0, dtype=torch.double) / self.reports).to(self.logits_nuc.dtype)


def _mean(values: list) -> float:
    """Return the mean; 0 without values, if there was no teacher."""
    return sum(values) / len(values) if values else 0.0
