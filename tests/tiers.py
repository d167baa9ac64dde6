"""Cases of a test that belong to the slow tier, beside those that stay in the fast one."""

import pytest


def slow(*cases):
    """``parametrize("executor", ["batched", *slow("sequential", "threads")])``; a tuple is a case of several values."""
    return [pytest.param(*case if isinstance(case, tuple) else [case], marks=pytest.mark.slow) for case in cases]
