"""Mistakes in a user's class are answered with file and line once it is loaded, or at the first use."""

import importlib
import inspect
import pkgutil
import sys

import numpy as np
import pytest
from toy import Scripted, simulate

from asyncfl_bench import Observer, run
from asyncfl_bench import algorithms as rules
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import ServerRule
from asyncfl_bench.config.classes import check_members, part_class
from asyncfl_bench.errors import ConfigError, InputError

HEAD = """from asyncfl_bench import Observer
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import BufferRule, ServerRule, StepConfig
from asyncfl_bench.algorithms.common.split import SplitRule
from asyncfl_bench.diagnostics.base import Diagnostics
from asyncfl_bench.simulation.delay import Delay
"""


@pytest.fixture(autouse=True)
def no_module(monkeypatch):
    """Each test has its own mine.py."""
    monkeypatch.setitem(sys.modules, "mine", None)
    del sys.modules["mine"]


def part(tmp_path, monkeypatch, group: str, source: str):
    """The class Mine of a user's module mine.py, as a yaml of the group names it; its first line is line 7."""
    (tmp_path / "mine.py").write_text(HEAD + source)
    sys.modules.pop("mine", None)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return part_class(f"{group}._target_", "mine.Mine")


def test_the_settings_class_is_checked_too(tmp_path, monkeypatch):
    fields = "from dataclasses import dataclass\n@dataclass\nclass C(StepConfig):\n    etas: float = 1.0\n"
    rest = "class Mine(Asgd):\n    Config = C\n"
    assert part(tmp_path, monkeypatch, "algorithm", fields + rest).Config(eta=1.0).etas == 1.0
    for method, said in (
        ("def resolv(self, facts): 0", "C.resolv: did you mean resolve?"),
        ("def __post_init__(self): 0", r"C.__post_init__ must call super\(\).__post_init__\(\)"),
    ):
        with pytest.raises(ConfigError, match=rf"{said}.* \(mine.py, line 11\)"):
            part(tmp_path, monkeypatch, "algorithm", f"{fields}    {method}\n{rest}")


def test_a_helper_that_the_class_uses_may_have_any_name(tmp_path, monkeypatch):
    source = "class Mine(Asgd):\n    def received(self, upload): 0\n    def receive(self, upload): 0\n"
    source += (
        "    def ticks(self): 0\n    def stats(self): return [self.ticks() for _ in (1,)]\n    def _tik(self): 0\n"
    )
    part(tmp_path, monkeypatch, "algorithm", source)


def test_no_rule_of_the_package_would_be_refused_if_it_were_a_users(monkeypatch):
    base = ("base", "split", "rounds", "stateful", "types", "ranges")
    monkeypatch.setattr("asyncfl_bench.errors._OURS", ())
    monkeypatch.setattr(
        "asyncfl_bench.config.classes.is_built_in", lambda cls: cls.__module__.rpartition(".")[2] in base
    )
    modules = [importlib.import_module(f"{rules.__name__}.{one.name}") for one in pkgutil.iter_modules(rules.__path__)]
    classes = [cls for module in modules for cls in vars(module).values() if inspect.isclass(cls)]
    found = {cls for cls in classes if issubclass(cls, ServerRule) and not inspect.isabstract(cls)}
    assert len(found) > 30
    for cls in found - {importlib.import_module(f"{rules.__name__}.distillation").Distilled}:
        check_members.__wrapped__("algorithm", cls.__name__, cls)
        check_members.__wrapped__("algorithm", cls.__name__, cls.Config)


class Rebinding(Asgd):
    def receive(self, upload):
        self.model_d = self.model_d + self.step_size * upload.vector_d
        return True


class InPlace(Asgd):
    def receive(self, upload):
        self.model_d += self.step_size * upload.vector_d
        self.step_size /= 1.0
        return True


class Counting(Asgd):
    def __init__(self, config=None, **settings):
        super().__init__(config, **settings)
        self.n = 0


class Stepping(Asgd):
    def __init__(self, config=None, **settings):
        super().__init__(config, **settings)
        self.step_size = 0.1


class OwnSamples(Scripted):
    def start(self, *given):
        super().start(*given)
        self.samples_n = []


def line_of(cls: type, word: str) -> str:
    """The file and the line of a class here in which a word is."""
    lines, first = inspect.getsourcelines(cls)
    return f"{__file__}, line {first + next(number for number, line in enumerate(lines) if word in line)}"


@pytest.mark.parametrize(
    ("rule", "delay", "place", "said"),
    [
        (Rebinding, Scripted, line_of(Rebinding, "model_d ="), "self.model_d is set by the run; change it in place"),
        (Counting, Scripted, line_of(Counting, "n ="), "self.n is set by the run; choose another name"),
        (Stepping, Scripted, line_of(Stepping, "size ="), "self.step_size is set by the run; choose another name"),
        (Asgd, OwnSamples, line_of(OwnSamples, "samples_n"), "self.samples_n is set by the run; choose another name"),
    ],
)
def test_an_assignment_to_what_the_run_sets_is_refused_at_its_line(rule, delay, place, said):
    with pytest.raises(InputError) as caught:
        simulate(rule(eta=0.5), n=2, delay=delay([[1]] * 2), server_iterations=2)
    assert str(caught.value).startswith(f"{place}: {said}")


def test_a_model_that_is_changed_in_place_by_an_operator_and_a_step_that_is_changed_later_are_accepted():
    models = [
        simulate(rule(eta=0.5), n=2, delay=Scripted([[1]] * 2), server_iterations=4)[1].models
        for rule in (InPlace, Asgd)
    ]
    np.testing.assert_array_equal(*map(np.array, models))


def test_an_observer_that_is_passed_as_an_object_is_checked_before_the_run():
    class Misspelt(Observer):
        def arrivd(self, upload, changed, time): ...

    class Other:
        pass

    for observer, said in (
        (Misspelt(), r"observers=Misspelt: Misspelt.arrivd: did you mean arrived\?.*test_members.py, line \d+"),
        (Other(), "observers=Other: must be an object of a class that extends Observer"),
    ):
        with pytest.raises(ConfigError, match=said):
            run(observers=observer, scale="smoke")


def test_numbers_of_a_rule_or_an_observer_that_are_none_end_the_run_with_their_line():
    class Silent(Observer):
        def measure(self, point):
            return None

    result = run(observers=Silent(), scale="smoke", model="softmax", progress=False)
    assert not result.ok
    place = f"{__file__}, line {line_of(Silent, 'def ').rpartition(' ')[2]}"
    assert (
        result.summary["error"]
        == f"{place}: Silent.measure returned None: it must return numbers by name, {{}} for none"
    )
