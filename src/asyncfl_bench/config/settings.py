"""A run's settings: the sections that belong to no group, the parts, and what identifies the run."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from ..algorithms.base import equip
from ..errors import PACKAGE, check, is_built_in
from ..files import cache_folder, expand_home
from ..ranges import CheckedSettings, absent, at_least, greater_than, one_of, within
from ..simulation.budget import BudgetConfig
from ..types import Facts, ServerPart, ServerTask

if TYPE_CHECKING:
    from ..algorithms.base import ServerRule
    from ..algorithms.needs import Needs
    from ..randomness import Streams
    from ..storage import Storage

DATA_VARIABLE = "ASYNCFL_BENCH_DATA"
# Raised whenever the same settings begin to give other numbers: a run finished under another version is run again.
# 3: the Dirichlet split is exchangeable over clients
RESULTS_VERSION = 3
# class of a rule -> the version since its numbers alone changed
RULE_VERSIONS = {
    f"{PACKAGE}.algorithms.fedac.FedAc": 4,
    f"{PACKAGE}.algorithms.port.Port": 4,
}
PARTS = (
    "dataset",
    "heterogeneity",
    "model",
    "client",
    "delay",
    "availability",
    "live",
    "schedule",
    "unlabelled",
    "distillation",
    "algorithm",
    "diagnostics",
)
# the groups of which a run may have several choices, tracking=[wandb,csv], or none
LISTED = (TRACKING, OBSERVERS) = ("tracking", "observers")
DEFAULT_STEP = "default_step"  # of a data set's yaml: step size by model
SEARCH_SPACE = "search_space"  # of a rule's yaml: the ranges that sweep=tune searches, by setting
DEFAULT_STEPS = "default step sizes, neither chosen nor searched (sweep=tune searches them)"
# the key of config.yaml that lists what is left out of the identity; a config without such settings lacks the key
ABSENT = "absent"
# groups that only set other settings; a run remembers what was chosen
ORIGINS = ("paper", "sweep", "profile", "scale", "length")
# settings that say where and how to compute, and what to measure, not what: they leave a run's identity alone
NOT_IDENTITY = (
    "diagnostics",
    "evaluation.average",
    "evaluation.clients",
    *LISTED,
    "objective",
    "device",
    "threads",
    "executor",
    "output_dir",
    "data_dir",
    "dataset.download",
    "model.download",
    "archive_dir",
    "checkpoint",
    "trace",
    "rerun",
    "resume",
    "progress",
)

# what a search may go by, of the final model
OBJECTIVES = ("validation/accuracy", "validation/loss", "test/accuracy", "test/loss")


@dataclass
class EvaluationConfig(CheckedSettings):
    """
    every             server iterations between evaluations
    every_time        ticks or seconds of the virtual clock between them instead
    every_uploads     uploads between them instead: at the first server iteration that completes this number
    validation_share  share of the training samples, held back before they are split over the clients
    clients           true: also the accuracy that each client may expect by its labels, and clients.parquet; costs
                      nothing
    average           W: also the test accuracy and loss of the mean of the models after the last W uploads; doubles the
                      time of evaluations
    """

    every: Annotated[int, at_least(1)] = 10
    every_time: Annotated[float | None, greater_than(0, null="to count server iterations")] = None
    every_uploads: Annotated[int | None, at_least(1, null="to count server iterations")] = None
    validation_share: Annotated[float, within("[0, 1)")] = 0.0
    clients: bool = False
    average: Annotated[int | None, at_least(1, null="not to average")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.every_time is not None and self.every_uploads is not None
        check(not both, "every_uploads", self.every_uploads, "null when evaluation.every_time is set: choose one")

    def idle(self, facts: Facts) -> dict[str, str]:
        for name in ("every_time", "every_uploads"):
            if (decides := self.__dict__[name]) is not None:
                return {"every": f"with evaluation.{name}={decides:g}; evaluation.{name}=null counts iterations again"}
        return {}


@dataclass
class CheckpointConfig(CheckedSettings):
    """
    every          server iterations between checkpoints; null: by time only
    every_minutes  wall-clock minutes between them; null: never
    at_end_mib     MiB; a finished run keeps its checkpoint, to resume with a larger budget, if its state is at most
                   this large
    max_mib        MiB; larger checkpoints are not written, with a message; null: any size
    """

    every: Annotated[int | None, at_least(1)] = None
    every_minutes: Annotated[float | None, greater_than(0)] = 10.0
    at_end_mib: Annotated[float, at_least(0)] = 64.0
    max_mib: Annotated[float | None, greater_than(0)] = None


@dataclass
class RootConfig(CheckedSettings):
    """The settings that belong to no group.

    seed           fixes partition, initial model, speeds, delays and mini-batches
    n_clients      n
    concurrency    clients in flight at once, at most n_clients
    clock          auto: the one that the delay's unit asks for
    tick_rounding  on the clock of ticks a duration is whole ticks, at least one: down | up: the turn after it is done
    server_seconds_per_sample  virtual time for each sample that the server itself takes through the network and back,
                   with clock=time
    device         cpu | cuda | cuda:N | auto: a GPU for networks that are worth it
    precision      tf32: a GPU computes convolutions in TF32, with 10 bits after the point, and other products in fp32
    threads        CPU threads; null: all cores that this process may use, at most OMP_NUM_THREADS and
                   SLURM_CPUS_PER_TASK
    executor       how pending work is computed; results differ by rounding, which long local work enlarges
    trace          true: also write trace.parquet and other tables (docs/reference/run_directory.md), partition.npz,
                   model_initial.pt and model_final.pt
    progress       true: show progress on standard error
    rerun          true: run again although there is a finished run with the same settings
    objective      of the final model; a search ranks by it
    resume         a run directory to resume from its checkpoint
    output_dir     run directories are made here, named by their content
    data_dir       data sets on disk; null: $ASYNCFL_BENCH_DATA, else ~/.cache/asyncfl_bench/data
    archive_dir    archives in folders of this name count as finished runs: in the current directory, the git checkout,
                   the editable install
    """

    seed: Annotated[int, at_least(0)] = 0
    n_clients: Annotated[int, at_least(1)] = 100
    concurrency: Annotated[int | None, at_least(1, null="for all clients")] = None
    clock: Annotated[str, one_of("auto", "time", "ticks")] = "auto"
    tick_rounding: Annotated[str, one_of("down", "up")] = "down"
    server_seconds_per_sample: Annotated[float, at_least(0)] = 0.0
    device: str = "auto"
    precision: Annotated[str, one_of("fp32", "tf32"), absent("fp32")] = "fp32"
    threads: Annotated[int | None, at_least(1)] = None
    executor: Annotated[str, one_of("auto", "sequential", "threads", "batched", "native", "graph", "ray")] = "auto"
    trace: bool = False
    progress: bool = True
    rerun: bool = False
    objective: Annotated[str, one_of(*OBJECTIVES)] = "validation/accuracy"
    resume: str | None = None
    output_dir: str = "runs"
    data_dir: str | None = None
    archive_dir: str = "results"

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device) is not None
        check(ok, "device", self.device, "auto, cpu, cuda or cuda:N")
        check(bool(self.output_dir), "output_dir", self.output_dir, "a directory")


# the dataclasses of the sections that belong to no group
ROOT_SECTIONS: dict[str, type[Any]] = {
    "budget": BudgetConfig,
    "evaluation": EvaluationConfig,
    "checkpoint": CheckpointConfig,
}


@dataclass
class Component:
    """A class named by a yaml and its checked settings."""

    target: type[Any]
    config: Any

    def build(self, *args, **kwargs):
        return self.target(self.config, *args, **kwargs)


@dataclass(frozen=True)
class EarlierRun:
    """The finished run that another run resumes with a larger budget: its directory and its identity."""

    directory: Path
    identity: str


@dataclass
class Settings:
    """A run's settings, checked and with every `auto` and null resolved."""

    root: RootConfig
    budget: BudgetConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    parts: dict[str, Component]
    choices: dict[str, str]
    tree: dict = field(default_factory=dict)  # the resolved config, as it is written to config.yaml
    named_directory: Path | None = None  # a run directory named by hand, instead of one under output_dir
    asked_output_dir: Path | None = None  # of a sweep's run, whose own output_dir is the sweep's folder below that
    earlier: EarlierRun | None = None  # what is resumed, where that had another budget and so was another run
    digests: dict[str, str] = field(default_factory=dict)  # by part, of the files that its `path` or `folder` names
    code: dict[str, str] = field(default_factory=dict)  # by module of the user's, the SHA-256 of its file
    code_digest: str = ""  # of the modules that decide the numbers; empty without a class of the user's
    default_steps: bool = False  # no step size was chosen or searched
    idle: dict[str, str] = field(default_factory=dict)  # by dotted key, why that setting changes nothing in this run

    command: str | None = None  # that makes the run; None: a Python program does, or an archive is repeated

    # by the name of the choice
    trackers: dict[str, Component] = field(default_factory=dict)
    observers: dict[str, Component] = field(default_factory=dict)

    @property
    def configs(self) -> dict[str, Any]:
        """The dataclass of each section; that of the settings outside of sections has an empty name."""
        sections = {name: getattr(self, name) for name in ROOT_SECTIONS}
        return {"": self.root, **sections, **{name: part.config for name, part in self.parts.items()}}

    @property
    def needs(self) -> Needs:
        """Needs of the server rule under its settings."""
        rule = self.parts["algorithm"]
        needs: Needs = rule.config.adapt(rule.target.needs)
        return needs

    def build_rule(
        self, storage: Storage, streams: Streams, server: ServerTask | None = None, part: ServerPart | None = None
    ) -> ServerRule:
        """Build the rule with its distillation. The arguments are those of ``equip``."""
        rule = equip(self.parts["algorithm"].build(), storage, streams, server, part)
        return self.parts["distillation"].build().wrap_rule(rule, streams)

    @property
    def uploads_per_iteration(self) -> int:
        """Uploads of a server iteration, of clients of equal speed and without losses."""
        needs, root = self.needs, self.root
        assert root.concurrency is not None
        return root.concurrency if needs.steps_on == "round" else needs.uploads_per_iteration(root.n_clients)

    @property
    def most_uploads(self) -> float | None:
        """Uploads that the budget allows at most; None if it does not say."""
        amounts, each = self.budget.amounts, {"uploads": 1, "server_iterations": self.uploads_per_iteration}
        return min((amounts[name] * count for name, count in each.items() if name in amounts), default=None)

    @property
    def kept_uploads(self) -> int:
        """Uploads that a live run keeps on disk at most; 0 if it keeps none or its budget does not say."""
        return int(self.most_uploads or 0) if self.parts["live"].config.keep_uploads else 0

    @property
    def identity(self) -> str:
        """8 hex digits of a hash over everything that decides the run's numbers."""
        return identity_of_tree(self.tree, self.digests)

    @property
    def results_version(self) -> int:
        return results_version_of(self.tree["algorithm"]["_target_"])

    @property
    def experiment(self) -> str:
        """The same without the seed: runs of one experiment may be averaged."""
        return identity_of_tree({**self.tree, "seed": None}, self.digests)

    @property
    def label(self) -> str:
        """The label of a user's rule; empty for rules of this package, which pages know."""
        target = self.parts["algorithm"].target
        return "" if is_built_in(target) else target.label

    @property
    def name(self) -> str:
        choice = self.choices.get
        words = [choice("algorithm"), choice("dataset"), choice("delay"), f"seed{self.root.seed}", self.identity]
        return "-".join(str(word) for word in words)

    @property
    def experiment_name(self) -> str:
        """The same for all seeds."""
        choice = self.choices.get
        return "-".join(map(str, (choice("algorithm"), choice("dataset"), choice("delay"), self.experiment)))

    @property
    def directory(self) -> Path:
        return self.named_directory or expand_home(self.root.output_dir, "output_dir") / self.name

    @property
    def time_unit(self) -> str:
        """What virtual time is counted in: ``ticks`` or ``seconds``."""
        return "ticks" if self.root.clock == "ticks" else self.parts["delay"].config.unit

    @property
    def data_dir(self) -> Path:
        given = self.root.data_dir or os.environ.get(DATA_VARIABLE)
        return expand_home(given, "data_dir") if given else cache_folder() / "data"


def results_version_of(rule: object) -> int:
    """Return the results version of the runs of a rule, the class that the config names as ``algorithm._target_``."""
    return max(RESULTS_VERSION, RULE_VERSIONS.get(str(rule), 0))


def identity_of_tree(tree: dict, digests: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return 8 hex digits: a hash of the settings in a resolved config that decide a run's numbers.

    tree     its `absent` names settings and groups that are left out: `absent_settings` finds them
    digests  by part, of the files that its `path` or `folder` names: what is in them decides the numbers, not where
             they are
    """
    place = "algorithm.cache.place"  # changes no number
    kept = _without_keys(tree, {*NOT_IDENTITY, "choices", ABSENT, place, *tree.get(ABSENT, ())})
    for name in digests.keys() & kept.keys():
        kept[name]["folder" if "folder" in kept[name] else "path"] = digests[name]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def fill_in_precision(tree: dict[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run with the precision that it had.

    A config without this setting is of an earlier version, whose finished runs on a GPU computed convolutions in TF32.
    """
    finished = summary.get("exit_status") in ("ok", "diverged") and "precision" not in tree
    return {**tree, "precision": "tf32"} if finished and str(summary.get("device")).startswith("cuda") else tree


def _without_keys(tree: dict, keys: set[str], prefix: str = "") -> dict:
    """Return a copy of nested sections without some dotted keys."""
    return {
        name: _without_keys(value, keys, f"{dotted}.") if isinstance(value, dict) else value
        for name, value in tree.items()
        if (dotted := f"{prefix}{name}") not in keys
    }
