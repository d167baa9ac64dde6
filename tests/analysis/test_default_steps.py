"""Default step sizes are named beside a verdict, and the printed command searches those of all methods."""

import shlex

import pytest
from tiers import slow

from asyncfl_bench.analysis.caveats import describe_default_steps
from asyncfl_bench.analysis.selection import planned_frame
from asyncfl_bench.config import compose
from asyncfl_bench.config.composition import STEPS
from asyncfl_bench.config.places import using_folders
from asyncfl_bench.multirun.jobs import plan
from asyncfl_bench.tracking.runs import flatten


def finished_runs(*commands):
    """Return the frame of runs with these words, as ``load_runs`` returns it."""
    settings = [compose(words.split()) for words in commands]
    frame = planned_frame(settings)
    frame["summary.default_steps"] = [True if one.default_steps else None for one in settings]
    return frame, settings


def environment(settings):
    """Return the settings of a run but its steps, its seed and what a search sets."""
    others = {*STEPS, "seed", "evaluation.validation_share", "absent", "choices.sweep"}
    return {key: value for key, value in flatten(settings.tree).items() if key not in others}


@pytest.fixture
def mine(tmp_path):
    """A rule of the user, whose yaml declares no ranges."""
    (tmp_path / "parts/algorithm").mkdir(parents=True)
    (tmp_path / "parts/algorithm/mine.yaml").write_text("_target_: asyncfl_bench.algorithms.ace.Ace\neta: 0.1\n")
    with using_folders([tmp_path / "parts"]):
        yield tmp_path / "parts"


@pytest.mark.parametrize(
    "commands",
    [
        ("algorithm=ace", "algorithm=mine"),
        ("algorithm=ace algorithm.c=0.3 budget.uploads=300", "algorithm=mine budget.uploads=300"),
        *slow(
            (("algorithm=fedbuff algorithm.buffer_size=5 model=softmax", "algorithm=ace model=softmax"),),
            (("algorithm=ace delay=exp_beta5 n_clients=12", "algorithm=ace delay=exp_beta30 n_clients=12"),),
            (("algorithm=ace model.hidden=[20,10] heterogeneity.alpha=1", "algorithm=ace model.hidden=[20,10]"),),
        ),
    ],
)
def test_the_command_searches_the_steps_of_all_methods_in_the_same_environment(commands, mine):
    frame, settings = finished_runs(*commands)
    said, _, command = describe_default_steps(frame).partition(": ")
    names = ", ".join(dict.fromkeys(one.choices["algorithm"] for one in settings if one.default_steps))
    assert said == f"the step sizes of {names} are defaults, neither chosen nor searched; the command that searches all"
    first, flag, folder, *words = shlex.split(command)
    assert (first, flag, folder) == ("afl-run", "--config-dir", str(mine))
    jobs = plan([*words, "trials=2"])
    assert {one.choices["algorithm"] for one in settings} == {job.settings.choices["algorithm"] for job in jobs}
    assert all({text.partition("=")[0] for text in job.drawn} <= STEPS and job.drawn for job in jobs)
    assert len(jobs) == 2 * len(settings)
    wanted = [environment(one) for one in settings]
    assert all(environment(job.settings) in wanted for job in jobs)


def test_chosen_steps_are_not_mentioned_and_the_command_names_an_unknown_rule(mine):
    assert describe_default_steps(finished_runs("algorithm=ace algorithm.c=0.3")[0]) == ""
    frame, _ = finished_runs("algorithm=ace")
    assert describe_default_steps(frame.drop(columns="summary.default_steps")) == ""
    said, _, command = describe_default_steps(frame.assign(algorithm="else where", series="Elsewhere")).partition(": ")
    assert said.startswith("the step sizes of Elsewhere are defaults") and said.endswith("other settings of these runs")
    assert shlex.split(command)[-2:] == ["sweep=tune", "algorithm=else where"]


def test_no_command_mixes_limits_of_two_kinds():
    said, _, command = describe_default_steps(
        finished_runs("algorithm=ace", "algorithm=asgd budget.uploads=300")[0]
    ).partition(": ")
    assert said.endswith("other settings of these runs") and command == "afl-run sweep=tune algorithm=ace,asgd"
