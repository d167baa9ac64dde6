"""A recorded run once more, and whether it gives the same numbers.

An archived run is repeated on this machine. A live run is replayed in the simulator, with the delays and losses that
its server recorded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..config.check import check_settings
from ..config.overrides import flat_items
from ..config.part_sources import PACKAGE
from ..config.saved import check_saved, repeated_settings, saved_config
from ..config.settings import Settings, fill_in_precision
from ..errors import ConfigError, did_you_mean
from ..files import expand_home, read_json, read_parquet, read_tensors
from ..simulation.recorded import NAME, RecordedAvailability, RecordedDelay
from ..tracking.archive import pack_archive, read_archive
from ..tracking.records import MEASURED, NUMBERS, Record
from ..tracking.rundir import (
    DIGESTED,
    METRICS_NAME,
    MODEL_NAME,
    SUMMARY_NAME,
    TRACE_NAME,
    UPLOADS_NAME,
    RunDirectory,
    describe_changed_file,
    read_metrics,
)
from .machine import describe_machine
from .result import RunResult

REPLAYED = "replayed"  # in the summary of a live run: the comparison with its latest replay
OWN_TIME = "wall_time"  # of a line of metrics.jsonl: what is not repeated
FLAG = "--repeat"


def replay_settings(directory: str | Path) -> Settings:
    """Return the settings of the replay of a live run. Raises ConfigError for anything else and an unfinished one."""
    path = expand_home(directory, "--replay")
    path = path if path.name not in ("", "..") else path.resolve()
    tree = saved_config(path, "--replay")
    live = check_settings(tree)
    if not live.parts["live"].config.takes_place:
        raise ConfigError("--replay", path, "must be a live run; this one was simulated, and rerun=true repeats it")
    keeps = live.parts["live"].config.keep_uploads
    with _reading(path, SUMMARY_NAME) as file:
        summary = read_json(file) if file.exists() else {}
        status = summary.get("exit_status", "unfinished")
        kept = summary["live"]["kept_bytes"] if keeps and status == "ok" else 0
    if status != "ok":
        raise ConfigError("--replay", path, f"must be a finished run, and this one is {status}; resume it first")
    _read_results(path)
    for group, target in (("delay", RecordedDelay), ("availability", RecordedAvailability)):
        config = target.Config(path=str(path / NAME))
        tree[group] = {"_target_": f"{target.__module__}.{target.__qualname__}", **vars(config)}
        tree["choices"][group] = "recorded"
    tree["live"], tree["choices"]["live"] = {"_target_": f"{PACKAGE}.live.choice.Simulated"}, "none"
    if keeps:
        uploads = path / UPLOADS_NAME
        found = uploads.stat().st_size if uploads.exists() else 0
        if found != kept:
            raise ConfigError("--replay", path, f"must have its {UPLOADS_NAME} of {kept} bytes; found {found} bytes")
        tree["live"] = {"_target_": f"{PACKAGE}.live.uploads.Recorded", "path": str(uploads)}
        tree["choices"]["live"] = "recorded"
    if changed := describe_changed_file(summary, path, DIGESTED):
        raise ConfigError("--replay", path, f"its {changed}; restore the directory")
    tree["output_dir"], tree["rerun"] = str(path.parent), True  # data may have changed since an earlier replay
    settings = check_settings(tree)
    if keeps and summary["live"].get("kept_digest") not in (None, settings.digests["live"]):  # of earlier versions
        raise ConfigError("--replay", path, f"its {UPLOADS_NAME} is not the file that the run wrote")
    return settings


@contextmanager
def _reading(path: Path, name: str) -> Iterator[Path]:
    """Turn an error of the block into a ConfigError that names the file: damaged files raise errors of many kinds."""
    try:
        yield path / name
    except Exception as error:
        raise ConfigError("--replay", path, f"its {name} cannot be read") from error


def _read_results(path: Path) -> tuple[list[dict], list[dict], dict[str, np.ndarray]]:
    """Return the arrivals, the points and the final model of a run. Raises ConfigError for a damaged file."""
    with _reading(path, TRACE_NAME) as file:
        arrivals = read_parquet(file).to_pylist()
    with _reading(path, METRICS_NAME) as file:
        points = read_metrics(file)
    with _reading(path, MODEL_NAME) as file:
        model = {name: tensor.numpy() for name, tensor in read_tensors(file).items()}
    return arrivals, points, model


@dataclass
class Comparison:
    """
    points      evaluations that were compared;  arrivals: those of a live run
    uploads     computed by the replay, or kept by the live run
    difference  the first one, in words; empty: there is none
    remark      with a difference: whether the data differ, and both machines
    """

    arrivals: int | None = None
    points: int = 0
    uploads: str = "computed"
    difference: str = ""
    remark: str = ""

    def __str__(self) -> str:
        if self.difference:
            return f"first difference: {self.difference}" + (f" ({self.remark})" if self.remark else "")
        if self.arrivals is None:
            return f"same numbers: {self.points} evaluations"
        kept = " with kept uploads" if self.uploads == "kept" else ""
        return f"same bits{kept}: model, {self.arrivals} arrivals, {self.points} evaluations"


def compare_result(live: Path, replay: RunResult) -> Comparison:
    """Compare a live run with its replay, which may have failed."""
    if replay.ok:
        return compare(live, replay.directory)
    return Comparison(difference=f"the replay {replay.summary['exit_status']}: {replay.summary['error']}")


def note_comparison(live: Path, comparison: Comparison, identity: str) -> None:
    """Write the comparison with the replay of that identity into the live run's summary. Raises OSError."""
    summary = read_json(live / SUMMARY_NAME)
    noted = {"identity": identity, "same_bits": not comparison.difference, **asdict(comparison)}
    if summary.get(REPLAYED) != noted:
        RunDirectory(live).write_summary(summary | {REPLAYED: noted})


def compare(live: Path, replay: Path) -> Comparison:
    """Compare the files of two runs: arrivals, then points, then the final model."""
    (arrivals, points, model), (*others, other_model) = _read_results(live), _read_results(replay)
    words = "live", "replayed"
    difference = _first_difference("arrival", words, arrivals, others[0])
    difference = difference or _first_difference("evaluation", words, points, others[1])
    for name, tensor in model.items():
        other = other_model.get(name)
        if not difference and (other is None or tensor.tobytes() != other.tobytes()):
            most = "" if other is None else f", by {float(abs(tensor - other).max()):.2g} at most"
            difference = f"tensor {name} of the final model{most}"
    uploads = "kept" if (live / UPLOADS_NAME).exists() else "computed"
    remark = _explain(difference, words, [read_json(directory / SUMMARY_NAME) for directory in (live, replay)])
    return Comparison(len(arrivals), len(points), uploads, difference, remark)


def _first_difference(what: str, words: tuple[str, str], rows: Sequence[Mapping], others: Sequence[Mapping]) -> str:
    """Return the first row that has other values in another run, with the difference; empty if none does.

    what, words  names of a row and of both runs, for the message
    """
    for number, (one, other) in enumerate(zip(rows, others, strict=False), 1):
        if difference := _first_value(one, other, words):
            return f"{what} {number}, {difference}"
    same = len(rows) == len(others)
    return "" if same else f"{len(rows)} {what}s {words[0]}, {len(others)} {words[1]}"


def _first_value(one: Mapping[str, Any], other: Mapping[str, Any], words: tuple[str, str]) -> str:
    """Return the first value of one mapping that the other does not have; empty if there is none. NaN equals NaN."""

    def exact_text(value: Any) -> str:
        return repr(float(value) if isinstance(value, int | float) else value)

    for key, value in one.items():
        if key != OWN_TIME and exact_text(value) != exact_text(other.get(key)):
            return f"{key}: {value} {words[0]}, {other.get(key)} {words[1]}"
    return ""


def _explain(difference: str, words: tuple[str, str], summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return whether the data of two runs differ, and how each was computed; an empty string without a difference."""
    machines = [f"{word}: {describe_machine(one)}" for word, one in zip(words, summaries, strict=True)]
    has_other_data = len({one["data_digest"] for one in summaries if one.get("data_digest")}) > 1
    return "; ".join([*["the data differ"] * has_other_data, *machines]) if difference else ""


def find_archived_run(archive: str | Path, identity: str) -> Record:
    """Return a run of an archive. Raises InputError for a file that is none, ConfigError for a run that it lacks or
    that contradicts itself."""
    records = {str(record.identity): record for record in read_archive(expand_home(archive, FLAG))}
    if identity not in records:
        known = f"must be the identity of a run in {archive}{did_you_mean(identity, records)}"
        raise ConfigError(FLAG, identity, f"{known}; afl-run --list {archive} lists them")
    if (record := records[identity]).status not in MEASURED:
        raise ConfigError(FLAG, identity, f"cannot be compared: {record.note}")
    return record


def settings_to_repeat(record: Record, archive: str | Path, overrides: Iterable[str] = ()) -> Settings:
    """Return the settings of an archived run, with the device, threads and executor that it had.

    overrides  of settings outside its identity, such as data_dir
    Raises ConfigError for a run that this version cannot repeat.
    """
    summary = record.summary
    tree = check_saved(copy.deepcopy(fill_in_precision(record.config, summary)), archive, FLAG)
    executors = str(summary.get("executor", "auto")).split(" then ")
    computed: dict[str, Any] = {"device": "cuda" if str(summary.get("device")).startswith("cuda") else "cpu"}
    computed |= {"threads": summary.get("threads"), "executor": executors[0] if len(executors) == 1 else "auto"}
    fixed = {"progress": True, "rerun": False, "trace": False, "resume": None}
    settings = repeated_settings(tree | computed | fixed, str(record.identity), overrides)
    if settings.parts["live"].config.takes_place:
        raise ConfigError(FLAG, record.identity, "was a live run; afl-run --replay DIR simulates it from its directory")
    return settings


def compare_repetition(archived: Record, result: RunResult) -> Comparison:
    """Compare an archived run with its repetition, in the precision that archives keep."""
    words, summaries = ("archived", "repeated"), [archived.summary, result.summary]
    points, status = len(next(iter(archived.points.values()), ())), result.summary["exit_status"]
    if status != archived.status:
        ended = f"{status}: {result.summary['error']}" if result.summary.get("error") else status
        difference = f"{archived.status} archived, {ended}"
        return Comparison(points=points, difference=difference, remark=_explain(difference, words, summaries))
    with TemporaryDirectory() as folder:
        pack_archive([result.directory], packed := Path(folder) / "repeated.parquet")
        (repeated,) = read_archive(packed)
    tables = {"evaluation": (archived.points, repeated.points), "client": (archived.clients, repeated.clients)}
    found = [_first_difference(what, words, *map(_rows, both)) for what, both in tables.items() if both[0]]
    sections = ({key: one.summary.get(key) or {} for key in NUMBERS} for one in (archived, repeated))
    numbers, others = (dict(flat_items(one)) for one in sections)
    known = {name: value for name, value in numbers.items() if name in others}  # other versions may lack some
    difference = next(filter(None, [*found, _first_value(known, others, words)]), "")
    return Comparison(points=points, difference=difference, remark=_explain(difference, words, summaries))


def _rows(columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*(of.tolist() for of in columns.values()), strict=True)]
