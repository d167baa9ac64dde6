"""Clients that hold the first layers of the model, and train them with the server mini-batch by mini-batch.

Legend: d parameters of the clients' part, B samples of a mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
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


class _Task:
    """What a client keeps between two stages: enough to be saved once the forward pass of the last one is left out."""

    def __init__(self, work: Work, start_d: Tensor, descent: Descent, samples: Iterator[tuple[Tensor, Tensor]]):
        self.work, self.start_d, self.descent, self.samples = work, start_d, descent, samples
        self.total: Tensor | None = None  # of the losses
        self.back: Callable[[Tensor], Tensor] | None = None  # waits for the answer
        self.stage: Future[Delivery] | _Later


class _Later:
    """What is computed when it is asked for."""

    def __init__(self, compute: Callable[[], Delivery]):
        self._compute: Callable[[], Delivery] | None = compute
        self._delivery: Delivery | None = None

    def result(self) -> Delivery:
        if self._compute is not None:
            self._delivery = self._compute()
            self._compute = None  # it refers to the task, which would then outlive its end
        assert self._delivery is not None
        return self._delivery


class SplitExecutor:
    """The executor of runs that cut the model (simulation.dispatches.StagedExecutor).

    A stage is a step with the server's answer to the last message, then the forward pass of the next mini-batch. All
    it needs is known when it begins, and it touches its client's task alone, so it has the same bits in any order: it
    is started at once in the background, in one of several threads of one core each, or computed when it is asked for.

    part     the clients' part of the model (models.parts.NetworkPart or CompiledPart)
    d        its parameters
    samples  where mini-batches come from;  local  what a client's step is
    workers  threads; 0: none
    """

    memories = None

    def __init__(self, part, d: int, local: LocalTraining, samples: Samples, workers: int):
        self.part, self.d, self.local, self.samples = part, d, local, samples
        self._tasks: dict[int, _Task] = {}  # by client, those in flight
        self._pool = one_core_threads(workers) if workers else None
        self._own = thread_local()

    def dispatch(self, work: Work, model_d: Tensor) -> None:
        """Begin a task with the clients' part of the (d,) model or of a longer one."""
        task = self._tasks[work.client] = self._task(work, model_d[: self.d].clone())
        self._begin(task, partial(self._forward, task))

    def start_next_stage(self, work: Work, reply: Reply) -> None:
        task = self._tasks[work.client]
        task.stage.result()  # of a task that was loaded it need not be there yet
        task.work = work
        task.total = reply.loss.clone() if task.total is None else task.total + reply.loss
        self._begin(task, partial(self._next, task, reply.gradient))

    def deliver(self, work: Work) -> Delivery:
        delivery = self._tasks[work.client].stage.result()
        if work.ends_task:
            del self._tasks[work.client]
        return delivery

    def discard(self, work: Work) -> None:
        del self._tasks[work.client]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _begin(self, task: _Task, compute: Callable[[], Delivery]) -> None:
        task.stage = _Later(compute) if self._pool is None else self._pool.submit(compute)

    # -- computing, in any thread --------------------------------------------------------------------------------------

    def _task(self, work: Work, start_d: Tensor) -> _Task:
        return _Task(work, start_d, Descent(self.local.config, start_d, self.local.lr(work)), self.samples.steps(work))

    def _next(self, task: _Task, gradient: Tensor) -> Delivery:
        assert task.back is not None
        step_d = task.back(gradient)
        task.back = None
        if (norm := self.local.config.clip) is not None:
            clip(step_d, norm)
        task.descent.take(step_d)
        return self._forward(task)

    def _forward(self, task: _Task) -> Delivery:
        """What the stage delivers, after its step."""
        work, descent = task.work, task.descent
        if work.ends_task:
            assert task.total is not None
            return Delivery(descent.w - task.start_d, task.total / work.local_steps, task.start_d)
        if not hasattr(self._own, "part"):
            self._own.part = self.part.clone_for_thread()
        x, y = next(task.samples)
        activations, task.back = self._own.part.forward(descent.w, x)
        return Delivery(activations=activations, labels=y)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        """Wait for the work that was started. The forward pass of each last stage is computed again when loaded."""
        return {"tasks": [self._state_of(task) for task in self._tasks.values()]}

    def _state_of(self, task: _Task) -> dict:
        task.stage.result()
        descent = task.descent
        state = {"start_d": task.start_d, "w_d": descent.w.clone(), "total": task.total, "work": asdict(task.work)}
        return state | {"velocity_d": None if descent.velocity is None else descent.velocity.clone()}

    def load_state_dict(self, state: dict, model_d: Tensor, in_flight: list[Work]) -> None:
        """``model_d`` says on which device; ``in_flight`` is a part of what was saved."""
        for saved in copy_containers(state["tasks"], model_d.device):
            task = self._task(Work(**saved["work"]), saved["start_d"])
            task.descent.w.copy_(saved["w_d"])
            task.descent.velocity, task.total = saved["velocity_d"], saved["total"]
            task.samples = islice(task.samples, task.work.stage, None)
            self._tasks[task.work.client] = task
            self._begin(task, partial(self._forward, task))
