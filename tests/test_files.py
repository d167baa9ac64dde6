"""Files are written whole or not at all."""

import pytest

from asyncfl_bench.files import atomic_write, remove_leftovers


def test_a_block_that_fails_leaves_the_old_content_and_no_debris(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError), atomic_write(path) as file:
        file.write(b"half")
        raise ValueError
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"old"}


def test_the_content_before_is_kept_where_that_is_asked_for(tmp_path, monkeypatch):
    path, previous = tmp_path / "file", tmp_path / "file.previous"
    for content in (b"first", b"second", b"third"):
        with atomic_write(path, previous) as file:
            file.write(content)
    assert (path.read_bytes(), previous.read_bytes()) == (b"third", b"second")

    def no_links(source, target):
        raise OSError

    monkeypatch.setattr("os.link", no_links)
    with atomic_write(path, previous) as file:
        file.write(b"fourth")
    assert (path.read_bytes(), previous.read_bytes()) == (b"fourth", b"third")
    assert {each.name for each in tmp_path.iterdir()} == {"file", "file.previous"}


def test_what_a_killed_process_left_is_removed(tmp_path):
    for name in (".file.123.tmp", "file", ".other.123.tmp"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path / "file")
    assert {each.name for each in tmp_path.iterdir()} == {"file", ".other.123.tmp"}
