"""The page of the bank: all rules in each world by tier, from the frame of judged runs. It has no ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..analysis import names
from ..analysis.bank import agree_on_order, judge_world
from ..analysis.published import matching_rows, read_published
from ..analysis.statistics import paired_interval
from ..config.part_sources import command_text
from ..config.search_stages import BANK, declared_choices, declared_stages
from .blocks.comparisons import interval_text
from .blocks.figures import Forest, forest_panels
from .blocks.maps import HeatMap, heat_maps
from .pages.provenance import ORIGIN, refuse_foreign
from .pages.style import styles
from .pages.write import Part, Table, draw_picture, format_number, write_parts

HTML = "index.html"
_TITLE = "The bank: every rule with searched settings in several worlds"
_INTRODUCTION = """\
A world is a data set, a network, clients and a law of delay. In worlds named `_independent` no client is always slow.
The settings of a rule are searched with some seeds. Its *judged runs* have {seeds} other seeds. Accuracy is their mean
test accuracy over the last fifth of the uploads, with a 95 % interval over seeds."""
_LEGEND = """\
- A tier has the rules that do not differ significantly from its best rule. All pairs of a world are compared seed by
  seed in one test at 5 %, with Holm's correction. The rules of a tier are in no order.
- Tiers do not follow the means strictly. A rule whose differences vary much can share a tier with a better rule. Two
  rules of neighbouring tiers need not differ significantly. `pairs_WORLD.csv` has the interval of each pair.
- Uploads, virtual time and megabytes *to target* end at the first evaluation that reaches the world's target, a
  validation accuracy (`targets.csv`). They are medians over the seeds, *never* if half of them miss it. Each upload is
  from one mini-batch. Megabytes are sent in both directions. *Worst tenth*: mean accuracy of the worst tenth of the
  clients.
- Each rule has 16 trials, which are few for rules with four searched settings."""
_WRONG = """\
Change of accuracy [points] with a third and with three times the chosen step size (`algorithm.eta`, or `client.lr` for
rules without it): the same three seeds, 95 % interval. A gain shows that the search missed the best step. Three seeds
give wide intervals."""
_ORDERS = """\
Kendall's tau compares the order of a paper's table with that of a world, for their common rules. It is a mean over
seeds with its 95 % interval. 1 is the same order, -1 the reverse. At 0 as many pairs agree as disagree."""
# text -> paper, table, its rows and its column; tables with four or more rules of the bank
_PUBLISHED = {
    "ACE, table a.2 (DistilBERT, α = 0.1)": (
        *("ace", "ace_table_a2", {"model": "distilbert", "heterogeneity.alpha": 0.1}),
        "accuracy_percent",
    ),
    "AFBS, table 2 (CIFAR-10, 5 groups)": (
        *("afbs", "afbs_tables2_4", {"paper": "afbs/cifar10", "heterogeneity.groups": 5}),
        "best_accuracy_percent",
    ),
    "FedEcho, table 2 (large delay, α = 0.1)": (
        *("fedecho", "fedecho_table2", {"delay": "fedecho_large", "heterogeneity.alpha": 0.1}),
        "final_accuracy_percent",
    ),
}
_TRAFFIC = """\
Traffic per upload to the server (up) and to clients (down), and the state that the server keeps between uploads, and
that all clients together keep. Unit: one model of d floats. Measured in the world {world}."""


@dataclass(frozen=True)
class World:
    """A world with all judged runs of its rules.

    rules, pairs  of ``judge_world``, rules by tier, those in no tier last, then in the order of all pages
    runs          its judged and robustness runs
    """

    name: str
    rules: pd.DataFrame
    pairs: pd.DataFrame
    runs: pd.DataFrame

    @property
    def title(self) -> str:
        return self.name.partition("/")[2]

    def tier_texts(self) -> pd.Series:
        """Return the tier of each rule, or why it is in none."""
        return self.rules["tier"].astype(str).where(self.rules["why"] == "", self.rules["why"])

    def describe_tier(self, rule: str) -> str:
        """Return ``tier 2 of 5``, or why the rule is in no tier."""
        tier, why = self.rules.loc[rule, ["tier", "why"]]
        return f"in no tier ({why})" if why else f"tier {tier} of {self.rules['tier'].max()}"

    def members(self, tier: int) -> str:
        """Return the labels of a tier's rules."""
        return ", ".join(map(names.algorithm_label, self.rules.index[self.rules["tier"] == tier]))


def write_bank_page(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Write README.md, its figures and tables, and index.html into ``folder``. Returns the paths of both pages.

    frame  of ``asyncfl_bench.load_bank``; rules of the user are rows among the others
    Raises BenchError if README.md is not a page.
    """
    from .browser.html import write_tables

    refuse_foreign(folder / "README.md")
    worlds, notes = judge_worlds(frame)
    first, last = _first_parts(worlds, notes, frame), _last_parts(worlds, frame)
    by_world = [part for world in worlds for part in _world_parts(world)]
    target = write_parts([f"# {_TITLE}", *first, *by_world, *last], folder)
    shown = [part for part in by_world if not (isinstance(part, Table) and part.shown is not None)]
    table = []
    if worlds:  # one table of all rules and worlds, which has filters in a browser
        frame = pd.concat([_rules_table(world)[0].assign(world=world.title) for world in worlds])
        frame.insert(0, "world", frame.pop("world"))
        table = [Table("rules", frame, frame, 3)]
    write_tables(_TITLE, [*first, *table, *shown, *last], folder / HTML, script="filters.js" if worlds else "")
    return [target, folder / HTML]


def judge_worlds(frame: pd.DataFrame) -> tuple[list[World], list[str]]:
    """Return the complete worlds, and a line for each world or own rule that has not all judged runs."""
    declared, wanted = declared_choices("algorithm"), {*declared_stages().judged_seeds}
    judged = frame[frame["stage"] == "judged"]
    worlds, notes = [], []
    for name in dict.fromkeys([*declared_choices("paper"), *frame["world"]]):
        seeds = judged[judged["world"] == name].groupby("rule")["seed"].agg(set).to_dict()
        complete = [rule for rule, own in seeds.items() if own >= wanted]
        lacking = [rule for rule in declared if rule not in complete]
        own_lacking = [rule for rule in {*frame["rule"]} - {*declared, *complete}]
        for lost in filter(None, (lacking, own_lacking)):
            command = command_text([f"sweep={BANK}", f"paper={name}", f"algorithm={','.join(sorted(lost))}"])
            text = f"{len(lost)} of {len(declared)} rules" if lost is lacking else ", ".join(sorted(lost))
            left = "is left out, as it " if lost is lacking else ""
            notes.append(f"- **{name.partition('/')[2]}** {left}lacks judged runs of {text}: `{command}`")
        if lacking:
            continue
        of_world = frame[(frame["world"] == name) & frame["rule"].isin(complete)]
        rules, pairs = judge_world(of_world[(of_world["stage"] == "judged") & of_world["seed"].isin(wanted)])
        order = sorted(rules.index, key=lambda rule: _order_key(rule, rules["tier"][rule]))
        worlds.append(World(name, rules.loc[order], pairs, of_world))
    return worlds, notes


def _order_key(rule: str, tier: int = 1) -> tuple:
    """Return the sort key of a rule: rules in no tier come last."""
    return (tier or math.inf, names.series_order(names.algorithm_label(rule)))


def _first_parts(worlds: Sequence[World], notes: Sequence[str], frame: pd.DataFrame) -> list[Part]:
    """Return the first tier of each world, the missing runs, the legend, and the map of tiers."""
    lines = []
    for world in worlds:
        counts = world.rules["tier"].value_counts()
        tiers = int(world.rules["tier"].max())
        lines.append(
            f"- **{world.title}**: {len(world.rules)} rules in {tiers} tier{'s' * (tiers > 1)}. Tier 1 has "
            f"{counts.get(1, 0)}: {world.members(1)}."
        )
        lost = world.rules[world.rules["tier"] == 0]
        if len(lost):
            texts = [f"{names.algorithm_label(str(rule))} ({why})" for rule, why in lost["why"].items()]
            lines[-1] += f" In no tier: {', '.join(texts)}."
    if len(worlds) > 1:
        everywhere = set.intersection(*({*world.rules.index[world.rules["tier"] == 1]} for world in worlds))
        labels = names.ordered_series(map(names.algorithm_label, everywhere))
        lines.append(f"- In tier 1 of every world: {', '.join(labels) or 'no rule'}.")
    seeds = frame.loc[frame["stage"] == "judged", "seed"].nunique()
    parts: list[Part] = [_INTRODUCTION.format(seeds=seeds)]
    parts += ["## Decided", "\n".join(lines)] if lines else []
    parts += ["## Missing", "\n".join(notes)] if notes else []
    parts.append(_LEGEND)
    return [*parts, *_tier_map(worlds)]


def _tier_map(worlds: Sequence[World]) -> list[Part]:
    """Return the heat map of tiers and its table for a CSV file; nothing without a world."""
    if not worlds:
        return []
    tiers = pd.DataFrame({world.title: world.rules["tier"] for world in worlds})
    tiers = tiers.loc[sorted(tiers.index, key=_order_key)]
    tier_rc = tiers.where(tiers > 0).to_numpy(float)
    labels = [names.algorithm_label(rule) for rule in tiers.index]
    maps = [HeatMap("", tier_rc, np.full_like(tier_rc, math.nan))]
    figure = heat_maps(maps, labels, [*tiers], "", "world", "tier", decimals=0)
    alt = "Tier of each rule in each world; –: in no tier"
    return ["## Tiers", *draw_picture("tiers", figure, alt), Table("tiers", None, tiers.reset_index())]


def _world_parts(world: World) -> list[Part]:
    """Return the forest plot of all rules in a tier, a row a rule, and the table of a world."""
    shown, data = _rules_table(world)
    rules = world.rules[world.rules["tier"] > 0]
    labels = [names.algorithm_label(rule) for rule in rules.index]
    mean, low, high = (rules[key].to_numpy(float) for key in ("mean", "low", "high"))
    of_tiers = [f"{label} · {tier}" for label, tier in zip(labels, rules["tier"], strict=True)]
    known = styles(labels)
    looks = {text: known[label] for text, label in zip(of_tiers, labels, strict=True)}
    panel = Forest(world.title, of_tiers, mean, low, high, np.ones(len(rules), bool), groups=[*rules["tier"]])
    figure = forest_panels([panel] if labels else [], looks, "test accuracy [%]", math.nan)
    alt = (
        "Mean test accuracy of each rule with its 95 % interval over seeds. The number after a name is its tier. An "
        "arrow points to a value off the axis"
    )
    return [
        f"## {world.title[:1].upper()}{world.title[1:]}",
        *draw_picture(f"forest_{world.title}", figure, alt),
        Table(f"rules_{world.title}", shown, data, 2, rows=len(shown)),
        Table(f"pairs_{world.title}", None, world.pairs),
    ]


def _rules_table(world: World) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rules of a world as text and as numbers."""
    data = world.rules.copy()
    judged = world.runs[world.runs["stage"] == "judged"].groupby("rule")
    for kind in ("uploads", "time", "bytes"):
        data[f"{kind}_to_target"] = judged[f"{kind}_to_target"].median()
    data["reached"] = judged["uploads_to_target"].agg(lambda values: int(np.isfinite(values).sum()))
    data["worst_tenth"] = judged["worst_tenth"].mean()
    data["settings"] = judged["settings"].first()
    shown = pd.DataFrame(
        {
            "rule": [names.algorithm_label(rule) for rule in data.index],
            "tier": world.tier_texts(),
            "accuracy [%]": [format_number(value, decimals=1) for value in data["mean"]],
            "interval": [interval_text(*ends, 1) for ends in zip(data["low"], data["high"], strict=True)],
            "uploads to target": [_cost_text(value, 1) for value in data["uploads_to_target"]],
            "time to target [s]": [_cost_text(value, 1, 1) for value in data["time_to_target"]],
            "MB to target": [_cost_text(value, 1e6) for value in data["bytes_to_target"]],
            "seeds at target": [f"{count} of {of}" for count, of in zip(data["reached"], data["seeds"], strict=True)],
            "worst tenth [%]": [format_number(value, decimals=1) for value in data["worst_tenth"]],
        }
    )
    return shown.reset_index(drop=True), data.reset_index()


def _cost_text(value: float, unit: float, decimals: int = 0) -> str:
    return "never" if math.isinf(value) else format_number(value / unit, decimals=decimals)


def _last_parts(worlds: Sequence[World], frame: pd.DataFrame) -> list[Part]:
    """Return the cost of wrong step sizes, traffic and memory of rules, and the origin of the runs."""
    parts: list[Part] = []
    if worlds:
        parts += ["## Wrong step sizes", _WRONG, _wrong_steps(worlds)]
        orders = _paper_orders(worlds)
        parts += ["## The orders of the papers", _ORDERS, orders] if len(orders.data) else []
        parts += ["## Sent and kept", _TRAFFIC.format(world=worlds[0].title), _traffic(worlds[0])]
    counts = frame["stage"].value_counts()
    lines = [f"- {counts.get('judged', 0)} judged runs and {counts.get('robustness', 0)} with another step size"]
    lines.append("- rules of the bank: docs/howto/bank.md; statistics: docs/reference/statistics.md, rule 11")
    lines.append("- the same rows in Python: `asyncfl_bench.load_bank()`")
    return [*parts, ORIGIN, f"```sh\nafl-run sweep={BANK}\nafl-report {BANK}\n```", "\n".join(lines)]


def _wrong_steps(worlds: Sequence[World]) -> Table:
    """Return the accuracy change of each rule in each world with another step size."""
    rows, columns = [], dict[str, dict[str, str]]()
    for world in worlds:
        runs = world.runs.assign(score=world.runs["accuracy"].mask(world.runs["diverged"].astype(bool)))
        judged, others = (runs[runs["stage"] == stage] for stage in ("judged", "robustness"))
        both = others.merge(judged[["rule", "seed", "score"]], on=["rule", "seed"], suffixes=("", "_chosen"))
        both["change"] = both["score"] - both["score_chosen"]
        for (factor, rule), change in both.groupby(["factor", "rule"])["change"]:
            found, lost = paired_interval(change), int(change.isna().sum())
            row = {"world": world.title, "rule": rule, "factor": factor, "change": found.mean}
            rows.append(row | {"low": found.low, "high": found.high, "seeds": found.n, "diverged": lost})
            interval = f"{format_number(found.mean, '+', 1)} {interval_text(found.low, found.high, 1)}"
            text = f"{lost} of {len(change)} diverged" if lost else interval
            step = "1/3" if float(str(factor)) < 1 else f"{factor:g}"
            columns.setdefault(f"{world.title} × {step}", {})[str(rule)] = text
    shown = pd.DataFrame(columns).fillna("-")
    shown = shown.loc[sorted(shown.index, key=_order_key)]
    shown.insert(0, "rule", [names.algorithm_label(rule) for rule in shown.index])
    return Table("robustness", shown, pd.DataFrame(rows), rows=len(shown))


def _paper_orders(worlds: Sequence[World]) -> Table:
    """Return how far the order of each paper's table is that of each world."""
    rows = []
    for text, (paper, table, of_rows, column) in _PUBLISHED.items():
        printed = matching_rows(read_published(paper, table), pd.Series(of_rows))
        published = printed.set_index("algorithm")[column]
        for world in worlds:
            judged = world.runs[world.runs["stage"] == "judged"]
            both = published.index.intersection(pd.Index(judged["rule"]))
            if len(both) < 3:
                continue
            found = agree_on_order(published, judged)
            rows.append({"paper": text, "world": world.title, "rules": len(both), "tau": found.mean})
            rows[-1] |= {"low": found.low, "high": found.high, "seeds": found.n}
    data = pd.DataFrame(rows, columns=["paper", "world", "rules", "tau", "low", "high", "seeds"])
    shown = data[["paper", "world", "rules"]].assign(
        tau=[format_number(value, "+", 2) for value in data["tau"]],
        interval=[*map(interval_text, data["low"], data["high"])],
    )
    return Table("orders", shown, data, rows=len(shown))


def _traffic(world: World) -> Table:
    """Return bytes of an upload and of the state in models."""
    judged = world.runs[world.runs["stage"] == "judged"]
    by_upload = judged[["uplink_bytes", "downlink_bytes"]].div(judged["uploads"], axis=0)
    model = by_upload["uplink_bytes"].min()
    columns = {"up": by_upload["uplink_bytes"], "down": by_upload["downlink_bytes"]}
    columns |= {"server": judged["server_state_bytes"], "clients": judged["client_state_bytes"]}
    data = (pd.DataFrame(columns) / model).groupby(judged["rule"]).mean()
    data = data.loc[sorted(data.index, key=_order_key)]
    shown = data.map(lambda value: format_number(value, decimals=1))
    shown.insert(0, "rule", [names.algorithm_label(rule) for rule in data.index])
    return Table("traffic", shown, data.reset_index(), rows=len(shown))
