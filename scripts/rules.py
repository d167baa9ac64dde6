"""`make rules`: write docs/explanation/rules.md and limits.svg from declarations and limits.yaml, and results/by_rule/.

The class attributes and docstring sections declare most facts. Facts of an upload that the server uses are found in the
code.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
from html import escape
from pathlib import Path

import yaml

from asyncfl_bench.algorithms.base import ServerRule
from asyncfl_bench.experiment.contract import Limit
from asyncfl_bench.reports.board import write_board

ROOT = Path(__file__).parents[1]
PAGE, FIGURE, LIMITS = (ROOT / "docs" / "explanation" / name for name in ("rules.md", "limits.svg", "limits.yaml"))
SECTIONS = ("Rule", "Here", "Upload", "Tells", "State", "Memory", "Work", "Steps", "Clusters", "Limits", "Differs")

INTRO = """# Rules, side by side

Server rules differ in when the server changes the model, what it keeps, and what it knows of an upload.

```sh
afl-run --help algorithm       # every rule and its source, in one line
afl-run --help algorithm=ace   # the settings of one rule
```

Names link to each rule's mathematics, differences from other code, and results.

- n clients, T server iterations, C classes, d parameters (split rules: of the clients' layers), u server samples,
  a activations per sample, r dimensions of a projection
- M, Q_s, Q_c, B: buffer sizes, but B of gas is its mini-batch size
- K: local steps, but K and S of fedfa are its settings `queue` and `every`
- *versions*: the start models of clients in flight, d floats each; *cache*: a vector for each client, n d numbers
- *server uses*: what the server knows of an upload besides the vector: the client's number, the version of its start
  model, its samples, K, delay or labels
- *live*: whether a [server of real clients](../howto/live.md) runs the rule; `answer_within`: with this time limit
- *used upload*: an upload that the rule does not ignore as too stale

| rule | server steps | server keeps | server uses | live |
| --- | --- | --- | --- | --- |"""
MORE = """
By default these rules receive gradients, the others differences:
{gradients}.
Their default server step size `algorithm.eta` is `algorithm.c * sqrt(n / T)` ([T](time.md#end-of-a-run)). For other
rules it is a fixed number. The split rules {split} also receive messages.

A piece of work moves 4 d bytes down and 4 d bytes up, and clients keep nothing between uploads. Split rules add the
bytes of activations, labels and replies. The exceptions are:

| rule | bytes, down + up | client keeps |
| --- | --- | --- |
{exceptions}

Not included are FedCompass, QuAFL, PORT's requests to stale clients, and the clients' half of FedASMU. They need
client polling, server timers, or clients that mix models. We found no complete definition of MasFL, momentum
approximation, FAVAS, TimelyFL, HeLoCo's constants, Generalized AsyncSGD's update and FedStale's functions of staleness.
"""
TREE = """
## Special cases

With the settings in [limits.yaml](limits.yaml) a rule reduces to another rule. For example, `fedbuff` with
`algorithm.buffer_size=1` is `asgd`. In the figure, a solid arrow means bitwise identical results, a dashed arrow equal
numbers up to rounding. A [test](../../tests/algorithms/test_limits.py) runs both rules of each arrow with such
settings, and with settings under which they differ. {alone} have no arrow.

Tests of all rules but {unreplayed} compute the final weights of a run again, with NumPy from its
[trace](../reference/run_directory.md#traceparquet).

![Rules and the rules they reduce to](limits.svg)
"""


# -- what is declared -------------------------------------------------------------------------------------------------


@functools.cache
def limits() -> list[Limit]:
    return [Limit.from_line(line) for line in yaml.safe_load(LIMITS.read_text(encoding="utf-8"))]


@functools.cache
def rules() -> dict[str, type]:
    """Return the class of each rule by the name of its yaml."""
    found = {}
    for path in sorted((ROOT / "conf" / "algorithm").glob("*.yaml")):
        module, _, name = yaml.safe_load(path.read_text(encoding="utf-8"))["_target_"].rpartition(".")
        found[path.stem] = getattr(importlib.import_module(module), name)
    return found


def sections(rule: type) -> dict[str, str]:
    """Name -> text of a docstring's sections; several may share a line, with three spaces between them."""
    text = inspect.cleandoc(rule.__doc__ or "").partition("\n\n>>> ")[0]
    parts = re.split(rf"(?:^|\s{{3,}})({'|'.join(SECTIONS)})  *(?=\S)", text.replace("\n", " \n"), flags=re.M)
    return {name: " ".join(body.split()) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def source(rule: type) -> str:
    """Return the source of the rule's module and of the rules that it builds on, without common modules."""
    modules = {one.__module__ for one in rule.__mro__} - {ServerRule.__module__, "builtins"}
    return "\n".join(inspect.getsource(importlib.import_module(module)) for module in sorted(modules))


def keeps_in(rule) -> list[str]:
    """Return the values of ``Needs.keeps`` in the sources of the rule."""
    return re.findall(r'keeps ?=.*?"(previous|sum|variate)"', source(rule))


def kept_by_clients(rule) -> str:
    """Return what the clients of a rule keep; its settings may decide it."""
    if rule.resumes_from is not ServerRule.resumes_from:
        return "d, the model it resumes from"
    kept = rule.needs.keeps or next(iter(keeps_in(rule)), None)
    meaning = {"previous": "d, its last gradient", "sum": "d, the sum of its uploads"}
    said = meaning.get(kept, "d, its control variate") if kept else "0"
    return said if rule.needs.keeps or not kept else f"0; with algorithm.rule=incremental {said}"


def bytes_of_an_update(rule) -> str:
    vectors = 2 if rule.needs.keeps == "variate" else 1
    plain = f"{4 * vectors} d + {4 * vectors} d"
    if rule.resumes_from is not ServerRule.resumes_from:
        return f"{4 * vectors} d + {4 * vectors} d; 0 + {4 * vectors} d if the client resumes from its model"
    doubles = "previous" in keeps_in(rule)
    return plain + ("; 4 d + 8 d with algorithm.rule=incremental" if doubles else "")


def steps(rule) -> str:
    if (said := sections(rule).get("Steps")) is not None:
        return said
    if rule.needs.steps_on == "round":
        return "per round"
    fields = {field.name for field in dataclasses.fields(rule.Config)}
    if "buffer_size" in fields:
        return "per M uploads"
    return "per arrival or tick" if "step_on" in fields else "per arrival"


def deployment(rule) -> str:
    """Return whether the rule can serve real clients."""
    if rule.needs.undeployable is not None:
        return "no"
    return "`answer_within`" if rule.needs.may_wait else "yes"


FACTS = {
    "client": "client",
    "staleness": "version",
    "base_iteration": "version",
    "base_d": "version",
    "samples": "samples",
    "samples_n": "samples",
    "delay": "delay",
    "local_steps": "steps",
    "k": "K",
    "labels": "labels",
    "labels_nc": "label counts",
    "log_shares": "label counts",
    "groups_n": "planted groups",
}


def told(rule) -> str:
    """Return the rule's own sentence; otherwise the facts that it uses, in the order of FACTS."""
    if (said := sections(rule).get("Tells")) is not None:
        return said
    named = {
        node.attr
        for node in ast.walk(ast.parse(source(rule)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("upload", "message", "clients")
    }
    return ", ".join(dict.fromkeys(word for name, word in FACTS.items() if name in named)) or "nothing"


def unreplayed() -> list[str]:
    files = ("test_replay.py", "test_gas_replay.py")
    replays = "".join((ROOT / "tests" / file).read_text(encoding="utf-8") for file in files)
    return [name for name in rules() if not re.search(rf"algorithm={name}\b", replays)]


# -- the page ---------------------------------------------------------------------------------------------------------


def page() -> str:
    known, edges = rules(), limits()
    lines, exceptions = [INTRO], []
    for name, rule in known.items():
        memory = sections(rule).get("Memory", "").removesuffix(".")
        link = f"[`{name}`](../../results/by_rule/{name}.md)"
        lines.append(row([link, steps(rule), memory, told(rule), deployment(rule)]))
        sent, kept = bytes_of_an_update(rule), kept_by_clients(rule)
        if (sent, kept) != ("4 d + 4 d", "0"):
            exceptions.append(row([f"`{name}`", sent, kept]))
    kinds = {
        "gradients": listed([name for name, rule in known.items() if rule.upload_kinds[0] == "gradient"]),
        "split": listed([name for name, rule in known.items() if rule.needs.cuts]),
    }
    by_formula = [name for name, rule in known.items() if getattr(rule.Config, "eta", 0) is None]
    assert kinds["gradients"] == listed(by_formula), "MORE says that these rules have the formula as default"
    lines.append(MORE.format(exceptions="\n".join(exceptions), **kinds).rstrip("\n"))
    alone = sorted(set(known) - {edge.rule for edge in edges} - {edge.other for edge in edges})
    lines.append(TREE.format(alone=listed(alone), unreplayed=listed(unreplayed())))
    return "\n".join(lines)


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# -- the figure -------------------------------------------------------------------------------------------------------

COLUMN, ROW, WIDTH, HEIGHT, TOP = 215, 34, 142, 22, 20


def figure() -> str:
    """Return the figure: a column for each number of steps to a rule that becomes no other rule.

    Limits between the same two rules are one arrow, solid if the first has the same bits."""
    edges = [*{(limit.rule, limit.other): limit for limit in reversed(limits())}.values()][::-1]
    level = levels(edges)
    paths = []  # of each edge the places it goes through; those between are (number, level)
    columns: dict[int, list] = {}
    for name in sorted(level):
        columns.setdefault(level[name], []).append(name)
    for number, edge in enumerate(edges):
        between = [(number, at) for at in range(level[edge.rule] - 1, level[edge.other], -1)]
        for place in between:
            columns[place[1]].append(place)
        paths.append([edge.rule, *between, edge.other])
    at = heights(columns, paths)
    column = {place: index for index, places in columns.items() for place in places}
    height = TOP * 2 + ROW * (1 + max(at.values()))
    width = COLUMN * max(columns) + WIDTH + 20
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" font-family="sans-serif">']
    drawn.append(f'<rect width="{width}" height="{height:.0f}" fill="white"/>')
    leaving: dict[str, list[int]] = {}
    for number in sorted(range(len(edges)), key=lambda one: at[paths[one][1]]):
        leaving.setdefault(edges[number].rule, []).append(number)

    def middle(place) -> tuple[float, float]:
        return 10 + COLUMN * column[place] + WIDTH / 2, TOP + ROW * (at[place] + 0.5)

    for number, (edge, places) in enumerate(zip(edges, paths, strict=True)):
        mine = leaving[edge.rule]
        x, y = middle(edge.rule)
        y += (mine.index(number) - (len(mine) - 1) / 2) * 10
        x -= WIDTH / 2
        path = [f"M{x:.0f},{y:.1f}h-22"]
        x -= 22
        for place in places[1:]:
            to_x, to_y = middle(place)
            end = to_x + WIDTH / 2 + (4 if place == places[-1] else 0)
            half = (x + end) / 2
            path.append(f"C{half:.0f},{y:.1f} {half:.0f},{to_y:.1f} {end:.0f},{to_y:.1f}")
            x, y = end, to_y
            if place != places[-1]:
                x -= WIDTH
                path.append(f"H{x:.0f}")
        dash = "" if edge.bits else ' stroke-dasharray="5 3"'
        drawn.append(f'<path d="{" ".join(path)}" fill="none" stroke="#4477aa" stroke-width="1.3"{dash}/>')
        drawn.append(f'<path d="M{x - 4:.0f},{y:.1f}l7,-3.5v7z" fill="#4477aa"/>')
    for name in sorted(level):
        x, y = middle(name)
        box = f'x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.1f}" width="{WIDTH}" height="{HEIGHT}"'
        drawn.append(f'<rect {box} rx="4" fill="#eef3f8" stroke="#4477aa"/>')
        drawn.append(f'<text x="{x:.0f}" y="{y + 4:.1f}" font-size="12" text-anchor="middle">{escape(name)}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"


def levels(edges: list[Limit]) -> dict[str, int]:
    targets: dict[str, list[str]] = {}
    for edge in edges:
        targets.setdefault(edge.rule, []).append(edge.other)
        targets.setdefault(edge.other, [])

    def level(name: str) -> int:
        return 1 + max((level(other) for other in targets[name]), default=-1)

    return {name: level(name) for name in targets}


def heights(columns: dict[int, list], paths: list[list]) -> dict:
    """Return rows that put neighbours near each other: each column is sorted by its neighbours' mean row,
    repeatedly."""
    beside: dict = {}
    for path in paths:
        for one, other in itertools.pairwise(path):
            beside.setdefault(one, []).append(other)
            beside.setdefault(other, []).append(one)
    rows = max(map(len, columns.values()))
    at = {}

    def spread(places: list) -> None:
        gap = rows / len(places)
        at.update({place: (index + 0.5) * gap - 0.5 for index, place in enumerate(places)})

    for places in columns.values():
        spread(places)
    for turn in range(40):
        order = sorted(columns, reverse=bool(turn % 2))
        for index in order:
            mean = {one: sum(at[other] for other in beside[one]) / len(beside[one]) for one in columns[index]}
            columns[index].sort(key=lambda one, mean=mean: mean[one])
            spread(columns[index])
    return at


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    FIGURE.write_text(figure(), encoding="utf-8")
    write_board(ROOT / "results")
    print(f"wrote {PAGE.relative_to(ROOT)}, {FIGURE.relative_to(ROOT)} and results/by_rule")
