"""The picture of time: bars, waiting, server steps and staleness as the trace has them."""

from __future__ import annotations

import pandas as pd
import pytest
from reports.runs_by_hand import write_run

from asyncfl_bench.errors import InputError
from asyncfl_bench.reports.blocks.gantt import timeline_figure
from asyncfl_bench.reports.cli import main

COLUMNS = ("time", "client", "dispatched_iteration", "iteration", "staleness", "delay", "model_changed")
# client 1 waits from 2 to 3; its first work is one step late; iteration 2 follows work that was lost
ROWS = [(1.0, 0, 0, 0, 0, 1.0, True), (2.0, 1, 0, 1, 1, 2.0, False), (4.0, 0, 2, 2, 0, 1.0, True)]
TRACE = pd.DataFrame(ROWS, columns=COLUMNS)


def test_bars_are_the_work_of_clients_and_ticks_the_server_steps():
    left, colours = timeline_figure({"ACE": TRACE}, "virtual time [s]", (0, 5)).axes
    bars = [(bar.get_x(), bar.get_width(), round(bar.get_y() + bar.get_height() / 2)) for bar in left.patches]
    assert bars == [(0, 1, 0), (0, 2, 1), (3, 1, 0)]
    assert [text.get_text() for text in left.get_yticklabels()] == ["steps", "0", "1"]  # the fast client is first
    waiting, steps = left.collections
    assert [path.vertices[:, 0].tolist() for path in waiting.get_paths()] == [[0, 4], [0, 4]]  # to the run's end
    assert [path.vertices[0, 0] for path in steps.get_paths()] == [1, 3, 4]  # 3: the first dispatch of iteration 2
    fresh, late = (tuple(bar.get_facecolor()) for bar in left.patches[:2])
    assert fresh != late and "staleness" in colours.get_ylabel()


@pytest.mark.slow
def test_a_page_shows_the_time_of_runs_with_a_trace_and_names_the_others(tmp_path, capsys):
    TRACE.to_parquet(write_run(tmp_path, "ace", seed=1) / "trace.parquet")
    write_run(tmp_path, "ace", seed=0)
    write_run(tmp_path, "fedbuff", seed=0)
    assert main([str(tmp_path), "--timeline", "--html"]) == 0
    assert "afl-report: FedBuff: no trace.parquet; run again with trace=true\n" in capsys.readouterr().err
    page = (tmp_path / "report" / "README.md").read_text()
    assert page.index("(timeline.png)") < page.index("## Methods against the best one")
    assert "Work of clients over virtual time" in (tmp_path / "report" / "page.html").read_text()


def test_runs_whose_work_takes_no_time_are_refused_unless_others_take_some():
    instant = TRACE.assign(delay=0.0)
    with pytest.raises(InputError, match=r"no work takes virtual time, as under delay=none; leave the option out"):
        timeline_figure({"ACE": instant}, "virtual time [s]")
    assert timeline_figure({"ACE": instant, "FedBuff": TRACE}, "virtual time [s]").axes[0].get_xlim()[1] > 0
