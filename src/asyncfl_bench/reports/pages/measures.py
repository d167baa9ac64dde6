"""What a run reached within a time limit, and when: pure functions of its evaluations.

Legend: p evaluations of one run, sorted by time. Times are in the unit of the virtual clock, accuracies in any unit.
"""

from __future__ import annotations

import math

import numpy as np

SHARE = 0.9  # of the own best: what AsyncFedED's figure 3 (right) times
_ROUNDING = 1e-12  # 0.9 * 0.8 is a little more than 0.72 in binary; an accuracy of 0.72 has reached it


def best_within(time_p: np.ndarray, accuracy_p: np.ndarray, limit: float) -> float:
    """The highest accuracy evaluated at or before ``limit``; NaN when there is no evaluation so early."""
    early_p = accuracy_p[time_p <= limit]
    return float(early_p.max()) if len(early_p) else math.nan


def first_time_at(time_p: np.ndarray, accuracy_p: np.ndarray, target: float, limit: float) -> float:
    """When an evaluation first shows at least ``target``; NaN when none does at or before ``limit``."""
    hits_p = time_p[(accuracy_p >= target * (1 - _ROUNDING)) & (time_p <= limit)]
    return float(hits_p[0]) if len(hits_p) else math.nan


def time_to_share_of_best(time_p: np.ndarray, accuracy_p: np.ndarray, limit: float, share: float = SHARE) -> float:
    """When an evaluation first shows ``share`` of the best within ``limit``: AsyncFedED, arXiv:2205.13797, section 6.

    Each run is measured by its own best, so a run that stays low may be quick: read it beside ``best_within``.
    """
    return first_time_at(time_p, accuracy_p, share * best_within(time_p, accuracy_p, limit), limit)


def held_at(x_p: np.ndarray, y_p: np.ndarray, at: float) -> float:
    """The last y measured at or before ``at``; NaN before the first."""
    place = int(np.searchsorted(x_p, at, side="right"))
    return float(y_p[place - 1]) if place else math.nan


def unsteadiness(time_p: np.ndarray, accuracy_p: np.ndarray, limit: float) -> float:
    """Mean absolute change from one evaluation to the next, from the time of 90 % of the best to ``limit``; NaN when
    fewer than two evaluations lie there."""
    since = time_to_share_of_best(time_p, accuracy_p, limit)
    late_p = accuracy_p[(time_p >= since) & (time_p <= limit)]
    return float(np.abs(np.diff(late_p)).mean()) if len(late_p) > 1 else math.nan
