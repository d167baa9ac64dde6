"""Clients with a file of samples each: what a client, a server and a simulation read of them."""

import copy
import shutil
from pathlib import Path

import numpy as np

from asyncfl_bench.config import compose
from asyncfl_bench.config.check import check_settings
from asyncfl_bench.config.composition import Compositions
from asyncfl_bench.data.local import Local, LocalDataConfig
from asyncfl_bench.randomness import Streams
from asyncfl_bench.tracking.records import identity_of

SIZES = (3, 5, 2)
WORDS = ["dataset=local", "dataset.folder=clients", "dataset.classes=4", "algorithm=fedbuff"]


def write(folder, **other):
    """Three clients and a test set. other: arrays that replace those of a file"""
    folder.mkdir(exist_ok=True)
    for number, (name, size) in enumerate(zip(("a0", "a1", "a2", "test"), (*SIZES, 4), strict=True)):
        x, y = np.full((size, 6), number, np.float32), np.arange(size) % 4
        np.savez(folder / f"{name.removeprefix('a')}.npz", **{"x": x, "y": y} | other.get(name, {}))


def load(folder, clients=None, n=3):
    return Local(LocalDataConfig(str(folder), classes=4), clients).load(Path("unused"), Streams(0), n)


def test_a_client_reads_its_own_file_and_a_server_none_of_the_samples(tmp_path):
    folder = tmp_path / "clients"
    write(folder)
    whole, server = load(folder), load(folder, ())
    assert [len(part) for part in whole.natural] == [3, 5, 2] and whole.x_train[whole.natural[1]].tolist() == [
        [1] * 6
    ] * 5
    assert len(server.x_train) == 1 and server.digest == whole.digest
    for part, twin in zip(server.natural, whole.natural, strict=True):
        assert sorted(server.y_train[part]) == sorted(whole.y_train[twin])
    np.save(folder / "counts.npy", [[1, 1, 1, 0], [2, 1, 1, 1], [1, 1, 0, 0]])
    assert load(folder).digest == whole.digest
    for name in ("0", "2"):
        (folder / f"{name}.npz").unlink()
    assert load(folder, ()).digest == whole.digest
    (folder / "test.npz").unlink()
    own = load(folder, [1])
    assert own.x_train.tolist() == [[1] * 6] * 5 and own.y_train.tolist() == [0, 1, 2, 3, 0]
    assert [len(part) for part in own.natural] == [0, 5, 0] and own.classes == 4


def test_a_changed_number_of_any_file_makes_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("clients"))
    live = compose([*WORDS, "live=processes"])  # of its files a server reads but the labels
    server = load("clients", ()).digest
    assert check_settings(copy.deepcopy(live.tree)).identity == live.identity
    assert identity_of(live.tree) is None  # as a report finds it, which may be on another machine
    known = {live.identity}
    for number, (name, size) in enumerate({"a0": 3, "test": 4}.items(), 1):
        write(Path("clients"), **{name: {"x": np.full((size, 6), 0.1, np.float32)}})
        known.add(check_settings(copy.deepcopy(live.tree)).identity)
        assert len(known) == 1 + number
    assert load("clients", ()).digest != server
    shutil.move("clients", "elsewhere")
    moved = live.tree | {"dataset": live.tree["dataset"] | {"folder": str(tmp_path / "elsewhere")}}
    assert check_settings(moved).identity in known


def load_wrong(folder, **other):
    write(folder, **other)
    load(folder)


def load_counts(folder, counts, clients=()):
    write(folder)
    np.save(folder / "counts.npy", counts)
    load(folder, clients)


IMAGES = {"x": np.zeros((5, 8, 8, 3), np.uint8)}


def test_clients_keep_their_own_samples():
    words, shared = WORDS, Compositions()
    assert shared.settings(words).choices["heterogeneity"] == "natural"
