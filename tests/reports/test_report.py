"""afl-report: the page of anybody's runs, the pages of papers, and one line for every mistake."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.image import imread
from reports.runs_by_hand import grid_by_hand, write_run

from asyncfl_bench.analysis.names import rule_classes
from asyncfl_bench.reports import assembly, blocks
from asyncfl_bench.reports.assembly import own_page
from asyncfl_bench.reports.blocks import HeatMaps
from asyncfl_bench.reports.cli import main
from asyncfl_bench.reports.pages import page as page_module
from asyncfl_bench.reports.pages.spec import Measure
from asyncfl_bench.reports.pages.write import Picture, Table, flatten_parts
from asyncfl_bench.tracking.runs import load_runs

ACCURACIES = [0.90, 0.92, 0.97]


def curve(final: float) -> list[tuple]:
    return [(0, 0, 0.0, 0.1), (50, 500, 25.0, 0.5), (100, 1000, 50.0, final)]


def measured(root: Path) -> pd.DataFrame:
    return pd.read_csv(root / "report" / "measured.csv")


@pytest.mark.slow
def test_mean_and_sample_deviation_over_seeds_are_those_of_pandas(tmp_path, capsys):
    for seed, accuracy in enumerate(ACCURACIES):
        write_run(tmp_path, seed=seed, points=curve(accuracy))
    assert main([str(tmp_path)]) == 0
    (row,) = measured(tmp_path).to_dict("records")
    percent = 100 * pd.Series(ACCURACIES)
    assert (row["final"], row["final_std"]) == pytest.approx((percent.mean(), percent.std()))
    assert (row["summary.used.uploads"], row["summary.used.virtual_time"]) == (1000, 50)
    assert (row["series"], row["seeds"], row["diverged"]) == ("ACE", 3, 0)
    headers, _, cells = capsys.readouterr().out.splitlines()[:3]
    assert [text.strip() for text in headers.strip("|").split("|")][:2] == ["algorithm", "last test accuracy [%]"]
    assert f"{percent.mean():.2f} ± {percent.std():.2f}" in cells


def test_a_setting_that_differs_within_an_algorithm_is_never_averaged(tmp_path):
    for beta in (5, 30):
        for seed in (0, 1):
            write_run(tmp_path, seed=seed, beta=beta, points=curve(0.9 - beta / 100 + seed / 50))
    for lr in (0.1, 0.2):
        write_run(tmp_path, "asgd", client__lr=lr, points=curve(lr))
    page = own_page(load_runs(tmp_path), "runs")
    found = page.tables["measured"].set_index(["delay", "series"])["final"].round(9).to_dict()
    assert found == {
        ("exp_beta5", "ACE"): 86,
        ("exp_beta30", "ACE"): 61,
        ("exp_beta5", "vanilla ASGD, lr = 0.1"): 10,
        ("exp_beta5", "vanilla ASGD, lr = 0.2"): 20,
    }


@pytest.mark.slow
def test_panels_lines_and_runs_are_chosen_from_the_command_line(tmp_path):
    for alpha in (0.1, 0.3):
        for beta in (5, 30):
            for c in (0.1, 0.2):
                columns = {"columns": {"test/loss": [2.0, 1.0, alpha]}}
                write_run(tmp_path / "runs", alpha=alpha, beta=beta, algorithm__c=c, points=curve(0.9), **columns)
    words = ["--panels", "delay", "--compare", "algorithm.c", "--where", "heterogeneity.alpha=0.10"]
    out = tmp_path / "page"
    more = ["--metric", "test/loss", "--axis", "uploads", "--format", "pdf", "tex", "--out", str(out)]
    assert main([str(tmp_path / "runs"), *words, *more]) == 0
    table = pd.read_csv(out / "accuracy_uploads.csv")
    assert sorted(zip(table["delay"], table["series"], table["mean"], strict=True)) == [
        (delay, series, 0.1) for delay in ("exp_beta30", "exp_beta5") for series in ("c = 0.1", "c = 0.2")
    ]
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "curves_uploads.png", "curves_uploads.pdf", "measured.tex"} <= names
    assert imread(out / "curves_uploads.png").std() > 0.05


@pytest.mark.slow
def test_one_page_shows_several_axes_with_their_units(tmp_path, capsys):
    write_run(tmp_path, points=curve(0.9))
    assert main([str(tmp_path), "--axis", "iteration", "virtual_time", "--format", "pdf", "svg"]) == 0
    kinds = {path.name for path in (tmp_path / "report").glob("curves_*")}
    assert kinds == {
        f"curves_{axis}.{kind}" for axis in ("iteration", "virtual_time") for kind in ("png", "pdf", "svg")
    }
    assert "| virtual time [ticks] |" in capsys.readouterr().out
    assert "(log scale)" not in (tmp_path / "report" / "curves_iteration.svg").read_text()
    page = own_page(load_runs(tmp_path), "runs", axes=["uploads"])
    (figure,) = (part.figure for part in flatten_parts(page.parts) if isinstance(part, Picture))
    assert figure.axes[0].get_xscale() == "log"
    assert "virtual time [ticks]" in (tmp_path / "report" / "curves_virtual_time.svg").read_text()


def test_runs_are_compared_by_what_their_budgets_limit(tmp_path):
    iterations, uploads = ({"server_iterations": None, "uploads": None, "virtual_time": None} for _ in range(2))
    iterations["server_iterations"], uploads["uploads"] = 100, 1000
    for algorithm, steps in (("ace", 10), ("asgd", 1000)):
        points = [(0, 0, 0.0, 0.1), (steps / 2, 500, 25.0, 0.5), (steps, 1000, 50.0, 0.9)]
        for seed in (0, 1, 2):
            write_run(tmp_path / "runs", algorithm, seed=seed, points=points, budget=uploads)
    write_run(tmp_path / "runs", beta=30, points=curve(0.2), budget=iterations)  # the first run of a newcomer
    page = own_page(load_runs(tmp_path / "runs"), "runs")
    assert {name for name in page.tables if name.startswith("accuracy")} == {"accuracy_uploads"}
    found = page.tables["accuracy_uploads"].set_index(["delay", "series"])
    assert found.loc["exp_beta5", "mean"].tolist() == [90, 90] and len(found) == 3
    assert page.pairs["yardstick"].tolist() == ["last"] and page.pairs["seeds"].tolist() == [3]
    assert "overall" not in page.tables  # one algorithm alone is in both panels
    (shown,) = (
        part.shown for part in flatten_parts(page.parts) if isinstance(part, Table) and part.name == "accuracy_uploads"
    )
    assert not shown.map(str).apply(lambda column: column.str.contains("seeds")).any(axis=None)


def test_bytes_are_an_axis_of_runs_that_have_counted_them(tmp_path):
    sent = {"uplink_bytes": [0, 4000, 10_000], "downlink_bytes": [1000, 5000, 10_000]}
    points = [(0, 0, 0.0, 0.1), (5, 500, 25.0, 0.5), (10, 1000, 50.0, 0.9)]
    for seed in (0, 1, 2):
        write_run(tmp_path / "runs", "ace", seed=seed, points=points, columns=sent)
        write_run(tmp_path / "runs", "asgd", seed=seed, points=points)  # of an earlier version
    page = own_page(load_runs(tmp_path / "runs"), "runs", axes=["bytes"])
    found = page.tables["accuracy_bytes"].set_index("series")
    assert found["mean"].to_dict() == {"ACE": 90} and found["budget"].to_dict() == {"ACE": 20_000}
    for old in (tmp_path / "runs").glob("ace*"):
        old.rename(tmp_path / old.name)
    assert {*own_page(load_runs(tmp_path / "runs"), "runs", axes=["bytes"]).tables} == {"measured", "measured_by_seed"}


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A folder beside a run's, with another run in it, that this user may not list (root may list all)."""
    write_run(tmp_path / "runs", points=curve(0.9))
    write_run(folder := tmp_path / "runs" / "closed", "asgd", points=curve(0.5))
    scandir = os.scandir

    def refuse(path):
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    return folder


@pytest.mark.slow
def test_a_folder_that_cannot_be_listed_is_named(closed, tmp_path, capsys):
    line = f"left out, {closed}: cannot be listed: Permission denied"
    assert main([str(tmp_path / "runs")]) == 0
    err = capsys.readouterr().err
    assert f"afl-report: {line}" in err and "left out: 1 unreadable (named in" in err
    assert f"- 1 unreadable: `{closed}` (cannot be listed" in (tmp_path / "runs/report/README.md").read_text()
    assert main(["ace/figure2", "--runs", str(tmp_path / "runs")]) == 2
    assert line in capsys.readouterr().err
    assert main([str(tmp_path / "runs"), "--pack", str(tmp_path / "all.parquet")]) == 0
    out, err = capsys.readouterr()
    assert line in err and out.startswith("1 runs in")


@pytest.mark.slow
def test_a_second_page_renews_the_forms_of_the_first(tmp_path, capsys):
    out = tmp_path / "report"
    write_run(tmp_path, points=curve(0.5))
    assert main([str(tmp_path), "--format", "pdf", "svg", "tex", "--html"]) == 0
    assert capsys.readouterr().out.endswith(f"\nwritten: {out / 'README.md'}\nwritten: {out / 'page.html'}\n")
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    kinds = {Path(name).suffix for name in first}
    assert kinds == {".md", ".csv", ".png", ".pdf", ".svg", ".tex", ".html"}
    write_run(tmp_path, seed=1, points=curve(0.9))
    assert main([str(tmp_path)]) == 0
    second = {path.name: path.read_bytes() for path in out.iterdir()}
    assert first.keys() <= second.keys() and all(second[name] != first[name] for name in ("page.html", "measured.tex"))
    assert second["curves_iteration.pdf"] != first["curves_iteration.pdf"]


@pytest.mark.slow
def test_without_its_extra_a_page_for_a_browser_is_left_out_and_said_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    out = tmp_path / "report"
    write_run(tmp_path, points=curve(0.9))
    assert main([str(tmp_path), "--html"]) == 0
    said = capsys.readouterr()
    assert said.err == "afl-report: page.html is left out: it needs pip install 'asyncfl_bench[html]'\n"
    assert "written: " in said.out and (out / "README.md").exists() and not (out / "page.html").exists()
    (out / "page.html").write_text("earlier")
    assert main([str(tmp_path)]) == 0
    needed = "keeps its earlier numbers: it needs pip install 'asyncfl_bench[html]'"
    assert capsys.readouterr().err == f"afl-report: {out / 'page.html'} {needed}\n"


@pytest.mark.slow
def test_a_page_of_own_runs_has_the_command_that_made_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs"), points=curve(0.9))
    words = ["runs", "--where", "seed=0", "--out", "a page", "--panels", "delay"]
    assert main(words) == 0
    assert "\nafl-report runs --where seed=0 --out 'a page' --panels delay\n" in Path("a page/README.md").read_text()


def test_what_is_no_page_and_no_archive_is_not_written_over(tmp_path, capsys):
    write_run(tmp_path / "runs")
    for name in ("README.md", "picture.png"):
        (tmp_path / name).write_text("mine")
    pd.DataFrame({"upload": [1]}).to_parquet(tmp_path / "trace.parquet")
    before = (tmp_path / "trace.parquet").read_bytes()
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path)]) == 1
    assert "is not a page of afl-report" in capsys.readouterr().err
    assert main([str(tmp_path / "runs"), "--pack", str(tmp_path / "trace.parquet")]) == 2
    assert "not an archive of runs" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == "mine" and (tmp_path / "trace.parquet").read_bytes() == before


@pytest.mark.slow
def test_html_in_names_is_text_in_a_page(tmp_path):
    runs = tmp_path / "<b>mine"
    write_run(runs, choices__algorithm="<i>rule</i>", points=curve(0.9))
    write_run(runs, seed=1, status="failed", summary={"name": "a`<img src=x onerror=alert(1)>", "error": "<!-- x"})
    assert main([str(runs), "--out", str(tmp_path / "page")]) == 0
    text = (tmp_path / "page" / "README.md").read_text()
    command, _, rest = text.partition("```sh\n")[2].partition("\n```\n")
    assert "'" + str(runs) + "'" in command and "<" not in text.partition("```sh")[0] + rest
    for name in ("# Runs in", "&lt;b>mine", "| &lt;i>rule&lt;/i>", "&lt;img src=x onerror=alert(1)>", "(&lt;!-- x)"):
        assert name in text


@pytest.mark.slow
def test_settings_that_differ_only_between_algorithms_are_named(tmp_path):
    write_run(tmp_path, "ace")
    write_run(tmp_path, "asgd", client__lr=0.3)
    page = own_page(load_runs(tmp_path), "runs")
    assert "client.lr" in page.parts[2]
    assert page.series == ["ACE", "vanilla ASGD"]
    named = own_page(load_runs(tmp_path), "runs", compare=["algorithm", "client.lr"])
    assert named.series == ["ACE, lr = 0.1", "vanilla ASGD, lr = 0.3"] and "client.lr" not in named.parts[2]


@pytest.mark.slow
def test_runs_that_did_not_end_well_are_named_and_not_averaged(tmp_path, capsys):
    write_run(tmp_path, seed=0, points=curve(0.9))
    write_run(tmp_path, seed=1, points=curve(0.1), status="diverged")
    write_run(tmp_path, seed=2, points=curve(0.1), status=None)
    write_run(tmp_path, "asgd", seed=3, points=curve(0.1), status="diverged")
    assert main([str(tmp_path)]) == 0
    table = measured(tmp_path).set_index("series")
    assert table.loc["ACE", ["final", "seeds", "diverged"]].tolist() == pytest.approx([90, 1, 1])
    assert table.loc["vanilla ASGD", "diverged"] == 1 and pd.isna(table.loc["vanilla ASGD", "final"])
    text = (tmp_path / "report" / "README.md").read_text()
    assert "- 2 diverged: `ac" in text and "- 1 incomplete: `ace" in text and "(diverged at iteration 7)" in text


def test_runs_that_no_mean_may_mix_are_left_out_in_one_line(tmp_path, capsys):
    for seed in range(3):
        write_run(tmp_path / "runs", seed=seed, points=curve(0.9))
    write_run(tmp_path / "runs", seed=3, points=curve(0.1), summary={"results_version": 2})
    write_run(tmp_path / "runs", seed=4, points=curve(0.1), summary={"data_digest": "d2"})
    write_run(tmp_path / "runs", seed=5, points=curve(0.1), summary={"identity": "00000000"})
    assert main([str(tmp_path / "runs")]) == 0
    (row,) = measured(tmp_path / "runs").to_dict("records")
    assert (row["final"], row["seeds"]) == (90, 3)
    line = "afl-report: left out: 1 another results version, 1 inconsistent, 1 other data (named in "
    assert capsys.readouterr().err.startswith(line)


def test_maps_do_not_average_values_equal_to_six_digits(tmp_path):
    for alpha in (0.1000001, 0.1000002):
        for beta in (5, 30):
            write_run(tmp_path, alpha=alpha, beta=beta, points=curve(alpha))
    page = own_page(load_runs(tmp_path), "runs", ["heterogeneity.alpha", "delay"])
    _, picture = HeatMaps("heterogeneity.alpha", "delay")(page)
    axes = picture.figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0.1000001", "0.1000002"]
    assert axes.images[0].get_array().shape == (2, 2)


def test_maps_are_apart_where_the_cells_have_a_third_key(tmp_path):
    for n, alpha, beta in itertools.product((50, 100), (0.1, 0.3), (5, 30)):
        write_run(tmp_path, alpha=alpha, beta=beta, points=curve(alpha), n_clients=n)
    page = own_page(load_runs(tmp_path), "runs", ["n_clients", "heterogeneity.alpha", "delay"])
    _, picture = HeatMaps("heterogeneity.alpha", "delay")(page)
    titles = [axes.get_title() for axes in picture.figure.axes if axes.get_title()]
    assert titles == ["ACE, n_clients = 50", "ACE, n_clients = 100"]


@pytest.mark.slow
def test_an_archive_gives_the_page_of_its_directories(tmp_path, capsys):
    for seed in (0, 1):
        write_run(tmp_path / "runs", seed=seed, points=curve(0.5 + seed / 10))
    assert main([str(tmp_path / "runs"), "--pack", str(tmp_path / "all.parquet")]) == 0
    assert capsys.readouterr().out == f"2 runs in {tmp_path / 'all.parquet'}\n"
    assert main([str(tmp_path / "runs")]) == main([str(tmp_path / "all.parquet")]) == 0
    pd.testing.assert_frame_equal(measured(tmp_path / "runs"), measured(tmp_path))


def test_help_needs_neither_numpy_nor_pandas_nor_matplotlib():
    code = (
        "import sys\nfrom asyncfl_bench.reports.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('numpy', 'pandas', 'matplotlib', 'torch', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert "--panels KEY" in done.stdout and done.stdout.endswith("[]\n")


@pytest.fixture
def papers_runs(tmp_path, monkeypatch):
    """Runs of two sweeps of the ACE paper that share one; each sweep asks for ACE with seeds 0 and 1."""
    monkeypatch.chdir(tmp_path)
    chosen = {"choices__profile": "published", "choices__scale": "small"}
    for sweep in ("figure2", "figure_a1"):
        names = {**chosen, "choices__sweep": f"ace/{sweep}"}
        write_run(Path("runs/ace") / sweep, seed=int(sweep == "figure_a1"), points=curve(0.8), **names)

    def grid_of(sweep, profile, scale, length, more):
        alpha = {"small": 0.1, "smoke": 0.5 if sweep == "ace/figure2" else 0.7}[scale]
        jobs = [{"algorithm": "ace", "seed": seed, "alpha": alpha} for seed in (0, 1)]
        return replace(grid_by_hand(jobs, ("algorithm",)), sweep=sweep, profile=profile, scale=scale)

    monkeypatch.setattr(assembly, "grid_of", grid_of)


@pytest.mark.slow
def test_a_page_is_written_for_every_profile_and_scale_and_other_sweeps_lend_their_runs(papers_runs, capsys):
    other = {"choices__profile": "fair", "choices__scale": "smoke", "choices__sweep": "ace/figure2"}
    write_run(Path("runs/x"), alpha=0.5, points=curve(0.8), **other)
    assert main(["all"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "written: results/ace/figure2/fair-smoke/README.md",
        "written: results/ace/small/README.md",
        "written: results/ace/small/README.md",
    ]
    assert len(load_runs("results/ace/archive")) == 3
    index = Path("results/README.md").read_text()
    assert "smoke" not in index.partition("| item")[2]
    assert main(["ace/figure2", "--scale", "small", "--out", "elsewhere"]) == 0
    assert sorted(str(p.parent) for p in Path("elsewhere/ace").rglob("README.md")) == [
        "elsewhere/ace/figure2/published-small",
        "elsewhere/ace/small",
    ]


@pytest.mark.slow
def test_a_page_that_other_sweeps_runs_begin_is_written_only_when_asked_for(papers_runs, capsys):
    shutil.rmtree("runs")
    names = {"choices__profile": "published", "choices__scale": "small", "choices__sweep": "fedecho/table2"}
    write_run(Path("runs/lender"), seed=0, points=curve(0.8), **names)
    assert main(["fedecho/composition"]) == 2
    out, err = capsys.readouterr()
    assert "left out: 1 of 2 runs missing, none made for this page; --profile published --scale small" in err
    assert "no runs of fedecho/composition" in err and out == "" and not Path("results").exists()
    assert main(["fedecho/composition", "--profile", "published", "--scale", "small"]) == 0
    assert capsys.readouterr().out == "written: results/fedecho/composition/published-small/README.md\n"
    write_run(Path("runs/lender"), seed=1, points=curve(0.8), **names)
    assert main(["fedecho/composition"]) == 0  # others have all


@pytest.mark.slow
def test_a_page_of_no_own_runs_and_of_another_profile_is_not_written(papers_runs, capsys):
    """gas/figure3 has runs under ``published``; the runs of gas/table1 under ``released`` make no page of figure 3."""
    shutil.rmtree("runs")
    for seed, (sweep, profile) in enumerate((("gas/figure3", "published"), ("gas/table1", "released"))):
        names = {"choices__profile": profile, "choices__scale": "small", "choices__sweep": sweep}
        write_run(Path("runs/lender"), seed=seed, points=curve(0.8), **names)
    main(["gas/figure3"])
    out, err = capsys.readouterr()
    assert "released-small\nleft out: 0 of 2 runs missing, none made for this page" in err
    assert out == "written: results/gas/figure3/published-small/README.md\n"


@pytest.mark.slow
def test_pages_are_made_from_their_archives_alone(papers_runs, capsys):
    assert main(["ace/figure2"]) == 0
    first = Path("results/ace/figure2/published-small/README.md").read_bytes()
    Path("runs").rename("gone")
    assert main(["ace/figure2"]) == 0
    assert Path("results/ace/figure2/published-small/README.md").read_bytes() == first


@pytest.mark.slow
def test_out_says_only_where_to_write_and_archive_only_where_runs_are(papers_runs, capsys):
    assert main(["ace/figure2", "--out", "first"]) == 0
    Path("runs").rename("gone")
    before = {path: path.read_bytes() for path in Path("first").rglob("*") if path.is_file()}
    assert main(["ace/figure2", "--out", "first"]) == 2
    assert main(["ace/figure2", "--out", "second", "--archive", "first"]) == 0
    page = "ace/figure2/published-small/README.md"
    assert (Path("second") / page).read_bytes() == before[Path("first") / page]
    assert before == {path: path.read_bytes() for path in Path("first").rglob("*") if path.is_file()}
    assert not Path("results").exists()


@pytest.mark.slow
def test_the_pages_of_a_paper_at_scale_small_are_lines_of_one_overview(papers_runs, capsys):
    assert main(["ace"]) == 0
    (archive,) = Path("results/ace/archive").iterdir()
    files = {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()}
    assert {str(path.relative_to("results")) for path in files if not path.name.startswith(".")} == {
        "README.md",
        "claims.csv",
        *(f"by_rule/{rule}.md" for rule in rule_classes()),
        f"ace/archive/{archive.name}",
        "ace/small/README.md",
        "ace/small/claims.json",
    }
    text = Path("results/ace/small/README.md").read_text()
    figure2, figure_a1 = [line for line in text.splitlines() if line.startswith("- ")]
    assert figure2.startswith("- **figure2 published-small**: ")
    assert figure_a1.startswith("- **figure_a1 published-small**: ")
    assert "2 runs, seeds 0, 1." in figure2 and text.count("| claim") <= 1
    assert (
        "The sweep lists 2 runs, of which 0 are missing. 2 runs are used. `afl-report ace/figure2 --profile published"
        in figure2
    )
    assert main(["ace/figure2"]) == 0  # the page itself, and its line in place of the earlier one
    assert {path: path.read_bytes() for path in files} == files
    page = {path.name for path in Path("results/ace/figure2/published-small").iterdir()}
    assert {"README.md", "curves_iteration.png", "curves_uploads.png", "curves_virtual_time.png"} <= page
    assert "claims.json" not in page  # the board counts a claim once
    Path("results/ace/small/claims.json").write_text("[{")
    capsys.readouterr()
    assert main(["ace/figure2"]) == 1
    assert "afl-report: ace/figure2, published-small: results/ace/small/claims.json: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("scale, alpha", [("small", 0.1), ("smoke", 0.5)])
def test_claims_are_judged_by_test_accuracy_alone(papers_runs, capsys, monkeypatch, scale, alpha):
    monkeypatch.setattr("asyncfl_bench.reports.beside.grid_of", assembly.grid_of)
    shutil.rmtree("runs")
    names = {"choices__profile": "published", "choices__scale": scale, "choices__sweep": "ace/figure2"}
    for seed in (0, 1):
        losses = {"test/loss": [3.0, 2.0, 1.0]}
        write_run(Path("runs"), alpha=alpha, seed=seed, points=curve(0.8), columns=losses, **names)
    words = ["ace/figure2", "--scale", scale]
    assert main(words) == 0
    kept = [Path("results/README.md"), *Path("results/ace").rglob("claims.json")]
    for path in kept:
        path.write_text("kept")
    assert main([*words, "--metric", "test/loss"]) == 0 and len(kept) == 2
    assert [path.read_text() for path in kept] == ["kept", "kept"]
    text = Path(f"results/ace/figure2/published-{scale}/README.md").read_text()
    assert "\n\nThis page has no verdicts of claims" in text and "## Verdicts" not in text
    assert f"afl-report ace/figure2 --profile published --scale {scale} --metric test/loss\n" in text
    for more in ([], ["--beside", "published"]):
        capsys.readouterr()
        assert main([*words, *more, "--metric", "test/los"]) == 2
        assert capsys.readouterr().err.count("--metric=test/los: must be one of test/accuracy, test/loss") == 1


@pytest.mark.slow
def test_a_page_draws_two_figures_or_all(papers_runs, capsys):
    words = ["ace/figure2", "--scale", "smoke", "--profile", "published"]
    folder = Path("results/ace/figure2/published-smoke")
    shutil.rmtree("runs")
    names = {"choices__profile": "published", "choices__scale": "smoke", "choices__sweep": "ace/figure2"}
    for seed in (0, 1):
        write_run(Path("runs"), alpha=0.5, seed=seed, points=curve(0.8), **names)
    for more, drawn in (([], 2), (["--all-figures"], 3), (["--format", "svg"], 2)):
        assert main([*words, *more]) == 0
        pictures = sorted(path.stem for path in folder.glob("*.png"))
        assert pictures == ["curves_iteration", "curves_uploads", "curves_virtual_time"][:drawn]
        text = (folder / "README.md").read_text()
        assert text.count(".png)") == drawn and text.count("of `afl-report --all-figures`") == (drawn < 3)
        assert len(list(folder.glob("*.svg"))) == drawn * ("svg" in more)


@pytest.mark.slow
def test_an_archive_that_cannot_be_read_is_named(papers_runs, capsys):
    assert main(["ace/figure2"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "[1/1] ace/figure2, published-small",
    ]
    (archive,) = Path("results/ace/archive").iterdir()
    archive.write_bytes(archive.read_bytes()[:100])
    assert main(["ace/figure2"]) == 1  # the page's own archive: it would be written over
    assert f"left out, {archive}: " in capsys.readouterr().err
    Path("runs").rename("gone")
    assert main(["ace/figure2"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"left out, {archive}: " in err and "no runs of ace/figure2" in err


@pytest.mark.slow
def test_a_page_whose_runs_all_failed_is_reported_and_the_others_are_written(papers_runs, capsys):
    chosen = {"choices__profile": "published", "choices__scale": "smoke"}
    write_run(Path("runs/a"), alpha=0.5, status="failed", choices__sweep="ace/figure2", **chosen)
    write_run(Path("runs/b"), alpha=0.7, points=curve(0.8), choices__sweep="ace/figure_a1", **chosen)
    assert main(["ace", "--scale", "smoke"]) == 1
    out, err = capsys.readouterr()
    assert "afl-report: ace/figure2, published-smoke: no run to show: all failed" in err and "figure_a1" in out
    assert not Path("results/ace/figure2").exists()


def test_a_heat_map_of_one_column_is_a_line_with_bars_within_100_percent(tmp_path):
    for alpha in (0.1, 1.0):
        for seed, accuracy in enumerate((0.97, 1.0)):
            write_run(tmp_path, seed=seed, alpha=alpha, points=curve(accuracy - (alpha < 1) / 10))
    page = own_page(load_runs(tmp_path), "runs", ["heterogeneity.alpha"])
    page.spec = replace(page.spec, cells=("heterogeneity.alpha",))
    heading, picture = HeatMaps("heterogeneity.alpha", "algorithm")(page)
    assert heading == "## Against α" and picture.name == "line_late" and not picture.figure.axes[0].images
    (bars,) = picture.figure.axes[0].containers
    assert bars.lines[0].get_ydata().tolist() == pytest.approx([88.5, 98.5])
    assert max(path.vertices[1, 1] for path in bars.lines[2][0].get_paths()) == 100


def test_curves_of_days_are_drawn_in_days(tmp_path):
    late = [(0, 0, 0.0, 0.1), (10, 100, 864_000.0, 0.5)]
    write_run(tmp_path, delay={"_target_": "x.Link", "unit": "seconds"}, points=late)
    page = own_page(load_runs(tmp_path), "runs", axes=["virtual_time"])
    (axes,) = next(part for part in page.parts if isinstance(part, Picture) and part.name[:6] == "curves").figure.axes
    assert axes.get_xlabel() == "virtual time [days]" and axes.lines[0].get_xdata().tolist() == [0, 10]


@pytest.mark.parametrize(
    "metric, declared, best",
    [
        ("mine/gap", None, None),
        ("mine/gap", "lower", "ACE"),
        ("mine/gap", "higher", "FedBuff"),
        ("mine/loss", None, "ACE"),
        ("mine/loss", "higher", "ACE"),
    ],
)
def test_a_method_is_best_by_a_metric_with_a_direction_alone(tmp_path, metric, declared, best):
    """The name of a loss tells its direction; of another metric an observer declares it."""
    points = [(i, 10 * i, float(i), 0.5) for i in range(11)]
    for algorithm, level in (("ace", 1.0), ("fedbuff", 2.0)):
        for seed in range(3):
            values = {metric: [level + 0.01 * seed + 0.1 * (10 - i) for i in range(11)]}
            write_run(
                tmp_path,
                algorithm,
                seed,
                points=points,
                columns=values,
                summary={"better": {metric: declared}} if declared else {},
            )
    page = own_page(load_runs(tmp_path), "own", metric=metric)
    tables = {part.name: part for part in flatten_parts(page.parts) if isinstance(part, Table)}
    values = page.measured.values("best", "iteration").groupby(page.runs["series"]).mean().dropna()
    said = any("no method is called best" in str(note) for note in page.notes)
    assert said == (best is None) and ("best" in tables) == (best is not None) == bool(len(values))
    text = " ".join(part.shown.to_string() for part in tables.values() if part.shown is not None)
    if best is None:
        assert "(highest" not in text and "(lowest" not in text
        return
    lower = best == "ACE"
    assert tables["best"].data["best"].tolist() == [best] and ("(lowest" in text) == lower
    assert values["ACE"] == pytest.approx(1.01 if lower else 2.01)


@pytest.mark.slow
def test_no_block_draws_a_figure_of_series_that_it_does_not_show(tmp_path, monkeypatch):
    """The series that figures leave out are the only ones with the numbers of a block."""
    labels = {"label_0": [4, 1, 2, 0], "label_1": [0, 3, 2, 4], "samples": [4] * 4, "client": [0, 1, 2, 3]}
    clients = labels | {"uploads": [5, 3, 2, 1], "kept": [4, 1, 1, 0], "mean_delay": [1.0, 2.0, 3.0, 9.0]}
    clients |= {"accuracy": [0.5, 0.4, 0.3, 0.2]}
    means = {f"{name}_accuracy": 0.3 for name in ("mean", "worst_tenth", "slow_quarter", "fast_quarter")}
    for beta in (5, 10):
        write_run(tmp_path, "ace", beta=beta, points=curve(0.9))
        own = {"clients": clients, "columns": {"own": [1.0, 2.0, 3.0]}, "summary": {"clients": means, "own": 2.0}}
        write_run(tmp_path, "asgd", beta=beta, points=curve(0.2), **own)
    tried = [
        *(blocks.client_accuracy, blocks.KeptUploads(), blocks.straggler_accuracy),
        *(blocks.Curves("iteration", "own"), blocks.MetricsOfSeries({"own": "own"}, "own", "own", "## Own")),
        *(blocks.MeasureBySetting("delay.beta", (Measure("summary.own"),)), blocks.Curves("bytes")),
    ]
    for shown, names in (
        (1, set()),
        (2, {"clients_heard", "kept_labels", "own_iteration", "own", "against_beta_summary.own"}),
    ):
        monkeypatch.setattr(page_module, "MOST_SERIES", shown)
        page = own_page(load_runs(tmp_path), "runs", ["delay.beta"])
        assert page.series_in_figures == ["ACE", "vanilla ASGD"][:shown]
        pictures = [part for block in tried for part in block(page) if isinstance(part, Picture)]
        assert {part.name for part in pictures} == names | {"clients_split"}
        assert all(part.figure.axes for part in pictures)
    monkeypatch.setattr(page_module, "MOST_SERIES", 1)
    assert main([str(tmp_path), "--out", str(tmp_path / "page")]) == 0
