"""What a plan refuses is what the run would be refused for, in the same words."""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from asyncfl_bench.config import compose
from asyncfl_bench.data.partition import Dirichlet
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.experiment.preflight import Preflight
from asyncfl_bench.multirun.preview import estimate_cost

ECHO = "algorithm=fedecho n_clients=10 model=softmax"
MRPC = f"{ECHO} dataset=mrpc model=fasttext heterogeneity=iid n_clients=2"


def write_data(folder):
    """40 images of CIFAR-10 and of MNIST, 3 roles of 20 samples, 4 pairs of texts, 5 own samples."""
    y = np.arange(40) % 10
    for name, shape in (("cifar10", (32, 32, 3)), ("mnist", (28, 28))):
        x = np.zeros((40, *shape), np.uint8)
        np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    y = np.zeros(60, np.uint8)
    np.savez(folder / "shakespeare.npz", x=np.zeros((60, 80), np.uint8), y=y, client=np.arange(60) % 3)
    pairs = [{"split": split, "label": 0, "text1": "a", "text2": "b"} for split in ("train", "train", "dev", "test")]
    (folder / "mrpc.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    np.save(folder / "own.npy", np.zeros((5, 1, 8, 8), np.float32))


def refuse_alike(words):
    """A plan with and without the model, and a run, all in the current folder."""
    write_data(Path())
    settings = compose(["data_dir=.", *words.split()])
    built, said = [], set()
    for check in (Preflight(built.append).check, Preflight().check, build_run):
        with pytest.raises(ConfigError) as caught:
            check(settings)
        said.add(str(caught.value))
    assert not built and len(said) == 1
    raise caught.value


def test_a_plan_refuses_a_file_of_fewer_clients_than_the_run_has(tmp_path):
    (tmp_path / "two.csv").write_text("client,online,offline\na,1,2\nb,2,3\n")
    settings = compose(["availability=trace", "availability.path=two.csv", "n_clients=3"])
    for check in (Preflight(print).check, build_run):
        with pytest.raises(ConfigError, match=r"^n_clients=3: must be at most 2, the clients in two\.csv"):
            check(settings)


def test_seeds_share_one_split_and_a_refused_one_is_made_again_for_each(monkeypatch):
    seeds, split = [], Dirichlet.split
    monkeypatch.setattr(
        Dirichlet, "split", lambda self, y, n, of, *more: (seeds.append(of.seed), split(self, y, n, of, *more))[1]
    )
    preflight = Preflight()
    for seed in range(3):
        preflight.check(compose(["algorithm=ace", f"seed={seed}"]))
    assert seeds == [0]
    for seed in range(3):  # an empty client with seeds 0 and 1
        words = ["algorithm=gas", "n_clients=10", "heterogeneity.min_samples=0", "heterogeneity.alpha=0.05"]
        with suppress(ConfigError):
            preflight.check(compose([*words, f"seed={seed}"]))
    assert (preflight.checked, preflight.passed) == (6, 4)


def test_a_plan_names_the_data_sets_that_it_found():
    write_data(Path())
    words = ["algorithm=ace", "heterogeneity=iid", "model=softmax", "data_dir=."]
    runs = [("mnist", 2), ("digits", 2), ("cifar10", 2), ("mnist", 41)]
    pending = [compose([*words, f"dataset={name}", f"n_clients={n}"]) for name, n in runs]
    *_, found, refused = estimate_cost(pending, preflight=Preflight()).lines
    assert found == "data: mnist, cifar10 (found in .), digits"
    assert refused == "refused: n_clients=41: must be at most 40, the training samples that clients can have (1 run)"
