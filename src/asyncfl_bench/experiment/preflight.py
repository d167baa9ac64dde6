"""Checks of a run's folder, data and memory before torch is imported, which takes seconds."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..algorithms.common.split import SplitConfig
from ..config import Settings
from ..data.base import Data, MissingData
from ..data.partition import count_samples
from ..data.texts import OneId, Texts
from ..data.unlabelled import load_and_draw
from ..errors import BenchError, ConfigError, locating_user_errors, naming_group
from ..files import say
from ..models.base import Model
from ..randomness import Streams
from ..simulation.recorded import check_same_sources
from ..types import ClientTable
from . import machine, memory

if TYPE_CHECKING:
    from ..models.layers import Size

SECONDS_TO_ANNOUNCE = 1.0
RESERVE = 2**30  # bytes for torch and the data; with less left over the built run decides
T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """Facts about a run that are known before torch is imported.

    size      of the model; None: known only once the model is built
    samples   to train, 0 if unknown;  classes  of the data set
    cost      of a server step as text, where it decides how long a run takes
    download  the run will download its data
    """

    size: Size | None = None
    samples: int = 0
    classes: int = 0
    cost: str | None = None
    download: bool = False


class Preflight:
    """Checks of one run, or of all runs of a plan: data, folders and models that several runs share are checked once.

    build    of a plan: builds a run whose memory only the built run tells. A plan downloads nothing
    seconds  spent on loading the data
    checked, passed  runs
    """

    def __init__(self, build: Callable[[Settings], object] | None = None):
        self._build = build
        self._known: dict[str, tuple[Any, BenchError | None]] = {}
        self.seconds = 0.0
        self.checked = self.passed = 0

    def check(self, settings: Settings) -> Found:
        """Return the known facts about the run.

        Raises ConfigError for settings that need a GPU, a folder that cannot be written, samples that the model cannot
        take, a split or samples of the server's that the data set does not have, a cut that is too wide and too little
        memory, DataError for data that are missing or of another shape.
        """
        self.checked += 1
        root, parts = settings.root, settings.parts
        machine.refuse_unsupported(root, machine.device_of_plan(root))
        with locating_user_errors():
            self._look_once(settings.directory.parent, lambda: check_folder(settings))
            model, rule = parts["model"].build(), parts["algorithm"].config
            reads_texts = type(model).reader is not Model.reader and issubclass(parts["dataset"].target, Texts)
            more = settings.evaluation.validation_share, parts["client"].config.augment
            asked = (settings.data_dir, root.n_clients, parts["dataset"], parts["unlabelled"], reads_texts, *more)
            text = f"loading dataset={settings.choices['dataset']} for {root.n_clients} clients"
            with announcing_wait(text, root.progress):
                found, data = self._look_once(asked, lambda: self._load(settings, reads_texts))
            if data is not None:
                found = self._look_once((asked, parts["model"]), lambda: _look_at_model(model, data, reads_texts))
                clients = self._split(settings, data, asked)
                if self._build is not None:  # a run reads these files itself
                    fleet = (root.n_clients, parts["delay"], parts["availability"])
                    self._look_once(fleet, lambda: _check_fleet(settings, clients))
            if found.size is not None and isinstance(rule, SplitConfig):
                with naming_group("algorithm"):
                    found = replace(found, cost=rule.describe_cut_cost(prod(found.size.activation), found.classes))
            found = self._check_memory(settings, found, is_split=data is not None)
        self.passed += 1
        return found

    def _look_once(self, key: object, look: Callable[[], T]) -> T:
        """Return the result of ``look`` or raise its error; ``look`` is called once for each key."""
        name = repr(key)
        if name not in self._known:
            try:
                self._known[name] = look(), None
            except BenchError as error:
                self._known[name] = None, error
        value, problem = self._known[name]
        if problem is not None:
            raise problem
        return value

    def _load(self, settings: Settings, reads_texts: bool) -> tuple[Found, Data | None]:
        """Return the known facts, and the clients' data with labels and without samples.

        The data are None if they will be downloaded, or if a second load would take as long as the first.

        reads_texts  the model comes with a tokenizer, which takes long to load
        """
        dataset, root, began = settings.parts["dataset"], settings.root, time.process_time()
        asks = self._build is not None and settings.tree["dataset"].get("download", False)
        source = dataset.target(replace(dataset.config, download=False) if asks else dataset.config)
        if not getattr(source, "loads_once", False):
            return Found(), None
        streams = Streams(root.seed)
        try:
            if reads_texts:
                with naming_group("dataset"):
                    source = source.with_reader(OneId())
            if asks:
                try:
                    source.load(settings.data_dir, streams, root.n_clients)
                except MissingData:
                    return replace(outline_run(settings), download=True), None
            data, _ = load_and_draw(
                source,
                settings.parts["unlabelled"].build(),
                n_clients=root.n_clients,
                data_dir=settings.data_dir,
                streams=streams,
                augment=settings.parts["client"].config.augment,
                validation_share=settings.evaluation.validation_share,
            )
        finally:
            self.seconds += time.process_time() - began
        no_x, no_y = data.x_train[:0].copy(), data.y_train[:0].copy()
        return Found(), replace(
            data, x_train=no_x, x_test=no_x, y_test=no_y, x_other=None, x_validation=None, y_validation=None
        )

    def _split(self, settings: Settings, data: Data, asked: object) -> ClientTable:
        """Return each client's numbers of samples. One seed is checked for all; if refused, each seed is."""
        part, root = settings.parts["heterogeneity"], settings.root

        def look() -> ClientTable:
            with naming_group("heterogeneity"):
                heterogeneity = part.build()
                partition = heterogeneity.split(data.y_train, root.n_clients, Streams(root.seed), data.natural)
            clients = count_samples(partition, data.y_train, data.classes, heterogeneity.groups_n)
            if settings.needs.cuts:
                refuse_empty_clients(settings.choices["algorithm"], clients)
            return clients

        key = (asked, part, settings.needs.cuts)
        try:
            return self._look_once(key, look)
        except ConfigError:
            return self._look_once((key, root.seed), look)

    def _check_memory(self, settings: Settings, found: Found, is_split: bool) -> Found:
        n, device = settings.root.n_clients, machine.known_device(settings.root.device)
        if found.size is not None and (found.samples or not settings.needs.cuts):
            memory.refuse_if_disk_too_small(memory.kept_bytes(settings.kept_uploads, found.size.d), settings.directory)
            least, most = memory.bound_vectors(settings, found.size, found.samples, found.classes)
            if device is not None:
                memory.refuse_if_too_large(least, n, device, settings.directory, most)
                needs = most.needs(n)
                needs = replace(needs, device=needs.device + RESERVE)
                if settings.root.executor == "auto" and not memory.is_too_large(needs, device, settings.directory):
                    return found  # another executor may not suit the network, or not be there
        if self._build is not None and not found.download:
            build, known = self._build, ["heterogeneity"] * is_split
            parts = [part for name, part in settings.parts.items() if name not in known]
            self._look_once(("memory", replace(settings.root, seed=0), parts), lambda: build(settings))
        return found


def outline_run(settings: Settings) -> Found:
    """Return the facts known without a run's data: their kind and number, if the data set has a name."""
    dataset = settings.parts["dataset"]
    source = dataset.target(dataset.config)
    outline = getattr(source, "outline", None)  # a user's class may lack it
    known = None if outline is None else outline()
    size = None if known is None else settings.parts["model"].build().size(known.shape, known.classes)
    if known is None or size is None or settings.needs.cuts:
        return Found()
    return Found(size, known.train_samples, known.classes)


def _look_at_model(model: Model, data: Data, reads_texts: bool) -> Found:
    with naming_group("model"):
        if reads_texts:
            model.check_files()
            return Found()
        model.check_samples(data.shape, data.symbols, data.padding)
        return Found(model.size(data.shape, data.classes, data.symbols), len(data.y_train), data.classes)


def _check_fleet(settings: Settings, clients: ClientTable) -> None:
    """Raise InputError or ConfigError for files of durations or sessions that are not of the run's clients."""
    delay, availability = settings.parts["delay"].build(), settings.parts["availability"].build()
    streams = Streams(settings.root.seed)
    delay.start(clients, streams)
    availability.start(clients.n, streams)
    check_same_sources(delay, availability)


def refuse_empty_clients(algorithm: str, clients: ClientTable) -> None:
    """Raise ConfigError for an algorithm that cuts the model if a client has no samples."""
    if len(empty := np.flatnonzero(clients.samples_n == 0)):
        some = ", ".join(map(str, empty[:5]))
        allowed = f"must be one whose clients may have no samples: here those of number {some} have none"
        raise ConfigError("algorithm", algorithm, allowed)


def check_folder(settings: Settings) -> None:
    """Raise ConfigError unless a file can be made where the run's directory will be."""
    key, value = (
        ("hydra.run.dir", settings.named_directory)
        if settings.named_directory
        else ("output_dir", settings.root.output_dir)
    )
    folder = machine.existing_folder(settings.directory)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        where = f"in {folder} no file can be made: {error.strerror}"
        raise ConfigError(key, value, f"must be a folder that can be written; {where}") from None


@contextmanager
def announcing_wait(text: str, is_wanted: bool) -> Iterator[None]:
    """Print ``text`` if it is wanted and the block takes more than a second."""
    timer = threading.Timer(SECONDS_TO_ANNOUNCE, say, [text])
    timer.daemon = True
    if is_wanted:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
