"""Run directories by hand for the pages: numbers follow from what is asked."""

from __future__ import annotations

import json
from pathlib import Path

import yaml


def write_run(
    folder: Path,
    algorithm: str = "ace",
    seed: int = 0,
    points: list[tuple] = ((0, 0, 0, 0.1), (10, 100, 10, 0.5)),
    alpha: float = 0.1,
    delay: str = "exp_beta5",
    status: str | None = "ok",
    rule: dict | None = None,
    share: float | None = None,
    validation: float | None = None,
    choices: dict | None = None,
    summary: dict | None = None,
    columns: dict[str, list] | None = None,
    **top,
) -> Path:
    """points: (iteration, uploads, virtual time, test accuracy); columns: more of each point; status None: no
    summary.json."""
    rule = {"c": 0.2, **(rule or {})}
    words = [algorithm, f"a{alpha}", delay, f"s{seed}", *(f"{k}{v}" for k, v in rule.items()), str(share)]
    path = folder / "-".join(words).replace("{", "").replace("}", "")
    config = {
        "seed": seed,
        "n_clients": 10,
        "clock": "ticks",
        "heterogeneity": {"_target_": "x.Dirichlet", "alpha": alpha},
        "delay": {"_target_": "x.Exponential", "beta": float(delay[8:]), "unit": "ticks"},
        "availability": {"share": share} if share is not None else {},
        "algorithm": {"_target_": f"x.{algorithm}"} | rule,
        **top,
        "choices": {"algorithm": algorithm, "delay": delay, "dataset": "digits", "model": "mlp"} | (choices or {}),
    }
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    names = ("iteration", "uploads", "virtual_time", "test/accuracy")
    lines = [dict(zip(names, point, strict=True)) for point in points]
    for name, values in (columns or {}).items():
        for line, value in zip(lines, values, strict=True):
            line[name] = value
    if validation is not None:
        lines[-1]["validation/accuracy"] = validation
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if status is not None:
        content = {
            "exit_status": status,
            "error": None if status == "ok" else f"{status} at iteration 7",
            "algorithm": algorithm,
            "seed": seed,
            "used": {"server_iterations": points[-1][0], "uploads": points[-1][1], "virtual_time": points[-1][2]},
            "device": "cpu (two cores)",
            "versions": {"asyncfl_bench": "0.1.0", "torch": "2.0"},
            "git_revision": "abc123",
        }
        (path / "summary.json").write_text(json.dumps(content | (summary or {})))
    return path


def rows_of(text: str, first: str) -> list[list[str]]:
    """The cells of the first Markdown table whose header begins with the cells ``first``: ``cell | budget``."""
    wanted = [cell.strip() for cell in first.split("|")]
    lines = [line if line.startswith("|") else "" for line in text.splitlines()]
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    start = next(i for i, row in enumerate(tables) if row[: len(wanted)] == wanted and "---" in lines[i + 1])
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return [tables[start], *tables[start + 2 : end]]
