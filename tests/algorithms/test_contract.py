"""What every yaml in conf/algorithm must do, whoever wrote it; and that the checks find rules that do not."""

import itertools

import pytest
import torch
from tiers import alternate, slow

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.config import compose, options
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.experiment.contract import CHECKS, CLOCKS, Candidate

ALGORITHMS = options("algorithm")
FAST = ("ace", "fedbuff", "fedavg", "gas")  # one of each kind; golden trajectories run all
SOME = [*FAST, *slow(*(name for name in ALGORITHMS if name not in FAST))]


@pytest.mark.parametrize(("name", "clock"), alternate(*itertools.product(ALGORITHMS, CLOCKS)))
def test_a_rule_keeps_the_contract(name, clock):
    candidate = Candidate([f"algorithm={name}"], clock)
    for check in ("changes", "state", "borrowed vectors", "determinism"):  # BrokenContract says which one
        CHECKS[check](candidate)
    assert candidate.settings.choices["algorithm"] == name


@pytest.mark.parametrize("name", SOME)
def test_values_outside_the_declared_ranges_are_refused(name):
    CHECKS["settings"](Candidate([f"algorithm={name}"]))


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", ["fedbuff", *slow(*(name for name in ALGORITHMS if name != "fedbuff"))])
def test_a_run_that_is_stopped_half_way_ends_as_if_it_had_not_been(name, clock):
    CHECKS["resume"](Candidate([f"algorithm={name}"], clock))


@pytest.mark.parametrize("name", SOME)
def test_a_bad_setting_is_refused_with_its_key_and_value(name):
    for setting, value in (
        ("eta", "-1"),
        ("eta", "0"),
        ("eta", "fast"),
        ("c", "0"),
        ("bufer_size", "3"),
        ("eta", ".inf"),
    ):
        with pytest.raises(ConfigError) as caught:
            compose([CLOCKS[0], "heterogeneity=iid", f"algorithm={name}", f"algorithm.{setting}={value}"])
        assert caught.value.key == f"algorithm.{setting}"
        assert "\n" not in str(caught.value)


def find_break(rule, check):
    CHECKS[check](Candidate(["algorithm=asgd", f"algorithm._target_={rule.__module__}.{rule.__name__}"]))


class Liar(Asgd):
    def receive(self, upload):
        super().receive(upload)
        return False


class LateLiar(Asgd):
    def receive(self, upload):
        super().receive(upload)
        return upload.staleness < 50


class Exploding(Asgd):
    def receive(self, upload):
        self.model_d.mul_(torch.nan)
        return super().receive(upload)


class Counting(Asgd):
    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.seen = 0

    def receive(self, upload):
        self.seen += 1
        return super().receive(upload)

    def stats(self):
        return {"rule/seen": float(self.seen)}


class Borrower(Asgd):
    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.last_d = torch.zeros_like(model_d)

    def receive(self, upload):
        self.model_d.add_(self.last_d.nan_to_num(9.0), alpha=self.step_size)
        self.model_d.add_(upload.vector_d, alpha=self.step_size)
        self.last_d = upload.vector_d
        return True


class Noisy(Asgd):
    def receive(self, upload):
        self.model_d.add_(torch.randn_like(self.model_d))
        return super().receive(upload)


class Unchecked(Asgd):
    class Config(Asgd.Config):
        def __post_init__(self):
            if self.eta != -1:
                super().__post_init__()
