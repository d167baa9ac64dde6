"""The executor of split learning: clients hold the first layers and train them with the server step by step.

Legend: d parameters of the clients' part, B samples of a mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache, partial
from itertools import islice
from threading import local as thread_local
from typing import TYPE_CHECKING

from ..stateful import copy_containers
from ..types import Delivery, Reply, Work
from .executors import one_core_threads
from .local import Descent, LocalTraining, clip
from .samples import Samples

if TYPE_CHECKING:
    from torch import Tensor


class _SplitClient:
    """A client in flight, between two stages of its work. The forward pass of the last stage is not saved."""

    def __init__(self, work: Work, start_d: Tensor, descent: Descent, samples: Iterator[tuple[Tensor, Tensor]]):
        self.work, self.start_d, self.descent, self.samples = work, start_d, descent, samples
        self.total: Tensor | None = None  # of the losses
        self.back: Callable[[Tensor], Tensor] | None = None  # waits for the reply
        self.finish_stage: Callable[[], Delivery]  # waits for the delivery, or computes it once


class SplitExecutor:
    """The executor of runs that cut the model (simulation.dispatches.StagedExecutor).

    A stage is a step with the server's reply to the last message, then the forward pass of the next mini-batch. All
    inputs of a stage are known when it begins, and it changes its own client only, so the order of stages changes no
    bit. A stage is started at once in a background thread of one core, or without threads computed at its delivery.

    part     the clients' part of the model (models.parts.NetworkPart or CompiledPart)
    d        its parameters
    samples  source of mini-batches;  local  local training, for its steps
    workers  threads; 0: none
    """

    memories = None

    def __init__(self, part, d: int, local: LocalTraining, samples: Samples, workers: int):
        self.part, self.d, self.local, self.samples = part, d, local, samples
        self._clients: dict[int, _SplitClient] = {}  # in flight, by number
        self._pool = one_core_threads(workers) if workers else None
        self._thread = thread_local()

    def dispatch(self, work: Work, model_d: Tensor) -> None:
        """Begin work with the clients' part of the (d,) model or of a longer one."""
        client = self._clients[work.client] = self._create_client(work, model_d[: self.d].clone())
        self._begin(client, partial(self._forward, client))

    def start_next_stage(self, work: Work, reply: Reply) -> None:
        client = self._clients[work.client]
        client.finish_stage()  # of a loaded client it may not be computed yet
        client.work = work
        client.total = reply.loss.clone() if client.total is None else client.total + reply.loss
        self._begin(client, partial(self._take_step, client, reply.gradient))

    def deliver(self, work: Work) -> Delivery:
        delivery = self._clients[work.client].finish_stage()
        if work.is_last_stage:
            self.discard(work)
        return delivery

    def discard(self, work: Work) -> None:
        del self._clients.pop(work.client).finish_stage  # it refers to the client, which would then outlive its work

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _begin(self, client: _SplitClient, compute: Callable[[], Delivery]) -> None:
        client.finish_stage = cache(compute) if self._pool is None else self._pool.submit(compute).result

    # -- computing, in any thread --------------------------------------------------------------------------------------

    def _create_client(self, work: Work, start_d: Tensor) -> _SplitClient:
        return _SplitClient(
            work, start_d, Descent(self.local.config, start_d, self.local.lr(work)), self.samples.steps(work)
        )

    def _take_step(self, client: _SplitClient, gradient: Tensor) -> Delivery:
        assert client.back is not None
        step_d = client.back(gradient)
        client.back = None
        if (norm := self.local.config.clip) is not None:
            clip(step_d, norm)
        client.descent.take(step_d)
        return self._forward(client)

    def _forward(self, client: _SplitClient) -> Delivery:
        """Return the delivery of the stage, after its step."""
        work, descent = client.work, client.descent
        if work.is_last_stage:
            assert client.total is not None
            return Delivery(descent.w - client.start_d, client.total / work.local_steps, client.start_d)
        if not hasattr(self._thread, "part"):
            self._thread.part = self.part.clone_for_thread()
        x, y = next(client.samples)
        activations, client.back = self._thread.part.forward(descent.w, x)
        return Delivery(activations=activations, labels=y)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        """Wait for the stages that were started. Their forward passes are repeated when the state is loaded."""
        tasks = []
        for client in self._clients.values():
            client.finish_stage()
            w_d, velocity_d = client.descent.w.clone(), client.descent.velocity
            state = {"start_d": client.start_d, "w_d": w_d, "total": client.total, "work": asdict(client.work)}
            tasks.append(state | {"velocity_d": None if velocity_d is None else velocity_d.clone()})
        return {"tasks": tasks}

    def load_state_dict(self, state: dict, model_d: Tensor, in_flight: list[Work]) -> None:
        """Continue on the device of ``model_d``. ``in_flight`` is a part of the saved work."""
        for saved in copy_containers(state["tasks"], model_d.device):
            client = self._create_client(Work(**saved["work"]), saved["start_d"])
            client.descent.w.copy_(saved["w_d"])
            client.descent.velocity, client.total = saved["velocity_d"], saved["total"]
            client.samples = islice(client.samples, client.work.stage, None)
            self._clients[client.work.client] = client
            self._begin(client, partial(self._forward, client))
