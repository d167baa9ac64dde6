"""Wall time of server steps, and of the uploads between them (AFBS, table 5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from ..algorithms.common.split import SplitRule
from ..ranges import at_least
from ..simulation.budget import Counters
from ..types import Upload
from .base import Diagnostics, DiagnosticsConfig

_CALLS, _OF_SPLIT = ("receive", "tick", "round"), ("receive_message",)  # of the rule


@dataclass
class ServerTimeConfig(DiagnosticsConfig):
    """
    warm_up  server iterations that are not counted
    """

    warm_up: Annotated[int, at_least(0)] = 20


class ServerTime(Diagnostics):
    """Wall milliseconds of a server iteration, and the uploads in it (Lu et al. 2025, arXiv:2506.12754, table 5).

        server_step  time inside the rule: use of all uploads of the iteration, selection and step
        buffer_fill  time from the end of the last step to the end of this one, clients' work included; left out if the
                     model was evaluated meanwhile
        uploads      uploads that reached the rule
        kept         uploads in its step, by ``rule/kept`` of its ``stats``

    A rule may add uploads when they arrive (FedBuff) or all at the step (AFBS), so both are counted. Threads compute
    several uploads at once; threads=1 computes one at a time. Times depend on the machine: compare runs of one
    machine, made one at a time.
    """

    config: ServerTimeConfig
    state_names = ("_steps", "_fills", "_uploads", "_kept")

    def start(self, *, rule, shadow, model_d, task, client, has_left) -> None:
        self._rule, self._cuda = rule, model_d.is_cuda
        self._steps: list[float] = []
        self._fills: list[float] = []  # NaN: not counted
        self._uploads: list[float] = []
        self._kept: list[float] = []
        self._begin()
        for name in _CALLS + _OF_SPLIT * isinstance(rule, SplitRule):
            setattr(rule, name, self._timed(getattr(rule, name)))

    def _begin(self) -> None:
        self._inside, self._received, self._evaluated, self._began = 0.0, 0, False, time.perf_counter()

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same call, which adds its wall time."""

        def timed(*arguments: Any) -> Any:
            self._wait()
            began = time.perf_counter()
            answer = call(*arguments)
            self._wait()
            self._inside += time.perf_counter() - began
            return answer

        return timed

    def _wait(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.synchronize()

    def received(self, upload: Upload, changed: bool) -> None:
        self._received += 1

    def iterated(self, counters: Counters) -> None:
        self._steps.append(1e3 * self._inside)
        fill = 1e3 * (time.perf_counter() - self._began)
        self._fills.append(float("nan") if self._evaluated else fill)
        self._uploads.append(float(self._received))
        self._kept.append(float(self._rule.stats().get("rule/kept", self._received)))
        self._begin()

    def measure(self, point: Mapping[str, Any]) -> dict[str, float]:
        self._evaluated = True
        return {}

    def summary(self) -> dict:
        """Return medians and quartiles [ms] after the warm-up, and means of uploads; empty without such iterations."""
        first = self.config.warm_up
        found: dict[str, float] = {}
        for name, values in {"server_step": self._steps, "buffer_fill": self._fills}.items():
            known = np.array(values[first:])
            known = known[~np.isnan(known)]
            if len(known):
                quartiles = np.percentile(known, [25, 50, 75])
                found |= {f"{name}{end}_ms": float(q) for end, q in zip(("_low", "", "_high"), quartiles, strict=True)}
        if len(self._steps) > first:
            found |= {"uploads": float(np.mean(self._uploads[first:])), "kept": float(np.mean(self._kept[first:]))}
            found["iterations"] = len(self._steps) - first
        return found
