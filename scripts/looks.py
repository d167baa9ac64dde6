"""Simulate the looks of docs/statistics.md and print its numbers (seconds): python scripts/looks.py

Legend: an effect is the mean of the paired differences in standard deviations; a_k is the two-sided level of look k.
"""

import numpy as np
from scipy import stats

SEEDS = (3, 5, 8, 12, 20)
LEVELS = (0.0156, 0.0063, 0.0072, 0.0083, 0.0126)
SAMPLES = 300_000
FAMILIES = 20_000


def p_values(differences: np.ndarray, seeds: int) -> np.ndarray:
    """Two-sided p of Student's t on the first seeds; differences have shape (..., 20)."""
    first = differences[..., :seeds]
    t = first.mean(-1) / first.std(-1, ddof=1) * seeds**0.5
    return 2 * stats.t.sf(np.abs(t), seeds - 1)


def decide(effect: float, levels: tuple[float, ...], generator: np.random.Generator) -> tuple[float, float]:
    """(share of samples that were decided, mean seeds used)"""
    differences = generator.standard_normal((SAMPLES, SEEDS[-1])) + effect
    used, is_open = np.full(SAMPLES, SEEDS[-1]), np.full(SAMPLES, True)
    for seeds, level in zip(SEEDS, levels, strict=True):
        decided = is_open & (p_values(differences, seeds) < level)
        used[decided] = seeds
        is_open &= ~decided
    return 1 - is_open.mean(), used.mean()


def family_error(pairs: int, generator: np.random.Generator) -> float:
    """Share of families of null pairs in which Holm rejects one, by repeated p-values."""
    differences = generator.standard_normal((FAMILIES, pairs, SEEDS[-1]))
    repeated = [p_values(differences, n) * 0.05 / level for n, level in zip(SEEDS, LEVELS, strict=True)]
    return float((np.min(repeated, axis=(0, 2)) * pairs < 0.05).mean())


def main() -> None:
    generator = np.random.default_rng(1)
    for seeds, level in zip(SEEDS, LEVELS, strict=True):
        print(f"{seeds} seeds: level {level}, critical t {stats.t.isf(level / 2, seeds - 1):.2f}")
    for effect in (0, 0.5, 1, 1.5, 2, 3):
        share, used = decide(effect, LEVELS, generator)
        print(f"effect {effect}: decided {share:.3f}, seeds {used:.1f}")
    print(f"five looks at p < 0.05 each: {decide(0, (0.05,) * 5, generator)[0]:.3f}")
    print(f"Holm over 6 and 16 pairs: {family_error(6, generator):.3f}, {family_error(16, generator):.3f}")


if __name__ == "__main__":
    main()
