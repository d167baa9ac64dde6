"""Does the noise of one step come back in later ones?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..stateful import Stateful

if TYPE_CHECKING:
    import torch

LAGS = (1, 10, 25, 50)  # server iterations


class NoiseMemory(Stateful):
    """Correlation of a step's noise A_t with A_{t+k}, over pairs whose first step is an anchor.

        sum <A_t, A_{t+k}> / sqrt(sum |A_t|^2 * sum |A_{t+k}|^2)

    0 where each step draws afresh (Lemma a.6 of arXiv:2511.19066 assumes it), (1 - 1/n)^k for ACE with one arrival per
    step, whose cached samples return until they are replaced.
    Memory: d floats for every anchor less than 50 iterations old.
    """

    state_names = ("_anchors", "_sums")

    def __init__(self, device: torch.device | None = None):
        """device: of the vectors that a state brings."""
        self.state_device = device
        self._anchors: list[tuple[int, torch.Tensor]] = []
        self._sums = {lag: [0.0, 0.0, 0.0] for lag in LAGS}

    def add_step(self, t: int, noise_d: torch.Tensor, anchor: bool) -> None:
        """Add A_t of each step in turn; ``anchor`` keeps a copy that later steps are compared with."""
        for start, kept_d in self._anchors:
            if (sums := self._sums.get(t - start)) is not None:
                for place, (one_d, other_d) in enumerate(((kept_d, noise_d), (kept_d, kept_d), (noise_d, noise_d))):
                    sums[place] += float(one_d @ other_d)
        self._anchors = [(start, kept_d) for start, kept_d in self._anchors if t - start < LAGS[-1]]
        if anchor:
            self._anchors.append((t, noise_d.clone()))

    def metrics(self) -> dict[str, float]:
        """Over all pairs since the start of the run."""
        return {
            f"mse/noise_correlation_{lag}": product / (one * other) ** 0.5
            for lag, (product, one, other) in self._sums.items()
            if one > 0 and other > 0
        }
