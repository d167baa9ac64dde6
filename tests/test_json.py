"""With ``--json`` a command prints one object whose fields docs/howto/agents.md names; ``--list`` finds past runs."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from reports.runs_by_hand import write_run

from asyncfl_bench import run
from asyncfl_bench.multirun import decide
from asyncfl_bench.tracking.archive import pack_archive, read_archive

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "howto" / "agents.md").read_text("utf-8")
COMMANDS = re.findall(r"^afl-run (.*?) *(?:#.*)?$", PAGE, re.M)
QUICK = ["scale=smoke", "model=softmax", "progress=false"]


@pytest.fixture
def afl_json(afl_run):
    """``afl_json(*words)``: the object of the command, which is all of its standard output."""

    def call(*words):
        done = afl_run(*words, "--json")
        assert done.stdout.count("\n") == 1, done.stdout
        found = json.loads(done.stdout)
        assert found["exit_code"] == done.returncode
        return found

    return call


def documented(kind):
    """The fields of the page's table about ``kind``, those of every object included."""
    tables = {
        title: rows for title, rows in re.findall(r"^\| field of (.*?) \|.*\n\| --- .*\n((?:\|.*\n)+)", PAGE, re.M)
    }
    return {
        name
        for title in (kind, "every object")
        for row in tables[title].splitlines()
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }


def printed(found, prefix=""):
    """The fields of an object as the page writes them; the content of sections of summary.json is not among them."""
    names = {"error"} if not prefix else set()
    for key, value in found.items():
        rows = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
        inner = [printed(one, f"{prefix}{key}[].") for one in rows]
        names |= set().union(*inner) if rows else {f"{prefix}{key}"}
    return names


OF_RUN = documented("a run")
OF_MULTIRUN = documented("a multirun") - {"jobs[]"} | {f"jobs[].{name}" for name in OF_RUN - {"exit_code"}}
OF_DECISION = documented("a decision") | OF_MULTIRUN
OF_COST = {name for name in documented("a plan") if re.match("seconds|disk|free|notes", name)}


def test_a_run_gives_one_object_also_when_it_is_complete_refused_or_failed(afl_json):
    first, again = (afl_json("algorithm=asgd", *QUICK) for _ in range(2))
    assert (first["status"], first["already_complete"], again["already_complete"]) == ("ok", False, True)
    assert first["final"]["test/accuracy"] == again["final"]["test/accuracy"] and Path(first["directory"]).is_dir()
    refused = afl_json("algorithm=aec", *QUICK)
    assert refused["exit_code"] == 2 and refused["error"].startswith("algorithm=aec: did you mean 'ace'?")
    lost = afl_json("algorithm=asgd", *QUICK, "algorithm.eta=1e30", "model=mlp")
    assert lost["exit_code"] == 1 and lost["status"] in ("diverged", "failed") and lost["error"]
    assert printed(first) == printed(lost) == OF_RUN and printed(refused) == {"exit_code", "error"}


@pytest.mark.slow
def test_a_multirun_and_its_plan_list_their_runs_with_commands(afl_json):
    words = ["-m", "algorithm=asgd,fedbuff", "seed=0,1", *QUICK]
    planned = afl_json(*words, "--plan")
    assert [planned[key] for key in ("runs", "finished", "archived", "pending", "refused")] == [4, 0, 0, 4, 0]
    assert {job["state"] for job in planned["jobs"]} == {"pending"} and planned["seconds"] is None
    made = afl_json(*words)
    assert (made["runs"], made["ok"], len(made["jobs"])) == (4, 4, 4)
    commands = [job["command"] for job in made["jobs"]]
    assert commands == [job["command"] for job in planned["jobs"]] and len(set(commands)) == 4
    assert afl_json(*shlex.split(commands[0])[1:])["already_complete"]
    more = afl_json("-m", "algorithm=asgd,fedbuff", "seed=0,1,2", *QUICK, "--plan")
    assert (more["finished"], more["pending"], more["seconds_known_for"]) == (4, 2, 2)
    assert more["seconds"] > 0 and 0 < more["disk_bytes_at_end"] <= more["disk_bytes"] < more["free_bytes"]
    assert printed(planned) == printed(more) == documented("a plan") and printed(made) == OF_MULTIRUN


def test_a_plan_says_of_each_refused_run_why(afl_json):
    found = afl_json("-m", "algorithm=asgd", "n_clients=5,5000", "heterogeneity=iid", *QUICK, "--plan")
    assert (found["pending"], found["refused"], found["exit_code"]) == (1, 1, 0)
    (refused,) = [job for job in found["jobs"] if job["state"] == "refused"]
    assert refused["error"].startswith("n_clients=5000: must be at most 1437")
    none = afl_json("-m", "algorithm=asgd", "n_clients=5000,6000", "heterogeneity=iid", *QUICK, "--plan")
    assert none["exit_code"] == 2 and none["refused"] == 2


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--sync"], ["--cfg", "job"], ["--repeat", "a", "b"]])
def test_commands_without_an_object_refuse_it(words, afl_json):
    found = afl_json(*words)
    assert found == {"exit_code": 2, "error": found["error"]} and words[0] in found["error"]


def test_past_runs_are_listed_with_state_accuracy_and_command(afl_run, afl_json, tmp_path):
    made = run(["algorithm=asgd", *QUICK, "seed=7"])
    write_run(tmp_path / "runs", "ace", seed=1)
    killed, held, lost = (write_run(tmp_path / "runs", "ace", seed=seed, status=None) for seed in (2, 3, 4))
    (lost / "config.yaml").write_text("[")
    pack_archive([made.directory], tmp_path / "old.parquet")
    with FileLock(held / ".lock"):
        shown, found = afl_run("--list", "runs", "old.parquet"), afl_json("--list", "runs", "old.parquet")
    states = {(one["state"], one["seed"], bool(one["archive"])): one for one in found["runs"]}
    here = {("ok", 7), ("ok", 1), ("incomplete", 2), ("running", 3), ("unreadable", None)}
    assert {*states} == {(*one, False) for one in here} | {("ok", 7, True)}
    assert states["ok", 7, False]["command"] == f"afl-run algorithm=asgd {' '.join(QUICK)} seed=7"
    assert states["ok", 7, False]["accuracy"] == made.value("test/accuracy")
    assert states["ok", 1, False]["command"] is None, "of a run of an earlier version"
    assert states["incomplete", 2, False]["command"] == f"afl-run --resume {killed.relative_to(tmp_path)}"
    assert states["ok", 7, True]["command"] == f"afl-run --repeat old.parquet {made.summary['identity']}"
    *lines, last = shown.stdout.splitlines()
    assert len(lines) == 6 and last == "6 runs: 3 ok, 1 incomplete, 1 running, 1 unreadable"
    percent = f"{100 * made.value('test/accuracy'):.1f} %"
    assert any(line.split()[:3] == ["ok", *percent.split()] and "seed=7" in line for line in lines)
    assert afl_json("--list", "nowhere")["exit_code"] == 2 and printed(found) == documented("a list")


def test_an_archive_has_no_command_of_another_machine(tmp_path):
    made = run(["algorithm=asgd", *QUICK, f"output_dir={tmp_path}/secret"])
    assert "secret" in made.summary["command"]
    pack_archive([made.directory], tmp_path / "a.parquet")
    (record,) = read_archive(tmp_path / "a.parquet")
    assert "secret" not in json.dumps([record.config, record.summary])


@pytest.mark.process
def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "asyncfl_bench", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("afl-run ")


@pytest.mark.slow
def test_the_commands_of_the_page_give_objects_with_the_fields_of_its_tables(afl_json, monkeypatch):
    monkeypatch.setattr(decide, "LEVELS", [3, 5])  # no look at 8 and more seeds
    kinds = [OF_RUN, documented("a check"), documented("a plan"), OF_MULTIRUN, OF_DECISION, documented("a list")]
    found = [afl_json(*(word for word in shlex.split(command) if word != "--json")) for command in COMMANDS]
    assert [one["exit_code"] for one in found] == [0] * 6 and list(map(printed, found)) == kinds
    _, checked, _, _, decided, _ = found
    assert {one["problem"] for one in checked["checks"]} == {None}
    assert decided["ok"] == decided["runs"] and decided["looks"][0]["seeds"] == 3
    (pair,) = decided["subjects"]
    (comparison,) = pair["comparisons"]
    assert comparison["low"] < comparison["difference"] < comparison["high"] and comparison["seeds"] >= 3
    assert (pair["decision"] is None) == (comparison["side"] == "open")


def test_the_plan_of_a_decision_has_the_runs_of_each_look(afl_json):
    planned = afl_json("-m", "algorithm=asgd,fedbuff", "decide=true", *QUICK, "--plan")
    assert [one["look"] for one in planned["looks"]] == [1, 2, 3, 4, 5] and planned["looks"][0]["runs"] == 6
    assert planned["seconds"] is None and planned["seconds_known_for"] == 0
    looks = {"looks[].look", "looks[].seeds", "looks[].runs"}
    assert {name for name in printed(planned) if not name.startswith("subjects")} == looks | OF_COST | {
        "exit_code",
        "error",
    }
