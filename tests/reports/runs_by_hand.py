"""Run directories and grids by hand: numbers follow from what is asked, identities from the settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from asyncfl_bench.analysis.selection import Grid
from asyncfl_bench.config.settings import RESULTS_VERSION
from asyncfl_bench.tracking.records import identity_of

POINTS = ((0, 0, 0.0, 0.1), (10, 100, 10.0, 0.5))


def config_of(algorithm: str = "ace", seed: int = 0, alpha: float = 0.1, beta: float = 5, **settings: Any) -> dict:
    """A resolved config. settings: dotted keys with two underscores for the dot, as ``algorithm__c=0.5``."""
    name = f"exp_beta{beta:g}"
    choices = {"dataset": "digits", "model": "mlp", "client": "sgd", "delay": name, "algorithm": algorithm}
    tree: dict[str, Any] = {
        "seed": seed,
        "n_clients": 10,
        "output_dir": "runs",
        "dataset": {"_target_": "x.Digits", "split_seed": 0},
        "heterogeneity": {"_target_": "x.Dirichlet", "alpha": alpha},
        "model": {"_target_": "x.Mlp", "hidden": [20]},
        "client": {"_target_": "x.LocalTraining", "lr": 0.1, "local_epochs": None},
        "delay": {"_target_": "x.Exponential", "beta": float(beta), "unit": "ticks"},
        "availability": {"_target_": "x.Always"},
        "schedule": {"_target_": "x.RandomIdle"},
        "algorithm": {"_target_": f"x.{algorithm.title()}", "c": 0.2},
        "evaluation": {"every": 10, "validation_share": 0.0},
        "choices": choices,
    }
    for key, value in settings.items():
        *sections, last = key.split("__")
        node = tree
        for section in sections:
            node = node[section]
        node[last] = value
    return tree


def write_run(
    folder: Path,
    *args: Any,
    points: Sequence[tuple] = POINTS,
    status: str | None = "ok",
    summary: dict | None = None,
    columns: dict[str, list] | None = None,
    clients: dict[str, list] | None = None,
    **settings: Any,
) -> Path:
    """A run directory with the config of ``config_of``.

    points   (iteration, uploads, virtual time, test accuracy) each; columns: more of each point
    status   None: no summary.json; summary: what it says besides; clients: columns of clients.parquet
    """
    tree = config_of(*args, **settings)
    choices, identity = tree["choices"], identity_of(tree)
    name = f"{choices['algorithm']}-digits-{choices['delay']}-seed{tree['seed']}-{identity}"
    path = folder / name
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    names = ("iteration", "uploads", "virtual_time", "test/accuracy")
    lines: list[dict] = [{"client_steps": p[1], "wall_time": 0.5, **dict(zip(names, p, strict=True))} for p in points]
    for column, values in (columns or {}).items():
        for line, value in zip(lines, values, strict=True):
            line[column] = value
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if clients is not None:
        pd.DataFrame(clients).to_parquet(path / "clients.parquet")
    if status is not None:
        content = {
            "exit_status": status,
            "error": None if status == "ok" else f"{status} at iteration 7",
            "name": name,
            "identity": identity,
            "experiment": identity_of(tree, without_seed=True),
            "results_version": RESULTS_VERSION,
            "seed": tree["seed"],
            "data_digest": "d1",
            "final": {"test/accuracy": points[-1][3]},
            "used": {"server_iterations": points[-1][0], "uploads": points[-1][1], "virtual_time": points[-1][2]},
            "wall_seconds": 1.5,
            "stopped_by": "virtual_time",
        }
        (path / "summary.json").write_text(json.dumps(content | (summary or {})))
    return path


def grid_by_hand(jobs: Sequence[dict], keys: Sequence[str]) -> Grid:
    """A sweep of these jobs, each the arguments of ``config_of``. keys: those that the sweep gives several values."""
    rows = []
    for arguments in jobs:
        tree = config_of(**arguments)
        row = {"identity": identity_of(tree), "experiment": identity_of(tree, without_seed=True)}
        row |= {"seed": tree["seed"], "error": None, "overrides": " ".join(f"{k}={v}" for k, v in arguments.items())}
        for key in keys:
            section, _, last = key.partition(".")
            row[key] = str(tree[section][last]) if last else tree["choices"][section]
        rows.append(row)
    return Grid("paper/figure", "published", "small", "standard", pd.DataFrame(rows))
