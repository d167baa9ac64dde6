"""Parts of every page about its runs: their kind, chosen step sizes, missing runs and origin."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from ...analysis.caveats import describe_mixed_makers
from ...analysis.names import distinct_texts, setting_label, value_texts
from ...analysis.selection import CODE
from ...errors import BenchError
from ...files import read_text
from .page import Page
from .spec import partial_image_sets, problems
from .write import Part, Table, format_number

ORIGIN = "## Where this comes from"  # every page ends so
AGAIN = "repeat a damaged run's command with `rerun=true`"
_NAMED_DIVERGED = 3  # diverged runs that are named one by one
_NAMED = 20  # runs that are missing or left out and named one by one


def header(page: Page) -> list[str]:
    """Return one line: the data, model and number of these runs, compared with the paper's."""
    spec, used, some = page.spec, problems(page.runs), partial_image_sets(page.runs)
    what = "; ".join([", ".join(sorted(used)), *some])
    if page.scale == "smoke":
        first = f"**A smoke test** ({what}): its numbers mean nothing."
    elif page.scale == "full" and used <= set(spec.problems) and not some:
        first = f"**The paper's data, models and scale** ({what})."
    elif spec.searched:
        first = f"**A comparison of ours** ({what}, scale `{page.scale}`)."
    else:
        first = _describe_kind(used, set(spec.problems), f"{what} at scale `{page.scale}`")
    profiles = {
        "published": "hyper-parameters and budgets as the paper prints them, if the text names no other.",
        "released": "what the authors' released code runs where it differs from what is printed.",
        "fair": spec.fair,
    }
    profile = f"Profile `{page.profile}`: {profiles.get(page.profile, '')}".removesuffix(": ")
    profile = spec.fair if spec.searched and page.profile == "published" else profile
    return [f"{first} {profile} {runs_text(page)} {spec.shows}"]


def runs_text(page: Page) -> str:
    """Return how many runs and seeds count: ``60 runs, seeds 0, 1, 2.``"""
    seeds = sorted(set(page.runs["seed"].astype(int)))
    is_range = len(seeds) > 3 and seeds == [*range(seeds[0], seeds[-1] + 1)]
    text = f"{seeds[0]} to {seeds[-1]}" if is_range else ", ".join(map(str, seeds))
    return f"{len(page.runs)} runs, seed{'s' * (len(seeds) > 1)} {text}."


def chosen_values(page: Page) -> list[Part]:
    """Return the table of tuned values, and a note on methods that were tuned with fewer values: they rank too low."""
    data = page.choices
    if data.empty:
        return []
    none = data["tuned"].isna()
    values = pd.Series(value_texts(data["tuned"]), index=data.index)
    values = values.mask(data["at_edge"].astype(bool), values + " (edge)")
    columns: dict[str, Any] = {"cell": data["cell"], "algorithm": data["series"]}
    of_all = ", ".join(page.spec.tuned)
    if len(page.spec.tuned) > 1:
        values = data["tuned_by"] + " = " + values
    columns[of_all if len(page.spec.tuned) == 1 else "step"] = values.mask(none, "left out")
    columns["validation accuracy [%]"] = data["validation"].map(lambda value: format_number(float(value or math.nan)))
    columns["values tried"] = [f"{tried} of {data['tried'].max()}" for tried in data["tried"]]
    name = f"chosen_{of_all.rpartition('.')[2] if len(page.spec.tuned) == 1 else 'step'}"
    return ["## Steps chosen on validation samples", Table(name, pd.DataFrame(columns), data, 2)]


def describe_codes(runs: pd.DataFrame) -> str:
    """Return a sentence on series that differ only in the user's code; empty if there are none."""
    pairs = zip(runs["series"], runs[CODE], strict=True)
    is_split = [str(series).endswith(setting_label(CODE, code)) for series, code in pairs]
    counts = runs["series"][is_split].value_counts(sort=False)
    told = "; ".join(f"{series}: {count} run{'s' * (count > 1)}" for series, count in counts.items())
    return f"The code of a class changed between runs, so runs of each code are a series ({told})." if told else ""


def coverage(page: Page) -> list[Part]:
    """Return the number of runs, and the names of those that are missing or do not count."""
    placed, left = page.placed, page.placed.left_out
    beyond = int((~placed.runs["listed"].astype(bool)).sum())
    expected = f"The sweep lists {placed.expected} runs, of which {len(placed.missing)} are missing. "
    best = "" if page.choices.empty else ", those of the best step of each search"
    more = f"; {beyond} of the used runs are not in the list" if beyond else ""
    lines = [f"{expected if placed.expected else ''}{len(placed.runs)} runs are used{best}{more}."]
    for reason, group in left.groupby("reason", sort=True):
        names = [f"`{row['name']}`" + (f" ({row['note']})" if row["note"] else "") for _, row in group.iterrows()]
        remedy = f"; {AGAIN}" if reason == "unreadable" else ""
        if reason == "diverged" and len(names) > _NAMED_DIVERGED:
            of_series = (f"{one}: {count}" for one, count in Counter(map(str, group["series"])).items())
            lines.append(f"- {len(group)} diverged ({', '.join(of_series)}), for example {names[0]}")
            continue
        lines.append(f"- {len(group)} {reason}: {_join_first(names)}{remedy}")
    if len(placed.missing):
        lines.append(
            f"- {len(placed.missing)} missing: {_join_first([f'`{text}`' for text in placed.missing['overrides']])}"
        )
    return ["## Runs", "\n".join(lines)]


def origin(page: Page, commands: Sequence[str]) -> list[Part]:
    """Return commands, revisions, versions and devices, without dates, so that the same runs give the same page."""

    def distinct_values(key: str) -> str:
        return ", ".join(distinct_texts(page.runs, key)) or "unknown"

    computed = page.runs if page.computed.empty else page.computed
    hours = pd.to_numeric(computed.get("summary.wall_seconds", pd.Series(dtype=float))).sum() / 3600
    lines = ["```sh", *commands, "```", ""] if commands else []
    lines.append(
        f"- seeds {distinct_values('seed')}; {distinct_values('summary.device')}; {hours:.2g} hours of computing"
    )
    versions = f"{distinct_values('summary.versions.asyncfl_bench')}, torch {distinct_values('summary.versions.torch')}"
    revisions, here = distinct_values("summary.git_revision"), version("asyncfl_bench")
    lines.append(f"- runs by asyncfl_bench {versions}, revision {revisions}; asyncfl_bench {here} wrote this page")
    if mixed := describe_mixed_makers(page.runs):
        lines.append(f"- {mixed}")
    moved = pd.to_numeric(page.runs.get("summary.task.moved_samples", pd.Series(dtype=float)))
    if moved.max() > 0:
        counts = dict.fromkeys(f"{count:g}" for count in (moved[moved > 0].min(), moved.max()))
        repaired = f"{(moved > 0).sum()} of {len(moved)} runs moved {' to '.join(counts)}"
        total = " or ".join(distinct_texts(page.runs, "summary.task.train_samples"))
        lines.append(f"- split: {repaired} of {total} training samples to clients that had too few")
    digests = page.runs["data_digest"].dropna().unique()
    if len(digests) > 1:
        lines.append(
            f"- different sets of training samples: {len(digests)}, because seed or data settings choose the samples"
        )
    if distinct_values("summary.data_source") != "unknown":
        lines.append(f"- data: {distinct_values('summary.data_source')}")
    return [ORIGIN, "\n".join(lines)]


def refuse_foreign(path: Path) -> None:
    """Raise BenchError if there is a file that is not a page."""
    if path.exists() and ORIGIN not in read_text(path, errors="replace"):
        raise BenchError(f"{path} is not a page of afl-report; choose another place with --out")


def _describe_kind(used: set[str], own: set[str], what: str) -> str:
    """Return how runs differ from the whole of the paper's experiment."""
    data, own_data = ({problem.partition(" with ")[0] for problem in problems} for problems in (used, own))
    if used <= own:
        return f"**The paper's data and model, not all of its experiment**: {what}."
    if data <= own_data:
        return f"**The paper's data, another model**: {what}; the paper has {_join_models(own)}."
    return f"**A stand-in, not the paper's experiment**: {what}."


def _join_models(problems: set[str]) -> str:
    """Return ``newsgroups20 with bert_base and with distilbert``."""
    models: dict[str, list[str]] = {}
    for problem in sorted(problems):
        data, _, model = problem.partition(" with ")
        models.setdefault(data, []).append(f"with {model}")
    return "; ".join(f"{data} {' and '.join(of)}" for data, of in models.items())


def _join_first(texts: list[str]) -> str:
    """Return the first texts with commas, and how many more there are."""
    return ", ".join(texts[:_NAMED]) + (f" … and {len(texts) - _NAMED} more" if len(texts) > _NAMED else "")
