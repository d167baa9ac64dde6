"""A file somebody measured is read as it is meant, or refused by file, row and what is allowed."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.availability_trace import AvailabilityTrace, AvailabilityTraceConfig
from asyncfl_bench.simulation.delay_trace import DelayTrace, DelayTraceConfig
from asyncfl_bench.simulation.fleet import FleetFile, check_same_clients
from asyncfl_bench.types import ClientTable, Work


def delays(path, n, **settings):
    delay = DelayTrace(DelayTraceConfig(path=str(path), **settings))
    delay.start(ClientTable(np.ones(n)), Streams(0))
    return delay


def file_of(text):
    with open("f.csv", "w") as file:
        file.write(text)
    return "f.csv"


def availability(path, n, **settings):
    trace = AvailabilityTrace(AvailabilityTraceConfig(path=str(path), **settings))
    trace.start(n, Streams(0))
    return trace


@pytest.mark.parametrize(
    ("written", "order"),
    [
        (["10", "9", "0"], ["0", "9", "10"]),
        (["b", "a10", "a9"], ["a10", "a9", "b"]),
        (["01", "1", "2"], ["01", "1", "2"]),
        (["-1", "10", "9"], ["-1", "10", "9"]),
        pytest.param(["1" + "0" * 5000, "9" * 5000, "7"], ["7", "9" * 5000, "1" + "0" * 5000], id="5000 digits"),
    ],
)
def test_clients_are_numbered_by_value_when_all_are_whole_numbers_and_else_as_text(written, order, tmp_path):
    (tmp_path / "f.csv").write_text("client,duration\n" + "".join(f"{client},1\n" for client in written))
    assert FleetFile("f.csv", (("duration",),)).clients == order


def test_a_csv_and_a_parquet_with_the_same_rows_are_the_same_fleet(tmp_path):
    rows = pd.DataFrame({"client": [3, 10, 3, 10], "duration": [0.1, 2.5, 1e-3, 7], "start": [0, 0, 5, 1 / 3]})
    rows.to_csv("f.csv", index=False)
    rows.to_parquet("f.parquet")
    one, other = (FleetFile(f"f.{kind}", (("duration", "start"),)) for kind in ("csv", "parquet"))
    assert one.clients == other.clients == ["3", "10"]
    assert one.columns == other.columns == {name: rows[name].tolist() for name in ("duration", "start")}
    assert one.rows_of(2) == other.rows_of(2) == [[0, 2], [1, 3]]


def test_blank_lines_spaces_and_a_byte_order_mark_are_no_matter(tmp_path):
    (tmp_path / "f.csv").write_bytes("\ufeffclient, duration\n\na, 1.5\n , \nb,2\n".encode())
    file = FleetFile("f.csv", (("duration",),))
    assert (file.clients, file.columns) == (["a", "b"], {"duration": [1.5, 2.0]})


@pytest.mark.parametrize("metadata", [b"{", b"[]", b'{"columns": 3, "index_columns": ["client"]}', b"\xff"])
def test_what_pandas_notes_in_a_parquet_file_does_not_matter(metadata, tmp_path):
    rows = pa.table({"client": ["b", "a"], "duration": [2.0, 1.0]})
    pq.write_table(rows.replace_schema_metadata({b"pandas": metadata}), "f.parquet")
    file = FleetFile("f.parquet", (("duration",),))
    assert (file.clients, file.columns) == (["a", "b"], {"duration": [2.0, 1.0]})


def test_rows_chosen_from_a_frame_are_a_fleet_without_its_index(tmp_path):
    frame = pd.DataFrame({"client": ["a", "b", "c"], "duration": [1.0, 2.0, 3.0]})
    frame[frame["duration"] > 1].to_parquet("f.parquet")
    assert FleetFile("f.parquet", (("duration",),)).clients == ["b", "c"]


@pytest.mark.parametrize("read", [delays, availability])
def test_of_a_file_with_more_clients_than_the_run_the_first_take_part(read, tmp_path):
    (tmp_path / "f.csv").write_text("client,start,duration\nc,0,3\na,0,1\nb,0,2\n")
    two = read("f.csv", 2)
    if read is delays:
        assert [two.duration(Work(client, 0, 0, 0, 1)) for client in range(2)] == [1.0, 2.0]
    else:
        assert [two.outcome(Work(client, 0, 0, 0, 1), client + 1.0)[1] for client in range(2)] == [True, True]


def test_two_files_need_to_agree_on_the_clients_of_the_run_alone(tmp_path):
    (tmp_path / "d.csv").write_text("client,duration\na,1\nb,1\nc,1\n")
    (tmp_path / "o.csv").write_text("client,online,offline\na,0,9\nc,0,9\nd,0,9\n")
    check_same_clients(delays("d.csv", 1), availability("o.csv", 1))
