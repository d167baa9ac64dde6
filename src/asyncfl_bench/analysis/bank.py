"""Judged runs of the bank, from the package's table or from runs, and tiers of the rules of a world (rule 11).

The table and the chosen settings are files beside the bank's archive. A wheel has both files without the archive.

Legend: r rules, s seeds, p pairs of rules.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import special

from ..config.choices import CHOSEN, choice_file
from ..config.overrides import parse_override
from ..config.part_sources import bank_folder
from ..config.search_stages import BANK, declared_stages, multiply_step
from ..config.settings import SEARCH_SPACE
from ..errors import BenchError, InputError
from ..files import read_yaml, to_yaml, write_text
from ..tracking.records import MEASURED
from ..tracking.runs import load_points, setting_text
from .evaluations import late_values, time_to_reach
from .measures import CHANCE_MARGIN, chance_levels
from .statistics import ALPHA, Interval, adjust_holm, order_agreement, paired_interval

JUDGED = "judged.csv"  # the table
TARGETS = "targets.csv"  # validation accuracy [%] by world
TARGET_METRIC = "validation/accuracy"  # whose curve reaches a target
# column of the table -> column of load_runs
_FROM_RUNS = {
    "seed": "seed",
    "identity": "identity",
    "uploads": "summary.used.uploads",
    "virtual_time": "summary.used.virtual_time",
    "uplink_bytes": "summary.used.uplink_bytes",
    "downlink_bytes": "summary.used.downlink_bytes",
    "server_state_bytes": "summary.state_bytes.server",
    "client_state_bytes": "summary.state_bytes.clients",
    "wall_seconds": "summary.wall_seconds",
}
COLUMNS = (
    *("world", "rule", "stage", "factor", "seed", "identity", "settings"),
    *("accuracy", "worst_tenth", "diverged", "at_chance"),
    *("target", "uploads_to_target", "time_to_target", "bytes_to_target"),
    *(name for name in _FROM_RUNS if name not in ("seed", "identity")),
)
_KEY = ["world", "rule", "stage", "factor", "seed"]
PAIR_COLUMNS = ["better", "other", "difference", "low", "high", "p", "p_holm"]


def load_bank(folder: str | Path | None = None) -> pd.DataFrame:
    """Return the judged runs of all rules in all worlds of the bank, one row a run. No archive or checkout is needed.

    folder              the folder of the table; None: the one of this package. The table has these columns:
    world, rule         ``bank/digits``, ``fedbuff``
    stage, factor       judged: the chosen settings (factor 1); robustness: their step times ``factor``
    seed, identity      of the run
    settings            ``algorithm.eta=0.3 client.lr=0.01``
    accuracy            test accuracy [%], mean over the last fifth of the uploads; NaN for a diverged run
    worst_tenth         ``accuracy`` of the worst tenth of the clients; NaN in worlds that do not measure it
    diverged            True for a diverged run
    at_chance           True if ``accuracy`` is below the floor of docs/reference/statistics.md
    target              validation accuracy [%] up to which costs are counted
    uploads_to_target   uploads at the first evaluation that reaches the target; inf if none does
    time_to_target      virtual seconds until then
    bytes_to_target     bytes sent until then, in both directions
    uploads, virtual_time, uplink_bytes, downlink_bytes, wall_seconds          of the whole run
    server_state_bytes, client_state_bytes    bytes of the rule's state on the server and on all clients together
    Raises InputError for a folder without the table.
    """
    file = Path(folder or bank_folder()) / JUDGED
    if not file.is_file():
        raise InputError(f"{file}: no such table; load_bank() without a folder has the judged runs of the package")
    return pd.read_csv(file, dtype={"identity": str, "settings": str})


def judged_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of ``load_bank`` for runs of the bank (a frame of ``load_runs``).

    runs  paper is the world, algorithm the rule and words that differ from its yaml: ``ace algorithm.rule=incremental``
    The chosen settings of a rule in a world are those of its runs on the judged seeds that no robustness run has.
    Other runs of the search are left out.
    """
    stages = declared_stages()
    judged_only = {*stages.judged_seeds} - {*stages.factor_seeds}
    found = []
    for (world, rule), of in runs[runs["status"].isin(MEASURED)].groupby(["paper", "algorithm"]):
        points = _searched_points(of, str(rule))
        chosen = points[of["seed"].isin(judged_only)].mode()
        if chosen.empty:
            continue
        kinds = [("judged", 1.0, chosen[0], stages.judged_seeds)]
        factors = ((factor, multiply_step(chosen[0], factor)) for factor in stages.factors)
        kinds += [("robustness", factor, point, stages.factor_seeds) for factor, point in factors]
        for stage, factor, point, seeds in kinds:
            rows = of[(points == point) & of["seed"].isin(seeds)]
            words = " ".join(point)
            found.append(rows.assign(world=world, rule=rule, stage=stage, factor=factor, settings=words))
    if not found:
        return pd.DataFrame(columns=[*COLUMNS])
    runs = pd.concat(found)
    evaluated = load_points(runs)
    known = [name for name in COLUMNS if name in runs and name not in _FROM_RUNS]
    frame = pd.concat([runs[known], runs[[*_FROM_RUNS.values()]].set_axis([*_FROM_RUNS], axis=1)], axis=1)
    frame["diverged"] = runs["status"] == "diverged"
    accuracy = late_values(evaluated, "test/accuracy").reindex(runs.index)
    frame["accuracy"] = accuracy.where(~frame["diverged"])
    frame["worst_tenth"] = late_values(evaluated, "clients/worst_tenth_accuracy").reindex(runs.index)
    frame["at_chance"] = frame["accuracy"] < chance_levels(runs) + CHANCE_MARGIN
    targets = pd.read_csv(bank_folder() / TARGETS).set_index("world")["target"]
    frame["target"] = runs["world"].map(targets).astype(float)
    for name, axis in (("uploads", "uploads"), ("time", "virtual_time"), ("bytes", "bytes")):
        reached = time_to_reach(evaluated, frame["target"], axis, TARGET_METRIC).reindex(runs.index).fillna(math.inf)
        frame[f"{name}_to_target"] = reached.where(frame["target"].notna(), np.nan)
    return frame[[*COLUMNS]].sort_values(_KEY, ignore_index=True)


def merge_frames(bank: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of both tables; those of ``own`` replace the rules of ``bank`` in the same worlds."""
    mine = pd.MultiIndex.from_frame(own[["world", "rule"]])
    kept = bank[~pd.MultiIndex.from_frame(bank[["world", "rule"]]).isin(mine)]
    return pd.concat([kept, own], ignore_index=True).sort_values(_KEY, ignore_index=True)


def write_tables(runs: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the table and the chosen settings of the bank's runs into ``folder``. Returns both files.

    Raises BenchError if no rule was judged.
    """
    chosen_files = runs.reindex(columns=["sweep", "scale"])
    frame = judged_frame(runs[(chosen_files == [BANK, "full"]).all(axis=1)])
    if frame.empty:
        raise BenchError("no judged run of the bank; afl-run sweep=bank makes them")
    chosen: dict[str, dict[str, dict[str, object]]] = {}
    judged = frame.loc[frame["stage"] == "judged", ["world", "rule", "settings"]].drop_duplicates()
    for world, rule, settings in judged.itertuples(index=False, name=None):
        words = map(parse_override, settings.split())
        chosen.setdefault(world, {})[rule] = {one.key: one.value for one in words}
    said = "# Chosen settings by world and rule, for profile=tuned. afl-report bank writes this file."
    files = [folder / JUDGED, folder / CHOSEN]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(files[0], frame.to_csv(index=False, lineterminator="\n", float_format="%.6g"))
    write_text(files[1], f"{said}\n{to_yaml(chosen)}")
    return files


def _searched_points(runs: pd.DataFrame, rule: str) -> pd.Series:
    """Return the values of the searched settings of each run of a rule, as overrides."""
    space = read_yaml(choice_file("algorithm", rule.partition(" ")[0])).get(SEARCH_SPACE, {})
    keys = [key for key in sorted(space) if key in runs and runs[key].nunique() > 1]
    texts = [  # as the search writes them: numbers with four digits
        [f"{key}={f'{value:.4g}' if isinstance(value, float) else setting_text(value)}" for value in runs[key]]
        for key in keys
    ]
    return pd.Series([*zip(*texts, strict=True)], index=runs.index, dtype=object)


def measure_pairs(score_rs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean difference, its standard error [unit of the scores] and two-sided p of each pair of rows.

    score_rs  two or more seeds; axes before the last two are of several worlds, also of the results
    Pairs are in the order of ``np.triu_indices``. The variance is that of this pair's differences.
    """
    first_p, second_p = np.triu_indices(score_rs.shape[-2], 1)
    difference_ps = score_rs[..., first_p, :] - score_rs[..., second_p, :]
    seeds = score_rs.shape[-1]
    mean_p, error_p = difference_ps.mean(axis=-1), difference_ps.std(axis=-1, ddof=1) / np.sqrt(seeds)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_p = np.nan_to_num(np.abs(mean_p) / error_p, nan=0.0, posinf=np.inf)  # 0 / 0: equal on every seed
    return mean_p, error_p, 2 * special.stdtr(seeds - 1, -t_p)


def compare_rules(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each pair of rules, the one with the higher mean first: ``PAIR_COLUMNS``.

    scores  a row for each rule, a column for each seed, without gaps
    low and high are the 95 % interval of the difference of this pair alone. p_holm is Holm's p over all pairs.
    """
    ordered = scores.loc[scores.mean(axis=1).sort_values(ascending=False, kind="stable").index]
    mean_p, error_p, p_p = measure_pairs(ordered.to_numpy(float))
    half_p = special.stdtrit(scores.shape[1] - 1, 1 - ALPHA / 2) * error_p
    better, other = (ordered.index.to_numpy()[indices] for indices in np.triu_indices(len(ordered), 1))
    columns = (better, other, mean_p, mean_p - half_p, mean_p + half_p, p_p, adjust_holm(p_p))
    return pd.DataFrame(dict(zip(PAIR_COLUMNS, columns, strict=True)))


def find_tiers(scores: pd.DataFrame, pairs: pd.DataFrame) -> pd.Series:
    """Return the tier of each rule, 1 for the first.

    A tier has the rules that do not differ significantly from its best rule. The next tier starts with the best of the
    other rules. pairs: of ``compare_rules``.
    """
    means = scores.mean(axis=1)
    decided = pairs[pairs["p_holm"] < ALPHA]
    worse = decided.groupby("better")["other"].agg(set).to_dict()
    tiers = pd.Series(0, index=scores.index)
    left, tier = list(means.sort_values(ascending=False, kind="stable").index), 0
    while left:
        tier, behind = tier + 1, worse.get(left[0], set())
        tiers[[one for one in left if one not in behind]] = tier
        left = [one for one in left if one in behind]
    return tiers


def judge_world(judged: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rules of a world, and the compared pairs as ``compare_rules`` does.

    judged  a row a run: rule, seed, accuracy [%], diverged, at_chance; all rules have the same seeds
    The rules' table is indexed by rule: tier (0 for a rule with a diverged run, or with most runs at chance), why
    (this reason), mean, low, high (95 % interval over seeds), seeds.
    """
    scores = judged.pivot(index="rule", columns="seed", values="accuracy").astype(float)
    shares = judged.groupby("rule")[["diverged", "at_chance"]].mean()
    why = np.select([shares["diverged"] > 0, shares["at_chance"] > 0.5], ["diverged", "at chance"], "")
    compared = scores[why == ""]
    pairs = compare_rules(compared)
    rules = pd.DataFrame({"tier": find_tiers(compared, pairs)}).reindex(scores.index, fill_value=0)
    intervals = [paired_interval(row) for row in scores.to_numpy()]
    mean, low, high = zip(*((one.mean, one.low, one.high) for one in intervals), strict=True)
    return rules.assign(why=why, mean=mean, low=low, high=high, seeds=scores.notna().sum(axis=1)), pairs


def agree_on_order(published: pd.Series, judged: pd.DataFrame) -> Interval:
    """Return Kendall's tau between published values and the scores of each seed, with its interval over seeds.

    published  value by rule;  judged  a row a run: rule, seed, accuracy [%]. Only rules in both count.
    1: the same order, -1: the reverse. A diverged run is below all others.
    """
    scores = judged.fillna({"accuracy": -np.inf}).pivot(index="rule", columns="seed", values="accuracy")
    rules = published.index.intersection(scores.index)
    return paired_interval([order_agreement(score_r, published[rules]) for _, score_r in scores.loc[rules].items()])
