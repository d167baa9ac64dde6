"""The computer of all ready work in stacks of a fixed number of models, on a GPU.

All stacks have one shape; rows without work have weight 0. So one captured graph takes a step of all models of a stack,
and the bits of an upload do not depend on the other work in its stack. Work of different lengths shares a stack, the
longest first. A row whose work has ended is still computed, and its result is not used.

Legend: d parameters, p pieces of work of a wave, R rows of a stack, B samples of a mini-batch, S steps, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import first_line
from ..storage import send
from ..types import Work
from .executors import SequentialComputer
from .local import Descent
from .queue import ComputedUpload
from .versions import Blocks

if TYPE_CHECKING:
    import torch

    from .queue import PendingUploads, Start

    Received = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
    # (compute, the memory that it uses): compute as a graph, with ``replay()``; see kernels.graphed.capture_checked
    Capture = Callable[[Callable[[], None], Sequence[torch.Tensor]], Any]

# constants, as bits must depend neither on free memory nor on the card
ROWS = 16  # models of a stack; more are hardly faster
SAMPLES = 2**12  # of all mini-batches of a stack, so that stacks of large mini-batches have fewer rows
WAVE = 1024  # pieces of work in a wave
WAVE_STEPS = 2**12  # steps of a wave, whose samples are all drawn and sent before the first step


def rows_of_stack(b: int) -> int:
    """Return the number of models in a stack, with mini-batches of at most b samples."""
    return max(1, min(ROWS, SAMPLES // b))


@dataclass
class StackRow:
    """A piece of work in a stack.

    computer  computer of its run
    received  the model that it starts from, proximal center and shift (see queue.Start)
    upload_d  memory for its upload
    loss      mean loss, once computed
    """

    computer: StackComputer
    work: Work
    received: Received
    upload_d: torch.Tensor
    loss: torch.Tensor | None = None


class Stacks:
    """Computes pieces of work in stacks of one shape.

    capture  captures the step of a stack
    report   called with the reason, in one line, if the step cannot be captured
    """

    def __init__(self, capture: Capture, report: Callable[[str], None]):
        self._capture, self._report = capture, report
        self._stack: _Stack | None = None

    def compute_rows(self, rows: list[StackRow], raise_if_stopped: Callable[[], None]) -> None:
        """Write uploads and losses of work whose computers have equal ``stack_key``s, the longest first.

        raise_if_stopped  is called before each step
        """
        rows = sorted(rows, key=lambda row: -row.work.local_steps)
        height = rows[0].computer.rows
        parts = [rows[first : first + height] for first in range(0, len(rows), height)]
        for part, steps in zip(parts, _send(parts), strict=True):
            self._compute_stack(part, steps, raise_if_stopped)

    def _compute_stack(
        self, rows: list[StackRow], steps: Sequence[torch.Tensor], raise_if_stopped: Callable[[], None]
    ) -> None:
        """Compute one stack. steps: (R, width) numbers of each step"""
        received, uploads = [row.received for row in rows], [row.upload_d for row in rows]
        if self._stack is None:  # its step is captured on these numbers if possible
            self._stack = _Stack(rows[0].computer, received[0])
            self._stack.load(received)
            try:
                self._stack.capture_step(self._capture, steps[0])
            except RuntimeError as error:
                self._report(first_line(error)[:200])
        stack, left = self._stack, len(rows)
        stack.load(received)
        for done, numbers in enumerate(steps, 1):
            raise_if_stopped()
            stack.take_step(numbers)
            unfinished = sum(row.work.local_steps > done for row in rows[:left])
            if unfinished < left:
                ended = slice(unfinished, left)
                starts = [start_d for start_d, *_ in received[ended]]
                losses = stack.unload(ended, done, starts, uploads[ended])
                for row, loss in zip(rows[ended], losses, strict=True):
                    row.loss = loss
                left = unfinished


def _send(parts: list[list[StackRow]]) -> Iterator[Sequence[torch.Tensor]]:
    """Yield the (R, width) numbers of each step of each stack, on the device after one copy for all."""
    computer, lengths = parts[0][0].computer, [rows[0].work.local_steps for rows in parts]
    numbers = np.zeros((sum(lengths), computer.rows, computer.width), np.int32)
    last = 0
    for rows, length in zip(parts, lengths, strict=True):
        first, last = last, last + length
        for index, row in enumerate(rows):
            row.computer.fill_in(numbers[first:last, index], row.work)
    return (part.unbind() for part in send(numbers, computer.task.device).split(lengths))


class StackComputer(SequentialComputer):
    """Stacked models: one captured graph is a step of R models, from the samples' indices to the changed models.

    For networks that ``StackedNetwork`` supports; results equal sequential ones up to rounding.

    capture, report  see ``Stacks``
    compute_rows     writes uploads and losses; of the run's group, if it has joined one
    """

    most_pieces = WAVE
    most_steps = WAVE_STEPS
    separate_uploads = True

    def __init__(self, *args, capture: Capture, report: Callable[[str], None], **options):
        super().__init__(*args, **options)
        size, most = self.local.config.batch_size, max(1, int(self.task.clients.samples_n.max()))
        self.batch = most if isinstance(size, str) else min(size, most)
        self.rows = rows_of_stack(self.batch)
        self.augments = self._augment is not None
        # numbers of a model in a step: indices, weights and crops of its samples, its client, and its step size
        self.width = (5 if self.augments else 2) * self.batch + 2
        self.build_stacks = partial(Stacks, capture, report)
        stacks = self.build_stacks()
        self.compute_rows: Callable[[list[StackRow]], None] = partial(
            stacks.compute_rows, raise_if_stopped=self.local.raise_if_stopped
        )

    def bias_of(self, client_r: torch.Tensor) -> torch.Tensor | None:
        """Return (R, C) numbers to add to the logits of these clients' losses; None without logit adjustment."""
        return None if self._bias_nc is None else self._bias_nc.index_select(0, client_r)

    def begin(
        self, pieces: list[Work], start: Start, out_pd: Sequence[torch.Tensor] | torch.Tensor, blocks: Blocks
    ) -> PendingUploads:
        rows = [StackRow(self, *row) for row in zip(pieces, map(start, pieces), out_pd, strict=True)]
        self.compute_rows(rows)
        uploads: list[ComputedUpload] = []
        for row in rows:
            if not self.batches.sample_count(row.work.client):  # an empty client has learned nothing
                row.upload_d.zero_()
            outputs_uc = self._outputs(row.work, row.received[0], row.upload_d, self.task.flat)
            assert row.loss is not None
            uploads.append(ComputedUpload(row.loss, None, outputs_uc))
        return lambda: uploads

    @cached_property
    def stack_key(self) -> tuple[object, ...]:
        """Key of runs whose work one graph can compute."""
        task, config = self.task, self.local.config
        step = config if config.optimizer == "adamw" else replace(config, lr=1.0)  # others take each row's step size
        own = id(self) if self._bias_nc is not None else 0  # adjusted logits belong to the clients of one run
        network = str(task.flat.module), str(task.device), task.samples_digest
        return (*network, self.batch, self.width, self.local.upload_kind, str(step), own)

    def fill_in(self, numbers: np.ndarray, work: Work) -> None:
        """Write the work's numbers into zeros (S, width), in the order of ``width``; fractions as float32."""
        b, floats = self.batch, numbers.view(np.float32)
        numbers[:, -2], floats[:, -1] = work.client, self.local.lr(work)
        for step, (batch, cut) in enumerate(self.samples.draw(work)):
            if size := len(batch):
                numbers[step, :size], floats[step, b : b + size] = batch, 1 / size
                for index, column in enumerate(cut or (), 2):
                    numbers[step, index * b : index * b + size] = column

    def vectors(self, local_steps: int) -> int:
        return (1 + self.local.vectors(2)) * self.rows  # all stacks have one shape

    def activations(self, b: int) -> int:
        return self.task.stacked_step_bytes(self.batch, self.rows)


class _Stack:
    """Static memory of R models, and a step of all of them.

    received  of a piece of work, to see whether gradients have a shift
    """

    def __init__(self, computer: StackComputer, received: Received):
        import torch

        task, local, rows, b = computer.task, computer.local, computer.rows, computer.batch
        self._local, self._moves = local, local.upload_kind == "difference"
        start_d, _, shift_d = received
        self._out_rd = start_d.new_zeros((rows, len(start_d)))
        self._numbers = torch.zeros((rows, computer.width), dtype=torch.int32, device=task.device)
        floats = self._numbers.view(torch.float32)
        self._lr_r1 = floats[:, -1:]
        self._descent = Descent(local.config, self._out_rd, self._lr_r1)
        if local.config.momentum and self._moves:
            self._descent.velocity = self._out_rd.clone()
        self._w_rd, self._total_r = self._descent.w, start_d.new_zeros(rows)
        self._center_rd = self._out_rd.clone() if local.config.proximal else None
        self._shift_rd = None if shift_d is None else self._out_rd.clone()
        self._adam: torch.optim.Optimizer | None = None
        index_rb, weight_rb = self._numbers[:, :b], floats[:, b : 2 * b]
        dy_rb, dx_rb, flip_rb = (self._numbers[:, index * b : (index + 1) * b] for index in (2, 3, 4))

        bound = task.flat.stack.bind(rows, b, task.shape, start_d)

        def gradient(w_rd: torch.Tensor, step: int, into_rd: torch.Tensor) -> None:
            augment = (dy_rb, dx_rb, flip_rb > 0) if computer.augments else None
            x_rb, y_rb = task.batch(index_rb, augment, None if bound is None else bound.inputs)
            bias_rc = computer.bias_of(self._numbers[:, -2])
            self._total_r.add_(task.flat.stack.gradient(w_rd, x_rb, y_rb, weight_rb, into_rd, bias_rc, bound))

        self._gradient = local.adjust_gradient(gradient, self._center_rd, self._shift_rd)
        self._step: Callable[[], None] = self.compute

    def capture_step(self, capture: Capture, numbers: torch.Tensor) -> None:
        """Capture a graph for steps, on these numbers. Raises RuntimeError if that is not possible."""
        self._numbers.copy_(numbers)
        memory = [self._numbers, self._w_rd, self._out_rd, self._total_r]
        memory += [self._descent.velocity, self._center_rd, self._shift_rd]
        self._step = capture(self.compute, [part for part in memory if part is not None]).replay

    def load(self, received: list[Received]) -> None:
        """Start work from these models."""
        import torch

        starts, centers, shifts = (list(vectors) for vectors in zip(*received, strict=True))
        for rows_rd, vectors in (self._w_rd, starts), (self._center_rd, centers), (self._shift_rd, shifts):
            if rows_rd is not None:
                filled = [start_d if one is None else one for one, start_d in zip(vectors, starts, strict=True)]
                torch._foreach_copy_(list(rows_rd[: len(filled)].unbind()), filled)
        self._total_r.zero_()
        if self._descent.velocity is not None:
            self._descent.velocity.zero_()
        if self._moves and (config := self._local.config).optimizer == "adamw":
            self._adam = torch.optim.AdamW([self._w_rd], lr=config.lr, weight_decay=config.weight_decay)

    def take_step(self, numbers: torch.Tensor) -> None:
        """Take a step of all models with these samples."""
        self._numbers.copy_(numbers)
        self._step()
        if self._adam is not None:
            self._w_rd.grad = self._out_rd
            self._adam.step()
            self._w_rd.grad = None

    def compute(self) -> None:
        """Compute gradients, and with SGD take the step."""
        self._gradient(self._w_rd, 0, self._out_rd)
        if self._local.config.optimizer == "sgd":
            if self._moves:
                self._descent.take(self._out_rd)
            else:
                self._local.decay(self._w_rd, self._out_rd)

    def unload(
        self, part: slice, steps: int, starts: list[torch.Tensor], uploads: list[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Write the uploads of these rows, whose work has ended after ``steps`` steps. Return their mean losses."""
        import torch

        if not self._moves:
            torch._foreach_copy_(uploads, list(self._out_rd[part].unbind()))
        elif steps == 1 and self._adam is None:  # a difference of two models would be rounded
            torch._foreach_copy_(uploads, list((self._out_rd[part] * -self._lr_r1[part]).unbind()))
        else:
            torch._foreach_copy_(uploads, list(self._w_rd[part].unbind()))
            torch._foreach_sub_(uploads, starts)
        return (self._total_r[part] / steps).unbind()
