"""Clusters of clients by noisy projections of their label shares.

Legend: n clients, C classes, r dimensions of the projection, K clusters.
"""

from __future__ import annotations

import numpy as np

from ...randomness import Stream

STARTS, ROUNDS = 10, 100  # of k-means


def projected_shares(labels_nc: np.ndarray, rank: int, sigma: float, draws: Stream) -> np.ndarray:
    """Return (n, C r) projections (1 a_i + G_i) R^T that clients send to the server, row by row (AFBS, equation 9).

    a_i is client i's label shares and 1 a_i a matrix of C such rows. G_i (C, C) is independent normal noise with
    standard deviation ``sigma``. R (r, C) is normal with variance 1 / r, and all clients share it as a secret. This is
    an obfuscation, not privacy: the mean of the C noisy rows is a_i R^T up to sigma / sqrt(C), so each client, having
    R, can compute r linear facts about a_i.

    labels_nc  (n, C) samples of each class
    draws      client i's noise is at (i, 0), R at (n, 0)
    """
    n, classes = labels_nc.shape
    share_nc = labels_nc / np.maximum(labels_nc.sum(axis=1, keepdims=True), 1)
    projection_rc = draws(n, 0).normal(0.0, rank**-0.5, (rank, classes))
    sent_nf = np.empty((n, classes * rank))
    for client, share_c in enumerate(share_nc):
        noisy_cc = share_c + draws(client, 0).normal(0.0, sigma, (classes, classes))
        sent_nf[client] = (noisy_cc @ projection_rc.T).ravel()
    return sent_nf


def k_means(x_nf: np.ndarray, k: int, generator: np.random.Generator) -> np.ndarray:
    """Return the (n,) cluster of each row, 0 .. k-1: the tightest of several runs of k-means from k-means++ starts.

    A cluster without rows keeps its centre, so a cluster may be empty.
    """
    if x_nf.shape[1] > len(x_nf):
        x_nf = np.asarray(np.linalg.qr(x_nf.T, mode="r")).T  # the same distances in n dimensions
    tightest, found_n = np.inf, np.zeros(len(x_nf), dtype=np.int64)
    for _ in range(STARTS):
        centre_kf = _initial_centres(x_nf, k, generator)
        cluster_n = np.full(len(x_nf), -1)
        for _ in range(ROUNDS):
            distance_nk = _squared_distances(x_nf, centre_kf)
            before_n, cluster_n = cluster_n, distance_nk.argmin(axis=1)
            if np.array_equal(before_n, cluster_n):
                break
            for cluster in np.unique(cluster_n):
                centre_kf[cluster] = x_nf[cluster_n == cluster].mean(axis=0)
        within = distance_nk.min(axis=1).sum()
        if within < tightest:
            tightest, found_n = within, cluster_n
    return found_n


def _initial_centres(x_nf: np.ndarray, k: int, generator: np.random.Generator) -> np.ndarray:
    """Draw (k, f) rows, each by its squared distance from the nearest earlier one (k-means++)."""
    chosen = [int(generator.integers(len(x_nf)))]
    while len(chosen) < k:
        nearest_n = np.maximum(_squared_distances(x_nf, x_nf[chosen]).min(axis=1), 0)
        nearest_n[chosen] = 0
        total = nearest_n.sum()
        chosen.append(int(generator.choice(len(x_nf), p=nearest_n / total if total > 0 else None)))
    return x_nf[chosen].copy()


def _squared_distances(x_nf: np.ndarray, centre_kf: np.ndarray) -> np.ndarray:
    """Return (n, k) squared distances, up to rounding."""
    return (x_nf**2).sum(axis=1)[:, None] - 2 * x_nf @ centre_kf.T + (centre_kf**2).sum(axis=1)
