"""Default step sizes are named beside a verdict, with the command that searches those of all methods."""

from asyncfl_bench.analysis.caveats import describe_default_steps
from asyncfl_bench.analysis.selection import planned_frame
from asyncfl_bench.config import compose


def finished_runs(*commands):
    """Return the frame of runs with these words, as ``load_runs`` returns it."""
    settings = [compose(words.split()) for words in commands]
    frame = planned_frame(settings)
    frame["summary.default_steps"] = [True if one.default_steps else None for one in settings]
    return frame


def test_the_methods_with_default_steps_are_named_and_the_command_searches_all():
    frame = finished_runs("algorithm=ace", "algorithm=fedbuff algorithm.eta=0.3")
    said, _, command = describe_default_steps(frame.assign(series=["Mine", "FedBuff"])).partition(": ")
    assert said.startswith("the step sizes of Mine are defaults, neither chosen nor searched")
    assert said.endswith("with the other settings of these runs")
    assert command == "afl-run sweep=tune algorithm=ace,fedbuff"


def test_chosen_steps_are_not_mentioned():
    assert describe_default_steps(finished_runs("algorithm=ace algorithm.c=0.3")) == ""
    assert describe_default_steps(finished_runs("algorithm=ace").drop(columns="summary.default_steps")) == ""
