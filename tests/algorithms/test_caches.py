"""What a cache gives back is what the rules' sums hold, in every precision and place."""

import copy

import numpy as np
import pytest
import torch
from tiers import slow

from asyncfl_bench.algorithms.ace import Ace, AceConfig
from asyncfl_bench.algorithms.aced import Aced, AcedConfig
from asyncfl_bench.algorithms.ca2fl import Ca2fl
from asyncfl_bench.algorithms.common.caches import make_cache
from asyncfl_bench.algorithms.common.sums import RunningSum
from asyncfl_bench.algorithms.fedstale_async import FedStaleAsync, FedStaleAsyncConfig
from asyncfl_bench.algorithms.mifa import Mifa, MifaConfig
from asyncfl_bench.randomness import Streams
from asyncfl_bench.storage import PLACES, PRECISIONS, CacheConfig, Storage
from asyncfl_bench.types import ClientTable, Upload

LENGTHS = (30, 20)
RULES = {
    "ace": (Ace, AceConfig),
    "aced": (Aced, AcedConfig),
    "ca2fl": (Ca2fl, Ca2fl.Config),
    "mifa": (Mifa, MifaConfig),
    "fedstale_async": (FedStaleAsync, FedStaleAsyncConfig),
}


def cache_of(precision, place="device", n=3, lengths=LENGTHS, seed=0):
    storage = Storage(lengths, Streams(seed).cache)
    return make_cache(n, torch.zeros(sum(lengths)), CacheConfig(precision, place), storage)


def rounded(cache, vector_d, client=0):
    cache.put(client, vector_d)
    return cache.stored_vector(client).clone()


def steps_of(vector_d, lengths=LENGTHS):
    """(d,) one quantisation step at every place: the largest number of its tensor over 127."""
    return torch.cat([part.abs().max().expand(len(part)) / 127 for part in vector_d.split(list(lengths))])


def test_full_precision_gives_back_every_bit_and_on_the_device_without_a_copy():
    vector = torch.randn(50, generator=torch.Generator().manual_seed(0))
    for place in PLACES:
        assert torch.equal(rounded(cache_of("fp32", place), vector), vector)
    cache = cache_of("fp32")
    assert cache.stored_vector(1).data_ptr() == cache.rows.rows_nd[1].data_ptr()


def test_half_precision_is_the_nearest_bfloat16():
    vector = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rounded(cache_of("bf16"), vector), vector.bfloat16().float())


def test_eight_bits_are_off_by_less_than_a_step_of_their_own_tensor():
    vector = torch.randn(50, generator=torch.Generator().manual_seed(0))
    vector[30:] *= 1e-4  # a small tensor beside a large one keeps its digits
    error = (rounded(cache_of("int8"), vector) - vector).abs()
    assert (error <= 1.0001 * steps_of(vector)).all()
    assert error[30:].max() < 1e-5 < error[:30].max()


@pytest.mark.slow
def test_eight_bits_are_right_on_average():
    vector = torch.randn(50, generator=torch.Generator().manual_seed(0))
    cache, draws = cache_of("int8"), 4000
    mean = torch.stack([rounded(cache, vector) for _ in range(draws)]).double().mean(dim=0)
    # one draw's standard deviation is at most half a step: five of the mean's
    assert ((mean - vector).abs() <= 5 * 0.5 * steps_of(vector) / draws**0.5).all()
    nearest = (vector / steps_of(vector)).round() * steps_of(vector)
    assert ((nearest - vector).abs() > 5 * 0.5 * steps_of(vector) / draws**0.5).any(), "rounding to the nearest is not"


def test_eight_bits_keep_zeros_constants_and_extreme_scales():
    for vector in (torch.zeros(50), torch.full((50,), -3.7), torch.full((50,), 3e38), torch.full((50,), 1e-30)):
        torch.testing.assert_close(rounded(cache_of("int8"), vector), vector, rtol=1e-6, atol=0)
    assert torch.equal(rounded(cache_of("int8"), torch.full((50,), 1e-40)), torch.zeros(50)), "too small for a step"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_eight_bits_do_not_hide_a_number_that_is_not_finite(bad):
    vector = torch.ones(50)
    vector[3] = bad
    stored = rounded(cache_of("int8"), vector)
    assert stored[:30].isnan().all()
    torch.testing.assert_close(stored[30:], vector[30:])


def test_rounding_depends_on_seed_client_and_count_alone():
    vector = torch.randn(50, generator=torch.Generator().manual_seed(0))
    one, other = cache_of("int8"), cache_of("int8", "disk")
    rounded(other, 2 * vector, client=1)  # another client's vectors change nothing
    torch.rand(7)
    first, second = rounded(one, vector), rounded(one, vector)
    assert torch.equal(first, rounded(other, vector)) and torch.equal(second, rounded(other, vector))
    assert not torch.equal(first, second)
    assert not torch.equal(first, rounded(one, vector, client=2))
    assert not torch.equal(first, rounded(cache_of("int8", seed=1), vector))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_cache_goes_on_from_its_state_in_any_place(precision):
    vectors = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    cache = cache_of(precision)
    for number, vector in enumerate(vectors[:4]):
        cache.put(number % 3, vector)
    other = cache_of(precision, "disk")
    other.load_state_dict(copy.deepcopy(cache.state_dict()))
    for vector in vectors[4:]:
        assert torch.equal(rounded(cache, vector), rounded(other, vector))
    assert all(torch.equal(cache.stored_vector(c), other.stored_vector(c)) for c in range(3))


def fed(name, precision, place="device", n=20, iterations=400, shrink=1.0, **config):
    """A rule with a cache after many uploads of random clients."""
    rule_class, config_class = RULES[name]
    rule = rule_class(config_class(eta=1e-3, cache=CacheConfig(precision, place), **config))
    rule.storage = Storage(LENGTHS, Streams(0).cache)
    rule.start(torch.zeros(50), ClientTable(np.ones(n, int)), rule.upload_kinds[0])
    draws, vectors = np.random.default_rng(0), torch.Generator().manual_seed(0)
    for step in range(iterations):
        client = step if step < n else int(draws.integers(n))
        rule.receive(Upload(client, 100 * shrink**step * torch.randn(50, generator=vectors), 0, 0, 1, 1))
    return rule


def drift(rule, clients):
    exact = sum(rule.cache.stored_vector(c).double() for c in clients)
    return ((rule.total.sum_d - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", RULES)
def test_the_running_sum_is_that_of_what_is_stored(name, precision):
    rule = fed(name, precision)
    clients = range(rule.n) if name != "aced" else [c for c in range(rule.n) if rule.active_n[c]]
    assert drift(rule, clients) < 1e-12


@pytest.mark.parametrize("precision", [*(name for name in PRECISIONS if name != "int8"), *slow("int8")])
def test_the_running_sum_does_not_drift_in_ten_thousand_iterations(precision):
    # gradients shrink a thousandfold: early rounding must not stay behind
    rule = fed("ace", precision, iterations=10_000, shrink=0.999)
    assert drift(rule, range(rule.n)) < 1e-5


@pytest.mark.parametrize("name", RULES)
def test_where_a_cache_lies_changes_no_bit_of_the_model(name):
    models = [fed(name, "int8", place).model_d for place in PLACES]
    assert torch.equal(models[0], models[1]) and torch.equal(models[0], models[2])
    assert not torch.equal(models[0], fed(name, "fp32").model_d)


def test_the_first_round_of_ace_is_rounded_too():
    rule = fed("ace", "int8", iterations=20)
    step = -rule.model_d / (1e-3 / 20)
    torch.testing.assert_close(step, sum(rule.cache.stored_vector(c) for c in range(20)), rtol=1e-5, atol=1e-4)
    plain = -fed("ace", "fp32", iterations=20).model_d / (1e-3 / 20)
    assert 0.1 < (step - plain).abs().max() < 20 * 400 / 127


def test_a_gpus_whole_vectors_give_the_bits_of_a_cpus_parts():
    lengths = (700, 1, 300)
    parts, whole = (cache_of("int8", lengths=lengths) for _ in range(2))
    whole._tensor_d = whole._tensor_of_each_number()
    sums = [RunningSum(torch.zeros(1001)) for _ in range(2)]
    sums[1]._wide_d = None
    drawn = torch.Generator().manual_seed(0)
    for count in range(20):
        vector = torch.randn(1001, generator=drawn) * 10.0 ** (count % 7 - 3)
        for cache, total in zip((parts, whole), sums, strict=True):
            cache.replace(count % 3, vector, total)
        assert torch.equal(parts.stored_vector(count % 3), whole.stored_vector(count % 3))
        assert torch.equal(sums[0].sum_d, sums[1].sum_d)
