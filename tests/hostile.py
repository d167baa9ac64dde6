"""Settings of other people that try to run code, by what they try."""

from __future__ import annotations

from typing import Any

PACKAGE = "asyncfl_bench"
SOFTMAX = f"{PACKAGE}.models.perceptrons.Softmax"
EVIL = "open('imported', 'w')\nfrom asyncfl_bench.algorithms.asgd import Asgd\n"

# of config.yaml: the key that the refusal names, and the sections that replace those of a run
SECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "a module of the current folder": ("algorithm._target_", {"algorithm": {"_target_": "evil.Asgd"}}),
    "a function that imports": (
        "model._target_",
        {"model": {"_target_": f"{PACKAGE}.models.pretrained.import_module", "name": "evil"}},
    ),
    "a function that names folders": (
        "model._target_",
        {
            "model": {
                "_target_": f"{PACKAGE}.experiment.build.build_computer",
                "tree": {"algorithm": {"_target_": "evil.Asgd"}},
                "folders": ["parts"],
            }
        },
    ),
    "a function that writes": (
        "model._target_",
        {"model": {"_target_": f"{PACKAGE}.tracking.archive.pack_archive", "paths": ["."], "target": "imported"}},
    ),
    "a function of Python": ("model._target_", {"model": {"_target_": "os.mkdir", "path": "imported"}}),
    "what a module imported": ("model._target_", {"model": {"_target_": f"{PACKAGE}.files.Path.touch"}}),
    "the class of another group": (
        "dataset._target_",
        {"dataset": {"_target_": f"{PACKAGE}.tracking.trackers_files.CsvTracker"}},
    ),
    "a class that conf/ does not name": (
        "model._target_",
        {"model": {"_target_": f"{PACKAGE}.models.given.NamedModel"}},
    ),
    "a launcher": ("delay._target_", {"delay": {"_target_": "hydra_plugins.asyncfl_joblib.Cores"}}),
    "a list": ("model.hidden.0._target_", {"model": {"_target_": SOFTMAX, "hidden": [{"_target_": "evil.Asgd"}]}}),
    "arguments": ("model._args_.0._target_", {"model": {"_target_": SOFTMAX, "_args_": [{"_target_": "evil.Asgd"}]}}),
    "a setting": ("client.lr._target_", {"client": {"_partial_": True, "lr": {"_target_": "evil.Asgd"}}}),
    "an observer": ("observers.x._target_", {"observers": {"x": {"_target_": "evil.Asgd"}}}),
    "a tracker": ("tracking.x._target_", {"tracking": {"x": {"_target_": f"{PACKAGE}.tracking.archive.measured_run"}}}),
    "a section without parts": ("budget.uploads._target_", {"budget": {"uploads": {"_target_": "evil.Asgd"}}}),
    "no text": ("algorithm._target_", {"algorithm": {"_target_": ["evil", "Asgd"]}}),
}
