"""A live run in the simulator: the same settings, with the delays and losses that its server recorded, and whether that
gives the same bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config.check import check_settings
from ..config.composition import saved_config
from ..config.places import PACKAGE
from ..config.settings import Settings
from ..errors import ConfigError
from ..files import read_json
from ..simulation.recorded import NAME, RecordedAvailability, RecordedDelay
from ..tracking.metrics import read_metrics
from ..tracking.rundir import METRICS_NAME, SUMMARY_NAME, TRACE_NAME, UPLOADS_NAME, RunDirectory
from . import machine
from .result import RunResult

REPLAYED = "replayed"  # in the summary of a live run: the comparison with its latest replay
OWN_TIME = "wall_time"  # of a line of metrics.jsonl: what is not repeated


def replay_settings(directory: str | Path) -> Settings:
    """Return the settings of the replay of a live run. Raises ConfigError for anything else and an unfinished one."""
    path = Path(directory).expanduser()
    tree, choices = saved_config(path, "--replay")
    live = check_settings(copy.deepcopy(tree), dict(choices))
    if not live.parts["live"].config.takes_place:
        raise ConfigError("--replay", path, "must be a live run; this one was simulated, and rerun=true repeats it")
    summary = read_json(path / SUMMARY_NAME) if (path / SUMMARY_NAME).exists() else {}
    status = summary.get("exit_status", "unfinished")
    if status != "ok":
        raise ConfigError("--replay", path, f"must be a finished run, and this one is {status}; resume it first")
    for group, target in (("delay", RecordedDelay), ("availability", RecordedAvailability)):
        config = target.Config(path=str(path / NAME))
        tree[group] = {"_target_": f"{target.__module__}.{target.__qualname__}", **vars(config)}
        choices[group] = "recorded"
    tree["live"], choices["live"] = {"_target_": f"{PACKAGE}.live.choice.Simulated"}, "none"
    if live.parts["live"].config.keep_uploads:
        uploads, kept = path / UPLOADS_NAME, summary["live"]["kept_bytes"]
        found = uploads.stat().st_size if uploads.exists() else 0
        if found != kept:
            raise ConfigError("--replay", path, f"must have its {UPLOADS_NAME} of {kept} bytes; found {found} bytes")
        tree["live"] = {"_target_": f"{PACKAGE}.live.uploads.Recorded", "path": str(uploads)}
        choices["live"] = "recorded"
    tree["output_dir"] = str(path.parent)
    return check_settings(tree, choices)


@dataclass
class Comparison:
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
    """Compare what two runs left: arrivals, then points, then the final model."""
    import pandas as pd
    import torch

    tables = [pd.read_parquet(path / TRACE_NAME).to_dict("records") for path in (live, replay)]
    points = [read_metrics(path / METRICS_NAME) for path in (live, replay)]
    models = [torch.load(path / "model_final.pt", weights_only=True) for path in (live, replay)]
    difference = _first_difference("arrival", *tables) or _first_difference("point", *points)
    for name, tensor in models[0].items():
        other = models[1].get(name)
        if not difference and (other is None or tensor.numpy().tobytes() != other.numpy().tobytes()):
            most = "" if other is None else f", by {float((tensor - other).abs().max()):.2g} at most"
            difference = f"tensor {name} of the final model{most}"
    uploads = "kept" if (live / UPLOADS_NAME).exists() else "computed"
    return Comparison(len(tables[0]), len(points[0]), uploads, difference, _describe_machine(live))


def _first_difference(what: str, live: Sequence[Mapping[Any, Any]], replay: Sequence[Mapping[Any, Any]]) -> str:
    for number, (one, other) in enumerate(zip(live, replay, strict=False), 1):
        for key in {**one, **other}:
            values = one.get(key), other.get(key)
            if key != OWN_TIME and repr(values[0]) != repr(values[1]):  # NaN equals NaN here
                return f"{what} {number}, {key}: {values[0]} live, {values[1]} replayed"
    return "" if len(live) == len(replay) else f"{len(live)} {what}s live, {len(replay)} replayed"


def _describe_machine(live: Path) -> str:
    """Return how the machine of the live run differs from this one; an empty string if it does not."""
    summary = read_json(live / SUMMARY_NAME)
    here = {"device": machine.device_name("cpu"), "torch": machine.versions().get("torch")}
    there = {"device": summary.get("device"), "torch": summary.get("versions", {}).get("torch")}
    differing = [f"{key} {there[key]} there, {here[key]} here" for key in here if here[key] != there[key]]
    return "; ".join(differing)
