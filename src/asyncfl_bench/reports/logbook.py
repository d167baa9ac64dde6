"""The replication report of a paper: what was run, what the runs say of each claim, and how to do it again.

It is made from the ``claims.json`` of the paper's pages and from the archive of its runs. The same files give the same
bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from ..analysis import claims
from ..analysis.claims import JUDGED, PageVerdicts, papers_with_claims
from ..errors import BenchError, InputError, did_you_mean
from ..files import write_text
from ..papers import paper_pages
from ..tracking.archive import archive_of_paper
from ..tracking.runs import load_runs
from .board import count_parts
from .judged_claims import judge_claims, read_pages
from .logbook_setup import PageRuns, distinct_values, find_page_runs, setup_parts
from .pages.spec import partial_image_sets, problems
from .pages.write import Part, Table, format_number, markdown_text

NAME = "logbook"
REMARKS = "## Remarks of the authors"
_NO_REMARKS = """\
What was easy, what was difficult and the contact with the paper's authors do not follow from runs. Text below this \
heading stays when the report is written again."""
_MEASURED = """\
**measured** is the difference of the comparison that decides, more than zero (a ratio: more than one) as claimed, \
with its interval over seeds. The measure `late` is the mean over the last fifth of the budget, `last` the last \
value. Claims of the abstract come first."""
_RULES = """\
- Every claim is a set of comparisons, each one number a seed. Looks at 3, 5, 8, 12 and 20 seeds share a level of 5 %.
- A claim holds if every interval is on the claimed side of zero, and fails if one is on the other side after Holm's \
correction. It is a tie if an interval is inside the margin.
- Fewer than 5 seeds, or seeds that were run before the comparison was declared, give only an indication. \
All rules: {link}."""


def write_logbook(paper: str, results: Path, out: Path, html: bool = False) -> list[Path]:
    """Write ``out/PAPER/logbook.md`` and return the written paths, that one first.

    results  the folder of pages and archives
    html     also ``logbook.html``, which has a style for print
    Raises InputError where there is no such paper or no page of it, BenchError where a file in the way is not a report.
    """
    known = papers_with_claims()
    if paper not in known:
        raise InputError(f"--logbook {paper}: no such paper{did_you_mean(paper, known)}; papers: {', '.join(known)}")
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


def has_pages(paper: str, results: Path) -> bool:
    """Return True if there is a ``claims.json`` of a page of the paper below ``results``."""
    return next((results / paper).rglob(claims.NAME), None) is not None


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
    headings = {"paper": "Claims of the paper", "question": "Controls and questions"}
    for board, heading in (headings | {"construction": "Results by construction"}).items():
        asked = judged[judged["board"] == board]
        if len(asked) or board == "paper":
            parts += [f"## {heading}", *([_MEASURED] if board == "paper" else [])]
            parts.append(_claim_table("claims" if board == "paper" else board, asked, linked))
    parts += ["## What was not run", *_not_run_parts(paper, rows, runs)]
    parts += ["## Setup", *setup_parts(every, runs, linked)]
    parts += ["## Deviations from the paper", *_deviation_parts(every)]
    if len(others := _other_verdicts(own, every)):
        parts += [
            "Verdicts of the pages that are not the nearest to the paper (other readings, profiles and scales):",
            Table("other_pages", others, others),
        ]
    commands = "\n".join(dict.fromkeys(one.commands for one in every))
    parts += ["## Commands", "Two lines a page: make its runs, write the page.", f"```sh\n{commands}\n```"]
    parts += ["## Computing", *_computing_parts(every, runs)]
    parts += ["## Environment", *_environment_parts(runs)]
    rules = "docs/reference/statistics.md"
    link = f"[{rules}](../../{rules})" if linked else f"`{rules}`"
    return [*parts, "## How verdicts are decided", _RULES.format(link=link)]


def _claim_table(name: str, rows: pd.DataFrame, linked: bool) -> Table:
    items = rows["linked_item"].str.replace("](", "](../", regex=False) if linked else rows["item"]
    frame = rows.assign(item=items, measured=rows["details"])
    frame = frame[["item", "claim", "measured", "measure", "verdict", "scale"]]
    return Table(name, frame, frame)


def _not_run_parts(paper: str, rows: pd.DataFrame, runs: pd.DataFrame) -> list[Part]:
    """Return the claims without a verdict with the reason, and the paper's sweeps without archived runs."""
    frame = rows.loc[~rows["word"].isin(JUDGED), ["item", "claim", "verdict", "reason"]]
    parts: list[Part] = [Table("not_run", frame, frame) if len(frame) else "Every claim was run."]
    made = set(runs["sweep"]) if len(runs) else set()
    lacking = [
        f"- `{spec.sweep}`: {spec.title.partition(', ')[2] or spec.title}"
        for spec in paper_pages().values()
        if spec.paper == paper and not made & {spec.sweep, *spec.shares_runs_with}
    ]
    return [*parts, *(["Sweeps of the paper without archived runs:\n" + "\n".join(lacking)] if lacking else [])]


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
                words["indications" if found.marked_word != found.verdict else found.verdict] += 1
    columns = [*JUDGED, "indications"]
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
