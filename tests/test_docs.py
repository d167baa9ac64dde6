"""The pages a reader meets first: short, true where they can be checked, and without broken links."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import yaml

import asyncfl_bench
from asyncfl_bench.analysis import claims
from asyncfl_bench.config import options
from asyncfl_bench.reports.cli import main as report
from asyncfl_bench.reports.judged_claims import judge_claims, read_pages
from asyncfl_bench.reports.pages.write import plain_table

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))
import settings_page  # noqa: E402

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def section(heading: str) -> str:
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def table(text: str) -> pd.DataFrame:
    """The first table of a Markdown text."""
    lines = re.search(r"(?:^\|.*\n)+", text, re.M)[0].splitlines()  # type: ignore[index]
    rows = [[cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")] for line in lines]
    return pd.DataFrame(rows[2:], columns=rows[0])


def density(text: str) -> tuple[float, float]:
    """Numbers, and brackets with semicolons, for 100 words of prose: code, tables and headings are no prose."""
    prose = re.sub(r"```.*?```|^[|#!][^\n]*$", "", text, flags=re.S | re.M)
    prose = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", prose))
    numbers = re.findall(r"(?<![\w.-])\d+(?:[ .]\d+)*", prose)
    share = 100 / len(re.findall(r"[^\W\d]{2,}", prose))
    return share * len(numbers), share * len(re.findall(r"[(\[;]", prose))


def test_the_readme_is_easy_to_read_and_begins_with_the_commands():
    numbers, brackets = density(README)
    assert numbers <= 5 and brackets <= 2, (numbers, brackets)
    (first, *_) = re.findall(r"```sh\n(.*?)```", README, re.S)
    commands = [line.partition("#")[0].strip() for line in first.splitlines()]
    assert commands[0].startswith("git clone") and {"make run", "make test", "afl-report runs"} <= {*commands}
    assert [name for name in re.findall(r"^## (\w+)", README, re.M)] == [
        "Run", "One", "Your", "Why", "Claims", "Speed", "Not", "Next"
    ]  # fmt: skip


def test_the_docs_without_findings_have_fewer_than_20000_words():
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in PAGES if page.parent.name != "findings"}
    assert sum(words.values()) < 20_000, sorted(words.items(), key=lambda one: -one[1])[:5]


def test_density_counts_prose_only():
    assert density("Ten words of prose are here and two more now (a) 5 %; 2.5 points.\n\n| 1 | 2 |\n") == pytest.approx(
        (200 / 11, 200 / 11)
    )


def value_of(folder: str, series: str) -> float:
    frame = pd.read_csv(ROOT / "results" / "ace" / "figure2" / folder / "values.csv")
    cell = (frame["heterogeneity.alpha"] == 0.1) & (frame["delay"] == "exp_beta5") & (frame["series"] == series)
    return float(frame.loc[cell & (frame["measure"] == frame["measure"].iloc[0]), "mean"].iloc[0])


def lead_of(folder: str, first: str, second: str) -> str:
    frame = pd.read_csv(ROOT / "results" / "ace" / "figure2" / folder / "pairs.csv")
    frame = frame[frame["cell"] == "α = 0.1, β = 5"]
    for sign, one, other in ((1, first, second), (-1, second, first)):
        found = frame[(frame["better"] == one) & (frame["other"] == other)]
        if len(found):
            mean, *ends = (sign * found[["difference", "low", "high"]].astype(float)).iloc[0]
            return f"{mean:+.1f} [{min(ends):.1f}, {max(ends):.1f}]".replace("-", "−")
    raise AssertionError(f"{folder}: {first} and {second} are not compared")


def test_the_readmes_one_result_is_that_of_its_pages():
    rules, lines = ("ACE", "vanilla ASGD"), []
    for counted, steps, setting, folder in (
        ("500 server iterations", "printed", "the paper's", "published-medium"),
        ("20 000 uploads", "printed", "the paper's", "published-medium-long"),
        ("20 000 uploads", "searched", "equal for both rules", "fair-medium"),
    ):
        means = [f"{value_of(folder, rule):.1f}" for rule in rules]
        lines.append([counted, steps, setting, *means, lead_of(folder, *rules)])
    shown = table(section("One result: the winner depends on what is counted")).to_numpy().tolist()
    assert shown == lines, lines


@pytest.mark.parametrize(
    ("setting", "size"), [((), "6 GB (most of it CUDA; CPU=1 makes it 1.7 GB)"), (("CPU=1",), "1.7 GB and")]
)
def test_the_set_up_says_its_size_before_pip_shows_its_progress(setting, size, tmp_path):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "--no-print-directory", "--dry-run", "run", *setting]
    lines = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    assert size in lines[0] and "6 GB; 1.7 GB without CUDA: make run CPU=1" in README
    torch = [line for line in lines if "--torch-backend=cpu torch torchvision" in line]
    assert len(torch) == len(setting) and [*torch, ".venv/bin/pip install -e ."] == lines[-3 - len(torch) : -2]


@pytest.mark.parametrize("fitting", ["python3", "python3.12", ""])
def test_make_looks_for_a_python_that_the_project_takes(fitting, tmp_path):
    for name in ("make", "sh"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name in ("python3", "python3.13", "python3.12"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {int(name != fitting)}\n")
        (tmp_path / name).chmod(0o755)
    command = ["make", "VENV=there", "there/.installed"]
    shown = subprocess.run([*command, "-n"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert f"{fitting} -m venv there" in shown.stdout.splitlines() or not fitting
    if not fitting:
        ended = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
        assert ended.returncode == 2 and "no Python 3.11 to 3.13 found; make PYTHON=" in ended.stderr
        assert not (ROOT / "there").exists()


def test_the_readme_says_of_the_bank_what_its_tables_say():
    tiers = pd.read_csv(ROOT / "results" / "bank" / "tiers.csv", index_col="rule")
    first = tiers.index[(tiers.apply(pd.to_numeric, errors="coerce") == 1).all(axis=1)]
    assert tiers.shape[1] == 8
    text = " ".join(README.split())
    assert f"a table of {len(tiers)} rules, tuned alike in eight worlds" in text
    assert [*first] == ["fedopt"] and "only FedOpt is in tier 1 of all worlds" in text
    shown = table(README.partition("[Found](docs/findings/bank.md)")[2]).set_index("rule, tuned")
    shown.index = [name.partition(" (")[0].lower().replace(" ", "_") for name in shown.index]
    for column in shown:
        world = column.removesuffix(" [%]").lower().replace("cifar-10", "cifar10").replace("-", "_")
        of = pd.read_csv(ROOT / "results" / "bank" / f"rules_{world}.csv", index_col="rule").loc[shown.index]
        expected = [f"{one.mean:.1f} ± {(one.high - one.low) / 2:.1f}" for one in of.itertuples()]
        assert [*shown[column]] == expected, column


def test_the_readme_says_of_the_claims_what_the_board_says():
    pages, lines = read_pages(ROOT / "results"), []
    for paper in claims.papers_with_claims():
        own = judge_claims(pages, [paper]).query("board == 'paper'")["verdict"]
        decided = [int((own == f"**{word}**").sum()) for word in ("holds", "fails")]
        words = " / ".join(map(str, decided))
        lines.append(
            [f"[{claims.paper_title(paper)}](docs/findings/{paper}.md)", len(own), words, len(own) - sum(decided)]
        )
    expected = plain_table(pd.DataFrame(lines, columns=["paper", "claims", "hold / fail", "open"]))
    shown = table(section("Claims of the papers"))
    assert shown.equals(table(expected + "\n")), expected


def test_the_readmes_speeds_are_measured_ones():
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text()
    measured = table(page.partition("## Beside other simulators")[2]).set_index("simulator")
    words = " ".join(section("Speed").split())
    for workload, network in (("W1-1", "LeNet5"), ("W3f-1", "a perceptron")):
        rates = measured[workload].str.extract(r"\*\*(.*)\*\*")[0].astype(float)
        ours, others = rates["asyncfl_bench"], rates.drop("asyncfl_bench")
        assert f"{ours / others.max():.1f} times" in words and str(others.idxmax()) in words and network in words


def test_the_readme_and_the_citation_say_what_the_project_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["requires-python"], project["license"]) == (">=3.11,<3.14", "MIT")
    install = (ROOT / "docs" / "start" / "install.md").read_text()
    for text, windows in ((README, "(Windows: WSL)"), (install, "On Windows, use WSL.")):
        text = " ".join(text.split())
        assert "You need Linux or macOS" in text and "Python 3.11 to 3.13" in text and windows in text
    versions = [name.rpartition(" ")[2] for name in project["classifiers"] if name.startswith("Programming Language")]
    assert versions == ["3.11", "3.12", "3.13"] and "MIT licence" in README
    systems = {name.rpartition(" ")[2] for name in project["classifiers"] if name.startswith("Operating System")}
    assert systems == {"MacOS", "Linux"}
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == "MIT"


def test_version_and_date_are_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    code = json.loads((ROOT / "codemeta.json").read_text())
    heading = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]  # type: ignore[index]
    assert citation["version"] == code["version"] == heading == asyncfl_bench.__version__
    assert str(citation["date-released"]) == code["datePublished"]
    assert (citation["title"], citation["abstract"]) == (code["name"], code["description"])


def test_hooks_and_environments_ask_for_the_versions_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    asked = {needed for hook in hooks for needed in hook["additional_dependencies"]}
    assert asked - {"pre-commit-hooks>=6"} <= set(project["optional-dependencies"]["dev"])
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    wanted = [line.replace("pytorch-cpu", "torch") for line in conda if isinstance(line, str) and "torch" in line]
    assert len(wanted) == 2 and set(wanted) <= set(project["dependencies"])


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_a_page_says_first_what_it_is_for(page):
    title, blank, first, *_ = (ROOT / page).read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ") and not blank and not first.startswith(("#", "|", "```")) and "This page" not in first
    contents = (ROOT / "docs" / "conf.py").read_text()
    assert re.search(rf"\b{page.removesuffix('.md')}\b", contents), "add it to the site's contents, docs/conf.py"


def test_links_lead_to_files():
    places = [*ROOT.glob("*.md"), *PAGES, *(ROOT / "results").rglob("*.md")]
    broken = []
    for page in places:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
        broken += [f"{page.relative_to(ROOT)}: {link}" for link in links if not (page.parent / link).exists()]
    assert not broken


def test_pages_mark_the_highest_value_of_a_column_and_the_lowest_of_times():
    compared: Counter[str] = Counter()
    for page in (ROOT / "results").glob("*/*/*/README.md"):
        parts = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page.read_text(), re.S | re.M))
        if "\n| algorithm" in (text := parts.get("Values", "")):
            values = table("| algorithm" + text.rpartition("\n| algorithm")[2])  # the measure of the ranking
            for cell, texts in values.set_index("algorithm").drop("budget", errors="ignore").items():
                means = texts.str.extract(r"^(-?[\d.]+)")[0].astype(float)
                for word, end in (("highest", means.max()), ("lowest", means.min())):
                    marked = means[texts.str.contains(f"({word}", regex=False, na=False)]
                    compared[word] += len(marked)
                    assert (marked == end).all(), f"{page}: {cell}"
    assert compared["highest"] > 50 and compared["lowest"] >= 2


def test_a_contrast_of_a_claim_is_the_difference_that_its_page_shows():
    """Both of the same two methods, cell, measure and seeds; pages compare at equal iterations or times."""
    names, compared = ["cell", "first", "second", "measure"], 0
    claimed, shown = ({*(ROOT / "results").glob(f"*/*/*/{name}.csv")} for name in ("contrasts", "pairs"))
    for path in sorted(shown & {one.with_name("pairs.csv") for one in claimed}):
        contrasts = pd.read_csv(path.with_name("contrasts.csv")).dropna(subset="difference")
        contrasts = contrasts[contrasts["axis"].isin(["iteration", "virtual_time"])].astype(dict.fromkeys(names, str))
        pairs = pd.read_csv(path)
        pairs = pairs.rename(columns={"better": "first", "other": "second", "yardstick": "measure"})
        signs = {"difference": -pairs["difference"], "low": -pairs["high"], "high": -pairs["low"]}
        turned = pairs.rename(columns={"first": "second", "second": "first"}).assign(**signs)
        both = pd.concat([pairs, turned]).astype(dict.fromkeys(names, str))
        same = contrasts.merge(both, on=[*names, "seeds", "total"], suffixes=("", "_shown"))
        for key in signs:
            assert same[key].sub(same[f"{key}_shown"]).abs().fillna(0).lt(1e-6).all(), path
        compared += len(same)
    assert compared > 500


def test_the_architecture_page_names_all_parts_and_only_paths_that_exist():
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "asyncfl_bench"
    named = set(re.findall(r"`([\w.][\w./-]*(?:/|\.(?:py|cpp|yaml|md)))`", text))
    assert not [path for path in named if not any((base / path).exists() for base in (ROOT, ROOT / "src", package))]
    parts = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    assert parts - {f"{path.partition('/')[0]}/" for path in named} == set()


def test_the_sites_page_of_settings_has_every_choice_and_setting():
    page = settings_page.page()
    assert "Annotated[" not in page and not (ROOT / "docs" / "reference" / "settings.md").exists()
    assert not [name for name in options("algorithm") if f"| `{name}` |" not in page]
    assert re.search(r"\| `algorithm\.buffer_size` \| `10` \| .*whole.* \| .*fedbuff", page)


FINDINGS = sorted((ROOT / "docs" / "findings").glob("*.md"))


@pytest.mark.parametrize("page", FINDINGS, ids=lambda page: page.stem)
def test_findings_begin_with_what_was_found_and_end_with_their_commands(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120 and not lines[1] and not lines[7]
    assert [line[:2] for line in lines[2:7]] == ["- "] * 5 and max(map(len, lines[2:7])) <= 140
    *before, last = "\n".join(lines).split("\n## ")
    assert last.startswith("Runs and commands\n") and lines[-1].startswith("|")
    assert not [text for text in before if re.search(r"^\|.*command", text, re.M)]
    numbers, brackets = density("\n".join(lines))
    assert numbers <= 24 and brackets <= 8, (numbers, brackets)


@pytest.mark.slow
def test_the_table_of_sweeps_says_which_runs_archives_have():
    assert settings_page.SWEEPS.read_text(encoding="utf-8") == settings_page.sweeps_page(), "make settings"


@pytest.mark.parametrize(("paper", "pages"), [("ace", 4), ("afbs", 4), ("asyncfeded", 1)])
def test_findings_name_device_and_hours(paper, pages):
    found = table((ROOT / "docs" / "findings" / f"{paper}.md").read_text().rpartition("\n## ")[2])
    named = found.loc[found["page"] != "", "device, hours"]
    assert len(named) >= pages and named.str.fullmatch(r"(CPU|GPU).*; .*").all()


def rounded(value: float, text: str, before: int = 0) -> set[str]:
    """The value with as many decimals as the text, first rounded to ``before`` more; both where it is half-way."""
    places = len(text.partition(".")[2])
    first = round(value, places + before) if before else value
    return {f"{first + nudge:.{places}f}" for nudge in (-1e-9, 1e-9)}


DECIMAL = r"(-?\d+\.\d+)"
WITH_INTERVAL = rf"{DECIMAL} (?:\w+ )?\[{DECIMAL}, {DECIMAL}\]"  # 10.7 points [7.3, 14.1]


def find_numbers(path: Path, pattern: str) -> list[tuple[str, ...]]:
    return re.findall(pattern, " ".join(path.read_text("utf-8").replace("−", "-").split()))


@pytest.mark.parametrize("paper", ["ace", "afbs", "asyncfeded", "bank", "fedecho", "gas"])
def test_findings_give_the_intervals_of_their_pages_and_round_numbers_once(paper):
    """Pages show two decimals; 17.346 rounded by way of 17.35 is 17.4."""
    rows: list[tuple[float, ...]] = []
    for path in (ROOT / "results" / paper).glob("*.csv" if paper == "bank" else "*/*/*.csv"):
        frame = pd.read_csv(path).rename(columns={"tau": "difference"})
        if {"mean", "std"} <= {*frame}:
            rows += frame[["mean", "std"]].itertuples(index=False, name=None)
        if {"difference", "low", "high"} <= {*frame}:
            differences = frame[["difference", "low", "high"]].astype(float)
            if "contrast" in frame:  # a loss is given whole, its row counts from the claim's offset
                offset = frame["contrast"].str.extract(r", less the claimed ([\d.]+)$")[0].astype(float).fillna(0)
                differences = differences.add(offset, axis=0)
            rows += differences.itertuples(index=False, name=None)
            rows += (-differences[["difference", "high", "low"]]).itertuples(index=False, name=None)
    pages = [ROOT / "docs" / "findings" / f"{paper}.md", *[ROOT / "README.md"] * (paper == "ace")]
    said, means = (
        [one for page in pages for one in find_numbers(page, pattern)]
        for pattern in (WITH_INTERVAL, rf"{DECIMAL} ± {DECIMAL}")
    )
    assert len(said) + len(means) >= 10

    def is_in(texts, before):
        near = [row for row in rows if len(row) == len(texts) and abs(row[0] - float(texts[0])) < 0.2]
        return any(all(t in rounded(v, t, before) for v, t in zip(row, texts, strict=True)) for row in near)

    assert not [texts for texts in said if not is_in(texts, 0)]
    assert not [texts for texts in means if is_in(texts, 1) and not is_in(texts, 0)]


@pytest.mark.slow
@pytest.mark.process
def test_the_site_is_built_without_a_warning(tmp_path):
    words = ["--quiet", "--fail-on-warning", "--keep-going", "-c", "docs", ".", str(tmp_path / "site")]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "asyncfl_bench.load_runs" in (tmp_path / "site" / "docs" / "howto" / "python.html").read_text()
    parts = (tmp_path / "site" / "docs" / "howto" / "extend.html").read_text()
    assert "asyncfl_bench.algorithms.base.ServerRule" in parts
    assert (tmp_path / "site" / "index.html").exists()
    pages = tmp_path / "site" / "build" / "pages"
    assert {page.stem for page in pages.glob("*.html")} == {"gallery", "settings"}
    rule = (tmp_path / "site" / "results" / "by_rule" / "ace.html").read_text()
    assert "sum over ALL i of U_i" in re.sub("<[^>]+>", "", rule)
    assert (pages / "gallery.html").read_text().count("<img") == len(list((ROOT / "results").rglob("*.png")))


@pytest.mark.slow
def test_the_first_comparison_ends_as_its_page_says(afl_run, tmp_path, monkeypatch):
    """Two of its rules; the identity and the numbers of the others are other tests' business."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "start" / "first_comparison.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^afl-run -m (\S+=\S+.*?) +#", page, re.M)
    words = [w if not w.startswith("algorithm=") else "algorithm=ace,fedbuff" for w in shlex.split(command)]
    assert afl_run("-m", *words, "threads=1", "progress=false").returncode == 0
    assert report(["runs"]) == 0
    found = table((tmp_path / "runs" / "report" / "README.md").read_text().partition("## Values")[2])
    said = table(page).set_index("algorithm")["test accuracy [%]"]
    values = found.set_index("algorithm").iloc[:, 0].str.removesuffix(" (highest)")
    assert values["ACE"] == said["ACE"] and values["FedBuff"] == said["FedBuff"]


@pytest.mark.slow
def test_the_readmes_own_rule_passes_its_check_and_is_decided_as_printed(afl_run, tmp_path):
    own = section("Your rule")
    (code,) = re.findall(r"```python\n(.*?)```", own, re.S)
    lines = re.search(r"three lines:\s+`(_target_: .*?)`, `(.*?)` and `(.*?)`", own).groups()
    assert len(code.splitlines()) <= 14
    (tmp_path / "cutoff.py").write_text(code)
    (tmp_path / "mine" / "algorithm").mkdir(parents=True)
    (tmp_path / "mine" / "algorithm" / "cutoff.yaml").write_text("\n".join(lines))
    done = afl_run("--config-dir", "mine", "--check", "algorithm=cutoff")
    assert done.returncode == 0 and "failed" not in done.stdout, done.stdout
    command, shown = re.search(r"^afl-run (.*decide=cutoff.*?)  +# 20 s\n# (.*)$", own, re.M).groups()
    done = afl_run(*command.split(), "progress=false")
    assert done.returncode == 0 and shown in done.stdout + done.stderr, done.stdout


def test_workflows_name_actions_by_commit_and_the_image_does_not_run_as_root():
    texts = [file.read_text() for file in (ROOT / ".github/workflows").glob("*.yml")]
    actions = [name for text in texts for name in re.findall(r"uses: (.*)", text)]
    assert actions and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", name) for name in actions)
    users = re.findall(r"^USER (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert users and users[-1] not in ("root", "0")
