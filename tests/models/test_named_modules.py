"""Plain torch modules that a yaml names: settings, sweeps, identity, and what is refused."""

import sys
from pathlib import Path

import pytest
from torch import nn

from asyncfl_bench import run, sweep
from asyncfl_bench.config import compose
from asyncfl_bench.errors import BenchError, ConfigError
from asyncfl_bench.files import say_once
from asyncfl_bench.models.given import _check_network

SOURCE = """from torch import nn

class Net(nn.Module):
    def __init__(self, width: int = 8, act=nn.Tanh, slope=0.1):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), act(), nn.Linear(width, 10))

    def forward(self, x):
        return self.layers(x)

def make(width: int):
    return Net(width)

def broken():
    return nn.Linear(1, "wide")

class Other:
    pass

def deep(layers: int, normalised_groups: int, batch_norm=(1, 2), statistics_rate=()):
    return Net(layers)
"""
QUICK = {"scale": "smoke", "progress": False}


def write_parts(tmp_path, monkeypatch) -> Path:
    """A folder of parts with a yaml for each name of the module ``networks_of_mine``."""
    (tmp_path / "networks_of_mine.py").write_text(SOURCE)
    folder = tmp_path / "parts" / "model"
    folder.mkdir(parents=True)
    yamls = {"net": "Net\nwidth: 8", "made": "make\nwidth: ???", "broken": "broken", "other": "Other"}
    yamls["deep"] = "deep\nlayers: 4\nnormalised_groups: 2"
    for name, text in yamls.items():
        (folder / f"{name}.yaml").write_text(f"# Mine\n_target_: networks_of_mine.{text}\n")
    monkeypatch.delitem(sys.modules, "networks_of_mine", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return folder.parent


@pytest.fixture
def parts(tmp_path, monkeypatch) -> Path:
    return write_parts(tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_module_named_in_a_yaml_is_an_axis_of_a_sweep_with_its_arguments_as_settings(parts):
    words = QUICK | {"model": "net", "model.width": [4, 6], "config_dir": parts}
    results = sweep(**words)
    assert [result.summary["parameters"] for result in results] == [310, 460]  # 64 w + w + 10 w + 10
    assert all(result.ok for result in results)
    assert all(result.summary["already_complete"] for result in sweep(**words))


@pytest.mark.slow
def test_it_trains_as_the_same_module_does_as_an_object(parts):
    named = run({"model": "made", "model.width": 8}, config_dir=parts, **QUICK)
    given = run(model=sys.modules["networks_of_mine"].Net, **QUICK)
    assert list(named.metrics["test/loss"]) == list(given.metrics["test/loss"])


def test_a_changed_network_is_another_run(parts, monkeypatch):
    def identity() -> str:
        monkeypatch.delitem(sys.modules, "networks_of_mine", raising=False)
        from asyncfl_bench.config import part_sources

        with part_sources.using_folders([parts]):
            return compose(["model=net"]).identity

    before = identity()
    assert identity() == before
    (parts.parent / "networks_of_mine.py").write_text(SOURCE.replace("nn.Tanh", "nn.ReLU"))
    assert identity() != before


def test_arguments_may_have_the_names_of_facts_of_the_projects_models(parts):
    from asyncfl_bench.config import part_sources

    with part_sources.using_folders([parts]):
        arguments = compose(["model=deep"]).parts["model"].config.arguments
    assert arguments == {"layers": 4, "normalised_groups": 2, "batch_norm": [1, 2], "statistics_rate": []}


def test_an_error_in_an_own_forward_has_its_file_and_line(parts):
    source = SOURCE.replace("return self.layers(x)", "return self.layers(x)[0, 0, 0]")
    (parts.parent / "networks_of_mine.py").write_text(source)
    with pytest.raises(ConfigError, match=r"^model=Net: must take samples of shape 1x8x8: .*mine.py, line 9"):
        run(model="net", config_dir=parts, **QUICK)
    with pytest.raises(BenchError, match=r"networks_of_mine.py, line 15: TypeError"):
        run(model=sys.modules["networks_of_mine"].broken, **QUICK)


@pytest.mark.parametrize(
    ("last", "count"), [(nn.Softmax(1), 1), (nn.LogSoftmax(1), 0), (nn.ReLU(), 0), (nn.Sigmoid(), 0)]
)
def test_a_network_that_gives_probabilities_is_said_once(last, count, capfd):
    say_once.cache_clear()
    for _ in range(2):
        _check_network(nn.Sequential(nn.Flatten(), nn.Linear(64, 10), last), (1, 8, 8), 10)
    said = "model=Sequential: gives probabilities, and the loss applies softmax again; leave out the softmax at its end"
    assert capfd.readouterr().err.count(said) == count
