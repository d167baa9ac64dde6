"""Local training, a client's work: one gradient, or K local steps.

Every formula works on a trailing axis d with any axes before it, so one client (d,) and a stack of clients (p, d)
run the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ..errors import Stopped, check
from ..ranges import (
    CheckedSettings,
    Configured,
    Count,
    NonNegative,
    Positive,
    absent,
    at_least,
    greater_than,
    one_of,
    within,
)
from ..types import Facts, Work, Workload


@dataclass
class LocalConfig(CheckedSettings):
    """Settings of local training.

    batch_size        samples per mini-batch (a client with fewer uses all it has), or all: its full local data
    local_steps       K, local steps per piece of work; more than 1 needs uploads that are differences
    local_epochs      K passes over the client's data per piece of work instead
    optimizer         with a fresh state for each piece of work
    lr                local step eta_l; a gradient upload does not use it
    lr_decay          eta_l of a piece of work is lr * lr_decay^c
    lr_decay_by       c counts work: the client's earlier pieces of work | iteration: server iterations at its dispatch
    momentum          of sgd; no effect with one local step
    weight_decay      of the optimizer
    clip              largest norm of each mini-batch's gradient, before decay and proximal term
    proximal          mu: each gradient gains mu * (local - received model)
    logit_adjustment  tau: the loss is the cross-entropy of logits + tau * log P_i, P_i the label shares of the client's
                      samples; 0: of the logits. The training loss in the metrics is the adjusted one
    upload            gradient (one local step) | difference (local minus received model) | auto: the algorithm's first
                      kind
    augment           true: random crop (4 pixels of padding) and horizontal flip, for images
    """

    batch_size: Any = 10
    local_steps: Count = 1
    local_epochs: Annotated[int | None, at_least(1, null="to count local_steps")] = None
    optimizer: Annotated[str, one_of("sgd", "adamw")] = "sgd"
    lr: Positive = 0.1
    lr_decay: Annotated[float, within("(0, 1]")] = 1.0
    lr_decay_by: Annotated[str, one_of("work", "iteration")] = "work"
    momentum: Annotated[float, within("[0, 1)")] = 0.0
    weight_decay: NonNegative = 0.0
    clip: Annotated[float | None, greater_than(0, null="for none")] = None
    proximal: NonNegative = 0.0
    logit_adjustment: Annotated[float, at_least(0), absent(0.0)] = 0.0
    upload: Annotated[str, one_of("auto", "gradient", "difference")] = "auto"
    augment: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = isinstance(self.batch_size, int) and not isinstance(self.batch_size, bool) and self.batch_size >= 1
        check(whole or self.batch_size == "all", "batch_size", self.batch_size, "a whole number >= 1, or all")
        ok = self.local_epochs is None or self.local_steps == 1
        check(ok, "local_steps", self.local_steps, f"1 with local_epochs={self.local_epochs}, which counts instead")
        check(self.lr_decay == 1 or self.optimizer == "sgd", "lr_decay", self.lr_decay, "1 with optimizer=adamw")

    def resolve(self, facts: Facts) -> None:
        """Take the proximal weight and the kind of upload from the rule. Raises ConfigError for other values."""
        if facts.proximal is not None:
            name, value = facts.proximal
            decided = f"set algorithm.{name}, which decides it ({value:g})"
            ok = self.proximal in (LocalConfig.proximal, value)
            check(ok, "proximal", self.proximal, f"left alone under algorithm={facts.algorithm}: {decided}")
            self.proximal = value
        if self.upload == "auto":
            self.upload = facts.upload_kinds[0]
        kinds = ", ".join(facts.upload_kinds)
        check(self.upload in facts.upload_kinds, "upload", self.upload, f"one of {kinds} for {facts.algorithm}")
        if self.upload == "gradient":
            why = f"for uploads that are gradients ({facts.algorithm}); client.upload=difference allows more"
            check(self.local_epochs is None, "local_epochs", self.local_epochs, f"null {why}")
            check(self.local_steps == 1, "local_steps", self.local_steps, f"1 {why}")

        if facts.cuts:
            why = f"with algorithm={facts.algorithm}, whose clients take their steps one by one with the server"
            check(self.local_epochs is None, "local_epochs", self.local_epochs, f"null {why}")
            check(self.optimizer == "sgd", "optimizer", self.optimizer, f"sgd {why}")
            check(self.proximal == 0, "proximal", self.proximal, f"0 {why}")
            why = f"with algorithm={facts.algorithm}, whose server computes the loss (gas has algorithm.adjust)"
            check(self.logit_adjustment == 0, "logit_adjustment", self.logit_adjustment, f"0 {why}")

        if facts.variates:
            why = f"for {facts.algorithm}, whose clients keep the mean of their gradients, (received - local) / (K lr)"
            check(self.optimizer == "sgd", "optimizer", self.optimizer, f"sgd {why}")
            check(self.momentum == 0, "momentum", self.momentum, f"0 {why}")

    def idle(self, facts: Facts) -> dict[str, str]:
        found: dict[str, str] = {}
        if facts.first_k is not None and not self.local_epochs and facts.first_k[1] != self.local_steps:
            found["local_steps"] = f"with algorithm.{facts.first_k[0]}={facts.first_k[1]}, the clients' first K"
        if self.upload == "gradient":
            instead = "; client.upload=difference has local steps" if "difference" in facts.upload_kinds else ""
            why = f"on uploads that are gradients: the step is the server's, algorithm.eta or algorithm.c{instead}"
            local = ["momentum", "proximal", "optimizer", *(("weight_decay", "") if self.optimizer == "adamw" else ())]
            if not facts.outputs:  # else the outputs are of the model after a local step
                local += ["lr", "lr_decay", "lr_decay_by"]
            found |= dict.fromkeys(local, why)
            if self.lr_decay != 1 or not facts.outputs:
                return found
        if self.lr_decay == 1:
            found["lr_decay_by"] = "with client.lr_decay=1: the local step stays"
        if self.optimizer == "adamw":
            found["momentum"] = "with client.optimizer=adamw, which has its own; sgd has it"
        if facts.one_step and not facts.cuts:  # else the server's momentum may be the clients'
            why = "in a single local step; client.local_steps or client.local_epochs has more"
            found = dict.fromkeys(("momentum", "proximal"), why) | found
        return found

    @property
    def workload(self) -> Workload:
        """Meaning of K, and K if the rule does not choose it."""
        epochs = self.local_epochs is not None
        return Workload(self.local_epochs or self.local_steps, self.batch_size, epochs)


class LocalTraining(Configured):
    """Computes an upload from a received model.

    stop  if it is not empty, work ends before the next mini-batch by ``Stopped``

    gradient    g(w), plus weight_decay * w under sgd: what plain SGD would follow
    difference  w_K - w after K steps of a fresh optimizer (torch's SGD and AdamW semantics);
                for K = 1 and sgd that is -lr * (g + weight_decay * w) whatever the momentum
    """

    config: LocalConfig

    def __init__(self, config: LocalConfig, upload_kind: str):
        self.config, self.upload_kind = config, upload_kind
        self.stop: Sequence[object] = ()

    def vectors(self, steps: int) -> int:
        """Return the vectors of d floats for one upload, besides the received model and the upload."""
        pulled = 2 if self.config.proximal else 0  # the proximal center, and the distance to it
        if self.config.optimizer == "adamw" and self.upload_kind == "difference":
            return 5 + pulled  # the local model, two moments, the root of one and their quotient
        return pulled if steps == 1 else 1 + (self.config.momentum > 0) + pulled

    def lr(self, work: Work) -> float:
        """Return the local step size eta_l of a piece of work."""
        steps = work.count if self.config.lr_decay_by == "work" else work.iteration
        return self.config.lr * self.config.lr_decay**steps

    def upload(self, start, gradient, steps: int, out, lr: Any = None, center=None, shift=None) -> None:
        """Write the upload into ``out``.

        start     (..., d) received model, left as it is
        gradient  gradient(w, step, out): writes the mini-batch gradient at w (..., d) into out
        lr        eta_l: a number, or (..., 1) one for each client; None: the configured one
        center    (..., d) center of the proximal term; None: the received model
        shift     (..., d) added to each gradient; None: nothing
        """
        gradient = self.adjust_gradient(gradient, start if center is None else center, shift)
        lr = self.config.lr if lr is None else lr
        if self.upload_kind == "gradient":
            gradient(start, 0, out)
            if self.config.optimizer == "sgd":
                self.decay(start, out)
        elif self.config.optimizer == "sgd":
            self._sgd(start, gradient, steps, out, lr)
        else:
            self._adamw(start, gradient, steps, out)

    def is_linear_without_gradients(self, center, shift) -> bool:
        """Return True if the upload of zero gradients is linear in model, center and shift."""
        if self.config.optimizer == "sgd":
            return True
        # AdamW divides by the size of the pull on a decayed number, which is not proportional
        return center is None and shift is None and not (self.config.proximal and self.config.weight_decay)

    def write_upload_of_zero_gradients(self, start, steps: int, out, lr: Any = None, center=None, shift=None) -> None:
        """Write the upload of one client whose gradients are all zero; arguments as in ``upload``.

        Decay, proximal term and shift are then linear and equal for each number, so their factors are computed once,
        on ones, instead of step by step for each number.
        """
        terms = [vector for vector in (start, center, shift) if vector is not None]
        ones = iter(start.new_zeros(len(terms), len(terms)).fill_diagonal_(1.0))
        alone = [None if vector is None else next(ones) for vector in (start, center, shift)]
        factors = start.new_empty(len(terms))
        self.upload(alone[0], lambda w, step, into: into.zero_(), steps, factors, lr, *alone[1:])
        out.zero_()
        for vector, factor in zip(terms, factors.tolist(), strict=True):
            if factor:
                out.add_(vector, alpha=factor)

    def model(self, start, upload, lr: float):
        """Return (d,) the local model after the work, for a gradient after one local step."""
        return start + upload if self.upload_kind == "difference" else start - lr * upload

    def raise_if_stopped(self) -> None:
        """Raise ``Stopped`` if the run is to stop."""
        if self.stop:
            raise Stopped

    def adjust_gradient(self, gradient, center, shift):
        """Return the gradient clipped, then shifted, then with the proximal term; arguments as in ``upload``."""
        norm, mu = self.config.clip, self.config.proximal
        offset = center.new_empty(center.shape) if mu else None

        def adjusted_gradient(w, step, out) -> None:
            import torch

            gradient(w, step, out)
            if norm is not None:
                clip(out, norm)
            if shift is not None:
                out.add_(shift)
            if mu:
                torch.sub(w, center, out=offset)  # the difference first: at the center the pull is exactly zero
                out.add_(offset, alpha=mu)

        return gradient if norm is None and shift is None and not mu else adjusted_gradient

    def decay(self, w, gradient) -> None:
        """Add weight decay to the (..., d) gradient at w."""
        if self.config.weight_decay:
            gradient.add_(w, alpha=self.config.weight_decay)

    def _sgd(self, start, gradient, steps, out, lr) -> None:
        if steps == 1:
            gradient(start, 0, out)
            self.decay(start, out)
            out.mul_(-lr)
            return
        descent = Descent(self.config, start, lr)
        for step in range(steps):
            self.raise_if_stopped()
            gradient(descent.w, step, out)
            descent.take(out)
        out.copy_(descent.w).sub_(start)

    def _adamw(self, start, gradient, steps, out) -> None:
        import torch

        w = start.clone()
        optimizer = torch.optim.AdamW([w], lr=self.config.lr, weight_decay=self.config.weight_decay)
        for step in range(steps):
            self.raise_if_stopped()
            gradient(w, step, out)
            w.grad = out
            optimizer.step()
        w.grad = None
        out.copy_(w).sub_(start)


def clip(gradient, norm: float) -> None:
    """Scale each (..., d) gradient in place to at most ``norm``. Shorter gradients keep their bits."""
    import torch

    length = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    gradient.mul_((norm / length).clamp(max=1.0))


class Descent:
    """Steps of torch's SGD from a received model, which does not change.

    w         (..., d) the local model;  lr  a number, or (..., 1) one for each client
    velocity  (..., d) with momentum, after the first step; else None
    """

    def __init__(self, config: LocalConfig, start, lr):
        import torch

        self.w, self.lr = start.clone(), lr
        self.velocity: torch.Tensor | None = None
        self._weight_decay, self._momentum = config.weight_decay, None
        if config.momentum:
            self._momentum = torch.tensor(config.momentum, dtype=self.w.dtype)  # read faster than a Python number

    def take(self, gradient) -> None:
        """Take one step. Overwrites the (..., d) ``gradient``."""
        if self._weight_decay:
            gradient.add_(self.w, alpha=self._weight_decay)
        if self._momentum is not None:
            velocity = self.velocity
            self.velocity = gradient.clone() if velocity is None else velocity.mul_(self._momentum).add_(gradient)
            gradient = self.velocity
        if isinstance(self.lr, float):
            self.w.add_(gradient, alpha=-self.lr)
        else:
            self.w.addcmul_(gradient, self.lr, value=-1)
