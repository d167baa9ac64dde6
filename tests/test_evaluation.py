"""When a run is evaluated, and that looking changes nothing."""

import pytest
import torch
from toy import assert_same_bits, finish_run, table_of

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.diagnostics.steps import ModelAverage
from asyncfl_bench.errors import BenchError
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.simulation.observer import Observer

WORDS = ["scale=smoke", "model=softmax", "progress=false"]


@pytest.mark.parametrize(
    ("algorithm", "delay"), [("asgd", "exponential"), ("ace", "exp_beta5"), ("fedbuff", "constant"), ("ace", "uniform")]
)
def test_evaluation_by_virtual_time_shows_the_model_as_it_is_then(algorithm, delay):
    words = [*WORDS, f"algorithm={algorithm}", f"delay={delay}", "trace=true", "evaluation.every_time=3"]
    result = finish_run(*words, "budget.virtual_time=15", "budget.server_iterations=null", "algorithm.eta=0.1")
    trace = table_of(result)
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
    assert len(runs[0].metrics) == 21 and len(runs[1].metrics) == 2
    for other in runs[1:]:
        assert_same_bits(runs[0], other)


def test_a_budget_of_virtual_time_alone_evaluated_every_two_seconds_shows_rounds_as_steps():
    words = [*WORDS, "algorithm=fedavg", "delay=work_and_link", "delay.seconds_per_sample=0.005", "trace=true"]
    words += ["client.local_epochs=2", "delay.bandwidth=10000"]
    words += ["availability=suspension", "availability.probability=0.2"]
    only_time = ["budget.server_iterations=null", "budget.virtual_time=60"]
    result = finish_run(*words, *only_time, "evaluation.every_time=2")
    trace, rows = table_of(result), result.metrics
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


class KeptModels(Observer):
    """The model after each upload, as double precision."""

    def __init__(self, task_of_run):
        self.models, self.simulation_model = [], task_of_run

    def arrived(self, upload, changed, time):
        self.models.append(self.simulation_model().double())


@pytest.mark.parametrize("window", [7, 1000])
def test_the_average_is_the_mean_of_the_models_after_the_last_uploads(window):
    built = build_run(compose([*WORDS, "algorithm=fedbuff", "algorithm.buffer_size=2"]))
    average, kept = ModelAverage(built.model_d, window), KeptModels(built.model_d.clone)
    assert torch.equal(average.mean_d, built.model_d)
    built.simulation.observers += [average, kept]
    built.simulation.run()
    assert len(kept.models) == 40
    expected = torch.stack(kept.models[-window:]).mean(0)
    torch.testing.assert_close(average.mean_d.double(), expected, rtol=1e-5, atol=1e-7)
    assert (average.mean_d - built.model_d).norm() > 0.01 * built.model_d.norm()


def test_an_average_is_measured_beside_the_run_and_asked_for_again_only_where_it_is_missing(tmp_path):
    words = [*WORDS, "algorithm=fedbuff", "trace=true"]
    plain = run(words)
    assert "average" not in plain.summary
    averaged = run([*words, "evaluation.average=30"])
    assert averaged.summary["identity"] == plain.summary["identity"]
    assert averaged.summary["average"]["uploads"] == 30
    last = averaged.metrics.iloc[-1]
    assert averaged.summary["average"]["test/accuracy"] == last["average/test/accuracy"] != last["test/accuracy"]
    assert averaged.metrics["test/loss"].equals(plain.metrics["test/loss"])
    finished = averaged.directory.stat().st_mtime_ns
    assert run(words).summary["average"] == run([*words, "evaluation.average=30"]).summary["average"]
    assert averaged.directory.stat().st_mtime_ns == finished, "a finished run with the average serves both"


def test_a_run_with_an_average_goes_on_where_it_was_cut_and_not_with_another_window():
    words = [*WORDS, "algorithm=asgd", "algorithm.eta=0.05", "evaluation.average=15"]
    longer = "budget.server_iterations=30"
    whole = run([*words, longer, "output_dir=whole"])
    part = run([*words, "budget.server_iterations=17", "output_dir=part"])
    resumed = run([f"resume={part.directory}", longer])
    assert resumed.summary["average"] == whole.summary["average"]
    with pytest.raises(BenchError, match=r"evaluation\.average was not set from the start"):
        run(["evaluation.average=9", f"resume={part.directory}", "budget.server_iterations=40"])
