from __future__ import annotations

import io
import re

import pytest

from asyncfl_bench.tracking.progress_bar import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def run(progress: Progress, clock: Clock, seconds: int, per_second: int = 1) -> None:
    for i in range(1, seconds * per_second + 1):
        clock.now = 100.0 + i / per_second
        progress.update(i, i, i / 1000, 2.0 * i, 50.0)


def test_a_short_run_off_a_terminal_says_nothing():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(9, "ace", stream, clock=clock)
    run(progress, clock, 9)
    progress.close()
    assert stream.getvalue() == ""


def test_a_long_run_off_a_terminal_writes_one_line_each_ten_seconds_and_a_last_one():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(100, "ace digits", stream, clock=clock)
    run(progress, clock, 35, per_second=20)
    progress.close()
    progress.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert "iteration 200," in lines[0] and "iteration 400," in lines[1] and "iteration 700," in lines[3]


def test_a_plain_line_holds_share_accuracy_clock_rate_and_time_left():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(40, "ace digits", stream, clock=clock)
    run(progress, clock, 10)
    # 10 of 40 done in 10 s: 30 s to go
    assert stream.getvalue() == (
        "ace digits: 25 %, iteration 10, accuracy 1.0 %, virtual time 20, 50 updates/s, 0:00:30 left\n"
    )


def test_time_left_of_a_resumed_run_counts_only_its_own_work():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(1000, "ace", stream, done=900, clock=clock)
    clock.now = 120.0  # 20 s for 50 of the last 100
    progress.update(950, 950, None, 1.0, 2.5)
    assert stream.getvalue().endswith("accuracy -, virtual time 1, 2 updates/s, 0:00:20 left\n")


def test_a_run_without_an_end_has_no_share_and_no_time_left():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(None, "ace", stream, clock=clock)
    run(progress, clock, 10)
    assert stream.getvalue().startswith("ace: iteration 10,") and "-:--:-- left" in stream.getvalue()


def test_a_terminal_gets_a_bar_with_the_same_facts(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream, clock = Terminal(), Clock()
    progress = Progress(40, "ace [digits]", stream, clock=clock)
    run(progress, clock, 10)
    progress.close()
    last = stream.getvalue().split("\r")[-1]
    assert "ace [digits]" in last and "25%" in last and "━" in last
    assert "0:00:30  iteration 10  acc 1.0 %  t 20  50/s" in last
    assert stream.getvalue().endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        (80, "0:01:40  iteration 50000  acc 81.2 %  t 1.235e+05  1300/s"),
        (60, "0:01:40  iteration 50000  acc 81.2 %"),
        (40, "0:01:40"),
    ],
)
def test_a_narrow_terminal_keeps_percent_and_time_left_and_gives_up_the_bar(columns, facts, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream, clock = Terminal(), Clock()
    progress = Progress(100_000, "delay_adaptive_asgd-cifar10-s0", stream, clock=clock)
    clock.now = 200.0
    progress.update(50_000, 50_000, 0.8125, 123456.7, 1300)
    progress.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue().split("\r")[-1])
    assert plain.split("\n")[0].rstrip() == f"delay_adaptive…  50% {facts}" and len(plain.split("\n")[0]) <= columns


def test_a_terminal_is_redrawn_at_most_ten_times_a_second(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream, clock = Terminal(), Clock()
    progress = Progress(10_000, "ace", stream, clock=clock)
    before = stream.getvalue().count("iteration")
    run(progress, clock, 2, per_second=1000)
    drawn = stream.getvalue().count("iteration") - before
    assert 10 <= drawn <= 21


def test_a_dumb_terminal_is_treated_as_a_file(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream, clock = Terminal(), Clock()
    progress = Progress(40, "ace", stream, clock=clock)
    run(progress, clock, 10)
    progress.close()
    assert "\x1b" not in stream.getvalue() and stream.getvalue().count("\n") == 1
