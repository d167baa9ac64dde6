"""Computing dispatched work, when its upload is asked for.

Between dispatch and arrival nothing can change what a client computes, so the time and the company of computing are
free to choose. When the next upload to arrive has not been computed, an executor computes it together with those that
are due after it; it keeps what is not delivered yet. How changes the speed, never the arrivals, the mini-batches or,
beyond rounding, the results.

Legend: d parameters, p pieces of work computed together, B samples of a mini-batch.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..randomness import Streams
from ..types import Work
from .batches import Batches
from .local import LocalTraining
from .versions import Block, Blocks, ClientMemories, ClientSums, ModelVersions

if TYPE_CHECKING:
    import torch

BLOCK_BYTES = 2**21  # of uploads computed together in one thread: about what stays in a core's cache
MOST_TOGETHER = 64


class _Batch:
    """Work being computed: the uploads land in the block's rows, ``finish`` waits and gives each (loss, statistics)."""

    def __init__(self, works: list[Work], block: Block, finish: Callable[[], list[tuple]]):
        self.works, self.block = works, block
        self._finish = finish
        self._answers: list[tuple] | None = None

    def finish(self) -> list[tuple]:
        if self._answers is None:
            self._answers = self._finish()
        return self._answers


@dataclass(slots=True)
class _Result:
    block: Block
    row: int
    loss: torch.Tensor
    statistics: torch.Tensor | None = None

    @property
    def vector_d(self) -> torch.Tensor:
        return self.block.rows_pd[self.row]


class SequentialExecutor:
    """One piece of work after another, each computed at its delivery; work that is never delivered costs nothing.

    task      data on the device and the model (tasks.task.Task)
    local     what a client does (LocalTraining)
    batches   which samples it sees
    memories  None, or what each client keeps from one upload to the next (versions.ClientMemories, ClientSums)
    keeps_base  a model version is held until the upload is delivered, and handed over with it
    statistics_rate  with batch norm: the server's running statistics move this far towards each delivered client's
    """

    together = 1  # pieces of work computed in one go
    starts_apart = False  # models that work starts from are copied into a block of their own
    ahead = 0  # computed uploads left at which the next ones are begun in the background; 0: never

    def __init__(
        self,
        task,
        local: LocalTraining,
        batches: Batches,
        streams: Streams,
        *,
        augment: bool = False,
        memories: ClientMemories | ClientSums | None = None,
        keeps_base: bool = False,
        statistics_rate: float = 0.1,
    ):
        self.task, self.local, self.batches, self.memories = task, local, batches, memories
        self.keeps_base = keeps_base
        self.versions = ModelVersions()
        self.statistics_rate = statistics_rate
        self._augment = streams.augment if augment else None
        self._blocks = Blocks()
        self._pending: dict[int, Work] = {}  # by sequence number
        self._order: list[tuple[float, int]] = []  # heap of (due, sequence number) over the pending
        self._results: dict[int, _Result] = {}
        self._begun: _Batch | None = None  # in the background
        self._lent: Block | None = None

    # -- what the engine asks for ------------------------------------------------------------------------------------

    def dispatch(self, work: Work, model_d: torch.Tensor) -> None:
        """Takes note of the work and of the model it starts from."""
        self.versions.hold(work.iteration, model_d)
        self._pending[work.sequence] = work
        heapq.heappush(self._order, (work.due, work.sequence))

    def discard(self, work: Work) -> None:
        """The work will never be delivered."""
        if self._is_begun(work):
            self._collect()
        if (result := self._results.pop(work.sequence, None)) is not None:
            self._blocks.used(result.block)
            if self.keeps_base:
                self.versions.release(work.iteration)
        else:
            del self._pending[work.sequence]
            self.versions.release(work.iteration)

    def deliver(self, work: Work) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """((d,) upload, mean training loss, (d,) model it started from or None). Vectors are lent until the next
        delivery or dispatch."""
        if self._lent is not None:
            self._blocks.used(self._lent)
            self._lent = None
        if work.sequence not in self._results:
            if not self._is_begun(work):
                computed = self._begin(self._next_works(work))
                self._keep(computed, computed.finish())
            else:
                self._collect()
        result = self._results.pop(work.sequence)
        self._lent = result.block
        if self._begun is None and len(self._results) < self.ahead and (works := self._next_works()):
            self._begun = self._begin(works)
        if result.statistics is not None:
            flat = self.task.flat
            flat.load_statistics(flat.statistics().lerp(result.statistics, self.statistics_rate))
        base_d = None
        if self.keeps_base:
            base_d = self.versions[work.iteration]
            self.versions.release(work.iteration)  # its memory is not used again before the next dispatch
        vector_d = result.vector_d
        if self.memories is not None:
            vector_d = self.memories.message(work.client, vector_d)
        return vector_d, result.loss, base_d

    def vectors(self, local_steps: int) -> int:
        """Vectors of d floats in use while computing, versions of the model and uploads left out."""
        return 1 + self.local.vectors(local_steps)  # the gradient in the network's own tensors

    def close(self) -> None:
        """Ends threads, if any."""

    # -- computing ---------------------------------------------------------------------------------------------------

    def _next_works(self, wanted: Work | None = None) -> list[Work]:
        """``wanted`` and the pending work that is due next, ``together`` pieces in all; they are pending no more."""
        works = [] if wanted is None else [self._pending.pop(wanted.sequence)]
        while self._order and len(works) < self.together:
            sequence = heapq.heappop(self._order)[1]
            if (work := self._pending.pop(sequence, None)) is not None:  # discarded work is no longer there
                works.append(work)
        return works

    def _begin(self, works: list[Work]) -> _Batch:
        block = self._blocks.take(len(works), self.versions[works[0].iteration])
        return _Batch(works, block, self._compute(works, block))

    def _is_begun(self, work: Work) -> bool:
        return self._begun is not None and any(work.sequence == other.sequence for other in self._begun.works)

    def _collect(self) -> None:
        """Waits for what was begun in the background."""
        begun, self._begun = self._begun, None
        assert begun is not None
        self._keep(begun, begun.finish())

    def _keep(self, batch: _Batch, answers: list[tuple]) -> None:
        for row, (work, (loss, statistics)) in enumerate(zip(batch.works, answers, strict=True)):
            self._results[work.sequence] = _Result(batch.block, row, loss, statistics)
            if not self.keeps_base:
                self.versions.release(work.iteration)

    def _compute(self, works: list[Work], block: Block) -> Callable[[], list[tuple]]:
        """Begins writing the uploads into the block's rows; the answer waits and gives (loss, statistics) of each."""
        flat = self.task.flat
        answers = [self._one(work, *self._draws(work), block.rows_pd[row], flat) for row, work in enumerate(works)]
        return lambda: answers

    def _draws(self, work: Work) -> tuple[list[np.ndarray], list]:
        """Mini-batches and augmentations of the work's steps. Not for threads: streams are shared."""
        batches = self.batches.of(work)
        if self._augment is None:
            return batches, [None] * len(batches)
        generator = self._augment(work.client, work.count)
        return batches, [self.task.draw_augmentation(generator, len(batch)) for batch in batches]

    def _one(self, work: Work, batches, augmentations, out_d, flat) -> tuple:
        if len(batches[0]) == 0:  # an empty client has nothing to say
            out_d.zero_()
            return out_d.new_zeros(()), None
        losses = []

        def gradient(w_d, step, into_d):
            x, y = self.task.batch(batches[step], augment=augmentations[step])
            losses.append(flat.gradient(w_d, x, y, into_d))

        start_d, statistics = self.versions[work.iteration], None
        if flat.has_statistics:
            servers = flat.statistics()
            flat.reset_statistics()
        anchor_d = None if self.memories is None else self.memories.anchor(work.client, start_d)
        self.local.upload(start_d, gradient, work.local_steps, out_d, self.local.lr(work.count), anchor_d)
        if flat.has_statistics:
            statistics = flat.statistics()
            flat.load_statistics(servers)
        return losses[0] if len(losses) == 1 else sum(losses) / len(losses), statistics

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        """Waits for what is being computed, but does not collect it: the company of later work must not change."""
        begun = self._begun
        state = {
            "versions": self.versions.state_dict(),
            "results": {
                sequence: {"vector_d": r.vector_d.clone(), "loss": r.loss, "statistics": r.statistics}
                for sequence, r in self._results.items()
            },
            "begun": begun
            and {
                "sequences": [work.sequence for work in begun.works],
                "rows_pd": begun.block.rows_pd[: len(begun.works)].clone() if begun.finish() else None,
                "losses": [loss for loss, _ in begun.finish()],
            },
        }
        if self.memories is not None:
            state["memories"] = self.memories.state_dict()
        if self.task.flat.has_statistics:
            state["statistics"] = self.task.flat.statistics()
        return state

    def load_state_dict(self, state: dict, model_d: torch.Tensor, in_flight: list[Work]) -> None:
        """``in_flight``: the work that was dispatched here and not delivered; the saved results are a part of it."""
        self.versions.load_state_dict(state["versions"], model_d)
        for sequence, saved in state["results"].items():
            block = self._blocks.take(1, model_d)
            block.rows_pd[0].copy_(saved["vector_d"])
            statistics = saved["statistics"]
            if statistics is not None:
                statistics = statistics.to(model_d.device)
            self._results[sequence] = _Result(block, 0, saved["loss"].to(model_d.device), statistics)
        known = set(self._results)
        if (begun := state["begun"]) is not None:
            by_sequence = {work.sequence: work for work in in_flight}
            works = [by_sequence[sequence] for sequence in begun["sequences"]]
            block = self._blocks.take(len(works), model_d)
            block.rows_pd[: len(works)].copy_(begun["rows_pd"])
            answers = [(loss.to(model_d.device), None) for loss in begun["losses"]]
            self._begun = _Batch(works, block, lambda: answers)
            known |= set(begun["sequences"])
        self._pending = {work.sequence: work for work in in_flight if work.sequence not in known}
        self._order = sorted((work.due, work.sequence) for work in self._pending.values())
        if self.memories is not None:
            self.memories.load_state_dict(state["memories"])
        if self.task.flat.has_statistics:
            self.task.flat.load_statistics(state["statistics"])


class ThreadsExecutor(SequentialExecutor):
    """Several pieces of work at once, each in a thread of its own with one core: the same bits as one after another.

    Splitting the work is cheaper than splitting every convolution over the cores, which have to wait for each other
    at each layer.
    """

    def __init__(self, *args, workers: int, **options):
        super().__init__(*args, **options)
        self.together = 2 * workers
        self.ahead = workers
        self._pool = _pool(workers)
        self._own = threading.local()

    def _compute(self, works, block):
        jobs = [
            self._pool.submit(self._in_thread, work, *self._draws(work), block.rows_pd[row])
            for row, work in enumerate(works)
        ]
        return lambda: [job.result() for job in jobs]

    def _in_thread(self, work, batches, augmentations, out_d):
        if not hasattr(self._own, "flat"):
            self._own.flat = self.task.flat.twin()
        return self._one(work, batches, augmentations, out_d, self._own.flat)

    def vectors(self, local_steps: int) -> int:
        return (2 + self.local.vectors(local_steps)) * self.ahead  # each thread's: its network, its gradient

    def close(self) -> None:
        self._pool.shutdown()


class BatchedExecutor(SequentialExecutor):
    """Stacked models: the work of p clients as one computation on (p, d), on a CPU in as many parts as there are cores.

    Results equal those of one after another up to rounding. Not for batch normalisation.
    """

    starts_apart = True

    def __init__(self, *args, workers: int = 1, **options):
        super().__init__(*args, **options)
        each = max(4, min(MOST_TOGETHER, BLOCK_BYTES // (4 * self.task.flat.d)))
        self.together = each * workers
        self._workers = workers
        self._pool = _pool(workers) if workers > 1 else None
        self.ahead = self.together // 2 if self._pool else 0

    def _compute(self, works, block):
        by_steps: dict[int, list[int]] = {}
        for row, work in enumerate(works):
            by_steps.setdefault(work.local_steps, []).append(row)
        if len(by_steps) > 1:  # rows of one number of steps must lie together
            rows = [row for same in by_steps.values() for row in same]
            works[:] = [works[row] for row in rows]
        parts, first = [], 0
        for same in by_steps.values():
            size = -(-len(same) // self._workers)
            for start in range(first, first + len(same), size):
                parts.append(slice(start, min(start + size, first + len(same))))
            first += len(same)
        jobs, starts = [], self._blocks.take(len(works), block.rows_pd[0])
        for part in parts:
            drawn = [self._draws(work) for work in works[part]]
            # a workspace of its own for each batch: two may be under way at once
            arguments = (works[part], drawn, starts.rows_pd[part], block.rows_pd[part])
            jobs.append(self._pool.submit(self._part, *arguments) if self._pool else self._part(*arguments))
        starts.waiting = 1

        def finish() -> list[tuple]:
            losses = [job.result() if self._pool else job for job in jobs]
            self._blocks.used(starts)
            return [(loss, None) for loss_p in losses for loss in loss_p.unbind()]

        return finish

    def _part(self, works: list[Work], drawn: list, start_pd: torch.Tensor, out_pd: torch.Tensor) -> torch.Tensor:
        """Writes (p, d) uploads, returns (p,) mean losses."""
        import torch

        steps = works[0].local_steps
        for row, work in enumerate(works):
            start_pd[row].copy_(self.versions[work.iteration])
        losses = []

        def gradient(w_pd, step, into_pd):
            batches = [batches[step] for batches, _ in drawn]
            index_pb, weight_pb = _padded(batches)
            augment = None
            if self._augment is not None:
                cuts = [augmentations[step] for _, augmentations in drawn]
                augment = tuple(_stacked(column, index_pb.shape) for column in zip(*cuts, strict=True))
            x_pb, y_pb = self.task.batch(index_pb, augment=augment)
            weight_pb = self.task.from_numpy(weight_pb)
            losses.append(self.task.flat.stacked_gradient(w_pd, x_pb, y_pb, weight_pb, into_pd))

        lrs = [self.local.lr(work.count) for work in works]
        lr = lrs[0] if len(set(lrs)) == 1 else start_pd.new_tensor(lrs).unsqueeze(1)
        anchor_pd: torch.Tensor | None = None
        if self.memories is not None:
            pulls = [self.memories.anchor(work.client, start_pd[row]) for row, work in enumerate(works)]
            if anchors := [anchor_d for anchor_d in pulls if anchor_d is not None]:  # all of them or none
                anchor_pd = torch.stack(anchors)
        self.local.upload(start_pd, gradient, steps, out_pd, lr, anchor_pd)
        for row, (batches, _) in enumerate(drawn):
            if len(batches[0]) == 0:
                out_pd[row].zero_()
        return losses[0] if steps == 1 else sum(losses) / steps

    def vectors(self, local_steps: int) -> int:
        return (self.local.vectors(local_steps) + (self.task.flat.perceptron is None)) * self.together

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads that use one core each."""
    import torch

    return ThreadPoolExecutor(workers, "afl", initializer=lambda: torch.set_num_threads(1))


def _padded(batches: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(p, B) sample indices, and weights 1/len in each row; short rows are filled with sample 0 at weight 0."""
    lengths = [len(batch) for batch in batches]
    index_pb = np.zeros((len(batches), max(1, *lengths)), dtype=np.int64)
    weight_pb = np.zeros(index_pb.shape, dtype=np.float32)
    for row, (batch, length) in enumerate(zip(batches, lengths, strict=True)):
        if length:
            index_pb[row, :length] = batch
            weight_pb[row, :length] = 1 / length
    return index_pb, weight_pb


def _stacked(column: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Rows of several lengths as one (p, B) array, filled up with zeros."""
    stacked = np.zeros(shape, dtype=column[0].dtype)
    for row, values in enumerate(column):
        stacked[row, : len(values)] = values
    return stacked
