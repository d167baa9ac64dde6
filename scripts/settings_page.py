"""`make settings`: write docs/reference/settings.md from the yaml files and the schemas of the settings."""

from __future__ import annotations

from pathlib import Path

from asyncfl_bench.config import PARTS, manual, options
from asyncfl_bench.config.choices import groups

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"
INTRO = """# Settings

This page lists every group, its choices, and every setting with its default, its allowed values and its meaning.

```sh
afl-run --help algorithm=ace   # the same for one choice
```

`make settings` writes this page from the yaml files in `conf/` and the schemas. `group=choice` selects a
choice, `group.setting=value` changes a setting. The last column names the choices of the group that have the setting.

## Outside the groups
"""
HEADER = "| setting | default | allowed | meaning |"


def table(rows: list[list[str]], header: str) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [header, "| --- " * (header.count("|") - 1) + "|", *lines, ""]


def settings_of_group(group: str) -> list[list[str]]:
    """A row for each setting; choices whose lines are equal share it."""
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
            lines += ["`sweeps/README.md` lists the choices.", ""]
            continue
        lines += table(choices, "| choice | meaning |")
        if group in PARTS and (rows := settings_of_group(group)):
            lines += table(rows, f"{HEADER} choices |")
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
