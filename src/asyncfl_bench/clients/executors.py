"""Computing dispatched work, when its upload is asked for.

Between dispatch and arrival nothing can change what a client computes, so the time and the company of computing are
free to choose. When the next upload to arrive has not been computed, an executor computes it together with those that
are due after it; it keeps what is not delivered yet. How changes the speed, never the arrivals, the mini-batches or,
beyond rounding, the results.

Legend: d parameters, p pieces of work computed together, B samples of a mini-batch.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..randomness import Streams
from ..types import Delivery, Work
from .batches import Batches
from .local import LocalTraining
from .samples import Samples
from .versions import Block, Blocks, ClientMemories, ClientSums, ModelVersions

if TYPE_CHECKING:
    import torch


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
    at_once = 1  # of them in as many threads
    steps_together = math.inf  # steps of them, more only where fewer pieces would leave a thread without work
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
        self.samples = Samples(task, batches, self._augment)
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

    def deliver(self, work: Work) -> Delivery:
        """The work's upload, computed now if it has not been yet."""
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
        return Delivery(vector_d, result.loss, base_d)

    def vectors(self, local_steps: int) -> int:
        """Vectors of d floats in use while computing, versions of the model and uploads left out."""
        return 1 + self.local.vectors(local_steps)  # the gradient in the network's own tensors

    def starts(self, works: list[Work]) -> int:
        """Of how many of these pieces of work the model is copied into a block for computing."""
        return 0

    def close(self) -> None:
        """Ends threads, if any."""

    # -- computing ---------------------------------------------------------------------------------------------------

    def _next_works(self, wanted: Work | None = None) -> list[Work]:
        """``wanted`` and the pending work that is due next, ``together`` pieces in all; they are pending no more."""
        works = [] if wanted is None else [self._pending.pop(wanted.sequence)]
        steps = 0 if wanted is None else wanted.local_steps
        while self._order and len(works) < self.together and (steps < self.steps_together or len(works) < self.at_once):
            sequence = heapq.heappop(self._order)[1]
            if (work := self._pending.pop(sequence, None)) is not None:  # discarded work is no longer there
                works.append(work)
                steps += work.local_steps
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
        answers = [self._one(work, block.rows_pd[row], flat) for row, work in enumerate(works)]
        return lambda: answers

    def _one(self, work: Work, out_d: torch.Tensor, flat) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Writes the upload, step by step with automatic differentiation; (mean loss, statistics)."""
        if not self.batches.held(work.client):  # an empty client has nothing to say
            out_d.zero_()
            return out_d.new_zeros(()), None
        losses = []
        samples = self.samples.steps(work)

        def gradient(w_d, step, into_d):
            losses.append(flat.gradient(w_d, *next(samples), into_d))

        statistics = None
        if flat.has_statistics:
            servers = flat.statistics()
            flat.reset_statistics()
        start_d, anchor_d = self._start(work)
        self.local.upload(start_d, gradient, work.local_steps, out_d, self.local.lr(work.count), anchor_d)
        if flat.has_statistics:
            statistics = flat.statistics()
            flat.load_statistics(servers)
        return losses[0] if len(losses) == 1 else sum(losses) / len(losses), statistics

    def _start(self, work: Work) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(d,) the model the work starts from, and (d,) what it is pulled to if that is another one."""
        start_d = self.versions[work.iteration]
        return start_d, None if self.memories is None else self.memories.anchor(work.client, start_d)

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
        self._pool = one_core_threads(workers)
        self._own = threading.local()

    def _compute(self, works, block):
        jobs = [self._pool.submit(self._in_thread, work, block.rows_pd[row]) for row, work in enumerate(works)]
        return lambda: [job.result() for job in jobs]

    def _in_thread(self, work, out_d):
        if not hasattr(self._own, "flat"):
            self._own.flat = self.task.flat.twin()
        return self._one(work, out_d, self._own.flat)

    def vectors(self, local_steps: int) -> int:
        return (2 + self.local.vectors(local_steps)) * self.ahead  # each thread's: its network, its gradient

    def close(self) -> None:
        self._pool.shutdown()


def one_core_threads(workers: int) -> ThreadPoolExecutor:
    """A pool of threads that use one core each."""
    import torch

    return ThreadPoolExecutor(workers, "afl", initializer=lambda: torch.set_num_threads(1))
