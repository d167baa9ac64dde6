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
        if self.claims and self.compare:
            how = f"does not go with decide.compare={self.compare}; choose one"
            raise ConfigError("claims", ",".join(self.claims), how)


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
        check(is_list or (len(one.values) == 1 and not one.several), key, one.text.partition("=")[2], "one value")
        given[key.removeprefix("decide.")] = [*one.values] if is_list else one.value
    switch = given.pop("decide", None)
    if switch is not None and not isinstance(switch, bool):
        check("compare" not in given, "decide", switch, "true beside decide.compare: one of them names the method")
        given["compare"] = switch
    request: Request = to_dataclass(Request, given, "decide")
    if switch is None or switch is False:
        for key, value in given.items():
            raise ConfigError(f"decide.{key}", value, "has no effect without decide=true; add it")
        return None, [one.text for one in rest]
    for one in rest:
        if one.key in ("seed", "resume", "rerun", "hydra/sweeper", "trials", "shard") or one.draw is not None:
            how = "does not go with decide=true; leave one of them out"
            how = "decide=true chooses the seeds, from 0 on; leave seed out" if one.key == "seed" else how
            raise ConfigError(one.key, one.text.partition("=")[2], how)
    return request, [one.text for one in rest]
