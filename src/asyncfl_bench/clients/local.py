"""What a client does with a piece of work: one gradient, or K local steps.

Every formula works on a trailing axis d with any axes before it, so one client (d,) and a stack of clients (p, d)
run the same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import check, check_choice

UPLOADS = ("auto", "gradient", "difference")


@dataclass
class LocalConfig:
    """Fields of a client's work.

    batch_size     samples per mini-batch (a client with fewer uses all it has), or `all`: its full local data
    local_steps    K, local steps per piece of work, >= 1
    optimizer      sgd | adamw, with a fresh state for each piece of work
    lr             local step eta_l > 0; a gradient upload does not use it
    momentum       of sgd, in [0, 1)
    weight_decay   of the optimizer, >= 0
    upload         `gradient` (one local step), `difference` (local minus received model), `auto`: what the rule asks
    augment        random crop with 4 pixels of padding, and horizontal flip (image data)
    """

    batch_size: Any = 10
    local_steps: int = 1
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    upload: str = "auto"
    augment: bool = False

    def __post_init__(self) -> None:
        whole = isinstance(self.batch_size, int) and not isinstance(self.batch_size, bool) and self.batch_size >= 1
        check(whole or self.batch_size == "all", "batch_size", self.batch_size, "a whole number >= 1, or all")
        check(self.local_steps >= 1, "local_steps", self.local_steps, "a whole number >= 1")
        check_choice("optimizer", self.optimizer, ("sgd", "adamw"))
        check(self.lr > 0, "lr", self.lr, "a number > 0")
        check(0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")
        check(self.weight_decay >= 0, "weight_decay", self.weight_decay, "a number >= 0")
        check_choice("upload", self.upload, UPLOADS)


class LocalTraining:
    """Turns a received model into an upload.

    gradient    g(w), plus weight_decay * w under sgd: what plain SGD would follow
    difference  w_K - w after K steps of a fresh optimizer (torch's SGD and AdamW semantics);
                for K = 1 and sgd that is -lr * (g + weight_decay * w) whatever the momentum
    """

    Config = LocalConfig

    def __init__(self, config: LocalConfig, upload_kind: str):
        self.config, self.upload_kind = config, upload_kind

    def vectors(self, steps: int) -> int:
        """Vectors of d floats that computing one upload takes besides the received model and the upload."""
        if self.config.optimizer == "adamw" and self.upload_kind == "difference":
            return 5  # the local model, two moments, the root of one and their quotient
        return 0 if steps == 1 else 1 + (self.config.momentum > 0)

    def upload(self, start, gradient, steps: int, out) -> None:
        """Writes the upload into ``out``.

        start     (..., d) received model, left as it is
        gradient  gradient(w, step, out): writes the mini-batch gradient at w (..., d) into out
        """
        if self.upload_kind == "gradient":
            gradient(start, 0, out)
            if self.config.optimizer == "sgd":
                self._decay(start, out)
        elif self.config.optimizer == "sgd":
            self._sgd(start, gradient, steps, out)
        else:
            self._adamw(start, gradient, steps, out)

    def _decay(self, w, gradient) -> None:
        if self.config.weight_decay:
            gradient.add_(w, alpha=self.config.weight_decay)

    def _sgd(self, start, gradient, steps, out) -> None:
        config = self.config
        if steps == 1:
            gradient(start, 0, out)
            self._decay(start, out)
            out.mul_(-config.lr)
            return
        w = start.clone()
        velocity = None
        for step in range(steps):
            gradient(w, step, out)
            self._decay(w, out)
            if not config.momentum:
                w.add_(out, alpha=-config.lr)
                continue
            velocity = out.clone() if velocity is None else velocity.mul_(config.momentum).add_(out)
            w.add_(velocity, alpha=-config.lr)
        out.copy_(w).sub_(start)

    def _adamw(self, start, gradient, steps, out) -> None:
        import torch

        w = start.clone()
        optimizer = torch.optim.AdamW([w], lr=self.config.lr, weight_decay=self.config.weight_decay)
        for step in range(steps):
            gradient(w, step, out)
            w.grad = out
            optimizer.step()
        w.grad = None
        out.copy_(w).sub_(start)
