"""Rankings and their differences in words and as a table, whatever the number is that ranks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from .item import VERDICTS, Page, number
from .scores import Scores, ranked
from .selection import Series, cell_label


def compares(found: Sequence[Scores]) -> bool:
    """Whether some cell has two methods."""
    return any(len(one.final) > 1 for one in found)


def leaders_text(found: Sequence[Scores]) -> str:
    """``ACE leads in 3 of 4 cells, ACED leads in 1 of 4 cells (beyond noise over the next in 2)``."""
    compared = [one for one in found if len(one.final) > 1]
    if not compares(found):
        return "there is nothing to lead: no cell has two methods"
    leaders = Counter(" tied with ".join(s.label for s in one.leaders) or "nobody" for one in compared)
    said = ", ".join(f"{label} leads in {count} of {len(compared)} cells" for label, count in leaders.most_common())
    clear = sum(one.neighbours[0][2].verdict == "larger" for one in compared)
    return f"{said} (beyond noise over the next in {clear})"


def noise_text(found: Sequence[Scores]) -> str:
    """How many neighbouring pairs the seeds' noise could explain."""
    verdicts = Counter(pair.verdict for one in found for _, _, pair in one.neighbours)
    total = sum(verdicts.values())
    if not total:
        return ""
    unknown = f", {verdicts['unknown']} rest on one seed" if verdicts["unknown"] else ""
    return f"Of {total} neighbouring pairs {verdicts['noise']} differ by no more than the seeds' noise{unknown}."


def spread_text(values: list[float]) -> str:
    """``0.60 on average (0.20 to 1.00)``; the number alone when there is one."""
    mean = sum(values) / len(values)
    spread = f" on average ({number(min(values))} to {number(max(values))})" if len(values) > 1 else ""
    return number(mean) + spread


def ranking_text(means: Mapping[Series, float], lower: bool = False) -> str:
    """``ACE > ACED = CA2FL``, best first."""
    order = ranked(means, lower)
    signs = [" = " if means[a] == means[b] else " > " for a, b in itertools.pairwise(order)]
    return "".join(series.label + sign for series, sign in zip(order, [*signs, ""], strict=True))


def cautious_ranking_text(scores: Scores) -> str:
    """``ACE > ACED ≈ CA2FL = FedBuff``: best first, ``≈`` where neighbours differ by no more than the seeds' noise,
    ``=`` where their means are equal."""
    signs, means = {"larger": " > ", "noise": " ≈ ", "unknown": " > "}, scores.means()
    after = [" = " if means[a] == means[b] else signs[pair.verdict] for a, b, pair in scores.neighbours]
    return "".join(series.label + sign for series, sign in zip(scores.ranking, [*after, ""], strict=True))


def neighbours_part(page: Page, name: str, found: Sequence[Scores], unit: str) -> str:
    """A table ``<name>``: every series of every ranking with the next one; empty without two series in a cell.

    unit  of the difference, ``points`` or ``seconds``
    """
    headers = ["cell", "better", "next", f"difference [{unit}]", "2 standard errors", "seeds", "verdict"]
    cells = [
        [
            cell_label(page.evidence.cell_keys, one.cell),
            first.label,
            second.label,
            number(pair.mean, "+"),
            number(pair.two_se),
            str(pair.seeds),
            VERDICTS[pair.verdict],
        ]
        for one in found
        for first, second, pair in one.neighbours
    ]
    if not cells:
        return ""
    text = page.folder.table(name, headers, cells, 3)
    return (
        f"Neighbours in the ranking, seed against seed (seeds share split, initial model and client speeds):\n\n{text}"
    )
