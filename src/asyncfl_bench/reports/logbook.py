"""The replication report of a paper: what was run, what the runs say of each claim, and how to do it again.

It is made from the ``claims.json`` of the paper's pages and from the archive of its runs. The same files give the same
bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from ..analysis import claims
from ..analysis.claims import JUDGED, PART, PageVerdicts, papers_with_claims
from ..analysis.names import distinct_texts, is_setting
from ..config.choices import options
from ..config.manual import describe_choice
from ..config.places import report_command
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
correction. It is a tie if an interval is inside the margin.
- A verdict is preliminary with fewer than 5 seeds, or with seeds that were run before the comparison was declared. \
All rules: {link}."""

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
_SAMPLES = {"files": "summary.data_source", "training samples": "summary.task.train_samples"}
_SAMPLES |= {"test samples": "summary.task.test_samples", "classes": "summary.task.classes"}
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
    every = find_page_runs(pages, paper_pages(), runs, results)
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
    parts += ["## Deviations from the paper", *_deviation_parts(every)]
    if len(others := _other_verdicts(own, every)):
        parts += [
            "Verdicts of the pages that are not the nearest to the paper (other setups, profiles and scales):",
            Table("other_pages", others, others),
        ]
    commands = "\n".join(dict.fromkeys(one.commands for one in every))
    parts += ["## Commands", "Two lines a page: make its runs, write the page.", f"```sh\n{commands}\n```"]
    parts += ["## Computing", *_computing_parts(every, runs)]
    parts += ["## Environment", *_environment_parts(runs)]
    rules = "docs/reference/statistics.md"
    link = f"[{rules}](../../{rules})" if linked else f"`{rules}`"
    return [*parts, "## How verdicts are decided", _RULES.format(link=link)]


def _deviation_parts(every: Sequence[PageRuns]) -> list[Part]:
    """Return how the pages differ from the paper: data, model, part of the data, reading, length and profile."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for one in every:
        page, texts = one.verdicts, list[str]()
        if len(one.runs) and one.spec is not None:
            used, printed = problems(one.runs), set(one.spec.problems)
            if not used <= printed:
                texts.append(
                    f"{', '.join(sorted(used))}, where the paper has {' and '.join(sorted(printed)) or 'other'}"
                )
            texts += partial_image_sets(one.runs)
        texts += [f"scale `{page.scale}`"] * (page.scale != "full")
        readings = dict.fromkeys(found.reading for found in page.verdicts if found.reading)
        texts += [f"reading: {text}" for text in (claims.reading_note(page.sweep), " / ".join(readings)) if text]
        texts += [f"length `{page.length}`"] * (page.length != "standard")
        texts += [f"profile `{page.profile}`"] * (page.profile != "published")
        lines.setdefault(tuple(texts), []).append(one.name)
    text = "\n".join(f"- {', '.join(names)}: {'; '.join(texts) or 'none'}." for texts, names in lines.items())
    return [text]


def _other_verdicts(own: pd.DataFrame, every: Sequence[PageRuns]) -> pd.DataFrame:
    """Return a row a page and reading with the claims of the paper by verdict, where the board shows another page."""
    shown = set(own[["key", "link", "reading"]].itertuples(index=False, name=None))
    counts: dict[tuple[str, str], Counter[str]] = {}
    for one in every:
        for found in one.verdicts.verdicts:
            words = counts.setdefault((one.name, found.reading), Counter())
            is_shown = (found.claim, one.link, found.reading) in shown
            if found.verdict in JUDGED and found.claim in set(own["key"]) and not is_shown:
                words["preliminary" if found.marked_word != found.verdict else found.verdict] += 1
    columns = [*JUDGED, "preliminary"]
    lines = [
        {"page": page, "reading": reading} | {word: words[word] for word in columns}
        for (page, reading), words in counts.items()
        if words
    ]
    frame = pd.DataFrame(lines)
    return frame.loc[:, (frame != "").any()] if len(frame) else frame


def _computing_parts(every: Sequence[PageRuns], runs: pd.DataFrame) -> list[Part]:
    if runs.empty:
        return ["The paper has no archive of runs, so hours and devices are unknown."]
    lines = [
        {
            "page": one.name + (" (runs of other sweeps)" if one.borrowed and len(one.runs) else ""),
            "runs": len(one.runs),
            "diverged": int((one.runs["status"] == "diverged").sum()),
            "hours": _hours_text(one.runs),
            "devices": distinct_values(one.runs, "summary.device"),
        }
        for one in every
    ]
    frame = pd.DataFrame(lines)
    total = f"All {len(runs)} archived runs of the paper took {_hours_text(runs)} hours of computing."
    return [total, Table("computing", frame, frame)]


def _hours_text(runs: pd.DataFrame) -> str:
    seconds = pd.to_numeric(runs["summary.wall_seconds"]).sum() if "summary.wall_seconds" in runs else 0.0
    return format_number(float(seconds) / 3600)


def _environment_parts(runs: pd.DataFrame) -> list[Part]:
    packages = ("asyncfl_bench", "python", "torch", "torchvision", "numpy")
    keys = {name: f"summary.versions.{name}" for name in packages}
    keys |= {"devices:": "summary.device", "threads of a run:": "summary.threads", "data:": "summary.data_source"}
    revisions = runs.get("summary.git_revision", pd.Series(dtype=object)).dropna().astype(str).str[:12]
    counted = ", ".join(f"`{name}` ({count})" for name, count in sorted(revisions.value_counts().items()))
    lines = [f"- {name} {text}" for name, key in keys.items() if (text := distinct_values(runs, key))]
    lines += [f"- revisions, with their runs: {counted}"] if counted else []
    return ["\n".join([*lines, f"- this report: asyncfl_bench {version('asyncfl_bench')}"])]


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
        report = report_command(one.sweep, one.profile, _archived_scale(one), one.length)
        run = re.sub(r" --(\w+) ", r" \1=", report.replace("afl-report ", "afl-run -m sweep="))
        return f"{run}\n{report}"


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
            path, page = f"{sweep}/{profile}-{scale}/README.md", PageVerdicts(sweep, profile, scale, length, ())
            link = path if (results / path).exists() else ""
            found.append(PageRuns(link, page, specs[sweep], runs.loc[group.index]))
    return sorted(found, key=lambda one: (size_rank(one.verdicts), one.name))


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
        names = {str(name): group for name, group in runs.groupby("dataset")}
        sources = [describe_choice("dataset", name) if name in options("dataset") else "" for name in names]
        data = pd.DataFrame({"data set": [*names], "source": sources})
        for title, key in _SAMPLES.items():
            data[title] = [distinct_values(group, key) for group in names.values()]
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
    of_client = (f"client.{key}" for key in (*_OPTIMIZER, "lr", "batch_size", "local_steps"))
    shown = {"seed", "n_clients", "concurrency", *_STEPS, *_BUFFERS, *of_client}
    others = [key for key in map(str, runs) if is_setting(key) and key not in shown and not key.startswith(_ELSEWHERE)]
    others = [key for key in others if not key.endswith("_target_")]
    others = [key for key in others if (runs.groupby("algorithm")[key].nunique() > 1).any()]
    several = {key.removeprefix("algorithm."): values_by_method(runs, key) for key in others}
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
        "also varied": _join_named("", several),
    }


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
    texts = distinct_texts(runs, key)
    if not len(texts) > 2 or pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").isna().any():
        return ", ".join(texts)
    if texts == [str(int(float(texts[0])) + place) for place in range(len(texts))]:
        return f"{texts[0]} to {texts[-1]}"
    return ", ".join(texts) if len(texts) <= _FEW else f"{texts[0]} to {texts[-1]} ({len(texts)} values)"
