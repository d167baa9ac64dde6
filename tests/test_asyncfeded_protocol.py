"""The AsyncFedED paper's printed settings and its clients' published times, as `paper=asyncfeded/…` has them."""

import numpy as np
import pytest

from asyncfl_bench.config import Settings, compose
from asyncfl_bench.randomness import Streams
from asyncfl_bench.types import ClientTable, Footprint, Work

# section 6 and tables 1 to 4 of the paper: Synthetic(1,1), FEMNIST, Shakespeare
PRINTED = {
    "fedprox": {"mu": (0.1, 1.0, 0.01)},
    "fedasync": {"alpha": (0.1, 0.5, 0.1), "hinge_a": (5.0, 0.5, 15.0), "hinge_b": (5.0, 0.5, 15.0)},
    "asyncfeded": {
        "lam": (5.0, 1.0, 5.0),
        "lam_over_eps": (1.0, 1.0, 0.5),
        "gamma_bar": (3.0, 3.0, 3.0),
        "kappa": (1.0, 0.05, 1.0),
    },
}
LOCAL_STEPS = (0.01, 0.01, 1.0)
PROTOCOLS = ("synthetic", "femnist", "shakespeare")

# seconds of a cycle of K = 10 without suspension, client by client, in the authors' raw runs (Qiyr0/AsyncFedED)
ASYNCHRONOUS = [2.7413, 0.3041, 0.4997, 5.1059, 2.5062, 0.0840, 0.4711, 0.1423, 0.1888, 0.3052]
SYNCHRONOUS = [1.4938, 0.2785, 0.4485, 2.9930, 1.7160, 0.0817, 0.4238, 0.1343, 0.1820, 0.2771]
TRAINING_SAMPLES = [8590, 769, 1962, 21942, 10516, 256, 1867, 405, 423, 783]


def printed(protocol: str, algorithm: str) -> Settings:
    return compose([f"paper=asyncfeded/{protocol}", f"algorithm={algorithm}"])


@pytest.mark.parametrize("place", range(3), ids=PROTOCOLS)
@pytest.mark.parametrize("algorithm", ["fedavg", *PRINTED])
def test_hyper_parameters_are_the_printed_ones(algorithm, place):
    settings = printed(PROTOCOLS[place], algorithm)
    rule, client = settings.parts["algorithm"].config, settings.parts["client"].config
    for key, values in PRINTED.get(algorithm, {}).items():
        assert getattr(rule, key) == values[place], key
    assert (client.local_epochs, client.lr, client.momentum) == (10, LOCAL_STEPS[place], 0.5)
    assert (client.lr_decay, client.batch_size, client.weight_decay) == (0.995, 32, 0.0)
    assert (settings.root.n_clients, settings.root.concurrency, settings.budget.virtual_time) == (10, 10, 300.0)
    if PROTOCOLS[place] == "shakespeare":  # whose cycles are those of 866 to 4493 training samples
        roles = settings.parts["dataset"].config
        assert [int(0.9 * size) for size in (roles.min_samples, roles.max_samples)] == [866, 4493]
    assert settings.evaluation.every_time == (2.0, 2.0, 2.25)[place]
    if algorithm == "fedasync":
        assert (rule.lag, rule.staleness_weight, rule.rho) == ("time", "constant", 0.0)
    if algorithm == "asyncfeded":
        assert (rule.k_initial, rule.k_rule, rule.k_max) == (10, "accumulate", None)


@pytest.mark.parametrize("algorithm, published", [("asyncfeded", ASYNCHRONOUS), ("fedavg", SYNCHRONOUS)])
def test_a_cycle_of_every_synthetic_client_lasts_as_long_as_in_the_published_runs(algorithm, published):
    settings = printed("synthetic", algorithm)
    config = settings.parts["delay"].config
    config.link_spread = 0.0
    delay = settings.parts["delay"].build()
    delay.start(ClientTable(np.ones(10)), Streams(0), Footprint(client_parameters=16_714))
    cycles = [
        delay.duration(Work(client, sequence=0, count=0, iteration=0, local_steps=1, k=10, samples=10 * samples))
        for client, samples in enumerate(TRAINING_SAMPLES)
    ]
    assert cycles == pytest.approx(published, rel=0.01)
