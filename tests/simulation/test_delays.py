"""Delays have the distributions they claim."""

import numpy as np
import pytest
from toy import Scripted, simulate

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.config import compose, options
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.delays import (
    Classes,
    ClassesConfig,
    Exponential,
    ExponentialConfig,
    FixedUniform,
    FixedUniformConfig,
    LogNormal,
    LogNormalConfig,
    MixedExponential,
    MixedExponentialConfig,
    Pareto,
    ParetoConfig,
    RankedClasses,
    RankedClassesConfig,
    Uniform,
    UniformConfig,
    WorkAndLink,
    WorkAndLinkConfig,
)
from asyncfl_bench.simulation.delays_by_label import UniformByLabel
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.simulation.recorded import COLUMNS
from asyncfl_bench.types import ClientTable, Footprint, Work, Workload


def piece(client, cycle):
    """Work of one step, as number ``cycle`` of its client."""
    return Work(client, 0, cycle, 0, 1, cycle=cycle)


def drawn(delay, n=200, count=100, seed=0):
    """(n, count) durations."""
    delay.start(ClientTable(np.ones(n)), Streams(seed))
    return np.array([[delay.duration(piece(client, k)) for k in range(count)] for client in range(n)])


def test_uniform_fills_its_interval():
    values = drawn(Uniform(UniformConfig(low=2.0, high=5.0)))
    assert values.min() >= 2 and values.max() <= 5
    assert values.mean() == pytest.approx(3.5, rel=0.01)
    assert values.std() == pytest.approx(3 / np.sqrt(12), rel=0.02)


def test_fixed_uniform_draws_once_per_client_and_keeps_it():
    values = drawn(FixedUniform(FixedUniformConfig(low=0.0, high=6000.0)), n=4000, count=3)
    assert (values == values[:, :1]).all()
    assert values.min() >= 0 and values.max() < 6000
    assert values[:, 0].mean() == pytest.approx(3000, rel=0.03)
    assert values[:, 0].std() == pytest.approx(6000 / np.sqrt(12), rel=0.03)
    np.testing.assert_array_equal(values, drawn(FixedUniform(FixedUniformConfig(low=0.0, high=6000.0)), 4000, 3))
    assert (values != drawn(FixedUniform(FixedUniformConfig(low=0.0, high=6000.0)), 4000, 3, seed=1)).mean() > 0.99


def test_a_clients_fixed_latency_depends_on_no_other_client():
    few, many = (drawn(FixedUniform(FixedUniformConfig(high=9.0)), n=n, count=1) for n in (5, 50))
    np.testing.assert_array_equal(few, many[:5])


def test_whole_latencies_are_all_whole_numbers_below_the_upper_end_alike():
    values = drawn(FixedUniform(FixedUniformConfig(low=0.0, high=6.0, whole=True)), n=6000, count=1)[:, 0]
    numbers, counts = np.unique(values, return_counts=True)
    assert numbers.tolist() == [0, 1, 2, 3, 4, 5]
    assert counts == pytest.approx(1000, rel=0.1)


def test_latency_by_label_follows_the_labels_that_a_client_holds_and_fills_the_interval():
    def latency(labels_nc):
        labels_nc = np.asarray(labels_nc)
        delay = UniformByLabel(FixedUniformConfig(low=0.0, high=6000.0, whole=True))
        delay.start(ClientTable(labels_nc.sum(axis=1), labels_nc), Streams(0))
        return np.array([[delay.duration(piece(client, k)) for k in (0, 1)] for client in range(len(labels_nc))])

    values = latency(np.repeat(3 * np.eye(10, dtype=int), 200, axis=0))
    assert (values == np.floor(values)).all() and (values[:, 0] == values[:, 1]).all()
    assert (values[:, 0] // 600 == np.repeat(np.arange(10), 200)).all()
    assert values[:, 0].std() == pytest.approx(6000 / np.sqrt(12), rel=0.03)
    mixed = latency([[1, 1]] * 500 + [[0, 0]])[:, 0]  # between the two labels; without samples like the first
    assert mixed[:-1].min() >= 1500 and mixed[:-1].max() < 4500 and mixed[-1] < 3000


def test_exponential_with_equal_clients_is_the_same_law_for_everyone():
    values = drawn(Exponential(ExponentialConfig(beta=5.0)))
    assert values.mean() == pytest.approx(5, rel=0.02)
    assert values.std() == pytest.approx(5, rel=0.03)
    assert values.mean(axis=1).std() == pytest.approx(5 / np.sqrt(100), rel=0.15)  # nothing but sampling noise


def test_exponential_with_persistent_clients_keeps_slow_clients_slow():
    delay = Exponential(ExponentialConfig(beta=5.0, compute=1.0, clients="exponential"))
    values = drawn(delay, n=400)
    assert values.min() >= 1
    assert delay.speed_n.mean() == pytest.approx(1, rel=0.1)  # z_i ~ Exp(1)
    first, second = values[:, :50].mean(axis=1), values[:, 50:].mean(axis=1)
    assert np.corrcoef(first, second)[0, 1] > 0.95
    np.testing.assert_allclose(values.mean(axis=1), 1 + 5 * delay.speed_n, rtol=0.6, atol=0.05)


def test_redraw_false_puts_the_mean_in_place_of_the_draw():
    delay = Exponential(ExponentialConfig(beta=5.0, compute=1.0, clients="exponential", redraw=False))
    values = drawn(delay, n=50, count=4)
    np.testing.assert_allclose(values, np.tile(1 + 5 * delay.speed_n[:, None], 4))


def test_mixed_exponential_has_exactly_its_share_of_slow_clients():
    delay = MixedExponential(MixedExponentialConfig(slow_share=0.2, slow_mean=5.0, fast_mean=0.5))
    values = drawn(delay)
    slow = delay.speed_n == 5.0
    assert slow.sum() == 40
    assert values[slow].mean() == pytest.approx(5, rel=0.05)
    assert values[~slow].mean() == pytest.approx(0.5, rel=0.05)


def test_lognormal_has_its_median_and_spread():
    values = np.log(drawn(LogNormal(LogNormalConfig(median=2.0, sigma=0.3, clients_sigma=0.8)), n=1000, count=20))
    assert np.median(values) == pytest.approx(np.log(2), abs=0.06)
    assert values.mean(axis=1).std() == pytest.approx(0.8, rel=0.06)
    assert (values - values.mean(axis=1, keepdims=True)).std() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("redraw", [True, False])
def test_pareto_has_its_minimum_and_its_tail_of_work_or_of_clients(redraw):
    values = drawn(Pareto(ParetoConfig(minimum=2.0, shape=1.5, redraw=redraw)), n=2000, count=10)
    assert values.min() == pytest.approx(2, rel=0.01)
    for bound in (4, 20):
        assert (values > bound).mean() == pytest.approx((2 / bound) ** 1.5, rel=0.15)
    assert (values == values[:, :1]).all() != redraw
    assert np.isfinite(drawn(Pareto(ParetoConfig(shape=0.1, redraw=redraw)))).all()


def test_classes_draw_from_the_range_of_the_clients_own_class():
    delay = Classes(ClassesConfig())
    values = drawn(delay, n=2000, count=5)
    shares = np.bincount(delay.speed_n, minlength=3) / 2000
    assert shares[0] > shares[1] > shares[2] > 0.02
    for kind, (low, high) in enumerate([(1, 2), (3, 5), (5, 8)]):
        own = values[delay.speed_n == kind]
        assert own.min() >= low and own.max() <= high
        assert own.mean() == pytest.approx((low + high) / 2, rel=0.02)


def ranked(held_n, seed=0, **config):
    """(n,) class of each client that holds so much."""
    delay = RankedClasses(RankedClassesConfig(**config))
    delay.start(ClientTable(np.asarray(held_n)), Streams(seed))
    return delay.speed_n


@pytest.mark.parametrize(
    ("n", "sizes"), [(50, [30, 15, 5]), (10, [6, 3, 1]), (7, [4, 2, 1]), (3, [2, 0, 1]), (1, [0, 0, 1])]
)
def test_without_chance_who_holds_most_is_slowest_and_each_class_has_its_share(n, sizes):
    held_n = np.random.default_rng(n).permutation(n)
    class_n = ranked(held_n, gamma=0.0)
    assert np.bincount(class_n, minlength=3).tolist() == sizes
    assert (np.diff(class_n[np.argsort(held_n)]) >= 0).all()


def test_the_smaller_gamma_the_more_classes_follow_from_the_sizes():
    held_n = np.random.default_rng(1).permutation(500)
    correlation = {
        gamma: np.mean([np.corrcoef(held_n, ranked(held_n, seed, gamma=gamma))[0, 1] for seed in range(5)])
        for gamma in (0.0, 1.0, 5.0, None)
    }
    assert correlation[0.0] > 0.85 > 0.7 > correlation[1.0] > 0.5 > 0.3 > correlation[5.0] > 0.1
    assert abs(correlation[None]) < 0.06
    np.testing.assert_array_equal(ranked(held_n, gamma=None), ranked(held_n[::-1], gamma=None))


def test_among_clients_of_one_size_chance_decides_even_without_gamma():
    one, other = ranked(np.ones(40), seed=0, gamma=0.0), ranked(np.ones(40), seed=1, gamma=0.0)
    assert (one != other).any() and (one == ranked(np.ones(40), seed=0, gamma=0.0)).all()


@pytest.mark.parametrize("name", options("delay"))
def test_a_duration_depends_on_client_and_count_alone(name, tmp_path):
    (tmp_path / "own.csv").write_text("client,duration\n" + "".join(f"{c},{1 + c % 3}\n{c},7\n" for c in range(10)))
    rows = [f"{c},{k},{1 + c % 3},1,0,{1 + k}," for c in range(10) for k in range(4)]  # the fifth one never ended
    (tmp_path / "arrivals.csv").write_text("\n".join([",".join(COLUMNS), *rows]))
    file = {"trace": "own.csv", "recorded": "arrivals.csv"}.get(name)
    words = [f"delay.path={tmp_path}/{file}"] if file else []
    part = compose([f"delay={name}", *words]).parts["delay"]
    one, other = part.build(), part.build()
    clients = ClientTable(np.arange(10), np.diag(np.arange(10)))
    one.start(clients, Streams(4))
    other.start(clients, Streams(4))
    forward = [one.duration(piece(c, k)) for c in range(10) for k in range(5)]
    backward = [other.duration(piece(c, k)) for c in reversed(range(10)) for k in reversed(range(5))]
    assert forward == backward[::-1]
    assert min(forward) >= 0


def test_the_tick_clock_of_our_preset_delivers_as_many_uploads_as_its_law_says():
    # one tick at least, whole ticks: a client with mean beta z reports with rate 1 - exp(-1 / (beta z)) per tick
    part = compose(["delay=exp_beta5"]).parts["delay"]
    delay = part.build()
    delay.start(ClientTable(np.ones(2000)), Streams(1))
    expected = (1 - np.exp(-1 / (5 * delay.speed_n))).mean()
    ticks = np.array([[max(1, int(delay.duration(piece(c, k)))) for k in range(60)] for c in range(2000)])
    assert (1 / ticks.mean(axis=1)).mean() == pytest.approx(expected, rel=0.03)
    assert expected == pytest.approx(0.354, rel=0.05)  # the integral over z ~ Exp(1)


def ticks_of(delay, rounding, n=100, until=400, seed=0):
    """(pieces of work,) whole ticks that the engine gives to work of ``delay``, and when each was dispatched."""
    seen = []
    observer = Observer()
    observer.dispatched = lambda work, model_d: seen.append((work.start, work.client, work.due - work.start))
    rule = Asgd(StepConfig(eta=1e-9))
    simulate(rule=rule, n=n, delay=delay, clock="ticks", tick_rounding=rounding, virtual_time=until, seed=seed,
             observers=[observer])  # fmt: skip
    return np.array(seen)


@pytest.mark.parametrize(("rounding", "expected"), [("down", [1, 1, 1, 1, 2, 2, 3]), ("up", [1, 1, 1, 2, 2, 3, 3])])
def test_durations_become_whole_ticks_by_being_cut_off_or_by_waiting_for_the_next_turn(rounding, expected):
    scripted = Scripted([[0.0, 0.2, 1.0, 1.5, 2.0, 2.7, 3.0]])
    assert ticks_of(scripted, rounding, n=1, until=12)[:7, 2].tolist() == expected


@pytest.mark.parametrize(
    ("compute", "rounding", "extra"), [(0, "down", None), (1, "down", 0), (0, "up", 0), (1, "up", 1)]
)
def test_the_literal_law_has_the_ticks_of_a_geometric_law(compute, rounding, extra):
    beta = 5.0
    ticks = ticks_of(Exponential(ExponentialConfig(beta=beta, compute=compute, clients="equal")), rounding)[:, 2]
    stay = np.exp(-1 / beta)  # ceil(Exp(beta)) is geometric: mean 1 / (1 - stay)
    mean = 1 / (1 - stay) + extra if extra is not None else 1 + stay**2 / (1 - stay)
    assert ticks.mean() == pytest.approx(mean, rel=0.03)
    assert ticks.min() == 1 + (extra or 0)
    if extra is not None:
        assert ticks.std() == pytest.approx(np.sqrt(stay) / (1 - stay), rel=0.05)


@pytest.mark.parametrize("clients", ["equal", "exponential"])
def test_a_tick_of_computing_cut_off_is_the_bare_draw_that_waits_for_the_next_turn(clients):
    law = {"beta": 5.0, "clients": clients}
    cut = ticks_of(Exponential(ExponentialConfig(compute=1.0, **law)), "down", until=50)
    waits = ticks_of(Exponential(ExponentialConfig(compute=0.0, **law)), "up", until=50)
    np.testing.assert_array_equal(cut, waits)


def test_persistent_speeds_make_uploads_fresher_than_the_literal_law_of_the_same_mean():
    # of uploads that step in ticks the staleness is the ticks but one: weighted by who sends them
    staleness = {}
    for clients in ("exponential", "equal"):
        ticks = ticks_of(Exponential(ExponentialConfig(beta=30.0, compute=1.0, clients=clients)), "down")
        staleness[clients] = (ticks[:, 2] - 1)[ticks[:, 0] + ticks[:, 2] <= 400].mean()
    assert staleness["equal"] == pytest.approx(26, abs=2) and staleness["exponential"] == pytest.approx(7.5, abs=1)


def test_rounding_is_of_the_tick_clock_and_renames_no_run():
    plain, up = compose(["delay=exp_beta5"]), compose(["delay=exp_beta5", "tick_rounding=up"])
    assert plain.identity == compose(["delay=exp_beta5", "tick_rounding=down"]).identity != up.identity


def work_and_link(samples, n=200, count=50, model_bytes=4_000_000, **config):
    """(n, count) durations of work that goes through so many samples."""
    delay = WorkAndLink(WorkAndLinkConfig(**config))
    delay.start(ClientTable(np.ones(n)), Streams(0), Footprint(client_parameters=model_bytes // 4))
    pieces = [[Work(c, 0, k, 0, 1, samples=samples, cycle=k) for k in range(count)] for c in range(n)]
    return np.array([[delay.duration(work) for work in row] for row in pieces])


def test_computing_takes_time_in_proportion_to_k_and_to_the_clients_samples():
    workload = Workload(k=10, batch_size=32, epochs=True)
    times = {}
    for held in (100, 1000):
        for k in (1, 10):
            drawn_nk = work_and_link(workload.samples(held, k), n=3, count=2, seconds_per_sample=1e-3)
            times[held, k] = drawn_nk
    np.testing.assert_allclose(times[100, 1], 0.1)
    np.testing.assert_allclose(times[100, 10], 1.0)
    np.testing.assert_allclose(times[1000, 10], 10.0)


def test_transmission_is_the_models_bytes_over_the_bandwidth_times_a_factor_around_one():
    drawn_nk = work_and_link(0, bandwidth=1e6, seconds_per_sample=0.0)
    assert drawn_nk.mean() == pytest.approx(4, rel=0.01)
    assert drawn_nk.std() == pytest.approx(4 * 0.3, rel=0.03)
    twice = work_and_link(0, bandwidth=1e6, model_bytes=8_000_000, seconds_per_sample=0.0)
    np.testing.assert_allclose(twice, 2 * drawn_nk)
    exact = work_and_link(0, seconds_per_sample=0.0, bandwidth=2e6, link_spread=0.0)
    np.testing.assert_allclose(exact, 2)
    both = work_and_link(500, bandwidth=1e6, seconds_per_sample=1e-2)
    np.testing.assert_allclose(both, drawn_nk + 5)


def test_a_wide_spread_of_the_link_is_cut_off_above_zero():
    drawn_nk = work_and_link(0, bandwidth=4e6, link_spread=1.0)
    assert drawn_nk.min() > 0
    # of N(1, 1) cut off at 0: mean 1 + phi(1) / Phi(1) = 1 + 0.24197 / 0.84134
    assert drawn_nk.mean() == pytest.approx(1.2876, rel=0.02)


def test_clients_may_compute_at_speeds_of_their_own_that_do_not_touch_the_link():
    drawn_nk = work_and_link(1000, n=2000, count=2, seconds_per_sample=1e-3, clients_sigma=0.5)
    assert np.log(drawn_nk[:, 0]).std() == pytest.approx(0.5, rel=0.05)
    assert np.median(drawn_nk) == pytest.approx(1, rel=0.05)
    np.testing.assert_array_equal(drawn_nk[:, 0], drawn_nk[:, 1])
    link = work_and_link(0, n=2000, count=2, bandwidth=1e6, clients_sigma=0.5)
    assert link.mean() == pytest.approx(4, rel=0.01)


def test_a_run_takes_the_time_its_samples_and_its_models_bytes_ask_for():
    from asyncfl_bench.experiment.build import build_run

    words = ["delay=work_and_link", "delay.seconds_per_sample=0.01", "delay.bandwidth=1000", "delay.link_spread=0"]
    built = build_run(compose([*words, "algorithm=fedavg", "client.local_epochs=3", "scale=smoke", "model=softmax"]))
    built.simulation.step()
    assert len(built.simulation.in_flight) == 10
    for work in built.simulation.in_flight.values():
        held = len(built.task.partition[work.client])
        assert work.due == pytest.approx(0.01 * 3 * held + 4 * 650 / 1000)
    built.executor.close()


def test_a_client_without_samples_takes_the_time_of_one_so_that_time_moves_on():
    assert (work_and_link(0, n=2, count=2, seconds_per_sample=0.5) == 0.5).all()
