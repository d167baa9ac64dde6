"""Per-client accuracy: what accuracy each client may expect of it, and how that goes with speed and participation.

Legend: n clients, C classes.
"""

from __future__ import annotations

import math

import numpy as np

TYPES: dict[str, type] = {
    "client": np.int64,
    "samples": np.int64,  # training samples it holds
    "uploads": np.int64,  # of its uploads that reached the server
    "mean_delay": np.float64,  # of the work dispatched to it, in the unit of virtual time; NaN where there was none
    "accuracy": np.float64,  # expected on its own mix of labels, a share
}
KEPT: dict[str, type] = {"kept": np.float64}  # of its uploads, by a rule that decides that; NaN where unknown
LABEL = "label_"  # and a class: of its training samples, how many are of it


def expected_accuracy(hits_c: np.ndarray, tests_c: np.ndarray, labels_nc: np.ndarray) -> np.ndarray:
    """(n,) accuracy on test samples whose labels are mixed as the client's: the class accuracies weighted by the shares
    of the client's samples. Exact, no sample is drawn.

    hits_c     (C,) test samples of each class that the model has right; tests_c: how many there are
    labels_nc  (n, C) training samples of each class that a client holds
    A class without test samples is left out of every mix; NaN for a client that holds no others.
    """
    tested = tests_c > 0
    held_nc = labels_nc[:, tested]
    held_n = held_nc.sum(axis=1)
    right_n = held_nc @ (hits_c[tested] / tests_c[tested])
    return np.divide(right_n, held_n, out=np.full(len(held_n), math.nan), where=held_n > 0)


def client_accuracy_summary(accuracy_n: np.ndarray, delay_n: np.ndarray, uploads_n: np.ndarray) -> dict[str, float]:
    """Return the mean expected accuracy of all clients, of the worst tenth and of quarters of the clients.

    The quarters have the shortest and the longest mean delay, and the fewest and the most uploads (ties in order of
    clients). NaN of quarters if all clients are alike in that.
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
