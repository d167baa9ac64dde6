"""Legend: N samples, C channels, H height, W width, F features."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
from tiers import slow

from asyncfl_bench.data import sources
from asyncfl_bench.data.base import Data, DataError, channels_first
from asyncfl_bench.data.datasets import (
    KNOWN,
    Arrays,
    ArraysConfig,
    Digits,
    DigitsConfig,
    TorchvisionImages,
    TorchvisionImagesConfig,
)
from asyncfl_bench.data.sources import CLASS_NAMES
from asyncfl_bench.data.synthetic import Synthetic, SyntheticConfig
from asyncfl_bench.randomness import Streams


def images(shape, train=12, test=6, classes=10):
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (train, *shape), dtype=np.uint8),
        "y_train": np.arange(train) % classes,
        "x_test": rng.integers(0, 256, (test, *shape), dtype=np.uint8),
        "y_test": np.arange(test) % classes,
    }


def load_images(directory, name="cifar10", **settings):
    return TorchvisionImages(TorchvisionImagesConfig(name, **settings)).load(directory, Streams(0), 2)


def load_arrays(path, **arrays):
    np.savez(path, **arrays)
    return Arrays(ArraysConfig(str(path))).load(path.parent, Streams(0), 2)


def test_the_runs_of_a_process_read_a_file_once_and_again_when_it_has_changed(tmp_path):
    np.savez(tmp_path / "cifar10.npz", **images((32, 32, 3)))
    first = load_images(tmp_path)
    assert load_images(tmp_path) is first and load_images(tmp_path, train_samples=11) is not first
    np.savez(tmp_path / "cifar10.npz", **images((32, 32, 3), train=13))
    assert len(load_images(tmp_path).y_train) == 13


# --- digits


def test_digits_come_from_the_users_cache_with_the_same_bits_and_a_damaged_one_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    digits = Digits(DigitsConfig(split_seed=5))
    made = digits._read()
    (path,) = tmp_path.glob("asyncfl_bench/digits-*-5.npz")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "sklearn.datasets", None)
        found = digits._read()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        ours, theirs = getattr(found, name), getattr(made, name)
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    path.write_bytes(path.read_bytes()[:5000])
    assert np.array_equal(digits._read().x_test, made.x_test) and path.stat().st_size > 100_000


def test_digits_need_no_folder_that_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(Digits(DigitsConfig())._read().y_test) == 360


def test_digits_are_split_alike_for_every_run_seed_and_hold_every_sample_once():
    first, second = (Digits(DigitsConfig()).load(None, Streams(seed), 10) for seed in (0, 1))
    np.testing.assert_array_equal(first.x_test, second.x_test)
    assert first.x_train.shape == (1437, 1, 8, 8) and first.x_test.shape == (360, 1, 8, 8)
    assert first.x_train.dtype == np.float32 and first.x_train.max() == 1 and first.x_train.min() == 0
    from sklearn.datasets import load_digits

    ours = np.concatenate([first.x_train, first.x_test]).reshape(-1, 64) * 16
    assert sorted(map(tuple, ours)) == sorted(map(tuple, load_digits().data))
    share_train = np.bincount(first.y_train) / 1437
    np.testing.assert_allclose(np.bincount(first.y_test) / 360, share_train, atol=0.004)


def test_digits_split_seed_chooses_another_test_set():
    first, second = (Digits(DigitsConfig(seed)).load(None, Streams(0), 10) for seed in (0, 1))
    assert not np.array_equal(first.x_test, second.x_test)


# --- image sets


@pytest.mark.parametrize("file, name", [("fashion-mnist", "fashion_mnist"), ("fashion_mnist", "fashion_mnist")])
def test_fashion_mnist_is_found_under_both_spellings(tmp_path, file, name):
    arrays = images((28, 28))
    np.savez(tmp_path / f"{file}.npz", **arrays)
    data = load_images(tmp_path, name)
    assert data.x_train.shape == (12, 1, 28, 28)
    np.testing.assert_array_equal(data.x_train[:, 0], arrays["x_train"])
    assert not data.augmentable


def test_colour_images_become_channels_first_bytes(tmp_path):
    arrays = images((32, 32, 3))
    np.savez(tmp_path / "cifar10.npz", **arrays)
    data = load_images(tmp_path)
    assert data.x_test.dtype == np.uint8 and data.shape == (3, 32, 32) and data.classes == 10 and data.augmentable
    assert data.x_test[4, 2, 7, 9] == arrays["x_test"][4, 7, 9, 2]


def test_a_part_of_the_images_is_the_first_ones(tmp_path):
    arrays = images((32, 32, 3))
    np.savez(tmp_path / "cifar10.npz", **arrays)
    data = load_images(tmp_path, train_samples=5, test_samples=6)
    np.testing.assert_array_equal(data.y_train, [0, 1, 2, 3, 4])
    assert len(data.x_train) == 5 and len(data.x_test) == 6


def load_wrong_images(folder, change):
    arrays = {name: array for name, array in (images((32, 32, 3)) | change).items() if array is not None}
    np.savez(folder / "cifar10.npz", **arrays)
    return load_images(folder)


@pytest.mark.parametrize("damage", ["lzma", "bzip2", "encrypted", "unknown compression"])
def test_members_that_cannot_be_unpacked_are_refused_by_file(tmp_path, damage):
    methods = {"lzma": zipfile.ZIP_LZMA, "bzip2": zipfile.ZIP_BZIP2}
    path = tmp_path / "mnist.npz"
    with zipfile.ZipFile(path, "w", methods.get(damage, zipfile.ZIP_STORED)) as archive:
        for name, array in images((28, 28)).items():
            with archive.open(f"{name}.npy", "w") as member:
                np.save(member, array)
        first = archive.infolist()[0]
    content = bytearray(path.read_bytes())
    headers = [content.find(b"PK\3\4"), content.find(b"PK\1\2")]
    if damage == "encrypted":
        for header, place in zip(headers, (6, 8), strict=True):
            content[header + place] |= 1
    elif damage == "unknown compression":
        for header, place in zip(headers, (8, 10), strict=True):
            content[header + place] = 99
    else:
        start = 30 + len(first.filename) + 12
        content[start : start + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"^\S*mnist\.npz: not a readable .npz file [^\n]*$"):
        load_images(tmp_path, "mnist")


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "npy"])
def test_a_corrupt_archive_is_refused_by_file(tmp_path, damage):
    path = tmp_path / "mnist.npz"
    np.savez_compressed(path, **images((28, 28)))
    whole = path.read_bytes()
    middle = len(whole) // 3
    np.save(tmp_path / "one.npy", np.zeros(3))
    npy = (tmp_path / "one.npy").read_bytes()
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    path.write_bytes(
        {"empty": b"", "text": b"not found", "cut": whole[: len(whole) // 2], "flipped": flipped, "npy": npy}[damage]
    )
    single = ": must be an .npz archive with x_train, y_train, x_test, y_test .*, found a single array"
    with pytest.raises(DataError, match=r"mnist\.npz" + single * (damage == "npy")):
        load_images(tmp_path, "mnist")


def original_cinic10(folder):
    """Two images of each class in the original format; the pixels by split."""
    from PIL import Image

    rng = np.random.default_rng(0)
    made = {split: rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8) for split in ("train", "test", "valid")}
    for split, pictures in made.items():
        for number, picture in enumerate(pictures):
            of_class = folder / split / CLASS_NAMES[number // 2]
            of_class.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(of_class / f"{number:02}.png")
    return made


def assert_without_valid(data, made):
    for split, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        np.testing.assert_array_equal(x, made[split].transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(y, np.arange(20) // 2)


@pytest.mark.slow
def test_cinic10_is_unpacked_from_its_archive_once(tmp_path, monkeypatch):
    made, directory = original_cinic10(tmp_path / "made"), tmp_path / "data"
    packed = Path(shutil.make_archive(str(directory / "CINIC-10"), "gztar", tmp_path / "made"))
    monkeypatch.setattr(sources, "CINIC10", "https://localhost:9/CINIC-10.tar.gz")  # nobody answers there
    with pytest.raises(DataError, match=r"CINIC10 is missing and its download failed.*cinic10\.npz"):
        load_images(directory, "cinic10", download=True)  # another content than the published archive's
    monkeypatch.setattr(sources, "CINIC10_MD5", hashlib.md5(packed.read_bytes()).hexdigest())  # so it is taken
    (directory / ".CINIC-10.part" / "train" / "cat").mkdir(parents=True)  # left by a process that was killed
    (directory / ".CINIC-10.part" / "train" / "cat" / "broken.png").touch()
    assert_without_valid(load_images(directory, "cinic10", download=True), made)
    assert not packed.exists()


def test_the_original_files_of_cinic10_are_read_once_without_its_part_valid(tmp_path):
    made = original_cinic10(tmp_path / "CINIC-10")
    (tmp_path / "CINIC-10" / "train" / "cat" / ".DS_Store").touch()
    data = load_images(tmp_path, "cinic10")
    assert_without_valid(data, made)
    assert data.augmentable and data.classes == 10 and data.shape == (3, 32, 32)
    shutil.rmtree(tmp_path / "CINIC-10")
    assert len(load_images(tmp_path, "cinic10").x_train) == 20  # from the file that was written


def damage_cinic10(folder, damage):
    from PIL import Image

    one = folder / "test" / "frog" / "12.png"
    if damage == "no test part":
        shutil.rmtree(folder / "test")
    elif damage == "a file":
        shutil.rmtree(folder)
        folder.touch()
    elif damage == "no frogs":
        shutil.rmtree(one.parent)
    elif damage == "cut":
        one.write_bytes(one.read_bytes()[:500])
    elif damage == "narrow":
        Image.new("RGB", (31, 32)).save(one)


def run_damaged_cinic10(folder, damage, call):
    """Call afl-run with the data set in a folder that is damaged."""
    original_cinic10(folder / "CINIC-10")
    damage_cinic10(folder / "CINIC-10", damage)
    return call("algorithm=fedbuff", "dataset=cinic10", "model=lenet5", f"data_dir={folder}", "n_clients=2")


def test_a_plan_refuses_a_damaged_folder_of_cinic10_as_its_run_does(tmp_path, afl_run):
    planned = run_damaged_cinic10(tmp_path, "cut", lambda *words: afl_run(*words, "--plan"))
    assert planned.returncode == 2 and "\nrefused: " in planned.stdout
    assert "torchvision cannot read CINIC10 there (" in planned.stdout
    assert not list(tmp_path.rglob("*.npz")) and not list(tmp_path.rglob("metrics.jsonl"))


def write_torchvision(folder, name, arrays):
    """The arrays in the files that torchvision leaves: bytes behind a header, or pickles of rows of pixels."""
    raw = folder / KNOWN[name].folder
    raw.mkdir(parents=True)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        if not KNOWN[name].has_colors:
            for kind, array in ((f"images-idx{x.ndim}", x), ("labels-idx1", y.astype(np.uint8))):
                header = np.array([0x800 + array.ndim, *array.shape], ">i4").tobytes()
                (raw / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
            continue
        batches = ["test_batch" if name == "cifar10" else "test"]
        if split == "train":
            batches = [f"data_batch_{number}" for number in range(1, 6)] if name == "cifar10" else ["train"]
        for file, rows in zip(batches, np.array_split(np.arange(len(x)), len(batches)), strict=True):
            content = {"data": x[rows].transpose(0, 3, 1, 2).reshape(len(rows), -1)}
            content |= {"labels" if name == "cifar10" else "fine_labels": y[rows].tolist()}
            (raw / file).write_bytes(pickle.dumps(content))
        meta = {"label_names": [], "fine_label_names": []}
        (raw / ("batches.meta" if name == "cifar10" else "meta")).write_bytes(pickle.dumps(meta))


@pytest.mark.parametrize("name", ["mnist", *slow("fashion_mnist", "cifar10", "cifar100")])
def test_folders_of_torchvision_are_read_at_once(name, tmp_path, monkeypatch):
    import torchvision

    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *arguments: True)
    arrays = images(KNOWN[name].image)
    write_torchvision(tmp_path, name, arrays)
    data = load_images(tmp_path, name)
    for split, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        np.testing.assert_array_equal(x, channels_first(arrays[f"x_{split}"]))
        np.testing.assert_array_equal(y, arrays[f"y_{split}"])
    shutil.rmtree(tmp_path / Path(KNOWN[name].folder).parts[0])
    assert len(load_images(tmp_path, name).x_train) == 12  # from the file that was written


def test_a_pipe_in_the_place_of_the_digits_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    digits = Digits(DigitsConfig(split_seed=3))
    digits._read()
    (path,) = tmp_path.rglob("digits-*.npz")
    path.unlink()
    os.mkfifo(path)
    assert len(digits._read().x_train) == 1437 and path.is_file()


@pytest.mark.slow
def test_without_network_one_message_names_paths_and_ways_out(tmp_path, monkeypatch):
    import torchvision

    def refused(*args, **kwargs):
        raise URLError("no route")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", refused)
    directory = tmp_path / "not" / "there"
    with pytest.raises(DataError) as caught:
        load_images(directory, "fashion_mnist", download=True)
    message = str(caught.value)
    for part in ("FashionMNIST", "no route", "fashion-mnist.npz", "fashion_mnist.npz", str(directory)):
        assert part in message
    for part in ("data_dir=", "ASYNCFL_BENCH_DATA", "dataset=digits"):
        assert part in message
    assert "\n" not in message and not list(directory.glob("*.npz"))


@pytest.mark.slow
def test_several_jobs_download_once_and_all_read_the_same_file(tmp_path, monkeypatch):
    import torchvision

    arrays, downloads = images((28, 28)), []

    def download(root, train, download):
        downloads.append(train)
        time.sleep(0.1)  # long enough for the others to find no file and wait
        split = "train" if train else "test"
        return SimpleNamespace(data=arrays[f"x_{split}"], targets=arrays[f"y_{split}"].tolist())

    monkeypatch.setattr(torchvision.datasets, "MNIST", download)
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load_images(tmp_path, "mnist", download=True), range(4)))
    assert downloads == [True, False]
    for data in loaded:
        np.testing.assert_array_equal(data.x_test[:, 0], arrays["x_test"])
    assert not list(tmp_path.glob("*.part"))


# --- a user's arrays


def test_float_arrays_are_used_as_they_are(tmp_path):
    x = np.linspace(-3, 3, 20).reshape(10, 2)
    data = load_arrays(tmp_path / "a.npz", x_train=x, y_train=np.arange(10) % 3, x_test=x[:4], y_test=np.zeros(4, int))
    np.testing.assert_array_equal(data.x_train, x.astype(np.float32))
    assert data.classes == 3 and data.scale is None and data.natural is None and data.shape == (2,)


def test_byte_images_are_normalised_by_the_training_set(tmp_path):
    arrays = images((5, 7, 3), train=40)
    arrays["x_train"][..., 2] = 9  # a constant channel
    data = load_arrays(tmp_path / "a.npz", **arrays)
    share = arrays["x_train"] / 255
    np.testing.assert_allclose(data.scale.mean, share.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(data.scale.std, [*share.std((0, 1, 2))[:2], 1.0], rtol=1e-12)
    assert data.shape == (3, 5, 7)


def test_client_ids_give_the_natural_partition(tmp_path):
    client = np.array([7, 2, 7, 100, 2, 2], dtype=np.uint8)
    data = load_arrays(
        tmp_path / "a.npz",
        x_train=np.ones((6, 2)),
        y_train=np.arange(6, dtype=np.uint8) % 2,
        x_test=np.ones((1, 2)),
        y_test=np.zeros(1, int),
        client_train=client,
    )
    assert [samples.tolist() for samples in data.natural] == [[1, 4, 5], [0, 2], [3]]


def load_wrong_arrays(folder, change, x=((1.0, 1.0),) * 4, y=(0, 1, 0, 1)):
    arrays = {"x_train": np.array(x), "y_train": np.array(y), "x_test": np.array(x[:2]), "y_test": np.array(y[:2])}
    return load_arrays(folder / "a.npz", **(arrays | change))


# --- synthetic


def synthetic(n_clients=30, seed=0, **settings):
    return Synthetic(SyntheticConfig(**settings)).load(None, Streams(seed), n_clients)


def test_synthetic_gives_nine_tenths_of_every_client_to_training():
    data = synthetic(max_samples=50)
    assert [len(samples) for samples in data.natural] == [45] * 30
    assert data.x_train.shape == (1350, 60) and data.x_test.shape == (150, 60) and data.classes == 10
    np.testing.assert_array_equal(np.concatenate(data.natural), np.arange(1350))


def test_synthetic_sizes_follow_the_published_law():
    size = np.array([len(part) for part in synthetic(400, max_samples=5000).natural]) / 0.9
    assert size.min() >= 49
    # the median of LogNormal(4, 2) is e^4 = 54.6; with 400 draws its standard error is about 7
    assert 80 < np.median(size) < 135


def test_synthetic_inputs_have_the_published_variances():
    data = synthetic(60, seed=3, max_samples=1000)
    x = np.concatenate([data.x_train[part] - data.x_train[part].mean(0) for part in data.natural])
    np.testing.assert_allclose(x.var(0), np.arange(1, 61) ** -1.2, rtol=0.15)


def test_a_digest_tells_other_labels_and_pixels_but_not_the_last_bits_of_floats():
    def data(x, y_test=(0, 1)):
        return Data(np.array(x), np.array([0, 1]), np.array(x), np.array(y_test), 2)

    pixels = np.zeros((2, 1, 2, 2), dtype=np.uint8)
    digest = data(pixels).digest
    assert len(digest) == 16 and data(pixels.copy()).digest == digest
    assert digest not in {data(pixels + 1).digest, data(pixels, (1, 1)).digest, data(pixels[:, :, :1]).digest}
    floats = np.ones((2, 3), dtype=np.float32)
    assert data(floats).digest == data(np.nextafter(floats, 2)).digest != data(floats, (1, 1)).digest


def test_synthetic_beta_spreads_the_inputs():
    def spread_of_centres(beta):
        data = synthetic(60, alpha=0.0, beta=beta, max_samples=60)
        return np.std([data.x_train[part].mean() for part in data.natural])

    # a client's mean input is B_i plus the mean of 60 normal centres: its spread is sqrt(beta^2 + 1/60)
    assert spread_of_centres(0.0) == pytest.approx(np.sqrt(1 / 60), rel=0.3)
    assert spread_of_centres(3.0) == pytest.approx(3.0, rel=0.3)


def test_synthetic_alpha_changes_no_sample_since_it_raises_all_classes_alike():
    narrow, wide = synthetic(30, alpha=0.0, max_samples=500), synthetic(30, alpha=5.0, max_samples=500)
    np.testing.assert_array_equal(narrow.x_train, wide.x_train)
    np.testing.assert_array_equal(narrow.y_train, wide.y_train)


def test_a_synthetic_client_is_the_same_among_few_and_many():
    few, many = synthetic(2), synthetic(5)
    for client in range(2):
        np.testing.assert_array_equal(few.x_train[few.natural[client]], many.x_train[many.natural[client]])
    assert not np.array_equal(synthetic(2, seed=1).x_train[:5], few.x_train[:5])


ASYNCFEDED_SIZES = [9545, 855, 2180, 24380, 11685, 285, 2075, 450, 470, 870]


def test_asyncfededs_clients_are_what_its_published_runs_show():
    data = synthetic(10, size_factor=5, data_seed=0)
    assert [len(own) for own in data.natural] == [size * 9 // 10 for size in ASYNCFEDED_SIZES]
    assert len(data.y_train) + len(data.y_test) == sum(ASYNCFEDED_SIZES) == 52_795
    # the authors' rounds stay for 20 s at 3701 of 5282 right, 70.07 %: all samples in the commonest class
    assert len(data.y_test) == 5282 and np.bincount(data.y_test).max() == pytest.approx(3701, abs=2)
    other = synthetic(10, seed=1, size_factor=5, data_seed=0)
    np.testing.assert_array_equal(other.x_train, data.x_train)
    np.testing.assert_array_equal(other.y_test, data.y_test)


def test_with_a_data_seed_all_is_drawn_in_the_order_of_the_published_generator():
    rng = np.random.RandomState(3)  # the published order again, with nothing of ours
    sizes = rng.lognormal(4, 2, 4).astype(int) + 50
    model_means, input_means = rng.normal(0, 1, 4), rng.normal(0, 1, 4)
    centres = [rng.normal(mean, 1, 60) for mean in input_means]
    data = synthetic(4, data_seed=3)
    for client, own in enumerate(data.natural):
        weight, bias = rng.normal(model_means[client], 1, (60, 10)), rng.normal(model_means[client], 1, 10)
        x = rng.multivariate_normal(centres[client], np.diag(np.arange(1, 61) ** -1.2), sizes[client])
        np.testing.assert_allclose(data.x_train[own], x[: len(own)], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(data.y_train[own], (x @ weight + bias).argmax(axis=1)[: len(own)])


def test_asyncfededs_sizes_go_with_other_draws_too():
    data, other = (synthetic(10, seed=seed, size_factor=5, size_seed=0) for seed in (0, 1))
    assert [len(own) for own in data.natural] == [size * 9 // 10 for size in ASYNCFEDED_SIZES]
    assert [len(own) for own in other.natural] == [len(own) for own in data.natural]
    assert not np.array_equal(other.x_train[:5], data.x_train[:5])


def test_synthetic_sizes_from_the_runs_seed_are_what_they_always_were():
    data = synthetic(4)
    assert [len(own) for own in data.natural] == [224, 67, 328, 54] and len(data.y_test) == 77
    np.testing.assert_allclose(
        data.x_train[0, :3], [-2.3895833492279053, -2.030946731567383, -1.6055824756622314], rtol=1e-6
    )
    assert np.bincount(data.y_train, minlength=10).tolist() == [0, 11, 0, 43, 0, 67, 0, 0, 328, 224]


def test_another_size_of_a_synthetic_client_changes_how_many_samples_it_has_and_not_which():
    few, many = synthetic(3, test_share=0.5), synthetic(3, test_share=0.5, size_factor=3)
    other = synthetic(3, test_share=0.5, size_seed=4)
    for client in range(3):
        x, x_more, x_other = (data.x_train[data.natural[client]] for data in (few, many, other))
        least = min(len(x), len(x_other))
        assert len(x_more) >= 3 * len(x)
        np.testing.assert_array_equal(x_more[: len(x)], x)
        np.testing.assert_array_equal(x_other[:least], x[:least])
