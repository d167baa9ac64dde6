"""The words ``decide=…`` of a command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from ..config.check import to_dataclass
from ..config.overrides import parse_override
from ..errors import ConfigError, check
from ..ranges import CheckedSettings, at_least, greater_than


@dataclass
class Request(CheckedSettings):
    """The request of ``decide=…``: claims of a page (empty: all), or a method that is compared with the others (empty:
    all pairs); the margin of a tie [points]; hours of computing of all new runs."""

    claims: list[str] = field(default_factory=list)
    compare: str = ""
    tie: Annotated[float | None, at_least(0)] = None
    hours: Annotated[float | None, greater_than(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            not (self.claims and self.compare),
            "claims",
            ",".join(self.claims),
            f"left out with decide.compare={self.compare}",
        )


KEYS = ("decide", *(f"decide.{one.name}" for one in fields(Request)))


def split_request(overrides: Sequence[str]) -> tuple[Request | None, list[str]]:
    """Return what the words of ``decide`` ask, None without or with ``decide=false``, and the other overrides.

    Raises ConfigError for a value that cannot be.
    """
    parsed = [parse_override(text) for text in overrides]
    words = {one.key: one for one in parsed if one.section == "decide"}
    rest = [one for one in parsed if one.key not in words]
    given: dict[str, Any] = {}
    for key, one in words.items():
        is_list = key == "decide.claims"
        check(is_list or not one.several, key, ",".join(one.values), "one value")
        given[key.removeprefix("decide.")] = [*one.values] if is_list else one.value
    switch = given.pop("decide", None) or False
    if switch is False:
        for key, value in given.items():
            raise ConfigError(f"decide.{key}", value, "has no effect without decide=true; add it")
        return None, [one.text for one in rest]
    if switch is not True:
        check("compare" not in given, "decide", switch, "true beside decide.compare: one of them names the method")
        given["compare"] = switch
    for one in rest:
        if one.key in ("seed", "resume", "rerun", "hydra/sweeper", "trials", "shard") or one.draw is not None:
            how = "chooses the seeds, from 0 on" if one.key == "seed" else "does not go with it"
            raise ConfigError(one.key, one.text.partition("=")[2], f"decide=true {how}; leave {one.key} out")
    request: Request = to_dataclass(Request, given, "decide")
    return request, [one.text for one in rest]
