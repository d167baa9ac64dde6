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
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedasync": "FedAsync",
    "asyncfeded": "AsyncFedED",
}
WEIGHT = "algorithm.staleness_weight"  # a part of FedAsync's name, as papers write it: FedAsync+Hinge
AXES = {"iteration": "server iterations", "uploads": "uploads", "virtual_time": "virtual time"}
_KEYS = {
    "heterogeneity.alpha": "α",
    "delay": "delay",
    "availability.share": "dropout share",
    "algorithm.tau_algo": "τ_algo",
    "algorithm.cache.precision": "cache",
    "availability.probability": "P",
    "client.local_epochs": "K",
    "algorithm.mu": "μ",
    "algorithm.alpha": "α",
    "algorithm.hinge_a": "a",
    "algorithm.hinge_b": "b",
    "algorithm.lam_over_eps": "λ/ε",
    "algorithm.lam": "λ",
    "algorithm.gamma_bar": "γ_bar",
    "algorithm.kappa": "κ",
}
_PROTOCOLS = {"synthetic": "Synthetic", "femnist": "FEMNIST", "shakespeare": "Shakespeare"}
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
    "fedavg": Look("#332288", "o"),
    "fedprox": Look("#AA4499", "v", "--"),
    "fedasync": Look("#44AA99", "s", "-."),
    "fedasync+hinge": Look("#117733", "D", (0, (5, 1, 1, 1, 1, 1))),
    "asyncfeded": Look("#882255", "^"),
}
_REST = Look("#56B4E9", "X", "--")


def look(algorithm: str, weight: str | None = None) -> Look:
    """weight: FedAsync's staleness weight; its forms are lines of their own."""
    return _LOOKS.get(f"{algorithm}+{weight}") or _LOOKS.get(algorithm, _REST)


def name(algorithm: str, weight: str | None = None) -> str:
    """``ACE``; ``FedAsync+Hinge`` for fedasync with the weight hinge."""
    return NAMES.get(algorithm, algorithm) + (f"+{weight.capitalize()}" if weight else "")


def setting(key: str, value: str) -> str:
    """``α = 0.1``, ``β = 5`` for ``delay=exp_beta5``, ``τ_algo = 10``."""
    if key == "delay" and value.startswith(_BETA):
        return f"β = {value.removeprefix(_BETA)}"
    if key == "paper":
        return f"protocol {protocol(value)}"
    return f"{_KEYS.get(key, key.rpartition('.')[2])} = {value}"


def protocol(paper: str) -> str:
    """``FEMNIST`` for ``asyncfeded/femnist``: whose settings a run has, whatever its data are."""
    last = paper.rpartition("/")[2]
    return _PROTOCOLS.get(last, last)


def key_label(key: str, values: list[str]) -> str:
    """What an axis over ``values`` of ``key`` is called."""
    return "β" if key == "delay" and all(value.startswith(_BETA) for value in values) else setting(key, "")[:-3]


def short(key: str, value: str) -> str:
    return value.removeprefix(_BETA) if key == "delay" else value
