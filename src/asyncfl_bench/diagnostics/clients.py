"""Per-client accuracy: the expected accuracy of the model for each client, and for fast, slow, rare and frequent ones.

Legend: n clients, C classes.
"""

from __future__ import annotations

import math

import numpy as np

TYPES: dict[str, type] = {
    "client": np.int64,
    "samples": np.int64,  # training samples of the client
    "uploads": np.int64,  # that reached the server
    "mean_delay": np.float64,  # of the client's work, in the unit of virtual time; NaN without work
    "accuracy": np.float64,  # expected on the client's label mix, a share
}
KEPT: dict[str, type] = {"kept": np.float64}  # uploads that a selecting rule kept; NaN where unknown
LABEL = "label_"  # and a class: the client's training samples of that class


def expected_accuracy(hits_c: np.ndarray, tests_c: np.ndarray, labels_nc: np.ndarray) -> np.ndarray:
    """Return the (n,) expected accuracy on test samples with each client's label mix.

    The mean of the class accuracies, weighted by the client's samples of each class. Exact: no sample is drawn.
    hits_c     (C,) test samples of each class with a correct prediction
    tests_c    (C,) test samples of each class
    labels_nc  (n, C) training samples of each class at each client
    Classes without test samples are left out. NaN for a client that only has such classes.
    """
    tested = tests_c > 0
    held_nc = labels_nc[:, tested]
    held_n = held_nc.sum(axis=1)
    right_n = held_nc @ (hits_c[tested] / tests_c[tested])
    return np.divide(right_n, held_n, out=np.full(len(held_n), math.nan), where=held_n > 0)


def client_accuracy_summary(accuracy_n: np.ndarray, delay_n: np.ndarray, uploads_n: np.ndarray) -> dict[str, float]:
    """Return the mean expected accuracy of all clients, of the worst tenth and of quarters of the clients.

    The quarters have the shortest and the longest mean delay, and the fewest and the most uploads, with ties in the
    order of clients. NaN for quarters if all clients have the same value.
    """
    known_n = np.sort(accuracy_n[~np.isnan(accuracy_n)])
    if not len(known_n):
        known_n = np.array([math.nan])
    fast, slow = _outer_quarters(accuracy_n, delay_n)
    least, most = _outer_quarters(accuracy_n, uploads_n.astype(float))
    return {
        "mean_accuracy": float(known_n.mean()),
        "worst_tenth_accuracy": float(known_n[: math.ceil(len(known_n) / 10)].mean()),
        "fast_quarter_accuracy": fast,
        "slow_quarter_accuracy": slow,
        "least_heard_quarter_accuracy": least,
        "most_heard_quarter_accuracy": most,
    }


def _outer_quarters(accuracy_n: np.ndarray, by_n: np.ndarray) -> tuple[float, float]:
    known_n = ~(np.isnan(accuracy_n) | np.isnan(by_n))
    accuracy_n, by_n = accuracy_n[known_n], by_n[known_n]
    if len(by_n) < 2 or by_n.min() == by_n.max():
        return math.nan, math.nan
    ordered_n, quarter = accuracy_n[np.argsort(by_n, kind="stable")], math.ceil(len(by_n) / 4)
    return float(ordered_n[:quarter].mean()), float(ordered_n[-quarter:].mean())
