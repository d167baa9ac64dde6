"""One value of the tuned setting for each algorithm and cell, chosen on validation samples.

A test accuracy never takes part in the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..load import Run
from .selection import Cell, Selection, Series


@dataclass(frozen=True)
class Choice:
    """What was chosen in one cell. validation_percent: its mean validation accuracy; candidates: all values tried."""

    value: str
    validation_percent: float
    candidates: tuple[str, ...]

    @property
    def at_edge(self) -> bool:
        """Whether a value beyond the grid might have been better still."""
        return self.value in (self.candidates[0], self.candidates[-1])


@dataclass
class Evidence:
    """What all figures and tables of a page are made of: one list of runs (one per seed) per series and cell.

    tuned        the setting that was chosen
    choices      what was chosen where several values were run
    undecided    (series, cell) with several values but no validation accuracy: left out
    tried        how many values were run
    """

    cell_keys: tuple[str, ...]
    tuned: str
    runs: dict[tuple[Series, Cell], list[Run]]
    diverged: dict[tuple[Series, Cell], int]
    choices: dict[tuple[Series, Cell], Choice]
    undecided: list[tuple[Series, Cell]]
    tried: dict[tuple[Series, Cell], int]

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
    """Keeps of every (series, cell) the runs of one tuned value: the only one, or the best on validation samples.

    Only those values compete that have the most runs that ended well: one that diverges for some seeds must not win by
    the others. Of equal accuracies the smaller value wins.
    """
    evidence = Evidence(selection.cell_keys, selection.tuned, {}, {}, {}, [], {})
    places: dict[tuple[Series, Cell], list[str]] = {}
    for series, cell, value in [*selection.runs, *selection.diverged]:
        if value not in places.setdefault((series, cell), []):
            places[series, cell].append(value)
    for (series, cell), values in places.items():
        evidence.tried[series, cell] = len(values)
        values.sort(key=lambda value: (float(value) if value != "-" else 0.0, value))
        chosen = values[0]
        if len(values) > 1:
            groups = {value: selection.runs.get((series, cell, value), []) for value in values}
            most = max(map(len, groups.values()))
            means = {value: _validation(runs) for value, runs in groups.items() if runs and len(runs) == most}
            known = {value: mean for value, mean in means.items() if mean is not None}
            if means and not known:
                evidence.undecided.append((series, cell))
                continue
            if known:
                chosen = max(known, key=lambda value: known[value])
                evidence.choices[series, cell] = Choice(chosen, known[chosen], tuple(values))
        if runs := selection.runs.get((series, cell, chosen), []):
            evidence.runs[series, cell] = runs
        nothing = (series, cell) not in evidence.runs  # then every value diverged
        if lost := sum(selection.diverged.get((series, cell, v), 0) for v in (values if nothing else [chosen])):
            evidence.diverged[series, cell] = lost
    return evidence


def spent_on_tuning(evidence: Evidence) -> str:
    """What the choice cost, in one sentence."""
    tried = sorted({len(choice.candidates) for choice in evidence.choices.values()})
    runs = [run for of_cell in evidence.runs.values() for run in of_cell]
    seeds = max((len(of_cell) for of_cell in evidence.runs.values()), default=0)
    budgets = {_budget(run) for run in runs}
    share = {run.settings.get("evaluation.validation_share") for run in runs}
    if not tried or len(budgets) != 1 or len(share) != 1 or None in (*budgets, *share):
        return ""
    name = evidence.tuned.rpartition(".")[2]
    return (
        f"Tuning had {' or '.join(map(str, tried))} values of {name} by up to {seeds} seeds by {budgets.pop()} per "
        f"algorithm and cell; {100 * float(str(share.pop())):g} % of the training samples were held back for it."
    )


def _budget(run: Run) -> str | None:
    """What one run may use up, where it is the same for every algorithm: uploads or virtual time."""
    uploads, time = (run.settings.get(f"budget.{key}") for key in ("uploads", "virtual_time"))
    if uploads is not None:
        return f"{uploads} uploads"
    return f"up to {float(str(time)):g} units of virtual time" if time is not None else None


def _validation(runs: list[Run]) -> float | None:
    """Mean over seeds of the last validation accuracy, in percent; None when a run has none."""
    values = [run.last("validation/accuracy") for run in runs]
    known = [100 * value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
