"""The words ``decide=…`` of a command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..config.overrides import Override, parse_override
from ..errors import ConfigError, did_you_mean

KEYS = ("decide", "decide.hours", "decide.claims", "decide.compare", "decide.tie")


@dataclass(frozen=True)
class Request:
    """The request of ``decide=…``: claims of a page (empty: all), or a method that is compared with the others (empty:
    all pairs); the margin of a tie [points]; hours of computing of all new runs."""

    claims: tuple[str, ...] = ()
    compare: str = ""
    tie: float | None = None
    hours: float = math.inf


def split_request(overrides: Sequence[str]) -> tuple[Request | None, list[str]]:
    """Return what the words of ``decide`` ask, None without or with ``decide=false``, and the other overrides.

    Raises ConfigError for a value that cannot be.
    """
    parsed = [parse_override(text) for text in overrides]
    words = {one.key: one for one in parsed if one.section == "decide"}
    rest = [one.text for one in parsed if one.key not in words]
    for key, one in words.items():
        if key not in KEYS:
            raise ConfigError(key, _given_text(one), f"must be one of {', '.join(KEYS)}{did_you_mean(key, KEYS)}")
        if key != "decide.claims" and len(one.values) != 1:
            raise ConfigError(key, _given_text(one), "must be one value")
    values = {key: one.values[0] for key, one in words.items() if one.values}
    switch = values.pop("decide", "false")
    if switch.lower() in ("false", "null"):
        for key, value in values.items():
            raise ConfigError(key, value, "has no effect without decide=true; add it")
        return None, rest
    compare = values.get("decide.compare", "")
    if switch.lower() != "true":
        if compare:
            raise ConfigError("decide", switch, "must be true beside decide.compare: one of them names the method")
        compare = switch
    hours, tie = _read_number(values, "decide.hours"), _read_number(values, "decide.tie")
    if hours is not None and hours <= 0:
        raise ConfigError("decide.hours", values["decide.hours"], "must be above 0, for example 8")
    claims = words["decide.claims"].values if "decide.claims" in words else ()
    if claims and compare:
        raise ConfigError("decide.claims", ",".join(claims), f"does not go with decide.compare={compare}; choose one")
    for one in map(parse_override, rest):
        if one.key == "seed":
            raise ConfigError("seed", _given_text(one), "decide=true chooses the seeds, from 0 on; leave seed out")
        if one.key in ("resume", "rerun", "hydra/sweeper", "trials", "shard") or one.draw is not None:
            raise ConfigError(one.key, _given_text(one), "does not go with decide=true; leave one of them out")
    return Request(claims, compare, tie, math.inf if hours is None else hours), rest


def _given_text(one: Override) -> str:
    return one.text.partition("=")[2]


def _read_number(values: Mapping[str, str], key: str) -> float | None:
    """Return the finite number >= 0 of a key; None without one."""
    if key not in values:
        return None
    try:
        number = float(values[key])
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ConfigError(key, values[key], "must be a number >= 0, for example 0.5")
    return number
