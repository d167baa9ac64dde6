"""Pages with live runs: a row for each client, and never a mean with simulated runs."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from reports.runs_by_hand import write_run

from asyncfl_bench.reports.assembly import own_page
from asyncfl_bench.reports.blocks import real_clients
from asyncfl_bench.tracking.runs import load_runs

RECORD = """client,cycle,duration,arrived,left,time,why
0,0,2.0,1,0,2.0,
1,0,3.0,0,0,3.0,"killed, again"
0,1,4.0,1,0,6.0,
1,1,5.0,0,0,8.0,upload with 1.5 numbers
0,2,7.0,0,0,13.0,"killed, again"
1,2,1.0,1,0,9.0,
"""
TRACE = pd.DataFrame({"client": [0, 0, 1], "staleness": [0, 3, 1]})


@pytest.mark.slow
def test_clients_of_a_live_run_have_their_delays_staleness_and_losses(tmp_path):
    live = {"choices__live": "processes", "choices__delay": "measured", "delay___target_": "x.Measured", "n_clients": 3}
    told = {"refused": {"upload with 1.5 numbers": 1}, "lost": {"killed, again": 2}, "left": []}
    same = {"identity": "12345678", "same_bits": True, "difference": "", "arrivals": 3, "points": 2, "remark": ""}
    same |= {"uploads": "computed"}
    other = same | {"same_bits": False, "difference": "arrival 2, time: 6 live, 7 replayed", "remark": "torch 9 there"}
    for seed, noted in enumerate(({"replayed": same}, {"replayed": other}, {})):
        points = [(0, 0, 0, 0.1), (9, 9, 9, 0.5 + seed / 10)]
        run = write_run(tmp_path, seed=seed, points=points, summary={"live": told, **noted}, **live)
        (run / "arrivals.csv").write_text(RECORD)
        TRACE.to_parquet(run / "trace.parquet")
    write_run(tmp_path, seed=0, n_clients=3, choices__delay="recorded", delay___target_="x.Recorded")
    page = own_page(load_runs(tmp_path), "runs")
    values = page.tables["measured"].set_index("delay")
    assert values["final"].round(6).to_dict() == {"measured": 60, "recorded": 50}  # seeds are averaged, kinds are not
    rows = page.tables["real_clients"]
    names = ["client", "uploads", "delay_median", "delay_90", "staleness", "lost", "refused"]
    found = rows.loc[rows["seed"] == 0, names]
    assert found.iloc[:2].values.tolist() == [[0, 2, 3, 3.8, 1.5, 1, 0], [1, 1, 1, 1, 1, 1, 1]]
    assert found.iloc[2].fillna(-1).tolist() == [2, 0, -1, -1, -1, 0, 0]
    said = page.parts[page.parts.index("## Real and replayed") + 3].splitlines()
    assert said == [
        "- ACE, delay = measured, seed 0: the replay has the same bits "
        "(model, 3 arrivals, 2 evaluations; uploads computed)",
        "- ACE, delay = measured, seed 1: the replay differs: arrival 2, time: 6 live, 7 replayed (torch 9 there)",
        "- ACE, delay = measured, seed 2: not replayed; `afl-run --replay DIR` repeats it in the simulator",
    ]
    for damage in ("client\n0\n", RECORD.replace("5.0", "x"), RECORD[:-10], ""):
        (run / "arrivals.csv").write_text(damage)
        _, _, table, lines = real_clients(page)
        assert sorted(table.data["seed"].unique()) == [0, 1] and lines.splitlines()[:2] == said[:2]
        reason = r"left out; its arrivals.csv or trace.parquet cannot be read \(.+\)"
        assert re.fullmatch(rf"- ACE, delay = measured, seed 2: {reason}", lines.splitlines()[2]), lines
