"""delay=cell_link: durations of GAS (Yang, Liu 2024), with the numbers that its released code prints."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
from toy import simulate

from asyncfl_bench.algorithms.fedbuff import FedBuff
from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_dry_run, build_run
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.cell_link import CellLink, CellLinkConfig
from asyncfl_bench.simulation.schedules import RandomIdle, ScheduleConfig
from asyncfl_bench.types import ClientTable, Footprint, Work, Workload

ALEXNET = Footprint(3_868_746, 19_392, 69_833_728, 5_603_328, 4096)
# multiply-adds a second, km and bit/s of 20 clients, a comment of GAS_main.py
SPEEDS = [
    *(3897894735.92771, 9013802066.105328, 6292470299.054264, 2139364841.5386212, 2272071003.1736717),
    *(5211060330.473793, 1198806954.5634105, 7545472413.904353, 5719486080.450004, 5904417149.294411),
    *(5107359343.831957, 5512440381.97626, 4550216975.213522, 2360550729.2126856, 4247876594.1973186),
    *(2458693061.80659, 4041628237.5291243, 2622909526.838994, 4518922610.259291, 1320833893.6367936),
]
DISTANCES = [
    *(0.6083754840266261, 0.2831153426857548, 0.38854401189901344, 0.4389074044864103, 0.2656487276448098),
    *(0.19355665271763545, 0.509434502092531, 0.2762774537423048, 0.4406728802978894, 0.9374787633533964),
    *(0.7841437418818485, 0.7936878138929144, 0.6370305015692377, 0.8124590324955729, 0.8293044732903868),
    *(0.9825015031837409, 0.8963067286477621, 0.19882101292753768, 0.8377396846064555, 0.3768516013443233),
]
RATES = [
    *(25948858.23931885, 64992952.13823921, 48181797.74664864, 41864543.70309627, 68413272.50342345),
    *(85499773.20790398, 34364550.5456598, 66305169.93391083, 41658828.81171437, 9941368.164306499),
    *(15564920.989243941, 15135144.574422104, 23896461.265810642, 14324059.624996226, 13633385.95929576),
    *(8730296.888630323, 11205899.934015611, 84048199.78995569, 13300281.995040257, 49783651.93687485),
]


def started(n=20, footprint=ALEXNET, seed=0, **config):
    law = CellLink(CellLinkConfig(**config))
    law.start(ClientTable(np.ones(n)), Streams(seed), footprint)
    return law


def task(client, batches, stages=1, stage=0):
    return Work(client, 0, 0, 0, batches, k=batches, samples=32 * batches, stages=stages, stage=stage)


def stages_of(law, client, batches):
    return [law.duration(task(client, batches, batches + 1, stage)) for stage in range(batches + 1)]


def test_rates_follow_from_distances():
    np.testing.assert_allclose(started(distances=DISTANCES).rate_n, RATES, rtol=1e-12)
    far, near = started(2, distances=[1.0, 0.1]).rate_n / 1e6
    assert far == pytest.approx(8.303, rel=1e-3) and near == pytest.approx(121.3, rel=1e-3)


def test_a_task_of_some_layers_takes_its_stages_and_one_of_all_layers_its_gradients_and_the_model():
    law = started(2, speeds=[1e9, 1e9], distances=[1.0, 0.1])
    rate, c, whole = law.rate_n[0], 5_603_328 / 1e9, 69_833_728 / 1e9
    sent = 32 * 131_072 / rate
    np.testing.assert_allclose(stages_of(law, 0, 3), [c + sent, 2 * c + sent, 2 * c + sent, c + 620_544 / rate])
    assert law.duration(task(0, 3)) == pytest.approx(3 * 2 * whole + 123_799_872 / rate)
    np.testing.assert_allclose(stages_of(law, 0, 1), [c + sent, c + 620_544 / rate])
    few = replace(task(0, 4, 5, 1), samples=4 * 8)  # of a client with 8 samples
    assert law.duration(few) == pytest.approx(2 * c + sent / 4)


def test_each_message_takes_the_time_of_the_mean_mini_batch_and_all_of_a_task_that_of_its_samples():
    law, held = started(1, speeds=[1e9], distances=[1.0]), 50
    split = replace(task(0, 2, 3), samples=Workload(k=2, batch_size=32).samples(held, 2))  # mini-batches of 32 and 18
    first, second, _ = [law.duration(replace(split, stage=stage)) for stage in range(3)]
    c, sent = 5_603_328 / 1e9, 8 * ALEXNET.message_bytes(1) / law.rate_n[0]
    np.testing.assert_allclose([first, second], [c + 25 * sent, 2 * c + 25 * sent])
    assert first + second == pytest.approx(3 * c + held * sent)


def test_speeds_and_distances_are_drawn_once_and_apart():
    law = started(20_000)
    assert law.speed_n.min() > 1e9 and law.speed_n.max() < 1e10
    assert law.speed_n.mean() == pytest.approx(5.5e9, rel=0.01)
    assert law.rate_n.mean() / 1e6 == pytest.approx(40.1, rel=0.02)
    assert abs(np.corrcoef(law.speed_n, law.rate_n)[0, 1]) < 0.03
    disc = started(20_000, position="disc")
    assert disc.rate_n.mean() / 1e6 == pytest.approx(27.1, rel=0.02)
    assert (disc.speed_n == law.speed_n).all()
    assert (started(20, seed=1).rate_n != law.rate_n[:20]).all()
    assert [law.duration(task(3, 2)), law.duration(task(3, 2))] == [law.duration(replace(task(3, 2), cycle=9))] * 2


def test_a_shared_channel_is_a_share_of_the_hertz_and_of_the_noise():
    words = ["delay=cell_link", "delay.channel=shared", "n_clients=20", "concurrency=10"]
    shared = compose(words).parts["delay"].build()
    shared.start(ClientTable(np.ones(20)), Streams(0), ALEXNET)
    alone = started(hertz=1e6)
    np.testing.assert_allclose(shared.rate_n, alone.rate_n)
    assert (shared.rate_n < started().rate_n).all()


def minutes(law, batches, cut, iterations=1000):
    """Of so many buffers of 10 tasks, of 10 clients of 20 at work. A place goes to another client."""
    generator = np.random.default_rng(0)
    lasts = [sum(stages_of(law, c, batches)) if cut else law.duration(task(c, batches)) for c in range(20)]
    working = [int(client) for client in generator.permutation(20)[:10]]
    due = [(lasts[client], client) for client in working]
    heapq.heapify(due)
    for _ in range(10 * iterations):
        now, done = due[0]
        idle = sorted(set(range(20)) - set(working))
        taken = idle[generator.integers(len(idle))]
        working[working.index(done)] = taken
        heapq.heapreplace(due, (now + lasts[taken], taken))
    return now / 60


@pytest.mark.parametrize(
    ("batches", "cut", "lasts"), [(20, True, 51.9), (50, True, 129.4), (20, False, 91.5), (50, False, 114.9)]
)
def test_a_thousand_iterations_of_gas_and_of_fl_rules_take_the_published_time(batches, cut, lasts):
    law = started(speeds=SPEEDS, distances=DISTANCES)
    assert minutes(law, batches, cut) == pytest.approx(lasts, rel=0.01)


def test_the_engine_gives_a_buffered_rule_the_same_time():
    class AlexNets(CellLink):
        def start(self, clients, streams, footprint):
            super().start(clients, streams, ALEXNET)

    simulation, _, _ = simulate(
        FedBuff(eta=1.0, buffer_size=10),
        n=20,
        delay=AlexNets(CellLinkConfig(speeds=SPEEDS, distances=DISTANCES)),
        kind="difference",
        schedule=RandomIdle(ScheduleConfig()),
        concurrency=10,
        samples=[32] * 20,
        workload=Workload(20, 32),
        server_iterations=200,
    )
    assert 5 * simulation.counters.virtual_time / 60 == pytest.approx(91.5, rel=0.05)


def test_a_client_takes_the_cut_whose_mini_batch_is_nearest_to_the_median():
    """The authors' two cuts of AlexNet and 20 devices; a mini-batch of 32."""
    early, late = Footprint(0, 896, 0, 884_736, 8192), Footprint(0, 19_392, 0, 5_603_328, 4096)
    both = replace(ALEXNET, at_cut=(early, late))
    law = CellLink(CellLinkConfig(speeds=SPEEDS, distances=DISTANCES, cuts=[1, 2]))
    law.start(ClientTable(np.full(20, 32)), Streams(0), both)
    times = [
        [2 * c / f + 32 * bits / r for c, bits in ((884_736, 262_144), (5_603_328, 131_072))]
        for f, r in zip(SPEEDS, RATES, strict=True)
    ]
    median = np.median(times)
    taken = [min((early, late), key=lambda cost, row=row: abs(row[cost is late] - median)) for row in times]
    assert law.cost_n == taken and 0 < taken.count(early) < 20
    for client, (row, cost) in enumerate(zip(times, taken, strict=True)):
        assert law.duration(task(client, 2, 3, 1)) == pytest.approx(row[cost is late])


def test_the_cuts_of_a_run_are_those_of_its_model():
    words = ["algorithm=s2fl", "delay=cell_link", "n_clients=4", "model.hidden=[16,8]", "scale=smoke"]
    plain, chosen = (build_run(compose([*words, f"delay.cuts={cuts}"])) for cuts in ("null", "[3,5]"))
    assert {cost.client_parameters for cost in chosen.simulation.delay.cost_n} <= {64 * 16 + 16, 64 * 16 + 16 + 136}
    for parts in (plain, chosen):
        parts.simulation.run()
        parts.executor.close()
    assert (plain.model_d == chosen.model_d).all()
    assert plain.simulation.counters.bytes == chosen.simulation.counters.bytes
    assert plain.simulation.counters.virtual_time != chosen.simulation.counters.virtual_time
    assert compose(words).identity == compose([*words, "delay.cuts=null"]).identity


def test_what_is_given_makes_what_is_drawn_idle():
    given = compose(["delay=cell_link", "n_clients=2", "delay.speeds=[1e9,2e9]", "delay.distances=[0.1,1]"]).idle
    assert {f"delay.{name}" for name in ("slowest", "fastest", "nearest", "radius", "position")} <= given.keys()


def test_a_dry_run_meets_the_arrivals_of_the_run():
    words = ["delay=cell_link", "budget.uploads=12", "schedule=random_idle", "concurrency=3", "n_clients=10"]
    settings = compose([*words, "algorithm=fedbuff", "algorithm.buffer_size=4", "scale=smoke", "model=softmax"])
    built = build_run(settings)
    dry, _ = build_dry_run(replace(built, streams=Streams(settings.root.seed)), built.executor.computer)
    for simulation in (built.simulation, dry):
        simulation.run()
    assert dry.counters.virtual_time == built.simulation.counters.virtual_time > 0
    assert dry.delay.footprint == Footprint(650, 650, 640, 640)
    built.executor.close()
