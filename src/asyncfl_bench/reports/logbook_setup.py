"""The setup of a replication report: data, environment and training of the archived runs of each page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..analysis.claims import PART, PageVerdicts
from ..analysis.names import is_setting, sort_key
from ..config.choices import options
from ..config.manual import describe_choice
from ..tracking.runs import setting_text
from .judged_claims import SCALES
from .pages.spec import PageSpec, problems
from .pages.write import Part, Table

_DATA = """\
Samples are those that the runs used. A search of step sizes holds out training samples, and a distillation can hold \
back training samples for the server. `dataset.download=true` fetches a missing data set."""
_PAGES = "A row is a page with the runs that were made for it. Some pages also use runs of other pages, named here."
_TRAINING = """\
Methods are named as `afl-run algorithm=` takes them. A value without methods is that of all. Step sizes are printed \
in the paper, those of its released code, or searched on validation samples; then the page names the chosen ones. A \
reading or a stand-in can replace a printed step size; `sweeps/SWEEP.yaml` says why. The archive has all settings."""
_BUDGETS = ("server_iterations", "uploads", "client_steps", "virtual_time", "bytes")
_SPLITS = ("alpha", "groups", "shards_per_client")
_STEPS = ("algorithm.eta", "algorithm.server_lr", "algorithm.alpha", "distillation.rate")
_BUFFERS = ("algorithm.buffer_size", "algorithm.model_buffer", "algorithm.queue")
_OPTIMIZER = {"momentum": "0.0", "weight_decay": "0.0", "clip": "-", "proximal": "0.0", "lr_decay": "1.0"}
_PROFILES = {"published": "printed", "released": "released code"}
_ELSEWHERE = ("budget.", "checkpoint.", "evaluation.", "diagnostics", "heterogeneity", "delay", "dataset", "model")
_FEW = 4  # values of a setting that are listed; of more the ends are named


@dataclass(frozen=True)
class PageRuns:
    """One page: where it is, what it says of claims, and the archived runs that were made for it."""

    link: str  # empty: there is no such file
    verdicts: PageVerdicts
    spec: PageSpec | None
    runs: pd.DataFrame
    borrowed: bool = False  # the runs were made for other sweeps

    @property
    def name(self) -> str:
        return f"{self.verdicts.sweep.partition('/')[0]}/{self.verdicts.section}"

    @property
    def commands(self) -> str:
        """Return what makes the runs and what writes the page."""
        one = self.verdicts
        words = {"profile": one.profile, "scale": _archived_scale(one)}
        words |= {} if one.length == "standard" else {"length": one.length}
        run = " ".join(f"{key}={value}" for key, value in words.items())
        report = " ".join(f"--{key} {value}" for key, value in words.items())
        return f"afl-run -m sweep={one.sweep} {run}\nafl-report {one.sweep} {report}"


def find_page_runs(
    pages: Mapping[str, PageVerdicts], specs: Mapping[str, PageSpec], runs: pd.DataFrame, results: Path
) -> list[PageRuns]:
    """Return the pages, those at the largest scale first, with the runs of their sweep.

    A page whose sweep has made no runs has those of the sweeps that it shares runs with. A sweep without
    claims has one entry for each profile, scale and length of its runs.
    """
    found = []
    keys = ("sweep", "profile", "scale", "length")
    made = runs.reindex(columns=list(keys)).astype(object).fillna({"length": "standard"})
    for link, page in pages.items():
        spec, borrowed = specs.get(page.sweep), False
        wanted = {"profile": page.profile, "scale": _archived_scale(page), "length": page.length}
        alike = (made[list(wanted)] == pd.Series(wanted)).all(axis=1)
        chosen = runs[alike & (made["sweep"] == page.sweep)]
        if chosen.empty and spec is not None:
            chosen, borrowed = runs[alike & made["sweep"].isin(spec.shares_runs_with)], True
        found.append(PageRuns(link, page, spec, chosen, borrowed))
    asked = {(page.sweep, page.profile, _archived_scale(page), page.length) for page in pages.values()}
    for place, group in made.groupby(list(keys)):
        sweep, profile, scale, length = map(str, place)
        if place not in asked and sweep in specs:
            link = f"{sweep}/{profile}-{scale}/README.md"
            there = (results / link).exists()
            page = PageVerdicts(sweep, profile, scale, length, ())
            found.append(PageRuns(link if there else "", page, specs[sweep], runs.loc[group.index]))
    order = {scale: place for place, scale in enumerate(SCALES)}
    return sorted(found, key=lambda one: (order.get(one.verdicts.scale, len(order)), one.name))


def _archived_scale(page: PageVerdicts) -> str:
    """Return the scale of a page's runs as its settings have it."""
    return "full" if page.scale == PART else page.scale


def setup_parts(every: Sequence[PageRuns], runs: pd.DataFrame, linked: bool) -> list[Part]:
    """Return the tables of the data sets, of the pages and of how clients and server train.

    runs    all archived runs of the paper
    linked  the table of pages links them
    """
    parts: list[Part] = []
    if len(runs):
        data = pd.DataFrame([_data_row(str(name), group) for name, group in runs.groupby("dataset")])
        parts += ["### Data", _DATA, Table("data", data, data, 2)]
    frame = pd.DataFrame([_page_row(one, linked) for one in every])
    parts += ["### Pages", _PAGES, Table("setup", frame, frame, frame.shape[1])]
    if len(runs):
        training: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for one in every:
            if len(one.runs):
                training.setdefault(tuple(_training_row(one).items()), []).append(one.name)
        rows = pd.DataFrame([{"pages": ", ".join(names)} | dict(row) for row, names in training.items()])
        parts += ["### Training", _TRAINING, Table("training", rows, rows, rows.shape[1])]
    return parts


def _data_row(name: str, runs: pd.DataFrame) -> dict[str, str]:
    return {
        "data set": name,
        "source": describe_choice("dataset", name) if name in options("dataset") else "",
        "files": distinct_values(runs, "summary.data_source"),
        "training samples": distinct_values(runs, "summary.task.train_samples"),
        "test samples": distinct_values(runs, "summary.task.test_samples"),
        "classes": distinct_values(runs, "summary.task.classes"),
    }


def _page_row(one: PageRuns, linked: bool) -> dict[str, str]:
    runs = one.runs
    delays = [distinct_values(runs, "delay"), distinct_values(runs, "delay.unit")]
    units = {key: key.replace("_", " ") for key in _BUDGETS} | {"virtual_time": delays[1]}
    limits = {unit: distinct_values(runs, f"budget.{key}") for key, unit in units.items()}
    splits = {key: distinct_values(runs, f"heterogeneity.{key}") for key in _SPLITS}
    return {
        "page": f"[{one.name}](../{one.link.partition('#')[0]})" if linked and one.link else one.name,
        "data and model": "; ".join(sorted(problems(runs))) if len(runs) else "",
        "parameters": distinct_values(runs, "summary.parameters"),
        "clients": distinct_values(runs, "n_clients"),
        "split": _join_named(distinct_values(runs, "heterogeneity"), splits),
        "delays": " in ".join(filter(None, delays)),
        "budget": "; ".join(f"{text} {unit}" for unit, text in limits.items() if text),
        "methods": distinct_values(runs, "algorithm"),
        "seeds": distinct_values(runs, "seed"),
        "also uses runs of": ", ".join(one.spec.shares_runs_with) if one.spec else "",
    }


def _training_row(one: PageRuns) -> dict[str, str]:
    runs, page = one.runs, one.verdicts
    epochs, steps = (runs.reindex(columns=[f"client.local_{key}"]).iloc[:, 0] for key in ("epochs", "steps"))
    work = epochs.map("{:g} epochs".format, na_action="ignore").fillna(steps.map("{:g} steps".format))
    work = work.str.replace(r"^(1 \w+)s$", r"\1", regex=True)
    searched = one.spec is not None and (one.spec.searched or page.profile == "fair")
    tuned = ", ".join(f"`{key}`" for key in one.spec.tuned) if one.spec else ""
    settings = {key: values_by_method(runs, f"client.{key}") for key in _OPTIMIZER}
    shown = {
        "seed",
        "n_clients",
        "concurrency",
        *_STEPS,
        *_BUFFERS,
        *(f"client.{key}" for key in (*_OPTIMIZER, "lr", "batch_size", "local_steps")),
    }
    return {
        "clients in flight": values_by_method(runs, "concurrency"),
        "batch": values_by_method(runs, "client.batch_size"),
        "local work": values_by_method(runs.assign(work=work), "work"),
        "optimizer": _join_named(
            values_by_method(runs, "client.optimizer"),
            {key: text for key, text in settings.items() if text != _OPTIMIZER[key]},
        ),
        "local step size": values_by_method(runs, "client.lr"),
        "server step size": _join_named("", {key.partition(".")[2]: values_by_method(runs, key) for key in _STEPS}),
        "step sizes": f"searched: {tuned}" if searched else _PROFILES.get(page.profile, page.profile),
        "buffer": _join_named("", {key.partition(".")[2]: values_by_method(runs, key) for key in _BUFFERS}),
        "also varied": _join_named("", _other_settings(runs, shown)),
    }


def _other_settings(runs: pd.DataFrame, shown: set[str]) -> dict[str, str]:
    """Return the other settings with several values among the runs of one method."""
    keys = [
        key
        for key in map(str, runs)
        if is_setting(key) and key not in shown and not key.startswith(_ELSEWHERE) and not key.endswith("_target_")
    ]
    several = [key for key in keys if (runs.groupby("algorithm")[key].nunique() > 1).any()]
    return {key.removeprefix("algorithm."): values_by_method(runs, key) for key in several}


def _join_named(first: str, named: Mapping[str, str]) -> str:
    """Return ``first, key text, key text`` without the keys that have no text."""
    return "; ".join([*filter(None, [first]), *(f"{key} {text}" for key, text in named.items() if text)])


def values_by_method(runs: pd.DataFrame, key: str) -> str:
    """Return the values of a setting as text: ``0.2 (ace, aced), 1.0 (fedbuff)``, without methods if all agree."""
    methods: dict[str, list[str]] = {}
    for method, group in runs.groupby("algorithm"):
        methods.setdefault(distinct_values(group, key), []).append(str(method))
    if len(methods) == 1:
        return next(iter(methods))
    texts = {text: names for text, names in methods.items() if text}
    return ", ".join(f"{text} ({', '.join(names)})" for text, names in texts.items())


def distinct_values(runs: pd.DataFrame, key: str) -> str:
    """Return the different values of a column as text: ``0.1, 0.3``; of many numbers the ends, and how many."""
    values = sorted(runs.get(key, pd.Series(dtype=object)).dropna().unique(), key=sort_key)
    texts = [*dict.fromkeys(map(setting_text, values))]
    if not len(texts) > 2 or pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").isna().any():
        return ", ".join(texts)
    if texts == [str(int(float(texts[0])) + place) for place in range(len(texts))]:
        return f"{texts[0]} to {texts[-1]}"
    return ", ".join(texts) if len(texts) <= _FEW else f"{texts[0]} to {texts[-1]} ({len(texts)} values)"
