"""Simulate the looks of docs/reference/statistics.md and print its numbers (seconds): python scripts/looks.py

Legend: an effect is the mean of the paired differences in standard deviations; the last axis of differences is seeds.
"""

from collections.abc import Mapping

import numpy as np
from scipy import special

from asyncfl_bench.analysis.statistics import ALPHA, LEVELS

EFFECTS = (0, 0.5, 1, 1.5, 2, 3)
PAIRS = (6, 16)
SAMPLES = 300_000
FAMILIES = 20_000
MOST = max(LEVELS)
COLLAPSE, DEPTH = 0.15, 100  # share of the seeds, and depth in standard deviations of the others
UNCORRECTED = dict.fromkeys(LEVELS, ALPHA)


def p_values(differences: np.ndarray, seeds: int) -> np.ndarray:
    """Return the two-sided p of Student's t on the first seeds."""
    first = differences[..., :seeds]
    t = first.mean(-1) / first.std(-1, ddof=1) * seeds**0.5
    return 2 * special.stdtr(seeds - 1, -np.abs(t))


def repeated_p_values(differences: np.ndarray) -> np.ndarray:
    """Return the smallest p x 5 % / level of all looks, at most 1."""
    corrected = [p_values(differences, seeds) * ALPHA / level for seeds, level in LEVELS.items()]
    return np.minimum(np.min(corrected, axis=0), 1)


def find_decisions(differences: np.ndarray, levels: Mapping[int, float] = LEVELS) -> tuple[np.ndarray, np.ndarray]:
    """Return the sign of each sample's first decision, 0 for none, and the seeds that it used."""
    signs = np.zeros(differences.shape[:-1])
    used = np.full(signs.shape, MOST)
    for seeds, level in levels.items():
        decided = (signs == 0) & (p_values(differences, seeds) < level)
        signs[decided] = np.sign(differences[decided, :seeds].mean(-1))
        used[decided] = seeds
    return signs, used


def share_decided(
    effect: float, generator: np.random.Generator, levels: Mapping[int, float] = LEVELS, samples: int = SAMPLES
) -> tuple[float, float, float]:
    """Return the share of samples that are decided, the mean number of seeds used and the mean estimate of them."""
    differences = generator.standard_normal((samples, MOST)) + effect
    signs, used = find_decisions(differences, levels)
    estimates = differences.cumsum(-1)[np.arange(samples), used - 1] / used
    return float((signs != 0).mean()), float(used.mean()), float(estimates.mean())


def collapse_error(generator: np.random.Generator, samples: int = SAMPLES) -> float:
    """Return the share of samples in which a method that collapses in some seeds, and is equal on average, is above."""
    collapsed = generator.random((samples, MOST)) < COLLAPSE
    differences = generator.standard_normal((samples, MOST)) + DEPTH * (COLLAPSE - collapsed)
    return float((find_decisions(differences)[0] > 0).mean())


def family_error(pairs: int, generator: np.random.Generator, families: int = FAMILIES) -> float:
    """Return the share of families of null pairs in which Holm rejects one, by repeated p-values."""
    differences = generator.standard_normal((families, pairs, MOST))
    return float((repeated_p_values(differences).min(-1) * pairs < ALPHA).mean())


def main() -> None:
    generator = np.random.default_rng(1)
    for seeds, level in LEVELS.items():
        print(f"{seeds} seeds: level {level}, critical t {special.stdtrit(seeds - 1, 1 - level / 2):.2f}")
    for effect in EFFECTS:
        share, used, estimate = share_decided(effect, generator)
        print(f"effect {effect}: decided {share:.3f}, seeds {used:.1f}, estimate {abs(estimate):.2f}")
    print(f"five looks at p < 0.05 each: {share_decided(0, generator, UNCORRECTED)[0]:.3f}")
    print(f"Holm over {PAIRS[0]} and {PAIRS[1]} pairs:", *(f"{family_error(pairs, generator):.3f}" for pairs in PAIRS))
    print(f"collapses by {DEPTH} in {COLLAPSE:.0%} of the seeds, mean zero: above in {collapse_error(generator):.2f}")


if __name__ == "__main__":
    main()
