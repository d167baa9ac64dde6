"""Runs and sweeps from Python: words, mappings, keywords, objects, observers, and how a result looks."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import asyncfl_bench
from asyncfl_bench import ConfigError, Observer, run, sweep
from asyncfl_bench.api.calls import list_overrides
from asyncfl_bench.config import compose
from asyncfl_bench.config.overrides import parse_override

QUICK = {"scale": "smoke", "progress": False, "model": "softmax"}


def identity(result):
    return result.summary["identity"]


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))

    def forward(self, x):
        return self.layers(x)


DRAWN = np.random.default_rng(0).normal(size=(60, 3))
FRAME = pd.DataFrame(DRAWN, columns=list("abc")).assign(label=np.where(DRAWN[:, 0] > 0, "yes", "no"))


@pytest.fixture
def frame():
    return FRAME.copy()


@pytest.mark.parametrize(
    ("value", "understood"),
    [
        (3, 3),
        (0.1, 0.1),
        (1e-05, 1e-05),
        (True, True),
        (None, None),
        ("ace/figure2", "ace/figure2"),
        ("it's a\\ 'b=c',{d}", "it's a\\ 'b=c',{d}"),
        ("ends in \\", "ends in \\"),
        ([200, 50], [200, 50]),
        (("a", "b c"), ["a", "b c"]),
        (np.float64(0.5), 0.5),
        (np.int64(4), 4),
    ],
)
def test_a_value_means_the_same_as_a_word(value, understood):
    (text,) = list_overrides({"key": value}, {})
    assert parse_override(text).value == understood and not parse_override(text).several


def test_nested_mappings_are_dotted_keys_and_keywords_come_after_them():
    assert list_overrides({"client": {"lr": 1}, "delay.beta": 2}, {"seed": 3}) == [
        "client.lr=1",
        "delay.beta=2",
        "seed=3",
    ]
    assert list_overrides(["seed=1"], {"seed": 3}) == ["seed=1", "seed=3"]
    assert list_overrides({}, {"seed": range(3), "algorithm": "ace,asgd"}, axes=True) == [
        "seed=0,1,2",
        "algorithm=ace,asgd",
    ]
    assert list_overrides({"model.hidden": [[200], [100, 50]]}, {}, axes=True) == ["model.hidden=[200],[100,50]"]


def test_keywords_a_mapping_and_words_are_the_same_run():
    result = run(algorithm="fedbuff", seed=2, **QUICK)
    assert result.ok and len(result.metrics) > 1
    again = run({"algorithm": "fedbuff", "seed": 2} | QUICK)
    third = run(["algorithm=fedbuff", "seed=2", "scale=smoke", "progress=false"], model="softmax")
    assert identity(result) == identity(again) == identity(third)
    assert again.summary["already_complete"] and third.summary["already_complete"]


def test_a_frame_and_a_module_of_ones_own_train(frame):
    result = run(dataset=frame, model=Net, heterogeneity="iid", scale="smoke", progress=False)
    assert result.ok and result.summary["task"]["train_samples"] == 48 and result.summary["task"]["classes"] == 2
    assert result.summary["parameters"] == 3 * 8 + 8 + 8 * 2 + 2
    assert result.directory.name.startswith("ace-own-exp_beta5-seed0-")


def test_clients_of_the_frame_are_the_clients_of_the_run(frame):
    result = run(dataset=frame.assign(client=np.arange(60) % 4), **QUICK)
    assert result.summary["task"]["clients"] == 4


def test_clients_of_a_file_are_the_clients_of_the_run_as_those_of_the_same_arrays(capsys):
    x, y = np.arange(60.0).reshape(20, 3), np.arange(20) % 2
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "client_train": np.arange(20) % 4}
    np.savez("own.npz", **arrays)
    of_file = {"dataset": "arrays", "dataset.path": "own.npz"} | QUICK
    settings = compose([f"{key}={value}" for key, value in of_file.items()])
    assert settings.choices["heterogeneity"] == "natural" and settings.root.n_clients == 4
    runs = [run(of_file), run(dataset=arrays, **QUICK)]
    assert [one.summary["task"]["largest_client"] for one in runs] == [5, 5]
    np.testing.assert_array_equal(*(one.metrics["test/loss"] for one in runs))
    for given in (of_file, {"dataset": arrays} | QUICK):
        capsys.readouterr()
        assert run(given, heterogeneity="iid", n_clients=5, progress=True).summary["task"]["clients"] == 5
        said = capsys.readouterr().err
        assert "20 samples of 2 classes, 5 clients (the 4 of the data are left out by heterogeneity=iid)" in said
        with pytest.raises(ConfigError, match="n_clients=5: must be 4, the clients this data set comes with"):
            run(given, n_clients=5)
    del arrays["client_train"]
    np.savez("own.npz", **arrays)
    plain = compose([f"{key}={value}" for key, value in of_file.items()])
    assert plain.choices["heterogeneity"] == compose([]).choices["heterogeneity"] and plain.root.n_clients > 4


def test_the_first_line_of_a_run_says_the_classes_and_which_have_no_samples(capsys):
    x, y = np.arange(60.0).reshape(20, 3), np.arange(20) % 10 * 2
    run(dataset=(x, y, x, y), heterogeneity="iid", **QUICK | {"progress": True})
    said = capsys.readouterr().err
    assert "20 samples of 19 classes (9 without training samples: 1, 3, 5, 7, 9, 11, 13, 15, 17), " in said


def test_tensors_data_sets_and_arrays_of_the_same_numbers_are_the_same_samples(frame):
    from asyncfl_bench.data.given import arrays_of, digest_of_arrays

    x, y = torch.tensor(frame[["a", "b", "c"]].to_numpy(np.float32)), torch.tensor(frame["label"] == "yes").long()
    bytes_ = torch.arange(60 * 3 * 8 * 6).view(60, 3, 8, 6).byte()
    for one in (x, bytes_):
        pair = TensorDataset(one[:50], y[:50]), TensorDataset(one[50:], y[50:])
        named = {"x_train": one[:50], "y_train": y[:50], "x_test": one[50:], "y_test": y[50:]}
        digests = {digest_of_arrays(arrays_of(given)) for given in (pair, named, tuple(named.values()))}
        assert len(digests) == 1
    channels_last = TensorDataset(bytes_.permute(0, 2, 3, 1), y)
    assert arrays_of(channels_last)["x_train"].shape == arrays_of(TensorDataset(bytes_, y))["x_train"].shape
    assert arrays_of(TensorDataset(x, y))["x_test"].shape == arrays_of(frame)["x_test"].shape == (12, 3)
    assert set(arrays_of(frame.assign(test=[True] * 20 + [False] * 40))["y_train"]) == {0, 1}


def test_frames_of_a_pair_number_labels_together_and_match_columns_by_name(frame):
    from asyncfl_bench.data.given import arrays_of

    train, test = frame[:40].assign(client=3), frame[frame["label"] == "yes"][["label", "c", "a", "b"]]
    arrays = arrays_of((train, test))
    assert (arrays["x_test"] == test[["a", "b", "c"]].to_numpy(np.float32)).all() and set(arrays["y_test"]) == {1}
    assert arrays["x_train"].shape == (40, 3) and set(arrays["client_train"]) == {0}


def test_a_run_with_objects_is_told_by_what_is_in_them(frame):
    from asyncfl_bench.data.given import arrays_of, digest_of_arrays
    from asyncfl_bench.models.given import digest_of_network

    assert digest_of_arrays(arrays_of(frame)) == digest_of_arrays(arrays_of(frame.copy()))
    other = frame.assign(a=frame["a"].where(frame.index != 7, 0.0))
    assert digest_of_arrays(arrays_of(other)) != digest_of_arrays(arrays_of(frame))

    assert digest_of_network(Net) == digest_of_network(Net) != digest_of_network(lambda: Net(9))
    module, same = Net(), Net()
    same.load_state_dict(module.state_dict())
    assert digest_of_network(module) == digest_of_network(same) != digest_of_network(Net)
    with torch.no_grad():
        same.last.bias[0] += 1
    assert digest_of_network(module) != digest_of_network(same)


def test_a_finished_run_with_objects_is_found_and_the_seed_draws_a_made_networks_weights(frame):
    words = {"dataset": frame, "model": Net, "heterogeneity": "iid", "scale": "smoke", "progress": False}
    first, again, other = run(words), run(words), run(words, seed=1)
    assert "already_complete" not in first.summary and again.summary["already_complete"]
    assert first.metrics["test/loss"][0] != other.metrics["test/loss"][0]
    trained = Net()
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    losses = [run(words, model=trained, seed=seed, dataset=frame).metrics["test/loss"][0] for seed in (0, 1)]
    assert losses[0] == losses[1]
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())


def test_another_process_is_told_that_it_lacks_the_object(frame, afl_run):
    result = run(dataset=frame, heterogeneity="iid", **QUICK)
    answer = afl_run("--resume", str(result.directory), "budget.server_iterations=50")
    assert answer.returncode == 2 and "dataset=object: is a DataFrame of the Python program" in answer.stderr


class NetOnDevice(Net):
    away = True

    def cpu(self):
        self.away = False
        return super().cpu()

    def forward(self, x):
        assert not self.away, "all tensors must be on the same device"
        return super().forward(x)


def test_a_copy_of_a_network_is_checked_where_it_is_trained(monkeypatch):
    from asyncfl_bench.data.given import HELD
    from asyncfl_bench.models.given import GivenModel, GivenModelConfig

    module = NetOnDevice()
    monkeypatch.setitem(HELD, "0", module)
    assert not GivenModel(GivenModelConfig("0", "NetOnDevice")).build((3,), 2, seed=0).away and module.away


class Diary(Observer):
    def __init__(self):
        self.points, self.iterations, self.arrivals = [], 0, 0

    def arrived(self, upload, changed, time):
        self.arrivals += 1

    def iterated(self, counters):
        self.iterations = counters.iteration

    def evaluated(self, point):
        self.points.append((self.iterations, point["test/accuracy"]))


def test_observers_hear_of_a_run_and_change_no_bit_of_it():
    quiet, diary = run(output_dir="quiet", **QUICK), Diary()
    result = run(observers=diary, **QUICK)
    assert diary.iterations == 20 and diary.arrivals == result.summary["used"]["uploads"]
    assert diary.points == list(zip(result.metrics["iteration"], result.metrics["test/accuracy"], strict=True))
    columns = ["iteration", "test/accuracy", "test/loss"]
    assert quiet.metrics[columns].equals(result.metrics[columns])


def test_observers_of_a_finished_run_are_refused():
    run(**QUICK)
    with pytest.raises(ConfigError, match=r"observers=\['Diary'\]: would hear nothing: the run is finished, in runs/"):
        run(observers=[Diary()], **QUICK)
    assert run(observers=[Diary()], rerun=True, **QUICK).ok


@pytest.mark.slow
def test_a_sweep_returns_a_result_a_run_also_of_what_did_not_finish(capsys):
    results = sweep(algorithm="fedbuff", client={"lr": [0.1, 1e38]}, **QUICK)
    assert [result.ok for result in results] == [True, False]
    assert results[1].summary["exit_status"] == "diverged" and "finite" in results[1].summary["error"]
    again = sweep({"algorithm": ["fedbuff"], "client.lr": [0.1], **QUICK})
    assert again[0].summary["already_complete"] and again[0].directory == results[0].directory
    assert asyncfl_bench.sweep is sweep  # no module of this package has its name


def test_a_sweep_takes_no_objects(frame):
    with pytest.raises(ConfigError, match="dataset=object: must be a name in a sweep"):
        sweep(dataset=frame, seed=[0, 1])


def test_a_result_is_short_and_a_table_in_a_notebook():
    result = run(**QUICK)
    assert repr(result).startswith(f"<RunResult {result.summary['name']}: status ok; test accuracy ")
    assert len(repr(result)) < 300 and "\n" not in repr(result)
    result.summary["error"] = "<b>"
    assert "<tr><th>error</th><td>&lt;b&gt;</td></tr>" in result._repr_html_()


def test_a_folder_of_parts_holds_for_the_call(tmp_path):
    (tmp_path / "parts/delay").mkdir(parents=True)
    text = "# mine\n_target_: asyncfl_bench.simulation.delays.Constant\n"
    (tmp_path / "parts/delay/steady.yaml").write_text(text)
    result = run(delay="steady", config_dir="parts", **QUICK)
    assert json.loads((result.directory / "summary.json").read_text())["delay"] == "steady"
    with pytest.raises(ConfigError, match="delay=steady: must be one of"):
        run(delay="steady", **QUICK)
