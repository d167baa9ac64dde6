"""Which method of a cell is the best, from the comparisons of all pairs (docs/reference/statistics.md, rule 7)."""

from __future__ import annotations

import math

import pandas as pd

from .looks import ALPHA, seeds_needed
from .statistics import adjust_holm

_WORDS = {"agree": "better", "against": "worse", "tie": "tie", "open": "inconclusive"}
BEST_COLUMNS = ["cell", "best", "next", "difference", "low", "high", "p_holm", "seeds", "total", "verdict", "reason"]


def pair_table(compared: pd.DataFrame) -> pd.DataFrame:
    """Return a row a pair of ``compare_pairs``, with the better method first, or the higher mean if none is decided.

    Columns cell, better, other, word (``better``, ``tie`` or ``inconclusive``), those of ``Contrast.numbers`` and
    p_holm (over all pairs of the cell). The difference is better minus other, also of times.
    """
    rows = []
    for cell, first, second, contrast in compared.itertuples(index=False):
        one, other, found, word = first, second, contrast.numbers, _WORDS[contrast.side]
        if word == "worse" or (word != "better" and found["difference"] < 0):
            one, other, word = second, first, {"worse": "better"}.get(word, word)
            found |= {"difference": -found["difference"], "last": -found["last"]}
            found |= {"low": -found["high"], "high": -found["low"]}
        rows.append({"cell": cell, "better": one, "other": other, "word": word, **found})
    table = pd.DataFrame(rows, columns=[*rows[0]] if rows else ["cell", "better", "other", "word", "p"])
    p_holm = table.groupby("cell", sort=False)["p"].transform(adjust_holm) if rows else pd.Series(dtype=float)
    table.insert([*table.columns].index("p") + 1, "p_holm", p_holm)
    return table


def best_methods(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return a row a cell: the method with the highest mean in most pairs, against the rival that decides.

    verdict  ``best``: better than every rival, by Holm's method over all pairs of the cell · ``tie``: some rival is
             within the margin, the others are worse · ``inconclusive``, with the reason
    next     the rival with the smallest difference among those that make the verdict
    """
    return pd.DataFrame(
        [_best_of_cell(str(cell), of) for cell, of in pairs.groupby("cell", sort=False)], columns=BEST_COLUMNS
    )


def pairs_of_method(pairs: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return the pairs of ``method`` as its lead over each rival: the columns of ``pair_table`` with rival."""
    leads = pairs[pairs["better"] == method].assign(rival=lambda of: of["other"])
    behind = pairs[pairs["other"] == method].assign(rival=lambda of: of["better"])
    behind = behind.assign(low=-behind["high"], high=-behind["low"], word=behind["word"].replace("better", "worse"))
    return pd.concat([leads, behind.assign(difference=-behind["difference"], last=-behind["last"])])


def _best_of_cell(cell: str, pairs: pd.DataFrame) -> tuple:
    wins, behind = pairs["better"].value_counts(), pairs.groupby("other")["difference"].sum()
    leads = pairs.groupby("better")["difference"].sum()
    methods = pd.unique(pairs[["better", "other"]].to_numpy().ravel())
    best = max(methods, key=lambda one: (wins.get(one, 0), leads.get(one, 0.0) - behind.get(one, 0.0)))
    rivals = pairs_of_method(pairs, best)
    decided = (rivals["word"] == "better") & (rivals["p_holm"] < ALPHA)
    tied = rivals["word"] == "tie"
    verdict, deciding = "best", rivals
    if not (decided | tied).all():
        verdict, deciding = "inconclusive", rivals[~decided & ~tied]
    elif tied.any():
        verdict, deciding = "tie", rivals[tied]
    row = deciding.sort_values("difference", kind="stable").iloc[0]
    reason = ""
    if verdict == "tie" and len(deciding) > 1:
        reason = f"{len(deciding)} methods tie with it"
    elif verdict == "best" and row["high"] <= row["margin"]:
        reason = "by less than the margin of a tie"
    elif verdict == "inconclusive":
        needs_seeds = not row["reason"] or row["reason"].startswith("needs")
        reason = _seeds_after_holm(row, len(pairs)) if needs_seeds else row["reason"]
        reason += f" ({len(deciding)} of {len(rivals)} rivals)" if len(rivals) > 1 else ""
    numbers = [row[key] for key in ("difference", "low", "high", "p_holm", "seeds", "total")]
    return cell, best, row["rival"], *numbers, verdict, reason


def _seeds_after_holm(pair: pd.Series, tests: int) -> str:
    """Return how many seeds decide a pair among all pairs of its cell."""
    margin = None if pair["word"] == "better" or math.isnan(pair["margin"]) else pair["margin"]
    needed = seeds_needed(pair["difference"], pair["error"] * math.sqrt(pair["total"]), margin, tests=tests)
    return f"needs {f'about {needed}' if needed else 'more than 200'} seeds, by Holm's method"
