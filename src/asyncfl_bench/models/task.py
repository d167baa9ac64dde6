"""A task ready to run: data on the device, its partition, and the model's loss and metrics.

Legend: n clients, d parameters, B samples of a mini-batch, C channels, H height, W width, L tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.base import Data, digest_arrays
from ..data.partition import Natural, count_samples
from ..data.texts import Texts
from ..data.unlabelled import Nothing, UnlabelledConfig, load_and_draw, match_samples
from ..errors import ConfigError, naming_group
from ..kernels.graphed import GraphedNetwork, Graphs
from ..kernels.native import BatchSelection, NativeNetwork
from ..randomness import Streams
from ..storage import send
from ..types import Footprint
from . import costs
from .base import NEEDS_TEXTS
from .flat import FlatModel
from .networks import Encoder
from .server_task import ServerSamples

if TYPE_CHECKING:
    from ..types import Augmentation

TOKENS = 16  # texts are cut to a multiple of it: one graph serves many mini-batches
CROP_PADDING = 4  # pixels on each side, the customary choice for 32x32 photographs
# of one batch: larger ones leave a CPU's cache, up to twice the time, and take gigabytes of a GPU without being faster
EVALUATION_SAMPLES = {"cpu": 256, "cuda": 512}


class Task:
    """The clients' training samples, and the evaluation of the global model.

    data       kept on ``device``, images as uint8, token ids unchanged
    partition  n arrays of training-sample indices
    flat       the model; moved to ``device``
    tests_c    (C,) test samples of each class
    untrained  classes without training samples
    left_out_clients  natural clients of the data, if another split is used
    moved      samples that were moved between clients so that each has the minimum
    groups_n   (n,) planted group of each client; None without groups
    x_server   the server's own samples, of the training samples' kind, or None
    server     computations on these samples, or None
    """

    def __init__(
        self,
        data: Data,
        partition: list[np.ndarray],
        flat: FlatModel,
        device: str,
        moved: int = 0,
        groups_n: np.ndarray | None = None,
        x_server: np.ndarray | None = None,
    ):
        self.partition, self.moved = partition, moved
        self.flat = flat
        self.clients = count_samples(partition, data.y_train, data.classes, groups_n)
        self.classes, self.shape, self.source = data.classes, tuple(data.shape), data.source
        self.digest = data.digest if x_server is None else digest_arrays(x_server, before=data.digest)
        self.untrained = np.flatnonzero(np.bincount(data.y_train, minlength=data.classes) == 0)
        self.tests_c = np.bincount(data.y_test, minlength=data.classes)
        self.device = torch.device("cpu")
        self._x_train, self._y_train = self.from_numpy(data.x_train), self.from_numpy(data.y_train)
        self._host_y_train = self._y_train
        # for an encoder, as its work grows with the length of the texts
        self._length_n = text_lengths(data.x_train, flat.module.padding) if isinstance(flat.module, Encoder) else None
        self._judged = {"test": (self.from_numpy(data.x_test), self.from_numpy(data.y_test))}
        if data.x_validation is not None and data.y_validation is not None:
            self._judged["validation"] = self.from_numpy(data.x_validation), self.from_numpy(data.y_validation)
        self.compiled: NativeNetwork | None = None  # computes instead of ``flat`` outside executors
        self._threads = 1
        self.left_out_clients = 0
        self._factor: Tensor | None = None
        self._offset: Tensor | None = None
        if data.scale is not None:
            mean, std = np.asarray(data.scale.mean), np.asarray(data.scale.std)
            self._factor = self.from_numpy((1 / (255 * std)).astype(np.float32)).view(-1, 1, 1)
            self._offset = self.from_numpy((-mean / std).astype(np.float32)).view(-1, 1, 1)
        self.server: ServerSamples | None = None
        if x_server is not None:
            self.server = ServerSamples(self.as_float(self.from_numpy(x_server)), self.flat, self.classes)
        self.to(device)

    def to(self, device: str) -> None:
        """Move samples and model to a device, in place."""
        self.device = torch.device(device)
        self.flat.to(device)
        self._x_train, self._y_train = self._x_train.to(device), self._y_train.to(device)
        self._judged = {name: (x.to(device), y.to(device)) for name, (x, y) in self._judged.items()}
        if self._factor is not None and self._offset is not None:
            self._factor, self._offset = self._factor.to(device), self._offset.to(device)
        if self.server is not None:
            self.server.to(device)
        self.__dict__.pop("_sample", None)
        if self.device.type == "cuda":
            self._stop_reading(self.flat.module)

    @property
    def has_whole_samples(self) -> bool:
        """True if the digest covers every number of the samples; of floats it only covers the shape."""
        return not self._x_train.is_floating_point()

    @cached_property
    def samples_digest(self) -> str:
        """SHA-256 of the ordered training samples, their labels and their scale."""
        parts = self._x_train, self._y_train, self._factor, self._offset
        hashed = hashlib.sha256()
        for part in parts:
            if part is not None:
                hashed.update(f"{part.dtype} {tuple(part.shape)}".encode() + part.cpu().numpy().tobytes())
        return hashed.hexdigest()

    @property
    def samples_bytes(self) -> tuple[int, int]:
        """Bytes of the training samples, and of the samples for evaluation."""
        train = self._x_train.nbytes + self._y_train.nbytes
        return train, sum(x.nbytes + y.nbytes for x, y in self._judged.values())

    def share_samples(self, other: Task) -> None:
        """Use the equal training samples of another task, to save their memory."""
        self._x_train, self._y_train = other._x_train, other._y_train

    @cached_property
    def footprint(self) -> Footprint:
        """Costs of the model for the clients."""
        return costs.footprint(self.flat.module, self._sample)

    @cached_property
    def _sample(self) -> Tensor:
        """The first training sample, (1, …)."""
        return self.batch(np.zeros(1, dtype=np.int64))[0]

    def step_bytes(self, b: int) -> int:
        """Return the bytes of activations for a gradient of b samples."""
        return costs.step_bytes(self.flat, self._sample, b)

    def stacked_step_bytes(self, b: int, p: int) -> int:
        """Return the bytes of activations for the gradients of p stacked models of b samples."""
        return costs.stacked_step_bytes(self.flat, self._sample, b, p)

    def evaluation_bytes(self) -> int:
        """Return the bytes of activations of an evaluation; 0 for a compiled network, which has few."""
        most = max(len(y) for _, y in self._judged.values())
        return 0 if self.compiled else costs.evaluation_bytes(self.flat, self._sample, min(most, self._batch_size))

    @property
    def _batch_size(self) -> int:
        """Batch size of an evaluation."""
        return EVALUATION_SAMPLES.get(self.device.type, EVALUATION_SAMPLES["cpu"])

    def try_compile(self) -> NativeNetwork | None:
        """Compile the model for a CPU; None if the kernel does not support it. See ``NativeNetwork.try_compile``."""
        numbers_cv = None
        if self._factor is not None:
            values = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(-1, self.shape[0], 1, 1)
            numbers_cv = self.as_float(values)[:, :, 0, 0].T
        return NativeNetwork.try_compile(self.flat, self.shape, numbers_cv)

    def capture(self, graphs: Graphs, size: int, report: Callable[[str], None]) -> GraphedNetwork:
        """Return the model as graphs for mini-batches of ``size`` samples. See ``GraphedNetwork``."""
        flat = self.flat.clone_for_thread()
        self._stop_reading(flat.module)
        return GraphedNetwork(flat, graphs, size, report)

    def _stop_reading(self, module: torch.nn.Module) -> None:
        """Stop an encoder from reading numbers of a mini-batch."""
        if isinstance(module, Encoder) and module.reads:
            module.stop_reading(self.batch(np.zeros(1, dtype=np.int64))[0])

    def evaluate_with(self, network: NativeNetwork, threads: int) -> None:
        """Evaluate with this network in ``threads`` threads. Results do not depend on their number."""
        self.compiled, self._threads = network, threads
        if self.server is not None:
            self.server.compiled = network

    def from_numpy(self, array: np.ndarray) -> Tensor:
        """Copy an array to the task's device. ``storage.send`` is for repeated copies."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def batch(
        self, indices: np.ndarray | Tensor, augment: Augmentation | None = None, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return training samples by index: x (..., *shape) float32 and y (...) int64, for indices of any shape (...).

        Token ids stay integers (..., L). For an encoder they end behind the longest text of ``indices`` on the host.
        augment  (dy, dx, flip) of ``draw_augmentation``, of the indices' shape: each image is padded by 4 zero pixels,
                 cut at row dy and column dx, and mirrored left to right if flip is True. Arrays, or tensors on the
                 device
        out      memory for x if samples are pixels
        """
        x_train = self._x_train
        if isinstance(indices, np.ndarray):
            if self._length_n is not None:
                longest = int(self._length_n[indices].max(initial=1))
                x_train = x_train[:, : -(-longest // TOKENS) * TOKENS]
            indices = send(indices, self.device)
        flat_index = indices.reshape(-1)
        x = x_train.index_select(0, flat_index)
        if augment is not None:
            near = (part if isinstance(part, Tensor) else send(part, self.device) for part in augment)
            x = crop_and_flip(x, *(part.reshape(-1) for part in near))
        y = self._y_train.index_select(0, flat_index)
        return self.as_float(x.view(*indices.shape, *x.shape[1:]), out), y.view(indices.shape)

    def labels(self, indices: np.ndarray) -> Tensor:
        """Return the (B,) int64 labels of training samples by index (B,), on the CPU."""
        return self._host_y_train.index_select(0, torch.from_numpy(indices))

    def gradient_in_place(
        self,
        network: NativeNetwork,
        w_d: Tensor,
        out_d: Tensor,
        indices: np.ndarray,
        augment: Augmentation | None = None,
        bias_c: Tensor | None = None,
    ) -> Tensor:
        """Return ``network.gradient`` of the mini-batch that ``batch`` would fetch, without a copy of the samples."""
        chosen = BatchSelection(indices, augment, CROP_PADDING)
        return network.gradient(w_d, self._x_train, self._y_train, out_d, bias_c, chosen)

    def draw_augmentation(self, generator: np.random.Generator, b: int) -> Augmentation:
        """Draw uniform dy, dx (b,) integers 0 .. 8 and flip (b,) bool."""
        dy_b, dx_b = generator.integers(0, 2 * CROP_PADDING + 1, size=(2, b))
        return dy_b, dx_b, generator.random(b) < 0.5

    def evaluate(self, w_d: Tensor, hits_c: np.ndarray | None = None, most: int | None = None) -> dict[str, float]:
        """Return ``test/accuracy`` (share) and ``test/loss`` (mean cross-entropy [nats]) of ``w_d`` on the test set.

        Also ``validation/…`` on the validation samples, if any.
        hits_c  (C,) receives the number of correct test samples of each class
        most    samples of each set; None for all

        Draws no random numbers and does not change the model. A diverged model has a loss of NaN or infinity and an
        accuracy at chance level, as NaN outputs count as the first class.
        """
        return {
            f"{name}/{key}": value
            for name, (x, y) in self._judged.items()
            for key, value in self._evaluate_samples(
                w_d, x[:most], y[:most], hits_c if name == "test" else None, most
            ).items()
        }

    def _evaluate_samples(
        self, w_d: Tensor, x_all: Tensor, y_all: Tensor, hits_c: np.ndarray | None, most: int | None
    ) -> dict[str, float]:
        """Return accuracy (0 to 1) and loss (nats) on these samples. ``hits_c`` gets the correct samples by class."""
        size = self._batch_size
        if most is not None:  # the batches of the whole set decide the bits of its loss
            size = min(size, -(-len(y_all) // self._threads))

        def evaluate_batch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            compiled = self.compiled
            logits = self.flat.logits(w_d, self.as_float(x)) if compiled is None else compiled.logits(w_d, x)
            right = logits.argmax(dim=1) == y
            hits = right.sum() if hits_c is None else (F.one_hot(y, self.classes) * right[:, None]).sum(dim=0)
            return hits, F.cross_entropy(logits, y, reduction="sum").double()

        pieces = x_all.split(size), y_all.split(size)
        if self._threads == 1:
            results = list(map(evaluate_batch, *pieces))
        else:
            with ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                results = list(pool.map(evaluate_batch, *pieces))
        correct, loss = zip(*results, strict=True)
        if hits_c is not None:
            hits_c[:] = torch.stack(correct).sum(dim=0).cpu()
        total = len(y_all)  # divided at the end: one wait for the device instead of one per batch
        hits, nats = torch.stack([torch.stack(correct).sum().double(), torch.stack(loss).sum()]).tolist()
        return {"accuracy": hits / total, "loss": nats / total}

    def test_samples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return test samples by index: x (B, *shape) float32 and y (B,) int64."""
        x, y = self._judged["test"]
        rows = rows.to(self.device)
        return self.as_float(x.index_select(0, rows)), y.index_select(0, rows)

    @property
    def chance(self) -> float:
        """Test accuracy of the best constant answer, 0 to 1."""
        return int(self.tests_c.max()) / int(self.tests_c.sum())

    def describe(self) -> dict:
        """Return facts for the log and the summary."""
        return {
            "train_samples": len(self._y_train),
            "test_samples": len(self._judged["test"][1]),
            "classes": self.classes,
            "shape": list(self.shape),
            "clients": self.clients.n,
            "moved_samples": self.moved,
            "smallest_client": int(self.clients.samples_n.min()),
            "largest_client": int(self.clients.samples_n.max()),
            "d": self.flat.d,
            **({} if self.server is None else {"server_samples": self.server.samples}),
            **({"encoder": facts} if (facts := getattr(self.flat.module, "facts", None)) else {}),
        }

    def as_float(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Convert pixels to normalised float32, in ``out`` if given. Floats and token ids do not change."""
        if self._factor is None or self._offset is None:
            return x
        x = x.float().mul_(self._factor)
        return torch.add(x, self._offset, out=x if out is None else out)


def text_lengths(x: np.ndarray, padding: int) -> np.ndarray:
    """Return the (N,) lengths of texts (N, L) without the padding behind them."""
    there = x != padding
    return np.where(there.any(axis=1), x.shape[1] - there[:, ::-1].argmax(axis=1), 0)


def crop_and_flip(x: Tensor, dy_b: Tensor, dx_b: Tensor, flip_b: Tensor) -> Tensor:
    """Cut each of (B, C, H, W) zero-padded images at row dy and column dx, then mirror it if flip is True."""
    b, channels, height, width = x.shape
    padded = F.pad(x, (CROP_PADDING,) * 4)
    row_bh = dy_b[:, None] + torch.arange(height, device=x.device)
    column_w = torch.arange(width, device=x.device)
    column_bw = dx_b[:, None] + torch.where(flip_b[:, None], width - 1 - column_w, column_w)
    # one gather with flat positions: 4 times faster than indexing rows and columns
    position = (row_bh[:, :, None] * padded.shape[3] + column_bw[:, None, :]).view(b, 1, height * width)
    cut = padded.view(b, channels, -1).gather(2, position.expand(b, channels, -1))
    return cut.view(b, channels, height, width)


def build_task(
    dataset, heterogeneity, model, *, n_clients: int, streams: Streams, device: str, unlabelled=None, **options: Any
) -> Task:
    """Load the data, split them over the clients and build the model.

    dataset, heterogeneity, model  parts of the groups of these names
    unlabelled                     source of the server's own samples, or None
    options                        of ``load_and_draw``
    Raises ConfigError with the full key if the parts do not fit together, DataError if the data are not available.
    """
    if n_clients < 1:
        raise ConfigError("n_clients", n_clients, "must be an integer >= 1")
    with naming_group("model"):
        reader = model.reader()
        if reader is not None and not isinstance(dataset, Texts):
            raise ConfigError("", model.name, NEEDS_TEXTS)
    if reader is not None:
        with naming_group("dataset"):
            dataset = dataset.with_reader(reader)
    unlabelled = unlabelled or Nothing(UnlabelledConfig())
    data, x_server = load_and_draw(dataset, unlabelled, n_clients=n_clients, streams=streams, **options)
    if x_server is not None:
        x_server = match_samples(x_server, data)
    with naming_group("model"):
        model.check_samples(tuple(data.shape), data.symbols, data.padding)
        texts = (data.symbols, data.padding) if model.reads_tokens else ()
        flat = FlatModel(model.build(data.shape, data.classes, streams.model.integer(), *texts))
    with naming_group("heterogeneity"):
        partition = heterogeneity.split(data.y_train, n_clients, streams, data.natural)
    task = Task(data, partition, flat, device, heterogeneity.moved, heterogeneity.groups_n, x_server)
    if data.natural is not None and not isinstance(heterogeneity, Natural):
        task.left_out_clients = len(data.natural)
    return task
