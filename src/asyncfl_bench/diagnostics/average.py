"""The mean of the latest models, evaluated beside the model itself: how much of a lead is less noise?"""

from __future__ import annotations

import torch
from torch import Tensor

from ..simulation.observer import Observer
from ..types import Upload


class ModelAverage(Observer):
    """Keeps the model after each of the last W uploads; before W uploads, after all of them. Takes W d floats.

    Source: averaging of iterates (Polyak, Juditsky 1992), of the last W alone.
    model_d  the model in use, shape (d,)
    window   W
    last     test metrics of the mean at the latest point: accuracy (share), loss (nats)
    """

    state_names = ("_models_wd", "_seen", "last")

    def __init__(self, model_d: Tensor, window: int):
        self._model_d, self.window = model_d, window
        self._models_wd = torch.zeros(window, len(model_d), dtype=model_d.dtype, device=model_d.device)
        self._seen = 0
        self.last: dict[str, float] = {}

    def arrived(self, upload: Upload, changed: bool, time: float) -> None:
        self._models_wd[self._seen % self.window] = self._model_d
        self._seen += 1

    @property
    def mean_d(self) -> Tensor:
        """The mean of the kept models, shape (d,); the model itself before the first upload."""
        kept = min(self._seen, self.window)
        return self._models_wd[:kept].mean(0) if kept else self._model_d
