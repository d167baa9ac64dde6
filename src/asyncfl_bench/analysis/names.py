"""Labels of settings, values, series, axes and metrics on every page, and their order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import pandas as pd

from ..algorithms import SHOWN_ORDER
from ..config.part_sources import class_names, config_directory
from ..config.settings import NOT_IDENTITY, ORIGINS, PARTS
from ..tracking.runs import FIXED, setting_text

WEIGHT = "algorithm.staleness_weight"  # a part of FedAsync's name, as papers write it: FedAsync+Hinge
AXES = {"iteration": "server iterations", "uploads": "uploads", "virtual_time": "virtual time", "bytes": "bytes"}
_EXPONENT = re.compile(r"(?<=\d)e-0(?=\d$)")  # 3e-05 is written 3e-5
_KEYS = {
    "heterogeneity.alpha": "α",
    "heterogeneity.groups": "K",
    "heterogeneity.shards_per_client": "s",
    "client.local_steps": "E",
    "model.cut": "cut",
    "availability.share": "dropout share",
    "availability.probability": "P",
    "algorithm.tau_algo": "τ_algo",
    "algorithm.clusters": "clusters told",
    "algorithm.cache.precision": "cache",
    "client.local_epochs": "K",
    "delay.gamma": "γ",
    "distillation.rate": "η_d",
    "algorithm.mu": "μ",
    "algorithm.alpha": "α",
    "algorithm.hinge_a": "a",
    "algorithm.hinge_b": "b",
    "algorithm.lam_over_eps": "λ/ε",
    "algorithm.lam": "λ",
    "algorithm.gamma_bar": "γ_bar",
    "algorithm.kappa": "κ",
}
# values whose text needs no name of a setting
_WORDS = {
    ("delay.clients", "exponential"): "clients' own speeds",
    ("delay.clients", "equal"): "clients alike",
    ("tick_rounding", "down"): "rounded down",
    ("tick_rounding", "up"): "rounded up",
    ("precision", "tf32"): "TF32 precision",
    ("delay", "fedecho_large"): "large delay",
    ("delay", "fedecho_mild"): "mild delay",
    ("heterogeneity", "class_shards"): "shards",
    ("heterogeneity", "capped_dirichlet"): "Dirichlet",
    ("delay.gamma", "0.0"): "speeds by data size",
    ("delay.gamma", "1000000.0"): "random speeds",
    ("distillation.kl_mean", "batch"): "KL over samples",
    ("distillation.kl_mean", "elements"): "KL over samples and classes",
}
_PROTOCOLS = {
    "synthetic": "Synthetic",
    "femnist": "FEMNIST",
    "shakespeare": "Shakespeare",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cinic10": "CINIC-10",
    "fashion_mnist": "Fashion-MNIST",
    "sst2": "SST2",
    "mrpc": "MRPC",
}
_BETA = "exp_beta"
ETA = "algorithm.eta"  # c * sqrt(n / T), so told by algorithm.c where that is given


@cache
def rule_classes() -> dict[str, type]:
    """Return the class of each rule of this package by the name of its yaml."""
    found = {}
    for path in (config_directory() / "algorithm").glob("*.yaml"):
        module, _, class_name = class_names(path)[0].rpartition(".")
        found[path.stem] = getattr(import_module(module), class_name)
    return found


def algorithm_label(algorithm: str) -> str:
    """Return the label of an algorithm: ``ACE``."""
    return str(getattr(rule_classes().get(algorithm), "label", algorithm))


def label_with_server_time(run: pd.Series) -> str:
    """Return ``GAS, server 4 µs a sample`` for a run whose server's computing takes time; else the rule's label."""
    text, rate = algorithm_label(run["algorithm"]), run.get("server_seconds_per_sample", 0.0)
    price = f"{1e3 * rate:g} ms" if rate >= 1e-3 else f"{1e6 * rate:g} µs"
    return f"{text}, server {price} a sample" if rate > 0 else text


def setting_label(key: str, value: object) -> str:
    """Return the label of a setting: ``α = 0.1``, ``β = 5`` for ``delay=exp_beta5``, ``FEMNIST`` for a ``paper``."""
    text = str(value)
    if (key, text) in _WORDS:
        return _WORDS[key, text]
    if key == "delay" and text.startswith(_BETA):
        return f"β = {text.removeprefix(_BETA)}"
    if key == "paper":
        return _PROTOCOLS.get(text.rpartition("/")[2], text)
    if key == "algorithm":
        return algorithm_label(text)
    return f"{_KEYS.get(key, key.rpartition('.')[2])} = {_EXPONENT.sub('e-', text)}"


def series_label(algorithm: str, variant: Mapping[str, object], own: str | None = None) -> str:
    """Return the name of a line or row: ``ACED, τ_algo = 10``, ``FedAsync+Hinge``.

    variant: key -> value; own: the label of a rule from outside the package
    """
    weight = variant.get(WEIGHT)
    base = own or algorithm_label(algorithm)
    base += f"+{str(weight).capitalize()}" if weight not in (None, "-", "") else ""
    others = [setting_label(key, value) for key, value in variant.items() if key != WEIGHT]
    return ", ".join([base, *others])


def cell_label(keys: Sequence[str], cell: Sequence[object]) -> str:
    """Return ``α = 0.1, β = 5``, without settings that have no value (``-``, NaN)."""
    known = [(key, value) for key, value in zip(keys, cell, strict=True) if str(value) not in ("-", "nan")]
    return ", ".join(setting_label(key, value) for key, value in known)


def key_label(key: str, values: Iterable[object] = ()) -> str:
    """Return the label of an axis over ``values`` of ``key``."""
    if key == "delay" and (texts := [str(value) for value in values]) and all(t.startswith(_BETA) for t in texts):
        return "β"
    return "protocol" if key == "paper" else setting_label(key, "")[:-3]


def short_value(key: str, value: object) -> str:
    """Return the value alone, as a tick of an axis shows it."""
    text = str(value)
    return text.removeprefix(_BETA) if key == "delay" else setting_label(key, text) if key == "paper" else text


def axis_label(axis: str, units: Iterable[object] = ()) -> str:
    """Return ``server iterations``; ``virtual time [ticks]``, ``virtual time [s or ticks]`` if runs differ in it."""
    known = {"s" if unit == "seconds" else str(unit) for unit in units if unit is not None and unit == unit}
    text, unit = AXES.get(axis, axis.replace("_", " ")), " or ".join(sorted(known - {""}))
    return f"{text} [{unit}]" if axis == "virtual_time" and unit else text


def metric_label(metric: str) -> str:
    """Return ``test accuracy [%]`` for ``test/accuracy``; other names with blanks for their signs."""
    text = metric.replace("/", " ").replace("_", " ")
    return f"{text} [%]" if is_percent(metric) else text


def is_percent(metric: str) -> bool:
    """Return True if the metric is a share that pages show in percent."""
    return metric.endswith("accuracy")


def lower_is_better(metric: str) -> bool | None:
    """Return True for losses, errors and times, False for accuracies, and None for a metric of unknown direction."""
    if metric.rpartition("/")[2].startswith(("loss", "error", "perplexity", "time")):
        return True
    return False if metric.endswith("accuracy") else None


def natural_key(value: object) -> tuple:
    """Return a sort key: numbers by size, also those at the end of a name (``exp_beta5``); text by its letters."""
    text = str(value)
    head = "" if _is_number(text) else text.rstrip("0123456789.-+e")
    tail = text[len(head) :]
    return (head, float(tail) if _is_number(tail) else 0.0, text)


def series_order(label: str) -> tuple:
    """Return a sort key: first rules in the order of ``algorithms.SHOWN_ORDER``, then other series by name, ignoring
    case.

    Variants are sorted by their numbers.
    """
    base, _, variant = label.partition(", ")
    ranks = {algorithm_label(algorithm): rank for rank, algorithm in enumerate(SHOWN_ORDER)}
    rank = ranks.get(base.partition("+")[0], len(ranks))
    return (rank, natural_key(base.casefold()), *(natural_key(part) for part in variant.split(", ")))


def ordered_series(labels: Iterable[str]) -> list[str]:
    """Return each label once, in the order of every legend and table."""
    return sorted(set(labels), key=series_order)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def sort_key(value: object) -> tuple:
    """Return a sort key of settings: numbers by size, beyond the digits shown."""
    return natural_key("-" if setting_text(value) == "-" else _to_python(value))


def value_texts(values: pd.Series) -> list[str]:
    """Return the text of each value: six digits, or all digits if six make two values alike."""
    found = [setting_text(value) for value in values]
    exact = [*map(full_text, values)]
    return found if len(set(found)) == len(set(exact)) else exact


def distinct_texts(runs: pd.DataFrame, key: str) -> list[str]:
    """Return the texts of the different values of a column in order; none for a column that is not there."""
    values = runs.get(key, pd.Series(dtype=object)).dropna().unique()
    return [*dict.fromkeys(map(setting_text, sorted(values, key=sort_key)))]


def is_setting(key: str) -> bool:
    """Return True if a column of ``load_runs`` is a setting that decides a run's numbers, except its seed."""
    if key in NOT_IDENTITY:
        return False
    first, dot, _ = key.partition(".")
    if first in PARTS and first not in NOT_IDENTITY:
        return bool(dot)
    return first not in (*NOT_IDENTITY, *FIXED, *ORIGINS, *PARTS, "summary", "series", "cell", "tuned", "listed")


def distinguishing_keys(runs: pd.DataFrame, given: Sequence[str], besides: str | None = None) -> list[str]:
    """Return the keys, beside those ``given``, that distinguish runs that differ in more than their seed.

    Names of groups come first: if another delay was chosen, its settings need not be named one by one.
    besides  a group that is not looked at
    """
    if runs.empty:
        return []
    settings = [key for key in runs.columns if is_setting(key)]
    chosen = [key for key in PARTS if key in runs and key not in NOT_IDENTITY]
    ordered = [*chosen, *sorted(settings, key=lambda key: key == ETA)]
    ordered = [key for key in ordered if key.partition(".")[0] != besides]
    codes = pd.Series(0, index=runs.index)
    for key in given:
        codes = _refine_groups(codes, runs[key])
    found = []
    for key in ordered:
        if key in chosen and not any(_is_split_by(codes, runs[own]) for own in settings if own.startswith(f"{key}.")):
            continue  # another name for the same settings
        if _is_split_by(codes, runs[key]):
            codes = _refine_groups(codes, runs[key])
            found.append(key)
    return found


def full_text(value: object) -> str:
    """Return the text of a setting with all digits; ``-`` for every way to have no value."""
    value = _to_python(value)
    return repr(value) if isinstance(value, float) and value == value else setting_text(value)


def has_value(column: pd.Series, value: object) -> pd.Series:
    """Return the rows where a column has the value. Numbers are compared as numbers: ``0.10`` is 0.1."""
    number = pd.to_numeric(str(value), errors="coerce")
    if number == number:
        return pd.to_numeric(column.astype(str), errors="coerce") == number
    return column.map(setting_text) == setting_text(value)


def _refine_groups(codes: pd.Series, values: pd.Series) -> pd.Series:
    """Return group numbers in which runs of one group that differ in ``values`` are apart."""
    return codes.groupby([codes, values.map(full_text)]).ngroup()


def _is_split_by(codes: pd.Series, values: pd.Series) -> bool:
    """Return True if some group has several of the values."""
    return _refine_groups(codes, values).nunique() > codes.nunique()


def _to_python(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
