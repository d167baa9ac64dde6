"""When a run ends: a limit of the user's replaces those of yaml files; and T in c * sqrt(n / T) for every limit."""

import json

import pytest
import yaml

from asyncfl_bench.config import compose, part_sources
from asyncfl_bench.multirun.jobs import plan


def limits(*words):
    return {key: limit for key, limit in compose(list(words)).tree["budget"].items() if limit is not None}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"server_iterations": 500}),
        (["budget.uploads=5000"], {"uploads": 5000}),
        (["budget={uploads: 5000}"], {"uploads": 5000}),
        (["++budget.uploads=5000"], {"uploads": 5000}),
        (["budget.virtual_time=60"], {"virtual_time": 60}),
        (["budget.client_steps=60"], {"client_steps": 60}),
        (["budget.uploads=5000", "budget.server_iterations=500"], {"server_iterations": 500, "uploads": 5000}),
        (["paper=ace", "budget.uploads=5000"], {"uploads": 5000}),
        (["scale=smoke", "budget.uploads=50"], {"uploads": 50}),
        (["paper=asyncfeded/synthetic"], {"virtual_time": 300}),
        (["paper=asyncfeded/synthetic", "budget.server_iterations=9"], {"server_iterations": 9}),
        (["length=long"], {"uploads": 20000}),
        (["length=long", "budget.server_iterations=9"], {"server_iterations": 9}),
        (["length=long", "budget.client_steps=null"], {"uploads": 20000}),
    ],
)
def test_a_limit_on_the_command_line_replaces_those_of_files(words, expected):
    assert limits(*words) == expected


def test_a_limit_in_a_yaml_of_ones_own_replaces_the_usual_one(tmp_path):
    (tmp_path / "conf/paper").mkdir(parents=True)
    (tmp_path / "conf/paper/mine.yaml").write_text("# @package _global_\n# Mine.\nbudget:\n  uploads: 70\n")
    with part_sources.using_folders([tmp_path / "conf"]):
        assert limits("paper=mine") == {"uploads": 70}


def test_the_shown_settings_have_the_limits_of_the_run(afl_run):
    shown = yaml.safe_load(afl_run("paper=ace", "budget.uploads=5000", "--cfg", "job").stdout)["budget"]
    assert {key: limit for key, limit in shown.items() if limit is not None} == {"uploads": 5000}


@pytest.mark.slow
def test_so_do_the_limits_of_a_multiruns_jobs(tmp_path, afl_run):
    found = plan(["budget.uploads=30,60", "paper=ace", "scale=small"])
    assert [job.settings.budget.uploads for job in found] == [30, 60]
    assert {job.settings.budget.server_iterations for job in found} == {None}
    answer = afl_run("-m", "algorithm=asgd", "scale=smoke", "model=softmax", "budget.uploads=30,60", "progress=false")
    assert answer.returncode == 0, answer.stderr
    summaries = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/summary.json")]
    assert sorted(summary["used"]["uploads"] for summary in summaries) == [30, 60]
    assert (
        "2 runs, 2 of them finished" in afl_run(*answer.args).stderr
    )  # a job's settings are those it was planned with


@pytest.mark.parametrize(
    ("words", "total"),
    [
        (["budget.server_iterations=80"], 80),
        (["budget.server_iterations=80", "algorithm.total_steps=20"], 20),
        (["algorithm=asgd", "budget.uploads=600"], 600),
        (["algorithm=asgd", "budget.uploads=600", "budget.server_iterations=700"], 600),
        (["algorithm=fedbuff", "algorithm.eta=null", "budget.uploads=600"], 60),
        (["algorithm=fedavg", "algorithm.eta=null", "budget.uploads=600", "concurrency=20"], 30),
        (["algorithm=ace", "clock=time", "budget.uploads=600"], 600),
        (["algorithm=ace", "budget.uploads=600"], 500),  # a tick takes as many uploads as happen to arrive
        (["algorithm=ace", "budget.virtual_time=60"], 60),  # ticks
        (["algorithm=asgd", "budget.virtual_time=60"], 500),
        (["algorithm=asgd", "client.upload=difference", "client.local_steps=5", "budget.client_steps=600"], 120),
        (["algorithm=asgd", "client.upload=difference", "client.local_epochs=5", "budget.client_steps=600"], 500),
        (["algorithm=asgd", "budget.uploads=600", "length=long"], 500),
    ],
)
def test_the_steps_in_the_server_step_follow_from_every_kind_of_limit(words, total):
    rule = compose(words).parts["algorithm"].config
    assert rule.eta == pytest.approx(rule.c * (100 / total) ** 0.5)
