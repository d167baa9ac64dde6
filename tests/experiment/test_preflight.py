"""What is refused before torch is imported, which takes more than a second: it cannot be imported in these tests."""

import sys
import threading

import numpy as np
import pytest

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.data.datasets import Digits, DigitsConfig
from asyncfl_bench.errors import BenchError
from asyncfl_bench.experiment import preflight
from asyncfl_bench.randomness import Streams
from asyncfl_bench.tracking import progress_bar


@pytest.fixture(autouse=True)
def no_torch(monkeypatch):
    Digits(DigitsConfig()).load(None, Streams(0), 1)  # made once, by packages that look for torch
    for name in ("torch", "asyncfl_bench.experiment.build"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["executor=graph"], "^executor=graph: needs a GPU, and the run is on a CPU; executor=auto works there"),
        (["output_dir=/proc/x"], r"^output_dir=/proc/x: must be a folder that can be written; in /proc no file"),
        (["hydra.run.dir=/proc/x"], r"^hydra.run.dir=/proc/x: must be a folder that can be written"),
        (["output_dir=file/below"], r"^output_dir=file/below: .*Not a directory"),
        (
            ["delay=trace", "delay.path=bad.csv"],
            "bad.csv: must have the columns client, .*; found client, tme",
        ),
        (["availability=trace", "availability.path=bad.csv"], "must have the columns client, online, offline; or"),
        (["dataset=arrays", "dataset.path=bad.npz"], r"bad.npz: y_train has 9 labels, x_train has shape \(10, 3\)"),
        (["dataset=arrays", "dataset.path=flat.npz"], r"flat.npz: x_train must be floats \(N, F\)"),
        (["dataset=arrays", "dataset.path=good.npz", "model=lenet5"], "^model=lenet5: needs images, .* 3 features"),
        (["model=vgg16"], "^model=vgg16: needs images of at least 32x32 pixels, the data set has 8x8"),
        (["model=resnet18", "model.norm=batch"], "^model=resnet18: needs images of at least 16x16 pixels"),
        (["model=fasttext"], "^model=fasttext: needs token ids, the data set has samples of 1x8x8 numbers"),
        (["dataset=sst2", "model=fasttext", "data_dir=."], "^sst2 is missing. Looked for sst2.jsonl"),
        (["dataset=sst2", "model=fasttext", "data_dir=bad"], "^bad/sst2.jsonl, line 1: must be a json object"),
        (["dataset=femnist", "model=cnn_one_pool", "data_dir=bad"], "^bad/femnist.npz: not a readable .npz file"),
        (["unlabelled=images", "algorithm=fedecho", "unlabelled.name=mnist", "data_dir=bad"], "^MNIST is missing"),
        (
            ["unlabelled=arrays", "algorithm=fedecho", "unlabelled.path=bad/femnist.npz"],
            r"^bad/femnist.npz: not a readable .npz file \(another format, or Python objects\); numpy.savez",
        ),
        (
            ["unlabelled=arrays", "algorithm=fedecho", "unlabelled.path=own.npz"],
            r"^own.npz: x must be uint8 images, or floats of .* float32 1x8x8; found float32 of shape \(4, 3\)",
        ),
        (
            ["model.hidden=[1000000000]"],
            "^n_clients=2: vectors of 75000000010 floats need .* a smaller model is needed",
        ),
        (["algorithm=gas", "model.hidden=[4097]"], "^algorithm.covariance=full: must be diagonal with a cut of 4097"),
    ],
)
def test_a_folder_or_data_that_cannot_work_are_refused_before_torch_is_imported(words, said, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "bad.csv").write_text("client,tme\n0,1\n")
    (tmp_path / "bad").mkdir()
    for name in ("sst2.jsonl", "femnist.npz"):
        (tmp_path / "bad" / name).write_text("{")
    y, labels = np.arange(10) % 2, {"y_test": np.zeros(4, int)}
    np.savez("bad.npz", x_train=np.zeros((10, 3)), y_train=y[:9], x_test=np.zeros((4, 3)), **labels)
    np.savez("flat.npz", x_train=np.zeros(10), y_train=y, x_test=np.zeros(4), **labels)
    np.savez("good.npz", x_train=np.zeros((10, 3)), y_train=y, x_test=np.zeros((4, 3)), **labels)
    np.savez("own.npz", x=np.zeros((4, 3), np.float32))
    with pytest.raises(BenchError, match=said) as caught:
        run(["n_clients=2", "progress=false", *words])
    assert caught.value.exit_code == 2 and not (tmp_path / "runs").exists()


def test_a_load_that_takes_long_is_announced(monkeypatch):
    said, was_said, load = [], threading.Event(), preflight.Preflight._load
    monkeypatch.setattr(progress_bar, "say", lambda text: (said.append(text), was_said.set()))
    monkeypatch.setattr(progress_bar, "_SECONDS_TO_ANNOUNCE", 0.001)
    monkeypatch.setattr(preflight.Preflight, "_load", lambda *given: was_said.wait(10) and load(*given))
    settings = compose(["algorithm=asgd", "dataset=synthetic", "model=softmax", "n_clients=5"])
    preflight.Preflight().check(settings)
    settings.root.progress = False
    preflight.Preflight().check(settings)
    assert said == ["loading dataset=synthetic for 5 clients"]
