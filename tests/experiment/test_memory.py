"""A run says what it costs, and refuses when that cannot be had."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asyncfl_bench import run
from asyncfl_bench.algorithms import base
from asyncfl_bench.config import compose
from asyncfl_bench.config.choices import options
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.experiment import machine, memory
from asyncfl_bench.experiment.build import build_dry_run, build_run
from asyncfl_bench.experiment.memory import MemoryNeeds
from asyncfl_bench.models import costs
from asyncfl_bench.models.convolutional import Cnn, CnnConfig
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.randomness import Streams
from asyncfl_bench.storage import bytes_of

D = 64 * 200 + 200 + 200 * 10 + 10
ONE_BY_ONE = ["executor=sequential"]  # the others need workspaces besides


def vectors_of(built):
    return replace(built.needs, activations=0)


@pytest.mark.parametrize(
    ("words", "floats"),
    [
        (["algorithm=ace"], 100 + 5 + 100 + 7),
        (["algorithm=ace", "algorithm.rule=incremental"], 5 + 100 + 4 + 100 + 7),
        (["algorithm=ca2fl", "algorithm.cache.precision=bf16"], 50 + 7 + 1 + 100 + 7),
        (["algorithm=asgd", "concurrency=10"], 10 + 7),
        (["algorithm=fedbuff", "algorithm.momentum=0.9"], 2 + 100 + 7),
        (["algorithm=fedac"], 6 + 100 + 4 + 2 * 100 + 7),  # the clients' variates, and one with every version
        (["algorithm=feddyn"], 3 + 100 + 4 + 100 + 7 + 2),  # the clients' sums; what they are pulled to, and how far
        (["algorithm=asyncfeded", "client.momentum=0.5"], 1 + 100 + 7 + 2),  # K may grow: a local model and momentum
    ],
)
def test_the_opening_line_names_the_memory_of_the_model_vectors(words, floats):
    settings = compose([*words, *ONE_BY_ONE])
    built = build_run(settings)
    assert vectors_of(built) == MemoryNeeds(floats * D * 4)  # 7: model, at first, last logged, gradient, 3 uploads
    assert f"model vectors up to {floats * D * 4 / 2**20:.0f} MiB" in built.describe()
    built.executor.close()


def test_what_models_said_of_the_servers_samples_is_counted():
    words = ["algorithm=fedbuff", "distillation=fedecho", "unlabelled.samples=5", *ONE_BY_ONE]
    built = build_run(compose(words))
    reports = 5 * 10 * (100 + 3)  # of every client, and with each upload
    assert vectors_of(built) == MemoryNeeds(4 * (D * (1 + 5 + 100 + 7) + reports))
    built.executor.close()


ONE, OTHER = 64 * 16 + 16, 16 * 10 + 10  # parameters of the clients' part and of the server's
UNDER_WAY = 5 * (4 * ONE + 2 * 8 * 16)  # each has four vectors, and activations with their gradient
CUT = ["scale=smoke", "model.hidden=[16]", "client.batch_size=8", "concurrency=5", "schedule=random_idle"]


@pytest.mark.parametrize(
    ("words", "vectors", "numbers"),
    [
        (["algorithm=gas", "algorithm.generate=false"], 3, 2 * 5 * 8 * 16),
        (["algorithm=gas", "algorithm.generate=false", "algorithm.activation_buffer=900"], 3, 2 * 900 * 8 * 16),
        (
            ["algorithm=gas", "algorithm.activation_buffer=90", "algorithm.covariance=diagonal"],
            3,
            3 * 90 * 8 * 16 + 10 * 8 * 16 + 10 * 16 + 2 * 10 * 17,
        ),
        (["algorithm=minibatch_sfl"], 4, 0),
        (["algorithm=s2fl", "algorithm.groups=3"], 4, 2 * 3 * OTHER),
        (["algorithm=splitfed"], 3, 5 * OTHER),
        (["algorithm=splitfed", "algorithm.server_momentum=0.5"], 3, 5 * 2 * OTHER),
    ],
)
def test_what_a_server_keeps_of_messages_is_counted_by_its_buffer(words, vectors, numbers):
    built = build_run(compose([*CUT, *words]))
    assert vectors_of(built) == MemoryNeeds(4 * ((vectors + 4) * (ONE + OTHER) + UNDER_WAY + numbers))
    built.executor.close()


@pytest.mark.parametrize("algorithm", ["gas", "minibatch_sfl", "s2fl", "splitfed"])
def test_a_rule_that_answers_messages_keeps_no_more_than_it_said(algorithm):
    words = [f"algorithm={algorithm}", "client.local_steps=4", "client.momentum=0.5", "executor=sequential"]
    words += ["algorithm.activation_buffer=60", "algorithm.covariance=diagonal"] if algorithm == "gas" else []
    built = build_run(compose([*CUT, *words]))
    held = 0
    for _ in range(90):
        built.simulation.step()
        held = max(held, bytes_of(built.rule.state_dict()))
    spent = 4 * (4 * (ONE + OTHER) + UNDER_WAY)  # of the estimate what is not the rule's
    assert 0.2 * (built.needs.vectors - spent) < held <= built.needs.vectors - spent
    built.executor.close()


@pytest.mark.parametrize("place", ["host", "disk"])
def test_what_lies_elsewhere_is_counted_there(place):
    settings = compose(["algorithm=ace", f"algorithm.cache.place={place}", "algorithm.cache.precision=int8"])
    built = build_run(settings)
    assert getattr(built.needs, place) == 100 * D
    where = {"host": "on the host", "disk": "on disk"}[place]
    assert f", 1 of them {where}" in built.describe()
    built.executor.close()


def test_no_more_vectors_are_held_than_were_estimated():
    settings = compose(["algorithm=ace", "n_clients=40", "delay=exponential", "threads=1"])
    built = build_run(settings)
    for _ in range(300):
        built.simulation.step()
    held = bytes_of(built.rule.state_dict())
    executor = built.executor
    held += bytes_of([vector for vector, _ in executor.versions._held.values()] + executor.versions._spare)
    assert D * 4 * 40 < held <= built.needs.vectors


@pytest.mark.slow
def test_a_run_that_cannot_fit_refuses_with_the_numbers_and_what_would_fit(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "free_memory", lambda device: 160 * D * 4)
    with pytest.raises(ConfigError) as caught:
        run(["algorithm=ace", "progress=false", *ONE_BY_ONE])
    needed = f"n_clients=100: vectors of {D} floats and activations of 466.0 KiB need 12.6 MiB in cpu, where "
    needed += "9.2 MiB are free; "
    fits = "algorithm.cache.place=disk or algorithm.cache.precision=int8 or n_clients=70 would fit"
    assert str(caught.value) == needed + fits
    assert not (tmp_path / "runs").exists()
    short = ["algorithm=ace", "progress=false", *ONE_BY_ONE, "budget.server_iterations=5"]
    for way in ("algorithm.cache.place=disk", "algorithm.cache.precision=int8", "n_clients=70"):
        assert run([*short, way]).ok


def test_uploads_that_a_live_run_keeps_are_counted_by_its_budget(monkeypatch, tmp_path):
    words = ["algorithm=ca2fl", "live=processes", "live.keep_uploads=true", "n_clients=8", "budget.uploads=200"]
    settings = compose(words)
    assert memory.kept_bytes(settings.kept_uploads, 650) == 200 * 4 * (3 + 650)  # the size of such a run's uploads.bin
    assert compose([*words[:3], "budget.server_iterations=7"]).kept_uploads == 7 * 10
    monkeypatch.setattr(memory, "_free_disk", lambda folder: 522_399)
    with pytest.raises(ConfigError, match=r"keep_uploads=true: takes 510.2 KiB in runs, where 510.2 KiB are free;"):
        memory.refuse_if_disk_too_small(memory.kept_bytes(settings.kept_uploads, 650), settings.directory)


@pytest.mark.parametrize("executor", ["sequential", "threads", "batched"])
def test_a_dry_run_holds_what_the_run_will_hold(executor):
    cache = ["algorithm=ca2fl", "algorithm.cache.precision=int8", "algorithm.cache.place=disk"]
    settings = compose(["scale=smoke", *cache, "delay=exponential", f"executor={executor}", "threads=2"])
    built = build_run(settings)
    simulation, queue = build_dry_run(replace(built, streams=Streams(0)), built.executor.computer)
    simulation.run()
    built.simulation.run()
    assert built.executor.versions.peak_versions == queue.versions.peak_versions > 1
    assert built.executor.blocks.most_rows == queue.blocks.most_rows
    built.executor.close()


@pytest.mark.parametrize("name", options("algorithm"))
def test_a_rule_holds_as_many_vectors_as_it_declares(name, monkeypatch):
    """Counted in all tensors that the rule makes, and of a large model, whose versions a dry run counts."""
    monkeypatch.setattr(memory, "DRY_RUN_FROM", 0)  # bytes
    rules, equip, block = [], base.equip, costs._HeldBytes()

    def counted(method):
        def call(*args):
            with block:
                return method(*args)

        return call

    def equip_and_count(*args):
        rule = equip(*args)
        if not rules:
            for method in ("start", "receive", "tick", "round"):
                monkeypatch.setattr(rule, method, counted(getattr(rule, method)), raising=False)
        rules.append(rule)
        return rule

    monkeypatch.setattr("asyncfl_bench.config.settings.equip", equip_and_count)
    settings = compose(["scale=smoke", f"algorithm={name}", "delay=exponential", "model.hidden=[16]"])
    built, rule, n = build_run(settings), rules[0], settings.root.n_clients
    assert built.simulation.counters.uploads == 0
    if not settings.needs.cuts:
        for _ in range(12 * n):
            built.simulation.step()
        cached = n if rule.needs.cache is not None else 0
        assert max(block.held, default=0) // (4 * built.task.flat.d) == rule.vectors(n) + cached
    built.executor.close()


def test_a_mini_batch_is_counted_by_a_few_of_its_samples_and_leaves_no_trace():
    layers = torch.nn.Linear(6, 300), torch.nn.BatchNorm1d(300, track_running_stats=True), torch.nn.Dropout(0.5)
    flat = FlatModel(torch.nn.Sequential(*layers, torch.nn.Linear(300, 4)))
    statistics_b, drawn = flat.statistics(), torch.get_rng_state()
    x, counts = torch.zeros(1, 6), (50, 500)
    few, many = (costs.step_bytes(flat, x, b) for b in counts)
    # what each layer gives, three of 300 numbers a sample, and on the way back their gradients
    assert 3 * 300 * 4 < (many - few) / 450 < 7 * 300 * 4
    assert torch.equal(flat.statistics(), statistics_b) and torch.equal(torch.get_rng_state(), drawn)
    assert not hasattr(costs._HeldBytes.__torch_dispatch__, "__wrapped__")  # else torch imports its compiler
    for b, estimated in zip(counts, (few, many), strict=True):
        with costs._HeldBytes() as block:
            flat.gradient(flat.initial_d(), x.repeat(b, 1), torch.zeros(b, dtype=torch.int64), flat.initial_d())
        assert estimated == pytest.approx(max(block.held) - 3 * 4 * flat.d, rel=0.01)


def test_a_stack_is_counted_by_few_models_and_samples():
    flat = FlatModel(Cnn(CnnConfig(16)).build((3, 12, 12), 10, 0))
    w_pd, x, y_pb = flat.initial_d().repeat(7, 1), torch.zeros(7, 9, 3, 12, 12), torch.zeros(7, 9, dtype=torch.int64)
    out_pd, weight_pb = torch.empty_like(w_pd), torch.ones(7, 9)
    with costs._HeldBytes() as block:
        flat.stack.gradient(w_pd, x, y_pb, weight_pb, out_pd)
    assert costs.stacked_step_bytes(flat, x[0, :1], 9, 7) == pytest.approx(max(block.held), rel=0.01)


@pytest.mark.process
@pytest.mark.parametrize(
    ("model", "narrower"),
    [("resnet8", []), ("resnet18", ["model.width=32"]), ("vgg16", []), ("alexnet", []), ("cnn", [])],
)
def test_the_activations_of_a_step_are_estimated(model, narrower, tmp_path):
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "memory.py"))
    estimated, measured = script["compare"]([*script["CASES"][f"{model} batch"], *narrower], tmp_path)
    assert measured / 2**20 > 30
    assert 0.8 < estimated / measured < 1.2


@pytest.mark.process
def test_the_memory_a_run_takes_is_what_was_estimated(tmp_path):
    compare = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "memory.py"))["compare"]
    words = ["model=mlp", "model.hidden=[2000]", "n_clients=60", "delay=exponential", "budget.server_iterations=70"]
    estimated, measured = compare([*words, "algorithm=ace", "executor=sequential"], tmp_path)
    assert 300 < measured / 2**20 < 600
    assert 0.85 < estimated / measured < 1.15


def run_out_of_memory(monkeypatch, problem):
    def refuse(settings):
        raise problem

    monkeypatch.setattr("asyncfl_bench.experiment.build.build_run", refuse)
    run(["scale=smoke", "progress=false"])


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_limits_of_control_groups_count_those_above_too(tmp_path):
    stat = "anon 1\ninactive_file 30"
    group(tmp_path / "a", memory__max="500", memory__current="400", memory__stat=stat)
    group(tmp_path / "a/b", memory__max="max", memory__current="100", memory__stat=stat)
    (tmp_path / "own").write_text("0::/a/b\n")
    assert list(machine._free_in_groups(tmp_path / "own", tmp_path)) == [130]
    files = {"memory__limit_in_bytes": "90", "memory__usage_in_bytes": "80"}
    group(tmp_path / "memory/c", **files, memory__stat="inactive_file 5\ntotal_inactive_file 7")
    (tmp_path / "own").write_text("5:cpu,cpuacct:/c\n4:memory:/c\n")
    assert list(machine._free_in_groups(tmp_path / "own", tmp_path)) == [17]
    assert not list(machine._free_in_groups(tmp_path / "nowhere", tmp_path))


def test_a_limit_of_the_address_space_counts(monkeypatch):
    limit = 10**15
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (limit, limit))
    used = limit - machine._free_in_address_space()
    assert 10**7 < used < 10**13
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (used // 2, limit))
    assert machine.free_memory("cpu") == 0


def test_how_many_clients_would_fit_is_found_in_a_few_steps(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(machine, "free_memory", lambda device: 160 * D * 4)
    needs = memory.Vectors.needs
    monkeypatch.setattr(memory.Vectors, "needs", lambda self, *a: (asked.append(1), needs(self, *a))[1])
    with pytest.raises(ConfigError, match="n_clients=70 would fit"):
        run(["algorithm=ace", "progress=false", *ONE_BY_ONE])
    assert len(asked) < 20


def test_an_average_of_too_many_models_is_named_with_the_largest_that_fits(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda device: 300 * D * 4)
    words = ["algorithm=fedbuff", "progress=false", *ONE_BY_ONE]
    for average in (1000, 10**12):
        with pytest.raises(ConfigError, match=r"; evaluation\.average=\d+ would fit$") as caught:
            run([*words, f"evaluation.average={average}"])
        assert (caught.value.key, caught.value.value) == ("evaluation.average", average)
    fits = int(str(caught.value).rpartition("average=")[2].split()[0])
    assert 1 < fits < 1000
