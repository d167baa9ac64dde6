"""What the server iterations since the last logged point did. Costs nothing per upload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..simulation.observer import Observer

if TYPE_CHECKING:
    import torch

    from ..types import Counters


class Steps(Observer):
    """How far the model moved between two logged points, and means of what the rule says of each iteration.

    rule     its ``averaged`` names the numbers of ``stats`` that are averaged
    model_d  (d,) global model; a copy of it is kept. Memory: d floats
    """

    def __init__(self, rule, model_d: torch.Tensor):
        self._rule, self._model_d = rule, model_d
        self._before_d = model_d.clone()
        self._clear()

    def _clear(self) -> None:
        self._iterations = 0
        self._sums = dict.fromkeys(self._rule.averaged, 0.0)

    def iterated(self, counters: Counters) -> None:
        if self._sums:
            stats = self._rule.stats()
            for name in self._sums:
                self._sums[name] += stats[name]
            self._iterations += 1

    def metrics(self) -> dict[str, float]:
        """Metrics over the iterations since the last call."""
        row = {"model/change_norm": float((self._model_d - self._before_d).norm())}
        if self._iterations:
            row |= {f"{name}_mean": total / self._iterations for name, total in self._sums.items()}
        self._before_d.copy_(self._model_d)
        self._clear()
        return row

    def state_dict(self) -> dict:
        return {"before_d": self._before_d, "iterations": self._iterations, "sums": dict(self._sums)}

    def load_state_dict(self, state: dict) -> None:
        self._before_d.copy_(state["before_d"])
        self._iterations, self._sums = state["iterations"], dict(state["sums"])
