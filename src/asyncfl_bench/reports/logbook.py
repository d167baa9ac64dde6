"""The replication report of a paper: its runs, their verdict on each claim, and the commands that repeat them.

It is made from the ``claims.json`` of the paper's pages and from the archive of its runs. The same files give the same
bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from ..analysis import claims
from ..analysis.claims import JUDGED, PART, PageVerdicts, papers_with_claims
from ..analysis.names import distinct_texts
from ..config.choices import options
from ..config.manual import describe_choice
from ..config.part_sources import report_command
from ..errors import BenchError, InputError, did_you_mean
from ..files import write_text
from ..papers import paper_pages
from ..tracking.archive import archive_of_paper
from ..tracking.runs import load_runs
from .board import count_parts
from .judged_claims import judge_claims, read_pages, size_rank
from .pages.spec import PageSpec, partial_image_sets, problems
from .pages.write import Part, Table, format_number, markdown_text

NAME = "logbook"
REMARKS = "## Remarks of the authors"
_NO_REMARKS = """\
What was easy, what was difficult and the contact with the paper's authors do not follow from runs. Text below this \
heading stays when the report is written again."""
_MEASURED = """\
**measured** names the comparison that decides, and its mean over seeds with its interval. A difference above 0, or a \
ratio above 1, agrees with the claim. The measure `late` is the mean over the last fifth of the budget, `last` the \
last value. Claims of the abstract come first."""
_RULES = """\
- A claim is a set of comparisons, each one number a seed. Tests after 3, 5, 8, 12 and 20 seeds share a level of 5 %.
- A claim holds if every interval is on the claimed side of zero, and fails if one is on the other side after Holm's \
correction. Otherwise it is a tie if at least one interval is inside the margin.
- A verdict is preliminary with fewer than 5 seeds, or with seeds that were run before the comparison was declared. \
All rules: {link}."""

_DATA = """\
Samples are those that the runs used. A search of step sizes holds out training samples, and a distillation can hold \
back training samples for the server. `dataset.download=true` fetches a missing data set."""
_PAGES = "A row is a page with the runs that were made for it. Some pages also use runs of other pages, named here."
_TRAINING = """\
Methods are named as `afl-run algorithm=` takes them. A value without methods is that of all. Local epochs replace \
local steps. The archive has all settings. Step sizes are printed in the paper, those of its released code, or \
searched on validation samples; then the page names the chosen ones. `sweeps/SWEEP.yaml` says why a reading or a \
stand-in replaces a printed one."""
_SAMPLES = {"files": "summary.data_source", "training samples": "summary.task.train_samples"}
_SAMPLES |= {"test samples": "summary.task.test_samples", "classes": "summary.task.classes"}
# heading of a table of pages -> column of ``load_runs``
_SETUP = {
    "data": "dataset",
    "model": "model",
    "parameters": "summary.parameters",
    "clients": "n_clients",
    "split": "heterogeneity",
    "alpha": "heterogeneity.alpha",
    "groups": "heterogeneity.groups",
    "shards": "heterogeneity.shards_per_client",
    "delays": "delay",
    "unit of time": "delay.unit",
    "server iterations": "budget.server_iterations",
    "uploads": "budget.uploads",
    "client steps": "budget.client_steps",
    "virtual time": "budget.virtual_time",
    "bytes": "budget.bytes",
    "methods": "algorithm",
    "seeds": "seed",
    "devices": "summary.device",
}
_SETTINGS = {
    "clients in flight": "concurrency",
    "batch": "client.batch_size",
    "local steps": "client.local_steps",
    "local epochs": "client.local_epochs",
    "optimizer": "client.optimizer",
    "momentum": "client.momentum",
    "weight decay": "client.weight_decay",
    "local step size": "client.lr",
    "its decay": "client.lr_decay",
    **{name: f"algorithm.{name}" for name in ("eta", "server_lr", "alpha", "buffer_size", "model_buffer", "queue")},
    "rate of distillation": "distillation.rate",
}
_PROFILES = {"published": "printed", "released": "released code"}
_FEW = 4  # values of a setting that are listed; of more the ends are named


def write_logbook(paper: str, results: Path, out: Path, html: bool = False) -> list[Path]:
    """Write ``out/PAPER/logbook.md`` and return the written paths, that one first.

    results  the folder of pages and archives, if ``out`` has no page of the paper
    html     also ``logbook.html``, which has a style for print
    Raises InputError where there is no such paper or no page of it, BenchError where a file in the way is not a report.
    """
    known = papers_with_claims()
    if paper not in known:
        raise InputError(f"--logbook {paper}: no such paper{did_you_mean(paper, known)}; papers: {', '.join(known)}")
    results = out if any((out / paper).rglob(claims.NAME)) else results
    pages = {f"{paper}/{link}": page for link, page in read_pages(results / paper).items()}
    if not pages:
        raise InputError(f"--logbook {paper}: no pages with claims in {results}; to write them: afl-report {paper}")
    target, title = out / paper / f"{NAME}.md", f"# Replication report: {claims.paper_title(paper)}"
    former = target.read_text(encoding="utf-8") if target.exists() else title
    if not former.startswith(title):
        raise BenchError(f"{target}: not written by afl-report; choose another place with --out")
    remarks = former.partition(f"\n{REMARKS}\n")[2].strip() or _NO_REMARKS
    parts = [*logbook_parts(paper, pages, results, out.resolve() == results.resolve()), REMARKS, remarks]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, markdown_text([title, *parts]))
    if not html:
        return [target]
    from .browser.html import write_tables

    write_tables(title.removeprefix("# "), parts, target.with_suffix(".html"))
    return [target, target.with_suffix(".html")]


def logbook_parts(paper: str, pages: Mapping[str, PageVerdicts], results: Path, linked: bool) -> list[Part]:
    """Return the report without its title.

    linked  its tables link pages, which are beside it
    """
    archive = archive_of_paper(results / paper)
    runs = pd.DataFrame() if archive is None else load_runs(archive)
    every = find_page_runs(pages, paper_pages(), runs)
    rows = judge_claims(pages, [paper])
    own, judged = rows[rows["board"] == "paper"], rows[rows["word"].isin(JUDGED)]
    name = claims.paper_title(paper)
    sentence = f"What runs of asyncfl_bench say about the claims of the {name} paper, and how to repeat them."
    parts: list[Part] = [sentence, "## Result", *count_parts(own, "claims of the paper")]
    items = judged["linked_item"].str.replace("](", "](../", regex=False) if linked else judged["item"]
    judged = judged.assign(item=items, measured=judged["details"])
    headings = {"paper": "Claims of the paper", "question": "Controls and questions"}
    for board, heading in (headings | {"construction": "Results by construction"}).items():
        asked = judged.loc[judged["board"] == board, ["item", "claim", "measured", "measure", "verdict", "scale"]]
        if len(asked) or board == "paper":
            parts += [f"## {heading}", *([_MEASURED] if board == "paper" else [])]
            parts.append(Table("claims" if board == "paper" else board, asked, asked))
    frame = rows.loc[~rows["word"].isin(JUDGED), ["item", "claim", "verdict", "reason"]]
    parts += ["## What was not run", Table("not_run", frame, frame) if len(frame) else "Every claim was run."]
    made = set(runs["sweep"]) if len(runs) else set()
    lacking = [
        f"- `{spec.sweep}`: {spec.title.partition(', ')[2] or spec.title}"
        for spec in paper_pages().values()
        if spec.paper == paper and not made & {spec.sweep, *spec.shares_runs_with}
    ]
    parts += ["Sweeps of the paper without archived runs:\n" + "\n".join(lacking)] if lacking else []
    parts += ["## Setup", *setup_parts(every, runs, linked)]
    parts += ["## Deviations from the paper", "\n".join(map(_deviations, every))]
    commands = "\n".join(one.commands for one in every)
    parts += ["## Commands", "Two lines a page: make its runs, write the page.", f"```sh\n{commands}\n```"]
    parts += ["## Environment", _environment_text(runs)]
    rules = "docs/reference/statistics.md"
    link = f"[{rules}](../../{rules})" if linked else f"`{rules}`"
    return [*parts, "## How verdicts are decided", _RULES.format(link=link)]


def _deviations(one: PageRuns) -> str:
    """Return how a page differs from the paper: data, model, part of the data, reading, length and profile."""
    page, texts = one.verdicts, list[str]()
    if len(one.runs) and one.spec is not None:
        used, printed = problems(one.runs), set(one.spec.problems)
        if not used <= printed:
            texts.append(f"{', '.join(sorted(used))}, where the paper has {' and '.join(sorted(printed)) or 'other'}")
        texts += partial_image_sets(one.runs)
    readings = {claims.reading_note(page.sweep, page.profile), *(found.reading for found in page.verdicts)}
    texts += [f"reading: {text}" for text in sorted(filter(None, readings))]
    standard = {"scale": "full", "length": "standard", "profile": "published"}
    texts += [f"{key} `{getattr(page, key)}`" for key, usual in standard.items() if getattr(page, key) != usual]
    return f"- {one.name}: {'; '.join(texts) or 'none'}."


def _hours(runs: pd.DataFrame) -> str:
    seconds = pd.to_numeric(runs["summary.wall_seconds"]).sum() if "summary.wall_seconds" in runs else 0.0
    return format_number(float(seconds) / 3600)


def _environment_text(runs: pd.DataFrame) -> str:
    packages = ("asyncfl_bench", "python", "torch", "torchvision", "numpy")
    keys = {name: f"summary.versions.{name}" for name in packages} | {"threads of a run:": "summary.threads"}
    keys |= {"devices:": "summary.device", "revisions:": "summary.git_revision", "data:": "summary.data_source"}
    lines = [f"- {name} {text}" for name, key in keys.items() if (text := distinct_values(runs, key))]
    return "\n".join([*lines, f"- this report: asyncfl_bench {version('asyncfl_bench')}"])


@dataclass(frozen=True)
class PageRuns:
    """One page: its link, its verdicts, and the archived runs that were made for it."""

    link: str  # empty: it judges no claim
    verdicts: PageVerdicts
    spec: PageSpec | None
    runs: pd.DataFrame

    @property
    def name(self) -> str:
        return f"{self.verdicts.sweep.partition('/')[0]}/{self.verdicts.section}"

    @property
    def steps(self) -> str:
        """Return where the step sizes are from."""
        if self.spec is not None and (self.spec.searched or self.verdicts.profile == "fair"):
            return "searched: " + ", ".join(f"`{key}`" for key in self.spec.tuned)
        return _PROFILES.get(self.verdicts.profile, self.verdicts.profile)

    @property
    def commands(self) -> str:
        """Return what makes the runs and what writes the page."""
        one = self.verdicts
        report = report_command(one.sweep, one.profile, _archived_scale(one), one.length)
        run = re.sub(r" --(\w+) ", r" \1=", report.replace("afl-report ", "afl-run -m sweep="))
        return f"{run}\n{report}"


def find_page_runs(
    pages: Mapping[str, PageVerdicts], specs: Mapping[str, PageSpec], runs: pd.DataFrame
) -> list[PageRuns]:
    """Return the pages, those at the largest scale first, with the runs of their sweep.

    A page whose sweep has made no runs has those of the sweeps that it shares runs with. A sweep without
    claims has one entry for each profile, scale and length of its runs.
    """
    keys = ["sweep", "profile", "scale", "length"]
    made = runs.reindex(columns=keys).astype(object).fillna({"length": "standard"})
    links = {(page.sweep, page.profile, _archived_scale(page), page.length): link for link, page in pages.items()}
    found = []
    for sweep, profile, scale, length in dict.fromkeys([*links, *made.itertuples(index=False, name=None)]):
        link, spec = links.get((sweep, profile, scale, length), ""), specs.get(sweep)
        alike = (made[keys[1:]] == [profile, scale, length]).all(axis=1)
        own = runs[alike & (made["sweep"] == sweep)]
        if own.empty and spec is not None:
            own = runs[alike & made["sweep"].isin(spec.shares_runs_with)]
        if link or spec is not None:
            page = pages[link] if link else PageVerdicts(sweep, profile, scale, length, ())
            found.append(PageRuns(link, page, spec, own))
    return sorted(found, key=lambda one: (size_rank(one.verdicts), one.name))


def _archived_scale(page: PageVerdicts) -> str:
    """Return the scale of a page's runs as its settings have it."""
    return "full" if page.scale == PART else page.scale


def setup_parts(every: Sequence[PageRuns], runs: pd.DataFrame, linked: bool) -> list[Part]:
    """Return the tables of the data sets, of the pages and of how clients and server train.

    runs    all archived runs of the paper
    linked  the table of pages links them
    """
    if runs.empty:
        return ["The paper has no archive of runs, so settings, hours and devices are unknown."]
    groups = {str(name): group for name, group in runs.groupby("dataset")}
    sources = [describe_choice("dataset", name) if name in options("dataset") else "" for name in groups]
    samples = {title: [distinct_values(of, key) for of in groups.values()] for title, key in _SAMPLES.items()}
    data = pd.DataFrame({"data set": [*groups], "source": sources} | samples)
    setup, training = [], []
    for one in every:
        page = f"[{one.name}](../{one.link.partition('#')[0]})" if linked and one.link else one.name
        counts = {"runs": len(one.runs), "diverged": (one.runs["status"] == "diverged").sum()}
        values = {title: distinct_values(one.runs, key) for title, key in _SETUP.items()}
        others = ", ".join(one.spec.shares_runs_with) if one.spec else ""
        setup.append({"page": page, **values, **counts, "hours": _hours(one.runs), "also uses runs of": others})
        if len(one.runs):
            of_methods = {title: values_by_method(one.runs, key) for title, key in _SETTINGS.items()}
            training.append({"page": one.name} | of_methods | {"step sizes": one.steps})
    tables = {"Data": (_DATA, data), "Pages": (_PAGES, pd.DataFrame(setup))}
    tables["Training"] = _TRAINING, pd.DataFrame(training)
    parts: list[Part] = [f"All {len(runs)} archived runs of the paper took {_hours(runs)} hours of computing."]
    for title, (text, frame) in tables.items():
        parts += [f"### {title}", text, Table(title.lower(), frame, frame)]
    return parts


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
    texts = distinct_texts(runs, key)
    if not len(texts) > 2 or pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").isna().any():
        return ", ".join(texts)
    if texts == [str(int(float(texts[0])) + index) for index in range(len(texts))]:
        return f"{texts[0]} to {texts[-1]}"
    return ", ".join(texts) if len(texts) <= _FEW else f"{texts[0]} to {texts[-1]} ({len(texts)} values)"
