"""An estimate of a multirun before it starts: ``afl-run … --plan``."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..config import Settings
from ..data.base import MissingData
from ..errors import BenchError
from ..experiment.machine import existing_folder
from ..experiment.memory import kept_bytes
from ..experiment.preflight import Found, Preflight
from ..storage import describe_size
from ..tracking.progress import clock_text
from .history import GROUPS, Estimate, count_points, finished_in, runs_by_algorithm, similar_runs
from .jobs import Job, describe_ignored_overrides
from .pending import find_finished
from .progress import count_runs, varied_keys

START, START_RUN = 4.0, 0.3  # seconds before the first run of a process, most of them to import torch; before each run
FILES, POINT, TRACE_ROW = 5000, 800, 60  # bytes of a run's texts, of a point in metrics.jsonl, of a row in a trace


def describe_plan(
    jobs: Sequence[Job],
    kept: Mapping[str, Path],
    places: Iterable[str | Path] = (),
    workers: int = 1,
    measure: Callable[[Settings], float] | None = None,
    preflight: Preflight | None = None,
) -> str:
    """Return the plan as text: the numbers of all and of finished runs, and what the pending runs take.

    kept       see ``pending.places_of``; places: where other finished runs may be; workers: number of parallel runs
    measure    what gives a run's seconds by trying it, once for each experiment; None: finished runs tell
    preflight  checks the pending runs; None: they are not checked
    """
    from ..tracking.archive import describe_archive_folders  # brings NumPy

    known = [(job, job.settings) for job in jobs if job.settings is not None]
    found = find_finished([job for job, _ in known], kept)
    done = [result for result in found if result is not None]
    pending = [settings for (_, settings), result in zip(known, found, strict=True) if result is None]
    packed = sum(result.directory.is_file() for result in done)
    lines = [f"{count_runs(len(jobs))}, {len(done)} of them finished ({packed} in archives), {len(pending)} pending"]
    names = sorted({settings.root.archive_dir for _, settings in known})
    lines += [f"{describe_archive_folders(name)}; --archive DIR names another folder" for name in names]
    lines += [f"  {axis}" for axis in _describe_axes(jobs)]
    lines += describe_ignored_overrides(jobs)
    if refused := [job for job in jobs if job.settings is None]:
        lines.append(f"{len(refused)} cannot run, the first: {' '.join(refused[0].overrides)}: {refused[0].error}")
    if not pending:
        return "\n".join(lines)
    return "\n".join([*lines, *describe_pending(pending, places, workers, measure, preflight)])


def describe_pending(
    pending: Sequence[Settings],
    places: Iterable[str | Path] = (),
    workers: int = 1,
    measure: Callable[[Settings], float] | None = None,
    preflight: Preflight | None = None,
) -> list[str]:
    """Return lines with the time and disk of runs, and why runs are refused. Runs whose data are missing count, too."""
    facts, said, sets = dict[int, Found](), Counter[str](), dict[str, dict[str, None]]()
    for settings in pending:
        try:
            found = Found() if preflight is None else preflight.check(settings)
            said.update([f"server: {found.cost}"] if found.cost else [])
            if found.download:
                said.update(["data: missing, the first run downloads them"])
            elif preflight is not None:
                of_folder = "download" in settings.tree["dataset"]
                where = f" (found in {settings.data_dir})" if of_folder else ""
                sets.setdefault(where, {})[str(settings.choices.get("dataset"))] = None
        except BenchError as error:
            said.update([f"refused: {error}"])
            if not isinstance(error, MissingData):
                continue
            found = Found()
        facts[id(settings)] = found
    lines = [f"{line} ({count_runs(count)})" for line, count in said.items()]
    runs = [settings for settings in pending if id(settings) in facts]
    if not runs:
        return lines
    estimates = estimate_runs(runs, places, list(facts.values()))
    workers = min(workers, len(runs))
    start = START + (0.0 if preflight is None else preflight.seconds)
    if measure is None:
        time = describe_time([one for one in estimates if one is not None], len(runs), workers, start)
    else:
        time = describe_measured_time(runs, workers, measure)
    data = ", ".join(f"{', '.join(names)}{where}" for where, names in sets.items())
    lines = [f"data: {data}", *lines] if data else lines
    return [time, _describe_disk(runs, list(facts.values()), estimates), *lines]


def estimate_runs(
    pending: Sequence[Settings], places: Iterable[str | Path] = (), facts: Sequence[Found] = ()
) -> list[Estimate | None]:
    """Return an estimate of each run, see ``similar_runs``.

    places  where finished runs may be besides the runs' own folder and archives
    facts   of each run; empty: unknown
    """
    from ..tracking.archive import archive_folders  # brings NumPy

    own = {settings.directory.parent for settings in pending}
    archives = [place for name in {one.root.archive_dir for one in pending} for place in archive_folders(name)]
    past = runs_by_algorithm(finished_in([*own, *places, *archives]))
    kinds = [tuple(settings.choices[group] for group in GROUPS[:2]) for settings in pending]
    rows = zip(pending, kinds, facts or [Found()] * len(pending), strict=True)
    return [similar_runs(settings, past.get(kind, []), found) for settings, kind, found in rows]


def _describe_axes(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield each axis with its values: ``seed: 0,1,2``."""
    keys = varied_keys(jobs)
    values: dict[str, dict[str, None]] = {}
    for job in jobs:
        for text in job.overrides:
            key, _, value = text.partition("=")
            values.setdefault(key, {})[value] = None
    yield from (f"{key}: {','.join(listed)}" for key, listed in values.items() if key in keys)


def describe_time(estimates: Sequence[Estimate], pending: int, workers: int, start: float = START) -> str:
    """Return the time that ``pending`` runs take as text. estimates: of those runs whose like is finished; start:
    seconds of a process before its first run."""
    if not estimates:
        alike = "algorithm, data and model; with budget.virtual_time also delays and availability"
        return f"time: unknown for {count_runs(pending)}, no run alike is finished ({alike}); --measure tries them"
    seconds, evaluation = [one.seconds + START_RUN for one in estimates], sum(one.evaluation for one in estimates)
    where = ", some of them perhaps of another machine" if any(one.from_archive for one in estimates) else ""
    unknown = pending - len(seconds)
    rest = f", without {count_runs(unknown)} like no finished run; --measure tries them" if unknown else ""
    total = _describe_total(seconds, workers, pending, start)
    shares = f"{start:.0f} s of it to start, {evaluation / sum(seconds):.0%} of the rest to evaluate"
    return f"{total} ({shares}), as finished runs alike took{where}{rest}"


def describe_measured_time(pending: Sequence[Settings], workers: int, measure: Callable[[Settings], float]) -> str:
    """Return the time that runs take as text, each experiment tried once by ``measure``."""
    experiments = [settings.experiment for settings in pending]
    tried = {name: measure(settings) for name, settings in dict(zip(experiments, pending, strict=True)).items()}
    seconds = [tried[name] for name in experiments]
    trials = f"{len(tried)} short trial{'s' * (len(tried) != 1)} here"
    return f"{_describe_total(seconds, workers, len(pending), START)}, by {trials}"


def _describe_total(seconds: Sequence[float], workers: int, pending: int, start: float) -> str:
    """Return the time of runs that take so long each: ``time: about 0:02:36 with 2 workers``."""
    total = start + max(sum(seconds) / workers, *seconds, 1)
    how = f" with {workers} workers" if workers > 1 else ", one run after another" if pending > 1 else ""
    return f"time: about {clock_text(total)}{how}"


def _describe_disk(runs: Sequence[Settings], facts: Sequence[Found], estimates: Sequence[Estimate | None]) -> str:
    sizes = [
        _run_bytes(settings, found, estimate) for settings, found, estimate in zip(runs, facts, estimates, strict=True)
    ]
    there = existing_folder(runs[0].directory.absolute())
    free = describe_size(shutil.disk_usage(there).free)
    known = [size for size in sizes if size is not None]
    need = f"about {describe_size(sum(known))}" if known else "unknown, no run alike is finished"
    if 0 < len(known) < len(runs):
        need += f" for {len(known)} of {len(runs)} runs (unknown for the others)"
    return f"disk: {need}; {free} are free in {there}"


def _run_bytes(settings: Settings, found: Found, estimate: Estimate | None) -> float | None:
    """Return the bytes of a run's directory: checkpoint, models, points, trace and uploads; None if d is unknown."""
    d = found.size.d if found.size is not None else estimate.d if estimate is not None else 0
    if not d:
        return None
    config, used = settings.checkpoint, settings.budget.amounts if estimate is None else estimate.used
    state = 4.0 * d if found.state is None else found.state
    minutes = math.inf if estimate is None else estimate.seconds / 60  # a run of unknown length may be long
    is_large = state > config.at_end_mib * 2**20
    repeated = config.every is not None or (config.every_minutes is not None and minutes > config.every_minutes)
    checkpoints = 2 if repeated else 0 if is_large else 1  # the one before the last is kept
    models = 8.0 * d if settings.root.trace else 0.0
    rows = used.get("uploads", used.get("server_iterations", 0)) if settings.root.trace else 0
    tables = POINT * count_points(settings.tree, used) + TRACE_ROW * rows
    return FILES + checkpoints * state + models + tables + kept_bytes(settings, d)
