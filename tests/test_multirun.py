"""What a multirun says of itself: before, while it runs, and to a shell that completes its words."""

import json
import os
import re

import pytest

from asyncfl_bench.multirun.jobs import plan
from asyncfl_bench.multirun.lines import Lines
from asyncfl_bench.multirun.outlook import outlook

GRID = ["algorithm=ace,asgd", "seed=0,1", "scale=smoke", "model=softmax"]


def leave(job, **summary):
    """The summary that a run leaves."""
    job.settings.directory.mkdir(parents=True, exist_ok=True)
    settings = job.settings
    known = {"identity": settings.identity, "results_version": 3, "name": settings.name, "stopped_by": "uploads"}
    measured = {"final": {"test/accuracy": 0.5}, "best": {"test/accuracy": 0.75}, "used": {"server_iterations": 7}}
    content = known | measured | {"exit_status": "ok", "error": None, "wall_seconds": 2.0} | summary
    path = job.settings.directory / "summary.json"
    path.write_text(json.dumps(content))
    os.utime(path, ns=(1, len(content) + job.settings.root.seed))


def test_each_run_has_one_line_with_its_number_what_tells_it_apart_and_the_time_left(capsys):
    jobs, now = plan(GRID), [0.0]
    leave(jobs[0], exit_status="failed", error="an earlier attempt")
    lines = Lines(jobs, jobs, clock=lambda: now[0])
    lines.look()
    assert capsys.readouterr().out == ""
    now[0] = 10.0
    leave(jobs[0], extra=1)
    lines.look()
    lines.look()
    leave(jobs[1], exit_status="diverged", error="not finite, here")
    now[0] = 20.0
    lines.look()
    leave(jobs[2], exit_status="interrupted")
    jobs[3].error = "failed: no data"
    lines.look([jobs[3]])
    assert capsys.readouterr().out.splitlines() == [
        "[1/4] seed=0 algorithm=ace: 50.0 % (best 75.0 %), 2.0 s; 0:00:30 left",
        "[2/4] seed=0 algorithm=asgd: diverged: not finite; 0:00:20 left",
        "[3/4] seed=1 algorithm=ace: interrupted after 7 server iterations; 0:00:07 left",
        "[4/4] seed=1 algorithm=asgd: failed: no data; 0:00:20 in all",
    ]


def test_runs_in_other_processes_are_noticed_while_the_launcher_waits(capsys, monkeypatch):
    monkeypatch.setattr("asyncfl_bench.multirun.lines._SECONDS_BETWEEN_LOOKS", 0.001)
    jobs = plan(GRID)
    lines = Lines(jobs, jobs[2:])
    with lines.watching():
        leave(jobs[3])
        while not (out := capsys.readouterr().out):
            pass
        leave(jobs[2])
    assert out.startswith("[3/4] seed=1 algorithm=asgd: ")
    assert capsys.readouterr().out.startswith("[4/4] seed=1 algorithm=ace: ")


def test_a_plan_counts_what_is_finished_and_takes_times_from_runs_alike():
    jobs = plan([*GRID, "seed=0,1,2"])
    leave(jobs[0], wall_seconds=10)  # ace with seed 0
    text = outlook(jobs, {})
    assert text.startswith("6 runs, 1 of them finished (0 in archives), 5 pending\n")
    assert "\n  seed: 0,1,2\n  algorithm: ace,asgd\n" in text
    assert "time: about 0:00:20, one run after another" in text and "without 3 runs whose like is not there" in text
    leave(jobs[1])
    text = outlook(jobs, {})
    assert "time: about 0:00:24, one run after another" in text and "without" not in text
    assert re.search(r"disk: about [\d.]+ KiB, as finished runs took; [\d.]+ GiB are free in ", text)


def test_a_plan_is_shown_and_nothing_is_run(tmp_path, afl_run):
    answer = afl_run("-m", *GRID, "--plan")
    assert answer.returncode == 0, answer.stderr
    assert "4 runs, 0 of them finished (0 in archives), 4 pending" in answer.stdout
    assert "time: unknown" in answer.stdout and not (tmp_path / "runs").exists()
    one = afl_run("--plan", "scale=smoke")
    assert one.stdout.startswith("1 runs, 0 of them finished")
    assert afl_run("--plan", "-m", "algorithm=ace,aec").returncode == 2


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("afl-run sweep=ace/fig", "sweep=ace/figure2", "sweep=ace/table1"),
        ("afl-run --plan sweep=", "sweep=quickstart/six_algorithms", ""),
        ("afl-run paper=async", "paper=asyncfeded/synthetic", "paper=ace"),
        ("afl-run swe", "sweep=", ""),
        ("afl-run delay=exp_beta", "delay=exp_beta30", "delay=none"),
        ("afl-run --config-dir parts algorithm=m", "algorithm=mine", "algorithm=ace"),
        ("afl-run algorithm=aced algorithm.tau", "algorithm.tau_algo=", ""),
    ],
)
def test_the_shell_completes_choices(line, offered, not_offered, tmp_path, monkeypatch, afl_run):
    (tmp_path / "parts/algorithm").mkdir(parents=True)
    (tmp_path / "parts/algorithm/mine.yaml").write_text("# mine\n_target_: mine.Mine\n")
    monkeypatch.setenv("COMP_LINE", line)
    words = afl_run("-sc", "query=bash").stdout.split()
    assert offered in words and not_offered not in words
