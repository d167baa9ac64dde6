"""``results/README.md``: a row for every claim of every paper, from the ``claims.json`` beside the pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from ..analysis import claims
from ..analysis.claims import BOARDS, VERDICTS, Verdict
from ..analysis.names import rule_classes
from ..files import write_text
from .judged_claims import DECIDED, JudgedClaim, judge_claims, read_pages, reasons_of
from .pages.write import Part, Table
from .rule_pages import FOLDER, bank_lines, claim_parts, index_part, page_parts, rules_of_claim

TITLE = "What the papers claim and what the runs say"
HTML = "index.html"
CLAIMS = "claims.csv"
BOARD_TITLES = dict(
    zip(BOARDS, ("claims of the papers", "by construction of the code", "questions of this project"), strict=True)
)
_LEGEND = """\
A row is one claim: a sentence of a paper and what the runs measured. **measured** is the difference of the comparison \
that decides. It is above zero if the runs agree with the claim; a ratio is above one. Brackets have its repeated \
interval over all seeds. `12 seeds, judged at 3`: the look at 3 seeds gave the verdict.

- **holds**: every interval of the claim is on the claimed side of zero. **fails**: one interval is on the other side, \
by Holm's method.
- **tie**: an interval is inside the claim's margin. **inconclusive**: none of these, with the reason.
- **(indication)**: fewer than 5 seeds, seeds run before the comparison was declared, or another verdict by the last \
value.
- Of claims that are not true, at most 2.5 % are called **holds**. Of claims that are true by more than their margin, \
at most 5 % are called **fails**. The share of errors among decided claims is unknown.
- Scale `full` is the paper's data, model and size. `part of full` lacks some training images. `medium` is the paper's \
data with a smaller network or a part of its time. `small` is handwritten digits. Only `full` decides about the \
paper's own experiment."""
_RULES_LEGEND = """\
Each rule has a page with its definition and the results of its runs. A claim of a paper counts for all rules that it \
compares; indications are open. *Tuned* is the mean test accuracy with searched settings in a world of the bank."""
_RULES = """\
[claims.csv](claims.csv) has all reasons. [Statistics](../docs/reference/statistics.md) has the rules of a verdict."""


def write_board(results: Path, html: bool = False) -> Path:
    """Write ``results/README.md``, claims.csv and a page for each rule from all pages below ``results``.

    The same pages give the same bytes.

    html  also ``index.html``, which is written in any case where it exists
    """
    target = results / "README.md"
    rows = judge_claims(read_pages(results))
    text = board_text(rows)
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        results.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    write_text(results / CLAIMS, claims_csv(rows))
    (results / FOLDER).mkdir(exist_ok=True)
    for rule, own in rule_texts(rows, results).items():
        write_text(results / FOLDER / f"{rule}.md", own)
    if html or (results / HTML).exists():
        from .browser.html import write_tables

        write_tables(TITLE, _browser_parts(rows, results), results / HTML, script="filters.js")
    return target


def board_text(rows: Sequence[JudgedClaim]) -> str:
    """Return the text of the board: counts of the papers' own claims, a table for each paper, and two short ones."""
    parts: list[Part] = [f"# {TITLE}", "## Rules", _RULES_LEGEND, index_part(rows)]
    parts += ["## Counts", *count_parts(rows, "claims of the papers"), f"{_LEGEND}\n\n{_RULES}"]
    for paper in claims.papers_with_claims():
        own = [row for row in rows if row.claim.paper == paper and row.claim.board == "paper"]
        if own:
            parts += [f"## {claims.paper_title(paper)}", *claim_parts(paper, own)]
    for board in BOARDS[1:]:
        if own := [row for row in rows if row.claim.board == board]:
            parts += [
                f"## {BOARD_TITLES[board].capitalize()}",
                Table(board, _board_table(own, "paper"), pd.DataFrame()),
            ]
    return markdown_text(parts)


def rule_texts(rows: Sequence[JudgedClaim], results: Path) -> dict[str, str]:
    """Return the text of the page of each rule; the same claims, bank and findings give the same bytes."""
    bank = bank_lines()
    return {rule: markdown_text(page_parts(rule, rows, bank.get(rule, ()), results)) for rule in rule_classes()}


def claim_frame(rows: Sequence[JudgedClaim]) -> pd.DataFrame:
    """Return a row a claim. The board, the replication report and the overview of a paper show columns of it."""
    columns: dict[str, Callable[[JudgedClaim], str]] = {
        "paper": lambda row: claims.paper_title(row.claim.paper),
        "id": lambda row: row.claim.id,
        "board": lambda row: BOARD_TITLES[row.claim.board],
        "item": lambda row: row.item,
        "rules": lambda row: " ".join(rules_of_claim(row.claim)),
        "claim": lambda row: row.sentence,
        "measured": lambda row: row.measured,
        "details": lambda row: row.verdict.details_text,
        "measure": lambda row: row.verdict.yardstick,
        "verdict": lambda row: f"**{row.verdict.marked_word}**",
        "reason": lambda row: row.verdict.reason,
        "scale": lambda row: row.scale,
        "seeds": lambda row: row.seeds,
        "scale and seeds": lambda row: row.scale_text,
        "page": lambda row: row.link,
    }
    return pd.DataFrame({name: [text_of(row) for row in rows] for name, text_of in columns.items()})


def claims_csv(rows: Sequence[JudgedClaim]) -> str:
    """Return all claims with the rules that they compare and the whole reason, a line a claim."""
    frame = claim_frame(rows).assign(paper=[row.claim.paper for row in rows], item=[row.claim.item for row in rows])
    frame = frame.assign(verdict=frame["verdict"].str.strip("*"), scale=frame["scale and seeds"])
    return frame.drop(columns=["details", "measure", "seeds", "scale and seeds"]).to_csv(
        index=False, lineterminator="\n"
    )


def count_parts(rows: Sequence[JudgedClaim], noun: str) -> list[Part]:
    """Return the papers' own claims by verdict, and the inconclusive ones by reason; ``noun`` names them."""
    own = [row.verdict for row in rows if row.claim.board == "paper"]
    plain, marked = count_verdicts(own)
    lines = [["verdicts", *(plain[word] for word in VERDICTS)]]
    lines.append(["indications", *(marked[word] if word in DECIDED else "" for word in VERDICTS)])
    counts = pd.DataFrame(lines, columns=["", *VERDICTS], dtype=object)
    parts: list[Part] = [f"{len(own)} {noun} by verdict:", Table("counts", counts, counts)]
    if reasons := _count_reasons([one for one in own if one.verdict == "inconclusive"]):
        frame = pd.DataFrame(reasons, columns=["reason", "claims"])
        sentence = "Inconclusive claims by reason. A claim with several reasons counts for each."
        parts += [sentence, Table("reasons", frame, frame)]
    return parts


def count_verdicts(verdicts: Sequence[Verdict]) -> tuple[Counter[str], Counter[str]]:
    """Return how many are verdicts and how many are only indications, each by its word."""
    plain = Counter(one.verdict for one in verdicts if one.marked_word == one.verdict)
    return plain, Counter(one.verdict for one in verdicts if one.marked_word != one.verdict)


def plain_table(shown: pd.DataFrame) -> str:
    """Return a Markdown table without padding; columns of numbers are aligned to the right."""
    texts = [[str(text).replace("|", "\\|") for text in line] for line in [shown.columns, *shown.to_numpy()]]
    kinds = [{type(one) for one in shown.iloc[:, place] if one != ""} for place in range(shown.shape[1])]
    rule = ["---:" if kind and kind <= {int, float} else "---" for kind in kinds]
    return "\n".join("| " + " | ".join(line) + " |" for line in (texts[0], rule, *texts[1:]))


def markdown_text(parts: Sequence[Part]) -> str:
    """Return headings, paragraphs and tables as one text."""
    texts = [plain_table(part.shown) if isinstance(part, Table) and part.shown is not None else part for part in parts]
    return "\n\n".join(map(str, texts)) + "\n"


def _board_table(rows: Sequence[JudgedClaim], *first: str) -> pd.DataFrame:
    """Return the table that readers see, a row a claim, with columns in front."""
    frame = claim_frame(rows).drop(columns="scale").rename(columns={"scale and seeds": "scale"})
    return frame[[*first, "item", "claim", "measured", "verdict", "scale"]]


def _count_reasons(verdicts: Sequence[Verdict]) -> list[tuple[str, int]]:
    """Return the reasons with how many claims have each, most frequent first; all numbers of seeds are one reason."""
    kinds = Counter(kind for one in verdicts for kind in dict.fromkeys(reasons_of(one)))
    needs = {kind: count for kind, count in kinds.items() if kind.startswith("needs")}
    found = [(kind, count) for kind, count in kinds.items() if kind not in needs]
    if needs:
        in_order = sorted(needs, key=lambda kind: ("more" in kind, int(re.sub(r"\D", "", kind))))
        by_seeds = ", ".join(
            f"{kind.removeprefix('needs ').removesuffix(' seeds')} ({needs[kind]})" for kind in in_order
        )
        found.append((f"more seeds needed: {by_seeds}", sum(needs.values())))
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _browser_parts(rows: Sequence[JudgedClaim], results: Path) -> list[Part]:
    """Return what the browser shows: counts and one table of all boards, which has filters."""
    frame = claim_frame(rows)[["board", "paper", "item", "claim", "measured", "verdict", "scale", "seeds"]]
    frame["item"] = [_browser_link(item, results) for item in frame["item"]]
    return [*count_parts(rows, "claims of the papers"), "## Claims", _LEGEND, Table("board", frame, frame)]


def _browser_link(link: str, results: Path) -> str:
    """Return the Markdown link with the HTML page in place of README.md, where there is one."""
    found = re.search(r"\(([^)#]*)README\.md", link)
    return link.replace("README.md", "page.html") if found and (results / found[1] / "page.html").exists() else link
