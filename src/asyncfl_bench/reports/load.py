"""Finds run directories and reads what they hold."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import yaml

from ..errors import BenchError
from ..tracking.metrics import read_metrics
from ..tracking.rundir import CONFIG_NAME, METRICS_NAME, SUMMARY_NAME


@dataclass
class Run:
    """One run directory.

    status     ok, diverged, failed, interrupted, incomplete (no summary.json) or unreadable
    note       why, in a few words, when there is something to say
    algorithm  the name chosen on the command line
    seed       None when the config names none
    settings   the resolved config, flat: ``{"delay.mean": 5.0}``
    choices    the name chosen for each config group: ``{"delay": "exp_beta30"}``
    summary    summary.json, {} when there is none
    """

    path: Path
    status: str
    note: str = ""
    algorithm: str = "?"
    seed: int | None = None
    settings: dict[str, object] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    summary: dict = field(default_factory=dict)

    def value(self, key: str) -> str:
        """What a column named ``key`` shows: a group's choice or a setting, in YAML's words; "-" when it has none."""
        if key in self.choices:
            return str(self.choices[key])
        return shown(self.settings[key]) if key in self.settings else "-"

    @cached_property
    def points(self) -> list[dict[str, object]]:
        """The lines of metrics.jsonl, read once."""
        return read_metrics(self.path / METRICS_NAME)

    def last(self, name: str) -> float | None:
        """The value of the last point that has one."""
        values = (row[name] for row in reversed(self.points) if isinstance(row.get(name), (int, float)))
        return next((float(value) for value in values), None)  # type: ignore[arg-type]

    def curve(self, x: str) -> tuple[np.ndarray, np.ndarray]:
        """x and test accuracy, a share in 0 .. 1, of every point where it was measured; as ``column``."""
        return self.column("test/accuracy", x)

    def column(self, name: str, x: str) -> tuple[np.ndarray, np.ndarray]:
        """x and ``name`` of every point that has both.

        x   a counter of the points: iteration, uploads or virtual_time
        Returns two arrays of shape (points,), sorted by x.
        """
        points = [(row[x], row[name]) for row in self.points if row.get(x) is not None and row.get(name) is not None]
        x_p, y_p = np.array(points, dtype=float).reshape(-1, 2).T
        order = np.argsort(x_p, kind="stable")  # of equal x the later point stays the later one
        return x_p[order], y_p[order]


def find_run_directories(roots: list[Path]) -> list[Path]:
    """Every directory at or below ``roots`` that holds a config.yaml, sorted, each once.

    Folders of Hydra and W&B keep files of that name too; they start with a dot, are called ``wandb``, or lie inside a
    run directory, and are not entered. Raises BenchError when a root is no directory.
    """
    found: dict[Path, Path] = {}
    for root in roots:
        if not root.is_dir():
            raise BenchError(f"{root}: no such directory")
        for folder, below, files in os.walk(root):
            if CONFIG_NAME in files:
                found.setdefault(Path(folder).resolve(), Path(folder))
                below.clear()
            below[:] = sorted(name for name in below if not name.startswith(".") and name != "wandb")
    return sorted(found.values())


def load_run(path: Path) -> Run:
    """Reads config.yaml and summary.json. What cannot be read is a run of status ``unreadable``, never an exception."""
    run = Run(path, "unreadable")
    try:
        config = yaml.load((path / CONFIG_NAME).read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if not isinstance(config, dict):
            raise ValueError("not a mapping")
    except (OSError, ValueError, yaml.YAMLError) as error:
        run.note = f"{CONFIG_NAME}: {_first_line(error)}"
        return run
    choices = config.pop("choices", None)
    run.choices = {str(key): str(name) for key, name in (choices if isinstance(choices, dict) else {}).items()}
    run.settings = flatten(config)
    run.seed = config.get("seed")
    run.algorithm = run.choices.get("algorithm") or _class_name(config.get("algorithm"))
    if not (path / SUMMARY_NAME).exists():
        run.status, run.note = "incomplete", f"no {SUMMARY_NAME}: still running, or killed"
        return run
    try:
        run.summary = json.loads((path / SUMMARY_NAME).read_text())
        run.status = str(run.summary["exit_status"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        run.summary, run.note = {}, f"{SUMMARY_NAME}: {_first_line(error)}"
        return run
    run.algorithm = run.choices.get("algorithm") or run.summary.get("algorithm") or run.algorithm
    if run.status != "ok":
        run.note = str(run.summary.get("error") or "").partition("\n")[0]
    return run


def load_runs(roots: list[Path]) -> list[Run]:
    """All runs at or below ``roots``. Raises BenchError when there is none."""
    runs = [load_run(path) for path in find_run_directories(roots)]
    if not runs:
        places = ", ".join(str(root) for root in roots)
        raise BenchError(f"{places}: no runs found (a run directory holds a {CONFIG_NAME})")
    return runs


def flatten(node: object, prefix: str = "") -> dict[str, object]:
    """Nested mappings as one level with dotted keys; an empty mapping stays as a value."""
    if not isinstance(node, dict) or not node:
        return {prefix: node} if prefix else {}
    flat: dict[str, object] = {}
    for key, item in node.items():
        flat |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return flat


def shown(value: object) -> str:
    """A setting in YAML's words; numbers to six digits, enough to tell any two settings apart by eye."""
    if isinstance(value, float) and float(f"{value:.6g}") != value:
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _class_name(node: object) -> str:
    target = node.get("_target_") if isinstance(node, dict) else None
    return str(target).rpartition(".")[2].lower() if target else "?"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__} {error}".partition("\n")[0]
