"""delay=phones: download, training and upload of phones, with the spreads that FLASH (WWW 2021) measured."""

import numpy as np
import pytest

from asyncfl_bench.config import compose
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.phones import Phones, PhonesConfig
from asyncfl_bench.types import ClientTable, Footprint, Work

MODEL = Footprint(client_parameters=1_000_000)  # 4 MB
HEADER = "client,seconds_per_sample,downlink,uplink\n"


def start_phones(n=4000, footprint=MODEL, seed=0, **config):
    law = Phones(PhonesConfig(**config))
    law.start(ClientTable(np.ones(n)), Streams(seed), footprint)
    return law


def task(client, samples=0, cycle=0):
    return Work(client, 0, cycle, 0, 1, samples=samples, cycle=cycle)


def test_clients_have_the_medians_and_spreads_of_the_yaml():
    law = compose(["delay=phones"]).parts["delay"].build()
    law.start(ClientTable(np.ones(4000)), Streams(0), MODEL)
    log_n3 = np.log(law.speed_n)
    np.testing.assert_allclose(np.exp(np.median(log_n3, axis=0)), [0.01, 4.3e6, 3.3e6], rtol=0.06)
    np.testing.assert_allclose(log_n3.std(axis=0), [0.99, 0.47, 0.68], rtol=0.03)
    assert np.abs(np.corrcoef(log_n3.T) - np.eye(3)).max() < 0.05
    np.testing.assert_array_equal(law.speed_n[:5], start_phones(5).speed_n)  # of no other client's draws


def test_work_takes_its_samples_and_its_two_transfers():
    law = start_phones(20, link_spread=0.0)
    for client, (per_sample, downlink, uplink) in enumerate(law.speed_n):
        transfers = 4e6 / downlink + 4e6 / uplink
        assert law.duration(task(client, 500)) == pytest.approx(500 * per_sample + transfers)
        assert law.duration(task(client, 0)) == pytest.approx(per_sample + transfers)


def test_each_transfer_varies_by_its_spread_and_neither_is_instant():
    law = start_phones(1, seconds_per_sample=1e-9, compute_sigma=0, downlink_sigma=0, uplink_sigma=0)
    times = np.array([law.duration(task(0, cycle=cycle)) for cycle in range(20_000)])
    down, up = 4 / 4.3, 4 / 3.3
    assert times.min() > 0
    assert times.mean() == pytest.approx(down + up, rel=0.01)
    assert times.std() == pytest.approx(0.38 * np.hypot(down, up), rel=0.03)


def test_measured_clients_take_the_place_of_the_draws(tmp_path):
    (tmp_path / "phones.csv").write_text(HEADER + "10,0.5,1e6,2e6\n9,0.25,4e6,8e6\n")
    law = start_phones(2, path="phones.csv", link_spread=0.0)
    assert law.duration(task(0, 4)) == pytest.approx(4 * 0.25 + 4 / 4 + 4 / 8)
    assert law.duration(task(1, 4)) == pytest.approx(4 * 0.5 + 4 / 1 + 4 / 2)
    assert law.file.clients == ["9", "10"]  # compared with those of availability=trace
