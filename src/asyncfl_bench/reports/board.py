"""The index of all claims and rules, a page for each rule, and the overview of a paper: tables of ``judge_claims``."""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis import claims, names
from ..analysis.bank import load_bank
from ..analysis.claims import BOARDS, NAME, VERDICTS, PageVerdicts, read_claims, read_verdicts, write_verdicts
from ..config import manual
from ..errors import BenchError
from ..files import write_text
from .bank_page import judge_worlds
from .judged_claims import DECIDED, judge_claims, read_pages
from .pages import provenance
from .pages.page import Page
from .pages.write import Part, Table, markdown_table, markdown_text

TITLE = "What the papers claim and what the runs say"
CLAIMS = "claims.csv"
FOLDER = "by_rule"
BOARD_TITLES = dict(
    zip(BOARDS, ("claims of the papers", "by construction of the code", "questions of this project"), strict=True)
)
_LEGEND = """\
A row is one claim. **measured** has the comparison that decides, with its mean over all seeds and an interval that \
allows for interim tests. A difference above 0, or a ratio above 1, agrees with the claim. A claim of equality agrees \
if the difference is inside its margin. `3 of 15 as claimed`: in 3 of 15 comparisons the interval agrees. \
`(4 of 13 open)`: the reason of 4 of the 13 comparisons that do not agree. `12 seeds, verdict after 3`: from an \
interim test after 3 seeds. `needs about 8 seeds`: in all, if the measured difference is true. **Abstract.**: the \
paper's abstract has this claim.

- **holds**: all intervals agree. **fails**: one is on the other side, with Holm's correction.
- **tie**: neither, and at least one interval is inside the margin, ± 1 point if the claim has no other. \
**inconclusive**: none of these, with the reason. \
**at chance**: methods end less than 5 points above the share of the most frequent class.
- **not run**: no runs yet. **blocked**: runs of this project cannot decide the claim.
- **(preliminary)**: from fewer than 5 seeds, from seeds run before the comparison was declared, or if the last \
evaluation gives another verdict than the mean over the last fifth. Counts that are equal for all seeds are never \
preliminary.
- Of claims that are not true, at most 2.5 % are called **holds**. Of claims that are true by more than their margin, \
at most 5 % are called **fails** or **tie**. The share of errors among decided claims is unknown.
- Scale `full` is the paper's data, model and size. `part of full` lacks some training images. `medium` is the paper's \
data with a smaller network or a part of its time. `small` is handwritten digits. Only `full` decides about the \
paper's own experiment."""
_RULES_LEGEND = """\
Each rule has a page. **holds**, **fails** and **open** (inconclusive, preliminary or without runs) count all claims \
of papers that compare it, also those in favour of another rule. The last columns are of \
[the bank](../docs/howto/bank.md), with searched settings: number of its worlds with the rule in tier 1, and mean test \
accuracies [%]."""
_WORLDS = {"digits": "digits", "cifar10": "CIFAR-10"}  # of the bank, whose accuracies the index of rules has
_RULES = "[claims.csv](claims.csv) has all reasons, [statistics](../docs/reference/statistics.md) the exact rules."
_BANK = "searched settings, mean ± standard deviation over seeds. Tier 1: rules not significantly below the best."
_WORDS = (
    "*Limits* are special cases. *Memory* is the server's peak [floats], *cache* n d of them "
    "([all words](../../docs/explanation/rules.md))."
)
_FINDINGS = "docs/findings"
# column of claims.csv -> column of ``judge_claims``
_CSV = {key: key for key in ("paper", "id", "board", "item", "rules", "claim", "measured", "verdict", "reason")}
_CSV |= {"scale": "scale_text", "page": "link"}

SCALE = "small"  # of an overview
_OVERVIEW = "# {paper}: the pages at scale small"
_OVERVIEW_TEXT = "Digits and a small network replace the paper's data and models. No number decides about the paper."
_OVERVIEW_CLAIMS = (
    "If several pages judge a claim, the row has the one closest to the paper's setup. "
    "[claims.json](claims.json) has all."
)
_OVERVIEW_PAGES = (
    "Each line ends with the command that writes its page, with figures and CSV files, from archived runs. Pages "
    "`published` have the hyper-parameters and budgets that the paper prints."
)
# of a line, which the text above already says
_REPEATED = re.compile(
    r"\*\*A stand-in, not the paper's experiment\*\*: | at scale `small`"
    r"|Profile `published`: hyper-parameters and budgets as the paper prints them, if the text names no other\. "
)
_LINE = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.M)


def write_board(results: Path) -> Path:
    """Write ``results/README.md``, claims.csv and a page for each rule from all pages below ``results``.

    The same pages give the same bytes.
    """
    target = results / "README.md"
    rows = judge_claims(read_pages(results))
    text = board_text(rows)
    (results / FOLDER).mkdir(parents=True, exist_ok=True)
    write_text(target, text)
    write_text(results / CLAIMS, claims_csv(rows))
    for rule, own in rule_texts(rows, results).items():
        write_text(results / FOLDER / f"{rule}.md", own)
    return target


def board_text(rows: pd.DataFrame) -> str:
    """Return the text of the board: counts of the papers' own claims, a table for each paper, and two short ones."""
    parts: list[Part] = [f"# {TITLE}", "## Rules", _RULES_LEGEND, _index_part(rows)]
    parts += ["## Counts", *count_parts(rows, "claims of the papers"), f"{_LEGEND}\n\n{_RULES}"]
    for paper, own in rows[rows["board"] == "paper"].groupby("paper", sort=False):
        parts += [f"## {claims.paper_title(str(paper))}", *_claim_parts(str(paper), own)]
    for board, own in rows[rows["board"] != "paper"].groupby("board"):  # construction, question
        frame = own.assign(paper=own["paper"].map(claims.paper_title), item=own["linked_item"], scale=own["scale_text"])
        shown = frame[["paper", "item", "claim", "measured", "verdict", "scale"]]
        parts += [f"## {BOARD_TITLES[str(board)].capitalize()}", Table(str(board), shown, shown)]
    return markdown_text(parts)


def claims_csv(rows: pd.DataFrame) -> str:
    """Return all claims with the rules that they compare and the whole reason, a line a claim."""
    texts = {"board": rows["board"].map(BOARD_TITLES), "rules": rows["rules"].str.join(" ")}
    frame = rows.assign(**texts, verdict=rows["verdict"].str.strip("*"))[[*_CSV.values()]]
    return frame.set_axis([*_CSV], axis=1).to_csv(index=False, lineterminator="\n")


def count_parts(rows: pd.DataFrame, noun: str) -> list[Part]:
    """Return the papers' own claims by verdict, and the inconclusive ones by reason; ``noun`` names them."""
    own = rows[rows["board"] == "paper"]
    plain, marked = (Counter(own["word"][own["is_indication"] == flag]) for flag in (False, True))
    lines = [["final", *(plain[word] for word in VERDICTS)]]
    lines.append(["preliminary", *(marked[word] if word in DECIDED else "" for word in VERDICTS)])
    counts = pd.DataFrame(lines, columns=["", *VERDICTS], dtype=object)
    parts: list[Part] = [f"{len(own)} {noun} by verdict, each in one row:", Table("counts", counts, counts)]
    kinds = Counter(_group_seeds(kind) for of_claim in own["kinds"] for kind in dict.fromkeys(of_claim))
    if kinds:
        ordered = sorted(kinds.items(), key=lambda one: (-one[1], one[0]))
        frame = pd.DataFrame(ordered, columns=["reason", "claims"])
        sentence = "Inconclusive claims by reason. A claim with several reasons counts for each."
        parts += [sentence, Table("reasons", frame, frame)]
    return parts


def _group_seeds(kind: str) -> str:
    """Return the reason with a range instead of a number of seeds: ``needs 5 to 20 seeds``."""
    seeds = re.fullmatch(r"needs about (\d+) seeds", kind)
    return kind if seeds is None else "needs 5 to 20 seeds" if int(seeds[1]) <= 20 else "needs 25 to 200 seeds"


def _claim_parts(name: str, rows: pd.DataFrame, of_rule: bool = False) -> list[Part]:
    """Return a table of the decided claims, and one of the others that is folded, with their commonest reason.

    of_rule  for the page of a rule in a folder of results, where items need the names of their papers
    """
    parts: list[Part] = []
    titles = rows["paper"].map(claims.paper_title) + " " if of_rule else ""
    items = (titles + rows["linked_item"]).str.replace("](", "](../" if of_rule else "](", regex=False)
    whose = rows["board"].map({"construction": " (by construction)", "question": " (our question)"}).fillna("")
    rows = rows.assign(item=items + (whose if of_rule else ""), scale=rows["scale_text"])
    is_decided = rows["word"].isin(DECIDED)
    if is_decided.any():
        shown = rows.loc[is_decided, ["item", "claim", "measured", "verdict", "scale"]]
        parts.append(Table(name, shown, shown))
    if not is_decided.all():
        reasons = [next(iter(kinds), word) for kinds, word in zip(rows["kinds"], rows["word"], strict=True)]
        folded = rows.assign(reason=reasons).loc[~is_decided, ["item", "claim", "reason"]]
        summary = f"{len(folded)} further claims; most frequent reason: {folded['reason'].value_counts().idxmax()}"
        table = Table(f"{name}_open", folded, folded)
        parts += [f"<details><summary>{summary}</summary>", table, "</details>"]
    return parts


def rule_texts(rows: pd.DataFrame, results: Path) -> dict[str, str]:
    """Return the text of the page of each rule; the same claims, bank and findings give the same bytes."""
    bank = _bank_table()
    return {rule: markdown_text(_rule_parts(rule, rows, bank, results)) for rule in names.rule_classes()}


def _rule_parts(rule: str, rows: pd.DataFrame, bank: pd.DataFrame, results: Path) -> list[Part]:
    """Return a rule's page: its docstring, then claims, bank (of ``_bank_table``) and findings with one link each."""
    label, frame = names.algorithm_label(rule), bank[bank["rule"] == rule].drop(columns="rule")
    text = inspect.cleandoc(names.rule_classes()[rule].__doc__ or "")
    text = re.split(r"\n\n(?:[^\n]*\(trial\.after_each\):\n\n)?>>> ", text)[0]
    parts: list[Part] = [f"# {label}", f"{manual.describe_choice('algorithm', rule)}"]
    parts += [f"```sh\nafl-run --help algorithm={rule}   # its settings\n```", _WORDS, f"```text\n{text}\n```"]
    if len(own := _claims_about(rule, rows)):
        parts += ["## Claims", "[Legend](../README.md#counts).", *_claim_parts(rule, own, of_rule=True)]
    if len(frame):
        link = "[The bank](../bank/README.md)" if (results / "bank" / "README.md").exists() else "The bank"
        parts += ["## Bank", f"{link}: {_BANK}", Table("bank", frame, frame)]
    links, short = [], re.escape(label.partition(" (")[0])  # findings name FedAC (reconstructed) FedAC
    for page in sorted((results.parent / _FINDINGS).glob("*.md")):
        title, _, text = page.read_text(encoding="utf-8").partition("\n")
        if re.search(rf"(?<![\w-]){short}(?![\w-])", f"{title}\n{text}"):
            links.append(f"- [{title.lstrip('# ')}](../../{_FINDINGS}/{page.name})")
    return [*parts, *(["## Findings", "\n".join(links)] if links else [])]


def _claims_about(rule: str, rows: pd.DataFrame) -> pd.DataFrame:
    return rows[[rule in rules for rules in rows["rules"]]]


def _index_part(rows: pd.DataFrame) -> Table:
    """Return the table of all rules: the summary of each, its claims, and its tiers in the bank."""
    bank, lines = _bank_table(), []
    means = {(rule, world): text.partition(" ±")[0] for world, rule, _, text, _ in bank.itertuples(index=False)}
    for rule in sorted(names.rule_classes(), key=lambda rule: names.series_order(names.algorithm_label(rule))):
        own = _claims_about(rule, rows[rows["board"] == "paper"])
        words = Counter(own["verdict"])
        holds, fails = words["**holds**"], words["**fails**"]  # a preliminary verdict is open
        label = names.algorithm_label(rule)
        meaning = manual.describe_choice("algorithm", rule).removesuffix(".").removeprefix(f"{label}: ")
        counts = map(str, (holds, fails, len(own) - holds - fails)) if len(own) else ["–"] * 3
        tiers = bank.loc[bank["rule"] == rule, "tier"]
        first = f"{(tiers == '1').sum()} of {len(tiers)}" if len(tiers) else "–"
        accuracies = (means.get((rule, world), "–") for world in _WORLDS)
        lines.append([f"[{label}]({FOLDER}/{rule}.md)", meaning, *counts, first, *accuracies])
    columns = ["rule", "meaning", "holds", "fails", "open", "worlds in tier 1", *_WORLDS.values()]
    frame = pd.DataFrame(lines, columns=columns)
    return Table("rules", frame, frame)


def _bank_table() -> pd.DataFrame:
    """Return a row for each rule and complete world of the bank: world, rule, tier, accuracy ± deviation, seeds."""
    bank = load_bank()
    tiers = {world.name: world.tier_texts() for world in judge_worlds(bank)[0]}
    lines: list[list[Any]] = []
    judged = bank[(bank["stage"] == "judged") & bank["world"].isin(tiers)]
    for (world, rule), of in judged.groupby(["world", "rule"], sort=False)["accuracy"]:
        mean, deviation = of.mean(skipna=False), of.std(ddof=1, skipna=False)
        text = "diverged" if math.isnan(mean) else f"{mean:.1f} ± {deviation:.1f}"
        lines.append([str(world).rpartition("/")[2], rule, tiers[str(world)][str(rule)], text, len(of)])
    return pd.DataFrame(lines, columns=["world", "rule", "tier", "accuracy [%]", "seeds"], dtype=object)


def write_overview(page: Page, folder: Path) -> Path:
    """Put the line (kind, runs, command) and the verdicts of ``page`` into ``results/PAPER/small/README.md``.

    The overview has the claims of a paper on digits in one table and a line for each page. A checkout has it alone: the
    pages themselves, with figures and CSV files, are written when one is asked for. Returns its path.

    Raises BenchError when there is a file that is not an overview.
    """
    target, first = folder / "README.md", _OVERVIEW.format(paper=page.spec.paper)
    text = target.read_text(encoding="utf-8") if target.exists() else first
    if not text.startswith(first):
        raise BenchError(f"{target}: not written by afl-report; choose another place with --out")
    header = provenance.header(page)[0].removesuffix(page.spec.shows).strip()
    coverage = str(provenance.coverage(page)[1]).partition("\n")[0]
    line = f"{page.spec.title}. {_REPEATED.sub('', header)} {coverage} `{page.command}`"
    lines = {**dict(_LINE.findall(text)), page.verdicts.section: line}
    folder.mkdir(parents=True, exist_ok=True)
    _write_claims(page, folder / NAME)
    table = _claim_table(page.spec.paper, folder / NAME)
    parts = [first, _OVERVIEW_TEXT]
    parts += ["## Claims", _OVERVIEW_CLAIMS, markdown_table(table, len(table.columns))] if len(table) else []
    parts += ["## Pages", _OVERVIEW_PAGES, "\n".join(f"- **{name}**: {lines[name]}" for name in sorted(lines))]
    write_text(target, "\n\n".join(parts) + "\n")
    return target


def _claim_table(paper: str, path: Path) -> pd.DataFrame:
    """Return a row for each claim that a page of the overview judged."""
    if not path.exists():
        return pd.DataFrame()
    rows = judge_claims(dict(read_verdicts(path)), [paper]).set_index("id")
    rows = rows.loc[[claim.id for claim in read_claims(paper)]]
    frame = rows.assign(claim=rows["sentence"], page=rows["section"], measured=rows["details"])
    return frame.loc[rows["section"] != "", ["claim", "page", "measured", "verdict"]]


def _write_claims(page: Page, target: Path) -> None:
    """Replace the verdicts of this page in the file."""

    def key(one: PageVerdicts) -> tuple[str, ...]:
        return one.sweep, one.profile, one.length

    own = page.verdicts
    kept = [one for _, one in read_verdicts(target) if key(one) != key(own)] if target.exists() else []
    write_verdicts(target, sorted([*kept, *[own] * bool(page.judged)], key=key))
