"""No work is lost: whatever stops a run, it goes on exactly where it was."""

import copy
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from crashing import CRASHES, SUSPENSION, WORDS, assert_same, left_behind, run_until_killed, undisturbed
from tiers import slow
from toy import assert_same_bits, finish_run

from asyncfl_bench import run
from asyncfl_bench.config import compose, options
from asyncfl_bench.errors import BenchError, ConfigError


def test_every_algorithm_is_crashed():
    assert {name.split()[0] for name in CRASHES} == set(options("algorithm"))


# `make crash` kills all of them. Here is each kind of state: caches on a disk, buffers, answers, parts, queues, rounds.
KILLED = ["ace int8 disk", "aced", "afbs", "asgd queue", "ca2fl", "delayed_nesterov", "fedac", "fedavg", "fedecho"]
KILLED += ["gas", "ringmaster", "s2fl"]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("case", KILLED)
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(case):
    words = [*WORDS, f"algorithm={case.split()[0]}", *CRASHES[case]]
    whole, lines = undisturbed(words, Path("whole"))
    moments = random.Random(case)
    kills = 0
    for moment in sorted(moments.randrange(lines - 1) for _ in range(3)):
        kills += not run_until_killed(words, Path("killed"), moment, moments.uniform(0, 0.05))
    assert kills >= 1
    assert run([*words, "output_dir=killed"]).ok
    (killed,) = Path("killed").iterdir()
    assert json.loads((killed / "summary.json").read_text())["exit_status"] == "ok"
    assert_same(killed, whole)


INTERRUPTED = [*WORDS, "model=softmax", "budget.server_iterations=60"]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    return run([*INTERRUPTED, f"output_dir={tmp_path_factory.mktemp('finished')}"]).directory


@pytest.fixture
def interrupted(finished_run, tmp_path):
    """(words, a directory with a checkpoint of their unfinished run, the same run uninterrupted)."""
    whole, cut = (Path(shutil.copytree(finished_run, tmp_path / name / finished_run.name)) for name in ("whole", "cut"))
    (cut / "summary.json").unlink()
    return INTERRUPTED, cut.relative_to(tmp_path), whole


def test_checkpoints_are_replaced_whole_and_the_one_before_is_kept(interrupted):
    _, directory, _ = interrupted
    names = {path.name for path in directory.glob("checkpoint*")}
    assert names == {"checkpoint.pt", "checkpoint.pt.previous"}
    newest, previous = (torch.load(directory / name, weights_only=True) for name in sorted(names))
    done = [saved["state"]["simulation"]["counters"]["iteration"] for saved in (newest, previous)]
    assert done == [60, 45]


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "other run", "other numbers", "incomplete"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(damage, capfd, interrupted):
    words, directory, whole = interrupted
    path = directory / "checkpoint.pt"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "foreign":
        torch.save({"weights": torch.zeros(3)}, path)
    elif damage == "incomplete":
        saved = torch.load(path, weights_only=True)
        del saved["state"]["model_d"]
        torch.save(saved, path)
    else:
        other = {"identity": "00000000"} if damage == "other run" else {"results_version": -1}
        torch.save(torch.load(path, weights_only=True) | other, path)
    result = run([*words, "output_dir=cut"])
    said = capfd.readouterr().err
    assert "checkpoint.pt: " in said and "using the one before it" in said and "Traceback" not in said
    assert result.ok
    assert_same(directory, whole)


@pytest.mark.slow
def test_without_a_usable_checkpoint_the_command_starts_over_and_resume_refuses(capfd, interrupted):
    words, directory, whole = interrupted
    (directory / "checkpoint.pt").write_bytes(b"broken")
    (directory / "checkpoint.pt.previous").unlink()
    with pytest.raises(BenchError, match=r"checkpoint\.pt: not a readable checkpoint"):
        run([f"resume={directory}"])
    assert not (directory / "summary.json").exists()
    result = run([*words, "output_dir=cut"])
    assert "starting from the beginning" in capfd.readouterr().err
    assert result.ok
    assert_same(directory, whole)


def test_a_run_resumed_by_another_executor_names_both(interrupted):
    _, directory, _ = interrupted
    assert run([f"resume={directory}", "budget.server_iterations=70", "executor=sequential"]).summary["executor"] == (
        "batched then sequential"
    )


def test_a_resumed_run_keeps_its_settings_and_says_where_it_resumes(capfd, interrupted):
    _, directory, _ = interrupted
    with pytest.raises(ConfigError, match=r"algorithm\.c=3: cannot be changed by a resumed run"):
        run([f"resume={directory}", "algorithm.c=3"])
    assert run([f"resume={directory}", "threads=1", "progress=true"]).ok
    assert "; resumes after 60 server iterations and 824 uploads; " in capfd.readouterr().err


@pytest.mark.slow
def test_a_run_killed_between_its_last_checkpoint_and_its_summary_does_not_run_on(tmp_path):
    for words in (["algorithm=asgd"], ["algorithm=ace"], ["algorithm=fedbuff", "budget.virtual_time=9"]):
        words = [*words, "scale=smoke", "model=softmax", "progress=false"]
        first = run(words)
        (first.directory / "summary.json").unlink()
        again = run(words)
        assert again.summary["used"] == first.summary["used"]
        assert again.summary["final"] == first.summary["final"]


@pytest.mark.slow
def test_a_complete_run_goes_on_with_a_larger_budget_as_if_it_had_had_it_from_the_start(tmp_path):
    words = [*WORDS, "model=softmax", "algorithm.eta=0.1"]
    short = run([*words, "budget.server_iterations=40", "output_dir=short"])
    long = run([*words, "budget.server_iterations=80", "output_dir=long"])
    before = {path.name: path.read_bytes() for path in short.directory.iterdir()}
    extended = run([f"resume={short.directory}", "budget.server_iterations=80"])
    assert extended.summary["identity"] == long.summary["identity"] != short.summary["identity"]
    assert_same(extended.directory, long.directory)
    # another budget is another run, and both are found
    assert extended.directory == Path("short") / long.directory.name
    assert {path.name: path.read_bytes() for path in short.directory.iterdir()} == before
    for words_again in (
        [*words, "budget.server_iterations=40", "output_dir=short"],
        [*words, "budget.server_iterations=80", "output_dir=short"],
        [f"resume={short.directory}", "budget.server_iterations=80"],
        [f"resume={extended.directory}"],
    ):
        assert run(words_again).summary["already_complete"]


ASGD = "algorithm=asgd algorithm.eta=0.1"


@pytest.mark.parametrize(
    ("words", "limit", "first", "then"),
    [
        ("algorithm=fedbuff algorithm.buffer_size=3 evaluation.every_uploads=10", "uploads", 32, 60),
        ("algorithm=ace algorithm.eta=0.1 evaluation.every=7", "virtual_time", 9.5, 20),  # between two ticks
        *slow(
            ("algorithm=ace algorithm.eta=0.1 evaluation.every=7 diagnostics=mse", "server_iterations", 10, 20),
            (f"{ASGD} evaluation.every_time=2", "virtual_time", 9, 20),
            (f"{ASGD} evaluation.every_time=3", "uploads", 33, 60),
            ("algorithm=gas algorithm.weight_growth=exponential evaluation.every=4 model=mlp", "uploads", 13, 30),
            ("algorithm=afbs evaluation.every=4 evaluation.clients=true availability=suspension", "uploads", 33, 90),
        ),
    ],
)
def test_an_extended_run_has_the_points_of_a_run_that_began_with_its_budget(words, limit, first, then):
    words = ["scale=smoke", "model=softmax", "trace=true", "progress=false", *words.split()]
    short, long = (run([*words, f"budget.{limit}={end}", f"output_dir={end}"]) for end in (first, then))
    extended = run([f"resume={short.directory}", f"budget.{limit}={then}"])
    assert extended.summary["identity"] == long.summary["identity"] != short.summary["identity"]
    assert_same(extended.directory, long.directory)
    for part in ("used", "final", "best", "arrivals", "diagnosed"):
        assert extended.summary[part] == long.summary[part]
    # the point at the end of the first budget, off the schedule, is in the short run alone
    ends = [[line["uploads"] for line in left_behind(one.directory)[0]] for one in (short, long)]
    assert ends[0][-1] not in ends[1] and ends[0][:-1] == ends[1][: len(ends[0]) - 1]


@pytest.mark.slow
def test_a_run_killed_behind_its_last_point_has_that_point_once(tmp_path):
    words = [*INTERRUPTED, "evaluation.every=7"]
    whole = run([*words, "output_dir=whole"])
    cut = Path(shutil.copytree(whole.directory, tmp_path / "cut" / whole.directory.name))
    for name in ("summary.json", "trace.parquet", "model_final.pt"):
        (cut / name).unlink()
    again = run([*words, "output_dir=cut"])
    assert again.directory.resolve() == cut and again.summary["final"] == whole.summary["final"]
    assert_same(cut, whole.directory)


@pytest.mark.slow
def test_a_finished_run_is_not_given_a_smaller_budget(tmp_path):
    words = [*WORDS, "model=softmax", "budget.server_iterations=40"]
    directory = run(words).directory
    for budget in ("budget.server_iterations=39", "budget.uploads=5", "budget.virtual_time=0.1"):
        with pytest.raises(ConfigError, match=rf"{budget}.*: must be at least \d+(\.\d+)?, what that run has used"):
            run([f"resume={directory}", budget])
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    assert run(words).summary["already_complete"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["no checkpoint yet", *slow("within its first checkpoint")])
def test_an_extension_that_is_killed_at_once_loses_nothing(moment, monkeypatch):
    from asyncfl_bench.experiment import checkpoint, drive

    words = [*WORDS, "model=softmax", "algorithm.eta=0.1"]
    short = run([*words, "budget.server_iterations=40"])
    whole = run([*words, "budget.server_iterations=80", "output_dir=whole"])
    resumed = [f"resume={short.directory}", "budget.server_iterations=80"]
    with monkeypatch.context() as patched:

        def killed(*_):
            raise KeyboardInterrupt  # as kill -9: nothing is written any more

        if moment == "no checkpoint yet":
            patched.setattr(checkpoint, "write_checkpoint", killed)
        else:
            patched.setattr(drive.Run, "drive", killed)
        with pytest.raises(KeyboardInterrupt):
            run(resumed)
    assert run([*words, "budget.server_iterations=40"]).summary["already_complete"]
    assert_same(run(resumed).directory, whole.directory)


def test_an_extension_needs_a_checkpoint(tmp_path):
    words = [*WORDS, "model=softmax", "budget.server_iterations=40", "checkpoint.at_end_mib=0", "checkpoint.every=null"]
    directory = run(words).directory
    with pytest.raises(BenchError, match="there is no checkpoint to resume from"):
        run([f"resume={directory}", "budget.server_iterations=80"])
    assert run(words).summary["already_complete"] and len(list(directory.parent.iterdir())) == 1


def test_a_directory_may_have_any_name(afl_run):
    odd = "é=1,2'\"[x]{y}#~ $HOME"
    Path(odd).mkdir()
    words = ["scale=smoke", "model=softmax", "progress=false", "algorithm=asgd"]
    first = run([*words, "output_dir=runs"]).directory
    moved = first.rename(Path(odd) / first.name)
    (moved / "summary.json").unlink()
    answer = afl_run("--resume", str(moved), "progress=false")
    assert answer.returncode == 0 and "done, test accuracy" in answer.stdout, answer.stderr


def test_a_broken_summary_counts_as_incomplete():
    words = ["scale=smoke", "model=softmax", "progress=false"]
    first = run(words)
    for broken in ("{", "[]", '{"exit_status": "ok"}', "\0", "[" * 100_000):
        (first.directory / "summary.json").write_text(broken)
        again = run(words)
        assert again.ok and again.summary["final"] == first.summary["final"], broken[:20]


def test_a_summary_without_numbers_counts_as_incomplete(afl_run):
    words = ["scale=smoke", "model=softmax", "progress=false"]
    path = run(words).directory / "summary.json"
    for part in ("final", "best", "used", "wall_seconds"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {part: {}}))
        answer = afl_run(*words)
        assert answer.returncode == 0 and "done, test accuracy" in answer.stdout, part


def test_two_processes_do_not_share_a_run(tmp_path):
    from filelock import FileLock

    words = ["scale=smoke", "model=softmax", "progress=false", "hydra.run.dir=one"]
    Path("one").mkdir()
    with FileLock("one/.lock"), pytest.raises(BenchError, match="one: another process is working on this run"):
        run(words)
    assert run(words).ok


def test_a_directory_named_by_hand_is_not_overwritten_by_another_run(tmp_path):
    words = ["scale=smoke", "model=softmax", "progress=false", "hydra.run.dir=one"]
    assert run(words).directory == Path("one")
    with pytest.raises(ConfigError, match="holds a run with other settings"):
        run([*words, "seed=1"])
    assert run([*words, "seed=1", "rerun=true"]).summary["seed"] == 1
    draws, words = np.random.default_rng(0), [*words, "dataset=arrays", "dataset.path=mine.npz", "rerun=true"]
    for rerun in (True, False):
        x, y = draws.normal(size=(600, 6)).astype(np.float32), np.arange(600) % 4
        np.savez("mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        if rerun:
            assert run(words).ok
    with pytest.raises(ConfigError, match="holds a run with other content of the files of dataset; choose another"):
        run(words[:-1])


def test_a_directory_of_another_run_under_a_runs_name_is_called_that(tmp_path):
    words = ["scale=smoke", "model=softmax", "progress=false"]
    first = run(words)
    place = compose([*words, "seed=1"]).directory
    first.directory.rename(place)
    told = rf"^{place}: holds another run \({first.summary['identity']}\) under the name of this one; move it away"
    with pytest.raises(BenchError, match=told):
        run([*words, "seed=1"])
    assert run([*words, "seed=1", "rerun=true"]).summary["seed"] == 1


def test_a_full_disk_ends_in_one_message(tmp_path, monkeypatch, capfd):
    from asyncfl_bench.tracking import rundir

    def no_space(self, row):
        raise OSError(28, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr(rundir.MetricsFile, "write", no_space)
    result = run(["scale=smoke", "model=softmax", "progress=false"])
    assert result.summary["exit_status"] == "failed"
    assert result.summary["error"] == "metrics.jsonl: No space left on device"


def test_a_diverging_run_names_the_upload_keeps_its_metrics_and_is_marked():
    result = run(["algorithm=fedbuff", "client.lr=1e38", "scale=smoke", "model=softmax", "progress=false"])
    assert result.summary["exit_status"] == "diverged"
    assert re.search(r"first in upload \d+ of client \d with staleness \d+, after \d+ server", result.summary["error"])
    assert len(result.metrics) >= 1 and result.metrics["iteration"].iloc[0] == 0
    again = run(["algorithm=fedbuff", "client.lr=1e38", "scale=smoke", "model=softmax", "progress=false"])
    assert again.summary["exit_status"] == "diverged"
    assert len(again.metrics) == len(result.metrics)


def test_a_trace_that_was_not_kept_from_the_start_is_refused_and_nothing_is_lost(tmp_path):
    words = [*WORDS, "model=softmax", "budget.server_iterations=30"]
    directory = run([*[word for word in words if word != "trace=true"], "output_dir=cut"]).directory
    (directory / "summary.json").unlink()
    before = (directory / "metrics.jsonl").read_bytes()
    with pytest.raises(BenchError, match="trace=true was not set from the start"):
        run([f"resume={directory}", "trace=true", "budget.server_iterations=40"])
    assert (directory / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_samples(tmp_path):
    words = [
        "dataset=femnist",
        "model=softmax",
        f"data_dir={tmp_path}",
        "n_clients=2",
        "algorithm=asgd",
        "delay=exponential",
    ]
    words += [f"output_dir={tmp_path}/runs"]

    def samples(seed):
        rng = np.random.default_rng(seed)
        x, y = rng.integers(0, 256, (60, 28, 28), dtype=np.uint8), rng.integers(0, 62, 60)
        np.savez(tmp_path / "femnist.npz", x=x, y=y, client=np.repeat(np.arange(2), 30))

    samples(0)
    short = run([*words, "budget.server_iterations=4"])
    samples(1)
    resumed = [f"resume={short.directory}", f"data_dir={tmp_path}", "budget.server_iterations=8"]
    with pytest.raises(BenchError, match=r"began with other samples than are there now \(femnist.npz\)"):
        run(resumed)
    assert json.loads((short.directory / "summary.json").read_text())["exit_status"] == "ok"  # a refusal costs nothing
    before = (short.directory / "metrics.jsonl").read_bytes()
    (short.directory / "summary.json").unlink()  # as if it had been stopped
    with pytest.raises(BenchError, match="rerun=true starts from the beginning"):
        run([*words, "budget.server_iterations=4"])
    assert (short.directory / "metrics.jsonl").read_bytes() == before
    samples(0)
    assert run(resumed).summary["used"]["server_iterations"] == 8
    assert run(resumed).summary["data_digest"] == short.summary["data_digest"]


@pytest.mark.parametrize(("part", "value"), [("rule", {}), ("model_d", torch.zeros(3))])
def test_a_checkpoint_whose_content_does_not_fit_is_named_without_a_stack_trace(part, value, interrupted):
    _, directory, _ = interrupted
    saved = torch.load(directory / "checkpoint.pt", weights_only=True)
    saved["state"][part] = value
    torch.save(saved, directory / "checkpoint.pt")
    with pytest.raises(BenchError, match=r"checkpoint\.pt: does not fit this run"):
        run([f"resume={directory}", "budget.server_iterations=90"])
    assert not (directory / "error.txt").exists()


ROUNDS = ["delay=uniform", "client.local_steps=2", "client.lr_decay=0.95", "scale=smoke", "model=softmax"]
# what a checkpoint holds besides the model: moments, clients' sums, every client's K, models of work in flight
HELD = {
    "fedavg": lambda state: state["rule"]["mean"]["count"] > 0,
    "fedopt": lambda state: state["rule"]["second_d"].max() > 1e-6 and state["rule"]["mean"]["count"] > 0,
    "feddyn": lambda state: state["executor"]["memories"]["sums"]["rows_nd"].abs().max() > 0,
    "fedbuff schedule.rest=until_update algorithm.buffer_size=8": lambda state: (
        len(state["simulation"]["slots"]["resting"]) > 2
    ),
    "fedac algorithm.buffer_size=3": lambda state: (
        state["executor"]["memories"]["variates"]["rows_nd"].abs().max() > 0
        and len(state["executor"]["memories"]["versions"]["held"]) > 1
    ),
    "fedecho algorithm.buffer_size=8 distillation.rate=0.003": lambda state: (
        state["rule"]["rule"]["count"] > 0 and state["rule"]["teacher"]["logits_nuc"].abs().max() > 0
    ),
    "asyncfeded": lambda state: len(set(state["rule"]["k_n"])) > 3 and len(state["executor"]["versions"]["held"]) > 3,
}


FAST = ("fedavg", "feddyn", "asyncfeded")  # a sum of a round, states of the clients, a choice of K


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["batched", *slow("sequential", "threads")])
@pytest.mark.parametrize("algorithm", [*FAST, *slow(*(name for name in HELD if name not in FAST))])
def test_a_run_goes_on_from_the_middle_of_a_round_with_lost_work_in_flight(algorithm, executor):
    words = [
        *ROUNDS,
        *SUSPENSION,
        *f"algorithm={algorithm}".split(),
        f"executor={executor}",
        "trace=true",
        "progress=false",
    ]
    words += ["threads=2", "budget.server_iterations=1000"]
    short = run([*words, "budget.uploads=46", "output_dir=short"])
    long = run([*words, "budget.uploads=140", "output_dir=long"])
    state = torch.load(short.directory / "checkpoint.pt", weights_only=True)["state"]
    assert HELD[algorithm](state)
    in_flight = state["simulation"]["timeline"]["works"]
    assert any(work["lost"] for work in in_flight) and not all(work["lost"] for work in in_flight)
    extended = finish_run(f"resume={short.directory}", "budget.uploads=140")
    assert_same_bits(extended, long)
    assert extended.summary["used"] == long.summary["used"]


CONTENT = """
: data device simulation rule executor model_d diagnostics checkpoint_iteration wall_time computed_by evaluations
simulation: ends_tick started uploads_without_change uploads_at_this_time timeline dispatches slots counters
simulation.timeline: due works now waiting
simulation.dispatches: made count_n
simulation.slots: free changed resting restarting schedule
simulation.slots.schedule: waiting
rule: rounds told rule teacher
rule.rule: rows_md entries decided flushes cluster_n
rule.teacher: logits_nuc version_n
executor: versions results unwanted computer begun
executor.versions: held
diagnostics: settings state
evaluations: lines last best logged_at next_time seconds arrivals steps trace
evaluations.arrivals: uploads_n uploads works_n delay_n version_n staleness_sum staleness_max in_flight known_losses \
versions staleness clients iterations losses_before
evaluations.steps: before_d iterations sums kept_n table
""".replace("\\\n", "")


@pytest.mark.slow
def test_the_content_of_a_checkpoint():
    words = ["algorithm=afbs", "distillation=fedecho", "scale=smoke", "model=softmax", "executor=sequential"]
    result = run([*words, "trace=true", "delay=exponential", "progress=false"])
    saved = torch.load(result.directory / "checkpoint.pt", weights_only=True)
    assert list(saved) == ["format", "results_version", "identity", "state"]
    expected = dict(line.split(":") for line in CONTENT.strip().splitlines())
    found = {}
    for part in expected:
        held = saved["state"]
        for name in filter(None, part.split(".")):
            held = held[name]
        found[part] = " " + " ".join(held)
    assert found == expected


def test_a_checkpoint_of_another_format_is_refused_in_one_line(interrupted):
    words, directory, _ = interrupted
    path = directory / "checkpoint.pt"
    torch.save(torch.load(path, weights_only=True) | {"format": "asyncfl_bench checkpoint 1"}, path)
    with pytest.raises(BenchError, match=r"pt: in the format of another version of .*rerun=true") as caught:
        run([*words, "output_dir=cut"])
    assert "\n" not in str(caught.value)
    assert run([*words, "output_dir=cut", "rerun=true"]).ok


def resume_without(folder, *lacking):
    """A directory whose config.yaml has no such section or setting."""
    tree = copy.deepcopy(compose(["scale=smoke"]).tree)
    del (tree[lacking[0]] if lacking[1:] else tree)[lacking[-1]]
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    compose([f"resume={folder}"])
