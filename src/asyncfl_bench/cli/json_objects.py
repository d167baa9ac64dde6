"""The objects of ``--json``. docs/howto/agents.md documents their fields; later versions add fields and keep these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..analysis.decisions import Subject
    from ..experiment import RunResult
    from ..multirun.decide import Looks
    from ..multirun.jobs import Job
    from ..multirun.preview import Preview, RunCost

Fields = dict[str, Any]
_STATUSES = ("ok", "diverged", "failed", "interrupted", "missing")
_OF_SUMMARY = (
    "name",
    "identity",
    "experiment",
    "final",
    "best",
    "used",
    "stopped_by",
    "wall_seconds",
    "warning",
    "error",
)


def describe_run(result: RunResult) -> Fields:
    """Return the fields of one run."""
    status = result.summary["exit_status"]
    facts = {name: result.summary.get(name) for name in _OF_SUMMARY}
    facts |= {"directory": result.directory, "already_complete": bool(result.summary.get("already_complete"))}
    return {"status": status if status in _STATUSES else "missing", **facts}


def describe_multirun(jobs: Sequence[Job], results: Sequence[RunResult]) -> Fields:
    """Return the fields of a multirun: its runs by status, and each with its command."""
    rows = [{"command": job.command, **describe_run(result)} for job, result in zip(jobs, results, strict=True)]
    counts = Counter(row["status"] for row in rows)
    return {"runs": len(rows), **{status: counts[status] for status in _STATUSES}, "jobs": rows}


def describe_checks(checks: Iterable[tuple[str, str | None, str]]) -> Fields:
    """Return the fields of ``--check``. checks: (name, problem, what was checked)"""
    return {"checks": [{"name": name, "problem": problem, "what": what} for name, problem, what in checks]}


def describe_plan(preview: Preview) -> Fields:
    """Return the fields of ``--plan``."""
    counts = {state: preview.count(state) for state in ("finished", "archived", "pending", "refused")}
    jobs = [_describe_job(*row, preview.cost.refused) for row in preview.jobs]
    return {"runs": len(jobs), **counts, **_describe_cost(preview.cost), "jobs": jobs}


def describe_looks(looks: Looks) -> Fields:
    """Return the fields of a decision: the looks so far, or those of a plan with their cost."""
    rest = {"default_steps": looks.default_steps or None} if looks.cost is None else _describe_cost(looks.cost)
    return {"looks": looks.rows, "subjects": [_describe_subject(one) for one in looks.subjects], **rest}


def _describe_cost(cost: RunCost) -> Fields:
    numbers = {name: value for name, value in asdict(cost).items() if not isinstance(value, (str, list, dict))}
    return {**numbers, "notes": cost.lines}


def _describe_job(job: Job, state: str, directory: Path | None, refused: Mapping[str, str]) -> Fields:
    facts: Fields = {"state": state, "command": job.command, "identity": None, "name": None, "directory": None}
    if (settings := job.settings) is None:
        return facts | {"error": job.error}
    facts |= {"identity": settings.identity, "name": settings.name, "directory": directory or settings.directory}
    return facts | {"error": refused.get(settings.identity)}


def _describe_subject(subject: Subject) -> Fields:
    comparisons = [
        {"name": one.name, "cell": one.cell, "side": one.side, "difference": one.interval.mean}
        | {key: getattr(one.interval, key) for key in ("low", "high", "p")}
        | {"seeds": one.interval.n, "seeds_total": one.interval.total, "reason": one.reason}
        for one in subject.contrasts
    ]
    return {"name": subject.name, "decision": subject.word or None, "text": subject.text, "comparisons": comparisons}
