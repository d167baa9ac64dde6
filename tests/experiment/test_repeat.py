"""An archived run is repeated by one command, and a difference is told with both machines."""

import copy
import json
from dataclasses import replace

import pytest
from raise_versions import rewrite_archive

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.config.saved import check_saved, repeated_settings, saved_config
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.experiment.replay import find_archived_run, settings_to_repeat
from asyncfl_bench.tracking.archive import pack_archive
from asyncfl_bench.tracking.records import read_directory

QUICK = ["scale=smoke", "model=softmax", "algorithm=asgd", "delay=exponential", "evaluation.clients=true", "threads=1"]


@pytest.fixture
def archived(tmp_path):
    return archive_run(tmp_path)


def archive_run(tmp_path):
    """(archive, identity) of a run by an earlier version: without the group ``live``."""
    result = run([*QUICK, "output_dir=elsewhere", "progress=false"])
    archive = tmp_path / "runs.parquet"
    pack_archive([result.directory], archive)

    def as_before(record):
        config, summary = copy.deepcopy(record.config), dict(record.summary)
        for key in config.pop("absent"):
            section, _, name = key.rpartition(".")
            del (config[section] if section else config)[name]
        del config["choices"]["live"], summary["cpu"]
        assert not {"live", "precision"} & {*config}
        return replace(record, config=config, summary=summary)

    rewrite_archive(archive, as_before)
    return archive, result.summary["identity"]


def change(archive, metric=None, clients=False, **summary):
    """Add a little to the second number of a column, or replace entries of the summary."""

    def changed(record):
        points, tables = dict(record.points), dict(record.clients)
        for table, name in ((points, metric), (tables, "mean_delay" if clients else None)):
            if name:
                table[name] = table[name].copy()
                table[name][1] += 1e-3
        return replace(record, points=points, clients=tables, summary=record.summary | summary)

    rewrite_archive(archive, changed)


def test_a_repeated_run_has_the_same_numbers(archived, afl_run):
    archive, identity = archived
    answer = afl_run("--repeat", str(archive), identity, "progress=false")
    assert (answer.returncode, answer.stdout.splitlines()[-1]) == (0, "same numbers: 5 evaluations"), answer.stderr
    again = afl_run("--repeat", str(archive), identity)
    assert again.returncode == 0 and "already complete" in again.stdout


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metric": "test/loss"}, "evaluation 2, test/loss: "),
        ({"metric": "virtual_time"}, "evaluation 2, virtual_time: "),
        ({"clients": True}, "client 2, mean_delay: "),
        ({"best": {"test/accuracy": 0.99}}, "best.test/accuracy: 0.99 archived, "),
        (
            {"data_digest": "other", "used": {"uploads": 7}},
            "used.uploads: 7 archived, 20 repeated (the data differ; archived: ",
        ),
    ],
)
def test_the_first_difference_is_told_with_both_machines(changes, said, archived, afl_run):
    archive, identity = archived
    change(archive, device="cpu (An old one, 3 cores)", **changes)
    answer = afl_run("--repeat", str(archive), identity, "progress=false")
    difference = answer.stdout.splitlines()[-1]
    assert answer.returncode == 1 and difference.startswith(f"first difference: {said}")
    assert "archived: cpu (An old one, 3 cores), " in difference and "; repeated: cpu (" in difference


def test_a_wall_time_and_the_machine_are_no_difference(archived, afl_run):
    archive, identity = archived
    change(archive, metric="wall_time", wall_seconds=1e3, device="cpu (An old one, 3 cores)")
    assert afl_run("--repeat", str(archive), identity, "progress=false").returncode == 0


def test_a_run_of_settings_with_another_meaning_is_not_repeated(archived):
    archive, identity = archived
    record = find_archived_run(archive, identity)
    with pytest.raises(ConfigError, match=rf"^--repeat=00000000: is now {identity}: made by another version"):
        repeated_settings(check_saved(copy.deepcopy(record.config), archive, "--repeat"), "00000000", [])
    live = compose(["live=processes", "algorithm=asgd", "model=softmax", "n_clients=8"]).tree
    summary = record.summary | {"executor": "sequential"}
    with pytest.raises(ConfigError, match=r"was a live run; afl-run --replay DIR"):
        settings_to_repeat(replace(record, config=live, summary=summary), archive)
    with pytest.raises(ConfigError, match=r"it has no delay"):
        config = {key: value for key, value in record.config.items() if key != "delay"}
        settings_to_repeat(replace(record, config=config), archive)
    with pytest.raises(ConfigError, match=r"algorithm\._target_=os\.system"):
        settings_to_repeat(replace(record, config=record.config | {"algorithm": {"_target_": "os.system"}}), archive)


def test_a_directory_of_an_earlier_version_without_a_group_resumes():
    directory = run([*QUICK, "progress=false"]).directory
    config, summary = directory / "config.yaml", directory / "summary.json"
    text = config.read_text()
    config.write_text(text[: text.index("live:\n")] + text[text.index("schedule:\n") :].replace("  live: none\n", ""))
    content = json.loads(summary.read_text())
    summary.write_text(json.dumps({key: value for key, value in content.items() if key != "files"}))
    assert "live" in saved_config(directory) and read_directory(directory).status == "ok"
    assert run([f"resume={directory}"]).summary["already_complete"]
