"""FedEcho's printed settings and its world: who works when, as ``paper=fedecho/…`` has it."""

import numpy as np
import pytest
from toy import simulate

from asyncfl_bench.algorithms.fedbuff import FedBuff
from asyncfl_bench.config import compose
from asyncfl_bench.simulation.schedules import RandomIdle, ScheduleConfig


@pytest.mark.parametrize(
    ("delays", "staleness", "stalest", "seconds", "slow_share"),
    [("large", 4.6, (140, 155), 2580, 0.006), ("mild", 4.75, (38, 44), 2460, 0.027)],
)
def test_the_world_makes_the_staleness_of_its_classes(delays, staleness, stalest, seconds, slow_share):
    """50 clients, 25 at once, a buffer of 5: (25 - 1) / 5 server iterations, less what is in flight at the end."""
    law = compose([f"delay=fedecho_{delays}"]).parts["delay"].build()
    simulation, recorder, _ = simulate(
        FedBuff(buffer_size=5),
        n=50,
        delay=law,
        schedule=RandomIdle(ScheduleConfig()),
        concurrency=25,
        kind="difference",
        lr=0.1,
        samples=np.random.default_rng(0).integers(100, 3000, 50),
        server_iterations=500,
    )
    assert simulation.counters.uploads == 2500
    assert np.mean([a.staleness for a in recorder.arrivals]) == pytest.approx(staleness, abs=0.06)
    assert stalest[0] <= max(a.staleness for a in recorder.arrivals) <= stalest[1]
    assert simulation.counters.virtual_time == pytest.approx(seconds, rel=0.02)
    slow = np.mean([law.speed_n[a.client] == 2 for a in recorder.arrivals])
    assert slow == pytest.approx(slow_share, abs=0.002)
