"""``afl-run --sync``: what W&B kept offline is sent, once; the pieces of a run that was interrupted become one run.

Runs of an archive are first written as offline runs, below the user's cache, whose marks say what was sent.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import BenchError, ConfigError
from ..files import cache_folder, expand_home, is_locked, show
from .rundir import LOCK_NAME
from .trackers_wandb import OWNER_NAME

_FILES = "wandb/offline-run-*/run-*.wandb"


def send_offline_runs(folders: list[str]) -> int:
    """Send the offline runs below ``folders`` by ``wandb sync`` and print what was sent. Returns the exit code.

    W&B marks what it has sent, so nothing is sent twice; it sends pieces with one id in the order of their start. A
    run that has not ended is left for later: its piece would be marked with half of it sent.
    """
    places = []
    for place in (expand_home(folder, "--sync") for folder in folders):
        if place.is_file() and place.suffix == ".parquet":
            places += _stage_archive(place)
        elif not place.is_dir():
            raise ConfigError("--sync", place, "no such folder; afl-run --sync DIR names the one with the runs")
        elif page := _archive_of_page(place):
            places += _stage_archive(page, place)
        else:
            places.append(place)
    found = sorted({file.resolve() for place in places for file in place.rglob(_FILES)})
    under_way = [file for file in found if is_locked(_run_directory(file) / LOCK_NAME)]
    pending = [file for file in found if file not in under_way and not _is_sent(file)]
    running = f", {_count_text(under_way)} still running" if under_way else ""
    sent = [file for file in found if _is_sent(file)]
    show(f"{_count_text(pending)} to send, {_count_text(sent)} sent before{running}")
    if not pending:
        return 0
    command = [sys.executable, "-m", "wandb", "sync", *map(str, pending)]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace")
    left = [file for file in pending if not _is_sent(file)]
    for name in sorted({_run_id(file) for file in pending} - {_run_id(file) for file in left}):
        pieces = [file for file in pending if _run_id(file) == name]
        parts = f" ({len(pieces)} pieces)" if len(pieces) > 1 else ""
        show(f"sent {name}{parts} from {pieces[0].parents[2]}")
    if left:
        said = [line for line in (answer.stdout + answer.stderr).splitlines() if "rror" in line] or ["no reason given"]
        raise BenchError(f"{_count_text(left)} not sent ({said[-1].strip()}); the same command tries again")
    return 0


def _archive_of_page(folder: Path) -> Path | None:
    """Return the archive with the runs of a paper's page (``results/PAPER/ITEM/PROFILE-SCALE``), or None."""
    from .archive import NAME

    archive = folder.resolve().parent.parent / NAME
    return archive if (folder / "README.md").exists() and archive.exists() else None


def _stage_archive(archive: Path, page: Path | None = None) -> list[Path]:
    """Write the runs of an archive as offline runs where that was not done before. Returns their folders.

    page  the folder of a page: only its sweep's runs, and its figures as a run of its name
    """
    from .archive import read_archive

    records, places = read_archive(archive), []
    group = archive.parent.name
    if page is not None:
        group = "/".join(page.resolve().parts[-3:])
        keys = ("profile", "scale", "length")
        chosen = [record.config.get("choices", {}) for record in records]
        names = [
            f"{of.get('sweep')}/{'-'.join(str(of[key]) for key in keys if of.get(key) not in (None, 'standard'))}"
            for of in chosen
        ]
        records = [record for record, name in zip(records, names, strict=True) if name == group]
        if not records:
            raise BenchError(f"{page}: {archive} has no run of {group}")
        places.append(_stage_figures(group, sorted(page.glob("*.png"))))
    for record in records:
        rows = [
            {name: value for name, value in zip(record.points, values, strict=True) if value == value}
            for values in zip(*(column.tolist() for column in record.points.values()), strict=True)
        ]
        run_id = f"{record.identity}-{_digest(json.dumps(rows).encode())}"  # a rerun is another run of W&B's
        places.append(_stage_run(run_id, record.name, group, record.config, rows, record.summary))
    return places


def _stage_figures(name: str, figures: Sequence[Path]) -> Path:
    """Write a run whose only point are the figures; other figures are another run."""
    from wandb import Image

    run_id = f"page-{_digest(b''.join(figure.read_bytes() for figure in figures))}"
    row: dict[str, object] = {figure.stem: Image(str(figure)) for figure in figures}
    return _stage_run(run_id, name, name, {}, [row], {"exit_status": "ok"})


def _stage_run(
    run_id: str, name: str, group: str, config: dict, rows: Sequence[dict[str, object]], summary: dict
) -> Path:
    """Write one offline run unless it is there. Returns its folder, which appears when all of the run is in it. Raises
    BenchError if W&B did not take all of it."""
    from .trackers import RunFacts
    from .trackers_wandb import WandbTracker, WandbTrackerConfig

    folder = cache_folder() / "wandb" / run_id
    if list(folder.glob(_FILES)):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as unfinished:
        place = Path(unfinished) / run_id
        place.mkdir()
        tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
        tracker.start(RunFacts(config, name, run_id, group, place))
        for row in rows:
            tracker.log(row)
        tracker.finish(summary, 0 if summary.get("exit_status") == "ok" else 1)
        if tracker.gave_up or not list(place.glob(_FILES)):
            raise BenchError(f"{name}: W&B did not write the whole run; the same command tries again")
        try:
            place.rename(folder)
        except OSError:  # another process was first
            if not list(folder.glob(_FILES)):
                raise
    return folder


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _run_directory(file: Path) -> Path:
    """Return the directory of the run whose offline run is in ``file``."""
    owner = file.with_name(OWNER_NAME)
    return Path(owner.read_text(encoding="utf-8")) if owner.exists() else file.parents[2]


def _is_sent(file: Path) -> bool:
    return file.with_name(f"{file.name}.synced").exists()


def _run_id(file: Path) -> str:
    return file.stem.removeprefix("run-")


def _count_text(files: list[Path]) -> str:
    """Return the number of runs with its noun: ``2 runs``."""
    number = len({_run_id(file) for file in files})
    return f"{number} run{'s' * (number != 1)}"
