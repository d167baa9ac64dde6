"""Sweeps: what their grids are, what the profiles say, and that they survive."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter

import numpy as np
import pytest
import yaml
from tiers import slow

from asyncfl_bench.config import choices, compose, part_sources
from asyncfl_bench.config.choices import variant
from asyncfl_bench.config.settings import PARTS
from asyncfl_bench.experiment import execute, finished_result
from asyncfl_bench.multirun.axes import combine, drawn_grids, jobs_of, sweep_grids, sweep_name
from asyncfl_bench.multirun.jobs import Job, plan


def test_a_union_of_grids_gives_each_part_its_own_keys():
    jobs = jobs_of(combine({"seed": "0,1"}, [{"algorithm": "ace"}, {"algorithm": "aced", "tau": "10,50"}], []))
    assert [" ".join(job) for job in jobs] == [
        "seed=0 algorithm=ace",
        "seed=1 algorithm=ace",
        "seed=0 algorithm=aced tau=10",
        "seed=0 algorithm=aced tau=50",
        "seed=1 algorithm=aced tau=10",
        "seed=1 algorithm=aced tau=50",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["seed=7"], ["seed=7 algorithm=ace", "seed=7 algorithm=aced tau=10"]),
        (["seed=7", "algorithm=aced"], ["seed=7 algorithm=aced tau=10"]),
        (["seed=7", "tau=20"], ["seed=7 algorithm=ace", "seed=7 algorithm=aced tau=20"]),
        (["seed=7", "algorithm=asgd"], ["seed=7 algorithm=asgd"]),
        (["seed=7", "lr=1", "algorithm=ace"], ["seed=7 algorithm=ace lr=1"]),
    ],
)
def test_the_command_line_narrows_a_union_where_it_applies(words, expected):
    grids = combine({"seed": "0,1"}, [{"algorithm": "ace"}, {"algorithm": "aced", "tau": "10"}], words)
    assert [" ".join(job) for job in jobs_of(grids)] == expected


def test_a_refused_job_is_told_as_such_whatever_summary_an_earlier_run_left(tmp_path):
    from asyncfl_bench.multirun.pending import _outcome

    settings = compose(["algorithm=asgd", f"hydra.run.dir={tmp_path}"])
    settings.named_directory = tmp_path
    (tmp_path / "summary.json").write_text('{"exit_status": "interrupted", "error": null}')
    assert _outcome(Job([], settings), None) == "interrupted: None"
    assert _outcome(Job([], settings, "failed: began with other samples"), None) == "failed: began with other samples"


def test_a_value_no_grid_lists_joins_the_grid_that_varies_its_key():
    grids = [{"epochs": "10"}, {"epochs": "5,10,15", "kappa": "0"}]  # adaptive K, and constant ones
    jobs = jobs_of(combine({}, grids, ["epochs=choice(10,30)"]))
    assert [" ".join(job) for job in jobs] == ["epochs=10", "epochs=10 kappa=0", "epochs=30 kappa=0"]


@pytest.mark.slow
@pytest.mark.parametrize(("item", "n", "iterations"), [("table_a2", 100, 500), ("table_a2_printed", 20, 100)])
def test_table_a2_is_20_newsgroups_in_both_readings_and_digits_only_where_the_scale_says_so(item, n, iterations):
    def settings(scale):
        words = ["algorithm=fedbuff", "client=adamw", "client.lr=0.0005", "concurrency=10"]
        return compose([f"sweep=ace/{item}", f"scale={scale}", *words])

    found = settings("medium")
    assert (found.choices["dataset"], found.choices["model"]) == ("newsgroups20", "fasttext")
    assert (found.root.n_clients, found.budget.server_iterations) == (n, iterations)
    assert found.parts["client"].config.batch_size == 32 and found.root.concurrency == 10
    assert found.parts["algorithm"].config.c == 50  # 0.2 leaves a FastText at chance
    small = settings("small")
    assert small.choices["dataset"] == "digits" and small.parts["algorithm"].config.c == 0.2


def chosen_in(settings):
    """Group -> choice, of the parts that settings of a yaml file choose by `override` or by `instead`."""
    lists = [entry for entry in settings.get("defaults", []) if isinstance(entry, dict)]
    overridden = {key.removeprefix("override /"): choice for entry in lists for key, choice in entry.items()}
    chosen = {group: choice for group, choice in overridden.items() if group in PARTS} | settings.get("instead", {})
    for name in (entry for entry in settings.get("defaults", []) if isinstance(entry, str)):
        chosen = chosen_in(read("sweep", name)) | chosen
    return chosen


def read(group, choice):
    return yaml.safe_load(choices.choice_file(group, choice).read_text()) or {}


CHOOSING = [name for name in choices.options("sweep") if chosen_in(read("sweep", name))]
PAPERS_HAVE_OTHERS = [
    ("asyncfeded/figure3_redrawn", "medium", []),
    ("fedecho/table4_minilm", "medium", ["algorithm=fedecho"]),
]
OTHERS = [(name, scale, []) for name in CHOOSING for scale in choices.options("scale")]
OTHERS = [one for one in OTHERS if "refused" not in (variant("sweep_scale", "/".join(one[:2])) or {})]


@pytest.mark.parametrize(("sweep", "scale", "words"), [*PAPERS_HAVE_OTHERS, *slow(*OTHERS)])
def test_a_sweep_runs_the_choices_of_its_own_files_and_never_those_of_its_paper(sweep, scale, words):
    composed = choices.composition([f"sweep={sweep}", f"scale={scale}", *words]).config.hydra.runtime.choices
    for_scale, stand_in = chosen_in(variant("sweep_scale", f"{sweep}/{scale}") or {}), chosen_in(read("scale", scale))
    for group, choice in chosen_in(read("sweep", sweep)).items():
        expected = {for_scale.get(group, choice)}
        if scale in ("small", "smoke") and group in stand_in and group not in for_scale:
            expected.add(stand_in[group])
        assert composed[group] in expected, group


@pytest.mark.slow
@pytest.mark.parametrize("sweep", choices.options("sweep"))
def test_every_job_of_a_sweep_is_accepted_at_its_largest_scale(sweep):
    """Of an axis of many numbers the first and the last: what lies between is accepted where these are."""
    np.save("ddpm_cifar10.npy", np.zeros((1, 32, 32, 3), np.uint8))  # of two sweeps
    refused = "refused" in (variant("sweep_scale", f"{sweep}/full") or {})
    asked = [f"sweep={sweep}", f"scale={'medium' if refused else 'full'}", "seed=0"]
    grids = drawn_grids(asked)
    axes = {key: {tuple(grid[key]) for grid in grids if key in grid} for grid in grids for key in grid}
    long = {key: min(ranges) for key, ranges in axes.items() if "." in key and len(ranges) == 1 < len(min(ranges)) - 2}
    jobs = plan([*asked, *(f"{key}={values[0]},{values[-1]}" for key, values in long.items())])
    assert jobs and {job.error for job in jobs} == {None}
    assert {job.settings.choices["algorithm"] for job in jobs} == {
        name for grid in grids for name in grid.get("algorithm", [jobs[0].settings.choices["algorithm"]])
    }
    if not refused:  # the paper's own model, which only AFBS has as FastText
        models = {job.settings.choices["model"] for job in jobs}
        assert "fasttext" not in models or sweep.startswith("afbs/")
        assert {job.settings.tree["dataset"].get("features") for job in jobs} == {None}


def test_the_papers_scale_names_the_papers_encoders_and_a_folder_replaces_them():
    names = ["distilbert-base-uncased", "bert-base-uncased"]
    for item in ("bert", "adamw"):
        assert {tuple(grid["model.path"]) for grid in sweep_grids([f"sweep=ace/table_a2_{item}"])} == {(*names,)}
    (grid, *_) = sweep_grids(["sweep=ace/table_a2_bert", "model.path=an/encoder"])
    assert grid["model.path"] == ["an/encoder"]


@pytest.mark.slow
def test_a_sweep_over_protocols_composes_each_with_its_own_settings_and_a_directory_of_its_own():
    words = ["sweep=asyncfeded/figure4", "scale=small", "seed=0", "paper=asyncfeded/synthetic,asyncfeded/femnist"]
    found = plan(words)
    assert len(found) == 2 * 5
    assert [job.error for job in found] == [None] * 10 and len({job.settings.name for job in found}) == 10
    rules = {(job.settings.choices["paper"], job.settings.parts["algorithm"].config.kappa) for job in found}
    synthetic, femnist = "asyncfeded/synthetic", "asyncfeded/femnist"
    assert rules == {(synthetic, 1.0), (synthetic, 0.0), (femnist, 0.05), (femnist, 0.0)}
    assert {job.settings.parts["availability"].config.probability for job in found} == {0.1}


@pytest.mark.slow
def test_the_hundred_runs_of_figure_2_take_a_dozen_compositions_by_hydra():
    choices._compose.cache_clear()
    assert len(plan(["sweep=ace/figure2"])) == 100
    assert choices._compose.cache_info().misses <= 12  # 5 algorithms by 2 delays, and the sweep file's own


@pytest.mark.slow
def test_a_sweep_of_a_hundred_runs_is_planned_and_its_finished_runs_found_in_seconds():
    started = time.process_time()
    assert not any(finished_result(job.settings) for job in plan(["sweep=ace/figure2"]))
    assert time.process_time() - started < 10  # generous: 2 to 3


@pytest.mark.slow
def test_the_runs_of_figure_2_are_those_of_figure_3_with_p_0_1():
    narrow = ["scale=small", "seed=0", "paper=asyncfeded/shakespeare"]
    figure2 = plan(["sweep=asyncfeded/figure2", *narrow])
    words = ["sweep=asyncfeded/figure3", *narrow, "availability.probability=0.1"]
    figure3 = plan(words)
    assert [job.settings.name for job in figure2] == [job.settings.name for job in figure3] and len(figure2) == 5


@pytest.mark.slow
def test_the_fair_profile_of_asyncfeded_gives_all_methods_one_machine_and_the_same_search():
    words = ["sweep=asyncfeded/figure2", "paper=asyncfeded/synthetic", "profile=fair", "seed=0"]
    found = [job.settings for job in plan(words)]
    assert len(found) == 5 * 4
    delays = [settings.tree["delay"] for settings in found]
    assert delays[1:] == delays[:-1] and delays[0] == compose(["paper=asyncfeded/synthetic"]).tree["delay"]
    assert delays[0] != compose(["paper=asyncfeded/synthetic", "algorithm=fedavg"]).tree["delay"]
    assert {settings.evaluation.validation_share for settings in found} == {0.1}
    assert {settings.budget.virtual_time for settings in found} == {300}
    searched = {settings.parts["client"].config.lr for settings in found if settings.choices["algorithm"] == "fedavg"}
    assert searched == {0.003, 0.01, 0.03, 0.1}
    published = {"mu": 0.1, "alpha": 0.1, "kappa": 1.0}  # tables 1, 2 and 4
    for key, value in published.items():
        of = {getattr(s.parts["algorithm"].config, key) for s in found if hasattr(s.parts["algorithm"].config, key)}
        assert of == {value}


@pytest.mark.slow
def test_what_a_profile_searches_is_that_of_the_papers_also_when_several_are_named():
    both = ["paper=asyncfeded/synthetic,asyncfeded/femnist", "profile=fair", "algorithm=fedavg", "scale=smoke"]
    (one,) = sweep_grids(both)
    assert one["client.lr"] == ["0.003", "0.01", "0.03", "0.1"] and "algorithm.c" not in one
    assert [job.error for job in plan([*both, "client.lr=0.1"])] == [None, None]
    jobs = plan(["paper=ace,asyncfeded/femnist", "profile=fair", "algorithm=fedavg", "scale=smoke"])
    searched = {(job.settings.choices["paper"], word) for job in jobs for word in job.overrides if "." in word}
    assert {("ace", "algorithm.c=10"), ("asyncfeded/femnist", "client.lr=0.003")} <= searched  # each in its own grid
    figure2 = sweep_grids(["sweep=asyncfeded/figure2", "profile=fair"])
    assert {tuple(grid["paper"]) for grid in figure2} == {("asyncfeded/synthetic", "asyncfeded/femnist")}


def test_one_value_of_a_setting_that_only_the_swept_algorithm_has_narrows_a_sweep():
    words = ["sweep=asyncfeded/table1", "paper=asyncfeded/synthetic", "scale=smoke"]
    (job,) = plan([*words, "algorithm.mu=0.01", "client.weight_decay=1e-4"])
    assert job.settings.parts["algorithm"].config.mu == 0.01
    same, other = plan([*words, "algorithm.mu=0.01,0.5", "client.weight_decay=0.0001"])
    assert same.settings.directory == job.settings.directory != other.settings.directory


def test_an_edited_yaml_counts_at_once(tmp_path, monkeypatch):
    shutil.copytree(part_sources.config_directory(), tmp_path / "conf")
    monkeypatch.setattr(part_sources, "config_directory", lambda: tmp_path / "conf")
    assert compose([]).parts["client"].config.lr == 0.1
    path = tmp_path / "conf/client/sgd.yaml"
    path.write_text(f"{path.read_text()}lr: 0.7\n")
    assert compose([]).parts["client"].config.lr == 0.7


@pytest.mark.slow
def test_a_run_given_a_larger_budget_is_not_run_over_by_its_first_command(tmp_path, afl_run):
    words = ["scale=smoke", "model=softmax", "progress=false", "algorithm.eta=0.1"]
    assert afl_run(*words).returncode == 0
    (directory,) = (tmp_path / "runs").iterdir()
    assert afl_run("--resume", str(directory), "budget.server_iterations=30", "progress=false").returncode == 0
    for again in (afl_run(*words), afl_run("-m", *words), afl_run("-m", *words, "budget.server_iterations=20,30")):
        assert again.returncode == 0
        assert "already complete" in again.stdout or ("finished already" in again.stderr and not again.stdout)

    # versions before had the longer run in the directory of the shorter one
    config = directory / "config.yaml"
    config.write_text(config.read_text().replace("server_iterations: 20", "server_iterations: 30"))
    (directory / "summary.json").unlink()
    metrics = (directory / "metrics.jsonl").read_text()
    answer = afl_run(*words)
    assert answer.returncode == 1 and "holds another run (" in answer.stderr
    assert (directory / "metrics.jsonl").read_text() == metrics


@pytest.mark.slow
def test_the_paper_profile_is_what_the_paper_prints():
    def of(algorithm, *words):
        return compose([f"algorithm={algorithm}", "paper=ace", "delay=exp_beta30", *words])

    eta = 0.2 * (100 / 500) ** 0.5
    for name in ("ace", "aced", "fedbuff", "ca2fl", "asgd", "delay_adaptive_asgd"):
        settings = of(name)
        assert settings.parts["algorithm"].config.eta == pytest.approx(eta)
        assert settings.parts["client"].config.batch_size == 50 and settings.budget.server_iterations == 500
        assert (settings.choices["dataset"], settings.choices["model"]) == ("cifar10", "resnet18")
        assert settings.root.clock == "ticks"
    flights = {n: of(n).root.concurrency for n in ("ace", "aced", "fedbuff", "ca2fl", "asgd", "delay_adaptive_asgd")}
    assert flights == {"ace": 100, "aced": 100, "fedbuff": 20, "ca2fl": 20, "asgd": 1, "delay_adaptive_asgd": 20}
    assert of("fedbuff").parts["client"].config.lr == 0.05 and of("ca2fl").parts["algorithm"].config.buffer_size == 10


def test_the_longer_figure_keeps_the_step_of_500_iterations():
    (grid,) = sweep_grids(["sweep=ace/figure_a1", "algorithm=ace", "seed=0"])
    job = jobs_of([grid])[0]
    settings = compose(job)
    assert settings.budget.server_iterations == 1000
    assert settings.parts["algorithm"].config.eta == pytest.approx(0.2 * (100 / 500) ** 0.5)


@pytest.mark.slow
def test_the_fair_profile_gives_all_algorithms_the_same_uploads_clients_and_grid_of_steps():
    grid = sweep_grids(["sweep=ace/figure2", "profile=fair"])[0]
    assert grid["algorithm.c"] == ["10", "5", "2", "1", "0.5", "0.2", "0.1"]
    for name, uploads_per_iteration in (("ace", 1), ("fedbuff", 10), ("ca2fl", 10), ("asgd", 1)):
        settings = compose(["paper=ace", "profile=fair", f"algorithm={name}", "algorithm.c=0.5"])
        root, rule = settings.root, settings.parts["algorithm"].config
        assert (root.clock, root.concurrency, settings.budget.uploads) == ("time", 100, 20000)
        assert settings.choices["schedule"] == "same_client"
        assert rule.eta == pytest.approx(0.5 * (100 / (20000 / uploads_per_iteration)) ** 0.5)
        assert settings.evaluation.validation_share == 0.1


def test_scales_replace_the_data_and_a_sweep_keeps_its_runs_apart_by_profile_scale_and_length():
    small = compose(["paper=ace", "scale=small"])
    assert (small.choices["dataset"], small.choices["model"], small.root.n_clients) == ("digits", "mlp", 100)
    assert compose(["paper=ace", "scale=small", "model=softmax"]).choices["model"] == "softmax"
    assert sweep_name(["sweep=ace/figure2"]) == "ace/figure2/published-full"
    words = ["sweep=ace/figure2", "scale=small", "profile=fair", "length=long"]
    assert sweep_name(words) == "ace/figure2/fair-small-long"


@pytest.mark.slow
def test_the_medium_scale_has_real_data_of_each_paper_and_each_sweep():
    def data(*words: str) -> set[tuple[str, str]]:
        chosen = [job.settings.choices for job in plan([*words, "scale=medium", "seed=0"])]
        return {(choices["dataset"], choices["model"]) for choices in chosen}

    assert data("sweep=ace/figure2", "algorithm=asgd") == {("cifar10", "lenet5")}
    assert data("sweep=ace/figure_a2", "algorithm=asgd") == {("cifar100", "lenet5")}
    assert data("sweep=ace/figure_a2", "algorithm=asgd", "dataset=mnist") == {("mnist", "lenet5")}
    assert data("sweep=asyncfeded/figure2", "algorithm=fedprox") == {
        ("femnist", "cnn_one_pool"),
        ("shakespeare_sized", "lstm"),
    }
    assert compose(["paper=asyncfeded/shakespeare", "scale=medium"]).parts["model"].config.hidden == 64


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in choices.options("sweep") if "/" in name])
def test_a_sweep_ends_at_smoke(name, tmp_path, monkeypatch):
    """One run of each algorithm of the sweep: the first that its grid lists."""
    monkeypatch.chdir(tmp_path)
    words = [f"sweep={name}", "scale=smoke"]
    jobs = jobs_of(drawn_grids(words))
    first = {next(word for word in job if word.startswith("algorithm=")): job for job in reversed(jobs)}
    results = [execute(compose([*job, "threads=1", "progress=false"])) for job in first.values()]
    assert {result.summary["exit_status"] for result in results} == {"ok"}


@pytest.mark.slow
def test_settings_of_the_jobs_are_those_each_job_would_compose_alone():
    words = ["sweep=ace/figure3a", "scale=smoke", "availability.share=0.1,0.7"]
    found = plan(words)
    assert [job.error for job in found] == [None] * 8
    assert [job.settings.identity for job in found] == [compose(job.overrides).identity for job in found]
    assert len({job.settings.identity for job in found}) == 8


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_was_names_what_failed_and_how_to_run_it_again(tmp_path, afl_run):
    words = ["sweep=ace/figure2", "scale=smoke", "model=softmax", "delay=exp_beta5", "heterogeneity.alpha=0.3"]
    first = afl_run(*words, "algorithm=ace,fedbuff", "seed=0", "progress=false")
    folder = tmp_path / "runs/ace/figure2/published-smoke"
    assert first.returncode == 0, first.stderr
    assert len(list(folder.glob("*/summary.json"))) == 2
    chosen = json.loads(next(folder.glob("ace-*/summary.json")).read_text())
    assert chosen["exit_status"] == "ok"

    # a finished run is skipped, one whose directory cannot be used fails alone, the others run
    again = afl_run(*words, "algorithm=ace,fedbuff,asgd", "seed=0", "progress=false")
    assert "3 runs, 2 of them finished already" in again.stderr and "[3/3] algorithm=asgd: " in again.stdout

    broken = next(folder.glob("fedbuff-*"))
    for file in broken.iterdir():
        file.unlink()
    (broken / "metrics.jsonl").mkdir()
    next(folder.glob("asgd-*/summary.json")).unlink()
    third = afl_run(*words, "algorithm=ace,fedbuff,asgd", "seed=0", "progress=false")
    assert third.returncode == 1 and len(list(folder.glob("asgd-*/summary.json"))) == 1
    assert "1 of 3 runs did not finish" in third.stderr
    rerun = next(line for line in third.stderr.splitlines() if line.startswith("  afl-run"))
    assert "algorithm=fedbuff" in rerun and "sweep=ace/figure2" in rerun and "metrics.jsonl" in rerun

    (broken / "metrics.jsonl").rmdir()
    command = rerun.partition("#")[0].split()[1:]
    assert afl_run(*command).returncode == 0 and (broken / "summary.json").exists()


@pytest.mark.slow
def test_a_run_of_another_code_contract_is_run_again(tmp_path, afl_run):
    words = ["scale=smoke", "model=softmax", "progress=false"]
    assert afl_run(*words).returncode == 0
    path = next((tmp_path / "runs").glob("*/summary.json"))
    summary = json.loads(path.read_text())
    assert "already complete" in afl_run(*words).stdout
    path.write_text(json.dumps(summary | {"results_version": summary["results_version"] - 1}))
    assert "already complete" not in afl_run(*words).stdout
    assert json.loads(path.read_text())["results_version"] == summary["results_version"]


def test_held_back_samples_are_no_clients_and_are_judged_apart(tmp_path, afl_run):
    words = ["scale=smoke", "model=softmax", "progress=false", "trace=true", "evaluation.validation_share=0.2"]
    assert afl_run(*words).returncode == 0
    summary = json.loads(next(tmp_path.glob("runs/*/summary.json")).read_text())
    assert {"test/accuracy", "validation/accuracy"} <= set(summary["final"])
    with np.load(next(tmp_path.glob("runs/*/partition.npz"))) as clients:
        assert sum(len(clients[name]) for name in clients) == 1437 - round(0.2 * 1437)


def test_evaluation_by_uploads_comes_at_the_first_iteration_that_completes_them(tmp_path, afl_run):
    words = ["algorithm=fedbuff", "clock=time", "model=softmax", "n_clients=10", "budget.server_iterations=null"]
    assert afl_run(*words, "budget.uploads=100", "evaluation.every_uploads=25", "progress=false").returncode == 0
    rows = [json.loads(line) for line in next(tmp_path.glob("runs/*/metrics.jsonl")).read_text().splitlines()]
    assert [row["uploads"] for row in rows] == [0, 30, 50, 80, 100]  # ten uploads make one iteration


@pytest.mark.slow
def test_a_job_that_never_got_a_directory_is_named_with_its_error(afl_run):
    words = ["sweep=ace/figure2", "scale=smoke", "model=softmax", "algorithm=asgd", "delay=exp_beta5", "progress=false"]
    answer = afl_run(*words, "heterogeneity.alpha=0.1", "heterogeneity.min_samples=5,200")
    assert answer.returncode == 1 and "1 of 2 runs did not finish" in answer.stderr
    assert "# failed: heterogeneity.min_samples=200: must be at most" in answer.stderr


def test_clients_stop_at_half_of_a_budget_of_uploads():
    words = ["paper=ace", "profile=fair", "availability=dropout"]
    stops = {n: compose([*words, f"algorithm={n}"]).parts["availability"].config.at_iteration for n in ("ace", "ca2fl")}
    assert stops == {"ace": 10_000, "ca2fl": 1000}  # the same 10 000 uploads


def test_table_a2_has_the_settings_of_table_a6():
    grids = sweep_grids(["sweep=ace/table_a2", "scale=medium", "seed=0", "heterogeneity.alpha=1.0"])
    fedbuff = next(job for job in jobs_of(grids) if "algorithm=fedbuff" in job)
    settings = compose(fedbuff)
    client = settings.parts["client"].config
    assert (client.optimizer, client.lr, client.batch_size, settings.root.concurrency) == ("adamw", 5e-4, 32, 10)
    assert len(jobs_of(grids)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("sweep", ["table_a2_bert", "table_a2_adamw"])
def test_both_readings_of_table_a6_differ_in_what_ace_and_asgd_send_and_search_seven_steps_for_each(sweep):
    jobs = plan([f"sweep=ace/{sweep}", "seed=0", "heterogeneity.alpha=1.0"])
    assert len(jobs) == 2 * 6 and {job.settings.parts["model"].config.path for job in jobs} == {
        "distilbert-base-uncased",
        "bert-base-uncased",
    }
    client = {job.settings.choices["algorithm"]: job.settings.parts["client"].config for job in jobs}
    adamw = set(client) if sweep == "table_a2_adamw" else {"fedbuff", "ca2fl"}
    assert {
        name for name, own in client.items() if (own.upload, own.optimizer, own.lr) == ("difference", "adamw", 5e-4)
    } == adamw
    fair = plan([f"sweep=ace/{sweep}", "profile=fair", "scale=medium", "seed=0"])
    assert Counter(job.settings.choices["algorithm"] for job in fair) == dict.fromkeys(client, 7)


@pytest.mark.slow
def test_a_sweep_that_is_run_again_says_how_it_ended(afl_run):
    words = ["-m", "seed=0,1", "scale=smoke", "model=softmax", "progress=false", "algorithm=asgd"]
    assert afl_run(*words).returncode == 0
    again = afl_run(*words, "rerun=true")
    assert again.returncode == 0 and again.stdout.count(" % (best ") == 2 and "did not finish" not in again.stderr


@pytest.mark.slow
def test_table_4_has_fourteen_settings_off_the_papers_choice_one_at_a_time():
    chosen = {"lam_over_eps": 1, "lam": 5, "gamma_bar": 3, "kappa": 1}
    jobs = plan(["sweep=asyncfeded/table4_one_factor", "paper=asyncfeded/synthetic", "seed=0"])
    rules = [job.settings.parts["algorithm"].config for job in jobs]
    assert sorted(sum(getattr(rule, key) != value for key, value in chosen.items()) for rule in rules) == [0] + 14 * [1]


@pytest.mark.slow
def test_jobs_that_come_to_one_run_are_one_job():
    """AFBS's protocols differ in their data alone, for which digits stand in."""
    words = ["sweep=afbs/table2", "algorithm=fedbuff", "heterogeneity.groups=1"]
    assert [len(plan([*words, f"scale={scale}"])) for scale in ("full", "smoke")] == [3, 1]
