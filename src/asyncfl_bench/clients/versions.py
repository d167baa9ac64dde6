"""Vectors that are kept between arrivals: model versions, computed uploads, and clients' memories.

Legend: n clients, d parameters, p pieces of work computed together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..stateful import Stateful
from ..storage import Rows, Storage

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ..types import Work


class ModelVersions(Stateful):
    """Copies of the global model at the server iterations from which work in the queue starts.

    All work of a version shares one copy, whose memory is reused after the last release. So there are at most as many
    vectors of d floats as pieces of work in flight.
    """

    state_names = ("_held",)

    def __init__(self, device: torch.device | None = None):
        """Create no version. device: of vectors that are loaded from a state"""
        self.state_device = device
        self._held: dict[int, list] = {}  # iteration -> [vector, holders]
        self._spare: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def peak_versions(self) -> int:
        """Largest number of versions at one time, which is the number of vectors of d floats in memory."""
        return len(self._held) + len(self._spare)

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


class UploadBlock:
    """(p, d) uploads that were computed together; the block returns to its pool after the last use."""

    def __init__(self, rows_pd: torch.Tensor):
        self.rows_pd = rows_pd
        self.waiting = 0


class BlockRow(NamedTuple):
    """A row of a block."""

    block: UploadBlock
    row: int

    @property
    def row_d(self) -> torch.Tensor:
        return self.block.rows_pd[self.row]


class Blocks:
    """Pool of blocks. New memory of this size takes a CPU longer than the arithmetic on it.

    rows, most_rows  vectors of d floats in all blocks, now and at most so far. A block is kept until its last upload is
                     used, so there are more rows than waiting uploads
    """

    def __init__(self):
        self._spare: list[UploadBlock] = []
        self.rows = self.most_rows = 0

    def take(self, p: int, like_d: torch.Tensor) -> UploadBlock:
        block = self._spare.pop() if self._spare else None
        if block is None or len(block.rows_pd) < p:
            self.rows += p - (0 if block is None else len(block.rows_pd))
            self.most_rows = max(self.most_rows, self.rows)
            block = UploadBlock(like_d.new_empty((p, like_d.numel())))
        block.waiting = p
        return block

    def take_rows(self, p: int, like_d: torch.Tensor, separate: bool = False) -> list[BlockRow]:
        """Return p rows of one block, or with ``separate`` each of another block."""
        if separate:
            return [BlockRow(self.take(1, like_d), 0) for _ in range(p)]
        block = self.take(p, like_d)
        return [BlockRow(block, row) for row in range(p)]

    def release_row(self, block: UploadBlock) -> None:
        """Note that an upload of the block was used. After the last one the block can be taken again."""
        block.waiting -= 1
        if not block.waiting:
            self._spare.append(block)


class ClientVectors(Stateful):
    """A vector that each client keeps between uploads. It changes only at a delivery, so lost work changes nothing.

    rows       (n, d) these vectors, in ``place`` (storage.PLACES)
    state_key  their key in a checkpoint
    """

    state_key: str

    def __init__(self, n: int, like_d: torch.Tensor, place: str = "device", storage: Storage | None = None):
        self.rows = Rows(n, like_d, place, storage.folder if storage else None)

    def parts(self) -> dict[str, Stateful]:
        return {self.state_key: self.rows}

    def hold(self, work: Work) -> None:
        """Note a dispatch."""

    def release(self, work: Work) -> None:
        """Note that the work was delivered or discarded."""

    def proximal_center(self, client: int, start_d: torch.Tensor) -> torch.Tensor | None:
        """Return (d,) the center of the client's proximal term; None: the received model."""
        return None

    def shift(self, work: Work) -> torch.Tensor | None:
        """Return (d,) the shift that is added to each mini-batch gradient; None: no shift."""
        return None

    def message(self, client: int, vector_d: torch.Tensor) -> torch.Tensor:
        """Return (d,) the vector that the client sends, lent until the next call."""
        return vector_d

    def variate_change(self, work: Work, vector_d: torch.Tensor) -> torch.Tensor | None:
        """Return (d,) the change of the client's variate for the upload, lent until the next call, or None."""
        return None


class ClientSums(ClientVectors):
    """The sum of each client's delivered uploads, for rules that regularise clients around it (FedDyn)."""

    state_key = "sums"

    def proximal_center(self, client: int, start_d: torch.Tensor) -> torch.Tensor:
        """Return (d,) the received model minus the client's sum."""
        return start_d - self.rows[client]

    def message(self, client: int, vector_d: torch.Tensor) -> torch.Tensor:
        """Return the upload, after adding it to the client's sum."""
        self.rows.put(client, self.rows[client] + vector_d)
        return vector_d


class ClientVariates(ClientVectors):
    """A control variate c_i of each client, an estimate of its gradient, for rules that correct local steps (FedAC).

    Each gradient gains c - c_i, with the server's variate c at the dispatch. At the end
    c_i <- -D_i / (K lr) - (c - c_i), the mean of the K gradients without this shift, and the client sends the change.

    server_d  () -> (d,) the current c;  lr  the local step size of a piece of work
    Memory: also c of every model version, on the device.
    """

    state_key = "variates"

    def __init__(
        self,
        n: int,
        like_d: torch.Tensor,
        place: str = "device",
        storage: Storage | None = None,
        *,
        server_d: Callable[[], torch.Tensor],
        lr: Callable[[Work], float],
    ):
        super().__init__(n, like_d, place, storage)
        self.versions = ModelVersions(like_d.device)
        self._server_d, self._lr = server_d, lr

    def hold(self, work: Work) -> None:
        self.versions.hold(work.iteration, self._server_d())

    def release(self, work: Work) -> None:
        self.versions.release(work.iteration)

    def shift(self, work: Work) -> torch.Tensor:
        return self.versions[work.iteration] - self.rows[work.client]

    def variate_change(self, work: Work, vector_d: torch.Tensor) -> torch.Tensor:
        if not work.samples:  # a client without samples does not change
            return vector_d.new_zeros(vector_d.shape)
        mean_d = vector_d / (-work.local_steps * self._lr(work))
        change_d = mean_d - self.versions[work.iteration]  # of c_i: the mean minus the shift minus c_i
        self.rows.put(work.client, self.rows[work.client] + change_d)
        return change_d

    def parts(self) -> dict[str, Stateful]:
        return super().parts() | {"versions": self.versions}


class ClientMemories(ClientVectors):
    """Each client's previous upload, for rules whose clients send changes (ACE, Algorithm a.5, lines 17-18).

    Changes are doubles: rounded to single precision they would let the server's sum drift away from its clients.
    Memory: also at most 4 d floats on the device.
    """

    state_key = "previous"

    def __init__(self, n: int, like_d: torch.Tensor, place: str = "device", storage: Storage | None = None):
        super().__init__(n, like_d, place, storage)
        self._change_d = like_d.new_empty(like_d.shape).double()
        # on a CPU mixed types in one operation would allocate at every upload
        self._wide_d = self._change_d.clone() if like_d.device.type == "cpu" else None

    def message(self, client: int, vector_d: torch.Tensor) -> torch.Tensor:
        """Return (d,) doubles vector - previous, lent until the next call, and set previous <- vector."""
        previous_d = self.rows[client]
        self._change_d.copy_(vector_d).sub_(previous_d if self._wide_d is None else self._wide_d.copy_(previous_d))
        self.rows.put(client, vector_d)
        return self._change_d


def build_memories(
    keeps: str | None, n: int, model_d: torch.Tensor, place: str, storage: Storage, **variates: Any
) -> ClientVectors | None:
    """Build the vectors that each of n clients keeps for a rule; None if it keeps none.

    keeps  see ``algorithms.needs.Needs``;  variates  arguments of ``ClientVariates``
    """
    if keeps == "variate":
        return ClientVariates(n, model_d, place, storage, **variates)
    kinds = {"previous": ClientMemories, "sum": ClientSums}
    return kinds[keeps](n, model_d, place, storage) if keeps in kinds else None
