"""When a run is evaluated, and that looking changes nothing."""

import pytest
import torch

from asyncfl_bench import run

WORDS = ["scale=smoke", "model=softmax", "progress=false"]


def weights(result):
    return torch.load(result.directory / "model_final.pt", weights_only=True)


@pytest.mark.parametrize(
    ("algorithm", "delay"), [("asgd", "exponential"), ("ace", "exp_beta5"), ("fedbuff", "constant"), ("ace", "uniform")]
)
def test_evaluation_by_virtual_time_shows_the_model_as_it_is_then(algorithm, delay):
    words = [*WORDS, f"algorithm={algorithm}", f"delay={delay}", "trace=true", "evaluation.every_time=3"]
    result = run([*words, "budget.virtual_time=15", "budget.server_iterations=null", "algorithm.eta=0.1"])
    assert result.ok, result.summary["error"]
    import pandas as pd

    trace = pd.read_parquet(result.directory / "trace.parquet")
    times = result.metrics["virtual_time"].tolist()
    assert times[0] == 0 and [t for t in times if t in (3, 6, 9, 12)] == [3, 6, 9, 12] and times[-1] == 15
    for time, uploads in zip(times[1:], result.metrics["uploads"][1:], strict=True):
        assert uploads == (trace["time"] <= time).sum(), time
    assert result.metrics["iteration"].iloc[1] > 0


def test_evaluation_by_virtual_time_ends_when_nobody_is_left():
    gone = ["availability=dropout", "availability.share=1", "availability.at_iteration=5"]
    result = run([*WORDS, *gone, "algorithm=asgd", "delay=exponential", "evaluation.every_time=1"])
    assert result.summary["stopped_by"] == "no_clients"


def test_looking_more_often_changes_no_bit():
    runs = [run([*WORDS, "trace=true", f"evaluation.{word}"]) for word in ("every=1", "every=20", "every_time=2")]
    first = weights(runs[0])
    assert len(runs[0].metrics) == 21 and len(runs[1].metrics) == 2
    for other in runs[1:]:
        assert all(torch.equal(first[name], value) for name, value in weights(other).items())


def test_a_budget_of_virtual_time_alone_evaluated_every_two_seconds_shows_rounds_as_steps():
    words = [*WORDS, "algorithm=fedavg", "delay=work_and_link", "delay.seconds_per_sample=0.005", "trace=true"]
    words += [
        "client.local_epochs=2",
        "delay.bandwidth=10000",
        "availability=suspension",
        "availability.probability=0.2",
    ]
    only_time = ["budget.server_iterations=null", "budget.virtual_time=60"]
    result = run([*words, *only_time, "evaluation.every_time=2"])
    assert result.ok, result.summary["error"]
    import pandas as pd

    trace, rows = pd.read_parquet(result.directory / "trace.parquet"), result.metrics
    assert rows["virtual_time"].tolist() == [2.0 * i for i in range(31)]
    assert result.summary["stopped_by"] == "virtual_time"
    for _, row in rows.iterrows():
        assert row["uploads"] == (trace["time"] <= row["virtual_time"]).sum()
    # within a round every evaluation sees the same model
    by_round = rows.groupby("iteration")["test/loss"]
    assert (by_round.nunique() == 1).all() and (by_round.size() > 1).any() and by_round.ngroups > 4


def test_evaluation_times_are_multiples_and_a_run_given_more_time_writes_none_twice(tmp_path):
    words = [*WORDS, "algorithm=asgd", "delay=exponential", "delay.beta=0.05", "evaluation.every_time=0.1"]
    words += ["budget.server_iterations=null", "algorithm.eta=0.1"]
    whole = run([*words, "budget.virtual_time=0.8", f"output_dir={tmp_path}/whole"])
    times = whole.metrics["virtual_time"].tolist()
    assert times == [0.1 * k for k in range(8)] + [0.8]

    first = run([*words, "budget.virtual_time=0.4", f"output_dir={tmp_path}/first"])
    longer = run([f"resume={first.directory}", "budget.virtual_time=0.8"])
    assert longer.metrics["virtual_time"].tolist() == times
    assert longer.metrics["test/loss"].tolist() == whole.metrics["test/loss"].tolist()


def test_a_client_without_samples_does_not_stop_virtual_time():
    words = ["algorithm=fedasync", "n_clients=100", "heterogeneity.alpha=0.02", "heterogeneity.min_samples=0"]
    words += ["delay=work_and_link", "client.local_epochs=1", "evaluation.every_time=0.001", "model=softmax"]
    result = run([*words, "budget.server_iterations=null", "budget.virtual_time=0.002", "progress=false"])
    assert result.summary["stopped_by"] == "virtual_time"
    assert result.summary["used"]["uploads"] < 100 * 0.002 / 1e-4 + 100
