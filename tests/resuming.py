"""A run that is saved, thrown away and put together again from what was saved."""

from __future__ import annotations

import copy

import numpy as np
from toy import Recorder

from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_run


def built(words, state=None):
    """(parts of a run, what it records), from the beginning or from where it was saved."""
    parts = build_run(compose(words))
    recorder = Recorder()
    recorder.simulation = parts.simulation
    parts.simulation.observers.append(recorder)
    if state is not None:
        parts.load_state_dict(state)
    return parts, recorder


def assert_goes_on(words, every=1):
    """Compare models and counters with those of the run left alone, if every ``every``-th event ends a process."""
    whole, seen = built(words)
    whole.simulation.run()
    parts, recorder = built(words)
    models, events = [], 0
    while parts.simulation.step() is None:
        events += 1
        if events % every:
            continue
        state = copy.deepcopy(parts.state_dict())
        models += recorder.models
        parts.executor.close()
        parts, recorder = built(words, state)
    models += recorder.models
    np.testing.assert_array_equal(models, seen.models)
    assert parts.simulation.counters == whole.simulation.counters
    return whole.simulation.counters
