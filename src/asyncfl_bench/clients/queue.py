"""Work from its dispatch to its delivery: the order of computing, and the vectors that are kept for it.

Nothing between dispatch and arrival changes the result of work, so the queue chooses when it is computed. If the next
upload is not computed yet, its work is computed together with work that is due later, and those uploads are kept until
their delivery. The choice changes the speed, but not arrivals and mini-batches, and results only by rounding.

Legend: d parameters, p pieces of work computed together.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import Stopped
from ..stateful import Stateful, copy_containers
from ..types import Delivery, Work
from .versions import BlockRow, Blocks, ClientVectors, ModelVersions, UploadBlock

if TYPE_CHECKING:
    import torch

    # of a piece of work: (d,) the model that it starts from, (d,) the center of its proximal term if that is another
    # vector, and (d,) the shift of its gradients, or None
    Start = Callable[[Work], tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]]
    PendingUploads = Callable[[], list["ComputedUpload"]]  # waits for uploads that are computed together


class ComputedUpload(NamedTuple):
    """Results of a piece of work besides the upload's vector.

    loss        mean training loss, 0-d
    statistics  of batch normalisation, if the model has them
    outputs_uc  (u, C) of the local model on the server's samples, if the rule needs them
    """

    loss: torch.Tensor
    statistics: torch.Tensor | None = None
    outputs_uc: torch.Tensor | None = None


class Computer(Stateful, ABC):
    """Computes several pieces of work together. The defaults compute one piece at its delivery, and have no state.

    most_pieces       pieces of work that are computed together
    threads_used      threads that compute them
    most_steps        their local steps; more only if fewer pieces would leave a thread without work
    prefetch_below    with fewer computed uploads left, the next pieces are started in the background; 0: never
    separate_uploads  each upload has its own memory, so that a late one does not hold that of others
    """

    most_pieces = 1
    threads_used = 1
    most_steps: float = math.inf
    prefetch_below = 0
    separate_uploads = False

    @abstractmethod
    def begin(self, pieces: list[Work], start: Start, out_pd: Any, blocks: Blocks) -> PendingUploads:
        """Begin writing uploads into the rows of ``out_pd``.

        ``out_pd`` is a list of rows with ``separate_uploads``, else one (p, d) tensor. The method may change the order
        of ``pieces``, and takes workspaces from ``blocks``.
        """

    def take_statistics(self, statistics: torch.Tensor | None) -> None:
        """Take the batch-norm statistics of an upload that reached the server."""

    def vectors(self, local_steps: int) -> int:
        """Return the vectors of d floats for computing, without versions of the model and uploads."""
        return 0

    def close(self) -> None:
        """End threads, if any."""


class _Wave(NamedTuple):
    """Pieces of work that are computed together, the rows that their uploads are written to, and a wait for them."""

    pieces: list[Work]
    rows: list[BlockRow]
    finish: PendingUploads


class WorkQueue:
    """The executor of a run (simulation.dispatches.Executor).

    computer    computes the work
    memories    vectors that clients keep between uploads; None: they keep none
    keeps_base  the model that work starts from is kept until the delivery, and delivered with the upload
    versions    models that pending work starts from;  blocks  uploads and workspaces
    """

    def __init__(self, computer: Computer, *, memories: ClientVectors | None = None, keeps_base: bool = False):
        self.computer, self.memories, self.keeps_base = computer, memories, keeps_base
        self.versions, self.blocks = ModelVersions(), Blocks()
        self._pending: dict[int, Work] = {}  # by sequence number
        self._order: list[tuple[float, int]] = []  # heap of (due, sequence number) over the pending
        self._results: dict[int, tuple[BlockRow, ComputedUpload]] = {}  # by sequence number
        self._background: _Wave | None = None  # started before it is needed
        self._unwanted: dict[int, Work] = {}  # started, but will never be delivered
        self._lent: UploadBlock | None = None

    # -- calls of the engine -----------------------------------------------------------------------------------------

    def dispatch(self, work: Work, model_d: torch.Tensor) -> None:
        """Queue the work, and keep the model that it starts from."""
        self.versions.hold(work.iteration, model_d)
        if self.memories is not None:
            self.memories.hold(work)
        self._pending[work.sequence] = work
        heapq.heappush(self._order, (work.due, work.sequence))

    def discard(self, work: Work) -> None:
        """Drop work that will never be delivered. Does not raise, since the engine is in the middle of a step."""
        if self._is_in_background(work):
            try:
                self._collect()
            except Stopped:  # a resumed run starts it again with the same other pieces
                self._unwanted[work.sequence] = work
                return
        if (result := self._results.pop(work.sequence, None)) is None:
            del self._pending[work.sequence]
            self.versions.release(work.iteration)
        else:
            self.blocks.release_row(result[0].block)
        self._release(work, computed=result is not None)

    def _release(self, work: Work, *, computed: bool) -> None:
        """Release the vectors that were held for an upload that will not be delivered."""
        if self.memories is not None:
            self.memories.release(work)
        if computed and self.keeps_base:
            self.versions.release(work.iteration)

    def deliver(self, work: Work) -> Delivery:
        """Return the upload of the work, computed now if necessary."""
        if self._lent is not None:
            self.blocks.release_row(self._lent)
            self._lent = None
        if work.sequence not in self._results:
            if not self._is_in_background(work):
                wave = self._begin(self._next_pieces(work))
                self._keep(wave, wave.finish())
            else:
                self._collect()
        row, upload = self._results.pop(work.sequence)
        self._lent = row.block
        if (
            self._background is None
            and len(self._results) < self.computer.prefetch_below
            and (pieces := self._next_pieces())
        ):
            self._background = self._begin(pieces)
        self.computer.take_statistics(upload.statistics)
        base_d = None
        if self.keeps_base:
            base_d = self.versions[work.iteration]
            self.versions.release(work.iteration)  # its memory is not used again before the next dispatch
        vector_d, second_d = row.row_d, None
        if self.memories is not None:
            second_d = self.memories.variate_change(work, vector_d)
            vector_d = self.memories.message(work.client, vector_d)
            self.memories.release(work)
        return Delivery(vector_d, upload.loss, base_d, upload.outputs_uc, second_d)

    def close(self) -> None:
        """End threads, if any."""
        self.computer.close()

    # -- computing ---------------------------------------------------------------------------------------------------

    def start(self, work: Work) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Return (d,) the model that the work starts from, and proximal center and shift (see ``Start``)."""
        start_d, memories = self.versions[work.iteration], self.memories
        if memories is None:
            return start_d, None, None
        return start_d, memories.proximal_center(work.client, start_d), memories.shift(work)

    def _next_pieces(self, first: Work | None = None) -> list[Work]:
        """Remove ``first`` and the work that is due next from the pending work, and return this wave."""
        pieces = [] if first is None else [self._pending.pop(first.sequence)]
        steps = 0 if first is None else first.local_steps
        limits = self.computer
        while (
            self._order
            and len(pieces) < limits.most_pieces
            and (steps < limits.most_steps or len(pieces) < limits.threads_used)
        ):
            sequence = heapq.heappop(self._order)[1]
            if (work := self._pending.pop(sequence, None)) is not None:  # discarded work is no longer there
                pieces.append(work)
                steps += work.local_steps
        return pieces

    def _begin(self, pieces: list[Work]) -> _Wave:
        p, like_d, separate = len(pieces), self.versions[pieces[0].iteration], self.computer.separate_uploads
        rows = self.blocks.take_rows(p, like_d, separate)
        out_pd: Any = [row.row_d for row in rows] if separate else rows[0].block.rows_pd[:p]
        return _Wave(pieces, rows, cache(self.computer.begin(pieces, self.start, out_pd, self.blocks)))

    def _is_in_background(self, work: Work) -> bool:
        return self._background is not None and any(
            work.sequence == other.sequence for other in self._background.pieces
        )

    def _collect(self) -> None:
        """Wait for the work that was started in the background."""
        assert self._background is not None
        self._keep(self._background, self._background.finish())
        self._background = None

    def _keep(self, wave: _Wave, uploads: list[ComputedUpload]) -> None:
        for row, work, upload in zip(wave.rows, wave.pieces, uploads, strict=True):
            if not self.keeps_base:
                self.versions.release(work.iteration)
            if self._unwanted.pop(work.sequence, None) is None:
                self._results[work.sequence] = row, upload
            else:
                self.blocks.release_row(row.block)
                self._release(work, computed=True)

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        """Return the state, after waiting for the work in the background.

        That work stays there, so that a resumed run computes the same waves. After ``Stopped`` it will be computed
        again, and this is the only method that may be called.
        """
        state: dict = {
            "versions": self.versions.state_dict(),
            "results": {
                sequence: {"vector_d": row.row_d.clone(), **upload._asdict()}
                for sequence, (row, upload) in self._results.items()
            },
            "unwanted": [asdict(work) for work in self._unwanted.values()],
            "computer": self.computer.state_dict(),
            "begun": None if self._background is None else self._background_state(self._background),
        }
        if self.memories is not None:
            state["memories"] = self.memories.state_dict()
        return state

    def _background_state(self, begun: _Wave) -> dict:
        import torch

        try:
            uploads = begun.finish()
        except Stopped:
            return {"sequences": [work.sequence for work in begun.pieces], "rows_pd": None, "losses": None}
        return {
            "sequences": [work.sequence for work in begun.pieces],
            "rows_pd": torch.stack([row.row_d for row in begun.rows]),
            "losses": [upload.loss for upload in uploads],
            "outputs": [upload.outputs_uc for upload in uploads],
        }

    def load_state_dict(self, state: dict, model_d: torch.Tensor, in_flight: list[Work]) -> None:
        """Restore the state. in_flight: work that was dispatched here and not delivered, computed or not"""
        self.versions.state_device = model_d.device
        self.versions.load_state_dict(state["versions"])
        for sequence, saved in state["results"].items():
            (row,) = self.blocks.take_rows(1, model_d)
            row.row_d.copy_(saved["vector_d"])
            upload = ComputedUpload(*(copy_containers(saved[name], model_d.device) for name in ComputedUpload._fields))
            self._results[sequence] = row, upload
        if self.memories is not None:
            self.memories.load_state_dict(state["memories"])
        self.computer.load_state_dict(state["computer"])
        known = set(self._results)
        self._unwanted = {work["sequence"]: Work(**work) for work in state["unwanted"]}
        if (begun := state["begun"]) is not None:
            by_sequence = {work.sequence: work for work in in_flight} | self._unwanted
            pieces = [by_sequence[sequence] for sequence in begun["sequences"]]
            if begun["losses"] is None:  # it was given up
                self._background = self._begin(pieces)
            else:
                rows = self.blocks.take_rows(len(pieces), model_d)
                for row, row_d in zip(rows, begun["rows_pd"], strict=True):
                    row.row_d.copy_(row_d)
                saved = (copy_containers(begun[name], model_d.device) for name in ("losses", "outputs"))
                uploads = [ComputedUpload(loss, None, own) for loss, own in zip(*saved, strict=True)]
                self._background = _Wave(pieces, rows, lambda: uploads)
            known |= set(begun["sequences"])
        self._pending = {work.sequence: work for work in in_flight if work.sequence not in known}
        self._order = sorted((work.due, work.sequence) for work in self._pending.values())
