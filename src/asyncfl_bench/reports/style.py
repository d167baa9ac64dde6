"""How things are called and drawn everywhere: an algorithm keeps one name, one colour, one marker and one dash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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
    "fedopt": "FedOpt",
    "feddyn": "FedDyn",
}
WEIGHT = "algorithm.staleness_weight"  # a part of FedAsync's name, as papers write it: FedAsync+Hinge
AXES = {"iteration": "server iterations", "uploads": "uploads", "virtual_time": "virtual time"}
_KEYS = {
    "heterogeneity.alpha": "α",
    "availability.share": "dropout share",
    "availability.probability": "P",
    "algorithm.tau_algo": "τ_algo",
    "algorithm.cache.precision": "cache",
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
class Style:
    """Told apart by marker and dash too, so that grey paper is enough. dashes: whatever matplotlib takes."""

    colour: str
    marker: str
    dashes: Any = "-"


_LONG = (0, (5, 1, 1, 1, 1, 1))
# Okabe and Ito's and Paul Tol's colours, for all kinds of colour vision; by name, as series are
_STYLES = {
    "ACE": Style("#0072B2", "o"),
    "ACED": Style("#D55E00", "s", "--"),
    "CA2FL": Style("#009E73", "^", "-."),
    "FedBuff": Style("#CC79A7", "D", _LONG),
    "delay-adaptive ASGD": Style("#E69F00", "v"),
    "vanilla ASGD": Style("#000000", "P", (0, (1, 1.5))),
    "FedAvg": Style("#332288", "o"),
    "FedProx": Style("#AA4499", "v", "--"),
    "FedAsync": Style("#44AA99", "s", "-."),
    "FedAsync+Constant": Style("#44AA99", "s", "-."),
    "FedAsync+Hinge": Style("#117733", "D", _LONG),
    "AsyncFedED": Style("#882255", "^"),
    "adaptive K": Style("#882255", "^"),
    "FedOpt": Style("#88CCEE", "P", "--"),
    "FedDyn": Style("#999933", "X", "-."),
}
_SPARE = ("#56B4E9", "#661100", "#6699CC", "#DDCC77", "#CC6677", "#4477AA", "#228833", "#BBBBBB")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
_DASHES = ("-", "--", "-.", _LONG, (0, (1, 1.5)))


def name(algorithm: str, weight: str | None = None) -> str:
    """``ACE``; ``FedAsync+Hinge`` for fedasync with the weight hinge; an unknown algorithm keeps its own name."""
    return NAMES.get(algorithm, algorithm) + (f"+{weight.capitalize()}" if weight else "")


def setting(key: str, value: object) -> str:
    """``α = 0.1``, ``β = 5`` for ``delay=exp_beta5``, ``τ_algo = 10``, ``FEMNIST`` for ``paper=asyncfeded/femnist``."""
    text = str(value)
    if key == "delay" and text.startswith(_BETA):
        return f"β = {text.removeprefix(_BETA)}"
    if key == "paper":
        return f"{_PROTOCOLS.get(text.rpartition('/')[2], text)} protocol"
    if key == "algorithm":
        return name(text)
    return f"{_KEYS.get(key, key.rpartition('.')[2])} = {text}"


def series_label(algorithm: str, variant: Mapping[str, object]) -> str:
    """What a line or row is called: ``ACED, τ_algo = 10``, ``FedAsync+Hinge``. variant: key -> value."""
    weight = variant.get(WEIGHT)
    others = [setting(key, value) for key, value in variant.items() if key != WEIGHT]
    return ", ".join([name(algorithm, str(weight) if weight not in (None, "-") else None), *others])


def cell_label(keys: Sequence[str], cell: Sequence[object]) -> str:
    """``α = 0.1, β = 5``; without those that are not set (``-``)."""
    return ", ".join(setting(key, value) for key, value in zip(keys, cell, strict=True) if str(value) != "-")


def key_label(key: str, values: Iterable[object] = ()) -> str:
    """What an axis over ``values`` of ``key`` is called."""
    if key == "delay" and (texts := [str(value) for value in values]) and all(t.startswith(_BETA) for t in texts):
        return "β"
    return "protocol" if key == "paper" else setting(key, "")[:-3]


def short(key: str, value: object) -> str:
    """The value alone, as a tick of such an axis."""
    text = str(value)
    return text.removeprefix(_BETA) if key == "delay" else setting(key, text) if key == "paper" else text


def axis_label(axis: str, units: Iterable[object] = ()) -> str:
    """``server iterations``; ``virtual time [ticks]`` where all runs have that unit."""
    known = {str(unit) for unit in units if unit is not None and unit == unit and unit != ""}
    unit = {"seconds": "s"}.get(found := known.pop(), found) if len(known) == 1 else ""
    text = AXES.get(axis, axis.replace("_", " "))
    return f"{text} [{unit}]" if axis in ("virtual_time", "wall_time") and unit else text


def metric_label(metric: str) -> str:
    """``test accuracy [%]`` for ``test/accuracy``; other names with blanks for their signs."""
    text = metric.replace("/", " ").replace("_", " ")
    return f"{text} [%]" if is_percent(metric) else text


def is_percent(metric: str) -> bool:
    """Whether the metric is a share that pages show in percent."""
    return metric.endswith("accuracy")


def lower_is_better(metric: str) -> bool:
    """Whether less of the metric is better: losses, errors and times."""
    return metric.rpartition("/")[2].startswith(("loss", "error", "perplexity", "time"))


def natural(value: object) -> tuple:
    """A sort key: numbers, also those at the end of a name (``exp_beta5``), by their size; text by its letters."""
    text = str(value)
    head = "" if _is_number(text) else text.rstrip("0123456789.-+e")
    tail = text[len(head) :]
    return (head, float(tail) if _is_number(tail) else 0.0, text)


def series_order(label: str) -> tuple:
    """A sort key: algorithms as NAMES lists them, then the others; variants by their numbers."""
    base, _, variant = label.partition(", ")
    place = {one: number for number, one in enumerate(_STYLES)}
    return (place.get(base, len(place)), natural(base), *(natural(part) for part in variant.split(", ")))


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """The style of every series of a page.

    An algorithm keeps its own wherever it is drawn; one without an entry gets a colour that follows from its name.
    Values of one setting have a scale from dark to light, as have variants where there is one algorithm only; beside
    other algorithms variants have its colour with other markers and dashes.
    """
    variants: dict[str, list[str]] = {}
    for label in sorted(set(labels), key=series_order):
        variants.setdefault(label.partition(", ")[0].partition(" = ")[0], []).append(label)
    found: dict[str, Style] = {}
    for base, same in variants.items():
        own = _STYLES.get(base)
        scale = len(variants) == 1 or len(same) > len(_DASHES) or own is None
        for place, label in enumerate(same):
            if len(same) == 1:
                found[label] = own or _fallback(base, {style.colour for style in found.values()})
            elif scale or own is None:
                colour = _on_scale(place, len(same))
                found[label] = Style(colour, _MARKERS[place % len(_MARKERS)], _DASHES[place % 3])
            else:
                found[label] = Style(own.colour, _MARKERS[-place], _DASHES[-place]) if place else own
    return found


def _fallback(base: str, taken: Iterable[str]) -> Style:
    """Follows from the name; the next colour where another series of the page has it."""
    first, marker, dashes, *_ = hashlib.sha256(base.encode()).digest()
    colours = [_SPARE[(first + step) % len(_SPARE)] for step in range(len(_SPARE))]
    colour = next((one for one in colours if one not in taken), colours[0])
    return Style(colour, _MARKERS[marker % len(_MARKERS)], _DASHES[dashes % len(_DASHES)])


def _on_scale(place: int, count: int) -> str:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["viridis"](0.85 * place / max(1, count - 1)))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
