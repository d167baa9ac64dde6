"""The final weights of every algorithm, replayed from the trace by NumPy code that shares nothing with the package."""

import itertools
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from replay import Replay
from replay_time import arrivals_in_rounds, arrivals_one_by_one, class_duration, ranked_classes
from toy import write_noisy_classes

from asyncfl_bench import run

STEPS = ["client.local_steps=4", "client.momentum=0.5", "client.lr=0.1"]
FADAS = ["algorithm=fadas", "algorithm.eps=0.01"]  # else rounding decides where a gradient is nearly 0
DISTILLED = ["distillation.rate=0.003", "distillation.batch_size=20"]
ROUNDS = {
    "fedavg": ["algorithm=fedavg"],
    "fedavg steps": ["algorithm=fedavg", "algorithm.weights=uniform", *STEPS, "client.lr_decay=0.9"],
    "fedprox steps": ["algorithm=fedprox", "algorithm.mu=0.8", *STEPS, "client.weight_decay=0.01"],
    "fedopt": ["algorithm=fedopt", "algorithm.eta=0.05", "algorithm.tau=0.01"],
    "fedopt yogi steps": ["algorithm=fedopt", "algorithm.eta=0.05", "algorithm.optimizer=yogi", *STEPS],
    "fedopt adagrad": ["algorithm=fedopt", "algorithm.eta=0.1", "algorithm.optimizer=adagrad"],
    "feddyn": ["algorithm=feddyn", "algorithm.alpha=0.3"],
    "feddyn steps": ["algorithm=feddyn", "algorithm.alpha=0.3", *STEPS, "client.lr_decay=0.95"],
}
CASES = {
    "ace": ["algorithm=ace"],
    "ace incremental": ["algorithm=ace", "algorithm.rule=incremental"],
    "ace int8": ["algorithm=ace", "algorithm.cache.precision=int8"],
    "aced int8": ["algorithm=aced", "algorithm.tau_algo=3", "algorithm.cache.precision=int8"],
    "ca2fl int8": ["algorithm=ca2fl", "algorithm.buffer_size=4", "algorithm.cache.precision=int8"],
    "aced": ["algorithm=aced", "algorithm.tau_algo=3"],
    "aced by gradient": ["algorithm=aced", "algorithm.tau_algo=6", "algorithm.tstart=gradient"],
    "fedbuff": ["algorithm=fedbuff", "algorithm.buffer_size=4"],
    "fedbuff weighted": [
        "algorithm=fedbuff",
        "algorithm.buffer_size=3",
        "algorithm.staleness_weight=polynomial",
        "algorithm.momentum=0.5",
        "algorithm.max_staleness=5",
    ],
    "fedbuff freshest": ["algorithm=fedbuff", "algorithm.buffer_size=4", "algorithm.staleness_weight=freshest"],
    "fedecho": ["algorithm=fedecho", "algorithm.buffer_size=4", "algorithm.max_staleness=2", *DISTILLED],
    "fedecho sgd": [
        *("algorithm=fedecho", "algorithm.buffer_size=3", "distillation.optimizer=sgd", "distillation.rate=0.3"),
        *("distillation.clip=0.2", "distillation.max_age=2", "distillation.kl_mean=elements", *STEPS),
    ],
    "ace distilled": ["algorithm=ace", "distillation=fedecho", "client.lr=0.2", *DISTILLED],
    "afbs": ["algorithm=afbs", "algorithm.buffer_size=6", "algorithm.clusters=3"],
    "afbs own": [
        *("algorithm=afbs", "algorithm.buffer_size=4", "algorithm.clusters=2", "algorithm.maximum=buffer"),
        *("algorithm.weight=own", "algorithm.rank=1", "algorithm.sigma=0.01"),
    ],
    "afbs never": [
        *("algorithm=afbs", "algorithm.buffer_size=5", "algorithm.keep=never", "algorithm.weight=none", *STEPS),
    ],
    "ca2fl": ["algorithm=ca2fl", "algorithm.buffer_size=4"],
    "fadas": [*FADAS, "algorithm.buffer_size=4"],
    "fadas code": [*FADAS, "algorithm.buffer_size=3", "algorithm.delay_adaptive=code", "algorithm.tau_c=2", *STEPS],
    "fadas paper": [
        *(*FADAS, "algorithm.buffer_size=4", "algorithm.delay_adaptive=paper", "algorithm.bias_correction=false"),
    ],
    # of a single step at the same model a second time nothing but rounding is left
    "fedac": [
        "algorithm=fedac",
        "algorithm.eps=0.3",
        "algorithm.buffer_size=4",
        "client.local_steps=2",
        "client.lr=0.2",
    ],
    "fedac share": [
        *("algorithm=fedac", "algorithm.eps=0.1", "algorithm.buffer_size=3", "algorithm.variate_step=share"),
        *("client.local_steps=4", "client.lr=0.1", "client.lr_decay=0.95", "client.weight_decay=0.01"),
    ],
    "mifa": ["algorithm=mifa", "algorithm.buffer_size=4"],
    "mifa samples": ["algorithm=mifa", "algorithm.buffer_size=3", "algorithm.weights=samples", *STEPS],
    "asgd": ["algorithm=asgd"],
    "delay adaptive": ["algorithm=delay_adaptive_asgd", "algorithm.tau_c=4"],
    "delay adaptive koloskova": ["algorithm=delay_adaptive_asgd", "algorithm.tau_c=4", "algorithm.variant=koloskova"],
    "ringmaster": ["algorithm=ringmaster", "algorithm.threshold=4"],
    "rennala": ["algorithm=rennala", "algorithm.buffer_size=3"],
    "malenia": ["algorithm=malenia", "algorithm.eta=1"],
    "malenia stops": ["algorithm=malenia", "algorithm.eta=1", "algorithm.restart_at=1"],
    "rennala stops": ["algorithm=rennala", "algorithm.buffer_size=3", "algorithm.restart_at=1"],
    "ringmaster stops": ["algorithm=ringmaster", "algorithm.restart_at=4"],
    "malenia batch": ["algorithm=malenia", "algorithm.batch=20", "algorithm.eta=1"],
    "ringleader": ["algorithm=ringleader"],
    "ringleader current": ["algorithm=ringleader", "algorithm.continue_on=current"],
    "rescaled_asgd": ["algorithm=rescaled_asgd"],
    "clipped_asgd": ["algorithm=clipped_asgd", "algorithm.clip=0.3"],
    "delayed_nesterov": ["algorithm=delayed_nesterov", "algorithm.window=4", "algorithm.beta=0.5"],
    "delayed_nesterov spread": [
        *("algorithm=delayed_nesterov", "algorithm.window=3", "algorithm.spread=0.2", "algorithm.dylu=true"),
        *("algorithm.beta=0.6", *STEPS),
    ],
    "area": ["algorithm=area", "algorithm.buffer_size=4", "algorithm.eta=1"],
    "area step": ["algorithm=area", "algorithm.buffer_size=1", "algorithm.eta=0.6", *STEPS],
    "fedstale_async": ["algorithm=fedstale_async", "algorithm.buffer_size=4"],
    "fedstale_async heard": [
        *("algorithm=fedstale_async", "algorithm.buffer_size=3", "algorithm.weights=samples", "algorithm.over=heard"),
        *("algorithm.alpha=0.8", "algorithm.p=[0.4]", "algorithm.beta=0.7", *STEPS),
    ],
    "port": ["algorithm=port", "algorithm.buffer_size=3", "algorithm.bound=2", "algorithm.eta=0.8"],
    "port dispatched": [
        *("algorithm=port", "algorithm.buffer_size=4", "algorithm.bound=3", "algorithm.deltas=dispatched", *STEPS),
    ],
    "fedasync": ["algorithm=fedasync", "algorithm.alpha=0.4"],
    "fedasync hinge": [
        *("algorithm=fedasync", "algorithm.staleness_weight=hinge", "algorithm.hinge_a=0.5", "algorithm.hinge_b=2"),
        *("algorithm.lag=time", "algorithm.rho=0.5", *STEPS),
    ],
    "fedasync polynomial": ["algorithm=fedasync", "algorithm.staleness_weight=polynomial", "client.lr_decay=0.9"],
    "fedasmu_server": ["algorithm=fedasmu_server", "algorithm.mu=1.5"],
    "fedasmu_server bound": [
        *("algorithm=fedasmu_server", "algorithm.bound=4", "algorithm.iota=0.2", "algorithm.exponent=1.5", *STEPS),
    ],
    "fedfa": ["algorithm=fedfa", "algorithm.queue=4"],
    "fedfa every": ["algorithm=fedfa", "algorithm.queue=5", "algorithm.every=2", *STEPS],
    "asyncfeded": ["algorithm=asyncfeded", "algorithm.kappa=0.5", *STEPS],
    "asyncfeded literal": ["algorithm=asyncfeded", "algorithm.k_rule=literal", "algorithm.lam=1", *STEPS],
    "delay adaptive drop": ["algorithm=delay_adaptive_asgd", "algorithm.tau_c=4", "algorithm.variant=drop"],
    "fedbuff adjusted": ["algorithm=fedbuff", "algorithm.buffer_size=4", "client.logit_adjustment=0.7", *STEPS],
}
WORLDS = {
    "ticks": ["delay=exp_beta5"],
    "time": ["delay=exp_beta5", "clock=time"],
    "empty ticks": ["delay=exp_beta30", "delay.compute=3"],
    "random idle": ["delay=exponential", "schedule=random_idle", "concurrency=5"],
    "at the flush": ["delay=uniform", "schedule=random_idle", "concurrency=6", "schedule.dispatch=after_update"],
    "suspension": ["delay=uniform", "availability=suspension", "availability.probability=0.3"],
    "dropout": ["delay=exp_beta5", "availability=dropout", "availability.share=0.4", "availability.at_iteration=15"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "toy.npz"
    write_noisy_classes(path)
    return path


FACTS = {"fedasync": ["mixing"], "fedasmu_server": ["mixing"], "asyncfeded": ["gamma", "eta_g", "k"]}
WITHOUT_ETA = (*FACTS, "fedfa", "feddyn")
OF_GRADIENTS = (
    "clipped_asgd",
    "rescaled_asgd",
    "ringleader",
    "malenia",
    "ace",
    "aced",
    "asgd",
    "delay",
    "ringmaster",
    "rennala",
)  # whose clients have no local step
# ACED by gradient age counts turns that leave the model alone; a trace tells the turn of a dispatch only where a
# client is dispatched as it reports
LEFT_OUT = {("aced by gradient", world) for world in ("random idle", "at the flush", "suspension")}
# PORT waits for work that is lost, of which a trace says nothing
LEFT_OUT |= {(case, world) for case in ("port", "port dispatched") for world in ("suspension", "dropout")}
# these wait for every client
LEFT_OUT |= {
    (case, "dropout") for case in ("malenia", "malenia stops", "malenia batch", "ringleader", "ringleader current")
}
WORLDS_OF_ROUNDS = ("ticks", "random idle", "suspension", "dropout")


def covering(cases, worlds):
    """Every pair that can be replayed. The fast tier has each case in one world, each rule in two."""
    rules = Counter(case.split()[0] for case in cases)
    for number, case in enumerate(cases):
        possible = [world for world in worlds if (case, world) not in LEFT_OUT]
        shifts = (0,) if rules[case.split()[0]] > 1 else (0, len(possible) // 2)
        fast = {possible[(number + shift) % len(possible)] for shift in shifts}
        for world in possible:
            yield pytest.param(case, world, marks=[] if world in fast else pytest.mark.slow)


PAIRS = [*covering(CASES, WORLDS), *covering(ROUNDS, WORLDS_OF_ROUNDS)]


def replayed(data, *words):
    """A finished run and its replay, replayed."""
    result = run(
        [
            *("dataset=arrays", f"dataset.path={data}", "model=softmax", "n_clients=12", "heterogeneity.min_samples=3"),
            *("client.batch_size=all", "trace=true", "progress=false", "budget.server_iterations=40"),
            *("budget.uploads=400", *words),
        ]
    )
    assert result.ok, result.summary["error"]
    replay = Replay(result.directory, data)
    moved = np.abs(replay.final - replay.w).max()
    replay.run()
    assert moved > 0.05, "the model must have learned something for the comparison to mean anything"
    return result, replay


def test_every_world_has_at_least_three_rules_and_every_rule_two_worlds_in_the_fast_tier():
    fast = [pair.values for pair in PAIRS if not pair.marks]
    for place in WORLDS:
        assert len({case.split()[0] for case, world in fast if world == place}) >= 3, place
    assert {case for case, _ in fast} == {*CASES, *ROUNDS} and len(fast) < 110 < len(PAIRS)
    for rule in {case.split()[0] for case, _ in fast}:
        assert len({world for case, world in fast if case.split()[0] == rule}) >= 2, rule


@pytest.mark.parametrize(("case", "world"), PAIRS)
def test_numpy_replay_of_the_trace_gives_the_final_weights(case, world, data):
    eta = [] if case.split()[0] in WITHOUT_ETA else ["algorithm.eta=0.3"]
    lr = [] if case.split()[0] in OF_GRADIENTS else ["client.lr=0.5"]
    result, replay = replayed(data, *eta, *lr, *(CASES | ROUNDS)[case], *WORLDS[world])
    assert len(replay.versions) - 1 == result.summary["used"]["server_iterations"]
    assert len(replay.trace) == result.summary["used"]["uploads"]
    np.testing.assert_allclose(replay.final, replay.w, atol=2e-6 if replay.server_x is None else 1e-5)
    for number, name in enumerate(FACTS.get(case.split()[0], ())):
        expected = [facts[number] for facts in replay.facts]
        np.testing.assert_allclose(replay.trace[name], expected, rtol=2e-4, atol=2e-6, err_msg=name)
    if replay.decisions:
        told = pd.read_parquet(result.directory / "rule.parquet")
        if replay.server_x is not None:
            np.testing.assert_allclose(told, replay.decisions, rtol=1e-3, atol=1e-5)
            return
        np.testing.assert_allclose(told.drop(columns="cluster"), replay.decisions, rtol=1e-12)
        assert (told["kept"].mean() < 1) == (told["staleness"].max() > 0), "the fresh are all kept, of others not all"


LOSSY = ["availability=suspension", "availability.probability=0.3", "delay=work_and_link"]
SLOW = [*LOSSY, "delay.seconds_per_sample=0.01", "delay.bandwidth=100"]


@pytest.mark.parametrize("case", ["fedasync hinge", "asyncfeded"])
def test_times_and_delays_follow_from_the_seed_where_uploads_arrive_one_by_one(case, data):
    result, replay = replayed(data, *CASES[case], *SLOW)
    rows = list(replay.trace.itertuples())
    held_n = [len(own) for own in replay.clients]
    expected = list(arrivals_one_by_one(replay.config, rows, held_n, len(replay.w)))
    np.testing.assert_allclose(replay.trace[["time", "delay"]], expected, rtol=1e-9)
    assert result.summary["used"]["discarded"] > 5
    assert case != "asyncfeded" or replay.trace["k"].nunique() > 3


def test_times_and_delays_follow_from_the_seed_where_rounds_wait_for_everybody(data):
    result, replay = replayed(data, *ROUNDS["fedavg steps"], *SLOW)
    held_n = [len(own) for own in replay.clients]
    arrivals = arrivals_in_rounds(replay.config, 4, held_n, len(replay.w))
    expected = list(itertools.islice(arrivals, len(replay.trace)))
    np.testing.assert_allclose(replay.trace[["time", "delay", "client"]], expected, rtol=1e-9)
    assert result.summary["used"]["discarded"] > 50


@pytest.mark.parametrize("words", [[], ["delay.gamma=0"], ["delay.gamma=null"]])
def test_delays_of_ranked_classes_follow_from_the_seed_and_what_clients_hold(words, data):
    _, replay = replayed(data, *CASES["fedbuff"], "delay=fedecho_mild", "client.lr=0.5", *words)
    class_n = ranked_classes(replay.config, [len(own) for own in replay.clients])
    assert np.bincount(class_n).tolist() == [8, 3, 1]
    cycles = replay.trace.groupby("client").cumcount()
    rows = zip(replay.trace["client"], cycles, strict=True)
    expected = [class_duration(replay.config, class_n[client], client, cycle) for client, cycle in rows]
    np.testing.assert_allclose(replay.trace["delay"], expected, rtol=1e-9)
