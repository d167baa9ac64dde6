"""Files are written whole or not at all."""

import errno
import fcntl
import io
import os
from contextlib import suppress

import pytest
import torch
from filelock import FileLock

from asyncfl_bench.errors import BenchError, RunInUse
from asyncfl_bench.experiment.checkpoint import PARTS, read_checkpoint, write_checkpoint
from asyncfl_bench.experiment.execute import _holding_lock
from asyncfl_bench.files import (
    atomic_write,
    clean_text,
    is_locked,
    read_yaml,
    say,
    show,
    to_yaml,
    write_text,
)
from asyncfl_bench.tracking.rundir import RunDirectory


def state(lines):
    """The state of a run that has logged ``lines`` points."""
    return dict.fromkeys(PARTS) | {"evaluations": {"lines": lines}}


def test_a_block_that_fails_leaves_the_old_content_and_no_debris(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError), atomic_write(path) as file:
        file.write(b"half")
        raise ValueError
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"old"}


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    write_text(tmp_path / "file", "old")
    monkeypatch.setattr(os, "fsync", lambda number: os.write(-1, b""))
    with pytest.raises(OSError, match="file"):
        write_text(tmp_path / "file", "new")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"file": "old"}


def test_a_lock_that_another_process_takes_only_to_ask_is_free(tmp_path, monkeypatch):
    path = tmp_path / ".lock"
    assert not is_locked(path)
    path.touch()
    with path.open() as asking, monkeypatch.context() as patched:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert not is_locked(path)
        patched.setattr("time.sleep", lambda seconds: asking.close())
        with _holding_lock(tmp_path):
            assert asking.closed and is_locked(path)
    with FileLock(path):
        assert is_locked(path)
        with pytest.raises(RunInUse), _holding_lock(tmp_path):
            pass


def test_the_content_before_is_kept_where_that_is_asked_for(tmp_path):
    path, previous = tmp_path / "file", tmp_path / "file.previous"
    for content in (b"first", b"second", b"third"):
        with atomic_write(path, previous) as file:
            file.write(content)
    assert (path.read_bytes(), previous.read_bytes()) == (b"third", b"second")
    assert {each.name for each in tmp_path.iterdir()} == {"file", "file.previous"}


class Killed(BaseException):
    """Nothing runs after it, as after a kill."""


@pytest.mark.parametrize("step", range(4))
def test_a_kill_at_any_step_leaves_a_checkpoint_and_the_next_one_leaves_no_link(tmp_path, monkeypatch, step):
    path = tmp_path / "checkpoint.pt"
    for number in (1, 2):
        write_checkpoint(path, "aaaa0000", state(number))
    calls = iter(range(100))

    def until(step, call):
        def counted(*args, **keywords):
            if next(calls) >= step:
                raise Killed
            return call(*args, **keywords)

        return counted

    with monkeypatch.context() as patched:
        for name in ("replace", "link", "unlink"):
            patched.setattr(os, name, until(step, getattr(os, name)))
        with suppress(Killed):
            write_checkpoint(path, "aaaa0000", state(3))
    kept, remarks = read_checkpoint(path, "aaaa0000")
    assert kept["evaluations"]["lines"] in (2, 3) and not remarks
    write_checkpoint(path, "aaaa0000", state(4))
    assert read_checkpoint(path, "aaaa0000")[0]["evaluations"]["lines"] == 4
    assert {each.name for each in tmp_path.iterdir()} == {"checkpoint.pt", "checkpoint.pt.previous"}


def test_a_full_disk_is_named_by_checkpoints_and_models(monkeypatch, tmp_path):
    class Full(io.FileIO):
        def write(self, content):
            if self.tell() > 10_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(content)

    monkeypatch.setattr("asyncfl_bench.files.open", Full, raising=False)
    with pytest.raises(BenchError, match="the checkpoint could not be written: No space left on device"):
        write_checkpoint(tmp_path / "checkpoint.pt", "aaaa0000", {"model_d": torch.zeros(10_000)})
    with pytest.raises(OSError, match=r"No space left on device: '.*/model_final.pt'"):
        RunDirectory(tmp_path).write_model("model_final.pt", {"weight": torch.zeros(10_000)})
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed(tmp_path):
    for name in (".file.123.tmp", "file", ".other.123.tmp"):
        (tmp_path / name).touch()
    RunDirectory(tmp_path).remove_leftovers()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_an_object_that_a_yaml_has_twice_is_written_twice(tmp_path):
    shared = [1e-05, "1e3", "no", None]
    value = {"one": shared, "two": {"three": shared}}
    (tmp_path / "config.yaml").write_text(to_yaml(value), encoding="utf-8")
    assert read_yaml(tmp_path / "config.yaml") == value


def test_what_is_printed_has_no_control_character_but_line_breaks_and_tabs(capsys):
    text = "a\x1b[2Jb\r\x07\x9b\u202e\ud800 ±\N{NO-BREAK SPACE}…\tc\nd"
    shown = r"a\x1b[2Jb\r\x07\x9b\u202e\ud800" + " ±\N{NO-BREAK SPACE}…\tc\nd"
    say(text)
    show(text, end="")
    assert (*capsys.readouterr(),) == (shown, f"{shown}\n")
    assert clean_text("a\tb\nc", one_line=True) == r"a\tb\nc"
