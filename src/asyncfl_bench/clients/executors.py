"""Computers of pieces of work one by one, in one thread or in several.

Legend: d parameters, p pieces of work computed together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from ..randomness import Streams
from ..types import Work
from .local import LocalTraining
from .queue import ComputedUpload, Computer
from .samples import Batches, Samples
from .versions import Blocks

if TYPE_CHECKING:
    import torch

    from .queue import PendingUploads, Start


class SequentialComputer(Computer):
    """One piece of work after another, each computed at its delivery.

    task      data on the device and the model (models.task.Task)
    local     local training of a client;  batches  its mini-batches
    statistics_rate  step of the server's batch-norm statistics towards those of each delivered upload
    network   network for gradients: kernels.native.NativeNetwork, in any number of threads, or
              kernels.graphed.GraphedNetwork; None: the task's own
    reports   uploads have the local model's outputs on the server's samples (``task.server``)
    """

    def __init__(
        self,
        task,
        local: LocalTraining,
        batches: Batches,
        streams: Streams,
        *,
        augment: bool = False,
        statistics_rate: float = 0.1,
        network=None,
        reports: bool = False,
    ):
        self.task, self.local, self.batches = task, local, batches
        self._network, self.reports = network, reports
        self.statistics_rate = statistics_rate
        self._augment = streams.augment if augment else None
        self.samples = Samples(task, batches, self._augment)
        self._bias_nc: torch.Tensor | None = None  # is added to the logits of each client's loss
        if tau := local.config.logit_adjustment:
            self._bias_nc = task.from_numpy(task.clients.log_shares(tau).astype(np.float32))

    def begin(self, pieces: list[Work], start: Start, out_pd: torch.Tensor, blocks: Blocks) -> PendingUploads:
        """Begin as ``queue.Computer`` says."""
        network = self._network or self.task.flat
        uploads = [self._compute_one(work, start, out_d, network) for work, out_d in zip(pieces, out_pd, strict=True)]
        return lambda: uploads

    def workspace(self, pieces: list[Work]) -> int:
        """Return the rows of d floats in the workspace of ``begin``. Sorts ``pieces`` as ``begin`` does."""
        return 0

    def take_statistics(self, statistics: torch.Tensor | None) -> None:
        if statistics is not None:
            flat = self.task.flat
            flat.load_statistics(flat.statistics().lerp(statistics, self.statistics_rate))

    def vectors(self, local_steps: int) -> int:
        own = 0 if self._network is None else self._network.vectors
        return 1 + own + self.local.vectors(local_steps)  # the gradient in the network's own tensors

    def activations(self, b: int) -> int:
        """Return the bytes for computing besides vectors, with mini-batches of at most b samples."""
        compiled = self._network is not None and self._network.reads_in_place
        return self._network.step_bytes(b) if compiled else self.task.step_bytes(b)

    def _compute_one(self, work: Work, start: Start, out_d: torch.Tensor, network) -> ComputedUpload:
        """Write the upload of one piece of work, step by step."""
        start_d, center_d, shift_d = start(work)
        if not self.batches.sample_count(work.client):  # an empty client has learned nothing
            out_d.zero_()
            return ComputedUpload(out_d.new_zeros(()), None, self._outputs(work, start_d, out_d, network))
        total: torch.Tensor | None = None
        flat, read = self.task.flat, None  # read: models.flat.SelectedRows if only these rows need a gradient
        if flat.embedding is not None and self.local.is_linear_without_gradients(center_d, shift_d):
            read = flat.select_rows(*self.samples.load_distinct(work), self._bias(work))
        of_samples = self._of_samples(work, network) if read is None else read.gradient

        def gradient(w_d, step, into_d):
            nonlocal total
            loss = of_samples(w_d, into_d)
            total = loss if total is None else total + loss

        statistics = None
        if network.has_statistics:
            servers = network.statistics()
            network.reset_statistics()
        try:
            self._upload(work, read, gradient, start_d, out_d, center_d, shift_d)
            outputs_uc = self._outputs(work, start_d, out_d, network)  # by the client's own statistics
        finally:
            if network.has_statistics:
                statistics = network.statistics()
                network.load_statistics(servers)
        assert total is not None
        return ComputedUpload(total if work.local_steps == 1 else total / work.local_steps, statistics, outputs_uc)

    def _upload(self, work: Work, read, gradient, start_d, out_d, *terms) -> None:
        """Write the upload. read: a smaller model, of the embedding's rows that the samples use, or None"""
        steps, lr = work.local_steps, self.local.lr(work)
        if read is None:
            self.local.upload(start_d, gradient, steps, out_d, lr, *terms)
            return
        start_s = read.select_rows(start_d)
        terms_s = [None if vector_d is None else read.select_rows(vector_d) for vector_d in terms]
        upload_s = start_s.new_empty(start_s.shape)
        self.local.upload(start_s, gradient, steps, upload_s, lr, *terms_s)
        self.local.write_upload_of_zero_gradients(start_d, steps, out_d, lr, *terms)
        read.write_rows(upload_s, out_d)

    def _outputs(self, work: Work, start_d: torch.Tensor, upload_d: torch.Tensor, network) -> torch.Tensor | None:
        """Return (u, C) outputs of the local model; None without ``reports``."""
        if not self.reports:
            return None
        return self.task.server.outputs(network, self.local.model(start_d, upload_d, self.local.lr(work)))

    def _of_samples(self, work: Work, network) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return a function of (w_d, out_d) that writes the next mini-batch's gradient and returns the loss."""
        bias_c = self._bias(work)
        if network.reads_in_place:
            batches = self.samples.batches(work)
            return lambda w_d, into_d: self.task.gradient_in_place(network, w_d, into_d, *next(batches), bias_c)
        samples = self.samples.steps(work)
        return lambda w_d, into_d: network.gradient(w_d, *next(samples), into_d, bias_c)

    def _bias(self, work: Work) -> torch.Tensor | None:
        """Return (C,) numbers to add to the logits of the client's loss; None without logit adjustment."""
        return None if self._bias_nc is None else self._bias_nc[work.client]

    def state_dict(self) -> dict:
        """Return the server's running statistics, if the model has any."""
        return {"statistics": self.task.flat.statistics()} if self.task.flat.has_statistics else {}

    def load_state_dict(self, state: dict) -> None:
        if self.task.flat.has_statistics:
            self.task.flat.load_statistics(state["statistics"])


class ThreadsComputer(SequentialComputer):
    """Several pieces of work at once, each in a thread with one core. The bits are those of sequential computing.

    Splitting each convolution over the cores would be slower: cores would wait for each other at each layer.
    """

    def __init__(self, *args, workers: int, **options):
        super().__init__(*args, **options)
        self.most_pieces = 2 * workers
        self.prefetch_below = workers
        self._pool = one_core_threads(workers)
        self._thread = threading.local()

    def begin(self, pieces, start, out_pd, blocks):
        jobs = [
            self._pool.submit(self._in_thread, work, start, out_d) for work, out_d in zip(pieces, out_pd, strict=True)
        ]
        return lambda: [job.result() for job in jobs]

    def _in_thread(self, work, start, out_d):
        if not hasattr(self._thread, "network"):
            self._thread.network = self._network or self.task.flat.clone_for_thread()
        return self._compute_one(work, start, out_d, self._thread.network)

    def vectors(self, local_steps: int) -> int:
        return (2 + self.local.vectors(local_steps)) * self.prefetch_below  # network and gradient of each thread

    def activations(self, b: int) -> int:
        return super().activations(b) * self.prefetch_below

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def one_core_threads(workers: int) -> ThreadPoolExecutor:
    """Return a pool of threads that use one core each."""
    import torch

    return ThreadPoolExecutor(workers, "afl", initializer=lambda: torch.set_num_threads(1))
