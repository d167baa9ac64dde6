"""What a sweep still owes: its jobs minus the finished runs, launched so that no failure takes others with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .config import Settings
from .errors import EXIT_INTERRUPTED
from .experiment import finished

# the outcome of the sweep this process ran last: Hydra gives what a sweeper returns to nobody
last_result: SweepResult | None = None
launched = 0  # jobs of the sweep under way in this process

Launch = Callable[[Sequence[Sequence[str]], int], Sequence[Any]]


@dataclass
class Job:
    """One cell of a sweep: its overrides, and its settings (None where these cannot be composed, then ``error``)."""

    overrides: list[str]
    settings: Settings | None
    error: str | None = None


@dataclass
class SweepResult:
    """What came of a sweep. launched: jobs of this call; failed: (job, what happened)."""

    total: int
    launched: int
    failed: list[tuple[Job, str]]
    interrupted: bool = False


def run_owed(jobs: list[Job], launch: Launch, batch_size: int | None) -> SweepResult:
    """Launches every job without a finished run. Jobs tell their outcome by their run directories alone, so this works
    alike in this process, in others and on other machines that share the disk."""
    global last_result, launched
    owed = [job for job in jobs if job.settings is None or finished(job.settings) is None]
    print(f"{len(jobs)} runs, {len(jobs) - len(owed)} of them finished already", file=sys.stderr)
    composed = [job for job in owed if job.settings is not None]
    trouble, launched = None, len(composed)
    size = batch_size or max(1, len(composed))
    for first in range(0, len(composed), size):
        batch = composed[first : first + size]
        try:
            returns = launch([job.overrides for job in batch], first)
        except Exception as error:  # a launcher that lost its workers; what they finished is on disk
            trouble = f"the launcher gave up: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            break
        if any(_code(one) == EXIT_INTERRUPTED for one in returns):
            break
    failed = [(job, outcome) for job in owed if (outcome := _outcome(job, trouble)) is not None]
    interrupted = any(outcome.startswith("interrupted") for _, outcome in failed)
    last_result = SweepResult(len(jobs), len(composed), failed, interrupted)
    return last_result


def _code(job_return: Any) -> int:
    """The exit code a job returned; 1 for one that crashed instead of returning."""
    try:
        return int(job_return.return_value["code"])
    except Exception:  # hydra raises here whatever the job raised
        return 1


def _outcome(job: Job, trouble: str | None) -> str | None:
    """None when the run is finished, else what happened, in one line."""
    if job.settings is None:
        return f"failed: {job.error}"
    if finished(job.settings) is not None:
        return None
    try:
        summary = json.loads((job.settings.directory / "summary.json").read_text())
        return f"{summary['exit_status']}: {summary['error']}"
    except (OSError, ValueError, KeyError, TypeError):
        return trouble or "no summary: not begun, or killed"


def report(result: SweepResult) -> str:
    """What is to be said at the end: nothing when all is well."""
    if not result.failed:
        return ""
    said = (
        f"{len(result.failed)} of {result.total} runs did not finish; the same command goes on with them, or one alone"
    )
    lines = [f"\n{said}:"]
    for job, outcome in result.failed:
        lines.append(f"  afl-run {' '.join(job.overrides)}    # {outcome}")
    return "\n".join(lines)
