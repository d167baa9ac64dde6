"""Computers of several pieces of work at once, on stacked models.

Legend: d parameters, p pieces of work computed together, B samples of a mini-batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..storage import send
from ..types import Work
from .executors import SequentialComputer, one_core_threads
from .queue import ComputedUpload
from .versions import Blocks

if TYPE_CHECKING:
    import torch

    from .queue import PendingUploads, Start

    # (p,) mean losses, and of each piece of work the outputs or None
    Computed = tuple[torch.Tensor, list[torch.Tensor | None]]

BLOCK_BYTES = 2**21  # of the uploads of one stack: about a core's cache
MAX_MODELS = 64  # models in a stack
# from this number of steps the formulas for one model are faster than a stack of one, from four times as many faster
# than a stack of several
SOLO_MIN_STEPS = 8
# with fewer samples of a mini-batch times d, a step is mostly overhead, which a stack of STACK_MIN_MODELS shares
SMALL_STEP = 2**16
STACK_MIN_MODELS = 16
PARAMETER_STEPS = 2**26  # steps times d of a wave: about a quarter of a second


def models_per_stack(d: int) -> int:
    """Return the number of models of d parameters in a stack."""
    return max(4, min(MAX_MODELS, BLOCK_BYTES // (4 * d)))


class BatchedComputer(SequentialComputer):
    """Stacked models on a CPU: the work of p clients as one computation on (p, d), in a part for each core.

    For networks that ``StackedNetwork`` supports; results equal sequential ones up to rounding. A perceptron's work of
    many steps is computed piece by piece with formulas for one model (kernels/perceptron.py), unless steps are small
    and many pieces have the same number of steps.
    """

    def __init__(self, *args, workers: int = 1, **options):
        super().__init__(*args, **options)
        flat = self.task.flat
        self._stack_models = models_per_stack(flat.d)
        self.most_pieces = self._stack_models * workers
        self.threads_used = workers
        self.most_steps = max(self.most_pieces, PARAMETER_STEPS // flat.d)
        self._has_solo = flat.perceptron is not None
        self._pool = one_core_threads(workers) if workers > 1 else None
        self._thread = threading.local()  # each thread's workspace
        self.prefetch_below = self.most_pieces // 2 if self._pool else 0

    def workspace(self, pieces: list[Work]) -> int:
        return self._count_stacked(pieces, self._parts(pieces))

    def _count_stacked(self, pieces: list[Work], parts: list[slice]) -> int:
        return sum(part.stop - part.start for part in parts if not self._is_solo(pieces[part]))

    def _is_solo(self, pieces: list[Work]) -> bool:
        return self._has_solo and len(pieces) == 1 and pieces[0].local_steps >= SOLO_MIN_STEPS

    def _parts(self, pieces: list[Work]) -> list[slice]:
        """Return slices of pieces with the same number of steps, each for one computation. Sorts ``pieces``."""
        by_steps: dict[int, list[Work]] = {}
        for work in pieces:
            by_steps.setdefault(work.local_steps, []).append(work)
        pieces[:] = [work for same in by_steps.values() for work in same]
        parts, first = [], 0
        for steps, same in by_steps.items():
            size = -(-len(same) // self.threads_used)
            shared = size >= STACK_MIN_MODELS and same[0].samples * self.task.flat.d < SMALL_STEP * steps
            if self._has_solo and not shared and steps >= SOLO_MIN_STEPS * min(size, 4):
                size = 1
            last = first + len(same)
            parts += [slice(start, min(start + size, last)) for start in range(first, last, size)]
            first = last
        return parts

    def begin(self, pieces: list[Work], start: Start, out_pd: torch.Tensor, blocks: Blocks) -> PendingUploads:
        pending, parts = [], self._parts(pieces)
        # each wave has its workspace: two may be computed at once
        workspace = blocks.take(count, out_pd[0]) if (count := self._count_stacked(pieces, parts)) else None
        first = 0
        for part in parts:
            if self._is_solo(pieces[part]):
                pending.append(self._submit(self._compute_solo, pieces[part.start], start, out_pd[part]))
                continue
            assert workspace is not None
            start_pd = workspace.rows_pd[first : first + part.stop - part.start]
            first += len(start_pd)
            drawn = [self.samples.draw(work) for work in pieces[part]]
            pending.append(self._submit(self._compute_stack, pieces[part], start, drawn, start_pd, out_pd[part]))

        def finish() -> list[ComputedUpload]:
            computed = [wait() for wait in pending]
            if workspace is not None:
                workspace.waiting = 1
                blocks.release_row(workspace)
            return [
                ComputedUpload(loss, None, outputs_uc)
                for loss_p, outputs in computed
                for loss, outputs_uc in zip(loss_p.unbind(), outputs, strict=True)
            ]

        return finish

    def _submit(self, compute: Callable, *arguments) -> Callable[[], Computed]:
        """Begin computing. Return a function that waits for the result."""
        if self._pool is not None:
            return self._pool.submit(compute, *arguments).result
        result = compute(*arguments)
        return lambda: result

    def _reports(self, pieces: list[Work], start_pd, out_pd: torch.Tensor) -> list[torch.Tensor | None]:
        """Return (u, C) outputs of each local model; None without ``reports``."""
        if self.reports and not hasattr(self._thread, "network"):
            flat = self.task.flat
            self._thread.network = flat.perceptron or flat.clone_for_thread()
        rows = zip(pieces, start_pd, out_pd, strict=True)
        return [
            self._outputs(work, start_d, upload_d, getattr(self._thread, "network", None))
            for work, start_d, upload_d in rows
        ]

    def _compute_solo(self, work: Work, start: Start, out_pd: torch.Tensor) -> Computed:
        """Write the (1, d) upload. Return the (1,) mean loss and the outputs."""
        received = start(work)
        if not self.batches.sample_count(work.client):  # an empty client has learned nothing
            out_pd.zero_()
            return out_pd.new_zeros(1), self._reports([work], received[:1], out_pd)
        if not hasattr(self._thread, "perceptron"):
            self._thread.perceptron = self.task.flat.perceptron.for_single_model()
        perceptron = self._thread.perceptron
        samples = (sample for chunk in self.samples.chunks(work) for sample in perceptron.samples(*chunk))
        loss, bias = 0.0, self._bias(work)
        bias_c = None if bias is None else bias.numpy()

        def gradient(w_d, step, into_d):
            nonlocal loss
            loss += perceptron.gradient(w_d, next(samples), into_d, bias_c)

        start_d, *terms = (None if vector_d is None else perceptron.pack(vector_d) for vector_d in received)
        packed_d = out_pd.new_empty(out_pd.shape[1])
        with np.errstate(all="ignore"):  # a model may diverge
            self.local.upload(start_d, gradient, work.local_steps, packed_d, self.local.lr(work), *terms)
        perceptron.unpack(packed_d, out_pd[0])
        return out_pd.new_tensor([loss / work.local_steps]), self._reports([work], received[:1], out_pd)

    def _compute_stack(
        self, pieces: list[Work], start: Start, drawn: list, start_pd: torch.Tensor, out_pd: torch.Tensor
    ) -> Computed:
        """Write (p, d) uploads. Return (p,) mean losses and the outputs."""
        import torch

        steps = pieces[0].local_steps
        terms = []
        for work, row_d in zip(pieces, start_pd, strict=True):
            start_d, *terms_d = start(work)
            row_d.copy_(start_d)
            terms.append(terms_d)
        # of all clients or of none
        center_pd, shift_pd = (
            None if vectors[0] is None else torch.stack(vectors) for vectors in zip(*terms, strict=True)
        )
        device, bias_pc = self.task.device, None
        if self._bias_nc is not None:
            bias_pc = self._bias_nc.index_select(0, send([work.client for work in pieces], device))
        total_p: torch.Tensor | None = None

        def gradient(w_pd, step, into_pd):
            nonlocal total_p
            batches, cuts = zip(*map(next, drawn), strict=True)
            index_pb, weight_pb = _pad_batches(batches)
            augment = None
            if self._augment is not None:
                augment = tuple(_pad_rows(column, index_pb.shape) for column in zip(*cuts, strict=True))
            bound = self._bind(index_pb.shape, w_pd)
            x_pb, y_pb = self.task.batch(index_pb, augment, None if bound is None else bound.inputs)
            loss_p = self.task.flat.stack.gradient(w_pd, x_pb, y_pb, send(weight_pb, device), into_pd, bias_pc, bound)
            total_p = loss_p if total_p is None else total_p + loss_p

        lrs = [self.local.lr(work) for work in pieces]
        lr = lrs[0] if len(set(lrs)) == 1 else send(np.array(lrs, np.float32), device).unsqueeze(1)
        self.local.upload(start_pd, gradient, steps, out_pd, lr, center_pd, shift_pd)
        for row, work in enumerate(pieces):
            if not self.batches.sample_count(work.client):
                out_pd[row].zero_()
        assert total_p is not None
        return total_p if steps == 1 else total_p / steps, self._reports(pieces, start_pd, out_pd)

    def _bind(self, shape: tuple[int, ...], w_pd: torch.Tensor) -> Any:
        """Return this thread's memory for mini-batches of shape (p, B); see ``StackedNetwork.bind``."""
        p, b = shape
        most, last = getattr(self._thread, "bound_shape", (0, 0))
        if p > most or b != last:
            self._thread.bound_shape = most, _ = max(p, self._stack_models), b
            self._thread.bound = self.task.flat.stack.bind(most, b, self.task.shape, w_pd)
        return None if self._thread.bound is None else self._thread.bound.shrink_to(p)

    def vectors(self, local_steps: int) -> int:
        return self.local.vectors(local_steps) * self.most_pieces

    def activations(self, b: int) -> int:
        return self.task.stacked_step_bytes(b, self.most_pieces)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _pad_batches(batches: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return (p, B) sample indices and weights 1/len of each row; short rows have sample 0 with weight 0."""
    lengths = [len(batch) for batch in batches]
    index_pb = np.zeros((len(batches), max(1, *lengths)), dtype=np.int64)
    weight_pb = np.zeros(index_pb.shape, dtype=np.float32)
    for row, (batch, length) in enumerate(zip(batches, lengths, strict=True)):
        if length:
            index_pb[row, :length] = batch
            weight_pb[row, :length] = 1 / length
    return index_pb, weight_pb


def _pad_rows(column: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Return rows of several lengths as one (p, B) array, padded with zeros."""
    stacked = np.zeros(shape, dtype=column[0].dtype)
    for row, values in enumerate(column):
        stacked[row, : len(values)] = values
    return stacked
