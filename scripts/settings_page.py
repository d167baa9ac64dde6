"""All settings from yaml files and schemas, for the site; `make settings` writes the table of sweeps/README.md."""

from __future__ import annotations

import re
from pathlib import Path

from asyncfl_bench.config import manual, options
from asyncfl_bench.config.choices import groups, variant
from asyncfl_bench.config.settings import LISTED, PARTS

ROOT = Path(__file__).parents[1]
SWEEPS = ROOT / "sweeps" / "README.md"
TABLE = "| `sweep=` | item | at full | runs in the archive | scales without runs |"
INTRO = """# Settings

Every group and its choices, and every setting with its default, its allowed values and its meaning:

```sh
afl-run --help algorithm=ace   # the same for one choice
```

`group=choice` selects a choice, `group.setting=value` changes a setting.
The last column names the choices of the group that have the setting.

## Outside the groups
"""
HEADER = "| setting | default | allowed | meaning |"


def table(rows: list[list[str]], header: str) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [header, "| --- " * (header.count("|") - 1) + "|", *lines, ""]


def settings_of_group(group: str) -> list[list[str]]:
    """Return a row for each setting. Choices with equal lines share it."""
    choices = options(group)
    rows: dict[tuple[str, ...], list[str]] = {}
    for choice in choices:
        for row in manual.describe_settings(group, choice):
            rows.setdefault(row, []).append(choice)
    ordered = sorted(rows, key=lambda row: row[0])
    return [[*written(row), "all" if rows[row] == choices else ", ".join(rows[row])] for row in ordered]


def written(row: tuple[str, ...]) -> list[str]:
    key, value, limits, comment = row
    return [f"`{key}`", f"`{value}`", limits, comment]


def page() -> str:
    lines = [INTRO, *table([written(row) for row in manual.describe_root_settings()], HEADER)]
    for group, description in groups().items():
        lines += [f"## {group}", "", description[:1].upper() + description[1:] + ".", ""]
        choices = [[f"`{name}`", manual.describe_choice(group, name)] for name in options(group)]
        if group == "sweep":
            lines += ["[A table](../../sweeps/README.md) lists the choices.", ""]
            continue
        lines += table(choices, "| choice | meaning |")
        if group in (*PARTS, *LISTED) and (rows := settings_of_group(group)):
            lines += table(rows, f"{HEADER} choices |")
    return "\n".join(lines).rstrip("\n") + "\n"


def sweeps_table() -> list[str]:
    """Return a row for each sweep of a paper: item, data and model of the paper, archived runs, scales without runs."""
    from asyncfl_bench import load_runs
    from asyncfl_bench.papers import paper_pages

    runs = load_runs(*sorted((ROOT / "results").glob("*/archive")))
    rows, pages = [], paper_pages()
    for name in (one for one in options("sweep") if "/" in one and not one.startswith("quickstart/")):
        own = runs[(runs["sweep"] == name) & runs["scale"].isin(["full", "medium"])]
        groups = own.groupby(["profile", "scale", "length"])
        texts = [
            f"{scale}{'' if profile == 'published' else f' {profile}'}{'' if length == 'standard' else f' {length}'}: "
            f"{len(of)}, {of['seed'].nunique()} seed{'s' * (of['seed'].nunique() > 1)}"
            f"{missing_runs(name, profile, scale, length)}"
            for (profile, scale, length), of in groups
        ]
        refused = {
            scale for scale in ("full", "medium") if "refused" in (variant("sweep_scale", f"{name}/{scale}") or {})
        }
        shown = {scale for scale in ("full", "medium") if (ROOT / "results" / name / f"published-{scale}").exists()}
        missing = [scale for scale in ("full", "medium") if scale not in {*own["scale"], *refused, *shown}]
        item, end, _ = f"{manual.describe_choice('sweep', name)} ".partition(". ")
        item = item if end else item.rpartition(", ")[0]  # the next line of the file completes the sentence
        problems = ", ".join(pages[name].problems) if name in pages and "full" not in refused else ""
        rows.append([f"`{name}`", item.strip(), problems, "; ".join(texts), ", ".join(missing)])
    return table(rows, TABLE)


def missing_runs(sweep: str, profile: str, scale: str, length: str) -> str:
    """Return the number of missing runs of a page: ``, 72 of 90 missing``; empty if none is missing."""
    folder = f"{profile}-{scale}" + (f"-{length}" if length != "standard" else "")
    page = ROOT / "results" / sweep / folder / "README.md"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    counts = re.search(r"^(\d+) expected, (\d+) missing", text, re.M)
    return f", {counts[2]} of {counts[1]} missing" if counts and counts[2] != "0" else ""


def sweeps_page() -> str:
    return SWEEPS.read_text(encoding="utf-8").partition(TABLE)[0] + "\n".join(sweeps_table())


if __name__ == "__main__":
    SWEEPS.write_text(sweeps_page(), encoding="utf-8")
    print(f"wrote sweeps/{SWEEPS.name}")
