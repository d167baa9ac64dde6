"""What figures show, read from their axes; names, colours and files."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from asyncfl_bench.analysis import names
from asyncfl_bench.errors import BenchError
from asyncfl_bench.reports.blocks.figures import Forest, Line, Panel, forest_limits, forest_panels, line_panels
from asyncfl_bench.reports.blocks.maps import HeatMap, heat_maps, label_maps
from asyncfl_bench.reports.pages import style
from asyncfl_bench.reports.pages.style import Style
from asyncfl_bench.reports.pages.write import Picture, Table, draw_picture, latex_table, markdown_table, write_parts

LOOK = Style("#0072B2", "o")


def line(label: str, values: list[float], band: float = 0.0, **more) -> Line:
    y = np.array(values, dtype=float)
    return Line(label, LOOK, np.arange(len(y), dtype=float), y, y - band, y + band, **more)


def test_panels_without_a_point_are_left_out_and_the_legend_names_each_line_once():
    panels = [
        Panel("one", [line("ACE", [1, 2]), line("gone", [])]),
        Panel("two", []),
        Panel("three", [line("ACE", [2, 3])]),
    ]
    figure = line_panels(panels, "uploads", "accuracy [%]")
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == ["one", "three"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ACE"]


def test_published_lines_are_dotted_and_in_the_legend():
    theirs = line("ACE, published", [1, 2], dotted=True)
    figure = line_panels([Panel("", [line("ACE", [1, 2]), theirs])], "uploads", "accuracy [%]")
    assert [handle.get_linestyle() for handle in figure.legends[0].get_lines()] == ["-", ":"]
    assert len(figure.legends[0].get_texts()) == 2


def test_a_long_line_is_faint_below_the_means_of_its_points():
    noisy, short = line("noisy", [0, 100] * 240), line("short", range(300))
    figure = line_panels([Panel("", [noisy, short])], "", "")
    faint, means, other = figure.axes[0].lines
    assert figure.legends[0].get_title().get_text() == "thick: means of consecutive evaluations"
    assert faint.get_ydata().tolist() == [0, 100] * 240 and faint.get_alpha() < 0.5
    assert len(means.get_ydata()) == 60 and set(means.get_ydata()) == {50} and means.get_marker() == LOOK.marker
    assert means.get_xdata()[:2].tolist() == [3.5, 11.5] and len(other.get_ydata()) == 300


def test_no_axis_and_no_band_goes_beyond_100_percent():
    figure = line_panels([Panel("", [line("ACE", [20, 99.5, 99.9], band=3)], top=100.0)], "uploads", "accuracy [%]")
    (axes,) = figure.axes
    assert axes.get_ylim()[1] <= 101 and axes.collections[0].get_paths()[0].vertices[:, 1].max() == 100


def test_the_axis_shows_the_top_where_all_late_differences_are_there():
    fast = [Panel("", [line("a", [10, *[97.0] * 30]), line("b", [10, *[96.0] * 30])], top=100.0)]
    low, high = line_panels(fast, "uploads", "accuracy [%]").axes[0].get_ylim()
    assert 90 < low <= 96 and 97 <= high <= 100
    slow = [Panel("", [line("a", [10, *range(11, 41)]), line("b", [10, *[90.0] * 30])], top=100.0)]
    assert line_panels(slow, "uploads", "accuracy [%]").axes[0].get_ylim()[0] < 11


def test_an_axis_does_not_make_much_of_noise():
    low, high = line_panels([Panel("", [line("a", [50.0, 50.1])], top=100.0)], "", "").axes[0].get_ylim()
    assert high - low == pytest.approx(5, abs=0.5)


def test_lines_that_end_far_apart_get_a_logarithmic_axis():
    far = Line("b", LOOK, np.array([1.0, 2000.0]), np.array([1.0, 2.0]))
    figure = line_panels([Panel("", [line("a", [1, 2, 3]), far])], "uploads", "y")
    assert figure.axes[0].get_xscale() == "log" and figure.axes[0].get_xlabel() == "uploads (log scale)"


@pytest.mark.parametrize("last", [900, 5000, 20000, 90000])
def test_labels_of_a_logarithmic_axis_do_not_run_into_each_other(last):
    x = np.linspace(250, last, 20)
    figure = line_panels([Panel("", [Line("a", LOOK, x, x, None, None)])] * 2, "uploads", "", x_log=True)
    figure.draw_without_rendering()
    axes, (low, high) = figure.axes[0], figure.axes[0].get_xlim()
    texts = [text for text in axes.xaxis.get_ticklabels(which="both") if text.get_text()]
    texts = [text for text in texts if low <= text.get_position()[0] <= high]
    boxes = sorted(text.get_window_extent().extents[[0, 2]].tolist() for text in texts)
    assert len(boxes) > 1
    assert all(right < left for (_, right), (left, _) in itertools.pairwise(boxes))


def test_heat_maps_share_one_scale_and_leave_empty_ones_out():
    known, empty = np.array([[10.0, 20.0]]), np.full((1, 2), np.nan)
    maps = [HeatMap("a", known, known / 10), HeatMap("b", empty, empty), HeatMap("c", known + 30, empty)]
    figure = heat_maps(maps, ["r"], ["1", "2"], "α", "β", "accuracy [%]")
    images = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in images] == ["a", "c"]
    assert {image.get_clim() for axes in images for image in axes.images} == {(10.0, 50.0)}
    assert [text.get_text() for text in images[0].texts] == ["10.0\n±1.0", "20.0\n±2.0"]


def test_numbers_of_a_heat_map_have_the_decimals_that_are_asked_for():
    tiers = np.array([[1.0, 2.0]])
    figure = heat_maps([HeatMap("", tiers, np.full((1, 2), np.nan))], ["r"], ["1", "2"], "", "", "tier", decimals=0)
    assert [text.get_text() for text in figure.axes[0].texts] == ["1", "2"]


def test_no_scale_of_a_heat_map_goes_beyond_100_percent():
    known = np.array([[99.0, 99.5]])
    figure = heat_maps([HeatMap("", known, known)], ["r"], ["1", "2"], "α", "β", "accuracy [%]", top=100.0)
    assert figure.axes[0].images[0].get_clim() == (95.0, 100.0)


def test_an_algorithm_keeps_its_style_and_an_unknown_one_gets_one_by_its_name():
    alone, together = style.styles(["ACE", "mine"]), style.styles(["ACE", "FedBuff", "mine", "yours"])
    assert alone["ACE"] == together["ACE"] and alone["mine"] == together["mine"]
    assert len({one.colour for one in together.values()}) == 4


def test_variants_are_a_scale_on_their_own_and_marks_of_one_colour_beside_others():
    own = style.styles([f"ACED, τ_algo = {tau}" for tau in (1, 10, 50)])
    assert len({one.colour for one in own.values()}) == 3
    beside = style.styles(["ACED, τ_algo = 1", "ACED, τ_algo = 10", "ACE"])
    assert len({one.colour for one in beside.values()}) == 2 and len({one.marker for one in beside.values()}) == 3
    added = style.styles(["ACE", "ACE + distillation", "CA2FL", "CA2FL + distillation"])
    assert added["ACE + distillation"].colour == added["ACE"].colour != added["CA2FL"].colour


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_no_two_series_look_alike(count):
    names = ("GAS", "mine", "yours")
    drawn = style.styles([f"{name}, {number} s" for name in names for number in range(count)] + ["ACE"])
    assert len(set(drawn.values())) == 3 * count + 1


def test_series_and_settings_are_ordered_by_number_and_called_as_papers_call_them():
    labels = ["K = 10", "K = 5", "vanilla ASGD", "ACED, τ_algo = 50", "ACED, τ_algo = 5", "ACE", "zeta"]
    order = ["ACE", "ACED, τ_algo = 5", "ACED, τ_algo = 50", "vanilla ASGD", "K = 5", "K = 10", "zeta"]
    assert sorted(labels, key=names.series_order) == order
    assert (
        names.series_label("fedasync", {names.WEIGHT: "hinge", "algorithm.hinge_a": 5.0}) == "FedAsync+Hinge, a = 5.0"
    )
    cell = names.cell_label(
        ["heterogeneity.alpha", "delay", "paper", "algorithm"], [0.1, "exp_beta5", "asyncfeded/femnist", "-"]
    )
    assert cell == "α = 0.1, β = 5, FEMNIST"
    assert names.axis_label("virtual_time", ["seconds", "seconds"]) == "virtual time [s]"
    assert names.axis_label("virtual_time", ["seconds", "ticks"]) == "virtual time [s or ticks]"


def test_a_table_whose_headers_repeat_keeps_every_column_and_symbols_survive_in_latex(tmp_path):
    shown = pd.DataFrame([["my_rule|x", "±1"]], columns=["α [%]", "α [%]"])
    write_parts([Table("twice", shown, shown)], tmp_path, ["tex"])
    assert (tmp_path / "twice.csv").read_text() == "α [%],α [%]\nmy_rule|x,±1\n"
    assert markdown_table(shown).splitlines()[2] == "| my_rule\\|x |    ±1 |"
    assert r"\textbf{ties with a\_b}" in latex_table(pd.DataFrame({"verdict": ["**ties with a_b**"]}))
    assert r"my\_rule|x & $\pm$1 \\" in latex_table(shown) and latex_table(shown).startswith(r"\begin{tabular}{lr}")


@pytest.mark.slow
def test_only_what_a_page_wrote_is_replaced(tmp_path):
    for name in ("notes.md", "photo.png", "table.csv"):
        (tmp_path / name).write_text("mine")
    figure = line_panels([Panel("", [line("a", [1, 2])])], "x", "y")
    write_parts([Picture("a", figure, "a")], tmp_path, ["svg"])
    write_parts([Picture("b", figure, "b")], tmp_path)
    assert (tmp_path / "b.svg").exists() and not (tmp_path / "a.svg").exists()
    write_parts(["# Nothing"], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "notes.md", "photo.png", "table.csv"]


def test_intervals_show_ties_as_a_band_and_open_comparisons_hollow():
    mean, half = np.array([np.nan, -2.0, -0.2]), np.array([np.nan, 3.0, 0.5])
    panel = Forest("α = 0.1", ["a", "b", "c"], mean, mean - half, mean + half, np.array([False, False, True]), best=0)
    figure = forest_panels([panel, panel], style.styles(["a", "b", "c"]), "points", margin=1.0)
    first, second = figure.axes
    assert [text.get_text() for text in first.get_yticklabels()] == ["a", "b", "c"] and first.get_title() == "α = 0.1"
    low, high = first.patches[0].get_x(), first.patches[0].get_x() + first.patches[0].get_width()
    assert (low, high) == (-1, 1)
    marks = [container.lines[0] for container in first.containers]
    assert [mark.get_xdata()[0] for mark in marks] == [0, -2, -0.2]
    assert [mark.get_markerfacecolor() == "white" for mark in marks] == [False, True, False]
    assert first.get_ylim() == second.get_ylim() == (2.6, -0.6)  # the first method is at the top
    arrows = [(mark.get_marker(), *mark.get_xydata()[0]) for mark in first.lines if mark.get_marker() in ("<", ">")]
    assert first.get_xlim() == (-3.2, 1.2) and arrows == [("<", -3.2, 1)]  # b reaches from -5 to 1
    assert not forest_panels([panel], style.styles(["a", "b", "c"]), "s", margin=float("nan")).axes[0].patches


def test_intervals_of_values_need_no_zero_and_shade_every_second_group():
    mean, known, names = np.array([95.0, 96.0, 94.0, 95.0, 10.0]), np.ones(5, bool), [*"rstuv"]
    panel = Forest("digits", names, mean, mean - 1, mean + 1, known, groups=[1, 2, 3, 4, 4])
    (axes,) = forest_panels([panel], style.styles(names), "accuracy [%]", float("nan")).axes
    assert axes.get_xlim() == pytest.approx((92.92, 97.08)) and [one.get_y() for one in axes.patches] == [-0.5, 1.5]
    assert not [line for line in axes.lines if set(line.get_xdata()) == {0}]
    arrows = [(mark.get_marker(), *mark.get_xydata()[0]) for mark in axes.lines if mark.get_marker() in ("<", ">")]
    assert arrows == [("<", pytest.approx(92.92), 4)]  # v is far below the others
    mean[4] = 120.0
    best = Forest("digits", names, mean, mean - 1, mean + 1, known)
    assert forest_limits([best], float("nan"))[1] > 121  # one far above them is shown


def test_long_titles_of_interval_panels_do_not_touch():
    one = np.array([np.nan, -2.0])
    titles = [f"CIFAR-10 with groups, K = 1, momentum = {momentum}" for momentum in (0.0, 0.5, 0.9, 0.99)]
    panels = [Forest(title, ["a", "b"], one, one, one, np.array([False, True]), best=0) for title in titles]
    figure = forest_panels(panels, style.styles(["a", "b"]), "points", margin=1.0)
    figure.draw_without_rendering()
    boxes = [axes.title.get_window_extent() for axes in figure.axes]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    assert figure.axes[0].get_title() == "CIFAR-10 with groups, K = 1,\nmomentum = 0.0"


def test_two_parts_with_one_file_name_are_refused_before_anything_is_removed(tmp_path):
    table = pd.DataFrame({"a": [1]})
    write_parts([Table("same", table, table)], tmp_path)
    with pytest.raises(BenchError, match="two parts of the page are called same; give one of its blocks another name"):
        write_parts([Table("same", table, table), Table("same", None, table)], tmp_path)
    assert (tmp_path / "same.csv").exists()


def test_no_figure_has_no_panel():
    nothing = np.full((1, 2), np.nan)
    assert line_panels([], "x", "y") is line_panels([Panel("", []), Panel("", [line("gone", [])])], "x", "y") is None
    assert forest_panels([], {}, "points", margin=1.0) is None
    assert heat_maps([], [], [], "", "", "") is None
    assert heat_maps([HeatMap("", nothing, nothing)], ["r"], ["1", "2"], "α", "β", "") is None
    assert label_maps({}) is label_maps({"": np.zeros((0, 3))}) is None
    assert draw_picture("a", None, "a") == []
