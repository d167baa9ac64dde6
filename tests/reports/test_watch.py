"""Pages that follow a sweep: built at once and after changes, never else."""

import os

import pytest

from asyncfl_bench.errors import BenchError
from asyncfl_bench.reports.browser import watch


@pytest.fixture
def pauses(monkeypatch):
    """The lengths of the pauses; what a test puts into ``meanwhile`` happens in them, then comes Ctrl-C."""
    found = []

    def sleep(seconds):
        found.append(seconds)
        if not meanwhile:
            raise KeyboardInterrupt
        meanwhile.pop(0)()

    meanwhile = []
    monkeypatch.setattr(watch.time, "sleep", sleep)
    return found, meanwhile


def touch(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(len(text), len(text)))


def test_builds_at_once_and_after_every_change_of_a_run_or_archive(pauses, tmp_path, capsys):
    lengths, meanwhile = pauses
    runs, own = tmp_path / "runs", tmp_path / "runs" / "report"
    meanwhile += [
        lambda: None,
        lambda: touch(runs / "a" / "metrics.jsonl", "x"),
        lambda: None,
        lambda: touch(runs / "a" / "checkpoint.pt", "x"),  # nothing that a page reads
        lambda: touch(runs / "a" / "metrics.jsonl", "xy"),
        lambda: touch(own / "runs.parquet", "its own"),
        lambda: touch(runs / "old.parquet", "x"),
        lambda: (runs / "old.parquet").unlink(),
    ]
    built = iter("abcdefghi")
    assert watch.watch_folders([runs], lambda: next(built), own, every=2.0) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:-1]] == list("abcde")
    assert lines[-1] == "no longer watching"
    assert set(lengths) == {2.0}


def test_what_fails_is_one_line_and_the_next_change_is_waited_for(pauses, tmp_path, capsys):
    _, meanwhile = pauses
    meanwhile += [lambda: touch(tmp_path / "a" / "summary.json", "{}")]
    answers = [BenchError("no runs found\nmore"), "1 page"]

    def build():
        answer = answers.pop(0)
        if isinstance(answer, BenchError):
            raise answer
        return answer

    watch.watch_folders([tmp_path], build)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2] for line in lines[:2]] == ["no runs found", "1 page"]


def test_after_a_long_build_it_rests_as_long(pauses, tmp_path, monkeypatch):
    lengths, _ = pauses
    clock = iter([10.0, 25.0])
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(clock))
    watch.watch_folders([tmp_path], lambda: "done", every=3.0)
    assert lengths == [15.0]


def test_ctrl_c_during_a_build_ends_it_too(tmp_path, capsys):
    def build():
        raise KeyboardInterrupt

    assert watch.watch_folders([tmp_path], build) == 0
    assert capsys.readouterr().out == "no longer watching\n"
