"""Gives the runs of archives the identities that today's settings give them: renew_identities.py results/*/runs.parquet

Every record must have its recorded identity by the former function or by today's, and today's checks of its settings
must give its new identity. The first record that fails is named, and its archive stays as it is.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import sys
from typing import Any

from asyncfl_bench.config import NOT_IDENTITY, check_settings, identity_of_tree
from asyncfl_bench.config.check import part_class
from asyncfl_bench.config.settings import EvaluationConfig, RootConfig
from asyncfl_bench.errors import BenchError
from asyncfl_bench.simulation.budget import BudgetConfig
from asyncfl_bench.tracking.archive import rewrite_archive
from asyncfl_bench.tracking.records import Record

MOVED: dict[str, str] = {}  # class path in archives: where the class is now
# settings and groups that records may lack, at the value that they then had
SETTINGS: dict[str, object] = {
    "algorithm.continue_on": "current",
    "algorithm.restart_at": None,
    "budget.bytes": None,
    "budget.messages": None,
    "budget.server_steps": None,
    "client.clip": None,
    "client.lr_decay_by": "work",
    "delay.cuts": None,
    "heterogeneity.cap": False,
    "heterogeneity.per_class": False,
    "model.cut": None,
    "schedule.rest": "none",
    "server_seconds_per_sample": 0.0,
    "tick_rounding": "down",
}
GROUPS = {
    "unlabelled": "asyncfl_bench.tasks.unlabelled.Nothing",
    "distillation": "asyncfl_bench.algorithms.distillation.NoDistillation",
}
DROPPED = ("algorithm", "distillation_steps")


def former_identity(tree: dict[str, Any]) -> str:
    """The identity of a config that leaves out SETTINGS at their values and GROUPS at their choice none."""

    def kept_in(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        left_out = {*NOT_IDENTITY, "choices"}
        dotted = {f"{prefix}{key}": (key, value) for key, value in section.items()}
        return {k: v for name, (k, v) in dotted.items() if name not in left_out and (name, v) not in SETTINGS.items()}

    groups = [name for name in GROUPS if tree["choices"].get(name) == "none"]
    top = kept_in({name: value for name, value in tree.items() if name not in groups})
    kept = {name: kept_in(value, f"{name}.") if isinstance(value, dict) else value for name, value in top.items()}
    if "cache" in kept["algorithm"]:
        kept["algorithm"]["cache"] = {k: v for k, v in kept["algorithm"]["cache"].items() if k != "place"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def renewed_config(tree: dict[str, Any]) -> dict[str, Any]:
    """The config with the settings and groups that it lacks, and with the present paths of moved classes."""
    tree = copy.deepcopy(tree)
    for name, path in GROUPS.items():
        tree.setdefault(name, {"_target_": path})
        tree["choices"].setdefault(name, "none")
    for section in tree.values():
        if isinstance(section, dict) and section.get("_target_") in MOVED:
            section["_target_"] = MOVED[section["_target_"]]
    for key, value in SETTINGS.items():
        name, _, setting = key.rpartition(".")
        section = tree[name] if name else tree
        if setting in (field.name for field in dataclasses.fields(_schema(name, section))):
            section.setdefault(setting, value)
    tree[DROPPED[0]].pop(DROPPED[1], None)
    return tree


def renewed(record: Record) -> Record:
    """The record under its new identity. Raises BenchError when one of the two checks fails."""
    recorded = record.summary["identity"]
    if recorded not in (former_identity(record.config), identity_of_tree(record.config)):
        raise BenchError(f"{record.name}: neither the former nor today's identity of its settings is {recorded}")
    config = renewed_config(record.config)
    identity = identity_of_tree(config)
    composed = check_settings(copy.deepcopy(config), dict(config["choices"])).identity
    if composed != identity:
        raise BenchError(f"{record.name}: its settings give {identity}, and {composed} after today's checks")
    name = record.name.removesuffix(recorded) + identity
    experiment = identity_of_tree({**config, "seed": None})
    summary = record.summary | {"name": name, "identity": identity, "experiment": experiment}
    return dataclasses.replace(record, name=name, config=config, summary=summary)


def _schema(name: str, section: dict[str, Any]) -> Any:
    known = {"": RootConfig, "budget": BudgetConfig, "evaluation": EvaluationConfig}
    return known[name] if name in known else part_class(f"{name}._target_", section["_target_"]).Config


if __name__ == "__main__":
    for archive in sys.argv[1:]:
        print(f"{archive}: {rewrite_archive(archive, renewed)} runs")
