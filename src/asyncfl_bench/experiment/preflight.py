"""What is wrong with a run's folder or data, before torch is imported, which takes seconds."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..config import Settings
from ..errors import ConfigError
from ..randomness import Streams


def check_before_torch(settings: Settings) -> None:
    """Raise ConfigError for a folder that cannot be written and for samples that the model cannot take, and DataError
    for data that are missing or of another shape."""
    _check_folder(settings)
    dataset, model = settings.parts["dataset"], settings.parts["model"]
    if not getattr(dataset.target, "loads_once", False):
        return
    group = "dataset"
    try:
        data = dataset.build().load(settings.data_dir, Streams(settings.root.seed), settings.root.n_clients)
        group = "model"
        model.build().check_samples(tuple(data.shape), data.symbols, data.padding)
    except ConfigError as error:
        raise error.with_prefix(group) from error


def _check_folder(settings: Settings) -> None:
    """Raise ConfigError unless a file can be made where the run's directory will be."""
    directory = settings.directory
    place = next((one for one in (directory, *directory.parents) if one.exists()), Path("."))
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        key = "output_dir" if settings.place is None else "hydra.run.dir"
        value = settings.root.output_dir if settings.place is None else directory
        allowed = f"must be a folder that can be written; in {place} no file can be made: {error.strerror}"
        raise ConfigError(key, value, allowed) from None
