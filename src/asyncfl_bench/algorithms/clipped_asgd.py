"""Clipped ASGD: a step of bounded length for every arriving gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ..ranges import greater_than
from .asgd import Asgd
from .base import StepConfig
from .common.scalars import add_scaled, divide
from .needs import Needs

if TYPE_CHECKING:
    from .common.scalars import Scalar


@dataclass
class ClippedAsgdConfig(StepConfig):
    """
    clip  c, largest norm of an upload over the whole model; the paper searches 0.5, 1, 2, 4
    """

    clip: Annotated[float | None, greater_than(0, null="for no clipping")] = 1.0


class ClippedAsgd(Asgd):
    """Clipped ASGD (Erickson and Johansson, ICML 2026, arXiv:2606.13287, Algorithms 1 and 2).

    Rule     arrival of g_j:  w <- w - eta min(1, c / ||g_j||) g_j, the norm over the whole model
    Upload   gradient, shape (d,); of differences, c is in units of the model
    State    none      Memory 0
    Limits   c = null or above every norm: Asgd, bit for bit.  no step is longer than eta c.  one client: clipped SGD
    Differs  client.clip is another thing: it cuts the gradient of each mini-batch on the client. Clipping tensor by
             tensor is another rule. Algorithm 2 is this with schedule=uniform_queue; under others and with data that
             differ the result is biased to fast clients, as that of Asgd

    >>> after_each(ClippedAsgd(eta=1.0, clip=1.0), (0, [3.0, 4.0]), (1, [0.3, 0.4]))
    [[-0.6, -0.8], [-0.9, -1.2]]
    """

    label = "Clipped ASGD"
    config: ClippedAsgdConfig
    needs = Needs()
    averaged = ("rule/clipped",)
    state_names = ("clipped",)

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.clipped: Scalar = 0.0

    def receive(self, upload) -> bool:
        import torch

        clip = self.config.clip
        if clip is None:
            return super().receive(upload)
        norm = upload.vector_d.norm().double()
        self.clipped = (norm > clip).double()
        factor = torch.where(norm <= clip, self.step_size, divide(self.step_size * clip, norm))
        add_scaled(self.model_d, upload.vector_d, factor)
        return True

    def stats(self) -> dict[str, Scalar]:
        return {"rule/clipped": self.clipped}
