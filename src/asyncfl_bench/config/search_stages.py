"""Stages of a search as a sweep file declares them: search seeds, finalists, judged seeds, factors of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import check
from ..files import read_yaml
from .places import places

STEPS = ("algorithm.eta", "client.lr")  # the first one that is searched is the step of a rule
BANK = "bank"  # the sweep whose judged runs the package carries
STAGES_KEY = "hydra.sweeper.stages"

Point = tuple[str, ...]  # overrides of the searched settings


@dataclass(frozen=True)
class Stages:
    """The stages that follow a search.

    search_seeds  all points run on the first one, the best ones on the others
    finalists     points that run on all search seeds
    judged_seeds  of the point with the highest mean score
    factors       of the step of this point, on ``factor_seeds``
    """

    search_seeds: tuple[int, ...]
    finalists: int
    judged_seeds: tuple[int, ...]
    factors: tuple[float, ...] = ()
    factor_seeds: tuple[int, ...] = ()

    @classmethod
    def from_settings(cls, given: Mapping[str, Any]) -> Stages:
        """Return the stages of a sweep file. Raises ConfigError."""
        known = {one.name for one in fields(cls)}
        for key in given:
            check(key in known, f"{STAGES_KEY}.{key}", given[key], f"left out; the keys are {', '.join(sorted(known))}")
        for key in ("search_seeds", "judged_seeds", "factor_seeds"):
            seeds = given.get(key, [])
            ok = isinstance(seeds, list) and all(type(one) is int and one >= 0 for one in seeds)
            check(
                ok and (seeds or key == "factor_seeds"),
                f"{STAGES_KEY}.{key}",
                seeds,
                "a list of seeds, for example [100, 101]",
            )
        shared = {*given["search_seeds"]} & {*given["judged_seeds"], *given.get("factor_seeds", [])}
        check(not shared, f"{STAGES_KEY}.judged_seeds", given["judged_seeds"], "seeds that no point was chosen by")
        finalists, factors = given.get("finalists"), given.get("factors", [])
        check(type(finalists) is int and finalists > 0, f"{STAGES_KEY}.finalists", finalists, "a whole number above 0")
        ok = isinstance(factors, list) and all(isinstance(one, (int, float)) and one > 0 for one in factors)
        check(ok, f"{STAGES_KEY}.factors", factors, "a list of numbers above 0")
        values: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in given.items()}
        return cls(**values)

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
    return read_yaml(places()[0].sweeps / f"{BANK}.yaml")["hydra"]["sweeper"]


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
