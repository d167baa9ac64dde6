"""afl-run --import-fleet: devices of FedScale and FLASH become files of ours; a pickle can run nothing."""

import json
import os
import pickle
import re
import shlex
from pathlib import Path

import pytest

CAPACITY = {7: {"computation": 40.0, "communication": 8000.0}, 3: {"computation": 100, "communication": 2000.5}}
BEHAVIOUR = {
    1: {"duration": 90, "active": [10, 200], "inactive": [60, 260], "finish_time": 250, "model": "CPH1801"},
    2: {"duration": 9, "active": [5, 40], "inactive": [50, 45], "finish_time": 300, "model": "x"},
    3: {"duration": 0, "active": [], "inactive": [], "finish_time": 300, "model": "x"},
}
READY = "2020-02-01 01:00:00\twifi\n2020-02-01 02:00:00\tscreen_lock\n2020-02-01 03:00:00\tbattery_charged_on\n"
FLASH = {
    "0": {
        "guid": "a",
        "model": "SM-N960F",
        "messages": READY + "2020-02-01 05:30:00\t4G\n\n2020-02-02 06:00:00\t80%\n",
    },
    "1": {"guid": "b", "model": "SM-N960F", "messages": READY + "2020-02-02T03:00:00+02:00\tscreen_on\n"},
    "2": {"guid": "c", "model": "SM-N960F", "messages": READY + "2020-02-02 07:00:00\tflying\n"},
    "3": {"guid": "d", "model": "SM-N960F", "messages": "2020-02-01 00:10:00\twifi\n"},
}


def dump(content, name="fleet"):
    Path(name).write_bytes(json.dumps(content).encode() if name.endswith(".json") else pickle.dumps(content))
    return name


def read_rows(name):
    return [line.split(",") for line in Path(name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("content", "name", "rows", "said"),
    [
        # training is three times inference, kbit/s become bytes
        (
            CAPACITY,
            "client_device_capacity",
            [
                ["client", "seconds_per_sample", "downlink", "uplink"],
                ["7", 0.12, 1e6, 1e6],
                ["3", 0.3, 250062.5, 250062.5],
            ],
            "2 clients\n.*delay=phones delay.path=client_device_capacity.csv n_clients=2",
        ),
        # sessions that overlap are one, none lasts beyond the trace
        (
            BEHAVIOUR,
            "client_behave_trace",
            [["client", "online", "offline"], ["1", 10, 60], ["1", 200, 250], ["2", 5, 50]],
            "2 clients; 1 left out: .*availability=trace .*availability.period=300 n_clients=2",
        ),
        # a device that stays ready is ready until its last message
        (
            FLASH,
            "state_traces.json",
            [["client", "online", "offline"], ["0", 10800, 19800], ["1", 10800, 90000]],
            "2 clients; 2 left out: .*availability.period=172800 n_clients=2",
        ),
    ],
    ids=["capacity", "behaviour", "state"],
)
def test_a_published_fleet_becomes_a_file_that_the_printed_command_runs(content, name, rows, said, afl_run):
    answer = afl_run("--import-fleet", dump(content, name))
    assert answer.returncode == 0, answer.stderr
    assert re.fullmatch(rf"{Path(name).stem}.csv: {said}\n", answer.stdout, re.S), answer.stdout
    header, *found = read_rows(f"{Path(name).stem}.csv")
    assert header == rows[0]
    assert [[client, *map(float, numbers)] for client, *numbers in found] == rows[1:]
    command = shlex.split(answer.stdout.splitlines()[1].partition(": ")[2])
    again = afl_run(*command[1:], "scale=smoke", "heterogeneity=iid", "n_clients=2", "progress=false")
    assert again.returncode == 0, again.stderr


class Attack:
    def __reduce__(self):
        return os.mkdir, ("owned",)


def nest(value, kind, levels=60):
    for _ in range(levels):
        value = kind((value, value))
    return value


def import_fleet(afl_run, content):
    """In the second that a file made to harm may take."""
    Path("fleet").write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    afl_run("--import-fleet", "fleet")
    assert os.listdir() == ["fleet"]


MAPPING = pickle.PROTO + b"\2" + pickle.EMPTY_DICT
MEMO = MAPPING + pickle.LONG_BINPUT + b"\xff\xff\xff\x7f" + pickle.STOP
KEY = MAPPING + pickle.dumps(nest(1, tuple), 2)[2:-1] + pickle.EMPTY_DICT + pickle.SETITEM + pickle.STOP
SESSIONS = {"active": [*range(99)], "inactive": [*range(1, 100)], "finish_time": 99}
CAN = {"computation": 1, "communication": 1}


def test_a_fleet_for_which_memory_lacks_and_a_pipe_are_one_line(afl_run, monkeypatch):
    def fill_memory(*_, **__):
        raise MemoryError

    os.mkfifo("pipe")
    assert re.fullmatch(r"afl-run: --import-fleet=pipe: no such file.*\n", afl_run("--import-fleet", "pipe").stderr)
    monkeypatch.setattr("asyncfl_bench.simulation.foreign_fleets._numbers", fill_memory)
    answer = afl_run("--import-fleet", dump(CAPACITY))
    assert (answer.returncode, answer.stderr) == (2, "afl-run: fleet: has more clients than fit in memory\n")
    assert sorted(os.listdir()) == ["fleet", "pipe"]


def test_a_name_that_a_spreadsheet_would_compute_is_written_as_text(afl_run):
    assert afl_run("--import-fleet", dump({"=1+1": CAN, "b": CAN})).returncode == 0
    assert [row[0] for row in read_rows("fleet.csv")] == ["client", "'=1+1", "b"]


def test_damaged_and_missing_files_are_refused_and_nothing_is_overwritten(afl_run):
    Path("cut").write_bytes(pickle.dumps(CAPACITY)[:-9])
    Path("text.json").write_text('{"1": ')
    Path("fleet.csv").write_text("mine")
    dump(CAPACITY)
    for words, said in (
        (["cut"], "cut: must be client_device_capacity .*; not readable: "),
        (["text.json"], "text.json: must be client_device_capacity .*; not readable: "),
        (["nowhere"], "--import-fleet=nowhere: no such file; must be client_device_capacity"),
        ([], "--import-fleet=: must name one file: afl-run --import-fleet FILE"),
        (["fleet", "cut"], "--import-fleet=fleet cut: must name one file"),
        (["fleet"], "fleet.csv: exists already; move it away"),
    ):
        answer = afl_run("--import-fleet", *words)
        assert answer.returncode == 2
        assert re.fullmatch(rf"afl-run: {said}.*\n", answer.stderr), answer.stderr
    assert Path("fleet.csv").read_text() == "mine"
