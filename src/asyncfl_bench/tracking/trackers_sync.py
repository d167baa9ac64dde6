"""``afl-run --sync``: sends offline runs to W&B once. The pieces of an interrupted run become one run.

Runs of an archive are first written as offline runs in the user's cache. W&B's marks there show which were sent.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import BenchError, ConfigError
from ..files import cache_folder, expand_home, is_locked, read_text, say, show
from .archive import NAME, archive_around, archive_of_paper, read_archive
from .rundir import LOCK_NAME
from .trackers import RunFacts
from .trackers_wandb import OWNER_NAME, WandbTracker, WandbTrackerConfig

_FILES = "wandb/offline-run-*/run-*.wandb"
_IDENTITY = re.compile("[0-9a-f]{8}")
_LONGEST_WAIT = 600  # seconds without a piece that is sent
_SECONDS_BETWEEN_LINES = 15
_SECONDS_TO_WRITE = 10
_FILE_HEADER, _CHUNK_HEADER, _BLOCK = 7, 7, 2**15  # bytes of W&B's files, LevelDB's logs


def send_offline_runs(folders: list[str]) -> int:
    """Send the offline runs below ``folders`` by ``wandb sync`` and print them. Returns the exit code.

    W&B marks sent runs, so a run is sent once. Pieces with one id are sent in the order of their start. A running run
    is skipped, because its piece would be marked after half of it was sent.
    """
    paths = []
    for path in (expand_home(folder, "--sync") for folder in folders):
        if (path.is_file() and path.suffix == ".parquet") or (path.is_dir() and path.name == NAME):
            paths += _stage_archive(path)
        elif not path.is_dir():
            raise ConfigError("--sync", path, "no such folder; afl-run --sync DIR names the one with the runs")
        elif (path / "README.md").exists() and (page := archive_of_paper(path.resolve().parent.parent)):
            paths += _stage_archive(page, path)  # of results/PAPER/ITEM/PROFILE-SCALE
        else:
            paths.append(path)
    found = sorted({file.resolve() for path in paths for file in path.rglob(_FILES)})
    under_way = [file for file in found if is_locked(_run_directory(file) / LOCK_NAME)]
    pending = [file for file in found if file not in under_way and not _is_sent(file)]
    running = f", {_count_text(under_way)} still running" if under_way else ""
    sent = [file for file in found if _is_sent(file)]
    show(f"{_count_text(pending)} to send, {_count_text(sent)} sent before{running}")
    if not pending:
        return 0
    answer = _run_wandb_sync(pending)
    left = [file for file in pending if not _is_sent(file)]
    for name in sorted({_run_id(file) for file in pending} - {_run_id(file) for file in left}):
        pieces = [file for file in pending if _run_id(file) == name]
        parts = f" ({len(pieces)} pieces)" if len(pieces) > 1 else ""
        show(f"sent {name}{parts} from {pieces[0].parents[2]}")
    if left:
        said = [line for line in answer.splitlines() if "rror" in line] or ["no reason given"]
        raise BenchError(f"{_count_text(left)} not sent ({said[-1].strip()}); the same command tries again")
    return 0


def _run_wandb_sync(files: list[Path]) -> str:
    """Send offline runs by ``wandb sync`` and return its output, with a line every ``_SECONDS_BETWEEN_LINES``.

    The command is killed if no piece was sent for ``_LONGEST_WAIT``.
    """
    command = [sys.executable, "-m", "wandb", "sync", *map(str, files)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    since, sent = time.monotonic(), 0
    try:
        while True:
            try:
                return process.communicate(timeout=_SECONDS_BETWEEN_LINES)[0]
            except subprocess.TimeoutExpired:
                before, sent = sent, sum(map(_is_sent, files))
                since = time.monotonic() if sent > before else since
            if (waited := time.monotonic() - since) > _LONGEST_WAIT:
                return f"Error: W&B's server took no run in {waited:.0f} s"
            say(f"{sent} of {len(files)} pieces sent, none in the last {waited:.0f} s")
    finally:
        process.kill()
        process.communicate()


def _stage_archive(archive: Path, page: Path | None = None) -> list[Path]:
    """Write new runs of an archive as offline runs. Returns the folders of all its offline runs.

    page  folder of a page: only the runs of its sweep, and its figures as a run of its name
    """
    from wandb import Image

    records, folders = read_archive(archive), []
    group = archive_around(archive).parent.name
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
        figures = sorted(page.glob("*.png"))
        run_id = f"page-{_digest(b''.join(figure.read_bytes() for figure in figures))}"  # changed ones are another run
        row: dict[str, object] = {figure.stem: Image(str(figure)) for figure in figures}
        folders.append(_stage_run(run_id, group, group, {}, [row], {"exit_status": "ok"}))
    for record in records:
        if not _IDENTITY.fullmatch(str(record.identity)):  # it becomes the name of a folder
            say(f"{archive}: left out {record.name}: its identity must be 8 hex digits, found {record.identity}")
            continue
        rows = [
            {name: value for name, value in zip(record.points, values, strict=True) if value == value}
            for values in zip(*(column.tolist() for column in record.points.values()), strict=True)
        ]
        run_id = f"{record.identity}-{_digest(json.dumps(rows).encode())}"  # a rerun is another run of W&B's
        folders.append(_stage_run(run_id, record.name, group, record.config, rows, record.summary))
    return folders


def _stage_run(
    run_id: str, name: str, group: str, config: dict, rows: Sequence[dict[str, object]], summary: dict
) -> Path:
    """Write one offline run unless it exists, and return its folder, which appears when the run is complete.

    Raises BenchError if W&B did not write the whole run.
    """
    folder = cache_folder() / "wandb" / run_id
    if _has_whole_run(folder):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as unfinished:
        staged = Path(unfinished) / run_id
        staged.mkdir()
        tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
        tracker.start(RunFacts(config, name, run_id, group, staged))
        for row in rows:
            tracker.log(row)
        tracker.finish(summary, 0 if summary.get("exit_status") == "ok" else 1)
        until = time.monotonic() + _SECONDS_TO_WRITE
        while not (tracker.gave_up or _has_whole_run(staged) or time.monotonic() > until):
            time.sleep(0.1)  # W&B's own process writes the last records
        if tracker.gave_up or not _has_whole_run(staged):
            full = f"W&B did not write the whole run to {folder.parent}, whose disk may be full"
            raise BenchError(f"{name}: {full}; the same command tries again")
        try:
            staged.rename(folder)
        except OSError:  # another process was first
            if not _has_whole_run(folder):
                raise
    return folder


def _has_whole_run(folder: Path) -> bool:
    """Return True if an offline run in the folder was sent, or ends with the record of the run's end."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    for file in folder.glob(_FILES):
        if _is_sent(file):
            return True
        content, offset, record = file.read_bytes(), _FILE_HEADER, b""
        while offset + _CHUNK_HEADER <= len(content):
            if (rest := _BLOCK - offset % _BLOCK) < _CHUNK_HEADER:  # too short for a header
                offset += rest
                continue
            length, kind = int.from_bytes(content[offset + 4 : offset + 6], "little"), content[offset + 6]
            chunk = content[offset + _CHUNK_HEADER : offset + _CHUNK_HEADER + length]
            record = chunk if kind <= 2 else record + chunk  # 1: a whole record, 2: its first part
            offset += _CHUNK_HEADER + length
        if offset == len(content) and Record.FromString(record).HasField("exit"):
            return True
    return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _run_directory(file: Path) -> Path:
    """Return the directory of the run whose offline run is in ``file``."""
    owner = file.with_name(OWNER_NAME)
    return Path(read_text(owner, errors="replace").replace("\0", "")) if owner.exists() else file.parents[2]


def _is_sent(file: Path) -> bool:
    return file.with_name(f"{file.name}.synced").exists()


def _run_id(file: Path) -> str:
    return file.stem.removeprefix("run-")


def _count_text(files: list[Path]) -> str:
    """Return the number of runs with its noun: ``2 runs``."""
    number = len({_run_id(file) for file in files})
    return f"{number} run{'s' * (number != 1)}"
