"""A measured fleet in whole runs: docs/howto/fleet.md followed literally, resumed, and from either kind of file."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from crashing import assert_same
from tiers import slow

from asyncfl_bench import run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "howto" / "fleet.md").read_text()


@pytest.fixture
def fleet(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return Path("examples/fleet")


def words(fleet, kind="csv"):
    delay = ["delay=trace", f"delay.path={fleet}/durations.{kind}"]
    available = ["availability=trace", f"availability.path={fleet}/online.{kind}", "algorithm.eta=0.1"]
    return [*delay, *available, "n_clients=10", "model=softmax", "trace=true", "progress=false"]


@pytest.mark.slow
def test_the_pages_command_leaves_what_the_page_says(fleet, afl_run):
    (command,) = re.findall(r"```sh\nafl-run (algorithm=.*?)\n```", PAGE, re.S)
    words = shlex.split(command, comments=True)
    answer = afl_run(*words)
    assert answer.returncode == 0, answer.stderr
    (directory,) = Path("runs").iterdir()
    used = json.loads((directory / "summary.json").read_text())["used"]
    assert (used["uploads"], used["discarded"], used["virtual_time"]) == (801, 41, 259200)
    paused = run([*words, "availability.interrupted=paused", "progress=false"]).summary["used"]
    assert (paused["uploads"], paused["discarded"], paused["virtual_time"]) == (822, 0, 259200)
    said = " ".join(PAGE.split())
    assert "801 uploads arrive. 41 pieces of work are lost" in said
    assert "such work resumes, and 822 uploads arrive" in said


@pytest.mark.parametrize(
    "more",
    [
        ["algorithm=asgd", "availability.interrupted=paused", "schedule=random_idle", "concurrency=6"],
        *slow(
            ["algorithm=ace", "clock=ticks", "algorithm.step_on=arrival"],
            ["algorithm=asgd", "availability.repeat=false"],
            ["algorithm=fedavg"],
        ),
    ],
)
def test_a_run_that_goes_on_from_its_checkpoint_is_the_run_that_was_never_stopped(more, fleet):
    short = run([*words(fleet), *more, "budget.server_iterations=20", "output_dir=short"])
    long = run([*words(fleet), *more, "budget.server_iterations=60", "output_dir=long"])
    assert short.ok and long.ok
    extended = run([f"resume={short.directory}", "budget.server_iterations=60"])
    assert extended.summary["used"] == long.summary["used"]
    assert long.summary["used"]["server_iterations"] > 20
    assert_same(extended.directory, long.directory)


@pytest.mark.slow
def test_a_parquet_of_the_same_rows_gives_the_same_run(fleet):
    for name in ("durations", "online"):
        pd.read_csv(fleet / f"{name}.csv").to_parquet(fleet / f"{name}.parquet", index=False)
    one, other = (run([*words(fleet, kind), "budget.server_iterations=60"]) for kind in ("csv", "parquet"))
    assert_same(one.directory, other.directory)
