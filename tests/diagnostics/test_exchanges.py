"""exchanges.parquet: what clients that hold a part of the model told the server, and when it answered."""

import numpy as np
import pandas as pd
import pytest

from asyncfl_bench import run

WORDS = ["scale=smoke", "model.hidden=[16]", "n_clients=6", "client.local_steps=3", "trace=true", "progress=false"]
GAS = ["algorithm=gas", "algorithm.activation_buffer=4"]


def ended(*words, folder="runs"):
    """The run, its table of messages and that of uploads."""
    result = run([*WORDS, *words, f"output_dir={folder}"])
    assert result.ok, result.summary["error"]
    return result, *(pd.read_parquet(result.directory / f"{name}.parquet") for name in ("exchanges", "trace"))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["gas", "minibatch_sfl", "splitfed"])
def test_the_rows_sum_up_to_what_the_run_says_it_used(algorithm):
    result, told, trace = ended(f"algorithm={algorithm}", "delay=exponential")
    used = result.summary["used"]
    assert told["message"].tolist() == list(range(1, used["messages"] + 1))
    assert told["stepped"].sum() == used["server_steps"] > 0
    upload = 4 * (64 * 16 + 16)  # the first layer's weights and biases
    assert told["uplink_bytes"].sum() + upload * len(trace) == used["uplink_bytes"]
    row = told.iloc[0]
    assert (row["uplink_bytes"], row["downlink_bytes"]) == (4 * row["batch"] * (16 + 1), 4 * row["batch"] * 16)
    assert (told["iteration"] - told["dispatched_iteration"]).equals(told["staleness"])
    task = told["time"] - told["delay"]
    assert len(set(zip(told["client"], task.round(9), told["stage"], strict=True))) == len(told)


def test_a_client_goes_on_when_it_is_answered():
    """Every stage of a client takes as long as every other: a quarter of its task."""
    _, told, trace = ended(*GAS, "delay=exponential", "delay.redraw=false")
    assert (told["answered"] == told["time"]).all() and (told["answered_iteration"] == told["iteration"]).all()
    assert (told["answered_step"] == told["stepped"].cumsum()).all()
    first = trace[trace["client"] == 2].iloc[0]
    own = told[(told["client"] == 2) & (told["uploads"] < first["upload"])]
    assert own["stage"].tolist() == [0, 1, 2]
    np.testing.assert_allclose([*own["time"], first["time"]], first["delay"] * np.arange(1, 5) / 4)


def test_in_rounds_the_last_message_of_all_answers_everybody():
    _, told, trace = ended("algorithm=minibatch_sfl", "delay=exponential")
    groups = told.groupby(np.arange(len(told)) // 6)
    assert (groups["answered"].nunique() == 1).all() and (groups["client"].nunique() == 6).all()
    assert (groups["answered"].first() == groups["time"].max()).all()
    assert (told["answered"] - told["time"]).max() > 0
    assert trace["time"].max() > told["answered"].max()


def test_the_servers_computing_stands_between_a_message_and_its_answer():
    _, told, _ = ended("algorithm=splitfed", "server_seconds_per_sample=0.001")
    np.testing.assert_allclose(told["answered"] - told["time"], 0.001 * told["batch"])


def test_who_waits_at_the_end_has_rows_and_goes_on_with_a_larger_budget():
    words = ["algorithm=minibatch_sfl", "delay=exponential"]
    _, whole, _ = ended(*words, "budget.server_iterations=5", folder="whole")
    third = whole["time"][50]  # of the ninth six messages
    words += ["budget.server_iterations=5", f"budget.virtual_time={third}"]
    short, told, _ = ended(*words)
    waits = told["answered"].isna()
    assert waits.tolist() == [False] * 48 + [True] * 3 and short.summary["used"]["messages"] == 51
    assert (told["answered_step"] == -1).equals(waits) and (told["downlink_bytes"] == 0).equals(waits)
    pd.testing.assert_frame_equal(told[~waits], whole[:48])
    longer = run([f"resume={short.directory}", "budget.virtual_time=null"])
    pd.testing.assert_frame_equal(pd.read_parquet(longer.directory / "exchanges.parquet"), whole, check_exact=True)


def test_rules_without_messages_have_no_such_table():
    assert not (run([*WORDS, "algorithm=fedavg"]).directory / "exchanges.parquet").exists()


@pytest.mark.slow
def test_a_traced_run_without_its_table_is_run_again():
    result, told, _ = ended(*GAS)
    (result.directory / "exchanges.parquet").unlink()
    assert "already_complete" not in run([*WORDS, *GAS]).summary
    pd.testing.assert_frame_equal(pd.read_parquet(result.directory / "exchanges.parquet"), told)
    assert run([*WORDS, *GAS]).summary["already_complete"]
