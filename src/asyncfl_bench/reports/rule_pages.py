"""What the project says of each rule: ``results/by_rule/RULE.md`` and the index of rules on the board."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis import names
from ..analysis.bank import load_bank
from ..analysis.claims import Claim
from ..analysis.published import read_published
from ..config import manual
from .bank_page import judge_worlds
from .judged_claims import DECIDED, JudgedClaim, reasons_of
from .pages.write import Part, Table

FOLDER = "by_rule"
_FINDINGS = "docs/findings"
_BANK = "Test accuracy on new seeds, mean and deviation over seeds. A world without a tier lacks rules."


def rules_of_claim(claim: Claim) -> list[str]:
    """Return the choices of ``algorithm`` that the claim compares, in the order of its comparison."""
    decide, known = claim.decide, names.rule_classes()
    expected = decide.get("expected", {})
    named = [*_leaves([decide.get(key, ()) for key in ("groups", "series", "others")])]
    if isinstance(expected, Mapping) and "file" in expected:
        named += read_published(claim.paper, expected["file"].removesuffix(".csv"))["algorithm"].unique().tolist()
    elif isinstance(expected, Mapping):
        named += expected
    found = []
    for one in named:
        settings = one if isinstance(one, Mapping) else claim.series.get(one, {"algorithm": one})
        rule = str(settings.get("algorithm", ""))
        found.append(next((name for name in (rule, rule.partition("_")[0]) if name in known), ""))
    return [*dict.fromkeys(filter(None, found))]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def index_part(rows: Sequence[JudgedClaim]) -> Part:
    """Return the table of all rules: what each does, its claims, and its accuracy in each world of the bank."""
    bank = bank_lines()
    worlds = [*dict.fromkeys(line[0] for own in bank.values() for line in own)]
    lines = []
    for rule in _rules_in_order():
        own = [row for row in rows if rule in rules_of_claim(row.claim) and row.claim.board == "paper"]
        means = {world: text.partition(" ±")[0] for world, _, text, _ in bank.get(rule, ())}
        link = f"[{names.algorithm_label(rule)}]({FOLDER}/{rule}.md)"
        meaning = manual.describe_choice("algorithm", rule).removesuffix(".")
        lines.append([link, meaning, _count(own), *(means.get(world, "") for world in worlds)])
    heads = [f"tuned, {world.rpartition('/')[2]} [%]" for world in worlds]
    frame = pd.DataFrame(lines, columns=["rule", "meaning", "hold / fail / open", *heads])
    return Table("rules", frame, frame)


def page_parts(rule: str, rows: Sequence[JudgedClaim], bank: Sequence[list[Any]], results: Path) -> list[Part]:
    """Return a rule's page: its docstring, then claims, bank and findings with one link each.

    bank  the rule's rows of ``bank_lines``
    """
    label = names.algorithm_label(rule)
    parts: list[Part] = [f"# {label}", f"{manual.describe_choice('algorithm', rule)}"]
    parts += [f"```sh\nafl-run --help algorithm={rule}   # its settings\n```", f"```text\n{_docstring(rule)}\n```"]
    own = [row for row in rows if rule in rules_of_claim(row.claim)]
    if own:
        parts += ["## Claims", *claim_parts(rule, own, "../")]
    if bank:
        link = "[The bank](../bank/README.md)" if (results / "bank" / "README.md").exists() else "The bank"
        frame = pd.DataFrame(bank, columns=["world", "tier", "accuracy [%]", "seeds"], dtype=object)
        parts += ["## Bank", f"{link} searches the settings of all rules alike. {_BANK}", Table("bank", frame, frame)]
    if links := _findings(label, results):
        parts += ["## Findings", "\n".join(links)]
    return parts


def claim_parts(name: str, rows: Sequence[JudgedClaim], up: str = "") -> list[Part]:
    """Return a table of the decided claims, and one of the others that is folded, with their commonest reason.

    up  from the page to the folder of results
    """
    parts: list[Part] = []
    decided = [row for row in rows if row.verdict.verdict in DECIDED]
    if decided:
        lines = [
            (_link(row, up), row.sentence, row.measured, f"**{row.verdict.marked_word}**", row.scale_text)
            for row in decided
        ]
        frame = pd.DataFrame(lines, columns=["item", "claim", "measured", "verdict", "scale"])
        parts.append(Table(name, frame, pd.DataFrame()))
    if rest := [row for row in rows if row not in decided]:
        reasons = pd.Series([_reason(row) for row in rest])
        common = reasons.value_counts().idxmax()
        folded = [(_link(row, up), row.sentence, reason) for row, reason in zip(rest, reasons, strict=True)]
        frame = pd.DataFrame(folded, columns=["item", "claim", "reason"])
        summary = f"{len(rest)} undecided claims, most often: {common}"
        parts += [f"<details><summary>{summary}</summary>", Table(f"{name}_open", frame, pd.DataFrame()), "</details>"]
    return parts


def bank_lines() -> dict[str, list[list[Any]]]:
    """Return for each rule a row for each world of the bank: world, tier, accuracy [%] with its deviation, seeds.

    A world that lacks judged runs of some rules has no tiers.
    """
    bank = load_bank()
    tiers = {world.name: world.tier_texts() for world in judge_worlds(bank)[0]}
    lines: dict[str, list[list[Any]]] = {}
    judged = bank[bank["stage"] == "judged"]
    for key, of in judged.groupby(["world", "rule"], sort=False)["accuracy"]:
        world, rule = map(str, key)
        mean, deviation = of.mean(skipna=False), of.std(ddof=1, skipna=False)
        text = "diverged" if math.isnan(mean) else f"{mean:.1f} ± {deviation:.1f}"
        lines.setdefault(rule, []).append([world, tiers[world][rule] if world in tiers else "", text, len(of)])
    return lines


def _reason(row: JudgedClaim) -> str:
    """Return the first kind of reason in a few words."""
    if row.verdict.verdict != "inconclusive":
        return row.verdict.verdict
    return next(iter(reasons_of(row.verdict)), "inconclusive")


def _link(row: JudgedClaim, up: str) -> str:
    return row.item.replace("](", f"]({up}")


def _count(rows: Sequence[JudgedClaim]) -> str:
    """Return how many claims hold, fail and are open; indications are open."""
    words = [row.verdict.marked_word for row in rows]
    holds, fails = words.count("holds"), words.count("fails")
    return f"{holds} / {fails} / {len(words) - holds - fails}" if words else ""


def _rules_in_order() -> list[str]:
    return sorted(names.rule_classes(), key=lambda rule: names.series_order(names.algorithm_label(rule)))


def _docstring(rule: str) -> str:
    text = inspect.cleandoc(names.rule_classes()[rule].__doc__ or "")
    return re.sub(r"\n\n[^\n]*(?:\(trial\.after_each\)|, the model after each)[^§]*", "", text).rstrip()


def _findings(label: str, results: Path) -> list[str]:
    """Return a link to each page of findings beside ``results`` that names the rule."""
    pages = sorted((results.parent / _FINDINGS).glob("*.md"))
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    named = [page for page in pages if re.search(rf"(?<![\w-]){re.escape(label)}(?![\w-])", texts[page])]
    return [f"- [{texts[page].partition(chr(10))[0].lstrip('# ')}](../../{_FINDINGS}/{page.name})" for page in named]
