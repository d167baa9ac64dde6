"""A run's whole state in one file, replaced atomically, with the previous one kept; and resuming from it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.settings import OBSERVERS, Settings
from ..diagnostics.base import has_diagnostics
from ..errors import BenchError, ConfigError, first_line, typed_line
from ..files import atomic_write, read_tensors, say
from ..simulation.budget import Counters
from ..storage import bytes_of
from ..tracking.records import read_directory
from ..tracking.rundir import CHECKPOINT_NAME, RunDirectory
from .result import FILES, say_changed_code

if TYPE_CHECKING:
    from .components import Components
    from .evaluate import Evaluations, Stopwatch

FORMAT = "asyncfl_bench checkpoint 3"  # raised whenever a key of a checkpoint changes
PARTS = (
    *("data", "simulation", "rule", "executor", "model_d", "evaluations", "diagnostics"),
    *("checkpoint_iteration", "wall_time", "computed_by"),
)


class DamagedState(BenchError):
    """A checkpoint that can be read but does not fit this run: refused also where an unreadable one is passed over."""


class Checkpoints:
    """Saves a run when a checkpoint is due, and restores it.

    computed_by  the executors that had a part in the run, in their order
    """

    def __init__(self, components: Components, evaluations: Evaluations, directory: RunDirectory, stopwatch: Stopwatch):
        self._settings, self._components, self._evaluations = components.settings, components, evaluations
        self._directory, self._stopwatch = directory, stopwatch
        self._diagnostics = self._settings.tree["diagnostics"]
        self._saved_at = time.monotonic()
        self._saved_iteration = 0
        self._problem: str | None = None  # why the last attempt to save failed
        self.computed_by = [components.executor_kind]

    # -- saving ------------------------------------------------------------------------------------------------------

    def save_if_due(self) -> None:
        config = self._settings.checkpoint
        iteration = self._components.simulation.counters.iteration
        by_count = config.every is not None and iteration >= self._saved_iteration + config.every
        minutes = (time.monotonic() - self._saved_at) / 60
        if by_count or (config.every_minutes is not None and minutes >= config.every_minutes):
            if (problem := self._try_save()) is not None and problem != self._problem:
                say(f"{problem}; the run continues and tries again")
            self._problem = problem

    def save_stopped(self) -> str | None:
        """Save a run that is to stop. Return the reason if that failed, else None."""
        if (problem := self._try_save(aloud=True)) is not None:
            kept = "its last checkpoint" if has_checkpoint(self._directory.checkpoint_path) else "the beginning"
            return f"{problem}; it resumes from {kept}"
        return None

    def _try_save(self, aloud: bool = False) -> str | None:
        try:
            self.save(aloud)
        except BenchError as error:
            return str(error)
        finally:
            self._saved_at = time.monotonic()
        return None

    def save(self, aloud: bool = False) -> None:
        """Save the state; ``aloud`` prints its size. Raises BenchError when the file cannot be written or would be
        larger than ``checkpoint.max_mib``; the one before it then stays."""
        parts, most = self._components, self._settings.checkpoint.max_mib
        self._saved_iteration = parts.simulation.counters.iteration
        of_observers = self._settings.tree[OBSERVERS]
        observers = {
            name: {"settings": of_observers[name], "state": one.state_dict()} for name, one in parts.observers.items()
        }
        state = {
            "data": parts.task.digest,
            "device": parts.device,
            **({FILES: parts.files} if parts.files else {}),
            **({"code": self._settings.code} if self._settings.code else {}),
            **({"code_digest": self._settings.code_digest} if self._settings.code_digest else {}),
            **parts.state_dict(),
            "diagnostics": {"settings": self._diagnostics, "state": parts.diagnostics.state_dict()},
            **({OBSERVERS: observers} if observers else {}),
            "checkpoint_iteration": self._saved_iteration,
            "wall_time": self._stopwatch.seconds,
            "computed_by": self.computed_by,
            "evaluations": self._evaluations.state_dict(),
        }
        size = bytes_of(state) / 2**20
        path, what = self._directory.checkpoint_path, f"a checkpoint of {size:.1f} MiB"
        if most is not None and size > most:
            raise BenchError(f"{path}: {what} is more than checkpoint.max_mib={most:g} allows")
        if aloud:
            say(f"saving {what}")
        with parts.stop.waits_for(what):
            self._directory.metrics.sync()  # never fewer lines on the disk than the checkpoint counts
            write_checkpoint(path, self._settings.identity, state, self._settings.results_version)

    # -- resuming ----------------------------------------------------------------------------------------------------

    def load(self) -> RunDirectory | None:
        """Restore the run from its checkpoint. Return the checkpoint's directory; None without one.

        A message names an unusable checkpoint, and the run starts from the beginning. With ``resume``, and for a
        checkpoint that must not be passed over, raises BenchError. Touches nothing on disk.
        """
        root, earlier = self._settings.root, self._settings.earlier
        directory, identity = self._directory, self._settings.identity
        if root.rerun:
            return None
        if earlier is not None and not has_checkpoint(directory.checkpoint_path):
            directory, identity = RunDirectory(earlier.directory), earlier.identity
        path = directory.checkpoint_path
        try:
            if (record := read_directory(directory.path)).status == "inconsistent":
                raise BenchError(f"{directory.path}: {record.note}")
            if earlier is None and not has_checkpoint(path):
                return None
            lines = directory.metrics.count_whole_lines()
            state, remarks = read_checkpoint(path, identity, lines, self._settings.results_version)
            self._check(state)
            self._load(state, path)
            began = state.get("code", {})
            say_changed_code(self._settings.code, began, "this run began; rerun=true starts from the beginning")
            self._settings.code |= began  # a run of two codes counts as one of the first
            self._settings.code_digest = state.get("code_digest", "")
        except BenchError as error:
            if root.resume or isinstance(error, DamagedState):
                raise
            say(f"{error}; starting from the beginning")
            return None
        for remark in remarks:
            say(f"{remark}; using the one before it")
        return directory

    def _check(self, state: dict) -> None:
        """Raise BenchError if the checkpoint does not fit the settings or the data."""
        directory, task = self._directory.path, self._components.task
        counters = Counters(**state["simulation"]["counters"])
        for key, limit in self._settings.budget.amounts.items():
            used = counters.used_of(key)
            if self._settings.earlier is not None and limit < used:
                raise ConfigError(f"budget.{key}", limit, f"must be at least {used:g}, what that run has used")
        files = self._components.files
        has_other_floats = not task.has_whole_samples and state.get(FILES, files) != files
        if state["data"] != task.digest or has_other_floats:
            source = task.source or self._settings.choices.get("dataset")
            raise DamagedState(
                f"{directory}: began with other samples than are there now ({source}); data_dir= names their "
                "directory, rerun=true starts from the beginning"
            )
        if absent := self._evaluations.parts().keys() - state["evaluations"].keys():
            what = "evaluation.average" if any(name.startswith("average") for name in absent) else "trace=true"
            raise BenchError(f"{directory}: {what} was not set from the start, so it would have gaps")
        if not has_diagnostics(state["diagnostics"]["settings"], self._diagnostics):
            raise BenchError(f"{directory}: these diagnostics were not made from the start")
        began = {name: saved["settings"] for name, saved in state.get(OBSERVERS, {}).items()}
        if not began.items() >= self._settings.tree[OBSERVERS].items():
            raise BenchError(f"{directory}: these observers were not there from the start")

    def _load(self, state: dict, path: Path) -> None:
        """Raise DamagedState for a state that does not fit the run, which is then unusable for anything else."""
        parts = self._components
        try:
            parts.load_state_dict(state)
            self._evaluations.load_state_dict(state["evaluations"])
            parts.diagnostics.load_state_dict(state["diagnostics"]["state"])
            for name, observer in parts.observers.items():
                observer.load_state_dict(state[OBSERVERS][name]["state"])
            self._saved_iteration = state["checkpoint_iteration"]
            self._stopwatch.before = state["wall_time"]
            self.computed_by = list(dict.fromkeys([*state["computed_by"], *self.computed_by]))
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DamagedState(
                f"{path}: does not fit this run ({typed_line(error)[:150]}); delete it to start again"
            ) from None


def write_checkpoint(path: Path, identity: str, state: dict, version: int = 0) -> None:
    """Write ``state`` (plain containers and tensors). The previous file is kept as ``<name>.previous``.

    version  results version of the run
    """
    import torch

    content = {"format": FORMAT, "results_version": version, "identity": identity, "state": state}
    try:
        with atomic_write(path, previous=previous_path(path)) as file:
            torch.save(content, file)
    except OSError as error:
        raise BenchError(f"{path}: the checkpoint could not be written: {error.strerror or error}") from error


def has_checkpoint(path: Path) -> bool:
    """Return True if there is a file to resume from."""
    return path.exists() or previous_path(path).exists()


def previous_path(path: Path) -> Path:
    return path.with_name(path.name + ".previous")


def stored_device(settings: Settings) -> str | None:
    """Return the device in the checkpoint that the run resumes from; None without a usable one."""
    folders = [settings.directory, *([settings.earlier.directory] if settings.earlier else [])]
    for path in () if settings.root.rerun else (folder / CHECKPOINT_NAME for folder in folders):
        for candidate in (path, previous_path(path)):
            try:
                device = read_tensors(candidate, mapped=True, checked=False)["state"].get("device")
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # ``read_checkpoint`` says what is wrong with it
            return device if isinstance(device, str) else None
    return None


def read_checkpoint(path: Path, identity: str, lines: float = math.inf, version: int = 0) -> tuple[dict, list[str]]:
    """Return (state, remarks) from ``path``, or from the previous file. The remarks describe unusable files.

    lines    sound lines of metrics.jsonl: a checkpoint written after more of them cannot be resumed from
    version  results version of the run
    Raises BenchError when neither can be used.
    """
    remarks: list[str] = []
    for candidate in (path, previous_path(path)):
        if not candidate.exists():
            continue
        try:
            return _read_one(candidate, identity, lines, version), remarks
        except DamagedState:
            raise
        except BenchError as error:
            remarks.append(str(error))
    raise BenchError("; ".join(remarks) or f"{path}: there is no checkpoint to resume from")


def _read_one(path: Path, identity: str, lines: float, version: int) -> dict:
    try:
        saved = read_tensors(path, mapped=True)
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: not a readable checkpoint ({first_line(error)[:100]})") from None
    known = saved.get("format") if isinstance(saved, dict) else None
    if known != FORMAT and str(known).startswith(FORMAT.rstrip("0123456789")):
        raise DamagedState(f"{path}: in the format of another version of this program; rerun=true runs it again")
    if known != FORMAT:
        raise BenchError(f"{path}: not a checkpoint of this program")
    if saved.get("identity") != identity:
        raise BenchError(f"{path}: belongs to run {saved.get('identity')}, not to {identity}: its settings differ")
    if saved.get("results_version") != version:
        raise BenchError(f"{path}: made by a version of this program that computes other numbers")
    state = saved.get("state")
    state = state if isinstance(state, dict) else {}
    missing = [part for part in PARTS if part not in state]
    if missing:
        raise BenchError(f"{path}: the checkpoint lacks {', '.join(missing)}")
    if state["evaluations"]["lines"] > lines:
        raise BenchError(
            f"{path}: written after {state['evaluations']['lines']} lines of metrics.jsonl, of which {lines} are sound"
        )
    return state
