"""Stages of a search as a sweep file declares them: search seeds, finalists, judged seeds, factors of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ..errors import check
from ..files import read_yaml
from ..ranges import CheckedSettings, at_least
from .check import to_dataclass
from .part_sources import part_sources

STEPS = ("algorithm.eta", "client.lr")  # the first one that is searched is the step of a rule
BANK = "bank"  # the sweep whose judged runs the package carries
STAGES_KEY = "hydra.sweeper.stages"

Point = tuple[str, ...]  # overrides of the searched settings


@dataclass
class Stages(CheckedSettings):
    """The stages that follow a search.

    search_seeds  all points run on the first one, the best ones on the others
    finalists     points that run on all search seeds
    judged_seeds  of the point with the highest mean score
    factors       of the step of this point, on ``factor_seeds``
    """

    search_seeds: list[int]
    finalists: Annotated[int, at_least(1)]
    judged_seeds: list[int]
    factors: list[float] = field(default_factory=list)
    factor_seeds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("search_seeds", "judged_seeds", "factor_seeds"):
            seeds = vars(self)[key]
            ok = all(one >= 0 for one in seeds) and (seeds or key == "factor_seeds")
            check(bool(ok), key, seeds, "a list of seeds, for example [100, 101]")
        seen = {*self.search_seeds} & {*self.judged_seeds, *self.factor_seeds}
        check(not seen, "judged_seeds", self.judged_seeds, "seeds that no point was chosen by")
        check(all(one > 0 for one in self.factors), "factors", self.factors, "a list of numbers above 0")

    @classmethod
    def from_settings(cls, given: dict[str, Any]) -> Stages:
        """Return the stages of a sweep file. Raises ConfigError."""
        stages: Stages = to_dataclass(cls, given, STAGES_KEY)
        return stages

    @property
    def most_runs(self) -> tuple[int, ...]:
        """Return how many runs of each rule and world the stages after the search have at most."""
        finalists = self.finalists * (len(self.search_seeds) - 1)
        return finalists, len(self.judged_seeds), len(self.factors) * len(self.factor_seeds)


def declared_stages() -> Stages:
    """Return the stages that the bank declares, at full scale."""
    return Stages.from_settings(_read_declared()["stages"])


def declared_choices(group: str) -> list[str]:
    """Return the worlds (``paper``) or rules (``algorithm``) that the bank declares."""
    return _read_declared()["params"][group].split(",")


def _read_declared() -> Mapping[str, Any]:
    return read_yaml(part_sources()[0].sweeps / f"{BANK}.yaml")["hydra"]["sweeper"]


def step_key(point: Point) -> str | None:
    """Return the searched step of a rule: ``algorithm.eta``, else ``client.lr``; None if neither is searched."""
    keys = {text.partition("=")[0] for text in point}
    return next((key for key in STEPS if key in keys), None)


def multiply_step(point: Point, factor: float) -> Point:
    """Return a point whose ``step_key`` is multiplied."""
    values, key = dict(text.split("=", 1) for text in point), step_key(point)
    return tuple(
        f"{name}={float(value) * factor:.4g}" if name == key else f"{name}={value}" for name, value in values.items()
    )
