"""What is wrong with a run's folder, data or memory, before torch is imported, which takes seconds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..algorithms.common.split import SplitConfig
from ..config import Settings
from ..data.base import MissingData
from ..data.texts import KNOWN, Texts
from ..data.unlabelled import Images, OwnArray
from ..errors import BenchError, ConfigError, locating_user_errors
from ..models.base import Model
from ..randomness import Streams
from . import machine, memory

if TYPE_CHECKING:
    from ..models.layers import Size

RESERVE = 2**30  # bytes for torch and the data; with less left over the built run decides
T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """Facts about a run that are known before torch is imported.

    size      of the model; None: only the built model tells
    samples   to train, 0 if unknown;  classes  of the data set
    state     bytes of the model vectors in a checkpoint, at most; None: unknown
    cost      of a server step as text, where it decides how long a run takes
    download  the run will download its data
    """

    size: Size | None = None
    samples: int = 0
    classes: int = 0
    state: int | None = None
    cost: str | None = None
    download: bool = False


class Preflight:
    """Checks of one run, or of all runs of a plan: what these have in common is looked at once.

    build    of a plan: builds a run whose memory only the built run tells. A plan downloads nothing
    seconds  that looking at the data took
    checked, passed  runs
    """

    def __init__(self, build: Callable[[Settings], None] | None = None):
        self._build = build
        self._known: dict[str, tuple[Any, BenchError | None]] = {}
        self.seconds = 0.0
        self.checked = self.passed = 0

    def check(self, settings: Settings) -> Found:
        """Return what is known of the run.

        Raises ConfigError for a folder that cannot be written, samples that the model cannot take, a cut that is too
        wide and too little memory, DataError for data that are missing or of another shape.
        """
        self.checked += 1
        root, parts = settings.root, settings.parts
        with locating_user_errors():
            self._look_once(settings.directory.parent, lambda: _check_folder(settings))
            asked = (settings.data_dir, root.n_clients, parts["unlabelled"], parts["dataset"], parts["model"])
            found = self._look_once(asked, lambda: self._look_at_data(settings))
            rule = parts["algorithm"].config
            if found.size is not None and isinstance(rule, SplitConfig):
                try:
                    cost = rule.describe_cut_cost(prod(found.size.activation), found.classes)
                except ConfigError as error:
                    raise error.with_prefix("algorithm") from None
                found = replace(found, cost=cost)
            found = self._check_memory(settings, found)
        self.passed += 1
        return found

    def _look_once(self, key: object, look: Callable[[], T]) -> T:
        """Return what ``look`` returns or raise what it raises, once for each key."""
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

    def _look_at_data(self, settings: Settings) -> Found:
        dataset, model, began = settings.parts["dataset"], settings.parts["model"].build(), time.process_time()
        unlabelled = settings.parts["unlabelled"].build()
        asks, group = self._build is not None and settings.tree["dataset"].get("download", False), "dataset"
        source = dataset.target(replace(dataset.config, download=False) if asks else dataset.config)
        padding = symbols = None
        try:
            if isinstance(source, Texts) and type(model).reader is not Model.reader:
                source.samples(source.file(settings.data_dir))  # its own tokenizer takes long to load
                group = "model"
                model.check_files(KNOWN[source.config.name].classes)
                return Found()
            if getattr(source, "loads_once", False):
                data = source.load(settings.data_dir, Streams(settings.root.seed), settings.root.n_clients)
                shape, classes, samples = tuple(data.shape), data.classes, len(data.y_train)
                symbols, padding = data.symbols, data.padding
                if isinstance(unlabelled, OwnArray):
                    unlabelled.read(data)
            elif (known := getattr(source, "known_shape", None)) is not None:
                (shape, classes), samples = known, 0
            else:
                return Found()
            group = "model"
            model.check_samples(shape, symbols, padding)
            group = "unlabelled"
            if isinstance(unlabelled, Images | OwnArray):
                unlabelled.check_files(settings.data_dir)
            return Found(model.size(shape, classes, symbols), samples, classes)
        except MissingData:
            if not asks or group != "dataset":
                raise
            return Found(download=True)
        except ConfigError as error:
            raise error.with_prefix(group) from error
        finally:
            self.seconds += time.process_time() - began

    def _check_memory(self, settings: Settings, found: Found) -> Found:
        n, device = settings.root.n_clients, machine.known_device(settings.root.device)
        if found.size is not None and (found.samples or not settings.needs.cuts):
            memory.refuse_if_disk_too_small(settings, found.size.d)
            least, most = memory.bound_vectors(settings, found.size, found.samples, found.classes)
            found = replace(found, state=replace(most, uploads=1, computing=1).needs(n).total)
            if device is not None:
                memory.refuse_if_too_large(least, n, device, settings.directory, most)
                needs = most.needs(n)
                needs = replace(needs, device=needs.device + RESERVE)
                if not memory.is_too_large(needs, device, settings.directory):
                    return found
        if self._build is not None and not found.download:
            build, parts = self._build, [part for name, part in settings.parts.items() if name != "heterogeneity"]
            self._look_once(("memory", replace(settings.root, seed=0), parts), lambda: build(settings))
        return found


def _check_folder(settings: Settings) -> None:
    """Raise ConfigError unless a file can be made where the run's directory will be."""
    directory = settings.directory
    try:
        with tempfile.TemporaryFile(dir=existing_folder(directory)):
            pass
    except OSError as error:
        key = "output_dir" if settings.place is None else "hydra.run.dir"
        value = settings.root.output_dir if settings.place is None else directory
        where = f"in {existing_folder(directory)} no file can be made: {error.strerror}"
        raise ConfigError(key, value, f"must be a folder that can be written; {where}") from None


def existing_folder(path: Path) -> Path:
    """Return the path or the nearest one above it that exists."""
    return next((one for one in (path, *path.parents) if one.exists()), Path("."))
