"""Clients of one run by how often they were heard, how fast they are and what was kept of theirs. A run's clients are a
frame as tracking.runs.load_clients gives it, one row a client.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

_GROUPS = 10  # of a run's clients, by how often they were heard


def kept_shares(run: pd.DataFrame) -> dict[str, float]:
    """Shares [%] of a run's uploads that were kept: of all, of the slow and the fast quarter of the clients, and by
    samples in them, of the label least and most kept."""
    by_speed = run.sort_values("mean_delay", kind="stable")
    quarter = -(-len(run) // 4)
    parts = {"all": run, "slow quarter": by_speed.tail(quarter), "fast quarter": by_speed.head(quarter)}
    label_c = kept_by_label(run)
    of_parts = {name: 100 * float(of["kept"].sum() / of["uploads"].sum()) for name, of in parts.items()}
    return of_parts | {"label least kept": float(label_c.min()), "label most kept": float(label_c.max())}


def kept_by_label(run: pd.DataFrame) -> pd.Series:
    """By label: samples in a run's kept uploads over samples in all of its uploads [%]."""
    held = run.filter(regex="^label_").dropna(axis=1)
    share = 100 * held.mul(run["kept"], axis=0).sum() / held.mul(run["uploads"], axis=0).sum()
    return share.rename(lambda name: int(str(name).rpartition("_")[2]))


def straggler_shares(run: pd.DataFrame) -> dict[str, float]:
    """Return in percent, of the slowest tenth of a run's clients: accuracy, share and class_accuracy.

    accuracy is what these clients may expect. share and class_accuracy are of the class of which they hold the
    largest share. The accuracies of classes follow from the clients', which are their means weighted by labels; NaN
    if the clients are too few for that.
    """
    held = run.filter(regex="^label_").dropna(axis=1)
    slow = run[run["mean_delay"].notna()].sort_values("mean_delay", kind="stable").tail(-(-len(run) // 10)).index
    share_c = (held.loc[slow].sum() / held.sum()).to_numpy()
    known = run["accuracy"].notna() & (held.sum(axis=1) > 0)
    mix = held[known].div(held[known].sum(axis=1), axis=0).to_numpy()
    accuracy_c, _, rank, _ = np.linalg.lstsq(mix, run.loc[known, "accuracy"].to_numpy(), rcond=None)
    own = int(np.nanargmax(share_c))
    of_class = accuracy_c[own] if rank == mix.shape[1] else np.nan
    found = {"accuracy": run.loc[slow, "accuracy"].mean(), "share": share_c[own], "class_accuracy": of_class}
    return {name: 100 * float(value) for name, value in found.items()}


def client_tenths(run: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return uploads over the mean of all, and accuracy [%], of ten groups of the run's clients, the least heard
    first."""
    known = run[run["accuracy"].notna()].sort_values("uploads", kind="stable")
    parts = np.array_split(np.arange(len(known)), min(_GROUPS, len(known)))
    relative = (known["uploads"] / known["uploads"].mean()).to_numpy()
    accuracy = 100 * known["accuracy"].to_numpy()
    return np.array([relative[p].mean() for p in parts]), np.array([accuracy[p].mean() for p in parts])
