"""Wall times of server steps, with a clock that goes by hand."""

import pytest
import torch
from toy import QuadraticExecutor, Scripted, simulate

from asyncfl_bench.algorithms.afbs import Afbs, AfbsConfig
from asyncfl_bench.diagnostics import server_time
from asyncfl_bench.diagnostics.server_time import ServerTime, ServerTimeConfig


class Clock:
    """A clock on which clients' work takes 3 s, and use of the k-th upload k s."""

    now = 0.0

    def perf_counter(self):
        return self.now


def test_steps_and_fills_are_timed_apart_and_an_evaluation_voids_a_fill(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server_time, "time", clock)

    class Executor(QuadraticExecutor):
        def deliver(self, work):
            clock.now += 3.0
            return super().deliver(work)

    class Slow(Afbs):
        uploads = 0

        def receive(self, upload):
            self.uploads += 1
            clock.now += self.uploads
            return super().receive(upload)

    rule, diagnostics = (
        Slow(AfbsConfig(buffer_size=2, clusters=1, keep="never")),
        ServerTime(ServerTimeConfig(warm_up=1)),
    )
    diagnostics.start(rule=rule, shadow=None, model_d=torch.zeros(3), task=None, client=None, has_left=None)
    assert diagnostics.summary() == {}

    class Evaluates(server_time.Diagnostics):
        def iterated(self, counters):
            if counters.iteration == 3:
                diagnostics.measure({})

    simulate(
        rule,
        n=4,
        delay=Scripted([[1.0], [1.5], [4.0], [9.0]]),
        kind="difference",
        samples=[9, 5, 3, 1],
        executor=Executor(torch.randn(4, 3), "difference"),
        observers=[diagnostics, Evaluates(ServerTimeConfig())],
        uploads=10,
    )
    assert diagnostics._steps == [1e3 * s for s in (3, 7, 11, 15, 19)]
    found = diagnostics.summary()
    assert (found["server_step_low_ms"], found["server_step_ms"], found["server_step_high_ms"]) == (10e3, 13e3, 16e3)
    assert found["buffer_fill_ms"] == pytest.approx(
        1e3 * (11 + 6)
    )  # of 13, 17 and 25 s; that of 21 s has an evaluation
    assert found["uploads"] == 2 and 1 < found["kept"] < 2 and found["iterations"] == 4
