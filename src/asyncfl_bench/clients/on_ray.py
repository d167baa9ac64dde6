"""A computer of pieces of work on a Ray cluster, one core for each piece, with the bits of threads.

Nodes need only the package: data and model are sent once.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, Stopped
from ..files import say
from ..types import Work
from .executors import SequentialComputer
from .queue import ComputedUpload
from .versions import Blocks

if TYPE_CHECKING:
    import numpy as np

SECONDS_BETWEEN_LOOKS = 0.2  # at a request to stop
SECONDS_TO_ANSWER = 5.0


class RayComputer(SequentialComputer):
    """Each piece of work is a task of Ray, which Ray repeats elsewhere if its process or node is lost.

    cores  of the Ray that is started on this machine if RAY_ADDRESS is not set
    """

    def __init__(self, *args, cores: int, **options):
        super().__init__(*args, **options)
        self._plain = SequentialComputer(*args, **options)
        self._sent = None  # the computer in Ray's object store
        self._is_started = _connect(cores)
        import ray

        workers = max(1, int(ray.cluster_resources().get("CPU", 0)))  # 0: a cluster that grows on demand
        say(f"Ray: {workers} cores, nodes: {sum(node['Alive'] for node in ray.nodes())}")
        self.most_pieces, self.prefetch_below = 2 * workers, workers
        self._compute = ray.remote(num_cpus=1)(compute)

    def begin(self, pieces, start, out_pd, blocks):
        import ray
        import torch

        if self._sent is None:
            self._sent = ray.put(_pack(self._plain))
        models, jobs = {}, []  # references to versions of the model and to results
        for work in pieces:
            model_d, *terms = start(work)
            if work.iteration not in models:
                models[work.iteration] = ray.put(model_d.numpy())
            terms = [None if vector_d is None else vector_d.numpy() for vector_d in terms]
            jobs.append(self._compute.remote([self._sent], work, models[work.iteration], *terms))

        def finish() -> list[ComputedUpload]:
            pending = jobs
            while pending:
                _, pending = ray.wait(pending, num_returns=len(pending), timeout=SECONDS_BETWEEN_LOOKS)
                if pending and self.local.stop:
                    raise Stopped
            uploads = []
            for job, out_d in zip(jobs, out_pd, strict=True):
                try:
                    vector, loss, *others = ray.get(job)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                out_d.copy_(torch.tensor(vector))
                uploads.append(ComputedUpload(torch.tensor(loss), *map(_tensor, others)))
            return uploads

        return finish

    def vectors(self, local_steps: int) -> int:
        return 2 * self.most_pieces  # models and uploads in Ray's object store

    def close(self) -> None:
        import ray

        self._sent = None
        if self._is_started:
            ray.shutdown()


def _connect(cores: int) -> bool:
    """Join the cluster at RAY_ADDRESS, or start Ray on this machine. Return False if Ray was connected before.

    Raises ConfigError. The address is tested first, because Ray would try it for more than five minutes.
    """
    try:
        from ray import init, is_initialized  # names: a folder called ray can be imported, too
    except ImportError:
        raise ConfigError("executor", "ray", "needs pip install 'asyncfl_bench[ray]'") from None
    if is_initialized():
        return False
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    handler = signal.getsignal(signal.SIGTERM)
    if address := os.environ.get("RAY_ADDRESS"):
        host, _, port = address.rpartition("/")[2].rpartition(":")
        try:
            if host:
                socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()
            init(**quiet)
        except (OSError, ValueError) as error:
            allowed = "start Ray there, or unset it to use this machine"
            raise ConfigError("RAY_ADDRESS", address, f"no cluster answers ({error}); {allowed}") from None
    else:
        with binding_to_loopback():
            init("local", num_cpus=cores, include_dashboard=False, **quiet)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's own ends the process at once
    return True


@contextmanager
def binding_to_loopback() -> Iterator[None]:
    """Let a Ray that is started in the block listen on the loopback address only.

    Ray has no setting for this: it replaces a loopback address by the machine's, except where it supports no clusters
    (macOS).
    """
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _pack(computer: SequentialComputer) -> np.ndarray:
    """Return the computer as bytes. Parameters that are views of one vector remain views."""
    import numpy as np
    import torch
    from ray import cloudpickle

    file = io.BytesIO()
    torch.save(computer, file, pickle_module=cloudpickle)
    return np.frombuffer(file.getbuffer(), np.uint8)


@lru_cache(1)
def _unpack(sent) -> SequentialComputer:
    """Return the run's computer, which the process keeps."""
    import ray
    import torch

    torch.set_num_threads(1)
    computer: SequentialComputer = torch.load(io.BytesIO(ray.get(sent)), weights_only=False)
    computer.task.flat.to(computer.task.device)  # binds the network to memory of this process
    return computer


def compute(sent: list, work: Work, model: np.ndarray, *terms: np.ndarray | None) -> list[np.ndarray | None]:
    """Compute a piece of work in a process of Ray. Return the upload and the parts of its ``ComputedUpload``.

    sent  list with the reference to the computer;  model, terms  see queue.Start
    """
    import torch

    start, out_pd = (torch.tensor(model), *map(_tensor, terms)), torch.empty(1, len(model))
    (upload,) = _unpack(sent[0]).begin([work], lambda _: start, out_pd, Blocks())()
    return [None if one is None else one.numpy() for one in (out_pd[0], *upload)]


def _tensor(array: np.ndarray | None) -> Any:
    """Return a copy as a tensor, because arrays from Ray are read-only."""
    import torch

    return None if array is None else torch.tensor(array)
