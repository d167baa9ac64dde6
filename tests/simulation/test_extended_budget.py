"""A run whose budget is used up goes on, once it has a larger one, as if it had had that from the start."""

import pytest
from toy import Scripted, simulate

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.algorithms.fedbuff import FedBuff, FedBuffConfig
from asyncfl_bench.simulation.schedules import SameClient, ScheduleConfig


def world(rule):
    if rule == "asgd":
        return {"rule": Asgd(StepConfig(eta=0.1))}
    schedule = SameClient(ScheduleConfig(dispatch="after_update"))
    return {"rule": FedBuff(FedBuffConfig(eta=0.1, buffer_size=3)), "kind": "difference", "schedule": schedule}


@pytest.mark.parametrize("clock", ["time", "ticks"])
@pytest.mark.parametrize("rule", ["asgd", "fedbuff after_update"])
def test_wherever_the_first_budget_ended(rule, clock):
    durations = [[1, 3, 2], [2, 1], [1], [4, 2, 3], [2]]  # ticks with one, several and no arrivals
    fixed = {"n": 5, "delay": Scripted(durations), "clock": clock}
    _, recorder, _ = simulate(**world(rule), **fixed, uploads=60)
    whole = [(a.time, a.client, a.base_iteration, a.staleness, a.changed) for a in recorder.arrivals]
    for cut in range(1, 40):
        simulation, recorder, _ = simulate(**world(rule), **fixed, uploads=cut)
        state = simulation.state_dict()
        simulation.load_state_dict(state)
        simulation.budget.uploads = 60
        simulation.run()
        arrivals = [(a.time, a.client, a.base_iteration, a.staleness, a.changed) for a in recorder.arrivals]
        assert arrivals == whole, f"cut after {cut} uploads"
