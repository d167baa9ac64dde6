import numpy as np
import pytest
import torch
from toy import Scripted, simulate

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.algorithms.delay_adaptive_asgd import DelayAdaptiveAsgd, DelayAdaptiveAsgdConfig
from asyncfl_bench.types import ClientTable, Upload


def test_every_arrival_is_a_step_along_its_own_gradient():
    _, recorder, _ = simulate(
        Asgd(StepConfig(eta=0.5)), n=2, delay=Scripted([[1], [1.5]]), targets=[[2.0], [4.0]], server_iterations=3
    )
    # w0 = 0: 0.5 * 2 = 1; then client 1 from w0: + 0.5 * 4 = 3; then client 0 from w1 = 1: + 0.5 * 1 = 3.5
    np.testing.assert_allclose(np.array(recorder.models)[:, 0], [1.0, 3.0, 3.5])


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({"variant": "mishchenko"}, {0: 1, 4: 1, 5: 4 / 5, 8: 0.5}),
        ({"variant": "koloskova"}, {0: 1, 4: 1, 5: 1 / 5, 8: 1 / 8}),
        ({"variant": "koloskova", "smoothness": 0.5}, {4: 1, 5: 1.0, 8: 0.625}),  # 1 / (4 L tau) = 0.0625 at tau = 8
        ({"variant": "drop"}, {0: 1, 4: 1, 5: 0, 8: 0}),
    ],
)
def test_the_step_shrinks_beyond_the_threshold_as_the_variant_says(config, scales):
    rule = DelayAdaptiveAsgd(DelayAdaptiveAsgdConfig(eta=0.1, tau_c=4, **config))
    model = torch.zeros(1, dtype=torch.float64)
    rule.start(model, ClientTable(np.ones(2, int)), "gradient")
    for staleness, scale in scales.items():
        before = model.item()
        changed = rule.receive(Upload(0, torch.ones(1, dtype=torch.float64), 0, staleness, 1, 1))
        assert before - model.item() == pytest.approx(0.1 * scale, abs=1e-12)
        assert changed is (scale > 0)


def test_dropped_uploads_are_no_server_iterations():
    rule = DelayAdaptiveAsgd(DelayAdaptiveAsgdConfig(eta=0.1, tau_c=2, variant="drop"))
    delay = Scripted([[0.1], [0.1], [0.1], [5.0]])
    simulation, recorder, _ = simulate(rule, n=4, delay=delay, uploads=300, server_iterations=None)
    late = [a for a in recorder.arrivals if a.staleness > 2]
    assert late and not any(a.changed for a in late)
    assert simulation.counters.iteration == 300 - len(late) == len(recorder.models)
    assert rule.stats()["rule/dropped_uploads"] == len(late)
