"""What a page about the error of server steps says: table, figures and the paper's claims held against the numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from ..diagnostics.correlation import LAGS
from .load import Run
from .mse_figures import draw_correlation, draw_drift, draw_parts
from .mse_table import drift_ratios, keys_of, measured_runs, table1
from .render import markdown

__all__ = ["table1", "write_page_parts"]


def write_page_parts(runs: list[Run], out: Path) -> list[str]:
    """Writes three figures and table1.csv into ``out``; returns the page's paragraphs, tables and image links.

    Raises BenchError when no finished run was made with diagnostics=mse.
    """
    runs = measured_runs(runs)
    table, keys = table1(runs), keys_of(runs)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "table1.csv", index=False)
    draw_parts(table, keys, out / "mse_parts.png")
    draw_drift(runs, out / "mse_drift.png")
    draw_correlation(table, keys, out / "mse_correlation.png")
    return [
        "The error of a step, u − ∇F(w_t), is the sum of A (noise of mini-batches), B (bias of who takes part) and C "
        "(age of the gradients). Each number is a mean over measured steps and seeds, ± the sample standard deviation "
        "over seeds, in squared norms of gradients; updates of rules for differences are divided by −η_l. Full-batch "
        "gradients take the place of expectations.",
        _error_table(table, keys),
        "![The three parts of the error](mse_parts.png)",
        "## Noise: predicted and measured",
        _noise_table(table, keys),
        "σ² is the mean of |g − G|² over uploads; for ACE and ACED over the cached ones, where a slow client counts as "
        "much as a busy one. σ²/M for CA2FL is the paper's: it leaves out that the cached gradient subtracted for "
        "calibration has noise of its own. With all clients heard the M fresh uploads, the M that leave the cache and "
        "the others in it add up to (2/M − 1/n) σ². The delay-adaptive step scales a late gradient down, noise "
        "included, so it stays below σ².",
        "## The paper's table 1, claim by claim",
        "\n".join(f"- {line}" for line in claims(table, keys)),
        "## Drift",
        _drift_table(table, keys),
        "Slope: least squares of |w_t − w_v|² on staleness, over the uploads in the second half of the iterations "
        "(before, the way from the initial model hides everything else). ζ² is the mean of |G_i(w_t) − ∇F(w_t)|². "
        "Staleness counts server iterations, of which the rules make different numbers in the same virtual time.",
        *_amplification(runs, keys),
        "![Drift against staleness](mse_drift.png)",
        "## Does the noise come back?",
        _correlation_text(table),
        "![Correlation of the noise](mse_correlation.png)",
    ]


def claims(table: pd.DataFrame, keys: list[str]) -> list[str]:
    """Each claim with what was measured; claims about algorithms that are not in the table are left out."""
    cells = {
        name: of_name.set_index(keys) if keys else of_name.reset_index(drop=True)
        for name, of_name in table.groupby("algorithm")
    }
    said = []

    def less(column: str, one: str, other: str, claim: str) -> None:
        """one's part shall be smaller than other's, setting by setting."""
        if one in cells and other in cells:
            ratio = (cells[one][column] / cells[other][column]).dropna()
            if len(ratio):
                held = int((ratio < 1).sum())
                said.append(f"{claim}: {_verdict(held, len(ratio))}, {one} has {_range(ratio)} times that of {other}.")

    ratios = ((name, of_name["a2_ratio"].dropna()) for name, of_name in cells.items())
    if found := [f"{name!s} {_range(ratio)}" for name, ratio in ratios if len(ratio)]:
        said.append(f"The size of A, measured over what the paper predicts: {', '.join(found)}.")
    less("a2", "fedbuff", "asgd", "Averaging a buffer reduces A")
    less("a2", "ace", "fedbuff", "Averaging all clients reduces A most")
    if "ace" in cells:
        share = float((cells["ace"]["b2"] / cells["ace"]["error"]).max())
        verdict = "confirmed" if share < 1e-9 else "not confirmed"
        said.append(
            f"B is zero for ACE: {verdict}, at most {share:.1g} of its error, the rounding of single precision."
        )
    for name in ("asgd", "delay_adaptive_asgd", "fedbuff"):
        if name in cells:
            parts = cells[name][["a2", "b2", "c2"]]
            shares = parts["b2"] / parts.sum(axis=1)
            verdict = "confirmed" if shares.min() > 0.01 else "not confirmed"
            said.append(
                f"{name} has a bias from partial participation: {verdict}, B is {_range(shares)} of |A|²+|B|²+|C|²."
            )
    less("b2", "ca2fl", "fedbuff", "Calibration reduces B")
    less("b2", "aced", "fedbuff", "ACED keeps B below that of partial participation")
    less("c2", "delay_adaptive_asgd", "asgd", "Steps that shrink with staleness reduce C")
    less("c2", "ace", "fedbuff", "All clients in every step keep C smaller")
    less("drift", "ace", "asgd", "The model drifts less under ACE than under steps of one client")
    return said


def _verdict(held: int, of: int) -> str:
    if held == of:
        return "confirmed" if of == 1 else f"confirmed in all {of} settings"
    return "not confirmed" if held == 0 else f"confirmed in {held} of {of} settings"


def _range(values: pd.Series) -> str:
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"


def _number(value: float, std: float = math.nan) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2g}" if math.isnan(std) else f"{value:.2g} ± {std:.1g}"


def _table(table: pd.DataFrame, keys: list[str], columns: dict[str, str], with_std: tuple[str, ...] = ()) -> str:
    """``columns``: header by column of ``table``."""
    lines = []
    for _, row in table.iterrows():
        cells = [_number(row[c], row[f"{c}_std"] if c in with_std else math.nan) for c in columns]
        lines.append([row["algorithm"], *(str(row[key]) for key in keys), *cells])
    return markdown(["algorithm", *keys, *columns.values()], lines, 1 + len(keys))


def _error_table(table: pd.DataFrame, keys: list[str]) -> str:
    parts = {"a2": "E|A|²", "b2": "E|B|²", "c2": "E|C|²", "error": "E|A+B+C|²"}
    return _table(table, keys, parts, tuple(parts))


def _noise_table(table: pd.DataFrame, keys: list[str]) -> str:
    columns = {"a2": "E|A|² measured", "a2_predicted": "predicted", "a2_ratio": "ratio", "sigma2": "σ²"}
    return _table(table, keys, columns)


def _drift_table(table: pd.DataFrame, keys: list[str]) -> str:
    table = table.assign(slope_per_zeta2=table["drift_slope"] / table["zeta2"])
    columns = {"staleness": "mean staleness", "drift": "mean drift of clients", "drift_slope": "slope"}
    return _table(table, keys, columns | {"zeta2": "ζ²", "slope_per_zeta2": "slope / ζ²"})


def _amplification(runs: list[Run], keys: list[str]) -> list[str]:
    """Does the drift grow with the skew? A paragraph, or none without a choice of skew."""
    skew = "heterogeneity.alpha"
    ratios = drift_ratios(runs, keys, skew) if skew in keys else pd.DataFrame()
    if not len(ratios):
        return []
    said = [
        f"{name} {_range(of_name['drift'])} (ζ² {_range(of_name['zeta2'])})"
        for name, of_name in ratios.groupby("algorithm", sort=False)
    ]
    return [
        "Heterogeneity amplification: drift that ζ² drives grows with the skew as ζ² does, drift without it not at "
        "all. "
        "At the least staleness (the first points of the figure), drift under the smallest alpha over that under the "
        f"largest, with the same ratio of ζ²: {', '.join(said)}. At long staleness the way of the model, the same "
        "under every skew, can hide the difference, and the slopes follow it."
    ]


def _correlation_text(table: pd.DataFrame) -> str:
    lines = [
        "The proofs take the noise of different iterations as uncorrelated (Lemma a.6). Measured, over the settings:"
    ]
    for name, rows in table.groupby("algorithm", sort=False):
        found = [(lag, rows[f"correlation_{lag}"].dropna()) for lag in LAGS]
        lines.append(
            f"{name}: " + ", ".join(f"{_range(values)} at k={lag}" for lag, values in found if len(values)) + "."
        )
    return " ".join(lines[:1]) + "\n\n" + "\n".join(f"- {line}" for line in lines[1:])
