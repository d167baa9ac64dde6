"""Cases of a test that belong to the slow tier, beside those that stay in the fast one."""

import pytest


def slow(*cases):
    """``parametrize("executor", ["batched", *slow("sequential", "threads")])``; a tuple is a case of several values."""
    return [pytest.param(*case if isinstance(case, tuple) else [case], marks=pytest.mark.slow) for case in cases]


def alternate(*cases):
    """Cases in pairs, of which the fast tier has one: the first of the first pair, the second of the next, …"""
    return [case for n, pair in enumerate(zip(cases[::2], cases[1::2], strict=True)) for case in _split(pair, n % 2)]


def _split(pair, fast):
    return [pair[fast], *slow(pair[1 - fast])]
