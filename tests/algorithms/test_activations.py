"""Statistics of activations, rows generated from them, and logit adjustment (GAS)."""

import hashlib
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from asyncfl_bench.algorithms.common.activation_statistics import (
    ActivationStatistics,
    ExponentialWeights,
    fill_classes,
)
from asyncfl_bench.types import ClientTable

CLASSES, WIDTH = 3, 4
DOUBLE = torch.zeros((), dtype=torch.double)


def some_rows(count=200, seed=0):
    """Correlated rows away from zero, weights and labels, in doubles."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.double)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    rows = torch.randn(count, WIDTH, generator=generator, dtype=torch.double) @ mixing + 5.0 * labels[:, None]
    return rows, 0.1 + torch.rand(count, generator=generator, dtype=torch.double), labels


def merged(rows, weights, labels, pieces, form="full", **ridge):
    statistics = ActivationStatistics(CLASSES, WIDTH, form, **{"ridge": 0.0} | ridge, like=rows)
    for piece in pieces:
        statistics.merge(rows[piece], weights[piece], labels[piece])
    return statistics


def splits(count):
    """All at once, one by one, and in uneven pieces of another order."""
    order = np.random.default_rng(1).permutation(count)
    return [np.arange(count)], [[row] for row in range(count)], np.split(order, [3, 4, 77, 150])


@pytest.mark.parametrize("pieces", splits(200), ids=["at once", "one by one", "uneven"])
def test_any_split_into_merges_gives_the_weighted_mean_and_covariance_of_all_rows(pieces):
    rows, weights, labels = some_rows()
    full, diagonal = merged(rows, weights, labels, pieces), merged(rows, weights, labels, pieces, "diagonal")
    for label in range(CLASSES):
        mine = (labels == label).numpy()
        mean = np.average(rows.numpy()[mine], axis=0, weights=weights.numpy()[mine])
        covariance = np.cov(rows.numpy()[mine].T, aweights=weights.numpy()[mine], ddof=0)
        np.testing.assert_allclose(full.mean_ca[label], mean, atol=1e-10)
        np.testing.assert_allclose(full.spread_c[label], covariance, atol=1e-10)
        np.testing.assert_allclose(diagonal.mean_ca[label], mean, atol=1e-10)
        np.testing.assert_allclose(diagonal.spread_c[label], np.diag(covariance), atol=1e-10)
        assert full.weight_c[label] == pytest.approx(float(weights[mine].sum()))


def test_equal_weights_give_the_plain_mean_and_a_common_factor_of_weights_changes_nothing():
    rows, weights, labels = some_rows()
    pieces = np.array_split(np.arange(200), 7)
    equal = merged(rows, torch.ones(200), labels, pieces)
    np.testing.assert_allclose(equal.mean_ca[1], rows[labels == 1].mean(dim=0), atol=1e-10)
    np.testing.assert_allclose(equal.spread_c[1], np.cov(rows[labels == 1].T, ddof=0), atol=1e-10)
    one, thousand = merged(rows, weights, labels, pieces), merged(rows, 1000 * weights, labels, pieces)
    np.testing.assert_allclose(one.mean_ca, thousand.mean_ca, atol=1e-12)
    np.testing.assert_allclose(one.spread_c, thousand.spread_c, atol=1e-12)


def test_exponential_weights_of_any_progress_are_finite_and_leave_no_class_behind():
    rng = np.random.default_rng(4)
    x, y = torch.from_numpy(rng.normal(size=(90, 2))), torch.tensor([0, 1] * 45)
    progress = torch.arange(90).double() * 200 + 1  # e^(3 m) has no double from the second row on, e^(m / 200) has
    for rate in (0.005, 3.0):
        statistics, weights = ActivationStatistics(2, 2, like=x), ExponentialWeights(rate)
        for rows in (slice(0, 20), slice(20, 21), slice(21, 60)):
            statistics.merge(x[rows], weights.weigh(statistics, progress[rows]), y[rows])
        statistics.merge(x[60:][::2], weights.weigh(statistics, progress[60:][::2]), y[60:][::2])  # of class 0 alone
        for label, newest in ((0, 88), (1, 59)):
            chosen = (y == label) & (torch.arange(90) <= newest)
            relative = (rate * (progress[chosen] - progress[newest])).exp()
            np.testing.assert_allclose(statistics.mean_ca[label], np.average(x[chosen], axis=0, weights=relative), 1e-9)
        assert statistics.has_all_classes and torch.isfinite(statistics.spread_c).all()


def test_covariances_are_symmetric_and_positive_and_single_precision_stays_near():
    rows, weights, labels = some_rows(2000)
    pieces = np.array_split(np.arange(2000), 90)
    exact, single = merged(rows, weights, labels, pieces), merged(rows.float(), weights, labels, pieces)
    assert single.spread_c.dtype == torch.float32 and single.mean_ca.dtype == torch.double
    np.testing.assert_allclose(single.spread_c, exact.spread_c, rtol=1e-4, atol=1e-4)
    for covariance in exact.spread_c:
        np.testing.assert_allclose(covariance, covariance.T, atol=1e-12)
        assert torch.linalg.eigvalsh(covariance).min() > -1e-12


def test_a_ridge_is_used_at_sampling_or_kept_at_every_merge_but_a_class_s_first():
    rows, weights, labels = some_rows()
    pieces = np.array_split(np.arange(200), 5)
    for form in ("full", "diagonal"):
        plain = merged(rows, weights, labels, pieces, form)
        at_sampling = merged(rows, weights, labels, pieces, form, ridge=0.5)
        assert torch.equal(at_sampling.spread_c, plain.spread_c)
        kept = merged(rows, weights, labels, pieces, form, ridge=0.5, ridge_at="merge")
        more = kept.spread_c - plain.spread_c
        variances = more.diagonal(dim1=1, dim2=2) if form == "full" else more
        # the last merge's 0.5 is whole, earlier ones have been averaged with what came without
        assert (variances > 0.5).all() and (variances < 0.5 * 4).all()
        once = merged(rows, weights, labels, pieces[:1], form, ridge=0.5, ridge_at="merge")
        assert torch.equal(once.spread_c, merged(rows, weights, labels, pieces[:1], form).spread_c)


def test_a_kept_ridge_comes_to_a_third_of_the_merges_where_weights_grow_linearly():
    statistics = ActivationStatistics(1, 1, "diagonal", 1e-5, "merge", like=DOUBLE)
    row, label = torch.zeros(1, 1, dtype=torch.double), torch.zeros(1, dtype=torch.long)
    for merge in range(1, 1001):
        statistics.merge(row, torch.tensor([float(merge)]), label)
    assert float(statistics.spread_c) == pytest.approx(1e-5 * 1000 / 3, rel=0.01)


@pytest.mark.parametrize("form", ["full", "diagonal"])
def test_drawn_rows_have_the_mean_and_covariance_of_their_class(form):
    rows, weights, labels = some_rows()
    statistics = merged(rows, weights, labels, [np.arange(200)], form, ridge=0.25)
    drawn = statistics.sample({1: 100_000}, torch.Generator().manual_seed(0))[0]
    spread = statistics.spread_c[1]
    expected = (spread if form == "full" else torch.diag(spread)) + 0.25 * torch.eye(WIDTH)
    scale = float(expected.diagonal().max())
    np.testing.assert_allclose(drawn.mean(dim=0), statistics.mean_ca[1], atol=5 * math.sqrt(scale / 100_000))
    np.testing.assert_allclose(np.cov(drawn.T), expected, atol=5 * scale * math.sqrt(2 / 100_000))
    again = statistics.sample({1: 100_000}, torch.Generator().manual_seed(0))[0]
    assert torch.equal(drawn, again)


def test_a_covariance_without_a_factor_gets_more_on_its_diagonal_and_one_that_is_not_finite_gives_nan():
    statistics = ActivationStatistics(1, 3, ridge=0.0, like=DOUBLE)
    statistics.merge(torch.ones(1, 3, dtype=torch.double), torch.ones(1), torch.zeros(1, dtype=torch.long))
    drawn = statistics.sample({0: 10_000}, torch.Generator().manual_seed(0))[0]
    assert float(drawn.std()) == pytest.approx(1e-3, rel=0.05)
    statistics.spread_c.fill_(-1.0)
    assert statistics.sample({0: 2}, torch.Generator())[0].isfinite().all()
    statistics.spread_c[0, 1, 1] = float("inf")
    assert statistics.sample({0: 2}, torch.Generator())[0].isnan().all()


def test_draws_of_all_classes_read_the_device_once(monkeypatch):
    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func.overloadpacket not in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
            return func(*args, **(kwargs or {}))

    statistics = merged(*some_rows(), [np.arange(200)])
    lists, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (lists.append(tensor), tolist(tensor))[1])
    with Reads():
        statistics.sample({0: 3, 1: 4, 2: 5}, torch.Generator())
    assert len(lists) == 1


def buffer(counts):
    """Rows that are their own number, of classes that come in turns."""
    labels = torch.tensor([label for label, count in enumerate(counts) for _ in range(count)])
    labels = labels[torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))]
    return torch.arange(len(labels), dtype=torch.double)[:, None].expand(-1, WIDTH).contiguous(), labels


@pytest.mark.parametrize(
    ("fill", "after"), [("batch", [8, 8, 13]), ("largest", [13, 13, 13]), ("exact", [8, 8, 8])], ids=str
)
def test_generated_rows_fill_up_the_classes_and_real_ones_stay(fill, after):
    rows, labels = buffer([3, 0, 13])
    statistics = merged(*some_rows(), [np.arange(200)])
    more, more_labels, count = fill_classes(statistics, rows, labels, 8, fill, torch.Generator().manual_seed(0))
    assert more_labels.bincount(minlength=CLASSES).tolist() == after
    first = labels == 2
    kept = ~first | (first.cumsum(0) <= 8) if fill == "exact" else torch.ones_like(first)
    assert torch.equal(more[: int(kept.sum())], rows[kept])
    assert count == len(more) - int(kept.sum())
    assert torch.equal(more_labels[: int(kept.sum())], labels[kept])
    generated = more[int(kept.sum()) :][more_labels[int(kept.sum()) :] == 1]
    assert len(generated) == after[1]
    assert (generated.mean(dim=0) - statistics.mean_ca[1]).abs().max() < 6  # of its own class, 5 away from the next


def test_nothing_is_generated_where_nothing_is_missing_or_a_class_was_never_seen():
    rows, labels = buffer([8, 9, 8])
    statistics = merged(*some_rows(), [np.arange(200)])
    same, same_labels, count = fill_classes(statistics, rows, labels, 8, "batch", torch.Generator())
    assert count == 0 and torch.equal(same, rows) and torch.equal(same_labels, labels)
    never = ActivationStatistics(CLASSES, WIDTH, like=DOUBLE)
    assert not never.has_all_classes
    never.merge(rows[labels != 1], torch.ones(16), labels[labels != 1])
    assert not never.has_all_classes
    assert len(fill_classes(never, *buffer([1, 0, 20]), 8, "exact", torch.Generator())[0]) == 21


def test_what_is_saved_goes_on_bit_for_bit():
    rows, weights, labels = some_rows()
    going = merged(rows, weights, labels, [np.arange(100)])
    saved = {name: value.clone() if torch.is_tensor(value) else value for name, value in going.state_dict().items()}
    later = ActivationStatistics(CLASSES, WIDTH, ridge=0.0, like=DOUBLE)
    later.load_state_dict(saved)
    for statistics in (going, later):
        statistics.merge(rows[100:], weights[100:], labels[100:])
    assert going.weight_c == later.weight_c and torch.equal(going.spread_c, later.spread_c)
    draws = [statistics.sample({0: 3}, torch.Generator().manual_seed(2))[0] for statistics in (going, later)]
    assert torch.equal(*draws)


def test_the_numbers_that_it_takes():
    gib = 4 / 2**30
    assert ActivationStatistics.numbers(10, 4096, "full") * gib == pytest.approx(0.625 * 1.2, rel=1e-3)
    assert ActivationStatistics.numbers(10, 4096, "diagonal") == 10 * 4096 * 3 + 20


def test_uniform_shares_leave_the_loss_and_absent_classes_get_almost_no_gradient():
    labels_nc = np.array([[10, 10, 10], [0, 30, 30], [0, 0, 0]])
    bias = torch.from_numpy(ClientTable(labels_nc.sum(axis=1), labels_nc).log_shares()).float()
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2, 1, 1, 2])
    plain = F.cross_entropy(logits, labels)
    assert torch.allclose(F.cross_entropy(logits + bias[0], labels), plain)
    assert torch.allclose(F.cross_entropy(logits + bias[2], labels), plain)  # of a client without samples
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits + bias[1], labels), logits)
    assert gradient[:, 0].abs().max() < 1e-10 < gradient[:, 1:].abs().min()


def test_a_small_tau_lets_no_absent_class_through_and_others_give_the_bits_that_they_gave():
    labels_nc = np.array([[5, 0, 3], [0, 0, 7], [1, 1, 1], [0, 0, 0]])
    clients = ClientTable(labels_nc.sum(axis=1), labels_nc)
    small, whole = clients.log_shares(0.1), clients.log_shares()
    assert (small[labels_nc == 0] == whole[labels_nc == 0]).all() and whole[0, 1] < -27
    assert (small[labels_nc > 0] == 0.1 * whole[labels_nc > 0]).all()
    weights = b"".join(clients.log_shares(tau).astype(np.float32).tobytes() for tau in (1.0, 1.5, 3.0))
    assert hashlib.sha256(weights).hexdigest()[:16] == "699957e4d3984561"  # as before absent classes had tau >= 1
