"""Memory of a run's vectors on device, host and disk, estimated before they are made.

The estimate has the vectors that grow with the number of clients or with d: the rule, its cache, the clients' memories,
model versions in flight, uploads being computed, the model. The built run adds activations of mini-batches. Data and
torch itself are not counted.

Legend: n clients, d model parameters.
"""

from __future__ import annotations

import bisect
import dataclasses
import shutil
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..algorithms.common.split import SplitRule
from ..clients.batched import models_per_stack
from ..clients.stacked import ROWS
from ..data.unlabelled import USUAL, SamplesConfig
from ..errors import ConfigError, RunTooLarge
from ..randomness import Streams
from ..storage import CacheConfig, Storage, describe_size
from . import machine

if TYPE_CHECKING:
    from ..algorithms.base import ServerRule
    from ..config import Settings
    from ..config.settings import RootConfig
    from ..models.layers import Size

FLOAT = 4
DRY_RUN_FROM = 2**26  # bytes of model versions that a dry run counts; below, guessing high costs nothing


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes in each place. With the device `cpu` the host's are the same memory as the device's.

    device, host, disk  of vectors;  activations  of mini-batches, on the device
    """

    device: int
    host: int = 0
    disk: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        return self.vectors + self.activations

    @property
    def vectors(self) -> int:
        return self.device + self.host + self.disk


@dataclass(frozen=True)
class Vectors:
    """The numbers of vectors that a run's memory depends on.

    d, tensors  model parameters, and how many tensors they are in
    rule        vectors of d floats that the rule keeps besides its cache
    cache       how the rule, or with ``on_clients`` its clients, keep a vector of each client; None: they do not
    versions    models kept for pending work at most
    uploads     not yet used, at most
    computing   vectors of d floats for computing them, the model included
    averaged    vectors of ``evaluation.average``
    chosen      the cache is a setting, so another one may be advised
    second_vector  a second vector is kept with every version of the model
    outputs     numbers that come with an upload about the server's own samples; the rule keeps every client's last
    numbers     all else, of the rule, or of clients in flight with a part of the model
    activations  bytes of those of local work and of an evaluation
    """

    d: int
    tensors: int
    rule: int
    computing: int
    cache: CacheConfig | None = None
    on_clients: bool = False
    versions: int = 0
    uploads: int = 0
    chosen: bool = True
    second_vector: bool = False
    outputs: int = 0
    numbers: int = 0
    averaged: int = 0
    activations: int = 0

    def needs(self, n: int, cache: CacheConfig | None = None) -> MemoryNeeds:
        """Return the needs of n clients, with another cache if one is given."""
        versions = min(self.versions, n) * (1 + self.second_vector)
        near = FLOAT * self.d * (self.rule + versions + self.uploads + self.computing + self.averaged)
        near += FLOAT * (self.outputs * (n + self.uploads) + self.numbers)
        cache = cache or self.cache
        if cache is None:
            return MemoryNeeds(near, activations=self.activations)
        kept = {"fp32": 4, "bf16": 2, "int8": 1}[cache.precision] * n * self.d
        if self.on_clients:
            near += 4 * FLOAT * self.d  # the change and a workspace, in double precision
        elif cache.precision != "fp32":
            near += FLOAT * self.d  # the vector that is widened
        if cache.precision == "int8":
            near += FLOAT * n * self.tensors
        if cache.place == "device":
            return MemoryNeeds(near + kept, activations=self.activations)
        near += kept // n  # the row looked at
        return MemoryNeeds(near, activations=self.activations, **{cache.place: kept})


def count_vectors(
    root: RootConfig,
    rule: ServerRule,
    size: Size,
    tensors: int = 1,
    *,
    averaged: int | None,
    batch: int = 0,
    uploads: int = 0,
    computing: int = 0,
    outputs: int = 0,
) -> Vectors:
    """Count the model vectors of a run.

    Of a cut model each client in flight holds its part before and after training, an optimizer state and a gradient. It
    also holds the activations of a mini-batch and their gradient.

    averaged   models of which a mean is evaluated
    batch      samples of the largest mini-batch, of a cut model
    Of a whole model:
    uploads    held at most
    computing  vectors for computing them and for diagnostics
    outputs    numbers that models say about the server's own samples
    """
    concurrency, needs = root.concurrency, rule.needs
    assert concurrency is not None
    # the model, as it is, as it was at first and as it was last logged
    vectors = Vectors(size.d, tensors, rule.vectors(root.n_clients), computing + 3)
    vectors = dataclasses.replace(vectors, averaged=averaged or 0)
    if isinstance(rule, SplitRule):
        message = prod(size.activation) * batch
        numbers = rule.split_numbers(size.d - size.d_client, concurrency, message)
        numbers += concurrency * (4 * size.d_client + 2 * message)
        return dataclasses.replace(vectors, computing=4, numbers=numbers)  # a gradient, too
    return dataclasses.replace(
        vectors,
        cache=needs.cache or (CacheConfig() if needs.keeps else None),  # the latter is the clients'
        on_clients=needs.keeps is not None,
        chosen=needs.cache is not None,
        outputs=outputs if needs.outputs else 0,
        versions=concurrency,
        uploads=uploads,
        second_vector=needs.second_vector,
    )


def bound_vectors(settings: Settings, size: Size, samples: int, classes: int) -> tuple[Vectors, Vectors]:
    """Return the fewest and the most vectors of a run, which depend on how it computes; imports no torch.

    samples, classes  of the data set
    """
    n, concurrency, streams = settings.root.n_clients, settings.root.concurrency, Streams(settings.root.seed)
    assert concurrency is not None
    root, averaged, unlabelled = settings.root, settings.evaluation.average, settings.parts["unlabelled"].config
    asked = unlabelled.samples if isinstance(unlabelled, SamplesConfig) else 0
    server: Any = SimpleNamespace(samples=asked, classes=classes)  # stand-ins, of which only these facts are read
    part: Any = SimpleNamespace(activation=size.activation, classes=classes)
    rule = settings.build_rule(Storage(), streams, server, part if settings.needs.cuts else None)
    if isinstance(rule, SplitRule):
        batches = (largest_batch(settings.parts["client"].config.batch_size, count) for count in (1, samples))
        least, most = (count_vectors(root, rule, size, averaged=averaged, batch=batch) for batch in batches)
        return least, most
    client = settings.parts["client"]
    one_step = client.config.workload.one_step and not rule.needs.chooses_k
    local = client.build(client.config.upload).vectors(1 if one_step else 2)
    measuring = settings.parts["diagnostics"].build().vectors(rule, n, concurrency)
    computed_at_once = machine.available_cores(settings.root.threads) * models_per_stack(size.d)
    uploads = 3 * computed_at_once
    if machine.known_device(settings.root.device) != "cpu":  # a GPU computes all work that is ready
        computed_at_once = max(computed_at_once, ROWS)
        uploads = max(uploads, concurrency + (n if rule.needs.first_round else 0) + 1)
    computing, outputs = (2 + local) * computed_at_once + measuring, classes * (USUAL if asked is None else asked)
    counts = {"uploads": uploads, "computing": computing, "outputs": outputs}
    most = count_vectors(root, rule, size, averaged=averaged, **counts)
    fewest = {"versions": 1, "uploads": 1, "computing": local + measuring + 3}
    return dataclasses.replace(most, **fewest, outputs=most.outputs if asked else 0), most


def checkpoint_needs(settings: Settings, size: Size, samples: int, classes: int) -> MemoryNeeds:
    """Return the bytes of the model vectors in a checkpoint, at most. samples, classes: of the data set"""
    _, most = bound_vectors(settings, size, samples, classes)
    return dataclasses.replace(most, uploads=1, computing=1).needs(settings.root.n_clients)


def refuse_if_too_large(vectors: Vectors, n: int, device: str, folder: Path, most: Vectors | None = None) -> None:
    """Raise ConfigError with the numbers, and with settings that would fit, if the run needs more memory than is free.

    most  vectors that are not exceeded, where ``vectors`` are the fewest: a setting is advised if these fit
    """
    free = _free_memory(folder, device)
    if not (missing := _missing_memory(vectors.needs(n), free)):
        return
    vectors, fitting = most or vectors, []

    def lacks(n: int = n, cache: CacheConfig | None = None, **changes: Any) -> bool:
        return bool(_missing_memory(dataclasses.replace(vectors, **changes).needs(n, cache), free))

    caches = [{"place": place} for place in (["disk"] if device == "cpu" else ["host", "disk"])]
    caches += [] if vectors.on_clients else [{"precision": "bf16"}, {"precision": "int8"}]
    for changes in caches if vectors.cache is not None and vectors.chosen else ():
        assert vectors.cache is not None
        if not lacks(cache=dataclasses.replace(vectors.cache, **changes)):
            fitting.append(" with ".join(f"algorithm.cache.{key}={value}" for key, value in changes.items()))
    key, value = "n_clients", n
    if not lacks(averaged=0):
        key, value = "evaluation.average", vectors.averaged
        windows = range(1, vectors.averaged)
        if most_averaged := bisect.bisect_left(windows, True, key=lambda window: lacks(averaged=window)):
            fitting.append(f"evaluation.average={most_averaged}")
    if fewer := bisect.bisect_left(range(1, n), True, key=lacks):  # needs grow with n
        fitting.append(f"n_clients={fewer}")
    if not lacks(outputs=0):
        fitting.append("fewer unlabelled.samples")
    if not lacks(activations=0):
        fitting.append("a smaller client.batch_size")
    advice = f"{' or '.join(fitting)} would fit" if fitting else "a smaller model is needed"
    also = f" and {vectors.outputs} numbers of each client" if vectors.outputs else ""
    also += f" and activations of {describe_size(vectors.activations)}" if vectors.activations else ""
    raise RunTooLarge(key, value, f"vectors of {vectors.d} floats{also} need {' and '.join(missing)}; {advice}")


def largest_batch(batch_size: int | str, samples: int) -> int:
    """Return the number of samples of a mini-batch of a client that holds ``samples``."""
    return samples if isinstance(batch_size, str) else min(batch_size, samples)


def kept_bytes(uploads: int, d: int, outputs: int = 0) -> int:
    """Return the bytes of uploads that a live run keeps on disk. uploads: as ``Settings.kept_uploads``"""
    return uploads * FLOAT * (3 + d + outputs)


def refuse_if_disk_too_small(kept: int, directory: Path) -> None:
    """Raise ConfigError if the bytes of uploads that a live run keeps in its directory do not fit on the disk."""
    if (free := _free_disk(directory)) is not None and kept > free:
        takes = f"takes {describe_size(kept)} in {directory.parent}, where {describe_size(free)} are free"
        raise ConfigError("live.keep_uploads", True, f"{takes}; set it to false or choose a smaller budget")


def is_too_large(needs: MemoryNeeds, device: str, folder: Path) -> bool:
    """Return True if less memory is free than needed."""
    return bool(_missing_memory(needs, _free_memory(folder, device)))


def _free_memory(folder: Path, device: str) -> dict[str, tuple[str, int | None]]:
    """Return place -> (name, free bytes). The bytes are None if they are unknown."""
    free = {"device": (device, machine.free_memory(device)), "disk": (str(folder), _free_disk(folder))}
    if device != "cpu":
        free["host"] = "the host's memory", machine.free_memory("cpu")
    return free


def _missing_memory(needs: MemoryNeeds, free: dict[str, tuple[str, int | None]]) -> list[str]:
    """Return a text for each place with less memory than needed."""
    sizes = {"device": needs.device + needs.activations, "host": needs.host, "disk": needs.disk}
    if "host" not in free:  # the device's memory is the host's
        sizes["device"] += sizes.pop("host")
    return [
        f"{describe_size(sizes[place])} in {name}, where {describe_size(available)} are free"
        for place, (name, available) in free.items()
        if available is not None and sizes[place] > available
    ]


def _free_disk(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(machine.existing_folder(folder)).free
    except OSError:
        return None
