"""How a run ends when something is wrong with it: said where it happened, with what was computed where."""

import json

import pytest
from toy import Scripted, simulate

from asyncfl_bench import run
from asyncfl_bench.algorithms.fedbuff import FedBuff
from asyncfl_bench.config import compose
from asyncfl_bench.config.settings import DEFAULT_STEPS
from asyncfl_bench.experiment import build, machine
from asyncfl_bench.experiment.evaluate import Evaluations
from asyncfl_bench.reports.assembly import own_page
from asyncfl_bench.tracking.runs import load_runs

SMALL = ["scale=smoke", "model=softmax", "progress=false"]
CUT = ["algorithm=gas", "client.local_steps=3", "scale=smoke", "model.hidden=[16]", "progress=false"]


def test_a_model_that_has_exploded_with_a_finite_loss_is_no_quiet_success(tmp_path, afl_run):
    answer = afl_run("scale=smoke", "progress=false", "algorithm=asgd", "algorithm.eta=1e6")
    assert answer.returncode == 0 and "done" in answer.stdout
    assert "the model is at chance and has exploded" in answer.stdout
    summary = json.loads(next(tmp_path.glob("runs/*/summary.json")).read_text())
    assert summary["warning"].startswith("the model is at chance and has exploded")


@pytest.mark.parametrize(
    ("scale", "accuracy", "warns"), [(1e4, 0.1, "exploded"), (1e4, 0.9, None), (0.5, 0.1, "sweep=tune")]
)
def test_the_warning_is_for_models_at_chance(scale, accuracy, warns):
    built = build.build_run(compose([*SMALL, "algorithm=asgd"]))
    built.model_d.fill_(scale)
    evaluations = Evaluations.__new__(Evaluations)
    evaluations._components, evaluations.last = built, {"test/accuracy": accuracy}
    assert (warns or "None") in str(evaluations.warning())
    built.executor.close()


@pytest.mark.slow
def test_default_step_sizes_are_said_first_in_the_summary_and_on_pages(tmp_path, afl_run):
    words = ("scale=smoke", "model=softmax", "algorithm=fedbuff")
    assert DEFAULT_STEPS in afl_run(*words).stderr.splitlines()[0]
    assert DEFAULT_STEPS not in afl_run(*words, "client.lr=0.2").stderr
    page = own_page(load_runs(tmp_path / "runs"), "runs")
    assert any("The step sizes of FedBuff, lr = 0.1 are defaults, neither" in str(one) for one in page.parts)
    assert DEFAULT_STEPS in afl_run("-m", *words, "seed=1,2").stderr.splitlines()[0]


@pytest.mark.parametrize("budget", ["uploads=4", "bytes=1"])
def test_a_budget_that_ends_before_the_first_server_iteration_is_no_quiet_success(tmp_path, afl_run, budget):
    words = ["algorithm=fedfa", "budget.server_iterations=null", f"budget.{budget}"]
    answer = afl_run("scale=smoke", "progress=false", *words)
    assert answer.returncode == 0
    why = f"the model is as it began: budget.{budget.partition('=')[0]} was reached before the first server iteration"
    assert why in answer.stdout
    assert json.loads(next(tmp_path.glob("runs/*/summary.json")).read_text())["warning"] == why


@pytest.mark.slow
def test_a_run_whose_server_never_stepped_has_failed():
    words = ["algorithm=fedbuff", "algorithm.max_staleness=0", "algorithm.buffer_size=400", "delay=lognormal"]
    result = run([*SMALL, *words, "availability=suspension", "availability.probability=0.999", "clock=time"])
    assert not result.ok and result.exit_code == 1
    assert result.summary["stopped_by"] == "stalled"
    assert "no server iteration in" in result.summary["error"] and "the server never stepped" in result.summary["error"]


def test_a_buffer_larger_than_ten_thousand_uploads_fills():
    rule = FedBuff(eta=1.0, buffer_size=10_100)
    simulation, _, ended_by = simulate(rule, n=2, delay=Scripted([[1.0]] * 2), kind="difference", server_iterations=1)
    assert (ended_by, simulation.counters.uploads) == ("server_iterations", 10_100)


def test_divergence_is_named_by_the_upload_that_met_it():
    words = ["algorithm=asgd", "algorithm.eta=1e38", "budget.server_iterations=200", "evaluation.every=200"]
    result = run([*SMALL, *words, "trace=true"])
    assert result.summary["exit_status"] == "diverged"
    error = result.summary["error"]
    assert "first in upload " in error
    upload = int(error.partition("first in upload ")[2].split()[0])
    assert 1 < upload < 100 and f"after {upload - 1} server iterations" in error  # one iteration an upload


def test_threads_are_what_the_environment_grants(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    for name in machine.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert (machine.available_cores(None), machine.available_cores(3)) == (8, 3)
    for variables, expected in (
        ({"OMP_NUM_THREADS": "4"}, 4),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"SLURM_CPUS_PER_TASK": "1"}, 1),
        ({"OMP_NUM_THREADS": "4", "SLURM_CPUS_PER_TASK": "2"}, 2),
        ({"OMP_NUM_THREADS": "64"}, 8),
        ({"OMP_NUM_THREADS": "all"}, 8),
        ({"OMP_NUM_THREADS": "0"}, 8),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert machine.available_cores(None) == expected, variables


def test_who_asks_for_a_gpu_is_not_answered_with_a_run_of_a_cpu(monkeypatch, afl_run):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert afl_run(*SMALL).returncode == 0
    answer = afl_run(*SMALL, "device=cuda")
    assert answer.returncode == 2 and "device=cuda: no usable GPU was found" in answer.stderr
    assert "already complete on cpu" in afl_run(*SMALL).stdout


@pytest.mark.slow
def test_a_servers_part_that_never_stepped_is_no_quiet_success():
    result = run([*CUT, "algorithm.activation_buffer=100000"])
    assert result.ok and result.summary["used"]["server_iterations"] == 20
    messages = result.summary["used"]["messages"]
    assert result.summary["warning"] == (
        f"the server's part of the model is as it began: it never stepped in {messages} messages"
    )


def test_a_run_whose_servers_part_has_stepped_does_not_say_that_the_model_is_as_it_began():
    result = run([*CUT, "budget.server_iterations=null", "algorithm.activation_buffer=1", "budget.server_steps=2"])
    used = result.summary["used"]
    assert (used["server_iterations"], used["server_steps"]) == (0, 2)
    assert "as it began" not in str(result.summary["warning"])


def test_divergence_of_a_split_model_names_the_servers_step():
    result = run([*CUT, "algorithm.server_lr=1e30"])
    assert result.summary["exit_status"] == "diverged"
    assert result.summary["error"].endswith("a smaller algorithm.server_lr or client.lr may help")


@pytest.mark.parametrize("limit", ["messages", "server_steps"])
def test_messages_and_server_steps_are_budgets_of_rules_that_answer_messages(limit):
    result = run([*CUT, "algorithm.activation_buffer=3", "budget.server_iterations=null", f"budget.{limit}=7"])
    assert result.summary["stopped_by"] == limit and result.summary["used"][limit] == 7
    longer = run([f"resume={result.directory}", f"budget.{limit}=50"])
    assert longer.ok and longer.summary["used"][limit] == 50


TARGET = [*SMALL, "algorithm=fedbuff", "evaluation.every=1"]


def test_a_target_accuracy_ends_a_run_at_the_first_evaluation_that_has_it():
    whole = run([*TARGET, "budget.uploads=200"])
    goal = whole.metrics["test/accuracy"][4]
    result = run([*TARGET, "budget.uploads=200", f"budget.target_accuracy={goal}"])
    first = int((whole.metrics["test/accuracy"] >= goal).idxmax())
    assert result.summary["stopped_by"] == "target_accuracy" and len(result.metrics) == first + 1
    assert list(result.metrics["test/loss"]) == list(whole.metrics["test/loss"][: first + 1])
    further = run([f"resume={result.directory}", "budget.target_accuracy=null"])
    assert further.summary["stopped_by"] == "uploads"
    assert list(further.metrics["test/loss"]) == list(whole.metrics["test/loss"])


def test_a_target_joins_the_limits_of_files_and_is_outside_the_identity_at_null():
    with_target, without = compose([*SMALL, "budget.target_accuracy=0.9"]), compose([*SMALL])
    assert with_target.budget.amounts == without.budget.amounts and with_target.identity != without.identity
    assert "budget.target_accuracy" in without.tree["absent"]
    assert run([*TARGET, "budget.target_accuracy=1", "budget.uploads=40"]).summary["stopped_by"] == "uploads"
    assert compose(["budget.target_accuracy=0.5"]).budget.server_iterations == 500
