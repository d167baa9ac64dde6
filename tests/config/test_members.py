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
from asyncfl_bench.config.classes import part_class
from asyncfl_bench.config.member_checks import check_members
from asyncfl_bench.errors import BenchError, ConfigError, InputError

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


@pytest.mark.parametrize(
    ("group", "source", "said"),
    [
        (
            "algorithm",
            "class Mine(ServerRule):\n    def recceive(self, upload): 0",
            "Mine.recceive: did you mean receive?",
        ),
        ("algorithm", "class Mine(Asgd):\n    def dispatchd(self, client): 0", "did you mean dispatched?"),
        ("algorithm", "class Mine(Asgd):\n    arrival_fact = ()", "did you mean arrival_facts?"),
        ("algorithm", "class Mine(Asgd):\n    class Conf(StepConfig): 0", "did you mean Config?"),
        ("observers", "class Mine(Observer):\n    def arrivd(self, u, changed, time): 0", "did you mean arrived?"),
        ("observers", "class Mine(Observer):\n    @property\n    def measuree(self): 0", "did you mean measure?"),
        ("delay", "class Mine(Delay):\n    def durations(self, work): 0", "did you mean duration?"),
        ("algorithm", "\nclass Mine(ServerRule): 0", r"Mine must define receive\(self, upload\)"),
        ("algorithm", "\nclass Mine(BufferRule): 0", r"must define add\(self, upload\) and step\(self\)"),
        (
            "algorithm",
            "\nclass Mine(SplitRule): 0",
            r"must define receive_message\(self, message\) and replies\(self\)",
        ),
        ("delay", "\nclass Mine(Delay): 0", r"must define duration\(self, work\)"),
        ("algorithm", "class Mine(Asgd):\n    def receive(self): 0", r"must take \(self, upload\)"),
        ("algorithm", "class Mine(Asgd):\n    tick = 0", "Mine.tick must be a method, not 0"),
        ("algorithm", "class Mine(Asgd):\n    def __init__(self): 0", r"must take \(self, config\)"),
        ("algorithm", "class Mine(Asgd):\n    def __init__(self, c): 0", r"must call super\(\).__init__\(config\)"),
        ("algorithm", "class Mine(Asgd):\n    def start(self, m, c, k): 0", r"super\(\).start\(model_d, clients, upl"),
        ("diagnostics", "class Mine(Diagnostics):\n    def start(self, *, rule): 0", r"must take \(self, \*, rule, sh"),
        ("algorithm", "class Mine(Asgd):\n    upload_kinds = 'gradient'", r"write upload_kinds = \('gradient',\)"),
        ("algorithm", "class Mine(Asgd):\n    state_names = 'seen'", r"write state_names = \('seen',\)"),
        (
            "algorithm",
            "class Mine(Asgd):\n    upload_kinds = ('gradients',)",
            "must be of 'difference' and 'gradient', no",
        ),
        ("algorithm", "class Mine(Asgd):\n    upload_kinds = ()", "must be of 'difference' and 'gradient', not"),
        ("algorithm", "class Mine(Asgd):\n    upload_kinds = {'gradient'}", r"write upload_kinds = \('gradient',\)"),
        ("algorithm", "class Mine(Asgd):\n    n = 0", "Mine.n is set by the run; choose another name"),
        ("algorithm", "class Mine(Asgd):\n    server: str = ''", "Mine.server is set by the run"),
    ],
)
def test_a_mistake_in_a_members_name_or_form_is_answered_once_the_class_is_loaded(
    group, source, said, tmp_path, monkeypatch
):
    with pytest.raises(ConfigError, match=rf"^{group}._target_=mine.Mine: .*{said}.* \(mine.py, line 8\)$") as caught:
        part(tmp_path, monkeypatch, group, source)
    assert "\n" not in str(caught.value)


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
        "asyncfl_bench.config.member_checks.is_built_in", lambda cls: cls.__module__.rpartition(".")[2] in base
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


@pytest.mark.parametrize(
    ("rule", "delay", "said"),
    [
        ({"receive": lambda self, upload: None}, [[1]], "receive returned None: it must return True if it changed the"),
        ({"work_for": lambda self, client: 1.5}, [[1]], "work_for returned 1.5: it must return a whole number >= 1"),
        ({}, [[-1]], "duration returned -1.0: it must return a number of seconds, at least 0"),
        ({}, [[float("nan")]], "duration returned nan: it must return a number of seconds, at least 0"),
    ],
)
def test_an_answer_that_is_none_is_named_with_file_and_line(rule, delay, said):
    with pytest.raises(BenchError, match=rf"\.py, line \d+: \w+\.{said}"):
        simulate(type("Mine", (Asgd,), rule)(eta=0.5), n=1, delay=Scripted(delay), server_iterations=2)


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
