"""How far the model had moved when an upload arrived, against the upload's staleness, in a few numbers."""

from __future__ import annotations

import math

import numpy as np


def summarize_drift(iteration_u: np.ndarray, staleness_u: np.ndarray, drift_u: np.ndarray) -> dict:
    """Return the mean staleness, the slope and the bins of the u uploads in the second half of the iterations.

    In the first half the way from the initial model hides what noise and skew add to the drift |w_t - w_v|^2.

    staleness_mean  mean staleness [server iterations]; None without uploads
    slope           least squares: growth of the drift an iteration of staleness; None without two kinds of staleness
    bins            [b, uploads, mean staleness, mean drift] of uploads whose staleness is 2^b to 2^(b+1) - 1
    """
    late_u = iteration_u >= iteration_u.max(initial=0) / 2
    staleness_u, drift_u = staleness_u[late_u].astype(float), drift_u[late_u]
    if not len(staleness_u):
        return {"staleness_mean": None, "slope": None, "bins": []}
    off_u = staleness_u - staleness_u.mean()
    spread = float(off_u @ off_u)
    stale_s, drift_s = staleness_u[staleness_u > 0], drift_u[staleness_u > 0]
    bin_s = np.floor(np.log2(stale_s)).astype(int)
    bins = [(int(b), bin_s == b) for b in np.unique(bin_s)]
    return {
        "staleness_mean": float(staleness_u.mean()),
        "slope": float(off_u @ drift_u) / spread if spread else None,
        "bins": [[b, int(own.sum()), float(stale_s[own].mean()), float(drift_s[own].mean())] for b, own in bins],
    }


def merge_bins(bins: list[list]) -> dict[int, tuple[int, float, float]]:
    """Merge the bins of several runs: b -> (uploads, mean staleness, mean drift), in order."""
    found = {}
    for b in sorted({int(of[0]) for of in bins}):
        uploads, staleness, drift = np.array([of[1:] for of in bins if of[0] == b], dtype=float).T
        found[b] = (int(uploads.sum()), *(math.fsum(uploads * x) / uploads.sum() for x in (staleness, drift)))
    return found
