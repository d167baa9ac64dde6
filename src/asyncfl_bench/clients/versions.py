"""Vectors that outlive one arrival: model versions still needed, results not yet delivered, clients' memories.

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
    """The global model as it was at each server iteration that uncomputed work started from.

    One copy per version, shared by all its holders, recycled when the last one lets go: at most as many vectors of d
    floats as there is work in flight, whatever the length of the run.
    """

    state_names = ("_held",)

    def __init__(self, device: torch.device | None = None):
        """device: of the vectors that a state brings."""
        self.state_device = device
        self._held: dict[int, list] = {}  # iteration -> [vector, holders]
        self._spare: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def peak_versions(self) -> int:
        """Largest number of versions held at the same time: the vectors of d floats it keeps."""
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
    """(p, d) uploads computed together; goes back to its pool when all have been used."""

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
    """Recycles blocks, since fresh memory of this size costs a CPU more than the arithmetic on it.

    rows, most_rows  vectors of d floats in all its blocks, now and at most so far: a block lives until its last upload
                     was used, so with uploads computed long before they arrive there are several times those waiting
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
        """One upload of the block was used; after the last one the block is recycled."""
        block.waiting -= 1
        if not block.waiting:
            self._spare.append(block)


class ClientVectors(Stateful):
    """A vector that each client keeps from one upload to the next.

    Changed only at delivery: work that is discarded leaves client and server in step.
    """

    def hold(self, work: Work) -> None:
        """The work was dispatched."""

    def release(self, work: Work) -> None:
        """It was delivered, or never will be."""

    def proximal_center(self, client: int, start_d: torch.Tensor) -> torch.Tensor | None:
        """(d,) center of the client's proximal term; None: the received model."""
        return None

    def shift(self, work: Work) -> torch.Tensor | None:
        """(d,) what is added to each of its mini-batch gradients; None: nothing."""
        return None

    def message(self, client: int, vector_d: torch.Tensor) -> torch.Tensor:
        """(d,) what the client sends, lent until the next call."""
        return vector_d

    def variate_change(self, work: Work, vector_d: torch.Tensor) -> torch.Tensor | None:
        """(d,) change of the client's variate, sent with the upload and lent until the next call; None: it has none."""
        return None


class ClientSums(ClientVectors):
    """The sum of each client's delivered uploads, for rules that regularise clients around it (FedDyn).

    Memory: n d floats in ``place`` (storage.PLACES).
    """

    def __init__(self, n: int, like_d: torch.Tensor, place: str = "device", storage: Storage | None = None):
        self.sums = Rows(n, like_d, place, storage.folder if storage else None)

    def proximal_center(self, client: int, start_d: torch.Tensor) -> torch.Tensor:
        """(d,) center of the proximal term: the received model minus the client's sum."""
        return start_d - self.sums[client]

    def message(self, client: int, vector_d: torch.Tensor) -> torch.Tensor:
        """What the client sends: the upload itself, which its sum takes in."""
        self.sums.put(client, self.sums[client] + vector_d)
        return vector_d

    def parts(self) -> dict[str, Stateful]:
        return {"sums": self.sums}


class ClientVariates(ClientVectors):
    """A control variate c_i of each client, an estimate of its gradient, for rules that correct local steps (FedAC).

    Each gradient gains c - c_i, with c the server's variate as it was when the work was dispatched. At the end
    c_i <- -D_i / (K lr) - (c - c_i), the mean of the K gradients without what they gained, and the client sends by how
    much c_i changed.

    server_d  () -> (d,) c as it is;  lr  the local step of a piece of work
    Memory: n d floats in ``place`` (storage.PLACES), and c of every version of the model held, on the device.
    """

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
        self.variates = Rows(n, like_d, place, storage.folder if storage else None)
        self.versions = ModelVersions(like_d.device)
        self._server_d, self._lr = server_d, lr

    def hold(self, work: Work) -> None:
        self.versions.hold(work.iteration, self._server_d())

    def release(self, work: Work) -> None:
        self.versions.release(work.iteration)

    def shift(self, work: Work) -> torch.Tensor:
        return self.versions[work.iteration] - self.variates[work.client]

    def variate_change(self, work: Work, vector_d: torch.Tensor) -> torch.Tensor:
        if not work.samples:  # an empty client has nothing to say
            return vector_d.new_zeros(vector_d.shape)
        mean_d = vector_d / (-work.local_steps * self._lr(work))
        change_d = mean_d - self.versions[work.iteration]  # what c_i gains, c - c_i taken off the mean
        self.variates.put(work.client, self.variates[work.client] + change_d)
        return change_d

    def parts(self) -> dict[str, Stateful]:
        return {"variates": self.variates, "versions": self.versions}


class ClientMemories(ClientVectors):
    """Each client's previous upload, for rules whose clients send changes (ACE, Algorithm a.5, lines 17-18).

    A change is a double: rounded to single precision, every message would leave the server's sum a little further
    behind its clients.
    Memory: n d floats in ``place`` (storage.PLACES), at most 4 d on the device.
    """

    def __init__(self, n: int, like_d: torch.Tensor, place: str = "device", storage: Storage | None = None):
        self.previous = Rows(n, like_d, place, storage.folder if storage else None)
        self._change_d = like_d.new_empty(like_d.shape).double()
        # on a CPU mixed types in one operation would allocate at every upload
        self._wide_d = self._change_d.clone() if like_d.device.type == "cpu" else None

    def message(self, client: int, vector_d: torch.Tensor) -> torch.Tensor:
        """(d,) doubles, what the client sends: vector - previous, lent until the next call; previous <- vector."""
        previous_d = self.previous[client]
        self._change_d.copy_(vector_d).sub_(previous_d if self._wide_d is None else self._wide_d.copy_(previous_d))
        self.previous.put(client, vector_d)
        return self._change_d

    def parts(self) -> dict[str, Stateful]:
        return {"previous": self.previous}


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
