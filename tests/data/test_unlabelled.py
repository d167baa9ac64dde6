"""Where the server's own samples are from."""

import numpy as np
import pytest
import torch

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.data.base import Data, Scale
from asyncfl_bench.data.unlabelled import match_samples, open_stl10
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.randomness import Streams

ECHO = ["algorithm=fedecho", "n_clients=10", "model=softmax"]


def server_of(*words):
    """(task, the server's samples as the model sees them)."""
    built = build_run(compose([*ECHO, *words]))
    built.executor.close()
    return built.task, built.task.server._x_u


def rows(x):
    return {row.tobytes() for row in np.asarray(x).reshape(len(x), -1)}


@pytest.mark.slow
def test_held_back_samples_are_taken_from_the_clients_and_never_from_the_test_set():
    task, x_u = server_of("seed=3")
    whole, _ = server_of("seed=3", "unlabelled.samples=1")
    assert task.describe()["train_samples"] == 1437 - 287 and task.server.samples == len(x_u) == 287
    assert task.describe()["server_samples"] == 287
    assert not rows(x_u) & rows(task._x_train) and not rows(x_u) & rows(task._judged["test"][0])
    assert len(whole._y_train) == 1436
    _, other = server_of("seed=4")
    assert rows(other) != rows(x_u)
    _, again = server_of("seed=3", "heterogeneity.alpha=5", "delay=exponential")
    assert torch.equal(again, x_u)


def test_held_back_samples_leave_those_of_clients_that_data_come_with():
    x, y = np.arange(60, dtype=np.float32).reshape(30, 2), np.arange(30) % 3
    np.savez("own.npz", x_train=x, y_train=y, x_test=x[:3] - 99, y_test=y[:3], client_train=np.arange(30) % 5)
    words = ["dataset=arrays", "dataset.path=own.npz", "heterogeneity=natural", "n_clients=5", "unlabelled.samples=9"]
    task, x_u = server_of(*words)
    held = {tuple(row) for row in x_u.tolist()}
    for client, part in enumerate(task.partition):
        mine = {tuple(row) for row in x[client::5].tolist()}
        assert {tuple(row) for row in task._x_train[torch.from_numpy(part)].tolist()} == mine - held
    assert sum(map(len, task.partition)) == 21


def test_nothing_is_drawn_where_nothing_needs_it():
    settings = compose(["algorithm=fedbuff", "n_clients=10"])
    assert settings.choices["unlabelled"] == "none" and build_run(settings).task.server is None
    control, _ = server_of("algorithm=fedbuff", "unlabelled=held_back")
    echo, _ = server_of()
    assert [part.tolist() for part in control.partition] == [part.tolist() for part in echo.partition]


def pictures(folder, name, shape, count=40):
    rng = np.random.default_rng(len(name))
    x, y = rng.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % 10
    np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=255 - x, y_test=y)
    return x


@pytest.mark.slow
def test_images_of_another_set_come_in_the_clients_shape_and_scale(tmp_path):
    own, other = pictures(tmp_path, "cifar10", (32, 32, 3)), pictures(tmp_path, "cifar100", (32, 32, 3))
    words = [f"data_dir={tmp_path}", "dataset=cifar10", "heterogeneity=iid", "unlabelled=images"]
    assert compose([*ECHO, *words]).tree["unlabelled"]["name"] == "cifar100"
    task, x_u = server_of(*words, "unlabelled.samples=30")
    scale = Scale((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    expected = (other.transpose(0, 3, 1, 2) / 255 - np.reshape(scale.mean, (3, 1, 1))) / np.reshape(
        scale.std, (3, 1, 1)
    )
    distance = np.abs(x_u.numpy()[:, None] - expected[None]).max(axis=(2, 3, 4))
    assert len(x_u) == 30 and (distance.min(axis=1) < 1e-5).all() and len(set(distance.argmin(axis=1))) == 30
    assert len(task._y_train) == len(own)

    digits, x_u = server_of(f"data_dir={tmp_path}", "dataset=digits", "unlabelled=images", "unlabelled.name=cifar10")
    assert x_u.shape == (40, *digits.shape) and x_u.min() >= 0 and x_u.max() <= 1


def stl10_file(folder, count):
    """Write images in the original format, (N, 3, column, row): red has the row, green the column, blue the image."""
    image_n, column, row = np.ogrid[:count, :96, :96]
    planes = np.broadcast_arrays(row + 0 * column + 0 * image_n, column + 0 * row + 0 * image_n, 0 * row + image_n)
    (folder / "unlabeled_X.bin").write_bytes(np.stack(planes, axis=1).astype(np.uint8).tobytes())


def test_images_of_stl10_are_read_from_its_original_file_at_a_third_of_their_size(tmp_path):
    pictures(tmp_path, "cifar10", (32, 32, 3))
    (tmp_path / "stl10_binary").mkdir()
    stl10_file(tmp_path / "stl10_binary", 6)
    opened = open_stl10(tmp_path)
    assert opened.shape == (6, 3, 96, 96) and opened[4, :, 10, 70].tolist() == [10, 70, 4]
    words = [f"data_dir={tmp_path}", "dataset=cifar10", "heterogeneity=iid", "unlabelled=images"]
    _, x_u = server_of(*words, "unlabelled.name=stl10", "unlabelled.samples=4")
    scale = Scale((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    pixels = 255 * (x_u.numpy() * np.reshape(scale.std, (3, 1, 1)) + np.reshape(scale.mean, (3, 1, 1)))
    assert x_u.shape == (4, 3, 32, 32) and len(set(pixels[:, 2].round().mean(axis=(1, 2)))) == 4
    # a pixel is the middle of three: rows 0, 1, 2 become 1
    assert np.abs(pixels[:, 0, 1:-1, 5] - (3 * np.arange(1, 31) + 1)).max() < 0.6
    assert np.abs(pixels[:, 1, 5, 1:-1] - (3 * np.arange(1, 31) + 1)).max() < 0.6


def test_a_plan_refuses_a_damaged_file_as_its_run_does(tmp_path, afl_run):
    (tmp_path / "unlabeled_X.bin").write_bytes(b"x" * 9)
    words = ["algorithm=fedecho", "scale=smoke", "unlabelled=arrays", "unlabelled.path=unlabeled_X.bin"]
    answer = afl_run(*words, "--plan")
    assert answer.returncode == 2 and "unlabeled_X.bin: not a readable .npy file" in answer.stdout
    assert not (tmp_path / "runs").exists()


def test_colours_become_grey_grey_becomes_colours_and_sizes_change():
    def clients(*shape, dtype=np.uint8):
        x = np.array([0, 4], dtype).repeat(np.prod(shape)).reshape(2, *shape)
        return Data(x, np.array([0, 1]), x, np.array([0, 1]), 2)

    red = np.zeros((1, 3, 4, 4), np.uint8)
    red[:, 0] = 255
    assert (match_samples(red, clients(1, 4, 4)) == 85).all()
    assert match_samples(red[:, :1], clients(3, 4, 4)).shape == (1, 3, 4, 4)
    assert (match_samples(red[:, :1], clients(3, 8, 2)) == 255).all()
    np.testing.assert_allclose(match_samples(red, clients(1, 2, 2, dtype=np.float32)), 4 / 3, rtol=1e-6)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_samples_of_a_file(suffix):
    x = np.random.default_rng(0).normal(size=(12, 1, 8, 8)).astype(np.float32)
    np.savez("own.npz", x=x)
    np.save("own.npy", x)
    words = ["unlabelled=arrays", f"unlabelled.path=own.{suffix}"]
    _, x_u = server_of(*words)
    assert torch.equal(x_u, torch.from_numpy(x))
    before = compose([*ECHO, *words]).identity
    np.savez("own.npz", x=x + 1)
    np.save("own.npy", x + 1)
    assert compose([*ECHO, *words]).identity != before


@pytest.mark.parametrize("choice", ["arrays unlabelled.path=own.npy", "noise"])
def test_samples_are_drawn_anew_for_each_seed_and_change_with_nothing_else(choice):
    np.save("own.npy", np.random.default_rng(0).random((50, 1, 8, 8), np.float32))
    words = [*f"unlabelled={choice}".split(), "unlabelled.samples=9"]
    (_, one), (_, other) = (server_of(*words, f"seed={seed}") for seed in (1, 2))
    _, again = server_of(*words, "seed=1", "heterogeneity.alpha=5", "delay=exponential")
    assert torch.equal(one, again) and rows(one) != rows(other)


def test_noise_has_the_range_of_the_clients_samples():
    _, x_u = server_of("unlabelled=noise", "unlabelled.samples=500")
    assert x_u.shape == (500, 1, 8, 8) and 0 <= x_u.min() < 0.01 and 0.99 < x_u.max() <= 1
    assert abs(float(x_u.mean()) - 0.5) < 0.01
    assert len(rows(x_u)) == 500


def server_of_wrong_files(folder, words):
    (folder / "text.npy").write_text("no array")
    np.save("wide.npy", np.zeros((4, 1, 9, 9), np.float32))
    np.save("two.npy", np.zeros((5, 32, 32, 2), np.uint8))
    np.save("nan.npy", np.full((4, 1, 8, 8), np.nan, np.float32))
    np.savez("named.npz", y=np.zeros(3))
    np.savez("other.npz", x=np.zeros((4, 1, 8, 8)))
    (folder / "other.npz").rename(folder / "renamed.npy")
    pictures(folder, "mnist", (28, 28))
    return server_of(*words.split())


def test_token_ids_are_held_back_too_and_noise_is_of_known_ids():
    generator = Streams(0).unlabelled()
    x = np.zeros((20, 5), np.uint8)
    data = Data(x, np.arange(20) % 2, x, np.arange(20) % 2, 2, symbols=7)
    settings = compose([*ECHO, "unlabelled=noise"])
    _, drawn = settings.parts["unlabelled"].build().draw(data, None, generator)
    assert drawn.shape == (2000, 5) and drawn.dtype == np.uint8 and drawn.max() == 6


def test_a_split_of_its_own_that_a_set_has_can_be_the_servers():
    x = np.arange(30, dtype=np.int32).reshape(10, 3)
    data = Data(x[:4], np.zeros(4, np.int64), x[4:6], np.zeros(2, np.int64), 2, symbols=30, x_other=x[6:])
    other = compose([*ECHO, "unlabelled=other_split", "unlabelled.samples=3"]).parts["unlabelled"].build()
    left, drawn = other.draw(data, None, Streams(0).unlabelled())
    assert left is data and drawn.dtype == np.int32 and len(drawn) == 3
    assert {tuple(row) for row in drawn} < {tuple(row) for row in x[6:]}


def test_a_finished_run_of_fedecho_names_its_samples():
    result = run([*ECHO, "scale=smoke", "progress=false", "budget.server_iterations=2", "unlabelled.samples=30"])
    assert result.ok and result.summary["task"]["server_samples"] == 30
    seconds = result.summary["server_seconds"]["distillation"]
    assert seconds["count"] == 2 and 0 < seconds["least"] <= seconds["mean"] <= seconds["most"]
    assert seconds["count"] * seconds["mean"] < result.summary["wall_seconds"]
