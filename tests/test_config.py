"""Every yaml composes, every key says what it means, and no check needs torch."""

import copy
import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from tiers import slow

from asyncfl_bench.config import check, compose, options
from asyncfl_bench.config.check import check_settings
from asyncfl_bench.config.choices import choice_file, groups
from asyncfl_bench.config.settings import PARTS
from asyncfl_bench.ranges import CheckedSettings, absent, at_least
from asyncfl_bench.tracking.records import identity_of

FILES = {
    "arrays": "own.npz",
    "trace": "own.csv",
    "recorded": "arrivals.csv",
}  # what a choice reads, looked at only when a run is built
LOCAL = ["dataset.folder=clients", "dataset.classes=10"]
# sweeps with stand-ins for the models of a paper
EVERY_YAML = [(group, name) for group in groups() for name in options(group)]


def needed(group, name):
    """Words without which a choice cannot work."""
    words = {
        ("dataset", "local"): LOCAL,
        ("dataset", "synthetic"): ["heterogeneity=natural"],
        ("heterogeneity", "natural"): ["dataset=synthetic"],
        ("client", "adamw"): ["algorithm=fedbuff"],
        ("diagnostics", "dissimilarity"): ["algorithm=gas"],
        ("diagnostics", "similarity"): ["algorithm=fedbuff", "heterogeneity=clusters"],
        ("profile", "released"): ["paper=gas/cifar10"],
        ("profile", "tuned"): ["paper=bank/digits"],
        ("live", "processes"): ["algorithm=asgd"],
        ("live", "flower"): ["algorithm=asgd"],
    }
    usable = ["algorithm=fedecho"] if group == "unlabelled" and name != "none" else []
    return words.get((group, name), usable)


EVERY_CHOICE = [pair for pair in EVERY_YAML if pair[0] != "sweep"]
# groups of which any choices go together; tests/algorithms/test_contract.py composes every algorithm
TOGETHER = ("dataset", "heterogeneity", "model", "delay", "availability", "schedule", "distillation", "tracking")


def compositions():
    """Lists of (group, choice) in which each choice is once."""
    apart = [
        (group, name)
        for group, name in EVERY_CHOICE
        if group != "algorithm" and (group not in TOGETHER or needed(group, name) or name in FILES)
    ]
    joint = [[pair for pair in EVERY_CHOICE if pair[0] == group and pair not in apart] for group in TOGETHER]
    rows = [list(filter(None, row)) for row in itertools.zip_longest(*joint)]
    return [pytest.param(row, id="-".join(name for _, name in row)) for row in [[pair] for pair in apart] + rows]


def words_for(chosen):
    """Words that choose, and make the files that are named."""
    words = []
    for group, name in chosen:
        words += [f"{group}={name}", *needed(group, name)]
        if name in FILES:
            Path(FILES[name]).touch()
            words.append(f"{group}.path={FILES[name]}")
    return words


@pytest.mark.parametrize("chosen", compositions())
def test_every_choice_composes(chosen):
    settings = compose(words_for(chosen))
    for group, name in chosen:
        if group in PARTS:
            assert settings.choices[group] == {"auto": "held_back"}.get(name, name)


@pytest.mark.parametrize(("group", "name"), EVERY_CHOICE)
def test_every_yaml_has_a_description_and_a_comment_for_keys_that_no_class_describes(group, name):
    text = choice_file(group, name).read_text().removeprefix("# @package _global_\n")
    first, *lines = text.splitlines()
    assert first.startswith("# "), "the first line says what this is"
    if group in (*PARTS, "tracking"):
        return  # tests/config/test_descriptions.py
    for line in itertools.takewhile(lambda line: line not in ("profiles:", "scales:"), lines):
        key = line.split(":")[0].strip()
        if (
            key in ("_target_", "defaults", "hydra", "sweeper", "params", "")
            or key.startswith(("- ", "#"))
            or (not line.split(":", 1)[1].strip() and not line.startswith(" "))
        ):
            continue  # a section's own line
        assert " # " in line, f"{key} has no comment"


OF_RUNS = [row for (row,) in (case.values for case in compositions()) if row[0][0] in PARTS]
OF_RUNS += [[("algorithm", name)] for name in options("algorithm")]


@pytest.mark.process
@pytest.mark.parametrize("composed", [[], *slow(OF_RUNS)], ids=["default", "every choice"])
def test_checking_a_config_needs_neither_torch_nor_data(composed):
    program = f"""
import importlib, sys
for name in ("torch", "torchvision", "sklearn", "pandas", "wandb", "matplotlib", "datasets", "filelock"):
    sys.modules[name] = None  # importing it now fails
import yaml
from asyncfl_bench import config
from asyncfl_bench.config.choices import choice_file
for group, name in [(group, name) for group in config.settings.PARTS for name in config.options(group)]:
    content = yaml.safe_load(choice_file(group, name).read_text())
    module, _, target = content.get(group, content)["_target_"].rpartition(".")
    getattr(importlib.import_module(module), target).Config
for words in {[[], *map(words_for, composed)]}:
    config.compose(words)
del sys.modules["filelock"]  # a sweep needs it
import asyncfl_bench.cli.command, asyncfl_bench.config.manual, asyncfl_bench.simulation.engine
import asyncfl_bench.reports.cli
asyncfl_bench.config.manual.overview()
print("fine")
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout.strip() == "fine", answer.stderr


@pytest.mark.slow
def test_auto_and_null_are_resolved_to_what_they_mean():
    settings = compose(["algorithm=ace", "delay=exp_beta5"])
    assert settings.root.clock == "ticks"
    assert settings.parts["algorithm"].config.step_on == "tick"
    assert settings.parts["algorithm"].config.eta == pytest.approx(0.2 * (100 / 500) ** 0.5)
    assert settings.parts["client"].config.upload == "gradient"
    settings = compose(["algorithm=delay_adaptive_asgd", "delay=exponential", "schedule=random_idle", "concurrency=20"])
    assert settings.root.clock == "time"
    assert settings.parts["algorithm"].config.tau_c == settings.root.concurrency == 20
    assert compose(["algorithm=aced", "delay=uniform"]).parts["algorithm"].config.step_on == "arrival"
    assert compose(["algorithm=fedbuff"]).parts["client"].config.upload == "difference"


def test_identity_ignores_where_and_how_and_notices_what():
    identity = compose([]).identity
    same = [
        "output_dir=elsewhere",
        "device=cpu",
        "threads=2",
        "tracking=[wandb,csv]",
        "objective=test/loss",
        "trace=true",
        "checkpoint.every=3",
    ]
    for word in same:
        assert compose([word]).identity == identity, word
    assert compose(["client.local_steps=1"]).identity == identity  # its default
    for part in ("dataset=cifar10 dataset.download={}", "dataset=sst2 model=bert model.download={}"):
        assert len({compose(part.format(value).split()).identity for value in ("true", "false")}) == 1
    for word in ["seed=1", "algorithm.c=0.5", "delay.beta=6", "n_clients=50", "evaluation.every=20"]:
        assert compose([word]).identity != identity, word


@pytest.mark.parametrize("part", ["dataset=arrays", "delay=trace", "availability=trace"])
def test_identity_follows_the_content_of_a_file_and_not_its_place(part, tmp_path):
    group, _, choice = part.partition("=")
    kind = FILES[choice].partition(".")[2]
    identities = []
    header = {"delay": b"client,duration\n", "availability": b"client,online,offline\n"}.get(group, b"")
    for name, content in (("one", b"1"), ("two", b"1"), ("three", b"3")):
        (tmp_path / f"{name}.{kind}").write_bytes(header + content)
        identities.append(compose([part, f"{group}.path={tmp_path}/{name}.{kind}"]).identity)
    assert identities[0] == identities[1] != identities[2]


def test_a_smoke_scale_can_still_be_overridden():
    settings = compose(["scale=smoke", "budget.server_iterations=7"])
    assert (settings.root.n_clients, settings.budget.server_iterations) == (10, 7)


def test_the_data_directory_comes_from_the_key_then_the_environment(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert str(compose([]).data_dir) == "/cache/asyncfl_bench/data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compose([]).data_dir.parts[-3:] == (".cache", "asyncfl_bench", "data")
    monkeypatch.setenv("ASYNCFL_BENCH_DATA", str(tmp_path / "one"))
    assert compose([]).data_dir == tmp_path / "one"
    assert compose([f"data_dir={tmp_path / 'two'}"]).data_dir == tmp_path / "two"


def test_work_is_handed_out_as_the_rule_needs_it():
    for algorithm, expected in (("ace", "immediate"), ("asyncfeded", "immediate"), ("fedavg", "per_round")):
        assert compose([f"algorithm={algorithm}"]).parts["schedule"].config.dispatch == expected
    assert (
        compose(["algorithm=fedbuff", "schedule.dispatch=per_round"]).parts["schedule"].config.dispatch == "per_round"
    )


def test_a_rule_that_decides_a_setting_of_the_clients_sets_it():
    for words, expected in ((["fedprox", "mu=0.3"], 0.3), (["feddyn", "alpha=0.2"], 0.2), (["fedasync", "rho=2"], 2)):
        settings = compose([f"algorithm={words[0]}", f"algorithm.{words[1]}", "client.local_steps=2"])
        assert settings.parts["client"].config.proximal == settings.tree["client"]["proximal"] == expected


def test_in_rounds_a_budget_of_uploads_is_as_many_iterations_as_it_has_rounds():
    budget = ["budget.server_iterations=null", "budget.uploads=1000", "n_clients=50"]
    settings = compose(["algorithm=fedavg", "algorithm.eta=null", *budget, "availability=dropout"])
    assert settings.parts["algorithm"].config.eta == pytest.approx((50 / 20) ** 0.5)
    assert settings.parts["availability"].config.at_iteration == 10
    few = compose(["algorithm=fedavg", "algorithm.eta=null", *budget, "concurrency=10"])
    assert few.parts["algorithm"].config.eta == pytest.approx((50 / 100) ** 0.5)


def test_finished_runs_keep_their_identities():
    """Written down under results version 3: a change that renames them makes every finished run pending again."""
    known = {
        "5b1a564a": ["algorithm=ace", "delay=exp_beta30"],
        "155c78cd": ["paper=ace", "scale=small", "algorithm=fedbuff"],
        "8fea41bf": ["paper=ace", "profile=fair", "scale=small", "algorithm=ca2fl"],
        "4e6be48a": ["paper=asyncfeded/synthetic", "algorithm=asyncfeded"],
        "f2571e9f": ["paper=ace", "scale=small", "algorithm=asgd", "length=long"],
        "ed3d18b0": ["dataset=cifar10", "model=lenet5", "algorithm=fedbuff", "client.lr=0.1"],
        "d7ca705b": ["dataset=cifar10", "model=lenet5", "algorithm=asgd", "algorithm.c=0.2"],
        "06c1eede": ["paper=gas/cifar10", "scale=small", "algorithm=fedavg", "heterogeneity=class_shards"],
    }
    assert {compose(words).identity: words for words in known.values()} == known


@pytest.mark.slow
def test_a_data_set_declares_the_step_of_a_model_for_runs_that_set_none():
    def steps(*words):
        settings = compose(["dataset=cifar10", "model=lenet5", *words])
        return settings.parts["algorithm"].config.eta, settings.parts["client"].config.lr

    assert steps()[0] == 0.05  # ACE steps with gradients
    assert steps("algorithm=fedbuff") == (1.0, 0.05)
    assert steps("algorithm=fedbuff", "client=adamw") == (1.0, 0.0005)
    assert steps("algorithm.total_steps=2000") == pytest.approx((0.2 * (100 / 2000) ** 0.5, 0.1))
    assert steps("model=cnn", "algorithm=fedbuff") == (1.0, 0.1)


class NoPrivacy:
    """A choice of a new group, as a run without the group is."""

    absent = True

    @dataclasses.dataclass
    class Config(CheckedSettings):
        noise: float = 0.0


class Privacy(NoPrivacy):
    absent = False


SOME = ("ace", "fedavg", "gas")  # one of each kind


@pytest.mark.parametrize("name", [*SOME, *slow(*(name for name in options("algorithm") if name not in SOME))])
def test_a_new_setting_and_a_new_group_rename_no_run_until_they_are_chosen(name, monkeypatch):
    known = compose([f"algorithm={name}"])

    @dataclasses.dataclass
    class Longer(known.parts["algorithm"].target.Config):
        warm_up: Annotated[int, at_least(0), absent(0)] = 0

    monkeypatch.setattr(known.parts["algorithm"].target, "Config", Longer)
    monkeypatch.setattr(check, "PARTS", (*PARTS, "privacy"))

    def renewed(privacy, **settings):
        tree = copy.deepcopy(known.tree)
        tree["algorithm"] |= settings
        tree["privacy"] = {"_target_": f"{__name__}.{privacy}"}
        return check_settings(tree)

    same = renewed("NoPrivacy")
    assert same.tree["algorithm"]["warm_up"] == 0
    assert sorted(same.tree["absent"]) == sorted(["privacy", *known.tree["absent"], "algorithm.warm_up"])
    assert (same.identity, same.experiment) == (known.identity, known.experiment)
    assert identity_of(same.tree) == known.identity  # as a report finds it, which sees the tree alone
    others = [same, renewed("NoPrivacy", warm_up=1), renewed("Privacy"), renewed("Privacy", warm_up=1)]
    assert len({settings.identity for settings in others}) == 4
