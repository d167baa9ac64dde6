"""FEMNIST from an archive, from LEAF's json and from a download. Legend: N samples."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np

from asyncfl_bench.data.femnist import Femnist
from asyncfl_bench.data.pool import PoolConfig
from asyncfl_bench.randomness import Streams

WRITERS = {"f0002_01": 10, "f0000_14": 20, "f0001_41": 3}  # and how many samples each has


def femnist(directory, n_clients=2, **settings):
    return Femnist(PoolConfig(**{"download": True} | settings)).load(directory, Streams(0), n_clients)


def drawn(samples, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (samples, 28, 28), dtype=np.uint8), rng.integers(0, 62, samples)


def user(x, y):
    """As LEAF writes it: pixels divided by 255, row after row."""
    return {"x": (x.reshape(-1, 784) / 255).tolist(), "y": y.tolist()}


def write_leaf(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(content["y"]) for content in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": users}))


def write_three(directory):
    """Three writers over two files; returns their samples."""
    samples = {name: drawn(size, seed) for seed, (name, size) in enumerate(WRITERS.items())}
    users = {name: user(*content) for name, content in samples.items()}
    names = list(WRITERS)
    write_leaf(directory / "femnist/data/all_data/all_data_1.json", {name: users[name] for name in names[:1]})
    write_leaf(directory / "femnist/data/all_data/all_data_0.json", {name: users[name] for name in names[1:]})
    return samples


def test_writers_in_leafs_json_are_the_clients_and_every_pixel_comes_back(tmp_path):
    samples = write_three(tmp_path)
    data = femnist(tmp_path)
    assert data.x_train.dtype == np.uint8 and data.shape == (1, 28, 28) and data.classes == 62
    assert sorted(len(own) for own in data.natural) == [9, 18] and len(data.y_test) == 3
    assert data.scale.mean == (0.0,) and data.scale.std == (1.0,)  # pixels 0 .. 1, as LEAF's
    for own in data.natural:
        x, y = samples["f0000_14" if len(own) == 18 else "f0002_01"]
        label = {image.tobytes(): label for image, label in zip(x, y, strict=True)}
        assert [label[image.tobytes()] for image in data.x_train[own]] == data.y_train[own].tolist()
    assert data.source == "json files of LEAF's"


def test_what_was_parsed_is_kept_and_read_without_the_json(tmp_path):
    write_three(tmp_path)
    first = femnist(tmp_path, 3, min_samples=2)
    for path in (tmp_path / "femnist").rglob("*.json"):
        path.unlink()
    again = femnist(tmp_path, 3, min_samples=2)
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert again.source == first.source
    kept = np.load(tmp_path / "femnist.npz")
    assert kept["x"].shape == (33, 28, 28) and np.bincount(kept["client"]).tolist() == [20, 3, 10]  # by name


def test_leafs_own_split_is_put_together_and_other_stages_are_left_alone(tmp_path):
    x, y = drawn(10, 0)
    write_leaf(tmp_path / "femnist/data/test/a.json", {"f0": user(x[8:], y[8:])})
    write_leaf(tmp_path / "femnist/data/train/b.json", {"f0": user(x[:8], y[:8])})
    write_leaf(tmp_path / "femnist/data/all_data/all_data_0.json", {"f0": user(x, y)})
    write_leaf(tmp_path / "femnist/data/sampled_data/c.json", {"f0": user(x, y)})
    femnist(tmp_path, 1)
    np.testing.assert_array_equal(np.load(tmp_path / "femnist.npz")["x"], x)  # once, and those to train first


def femnist_of(folder, text):
    (folder / "femnist").mkdir()
    (folder / "femnist/bad.json").write_text(text)
    try:
        femnist(folder, 1)
    finally:
        assert not (folder / "femnist.npz").exists()


def of_f0(x, y):
    return json.dumps({"user_data": {"f0": {"x": x, "y": y}}})


def hub(monkeypatch, load_dataset):
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def test_a_download_gives_the_same_clients_as_leafs_json(tmp_path, monkeypatch):
    samples = write_three(tmp_path / "json")
    asked = []

    class Rows:
        def iter(self, batch_size):
            for name, (x, y) in samples.items():  # images are whatever NumPy makes an array of, as Pillow's are
                yield {"image": list(x), "writer_id": [name] * len(y), "hsf_id": [0] * len(y), "character": y.tolist()}

    def load_dataset(repository, split, cache_dir):
        asked.append((repository, split, cache_dir))
        return Rows()

    hub(monkeypatch, load_dataset)
    downloaded, parsed = femnist(tmp_path / "hub"), femnist(tmp_path / "json")
    assert asked == [("flwrlabs/femnist", "train", str(tmp_path / "hub/huggingface"))]
    np.testing.assert_array_equal(downloaded.x_train, parsed.x_train)
    np.testing.assert_array_equal(downloaded.y_test, parsed.y_test)
    assert downloaded.source == "flwrlabs/femnist"
    femnist(tmp_path / "hub")
    assert len(asked) == 1  # the second time it is there
