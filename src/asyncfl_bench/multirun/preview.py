"""The plan of a multirun (``afl-run … --plan``): its pending runs, and the time and disk that they take."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import Settings
from ..data.base import MissingData
from ..errors import BenchError
from ..experiment import memory
from ..experiment.machine import chosen_kind, existing_folder
from ..experiment.preflight import Found, Preflight, outline_run
from ..models.layers import Size
from ..storage import describe_size
from ..tracking.progress_bar import clock_text
from .estimates import GROUPS, Estimate, FinishedRun, count_points, finished_in, similar_runs
from .jobs import Job, count_runs, describe_planning, settings_of, varied_values
from .pending import find_finished
from .probe import find_room

START, START_RUN = 4.0, 0.3  # seconds before the first run of a process, most of them to import torch; before each run
FILES, POINT, TRACE_ROW = 5000, 800, 60  # bytes of a run's texts, of a point in metrics.jsonl, of a row in a trace
ALIKE = "algorithm, data, model and local work; with budget.virtual_time also delays and availability"
RunTimer = Callable[[Settings], float | None]  # seconds of a run by trying it; None: the trial does not tell
Past = Mapping[tuple, Sequence[FinishedRun]]  # by algorithm and data set


@dataclass
class RunCost:
    """Time and disk of pending runs, as numbers and as lines for a person.

    seconds            of the runs whose time is known, as many at once as there are workers; None: of none
    seconds_known_for  number of these runs;  disk_known_for  of those whose size is known
    disk_bytes         at the peak while they run, and disk_bytes_at_end afterwards; None: of none
    free_bytes         in the folder of the runs
    time, disk         lines for a person;  notes  further ones
    refused            run -> why it cannot start
    """

    seconds: float | None = None
    seconds_known_for: int = 0
    disk_bytes: float | None = None
    disk_bytes_at_end: float | None = None
    disk_known_for: int = 0
    free_bytes: int | None = None
    time: str = ""
    disk: str = ""
    notes: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        return [line for line in (self.time, self.disk, *self.notes) if line]


def estimate_cost(
    pending: Sequence[Settings],
    paths: Iterable[str | Path] = (),
    workers: int = 1,
    measure: RunTimer | None = None,
    preflight: Preflight | None = None,
) -> RunCost:
    """Return the time and disk space that runs need. Runs whose data are missing count, too.

    paths      where finished runs may be; workers: number of parallel runs
    measure    estimates a run's seconds by trying it, once for each experiment; None: finished runs give the estimate
    preflight  checks the runs; None: they are not checked
    """
    cost = RunCost()
    if not (checked := _check_runs(cost, pending, preflight)):
        return cost
    runs = [settings for settings, _ in checked]
    past = past_runs(runs, paths)
    estimates = estimate_runs(runs, past)
    workers = min(workers, len(runs))
    if measure is None:
        seconds = [None if one is None else one.seconds + START_RUN for one in estimates]
        start = START + (0.0 if preflight is None else preflight.seconds)
        cost.time = describe_time(runs, estimates, workers, start, past)
    else:
        seconds, start = measured_seconds(runs, measure), START
        cost.time = describe_measured_time(runs, seconds, workers)
    if known := [one for one in seconds if one is not None]:
        cost.seconds, cost.seconds_known_for = _total_seconds(known, workers, start), len(known)
    rows = zip(checked, estimates, seconds, strict=True)
    sizes = [_run_bytes(*run, estimate, took) for run, estimate, took in rows]
    _add_disk(cost, sizes, workers, existing_folder(runs[0].directory.absolute().parent))
    return cost


def _check_runs(
    cost: RunCost, pending: Sequence[Settings], preflight: Preflight | None
) -> list[tuple[Settings, Found]]:
    """Return the runs that can start, or lack only data, and the known facts about them.

    ``cost`` gets refusals, and notes on data, refusals and the cost of server steps, with the number of their runs.
    """
    said, sets, checked = Counter[str](), dict[str, dict[str, None]](), []
    for settings in pending:
        try:
            found = Found() if preflight is None else preflight.check(settings)
        except BenchError as error:
            said[f"refused: {error}"] += 1
            if isinstance(error, MissingData):
                checked.append((settings, outline_run(settings)))
            else:
                cost.refused[settings.identity] = str(error)
            continue
        checked.append((settings, found))
        if found.cost:
            said[f"server: {found.cost}"] += 1
        if found.download:
            said["data: missing, the first run downloads them"] += 1
        elif preflight is not None:
            where = f" (found in {settings.data_dir})" if "download" in settings.tree["dataset"] else ""
            sets.setdefault(where, {})[str(settings.choices.get("dataset"))] = None
    data = ", ".join(f"{', '.join(names)}{where}" for where, names in sets.items())
    cost.notes = [f"data: {data}"] * bool(data) + [f"{line} ({count_runs(count)})" for line, count in said.items()]
    return checked


# -- time -------------------------------------------------------------------------------------------------------------


def past_runs(pending: Sequence[Settings], paths: Iterable[str | Path] = ()) -> Past:
    """Return the finished runs in the runs' folder, their archives and ``paths``."""
    from ..tracking.archive import archive_folders  # brings NumPy

    own = {settings.directory.parent for settings in pending}
    archives = [path for name in {one.root.archive_dir for one in pending} for path in archive_folders(name)]
    found: dict[tuple, list[FinishedRun]] = {}
    for one in finished_in([*own, *paths, *archives]):
        found.setdefault(tuple(one.summary.get(group) for group in GROUPS), []).append(one)
    return found


def estimate_runs(pending: Sequence[Settings], past: Past, device: str | None = None) -> list[Estimate | None]:
    """Return an estimate of each run by finished runs on the same kind of device, or on ``device``; see
    ``similar_runs``."""
    kinds = {choice: device or chosen_kind(choice) for choice in {one.root.device for one in pending}}
    estimates = []
    for settings in pending:
        alike = past.get(tuple(settings.choices[group] for group in GROUPS), ())
        same = [one for one in alike if one.device in (kinds[settings.root.device], None)]
        estimates.append(similar_runs(settings, same))
    return estimates


def describe_time(
    runs: Sequence[Settings], estimates: Sequence[Estimate | None], workers: int, start: float, past: Past
) -> str:
    """Return the time that runs take as text, with that of runs alike on other kinds of devices.

    start  seconds of a process before its first run;  past  finished runs
    """
    known = [one for one in estimates if one is not None]
    lacking = [run for run, one in zip(runs, estimates, strict=True) if one is None]
    elsewhere = ""
    for device in sorted({one.device for alike in past.values() for one in alike if one.device} if lacking else ()):
        others = [one for one in estimate_runs(lacking, past, device) if one is not None]
        if took := sum(one.seconds for one in others):
            elsewhere += ", " if elsewhere else "; runs alike took elsewhere: "
            elsewhere += f"{count_runs(len(others))} about {clock_text(took)} on {_name_device(device)}"
    if not known:
        where = " and ".join(sorted({_name_device(chosen_kind(one.root.device)) for one in lacking}))
        why = f"no run alike is finished there ({ALIKE})"
        return f"time: unknown on {where} for {count_runs(len(runs))}, {why}{elsewhere}; --measure tries them"
    seconds, evaluation = [one.seconds + START_RUN for one in known], sum(one.evaluation for one in known)
    is_archived = any(run.is_archived for one in known for run in one.runs)
    where = ", some of them perhaps of another machine" if is_archived else ""
    rest = f", without {count_runs(len(lacking))} like no finished run{elsewhere}; --measure tries them"
    total = _describe_total(seconds, workers, len(runs), start)
    shares = f"{start:.0f} s of it to start, {evaluation / sum(seconds):.0%} of the rest to evaluate"
    return f"{total} ({shares}), as finished runs alike took{where}{rest if lacking else ''}"


def _name_device(kind: str) -> str:
    return "a CPU" if kind == "CPU" else "a GPU" if kind == "GPU" else kind


def measured_seconds(pending: Sequence[Settings], measure: RunTimer) -> list[float | None]:
    """Return the seconds of each run, each experiment tried once; None if a trial does not tell."""
    experiments = [settings.experiment for settings in pending]
    tried = {name: measure(settings) for name, settings in dict(zip(experiments, pending, strict=True)).items()}
    return [tried[name] for name in experiments]


def describe_measured_time(pending: Sequence[Settings], seconds: Sequence[float | None], workers: int) -> str:
    """Return the time that runs take as text, by trials of their experiments."""
    count, known = len({settings.experiment for settings in pending}), [one for one in seconds if one is not None]
    trials, unknown = f"{count} short trial{'s' * (count != 1)} here", len(seconds) - len(known)
    if not known:
        return f"time: unknown, no upload came in {trials}; a limit such as budget.uploads tells"
    rest = f", without {count_runs(unknown)} of which no upload came" if unknown else ""
    return f"{_describe_total(known, workers, len(pending), START)}, by {trials}{rest}"


def _total_seconds(seconds: Sequence[float], workers: int, start: float) -> float:
    return start + max(sum(seconds) / workers, *seconds, 1)


def _describe_total(seconds: Sequence[float], workers: int, pending: int, start: float) -> str:
    """Return the time of runs that take so long each: ``time: about 0:02:36 with 2 workers``."""
    how = f" with {workers} workers" if workers > 1 else ", one run after another" if pending > 1 else ""
    return f"time: about {clock_text(_total_seconds(seconds, workers, start))}{how}"


# -- disk -------------------------------------------------------------------------------------------------------------


def _add_disk(cost: RunCost, sizes: Sequence[tuple[float, float] | None], workers: int, there: Path) -> None:
    """Add the disk space of run directories: bytes that finished runs keep, and further bytes while runs are active.

    sizes  of ``_run_bytes``;  there  folder of the runs
    """
    known = [size for size in sizes if size is not None]
    cost.free_bytes = shutil.disk_usage(there).free
    need = "unknown, no run alike is finished"
    if known:
        cost.disk_known_for, cost.disk_bytes_at_end = len(known), sum(at_end for at_end, _ in known)
        besides = sorted((peak - at_end for at_end, peak in known), reverse=True)
        cost.disk_bytes = cost.disk_bytes_at_end + sum(besides[:workers])
        need = f"about {describe_size(cost.disk_bytes)}"
        if (at_end := describe_size(cost.disk_bytes_at_end)) != describe_size(cost.disk_bytes):
            need += f" at the peak, {at_end} at the end"
        if len(known) < len(sizes):
            need += f" for {len(known)} of {len(sizes)} runs (unknown for the others)"
    cost.disk = f"disk: {need}; {describe_size(cost.free_bytes)} are free in {there}"


def _run_bytes(
    settings: Settings, found: Found, estimate: Estimate | None, seconds: float | None
) -> tuple[float, float] | None:
    """Return the bytes of a run's directory at its end and at the most; None if the size of the model is unknown.

    They are those of checkpoints, models, points, traces and uploads, and of a cache on disk while the run computes.
    """
    size, samples, classes = found.size, found.samples, found.classes
    if size is None and estimate is not None:  # the data are missing: by a run alike
        task = estimate.runs[0].summary.get("task") or {}
        size, samples, classes = Size(estimate.d), task.get("train_samples", 0), task.get("classes", 0)
    if size is None or not size.d:
        return None
    d, config, used = size.d, settings.checkpoint, settings.budget.amounts if estimate is None else estimate.used
    is_known = found.samples > 0 or not settings.needs.cuts
    state = memory.checkpoint_needs(settings, size, samples, classes) if is_known else memory.MemoryNeeds(4 * d)
    minutes = math.inf if seconds is None else seconds / 60  # a run of unknown length may be long
    is_large = state.total > config.at_end_mib * 2**20
    repeated = config.every is not None or (config.every_minutes is not None and minutes > config.every_minutes)
    # the one before the last is kept, and a new one is whole before it takes a place
    at_end, at_most = (2, 3) if repeated else (0, 0) if is_large else (1, 1)
    models = 8.0 * d if settings.root.trace else 0.0
    rows = used.get("uploads", used.get("server_iterations", 0)) if settings.root.trace else 0
    tables = POINT * count_points(settings.tree, used) + TRACE_ROW * rows
    rest = FILES + models + tables + memory.kept_bytes(settings.kept_uploads, d)
    return rest + at_end * state.total, rest + at_most * state.total + state.disk


@dataclass
class Preview:
    """jobs: each with its state (finished, archived, pending or refused) and the directory or archive of its run."""

    jobs: list[tuple[Job, str, Path | None]]
    cost: RunCost

    def count(self, *states: str) -> int:
        """Return how many jobs have one of these states."""
        return sum(state in states for _, state, _ in self.jobs)

    def __str__(self) -> str:
        from ..tracking.archive import describe_archive_folders  # brings NumPy

        jobs = [job for job, _, _ in self.jobs]
        done, packed = self.count("finished", "archived"), self.count("archived")
        pending = sum(job.settings is not None for job in jobs) - done
        lines = [f"{count_runs(len(jobs))}, {done} of them finished ({packed} in archives), {pending} pending"]
        names = sorted({job.settings.root.archive_dir for job in jobs if job.settings is not None})
        lines += [f"{describe_archive_folders(name)}; --archive DIR names another folder" for name in names]
        lines += [f"  {key}: {','.join(values)}" for key, values in varied_values(jobs).items()]
        lines += describe_planning(jobs)
        if refused := [job for job in jobs if job.settings is None]:
            lines.append(f"{len(refused)} cannot run, the first: {' '.join(refused[0].overrides)}: {refused[0].error}")
        return "\n".join([*lines, *self.cost.lines])


def preview_jobs(
    jobs: Sequence[Job],
    paths: Iterable[str | Path] = (),
    workers: int = 1,
    measure: RunTimer | None = None,
    preflight: Preflight | None = None,
    launcher: Mapping[str, Any] | None = None,
) -> Preview:
    """Return what jobs would run.

    launcher  settings of ``hydra/launcher=gpu``, if it runs them
    The others are those of ``estimate_cost``.
    """
    found = find_finished(jobs)
    pending = settings_of(job for job, result in found if result is None)
    room = find_room(launcher, pending) if launcher is not None and pending else None
    cost = estimate_cost(pending, paths, room.count if room else workers, measure, preflight)
    cost.notes += [room.reason] if room else []
    rows: list[tuple[Job, str, Path | None]] = []
    for job, result in found:
        if result is not None:
            rows.append((job, "archived" if result.directory.is_file() else "finished", result.directory))
        else:
            is_refused = job.settings is None or job.settings.identity in cost.refused
            rows.append((job, "refused" if is_refused else "pending", None))
    return Preview(rows, cost)
