"""Pages in a browser: what is in the file, and what Chromium makes of it from disk without a network."""

import base64
import csv
import gzip
import itertools
import json
import re
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from reports.chromium import Chromium, missing

from asyncfl_bench.analysis.evaluations import mean_curve
from asyncfl_bench.reports.browser import chart, html
from asyncfl_bench.reports.browser.chart import ChartData, chart_numbers
from asyncfl_bench.reports.browser.html import chart_data, write_document
from asyncfl_bench.reports.pages.style import styles
from asyncfl_bench.reports.pages.write import More, Table

for package in ("altair", "vl_convert"):
    pytest.importorskip(package, reason="needs the extra html")

SERIES, PANELS, SEEDS = ("ACE", "FedBuff", "vanilla ASGD"), ("β = 5", "β = 30"), (0, 1, 2, 3)


def points() -> pd.DataFrame:
    """Runs whose uploads and times of evaluation differ from seed to seed, and one published curve."""
    random, rows = np.random.default_rng(0), []
    for panel in PANELS:
        for place, series in enumerate(SERIES):
            for seed in SEEDS:
                uploads = np.cumsum(random.integers(5, 30, 11)) - 5
                for step in range(11):
                    share = (0.9 - 0.2 * place) * step / (step + 2) + 0.02 * random.random()
                    rows.append(
                        {"panel": panel, "series": series, "seed": seed, "run": f"runs/of/{panel[-1]}/{series}-{seed}"}
                        | {"iteration": 10 * step, "uploads": uploads[step], "virtual_time": 1.7 * uploads[step]}
                        | {"test/accuracy": share, "test/loss": 2 - share, "train/loss": 1.5 if step else np.nan}
                    )
    published = {"panel": PANELS[0], "series": "ACE", "virtual_time": [0.0, 100.0], "test/accuracy": [0.1, 0.8]}
    return pd.concat([pd.DataFrame(rows), pd.DataFrame(published)], ignore_index=True)


def shown(**more) -> ChartData:
    settings = {(panel, series): {"delay.beta": panel[4:]} for panel in PANELS for series in SERIES}
    return ChartData(points(), styles(SERIES), settings, units=["ticks"], **more)


def parts() -> list:
    scores = pd.DataFrame(
        {
            "algorithm": ["ACE", "FedBuff", "vanilla ASGD", "budget"],
            "accuracy": ["9.50 ± 0.10 (highest)", "88.10 ± 1.00", "-", "all"],
            "steps": [500, 20, 100, 7],
            "verdict": ["**holds**", "**not run**", "**fails**", ""],
        }
    )
    origin = "```sh\nafl-report x\n```\n\n- a `b`\n- c"
    return ["What this **is**.", "## Scores", Table("scores", scores, scores), origin]


def unpacked(text: str, name: str) -> str:
    packed = re.search(f'<script type="text/plain" id="{name}">(.*?)</script>', text, re.S)[1]
    return gzip.decompress(base64.b64decode(packed)).decode()


# ---- the file, without the library, which takes seconds to bundle ---------------------------------------------------


@pytest.fixture
def without_library(monkeypatch):
    monkeypatch.setattr(html, "_library", lambda: "")


@pytest.fixture
def document(without_library, tmp_path):
    write_document("Figure 2: <rules> & delays", parts(), shown(), tmp_path / "page.html")
    return tmp_path / "page.html"


def test_file_names_nothing_to_load(document):
    text = document.read_text()
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?\s*(?!data:|#)[a-z/]""", text)
    assert "@import" not in text and "url(" not in text
    assert "default-src 'none'" in text and "connect-src" not in text  # so that even a mistake loads nothing


@pytest.mark.slow
def test_same_runs_give_the_same_bytes(document, tmp_path):
    write_document("Figure 2: <rules> & delays", parts(), shown(), tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == document.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.html", "page.html"]


def test_numbers_are_those_of_the_runs(document):
    data = json.loads(unpacked(document.read_text(), "data"))
    assert [key for key, _ in data["axes"]] == ["iteration", "uploads", "virtual_time"]
    assert dict(data["axes"])["virtual_time"] == "virtual time [ticks]"
    assert data["metrics"][0] == ["test/accuracy", "test accuracy [%]"]
    assert [key for key, _ in data["metrics"]] == ["test/accuracy", "test/loss", "train/loss"]
    assert data["panels"] == list(PANELS)
    assert [one["name"] for one in data["series"]] == ["ACE", "ACE, published", "FedBuff", "vanilla ASGD"]
    line = data["lines"][2]
    assert (line["panel"], line["series"], line["settings"]) == (0, 2, {"delay.beta": "5"})
    own = points().query("panel == 'β = 5' and series == 'FedBuff' and seed == 1")
    run = next(run for run in line["runs"] if run["seed"] == "1")
    assert run["run"] == own["run"].iloc[0]
    assert run["test/accuracy"] == pytest.approx((100 * own["test/accuracy"]).tolist(), rel=1e-4)
    assert run["test/loss"] == pytest.approx(own["test/loss"].tolist(), rel=1e-4)
    assert run["train/loss"][0] is None
    assert run["virtual_time"] == pytest.approx(own["virtual_time"].tolist(), rel=1e-8)


def test_published_curve_has_the_colour_of_its_series_and_no_runs_of_ours(document):
    data = json.loads(unpacked(document.read_text(), "data"))
    ours, theirs = data["series"][:2]
    assert ours["colour"] == theirs["colour"] and ours["dash"] != theirs["dash"]
    line = next(line for line in data["lines"] if line["series"] == 1)
    assert line["published"] and line["runs"][0]["test/accuracy"] == [10, 80] and "iteration" not in line["runs"][0]
    assert not any(line["published"] for line in data["lines"] if line["series"] != 1)


def test_words_of_the_runs_are_text_and_never_markup(without_library, tmp_path):
    evil = '</script><img src=x onerror="alert(1)">'
    frame = points().replace({"series": {"ACE": evil}})
    table = pd.DataFrame({evil: [evil, "[x](javascript:alert(1))"]})
    write_document(
        evil, [evil, Table("t", table, table)], ChartData(frame, styles([evil, *SERIES])), tmp_path / "a.html"
    )
    text = (tmp_path / "a.html").read_text()
    assert "<img src=x" not in text and 'href="javascript' not in text
    assert evil in [one["name"] for one in json.loads(unpacked(text, "data"))["series"]]


def test_prose_becomes_markup(document):
    text = document.read_text()
    assert "<p>What this <strong>is</strong>.</p>" in text
    assert '<pre><code class="language-sh">afl-report x\n</code></pre>' in text
    assert "<ul>\n<li>a <code>b</code></li>\n<li>c</li>\n</ul>" in text
    assert "<title>Figure 2: &lt;rules&gt; &amp; delays</title>" in text


def test_table_knows_numbers_verdicts_and_what_is_missing(document):
    text = document.read_text()
    assert re.findall(r"<th scope=col aria-sort=none( class=number)?>", text) == ["", *2 * [" class=number"], ""]
    assert '<span class="verdict not-run">not run</span>' in text
    assert "<td class=number>-</td>" in text and "<td class=number>500</td>" in text


def test_numbers_have_a_minus_sign_and_one_format_down_a_column():
    table = pd.DataFrame(
        {"difference": [-1.0, 2.345], "interval": ["[-3.82, 8.49]", "[-1.00, -0.50]"], "run": ["a-1", "b-2"]}
    )
    found = re.findall(r"<td.*?>(.*?)</td>", html._table_html("t", table))
    assert found == ["−1.00", "[−3.82, 8.49]", "a-1", "2.35", "[−1.00, −0.50]", "b-2"]


def test_the_chart_comes_after_the_first_parts_and_the_rest_is_folded(without_library, tmp_path):
    table = pd.DataFrame({"method": ["ACE"], "verdict": ["**holds (preliminary)**"]})
    more = More({"Costs": [Table("cost", table, table)], "Pairs": [Table("pairs", None, table)]})
    parts = ["What.", "## Verdicts", Table("claims", table, table), None, more, "## Runs"]
    write_document("x", parts, shown(), tmp_path / "a.html", chart_at=3)
    text = (tmp_path / "a.html").read_text()
    places = [text.index(one) for one in ('id="table-claims"', 'id="chart"', "<summary>Costs<", 'id="table-cost"')]
    assert places == sorted(places) and text.index("<p>What.</p>") < places[0] and 'id="table-pairs"' in text
    assert text.count("<details>") == 2 and '<span class="verdict holds indication">holds (preliminary)</span>' in text


@pytest.mark.slow
def test_large_pages_leave_out_the_last_metrics_and_then_points(monkeypatch):
    wide = shown()
    for number in range(20):
        wide.points[f"diagnostic/{number:02}"] = 1.0
    assert len(chart_numbers(wide)["metrics"]) == 23 and not chart_numbers(wide)["left_out"]
    monkeypatch.setattr(chart, "MOST", 12 * len(wide.points))
    fewer = chart_numbers(wide)
    assert [key for key, _ in fewer["metrics"]][:3] == ["test/accuracy", "test/loss", "train/loss"]
    assert len(fewer["metrics"]) == 9 and len(fewer["left_out"]) == 14
    monkeypatch.setattr(chart, "MOST", 100)
    many = pd.concat([points().assign(iteration=points()["iteration"] + 200 * i) for i in range(5)])
    long = ChartData(many, styles(SERIES))
    runs = [run for line in chart_numbers(long)["lines"] if not line["published"] for run in line["runs"]]
    assert all(len(run["iteration"]) == 20 and (run["iteration"][0], run["iteration"][-1]) == (0, 900) for run in runs)


def test_no_number_is_null(without_library, tmp_path):
    frame = points()
    frame.loc[3, "test/loss"] = np.inf
    write_document("x", [], ChartData(frame, styles(SERIES)), tmp_path / "a.html")
    text = unpacked((tmp_path / "a.html").read_text(), "data")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_page_without_a_curve_still_has_its_tables(without_library, tmp_path):
    nothing = points().iloc[:0]
    write_document("x", parts(), ChartData(nothing, {}), tmp_path / "a.html")
    assert 'id="table-scores"' in (tmp_path / "a.html").read_text()


def test_page_of_a_paper_becomes_what_is_shown():
    frame = points().dropna(subset=["run"])
    runs = frame.drop_duplicates("run").set_index("run")[["panel", "series", "seed"]].rename(columns={"panel": "cell"})
    runs = runs.assign(**{"delay.beta": [float(cell[4:]) for cell in runs["cell"]], "client.lr": 0.1, "clock": "ticks"})
    page = SimpleNamespace(
        runs=runs,
        units=["ticks"] * len(runs),
        points=frame.drop(columns=["panel", "series", "seed"]),
        cells=pd.DataFrame({"delay.beta": [5.0, 30.0]}, index=pd.Index(PANELS, name="cell")),
        series=list(SERIES),
        series_in_figures=["ACE"],
        styles=styles(SERIES),
        metric="test/loss",
        spec=SimpleNamespace(published=None, blocks=(len, SimpleNamespace(axis="virtual_time"))),
    )
    found = chart_data(page)
    assert list(found.points["panel"].unique()) == list(PANELS)
    assert len(found.points) == len(frame)
    assert found.settings[("β = 30", "ACE")] == {"delay.beta": "30.0"}
    data = chart_numbers(found)
    assert data["metrics"][0] == ["test/loss", "test loss"] and data["first"] == ["ACE"]
    assert data["axis"] == "virtual_time"
    assert dict(data["axes"])["virtual_time"] == "virtual time [ticks]"  # a clock that ticks has no seconds


# ---- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same document with its library."""
    target = tmp_path_factory.mktemp("page") / "page.html"
    write_document("Figure 2: <rules> & delays", parts(), shown(), target)
    return target


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if reason := missing():
        pytest.skip(f"pages are not tried in a browser: {reason}")
    with Chromium(tmp_path_factory.mktemp("browser")) as chromium:
        yield chromium


@pytest.fixture
def page(browser, whole):
    browser.open(whole)
    until(browser, "return document.body.dataset.drawn")
    return browser


def until(browser: Chromium, script: str):
    """What ``script`` returns, as soon as that is something."""
    for _ in range(200):
        if found := browser.run(script):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{script}: {browser.run('return document.getElementById(`trouble`).textContent')}")


def choose(browser: Chromium, **choices: object) -> None:
    """Sets controls of the page and waits for the chart."""
    drawn = browser.run("return document.body.dataset.drawn")
    for name, value in choices.items():
        way = "one.checked = arguments[1]" if isinstance(value, bool) else "one.value = arguments[1]"
        change = f"const one = document.getElementById(arguments[0]); {way}; one.dispatchEvent(new Event('change'))"
        browser.run(change, name, value)
    wanted = int(drawn) + len(choices)
    until(browser, f"return Number(document.body.dataset.drawn) === {wanted}")


def means(browser: Chromium) -> list[str]:
    """The lines of the means as drawn: colour, opacity, path."""
    return browser.run(
        "const lines = [...document.querySelectorAll('#chart .mark-line path[stroke-width=\"2\"]')];"
        "return lines.map((p) => ['stroke', 'opacity', 'd'].map((name) => p.getAttribute(name) ?? '1').join(' '))"
    )


def column(browser: Chromium, place: int) -> list[str]:
    """A column of the table of scores, from top to bottom."""
    rows = "[...document.querySelectorAll('#table-scores tbody tr')]"
    return browser.run(f"return {rows}.map((row) => row.cells[arguments[0]].textContent)", place)


@pytest.mark.slow
@pytest.mark.process
class TestInChromium:
    def test_draws_from_disk_and_asks_no_network(self, page, whole):
        assert len(means(page)) == 2 * 3  # panels x series; the published curve has no iterations
        assert page.run("return document.querySelectorAll('#chart .mark-area path').length") == 6
        assert page.requests() == [whole.as_uri()]
        assert page.complaints() == []
        assert whole.stat().st_size < 600_000

    def test_means_are_those_of_every_other_page(self, page):
        ask = (
            "return data.lines.filter((line) => !line.published).map((line) => [data.panels[line.panel],"
            " data.series[line.series].name, mean(line, ...arguments)])"
        )
        kinds = itertools.product(
            ("iteration", "uploads", "virtual_time"), ("test/accuracy", "train/loss"), (False, True)
        )
        for axis, metric, logarithmic in kinds:
            lines = page.run(ask, axis, metric, logarithmic)
            assert len(lines) == 6
            for panel, series, found in lines:
                own = points().query("panel == @panel and series == @series")
                curve = mean_curve(own, axis, metric, logarithmic)
                assert found["seeds"] == len(SEEDS) and len(found["x"]) == len(curve)
                for column in ("x", "mean", "low", "high"):
                    assert found[column] == pytest.approx(curve[column].tolist(), rel=1e-4), (
                        axis,
                        metric,
                        panel,
                        series,
                    )

    def test_axis_metric_part_and_panel_change_what_is_drawn(self, page):
        seen = [means(page)]
        for choice in ({"axis": "uploads"}, {"metric": "test/loss"}, {"part": "late"}, {"scale": "own"}, {"log": True}):
            choose(page, **choice)
            assert means(page) != seen[-1] and len(means(page)) == 6, choice
            seen.append(means(page))
        titles = "return [...document.querySelectorAll('#chart .role-axis-title text')].map((one) => one.textContent)"
        assert {"uploads", "test loss"} <= set(page.run(titles))
        choose(page, panel="1")
        assert len(means(page)) == 3
        assert page.run("return document.getElementById('caption').textContent") == "test loss over uploads, β = 30"

    def test_published_curve_is_there_over_time(self, page):
        choose(page, axis="virtual_time")
        assert len(means(page)) == 7

    def test_every_run_can_be_seen(self, page):
        choose(page, each=True)
        assert page.run("return document.querySelectorAll('#chart .mark-line path').length") == 6 + 6 * len(SEEDS)

    def test_legend_isolates_by_click_and_by_key(self, page):
        def faint() -> list[str]:
            return [line.split()[0] for line in means(page) if line.split()[1] != "1"]

        assert faint() == []
        page.run("document.querySelector('#legend button[value=FedBuff]').click()")
        assert len(faint()) == 4 and styles(SERIES)["FedBuff"].colour not in faint()
        pressed = "return [...document.querySelectorAll('#legend [aria-pressed=true]')].map((one) => one.value)"
        assert page.run(pressed) == ["FedBuff"]
        page.run("document.querySelector('#legend button[value=ACE]').focus()")
        page.press("Enter")
        assert page.run(pressed) == ["ACE", "FedBuff"] and len(faint()) == 2
        page.run("document.querySelector('#legend .all').click()")
        assert page.run(pressed) == [] and faint() == []

    def test_hover_tells_mean_interval_seeds_settings_and_directories(self, page):
        mark = page.run(
            "const box = document.querySelector('#chart .mark-line path').getBoundingClientRect();"
            "return [Math.round(box.right), Math.round(box.top)]"
        )
        page.point(*mark)
        text = until(page, "return !document.getElementById('tip').hidden && document.getElementById('tip').innerText")
        own = points().query("panel == 'β = 5' and series == 'ACE' and iteration == 100")["test/accuracy"] * 100
        half = 3.182446 * own.std() / 2
        assert f"{own.mean():.2f} at 100 server iterations" in text
        assert f"{own.mean() - half:.2f} to {own.mean() + half:.2f}" in text
        assert re.search(r"seeds\s+4\b", text) and re.search(r"delay\.beta\s+5\b", text)
        assert "runs/of/5/" in text and "seed 3: ACE-3" in text

    def test_everything_is_reached_and_read_by_keyboard(self, page):
        page.run("document.body.focus(); document.activeElement.blur()")
        reached = []
        for _ in range(24):
            page.press("Tab")
            reached.append(page.run("const e = document.activeElement; return e.id || e.value || e.textContent"))
        for wanted in ("panel", "axis", "metric", "log", "each", "csv", "svg", "ACE", "FedBuff", "chart", "algorithm"):
            assert wanted in reached
        page.run("document.getElementById('chart').focus()")
        page.press("ArrowRight", "End")
        tip = "return document.getElementById('tip').innerText"
        assert until(page, tip).startswith("ACE")
        page.press("ArrowDown")
        assert until(page, tip + ".startsWith('FedBuff')")
        page.press("PageDown")
        assert until(page, tip + ".includes('β = 30')")
        assert page.run("return document.querySelectorAll('#chart [class*=cursor_marks] path').length") == 1
        page.press("Escape")
        assert page.run("return document.getElementById('tip').hidden")
        assert page.run("return getComputedStyle(document.getElementById('chart')).outlineStyle") == "solid"  # is seen

    def test_tables_sort_by_number_and_by_word(self, page):
        click = "document.querySelectorAll('#table-scores th button')[arguments[0]].click()"
        page.run(click, 2)
        assert column(page, 2) == ["7", "20", "100", "500"]
        page.run(click, 2)
        assert column(page, 2) == ["500", "100", "20", "7"]
        page.run(click, 1)  # what is no number comes after numbers, what is missing last
        assert column(page, 1) == ["9.50 ± 0.10 (highest)", "88.10 ± 1.00", "all", "-"]
        sorted_by = "return document.querySelector('#table-scores th:not([aria-sort=none])')"
        assert page.run(f"{sorted_by}.textContent") == "accuracy"
        assert page.run(f"{sorted_by}.getAttribute('aria-sort')") == "ascending"
        page.run("document.querySelectorAll('#table-scores th button')[0].focus()")
        page.press("Enter")
        assert column(page, 0) == ["ACE", "budget", "FedBuff", "vanilla ASGD"]

    def test_curves_and_tables_are_downloaded(self, page):
        page.run("document.querySelector('#legend button[value=ACE]').click()")
        page.run("for (const id of ['csv', 'svg']) document.getElementById(id).click()")
        page.run("document.querySelector('[data-table=scores]').click()")
        names = ["test_accuracy_iteration.csv", "test_accuracy_iteration.svg", "scores.csv"]
        found = downloaded(page, names)
        rows = list(csv.DictReader(found[names[0]].splitlines()))
        assert {row["series"] for row in rows} == {"ACE"} and len(rows) == 2 * 11
        own = points().query("series == 'ACE' and panel == 'β = 5' and iteration == 50")["test/accuracy"]
        assert float(rows[5]["test/accuracy"]) == pytest.approx(100 * own.mean(), rel=1e-4) and rows[5]["seeds"] == "4"
        assert found[names[1]].startswith("<svg") and "role-legend" in found[names[1]] and "β = 30" in found[names[1]]
        assert found[names[2]].splitlines()[1] == "ACE,9.50 ± 0.10 (highest),500,holds"

    def test_choices_are_kept_in_the_address(self, browser, whole):
        browser.open(whole, "#axis=uploads&metric=test%2Floss&panel=1&only=FedBuff&each=1")
        until(browser, "return document.body.dataset.drawn")
        assert browser.run("return document.getElementById('caption').textContent") == "test loss over uploads, β = 30"
        assert browser.run("return document.querySelector('#legend [aria-pressed=true]').value") == "FedBuff"
        assert browser.run("return document.getElementById('each').checked")

    def test_page_that_follows_its_runs_loads_itself_again_as_it_was(self, browser, tmp_path):
        target = tmp_path / "page.html"
        # seconds enough for the choice also on a busy machine: a page that loads itself in the midst of it counts anew
        write_document("before", parts(), shown(), target, refresh=4)
        browser.open(target)
        until(browser, "return document.body.dataset.drawn")
        choose(browser, axis="uploads")
        browser.run("scrollTo(0, 100)")
        write_document("after", parts(), shown(), target, refresh=4)
        until(browser, "return document.title === 'after' && document.body.dataset.drawn && scrollY === 100")
        assert browser.run("return document.getElementById('axis').value") == "uploads"

    def test_prints(self, page):
        assert page.printed().startswith(b"%PDF")

    def test_fits_a_narrow_window(self, page):
        page.size(390, 900)
        try:
            until(page, "return document.body.dataset.drawn !== '1'")
            assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
        finally:
            page.size(1280, 1000)


def downloaded(browser: Chromium, names: list[str]) -> dict[str, str]:
    """Name -> content of these files, as soon as they are all there."""
    for _ in range(200):
        if all((browser.downloads / name).exists() for name in names):
            return {name: (browser.downloads / name).read_text() for name in names}
        time.sleep(0.05)
    raise AssertionError(f"only {sorted(path.name for path in browser.downloads.glob('*'))} of {names}")
