"""Whether the samples that are there now are those of a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import Settings
from ..data.base import DataError, MissingData, digest_arrays
from ..data.unlabelled import load_and_draw, match_samples
from ..errors import BenchError, ConfigError, InputError, locating_user_errors
from ..files import file_digest, recall
from ..models.base import Model
from ..randomness import Streams
from .result import RunResult

FILES = "data_files"  # in summaries and checkpoints
_GROUPS = ("dataset", "unlabelled")  # that read files of the data directory


def data_files(settings: Settings) -> dict[str, str]:
    """Return the SHA-256 of the files of the data directory that a run reads, by group; without missing ones."""
    found = {}
    for group, path in _find_files(settings).items():
        with suppress(OSError):  # who cannot read it cannot run either
            found[group] = file_digest(path)
    return found


def refuse_other_data(finished: Sequence[tuple[Settings, RunResult]]) -> None:
    """Raise ConfigError if the files in the data directory have other samples than some finished runs had, DataError
    for a damaged file.

    A run counts as before if its files are not there. No data are loaded if the files are those of the run.
    """
    with locating_user_errors():
        other = [(settings, one) for settings, one in finished if not _has_same_data(settings, one.summary)]
    if not other:
        return
    settings, first = other[0]
    files = " and ".join(map(str, _find_files(settings).values()))
    is_archived, several = first.directory.is_file(), len(other) > 1
    name = f"{first.summary['name']} in {first.directory}" if is_archived else first.directory
    what = f"{len(other)} finished runs had, the first is {name}" if several else f"the finished run {name} had"
    ways = (
        f"rerun=true runs {'them' if several else 'it'} again{'' if is_archived else ', another output_dir keeps both'}"
    )
    raise ConfigError("data_dir", settings.data_dir, f"{files} has other data than {what}; {ways}")


def _find_files(settings: Settings) -> dict[str, Path]:
    """Return the files of the data directory that are there, by group. Downloads nothing."""
    found = {}
    for group in _GROUPS:
        part = settings.parts[group]
        offline = {"download": False} if "download" in vars(part.config) else {}
        source = part.target(replace(part.config, **offline))
        find = getattr(source, "file", None)  # a user's own class may lack it
        with suppress(InputError):
            if find is not None and (path := find(settings.data_dir)) is not None:
                found[group] = Path(path)
    return found


def _has_same_data(settings: Settings, summary: Mapping[str, Any]) -> bool:
    """Return False if the files that are there have other samples than the run had.

    A run of an earlier version has the digest of its samples alone. That covers whole numbers, and the shape of others.
    """
    files, before = data_files(settings), summary.get(FILES)
    known = before if isinstance(before, dict) else {}
    if all(known.get(group) == digest for group, digest in files.items()):
        return True
    try:
        digest, is_whole = _digest_samples(settings, files)
    except BenchError as error:
        if isinstance(error, DataError) and not isinstance(error, MissingData):
            raise
        return not known and not isinstance(error, ConfigError)  # the other file, or what reads it, is not there
    return summary.get("data_digest") in (digest, None) and (is_whole or not known)


def _digest_samples(settings: Settings, files: Mapping[str, str]) -> tuple[str, bool]:
    """Return the digest of the samples that a run would have, and whether it covers every number of them.

    Raises ConfigError or InputError for samples that cannot be had.
    """
    parts, root, share = settings.parts, settings.root, settings.evaluation.validation_share

    model = parts["model"].build()
    reads_texts = type(model).reader is not Model.reader

    def load() -> str:
        dataset, streams = parts["dataset"].build(), Streams(root.seed)
        if reads_texts:
            dataset = dataset.with_reader(model.reader())
        data, x_server = load_and_draw(
            dataset,
            parts["unlabelled"].build(),
            n_clients=root.n_clients,
            data_dir=settings.data_dir,
            streams=streams,
            validation_share=share,
        )
        whole = "whole" if data.x_train.dtype.kind in "iub" else "shape"
        digest = data.digest if x_server is None else digest_arrays(match_samples(x_server, data), before=data.digest)
        return f"{digest} {whole}"

    what = (sorted(files.items()), parts["dataset"], parts["unlabelled"], settings.digests if reads_texts else None)
    digest, whole = recall(repr((*what, root.n_clients, root.seed, share)), load).split()
    return digest, whole == "whole"
