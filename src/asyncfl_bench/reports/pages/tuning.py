"""The server step of each algorithm, chosen on validation samples; a test accuracy never takes part in the choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..load import Run
from .selection import Cell, Selection, Series


@dataclass(frozen=True)
class Choice:
    """The factor c chosen in one cell. validation_percent: its mean validation accuracy; candidates: all c tried."""

    c: str
    validation_percent: float
    candidates: tuple[str, ...]

    @property
    def at_edge(self) -> bool:
        """Whether a c beyond the grid might have been better still."""
        return self.c in (self.candidates[0], self.candidates[-1])


@dataclass
class Evidence:
    """What all figures and tables of a page are made of: one list of runs (one per seed) per series and cell.

    choices      what was chosen where several c were run
    undecided    (series, cell) with several c but no validation accuracy: left out
    """

    cell_keys: tuple[str, ...]
    runs: dict[tuple[Series, Cell], list[Run]]
    diverged: dict[tuple[Series, Cell], int]
    choices: dict[tuple[Series, Cell], Choice]
    undecided: list[tuple[Series, Cell]]

    @property
    def cells(self) -> list[Cell]:
        from .selection import in_order

        return in_order(cell for _, cell in [*self.runs, *self.diverged])

    @property
    def series(self) -> list[Series]:
        """ACE's family first, then as their names stand; variants by their numbers."""
        from .looks import NAMES
        from .selection import in_order

        order = {algorithm: place for place, algorithm in enumerate(NAMES)}
        found = {series for series, _ in [*self.runs, *self.diverged]}
        variants = in_order(tuple(value for _, value in series.variant) for series in found)

        def place(series: Series) -> tuple:
            variant = variants.index(tuple(value for _, value in series.variant))
            return (order.get(series.algorithm, len(order)), series.algorithm, variant)

        return sorted(found, key=place)


def tune(selection: Selection) -> Evidence:
    """Keeps of every (series, cell) the runs of one c: the only one, or the best on validation samples.

    Only those c compete that have the most runs that ended well: a c that diverges for some seeds must not win by the
    others. Of equal accuracies the smaller c wins.
    """
    evidence = Evidence(selection.cell_keys, {}, {}, {}, [])
    places: dict[tuple[Series, Cell], list[str]] = {}
    for series, cell, c in [*selection.runs, *selection.diverged]:
        if c not in places.setdefault((series, cell), []):
            places[series, cell].append(c)
    for (series, cell), factors in places.items():
        factors.sort(key=lambda c: (float(c) if c != "-" else 0.0, c))
        chosen = factors[0]
        if len(factors) > 1:
            groups = {c: selection.runs.get((series, cell, c), []) for c in factors}
            most = max(map(len, groups.values()))
            means = {c: _validation(runs) for c, runs in groups.items() if runs and len(runs) == most}
            known = {c: mean for c, mean in means.items() if mean is not None}
            if means and not known:
                evidence.undecided.append((series, cell))
                continue
            if known:
                chosen = max(known, key=lambda c: known[c])
                evidence.choices[series, cell] = Choice(chosen, known[chosen], tuple(factors))
        if runs := selection.runs.get((series, cell, chosen), []):
            evidence.runs[series, cell] = runs
        if lost := selection.diverged.get((series, cell, chosen), 0):
            evidence.diverged[series, cell] = lost
    return evidence


def spent_on_tuning(evidence: Evidence) -> str:
    """What the choice cost, in one sentence."""
    tried = sorted({len(choice.candidates) for choice in evidence.choices.values()})
    runs = [run for of_cell in evidence.runs.values() for run in of_cell]
    seeds = max((len(of_cell) for of_cell in evidence.runs.values()), default=0)
    uploads = {run.settings.get("budget.uploads") for run in runs}
    share = {run.settings.get("evaluation.validation_share") for run in runs}
    if not tried or len(uploads) != 1 or len(share) != 1 or None in (*uploads, *share):
        return ""
    return (
        f"Tuning had {' or '.join(map(str, tried))} values of c by up to {seeds} seeds by {uploads.pop()} uploads per "
        f"algorithm and cell; {100 * float(str(share.pop())):g} % of the training samples were held back for it."
    )


def _validation(runs: list[Run]) -> float | None:
    """Mean over seeds of the last validation accuracy, in percent; None when a run has none."""
    values = [run.last("validation/accuracy") for run in runs]
    known = [100 * value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
