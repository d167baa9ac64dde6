"""What every page says about itself: how far to trust it, where its runs come from, and which of them are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ... import __version__
from ..load import Run
from .selection import Coverage, Selection, cell_label
from .tuning import Evidence

_NAMED = 20  # missing or failed runs written out one by one


@dataclass(frozen=True)
class Combination:
    """Which runs of a sweep: ``paper-small``, ``fair-paper-long``. horizon: None is the sweep's own."""

    profile: str
    scale: str
    horizon: str | None = None

    @property
    def folder(self) -> str:
        return "-".join(word for word in (self.profile, self.scale, self.horizon) if word)

    def overrides(self, sweep: str) -> list[str]:
        horizon = [f"horizon={self.horizon}"] if self.horizon else []
        return [f"sweep={sweep}", f"profile={self.profile}", f"scale={self.scale}", *horizon]

    @classmethod
    def of_folder(cls, name: str) -> Combination | None:
        """None when ``name`` is no such folder."""
        words = name.split("-")
        return cls(*words) if 2 <= len(words) <= 3 and all(words) else None


def standing(
    combination: Combination, runs: list[Run], problems: tuple[str, ...], fair: str, changed: dict[str, str]
) -> str:
    """What these runs are, beside the paper's ``problems``: the sentence on top of a page. fair: of that profile.
    changed: what they have set otherwise than their sweep."""
    found = [f"{run.choices.get('dataset', '?')} with {run.choices.get('model', '?')}" for run in runs]
    what = _listed(found)
    if combination.scale == "paper" and changed:
        said = "; ".join(f"`{key}` is {value}" for key, value in changed.items())
        text = f"**Settings of these runs' own, not the paper's experiment** ({what}): {said}."
    elif combination.scale == "paper" and set(found) <= set(problems):
        text = f"**Scale: the paper's** ({what})."
    elif combination.scale == "paper":
        text = (
            f"**Not the paper's experiment**: {what} instead of the paper's data and model. It can show how the rules "
            "rank there; it reproduces no number and no curve of the paper."
        )
    elif combination.scale == "smoke":
        text = f"**A smoke test** ({what}): it shows that the sweep and this page work. Its numbers mean nothing."
    else:
        text = (
            f"**A small stand-in, not the paper's experiment**: {what} instead of the paper's data and model. It can "
            "show how the rules rank on this problem; it reproduces no number and no curve of the paper."
        )
    profiles = {
        "paper": "Profile `paper`: hyper-parameters and budgets as the paper prints them, so an iteration is not equal "
        "work for all.",
        "fair": f"Profile `fair`: {fair}",
    }
    said = profiles.get(combination.profile, f"Profile `{combination.profile}`.")
    if any(run.choices.get("paper") == "none" for run in runs):
        said = "Hyper-parameters are this package's defaults, not the paper's."
    return f"{text} {said} Nothing on this page is called reproduced that was not."


def coverage_part(coverage: Coverage, sweep_command: str) -> str:
    """How many runs there are, and every one that is not."""
    counts = Counter(reason for _, reason in coverage.left_out)
    said = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    lines = ["## Runs", ""]
    if coverage.expected is None:
        unknown = "The sweep file is not at hand, so nothing can be said about missing runs."
        lines.append(f"{coverage.found} run directories, {coverage.ok} used. {unknown}")
        lines[-1] += f" Not used: {said}." if said else ""
    else:
        missing = sum(count for _, count in coverage.missing)
        lines.append(f"{coverage.expected} runs expected, {coverage.found} run directories found, {coverage.ok} used, ")
        lines[-1] += f"{missing} missing." + (f" Not used: {said}." if said else "")
        lines[-1] += (
            f" {coverage.more_seeds} have seeds or steps the sweep does not list." if coverage.more_seeds else ""
        )
    lines += [""] if coverage.left_out or coverage.missing else []
    for run, reason in coverage.left_out[:_NAMED]:
        lines.append(f"- {reason}: `{run.path.name}`" + (f" ({run.note})" if run.note else ""))
    if len(coverage.left_out) > _NAMED:
        lines.append(f"- … and {len(coverage.left_out) - _NAMED} more that are not used")
    lines += [f"- missing: `{text}`" for text, _ in coverage.missing[:_NAMED]]
    if rest := sum(count for _, count in coverage.missing[_NAMED:]):
        lines.append(f"- … and {rest} more missing")
    if coverage.missing or coverage.left_out:
        lines += ["", f"The command that makes the runs makes what is missing: `{sweep_command}`"]
    return "\n".join(lines)


def origin_part(runs: list[Run], commands: list[str]) -> str:
    """Commands, revisions, versions and devices; no dates, so that the same runs give the same page."""

    def each(key: str) -> str:
        return _listed(str(run.summary.get(key) or "unknown") for run in runs)

    versions = [run.summary.get("versions") or {} for run in runs]
    named = {name: _listed(str(one.get(name, "unknown")) for one in versions) for name in ("asyncfl_bench", "torch")}
    lines = ["## Where this comes from", "", "```sh", *commands, "```", ""]
    lines.append(f"- revision of the runs: {each('git_revision')}")
    lines.append(
        f"- asyncfl_bench {named['asyncfl_bench']}, torch {named['torch']}; page by asyncfl_bench {__version__}"
    )
    if any(run.summary.get("data_source") for run in runs):
        lines.append(f"- source of the data: {each('data_source')}")
    lines.append(f"- device: {each('device')}")
    lines.append(f"- seeds: {_listed(str(run.seed) for run in runs)}")
    return "\n".join(lines)


def tuning_part(evidence: Evidence) -> tuple[list[str], list[list[str]]] | None:
    """Headers and cells of the table of what was chosen; None when there was nothing to choose."""
    if not evidence.choices:
        return None
    cells = evidence.cells
    headers = ["algorithm", *(cell_label(evidence.cell_keys, cell) for cell in cells)]
    table = []
    for series in evidence.series:
        line = [series.label]
        for cell in cells:
            choice = evidence.choices.get((series, cell))
            edge = " (edge of the grid)" if choice and choice.at_edge else ""
            line.append(f"{choice.value}: {choice.validation_percent:.2f}{edge}" if choice else "-")
        table.append(line)
    return headers, table


def undecided_part(evidence: Evidence) -> str:
    """Loud when several values were run but nothing could choose among them."""
    if not evidence.undecided:
        return ""
    places = "; ".join(
        f"{series.label} at {cell_label(evidence.cell_keys, cell)}" for series, cell in evidence.undecided
    )
    return (
        f"**Left out, because several `{evidence.tuned}` were run without `validation/accuracy` to choose by: "
        f"{places}.** A choice by test accuracy would be no measurement. Run with `evaluation.validation_share`."
    )


def partly_tuned_part(evidence: Evidence) -> str:
    """Loud when some series were tuned with fewer values than others: a method that was not tuned ranks too low."""
    most = max(evidence.tried.values(), default=1)
    places = "; ".join(
        f"{series.label} at {cell_label(evidence.cell_keys, cell)} ({count} of {most} values)"
        for (series, cell), count in evidence.tried.items()
        if count < most
    )
    return f"**Not tuned like the others, as runs are missing: {places}.**" if places else ""


def diverged_part(evidence: Evidence, selection: Selection) -> str:
    """Which cells a mean over surviving seeds flatters."""
    if not selection.diverged:
        return ""
    lost = "; ".join(
        f"{series.label} at {cell_label(evidence.cell_keys, cell)}: "
        + (f"{count}" if (series, cell) in evidence.runs else f"all {count}")
        for (series, cell), count in evidence.diverged.items()
    )
    return f"**Diverged runs are in no mean; the mean of the others flatters: {lost}.**" if lost else ""


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values), key=lambda value: (len(value), value))) or "none"
