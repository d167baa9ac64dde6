"""The result of a run, and checks whether an earlier run is complete and had the present samples."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.settings import OBSERVERS, Settings
from ..data.base import DataError, MissingData, digest_arrays
from ..data.unlabelled import load_and_draw, match_samples
from ..diagnostics.base import has_diagnostics
from ..diagnostics.event_tables import EXCHANGES_NAME
from ..errors import EXIT_INTERRUPTED, BenchError, ConfigError, InputError, locating_user_errors
from ..files import file_digest, recall, say_once
from ..models.base import Model
from ..randomness import Streams
from ..tracking.archive import measured_run, read_run_points
from ..tracking.records import MEASURED, read_directory
from ..tracking.rundir import CLIENTS_NAME, MODEL_NAME, TRACE_NAME

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = {"final", "best", "used", "name", "wall_seconds", "stopped_by"}  # in the summary of a complete run
NUMBERS = {  # in its sections
    "final": ["test/accuracy"],
    "best": ["test/accuracy"],
    "used": ["server_iterations", "uploads", "virtual_time"],
}
FILES = "data_files"  # in summaries and checkpoints
_GROUPS = ("dataset", "unlabelled")  # that read files of the data directory


@dataclass(repr=False)
class RunResult:
    """The result of a run.

    directory  the run's directory, or the archive (a .parquet of many runs) that it was packed into
    summary    the content of summary.json
    signal     the signal that interrupted it; None without one
    """

    directory: Path
    summary: dict
    signal: int | None = None

    def __repr__(self) -> str:
        facts = "; ".join(f"{key} {value}" for key, value in self._facts().items())
        return f"<RunResult {self.summary.get('name')}: {facts}>"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        rows = {"run": self.summary.get("name")} | self._facts()
        cells = "".join(f"<tr><th>{key}</th><td>{html.escape(str(value))}</td></tr>" for key, value in rows.items())
        return f"<table>{cells}</table>"

    def _facts(self) -> dict[str, str]:
        """Return the most important facts by name."""
        summary, found = self.summary, {"status": self.summary["exit_status"]}
        if summary.get("error"):
            found["error"] = str(summary["error"])
        if final := summary.get("final"):
            found["test accuracy"] = f"{100 * final['test/accuracy']:.1f} %"
            found["best"] = f"{100 * summary['best']['test/accuracy']:.1f} %"
        if used := summary.get("used"):
            found["server iterations"] = str(used["server_iterations"])
            found["uploads"] = str(used["uploads"])
            found["virtual time"] = f"{used['virtual_time']:g}"
        if seconds := summary.get("wall_seconds"):
            found["seconds"] = f"{seconds:.1f}"
        return found | {"in": str(self.directory)}

    @property
    def ok(self) -> bool:
        return self.summary["exit_status"] == "ok"

    @property
    def exit_code(self) -> int:
        return {"ok": 0, "interrupted": EXIT_INTERRUPTED}.get(self.summary["exit_status"], 1)

    def value(self, metric: str) -> float:
        """Return a metric of the final model; NaN without one, as in a run that diverged."""
        found = self.summary.get("final", {}).get(metric) if self.ok else None
        return math.nan if found is None else float(found)

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per logged point, as in metrics.jsonl."""
        import pandas as pd

        from ..tracking.rundir import read_metrics

        if not self.directory.is_file():
            return pd.DataFrame(read_metrics(self.directory / "metrics.jsonl"))
        return pd.DataFrame(read_run_points(self.directory, self.summary["identity"], self.summary.get("code_digest")))


def finished_result(
    settings: Settings,
    known_paths: Mapping[str, Path] | None = None,
    *,
    or_diverged: bool = False,
    repeated: bool = False,
) -> RunResult | None:
    """Return the result of a complete run with the same settings and all requested files; None with ``rerun=true``.

    known_paths  identity of a run -> an archive or another directory, used if the run's own directory has no result
    or_diverged  accept a diverged run too, as a sweep does
    repeated     also accept a run that ``rerun=true`` repeats
    """
    if settings.root.rerun and not repeated:
        return None
    for path in (settings.directory, (known_paths or {}).get(settings.identity)):
        if path is None or not path.exists():
            continue
        packed, code = path.is_file(), settings.code_digest or None
        record = measured_run(path, settings.identity, code) if packed else read_directory(path)
        summary = record.summary if record is not None and record.status in MEASURED else {}
        if not _is_complete(summary, settings, or_diverged):
            continue
        # an archive holds no traces
        has_trace = not settings.root.trace or (not packed and _has_whole_trace(path, summary))
        needs_clients = settings.evaluation.clients and summary["exit_status"] == "ok" and not packed
        if has_trace and (not needs_clients or (path / CLIENTS_NAME).exists()):
            say_changed_code(settings.code, summary.get("code"), "a run that counts as finished; rerun=true repeats it")
            return RunResult(path, summary | {"already_complete": True})
    return None


def say_changed_code(code: Mapping[str, str], before: object, run: str) -> None:
    """Print each module of a user's class that has changed since a run; a process names a module once.

    code    as of ``Settings``
    before  the entry ``code`` of the run's summary or checkpoint; other values than a mapping are ignored
    run     the end of the message: which run it is, and how to repeat it
    """
    for module, digest in before.items() if isinstance(before, dict) else ():
        if code.get(module, digest) != digest:
            say_once(f"{module}: the file of this module has changed since {run}")


def _has_numbers(summary: dict) -> bool:
    """Return True if a summary has the numbers of a complete run."""
    sections = {part: summary[part] if isinstance(summary[part], dict) else {} for part in NUMBERS}
    numbers = [sections[part].get(key) for part, keys in NUMBERS.items() for key in keys]
    return all(isinstance(number, (int, float)) for number in (summary["wall_seconds"], *numbers))


def _has_whole_trace(directory: Path, summary: dict) -> bool:
    """Return True if the trace exists and covers the whole run."""
    import pyarrow
    import pyarrow.parquet

    used = summary["used"]
    lengths = {TRACE_NAME: used.get("uploads")} | ({EXCHANGES_NAME: used["messages"]} if "messages" in used else {})
    try:
        there = [pyarrow.parquet.read_metadata(directory / name).num_rows == rows for name, rows in lengths.items()]
    except (OSError, pyarrow.ArrowException):
        return False
    return all(there) and (directory / MODEL_NAME).exists()


def _is_complete(summary: dict, settings: Settings, or_diverged: bool) -> bool:
    return (
        summary.get("exit_status") in ("ok", "diverged")[: 1 + or_diverged]
        and summary.get("identity") == settings.identity
        and summary.get("results_version") == settings.results_version
        and set(summary) >= REQUIRED
        and (summary["exit_status"] == "diverged" or _has_numbers(summary))
        and has_diagnostics(summary.get("diagnostics"), settings.tree["diagnostics"])
        and (summary.get(OBSERVERS) or {}).items() >= settings.tree[OBSERVERS].items()
        and ("clients" in summary or not settings.evaluation.clients or summary["exit_status"] == "diverged")
        and settings.evaluation.average in (None, summary.get("average", {}).get("uploads"))
    )


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
