"""A live run in the simulator: the same settings, with the delays and losses that its server recorded, and whether that
gives the same bits."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..config.check import check_settings
from ..config.places import PACKAGE
from ..config.saved import saved_config
from ..config.settings import Settings
from ..errors import ConfigError
from ..files import expand_home, read_json, read_parquet, read_tensors
from ..simulation.recorded import NAME, RecordedAvailability, RecordedDelay
from ..tracking.digests import describe_changed_file
from ..tracking.metrics import read_metrics
from ..tracking.rundir import (
    DIGESTED,
    METRICS_NAME,
    MODEL_NAME,
    SUMMARY_NAME,
    TRACE_NAME,
    UPLOADS_NAME,
    RunDirectory,
)
from . import machine
from .result import RunResult

REPLAYED = "replayed"  # in the summary of a live run: the comparison with its latest replay
OWN_TIME = "wall_time"  # of a line of metrics.jsonl: what is not repeated


def replay_settings(directory: str | Path) -> Settings:
    """Return the settings of the replay of a live run. Raises ConfigError for anything else and an unfinished one."""
    path = expand_home(directory, "--replay")
    path = path if path.name not in ("", "..") else path.resolve()
    tree, choices = saved_config(path, "--replay")
    live = check_settings(copy.deepcopy(tree), dict(choices))
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
        choices[group] = "recorded"
    tree["live"], choices["live"] = {"_target_": f"{PACKAGE}.live.choice.Simulated"}, "none"
    if keeps:
        uploads = path / UPLOADS_NAME
        found = uploads.stat().st_size if uploads.exists() else 0
        if found != kept:
            raise ConfigError("--replay", path, f"must have its {UPLOADS_NAME} of {kept} bytes; found {found} bytes")
        tree["live"] = {"_target_": f"{PACKAGE}.live.uploads.Recorded", "path": str(uploads)}
        choices["live"] = "recorded"
    if changed := describe_changed_file(summary, path, DIGESTED):
        raise ConfigError("--replay", path, f"its {changed}; restore the directory")
    tree["output_dir"], tree["rerun"] = str(path.parent), True  # data may have changed since an earlier replay
    settings = check_settings(tree, choices)
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
class ReplayComparison:
    """
    uploads     computed by the replay, or kept by the live run
    difference  the first one, in words; empty: there is none
    remark      why bits may differ; empty: nothing speaks for it
    """

    arrivals: int = 0
    points: int = 0
    uploads: str = "computed"
    difference: str = ""
    remark: str = ""

    def __str__(self) -> str:
        if not self.difference:
            kept = " with kept uploads" if self.uploads == "kept" else ""
            return f"same bits{kept}: model, {self.arrivals} arrivals, {self.points} points"
        return f"first difference: {self.difference}" + (f" ({self.remark})" if self.remark else "")


def compare_result(live: Path, replay: RunResult) -> ReplayComparison:
    """Compare a live run with its replay, which may have failed."""
    if replay.ok:
        return compare(live, replay.directory)
    return ReplayComparison(difference=f"the replay {replay.summary['exit_status']}: {replay.summary['error']}")


def note_comparison(live: Path, comparison: ReplayComparison, identity: str) -> None:
    """Write the comparison with the replay of that identity into the live run's summary. Raises OSError."""
    summary = read_json(live / SUMMARY_NAME)
    noted = {"identity": identity, "same_bits": not comparison.difference, **asdict(comparison)}
    if summary.get(REPLAYED) != noted:
        RunDirectory(live).write_summary(summary | {REPLAYED: noted})


def compare(live: Path, replay: Path) -> ReplayComparison:
    """Compare what two runs left: arrivals, then points, then the final model."""
    (arrivals, points, model), (*others, other_model) = _read_results(live), _read_results(replay)
    difference = _first_difference("arrival", arrivals, others[0]) or _first_difference("point", points, others[1])
    for name, tensor in model.items():
        other = other_model.get(name)
        if not difference and (other is None or tensor.tobytes() != other.tobytes()):
            most = "" if other is None else f", by {float(abs(tensor - other).max()):.2g} at most"
            difference = f"tensor {name} of the final model{most}"
    uploads = "kept" if (live / UPLOADS_NAME).exists() else "computed"
    return ReplayComparison(len(arrivals), len(points), uploads, difference, _explain_difference(live, replay))


def _first_difference(what: str, live: Sequence[Mapping[Any, Any]], replay: Sequence[Mapping[Any, Any]]) -> str:
    for number, (one, other) in enumerate(zip(live, replay, strict=False), 1):
        for key in {**one, **other}:
            values = one.get(key), other.get(key)
            if key != OWN_TIME and repr(values[0]) != repr(values[1]):  # NaN equals NaN here
                return f"{what} {number}, {key}: {values[0]} live, {values[1]} replayed"
    return "" if len(live) == len(replay) else f"{len(live)} {what}s live, {len(replay)} replayed"


def _explain_difference(live: Path, replay: Path) -> str:
    """Return how the data and this machine differ from those of the live run; an empty string if they do not."""
    summary = read_json(live / SUMMARY_NAME)
    here = {"device": machine.device_name("cpu"), "torch": machine.versions().get("torch")}
    there = {"device": summary.get("device"), "torch": summary.get("versions", {}).get("torch")}
    if "cpu" in summary:
        here |= machine.cpu_facts()
        there |= summary["cpu"]
    differing = [f"{key} {there[key]} there, {here[key]} here" for key in here if here[key] != there[key]]
    if summary.get("data_digest") != read_json(replay / SUMMARY_NAME).get("data_digest"):
        differing.insert(0, "the data differ from those of the live run")
    return "; ".join(differing)
