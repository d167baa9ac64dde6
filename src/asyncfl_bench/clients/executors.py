"""Computing dispatched work, when its upload is asked for.

Between dispatch and arrival nothing can change what a client computes, so the time of computing is free to choose.
An executor keeps the model versions that work in flight still needs, and lends the result at delivery.

Legend: d parameters, p pieces of work computed together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..randomness import Streams
from ..types import Work
from .batches import Batches
from .local import LocalTraining

if TYPE_CHECKING:
    import torch


class ModelVersions:
    """The global model as it was at each server iteration that work in flight started from.

    One copy per version, shared by all its holders, recycled when the last one lets go: at most min(in flight,
    versions in flight) vectors of d floats, whatever the length of the run.
    """

    def __init__(self):
        self._held: dict[int, list] = {}  # iteration -> [vector, holders]
        self._spare: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, iteration: int, model_d: torch.Tensor) -> None:
        if (entry := self._held.get(iteration)) is not None:
            entry[1] += 1
            return
        vector_d = self._spare.pop() if self._spare else model_d.new_empty(model_d.shape)
        self._held[iteration] = [vector_d.copy_(model_d), 1]

    def __getitem__(self, iteration: int) -> torch.Tensor:
        return self._held[iteration][0]

    def release(self, iteration: int) -> None:
        entry = self._held[iteration]
        entry[1] -= 1
        if not entry[1]:
            self._spare.append(entry[0])
            del self._held[iteration]

    def state_dict(self) -> dict:
        return {"held": {iteration: list(entry) for iteration, entry in self._held.items()}}

    def load_state_dict(self, state: dict, like_d: torch.Tensor) -> None:
        self._held = {i: [v.to(like_d.device), holders] for i, (v, holders) in state["held"].items()}


class SequentialExecutor:
    """One piece of work after another, each computed at its delivery; work that is never delivered costs nothing.

    task      data on the device and the model (tasks.task.Task)
    local     what a client does (LocalTraining)
    batches   which samples it sees
    changes   None, or the clients' memories for rules that want the change against the previous upload
    statistics_rate  with batch norm: the server's running statistics move this far towards each delivered client's
    """

    def __init__(
        self,
        task,
        local: LocalTraining,
        batches: Batches,
        streams: Streams,
        *,
        augment: bool = False,
        changes: ClientMemories | None = None,
        statistics_rate: float = 0.1,
    ):
        self.task, self.local, self.batches, self.changes = task, local, batches, changes
        self.versions = ModelVersions()
        self.statistics_rate = statistics_rate
        self._augment = streams.augment if augment else None
        self._vector_d: torch.Tensor | None = None

    def dispatch(self, work: Work, model_d: torch.Tensor) -> None:
        self.versions.hold(work.iteration, model_d)

    def discard(self, work: Work) -> None:
        self.versions.release(work.iteration)

    def deliver(self, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
        """((d,) upload, mean training loss). The vector is lent until the next delivery."""
        start_d = self.versions[work.iteration]
        if self._vector_d is None:
            self._vector_d = start_d.new_empty(start_d.shape)
        vector_d, loss = self._compute(work, start_d, self._vector_d)
        self.versions.release(work.iteration)
        if self.changes is not None:
            self.changes.subtract_previous(work.client, vector_d)
        return vector_d, loss

    def _compute(self, work: Work, start_d, out_d) -> tuple[torch.Tensor, torch.Tensor]:
        batches = self.batches.of(work)
        if len(batches[0]) == 0:  # an empty client has nothing to say
            return out_d.zero_(), out_d.new_zeros(())
        losses = []
        augmentations = self._augmentations(work, batches)

        def gradient(w_d, step, into_d):
            x, y = self.task.batch(batches[step], augment=augmentations[step])
            losses.append(self.task.gradient(w_d, x, y, into_d))

        if not self.task.flat.has_statistics:
            self.local.upload(start_d, gradient, work.local_steps, out_d)
        else:
            server = self.task.flat.statistics()
            self.task.flat.reset_statistics()
            self.local.upload(start_d, gradient, work.local_steps, out_d)
            self.task.flat.load_statistics(server.lerp(self.task.flat.statistics(), self.statistics_rate))
        return out_d, losses[0] if len(losses) == 1 else sum(losses) / len(losses)

    def _augmentations(self, work: Work, batches: list[np.ndarray]) -> list:
        if self._augment is None:
            return [None] * len(batches)
        generator = self._augment(work.client, work.count)
        return [self.task.draw_augmentation(generator, len(batch)) for batch in batches]

    def state_dict(self) -> dict:
        state = {"versions": self.versions.state_dict()}
        if self.changes is not None:
            state["changes"] = self.changes.state_dict()
        if self.task.flat.has_statistics:
            state["statistics"] = self.task.flat.statistics()
        return state

    def load_state_dict(self, state: dict, model_d: torch.Tensor) -> None:
        self.versions.load_state_dict(state["versions"], model_d)
        if self.changes is not None:
            self.changes.load_state_dict(state["changes"])
        if self.task.flat.has_statistics:
            self.task.flat.load_statistics(state["statistics"])


class ClientMemories:
    """Each client's previous upload, for rules whose clients send changes (ACE, Algorithm a.5, lines 17-18).

    Touched only at delivery: work that is discarded leaves client and server in step. Memory: n d floats.
    """

    def __init__(self, n: int, like_d: torch.Tensor):
        self.previous_nd = like_d.new_zeros((n, like_d.numel()))

    def subtract_previous(self, client: int, vector_d: torch.Tensor) -> None:
        """vector <- vector - previous; previous <- what vector was."""
        previous_d = self.previous_nd[client]
        current_d = vector_d.clone()
        vector_d.sub_(previous_d)
        previous_d.copy_(current_d)

    def state_dict(self) -> dict:
        return {"previous_nd": self.previous_nd}

    def load_state_dict(self, state: dict) -> None:
        self.previous_nd.copy_(state["previous_nd"])
