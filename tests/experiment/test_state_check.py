"""A rule of one's own whose state is incomplete is refused instead of resumed with other numbers."""

import numpy as np
import pytest
import torch
from tiers import slow
from toy import assert_same_bits

from asyncfl_bench import run
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import BufferConfig
from asyncfl_bench.config import compose, options
from asyncfl_bench.config.check import part_class
from asyncfl_bench.config.choices import choice_file
from asyncfl_bench.config.part_sources import class_names
from asyncfl_bench.experiment import machine, state_check

SMALL = ["scale=smoke", "model=softmax", "progress=false", "n_clients=4", "algorithm=asgd", "algorithm.eta=0.1"]


class Momentum(Asgd):
    """Heavy ball; its velocity is restored."""

    state_names = ("velocity_d",)

    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.velocity_d = torch.zeros_like(model_d)
        self.scratch_d = torch.zeros_like(model_d)

    def receive(self, upload):
        torch.mul(upload.vector_d, self.step_size, out=self.scratch_d)
        self.velocity_d.mul_(0.9).add_(self.scratch_d)
        self.model_d.add_(self.velocity_d)
        return True


class Forgetful(Momentum):
    state_names = ()


class LastOfEach(Asgd):
    """Steps along the change since the client's last upload, which it forgets."""

    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.last_nd = torch.zeros(clients.n, len(model_d))

    def receive(self, upload):
        self.model_d.add_(upload.vector_d - self.last_nd[upload.client], alpha=self.step_size)
        self.last_nd[upload.client].copy_(upload.vector_d)
        return True


class Buffered(Asgd):
    """Steps along the sum of three uploads, which it forgets."""

    state_names = ("count",)

    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.sum_d, self.count = torch.zeros_like(model_d), 0

    def receive(self, upload):
        self.sum_d.add_(upload.vector_d)
        self.count = (self.count + 1) % 3
        if self.count:
            return False
        self.model_d.add_(self.sum_d, alpha=self.step_size)
        self.sum_d.zero_()
        return True


class Hurried(Asgd):
    """Has its clients do as much work as they have uploaded before, which it forgets."""

    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.seen_n = [0] * clients.n

    def work_for(self, client):
        return 1 + self.seen_n[client]

    def receive(self, upload):
        self.seen_n[upload.client] += 1
        return super().receive(upload)


class Counting(Asgd):
    """Logs how many uploads it had, which it forgets."""

    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.uploads = 0

    def receive(self, upload):
        self.uploads += 1
        return super().receive(upload)

    def stats(self):
        return {"rule/uploads": float(self.uploads)}


class Noisy(Asgd):
    """Adds noise from torch's own generator, whose state no attribute holds."""

    def receive(self, upload):
        self.model_d.add_(torch.randn_like(self.model_d), alpha=1e-3)
        return super().receive(upload)


class Unsaved(Asgd):
    """Keeps a number of NumPy's, which a checkpoint cannot be read with."""

    state_names = ("mean",)

    def start(self, model_d, clients, upload_kind):
        super().start(model_d, clients, upload_kind)
        self.mean = np.float64(0)


class Reckless(Momentum):
    """Computes in the vector that it is lent, and draws: all of it legal."""

    def receive(self, upload):
        upload.vector_d.mul_(float(self.draws(upload.client, 0).random()))
        return super().receive(upload)


ALGORITHMS = options("algorithm")
for _name in ALGORITHMS:  # the rules of the package as somebody else's
    _target = part_class("algorithm._target_", *class_names(choice_file("algorithm", _name))[:1])
    globals()[f"Own_{_name}"] = type(f"Own_{_name}", (_target,), {"__module__": __name__})


def ran(rule, *words):
    return run([*SMALL, f"algorithm._target_={__name__}.{rule}", "budget.uploads=80", *words])


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("Forgetful", "velocity_d, scratch_d"),
        ("LastOfEach", "last_nd"),
        ("Buffered", "sum_d"),
        ("Hurried", "seen_n"),
        ("Counting", "uploads"),
    ],
)
def test_a_rule_that_forgets_what_it_needs_is_refused_and_the_attributes_are_named(rule, named):
    result = ran(rule)
    assert result.exit_code == 1 and result.summary["used"]["uploads"] < 20
    error = result.summary["error"]
    assert error.startswith(
        f"algorithm={rule.lower()}: a copy restored from the rule's state does not compute the same"
    )
    assert f"(these attributes differ: {named})" in error and "\n" not in error
    assert result.metrics["iteration"].tolist()[0] == 0  # what it has is kept


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("Noisy", "though no attribute differs; draw random numbers from self.draws"),
        ("Unsaved", "a copy restored from the rule's state failed (UnpicklingError: Weights only load failed"),
    ],
)
def test_a_rule_whose_state_cannot_be_restored_is_refused(rule, said):
    error = ran(rule).summary["error"]
    assert said in error and "\n" not in error


@pytest.mark.parametrize("clock", ["delay=exponential", "delay=exp_beta5"])
@pytest.mark.parametrize("rule", ["Momentum", "Reckless"])
def test_a_complete_rule_runs_with_the_same_bits_as_without_a_copy(rule, clock, monkeypatch):
    copies = []
    monkeypatch.setattr(
        state_check, "reload_state", lambda state, load=state_check.reload_state: copies.append(1) or load(state)
    )
    words = [clock, "trace=true"]
    checked = ran(rule, *words, "output_dir=checked")
    assert checked.ok, checked.summary["error"]
    assert len(copies) == 7  # after 1, 2, 4, ... 64 uploads
    monkeypatch.setattr(machine, "free_memory", lambda device: None)
    monkeypatch.setattr(state_check.ProbedRule, "_restore_copy", lambda self: None)
    alone = ran(rule, *words, "output_dir=alone")
    assert_same_bits(checked, alone)


FAST = ("afbs", "asyncfeded", "fedecho", "gas")  # scratch attributes, distillation, messages


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAST, *slow(*(name for name in ALGORITHMS if name not in FAST))])
def test_a_rule_with_a_complete_state_is_never_refused(name):
    words = [f"algorithm={name}", f"algorithm._target_={__name__}.Own_{name}", "n_clients=4", "scale=smoke"]
    if isinstance(compose(words).parts["algorithm"].config, BufferConfig):
        words.append("algorithm.buffer_size=3")
    for clock in ("delay=exponential", "delay=exp_beta5"):
        result = run([*words, clock, "budget.uploads=80", "progress=false"])
        assert result.ok, result.summary["error"]


def test_a_copy_is_made_only_where_it_fits_into_memory(monkeypatch, capfd):
    monkeypatch.setattr(machine, "free_memory", lambda device: 10_000_000)
    assert not ran("Forgetful", "output_dir=fits").ok
    monkeypatch.setattr(state_check, "ROOM", 10**6)
    assert ran("Forgetful", "output_dir=large").ok
    said = capfd.readouterr().err
    assert said.count("a second copy does not fit into memory, so the rule's state is not checked") == 1


def test_rules_of_the_package_have_no_copy(monkeypatch):
    monkeypatch.setattr(state_check.ProbedRule, "__init__", None)
    assert run([*SMALL, "budget.uploads=20"]).ok
