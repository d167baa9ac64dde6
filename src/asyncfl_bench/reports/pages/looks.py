"""How things are called and drawn on every page: an algorithm keeps one name, one colour and one marker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAMES = {
    "ace": "ACE",
    "aced": "ACED",
    "ca2fl": "CA2FL",
    "fedbuff": "FedBuff",
    "delay_adaptive_asgd": "delay-adaptive ASGD",
    "asgd": "vanilla ASGD",
}
AXES = {"iteration": "server iterations", "uploads": "uploads", "virtual_time": "virtual time"}
_KEYS = {
    "heterogeneity.alpha": "α",
    "delay": "delay",
    "availability.share": "dropout share",
    "algorithm.tau_algo": "τ_algo",
    "algorithm.cache.precision": "cache",
}
_BETA = "exp_beta"


@dataclass(frozen=True)
class Look:
    """One algorithm's colour and marker. Told apart by marker and dashes too, so that grey paper is enough."""

    colour: str
    marker: str
    dashes: Any = "-"  # whatever matplotlib takes as a linestyle


# Okabe and Ito's colours for all kinds of colour vision
_LOOKS = {
    "ace": Look("#0072B2", "o"),
    "aced": Look("#D55E00", "s", "--"),
    "ca2fl": Look("#009E73", "^", "-."),
    "fedbuff": Look("#CC79A7", "D", (0, (5, 1, 1, 1, 1, 1))),
    "delay_adaptive_asgd": Look("#E69F00", "v"),
    "asgd": Look("#000000", "P", (0, (1, 2))),
}
_REST = Look("#56B4E9", "X", "--")


def look(algorithm: str) -> Look:
    return _LOOKS.get(algorithm, _REST)


def name(algorithm: str) -> str:
    return NAMES.get(algorithm, algorithm)


def setting(key: str, value: str) -> str:
    """``α = 0.1``, ``β = 5`` for ``delay=exp_beta5``, ``τ_algo = 10``."""
    if key == "delay" and value.startswith(_BETA):
        return f"β = {value.removeprefix(_BETA)}"
    return f"{_KEYS.get(key, key.rpartition('.')[2])} = {value}"


def key_label(key: str, values: list[str]) -> str:
    """What an axis over ``values`` of ``key`` is called."""
    return "β" if key == "delay" and all(value.startswith(_BETA) for value in values) else setting(key, "")[:-3]


def short(key: str, value: str) -> str:
    return value.removeprefix(_BETA) if key == "delay" else value
