"""What AsyncFedED's figures 2 and 3 share: what was reached, who leads, and the paper's numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..table import mean_and_std
from . import printed
from .item import Page, mean_text, number
from .reached import Reached
from .scores import Scores, agreement_between
from .selection import Series, cell_label
from .wording import cautious_ranking_text, compares, leaders_text, noise_text, ranking_text, spread_text

_MEASURES = {
    "best": "best test accuracy",
    "to_share": "time to 90 % of the own best",
    "to_target": "time to a common target",
}
_PUBLISHED = ("best", "to_share")
TARGET_TEXT = "Common target: 90 % of the lowest mean best of its cell, the same accuracy for every method."


def limits_text(found: list[Reached]) -> str:
    """What the numbers are, and up to when they count."""
    limits = sorted({one.limit for one in found})
    until = " or ".join(f"{limit:.6g}" for limit in limits)
    short = "" if limits == [300] else ", less than the paper's 300, because runs end there"
    return (
        f"All numbers are within {until} units of virtual time{short}. Best: the highest evaluated test accuracy. Time "
        "to 90 %: the first evaluation at 90 % of the run's own best, so a method that stays low may be quick. "
        "Uploads: those that arrived; lost ones are not counted."
    )


def words(page: Page, found: list[Reached]) -> str:
    """Who leads by each measure, agreement with the published order, and what the seeds' noise leaves of it."""
    lines = []
    for measure, text in _MEASURES.items():
        scores = [getattr(one, measure) for one in found]
        agreed = _agreement(found, measure) if measure in _PUBLISHED and compares(scores) else ""
        lines.append(measure_text(text, scores, agreed))
    lines += few_seeds(found)
    if any(printed.place_of(one.cell) in printed.figure3() for one in found if len(one.runs) > 1):
        real = [printed.is_real(one, page) for one in found]
        if not all(real):
            lines.append(
                "- **The published order was measured on other data, models or settings** than "
                f"{'all' if not any(real) else 'some'} of these runs; that it agrees or not says how the methods rank "
                "here and there, not whether the paper's numbers are right."
            )
    return "\n".join(lines)


def measure_text(text: str, scores: list[Scores], more: str = "") -> str:
    """One line about one measure: who leads, ``more``, what is noise, and how many runs have no number."""
    said = [f"- **By {text}** {leaders_text(scores)}.", more, noise_text(scores)]
    values = [value for one in scores for of_seed in one.final.values() for value in of_seed.values()]
    if missed := sum(map(math.isnan, values)):
        said.append(f"{missed} of {len(values)} runs never come to it; their methods have no mean and rank last.")
    return " ".join(part for part in said if part)


def few_seeds(found: list[Reached]) -> list[str]:
    """A line of warning where there are fewer seeds than the paper has repeats."""
    seeds = max(len(of_seed) for one in found for of_seed in one.best.final.values())
    plural = "s" if seeds > 1 else ""
    return [f"- **Only {seeds} seed{plural}**, the paper has five repeats: read with care."] if seeds < 5 else []


def _agreement(found: list[Reached], measure: str) -> str:
    pairs = [(getattr(one, measure), theirs) for one in found if (theirs := _published(one, measure))]
    taus = [agreement_between(ours.means(), theirs.means()) for ours, theirs in pairs]
    known = [tau for tau in taus if not math.isnan(tau)]
    if not known:
        return "There is no published order to compare with."
    same = sum(any(printed.bare(s) in theirs.leaders for s in ours.leaders) for ours, theirs in pairs)
    first = sum(any(s.algorithm == "asyncfeded" for s in theirs.leaders) for _, theirs in pairs)
    return (
        f"Kendall tau with the published order: {spread_text(known)}; the published leader (AsyncFedED in {first} of "
        f"{len(pairs)} cells) leads here in {same}."
    )


def _published(one: Reached, measure: str) -> Scores | None:
    """The published means of the cell's methods, as scores of one seed; None where nothing was published."""
    if measure not in _PUBLISHED:
        return None
    of_cell = printed.figure3().get(printed.place_of(one.cell), {})
    final = {s: {"mean": getattr(of_cell[s], measure)} for s in map(printed.bare, one.runs) if s in of_cell}
    return Scores(cell=one.cell, final=final, lower=measure != "best") if final else None


def measured_table(page: Page, name: str, found: list[Reached]) -> str:
    """One row per cell and method, and a file with one row per run."""
    headers = ["cell", "algorithm", "best [%]", "time to 90 %", "common target [%]", "time to it", "uploads", "seeds"]
    cells, data, by_seed = [], [], []
    for one in found:
        for series in one.runs:
            best, share, target, uploads = (
                list(scores.final[series].values()) for scores in (one.best, one.to_share, one.to_target, one.uploads)
            )
            label = cell_label(page.evidence.cell_keys, one.cell)
            line = [label, series.label, mean_text(*mean_and_std(best)), time_text(share)]
            line += [f"{one.target:.1f}", time_text(target), mean_text(*mean_and_std(uploads), 0), str(len(best))]
            cells.append(line)
            place: dict[str, object] = dict(zip(page.evidence.cell_keys, one.cell, strict=True))
            place |= {"algorithm": series.algorithm, **dict(series.variant)}
            row = place | {"limit": one.limit}
            for key, values in (("best_percent", best), ("time_to_90", share), ("time_to_target", target)):
                row |= dict(zip((key, f"{key}_std"), mean_and_std(values), strict=True))
            for seed, uploaded in one.uploads.final[series].items():
                scores = {"best_percent": one.best, "time_to_90": one.to_share, "time_to_target": one.to_target}
                reached = {key: score.final[series].get(seed) for key, score in scores.items()}
                by_seed.append(place | {"seed": seed} | reached | {"uploads": uploaded})
            data.append(row | {"target_percent": one.target, "uploads": mean_and_std(uploads)[0], "seeds": len(best)})
    table = page.folder.table(name, headers, cells, 2, data)
    return f"{table}\nRun by run: {page.folder.rows(f'{name}_by_seed', by_seed)}\n"


def time_text(values: list[float]) -> str:
    """``19.2 ± 1.1``; with ``(2 of 5)`` where only so many seeds reach it; ``never``."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "never" if values else "-"
    return mean_text(*mean_and_std(known), 1) + (
        f" ({len(known)} of {len(values)})" if len(known) < len(values) else ""
    )


def published_parts(page: Page, found: list[Reached]) -> list[str]:
    """The paper's numbers: with differences where data and model are the paper's, apart from ours elsewhere."""
    of_cells = [one for one in found if printed.place_of(one.cell) in printed.figure3()]
    if not of_cells:
        return []
    real = [one for one in of_cells if printed.is_real(one, page)]
    seconds = ", ".join(
        f"{value:g} s under protocol {cell_label(('paper',), (paper,)).partition(' ')[2]}"
        for paper, value in printed.startup_seconds().items()
    )
    parts = [
        "## Measured and published",
        "The paper draws figures; these numbers are averages of the authors' raw runs, published with it "
        "(Qiyr0/AsyncFedED at 37b7562). Their five repeats share split, initial model and suspensions, so their spread "
        "is timing noise and smaller than ours over seeds. Their clocks are real: the first cycle of every client "
        f"contains the start of its process ({seconds}), which virtual time leaves out.",
    ]
    if real:
        parts.append(_differences(page, real))
    if len(real) < len(of_cells):
        parts.append(
            "**Runs on other data or with other settings than the paper's get no difference to its numbers.** Those, "
            "for themselves: best accuracy [%] / time to 90 % of it [s] / uploads."
        )
        parts.append(_alone(page, of_cells))
    return parts


def orders_part(page: Page, found: list[Reached]) -> str:
    """A table: the order of the methods in every cell by every measure, beside the published one."""
    headers = ["cell", "by", "order measured, best first", "order published", "Kendall tau"]
    cells = []
    for one in found:
        for measure, text in _MEASURES.items():
            ours, theirs = getattr(one, measure), _published(one, measure)
            line = [cell_label(page.evidence.cell_keys, one.cell), text, cautious_ranking_text(ours)]
            if theirs is None:
                line += ["-", "-"]
            else:
                line.append(ranking_text(theirs.means(), theirs.lower))
                line.append(number(agreement_between(ours.means(), theirs.means())))
            cells.append(line)
    note = "≈: neighbours that differ, seed against seed, by no more than two standard errors; =: equal means."
    return f"{page.folder.table('orders', headers, cells, 4)}\n{note}"


def _differences(page: Page, found: list[Reached]) -> str:
    headers = ["cell", "algorithm", "best [%]", "published", "difference", "time to 90 %", "published"]
    headers += ["without start-up", "difference", "uploads", "published"]
    cells = []
    for one in found:
        startup = printed.startup_seconds()[one.cell[0]]
        of_cell = printed.figure3()[printed.place_of(one.cell)]
        for series in one.runs:
            if (theirs := of_cell.get(printed.bare(series))) is None:
                continue
            best, time, uploads = (
                mean_and_std(list(scores.final[series].values())) for scores in (one.best, one.to_share, one.uploads)
            )
            line = [cell_label(page.evidence.cell_keys, one.cell), series.label]
            line += [mean_text(*best), mean_text(theirs.best, theirs.best_std)]
            line += [_difference(best, theirs.best), mean_text(*time, 1)]
            line += [mean_text(theirs.to_share, theirs.to_share_std, 1), f"{theirs.to_share - startup:.1f}"]
            line += [_difference(time, theirs.to_share - startup), mean_text(*uploads, 0), f"{theirs.uploads:.0f}"]
            cells.append(line)
    text = page.folder.table("published_difference", headers, cells, 2)
    return (
        "Differences are ours minus published, times without the published start-up. The published runs share "
        "one initial model and one pattern of suspensions, as one of our seeds has: `*` marks a difference beyond two "
        f"standard deviations of our seeds.\n\n{text}"
    )


def _difference(ours: tuple[float, float], theirs: float) -> str:
    mean, std = ours
    return number(mean - theirs, "+") + ("*" if abs(mean - theirs) > 2 * std else "")


def _alone(page: Page, found: Iterable[Reached]) -> str:
    """The published table: it must not stand in one table with a stand-in's numbers."""
    columns = {one.cell: printed.figure3()[printed.place_of(one.cell)] for one in found}
    methods: list[Series] = list(dict.fromkeys(series for of_cell in columns.values() for series in of_cell))
    headers = ["published", *(cell_label(page.evidence.cell_keys, cell) for cell in columns)]
    cells = []
    for series in methods:
        numbers = (of_cell[series] for of_cell in columns.values())
        cells.append([series.label, *(f"{one.best:.1f} / {one.to_share:.0f} / {one.uploads:.0f}" for one in numbers)])
    return page.folder.table("published", headers, cells)
