"""No run is lost without a word: planned runs are the products of all axes, in directories that tell them apart."""

import itertools
import re
from functools import partial
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import slow

from asyncfl_bench.config import compose
from asyncfl_bench.config.choices import composition, options
from asyncfl_bench.config.composition import expand_overrides
from asyncfl_bench.config.manual import describe_root_settings, describe_settings
from asyncfl_bench.config.overrides import parse_override
from asyncfl_bench.config.part_sources import use_folders
from asyncfl_bench.config.settings import PARTS
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.multirun.jobs import describe_planning, plan
from asyncfl_bench.multirun.run import plan_multirun

QUICK = ["scale=smoke", "model=softmax"]
GLOBAL = "# @package _global_\n"


def write(folder, files):
    for name, content in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(GLOBAL + (content if isinstance(content, str) else yaml.safe_dump(content)))


def grid_file(params, grids=(), **settings):
    sweeper = {"params": {key: ",".join(map(str, values)) for key, values in params.items()}}
    if grids:
        sweeper["grids"] = [{key: ",".join(map(str, values)) for key, values in grid.items()} for grid in grids]
    return settings | {"hydra": {"mode": "MULTIRUN", "sweeper": sweeper}}


@pytest.fixture
def mine(tmp_path):
    """A folder of groups that is used; files are written into it with ``write``."""
    write(tmp_path / "mine", {"delay/any": "defaults: [exponential]"})
    use_folders([tmp_path / "mine"])
    yield tmp_path / "mine"
    use_folders([])


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("o/${seed}", "o/7"),
        ("o/${algorithm.buffer_size}-${hydra:runtime.choices.algorithm}", "o/4-fedbuff"),
        ("o/${hydra.job.override_dirname}", "o/algorithm.buffer_size=4,algorithm=fedbuff"),
        ("${output_dir}/${hydra.job.name}", "runs/run"),
        ("o/${now:%Y}", "o/20\\d\\d"),
    ],
)
def test_the_folder_of_a_run_sees_the_values_of_the_command_line(folder, name):
    words = [
        "seed=7",
        "algorithm=fedbuff",
        "algorithm.buffer_size=4",
        "hydra.job.config.override_dirname.exclude_keys=[seed]",
    ]
    assert re.fullmatch(name, str(compose([*words, f"hydra.run.dir={folder}"]).directory))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["hydra.sweep.subdir=${hydra.job.num}"], ["runs/0", "runs/1"]),
        (["hydra.sweep.subdir=s${seed}"], ["runs/s7", "runs/s8"]),
        (["hydra.sweep.subdir=${hydra.job.override_dirname}", "hydra.sweep.dir=all"], ["all/seed=7", "all/seed=8"]),
        (["hydra.sweep.dir=m/${seed}", "hydra.sweep.subdir=here"], ["m/7/here", "m/8/here"]),
        (["hydra.sweep.dir=m/${seed}"], ["m/7/ace-.*-seed7-.*", "m/8/ace-.*-seed8-.*"]),
        (["output_dir=o", "hydra.sweep.dir=${output_dir}/${n_clients}"], ["o/100/ace-.*", "o/100/ace-.*"]),
    ],
)
def test_each_run_of_a_multirun_has_the_folder_of_its_own_values_and_is_sent_there(words, names):
    jobs = plan(["seed=7,8", *words])
    assert [bool(re.fullmatch(name, str(job.settings.directory))) for name, job in zip(names, jobs, strict=True)] == [
        True
    ] * 2
    for job in jobs:  # what a launcher is given, and what resumes one run
        (sent,) = plan([*job.overrides, *job.placing])
        (printed,) = plan([word for word in job.hydra] + job.overrides)
        assert sent.settings.directory == printed.settings.directory == job.settings.directory
        assert not any("$" in word for word in (*job.placing, *job.hydra))


def test_two_runs_of_one_identity_may_have_one_folder_and_folders_of_another_option_two():
    assert len(plan(["algorithm=ace,ace", "hydra.sweep.subdir=fixed"])) == 1
    assert len(plan(["output_dir=a,b"])) == 2


@pytest.mark.slow
def test_runs_in_numbered_folders_are_found_again(afl_run, tmp_path):
    words = ["-m", "seed=7,8", "hydra.sweep.subdir=${hydra.job.num}", *QUICK, "progress=false"]
    for said in ("2 runs, 0 of them", "2 runs, 2 of them"):
        done = afl_run(*words)
        assert done.returncode == 0 and done.stderr.startswith(said), done.stderr
    assert [yaml.safe_load((tmp_path / f"runs/{n}/config.yaml").read_text())["seed"] for n in (0, 1)] == [7, 8]


def seeds_and_clients(jobs):
    assert {job.error for job in jobs} == {None}
    return sorted((job.settings.root.seed, job.settings.root.n_clients) for job in jobs)


def test_the_grid_of_a_file_of_any_group_is_run_with_and_without_m(mine, afl_run):
    write(mine, {"experiment/grid": grid_file({"seed": (20, 21, 22), "n_clients": (10, 20)}, concurrency=5)})
    planned = seeds_and_clients(plan_multirun(["+experiment=grid"])[0])
    assert planned == [*itertools.product((20, 21, 22), (10, 20))]
    assert seeds_and_clients(plan_multirun(["+experiment=grid", "seed=3"])[0]) == [(3, 10), (3, 20)]
    for words in ([], ["-m"]):
        assert afl_run("--config-dir", str(mine), *words, "+experiment=grid", "--plan").stdout.startswith("6 runs, ")


def test_files_of_an_axis_have_their_own_grids(mine):
    write(mine, {"experiment/a": grid_file({"seed": (1, 2)}), "experiment/b": grid_file({"n_clients": (10, 20, 30)})})
    write(mine, {"experiment/c": grid_file({}, [{"seed": (5,)}, {"n_clients": (7,), "seed": (6, 7)}])})
    jobs = plan_multirun(["+experiment=a,b,c"])[0]
    assert seeds_and_clients(jobs) == sorted([(1, 100), (2, 100), (0, 10), (0, 20), (0, 30), (5, 100), (6, 7), (7, 7)])


def test_a_file_that_a_grid_of_another_file_chooses_adds_its_axes(mine):
    write(mine, {"experiment/outer": grid_file({"heterogeneity": ("iid", "own")})})
    own = {"heterogeneity": {"_target_": "asyncfl_bench.data.partition.Iid"}} | grid_file({"seed": (4, 5)})
    write(mine, {"heterogeneity/own": own})
    assert seeds_and_clients(plan_multirun(["+experiment=outer"])[0]) == [(0, 100), (4, 100), (5, 100)]


def test_each_file_has_its_own_number_of_trials(mine):
    for name, trials in (("a", 2), ("b", 5)):
        content = grid_file({"algorithm.c": ("interval(0.1",)})
        content["hydra"]["sweeper"]["params"] = {"algorithm.c": "interval(0.1,0.9)"}
        content["hydra"]["sweeper"]["search"] = {"trials": trials}
        content["evaluation"] = {"validation_share": 0.1}
        write(mine, {f"experiment/{name}": content})
    jobs = plan_multirun(["+experiment=a,b", "seed=0,1"])[0]
    assert len({*(job.drawn for job in jobs)}) == 5 and len(jobs) == 10  # the first two points of both are the same


AXES = {"seed": st.integers(0, 9), "n_clients": st.integers(2, 9), "tick_rounding": st.sampled_from(["down"])}
AXES |= {"budget.uploads": st.integers(1, 99), "evaluation.every": st.integers(1, 9)}


def some_axes(keys):
    values = {key: st.lists(AXES[key], min_size=1, max_size=3, unique=True) for key in keys}
    return st.fixed_dictionaries({}, optional=values)


def union(params, grids, arguments):
    """The runs that a file and a command line ask for, as sets of (key, value)."""
    found = set()
    for grid in grids or [{}]:
        axes = params | grid | arguments
        found |= {frozenset(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())}
    return found


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(
        st.tuples(
            some_axes(["seed", "n_clients"]), st.lists(some_axes(["budget.uploads", "evaluation.every"]), max_size=2)
        ),
        min_size=1,
        max_size=2,
    ),
    arguments=some_axes(["seed", "tick_rounding"]),
)
def test_planned_runs_are_the_union_of_all_products(files, arguments, mine):
    for number, (params, grids) in enumerate(files):
        write(mine, {f"experiment/e{number}": grid_file(params, grids)})
    chosen = f"+experiment={','.join(f'e{number}' for number in range(len(files)))}"
    words = [chosen, *(f"{key}={','.join(map(str, values))}" for key, values in arguments.items())]
    expected = set()
    for number, (params, grids) in enumerate(files):
        for run in union(params, grids, arguments):
            expected.add(
                compose([f"+experiment=e{number}", *(f"{key}={value}" for key, value in sorted(run))]).identity
            )
    jobs = plan_multirun(words)[0]
    assert {job.error for job in jobs} == {None}
    assert sorted(job.settings.identity for job in jobs) == sorted(expected)


def settings_of_page():
    """The words that choose -> (key, value, text) of every setting that has a value."""
    texts = itertools.cycle(TEXTS)
    found = {(): describe_root_settings()}
    found |= {(f"{group}={choice}",): describe_settings(group, choice) for group in PARTS for choice in options(group)}
    return {
        choice: [(key, value, next(texts)) for key, value, *_ in settings_of_choice]
        for choice, settings_of_choice in found.items()
    }


def outcome(prepare, words):
    """The identity of a run, or why there is none."""
    try:
        return prepare(words)
    except ConfigError as error:
        return error.key, str(error.value), error.allowed


def identity_alone(words):
    return compose(expand_overrides(words)).identity


def identity_in_multirun(words):
    (job,) = plan_multirun(expand_overrides(words))[0]
    return job.settings.identity


def check_interpolations(choice, found, monkeypatch):
    """All settings at once, but one by one those that are refused, as an error names only one.

    found  (key, value, text) of each
    """
    words, typed = [*choice], [*choice]
    for number, (key, value, text) in enumerate(found):
        monkeypatch.setenv(f"VALUE{number}", value)
        words.append(f"{key}={value}")
        typed.append(f"{key}={text.replace('VALUE', f'VALUE{number}')}")
    plain = outcome(identity_alone, words)
    if isinstance(plain, str) or len(found) < 2:
        in_multirun = plain if isinstance(plain, str) else outcome(identity_in_multirun, words)
        assert outcome(identity_alone, typed) == plain, typed
        assert outcome(identity_in_multirun, typed) == in_multirun, typed
        return
    refused = [one for one in found if one[0] == plain[0]] or found
    for one in refused:
        check_interpolations(choice, [one], monkeypatch)
    if rest := [one for one in found if one not in refused]:
        check_interpolations(choice, rest, monkeypatch)


TEXTS = ("${oc.env:VALUE}", "'${oc.env:VALUE}'", '"${oc.env:NO_SUCH,${oc.env:VALUE}}"')


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", "3"), ("concurrency", "null"), ("trace", "true"), ("model.hidden", "[20,10]"), ("algorithm.eta", "1e-1")],
)
def test_an_interpolated_value_gives_the_identity_of_the_plain_one(key, value, monkeypatch):
    for text in TEXTS:
        check_interpolations((), [(key, value, text)], monkeypatch)


@pytest.mark.slow
def test_every_value_of_the_settings_page_may_be_interpolated(monkeypatch):
    found = settings_of_page()
    assert sum(map(len, found.values())) > 400
    for choice, settings_of_choice in found.items():
        check_interpolations(choice, settings_of_choice, monkeypatch)


def test_an_interpolation_of_a_setting_has_the_value_of_its_run():
    plain = compose(["algorithm=fedbuff", "client.lr=0.3", "algorithm.eta=0.3", "n_clients=9", "concurrency=9"])
    words = [
        "algorithm=fedbuff",
        "algorithm.eta=0.3",
        "client.lr=${algorithm.eta}",
        "n_clients=9",
        "concurrency=${n_clients}",
    ]
    assert compose(words).identity == plain.identity
    jobs = plan([words[0], *words[2:], "algorithm.eta=0.1,0.3"])
    assert [job.settings.parts["client"].config.lr for job in jobs] == [0.1, 0.3]
    assert jobs[1].settings.identity == plain.identity


def test_an_axis_may_hold_interpolations_and_globs(monkeypatch, mine):
    monkeypatch.setenv("ID", "4")
    words = expand_overrides(
        ["seed=${oc.env:ID},5", "algorithm=glob(fed*,exclude=[feda*,fede*,fedp*,fedo*,fedd*,fedf*])"]
    )
    assert words == ["seed=4,5", "algorithm=fedbuff,fedstale_async"]
    write(
        mine, {"experiment/grid": grid_file({"seed": ("${oc.env:ID}", "${n_clients}"), "algorithm": ("glob(ace*)",)})}
    )
    found = [
        (job.settings.choices["algorithm"], job.settings.root.seed) for job in plan(["+experiment=grid", "n_clients=9"])
    ]
    assert sorted(found) == [(name, seed) for name in ("ace", "aced") for seed in (4, 9)]


EFFECTIVE = {  # keys of Hydra that act on a single run (False) and on a multirun, as other tests show
    False: ["run.dir", "mode", "searchpath", "job.name", "job.config"],
    True: [
        *(
            "callbacks",
            "hydra_logging",
            "job.config",
            "job.env_copy",
            "job.env_set",
            "job.name",
            "job_logging",
            "launcher",
        ),
        *("mode", "searchpath", "sweep.dir", "sweep.subdir", "sweeper", "verbose"),
    ],
}


@pytest.mark.parametrize("multirun", [False, *slow(True)])
def test_every_key_of_hydra_acts_or_is_refused(multirun):
    hydra = composition(()).raw_hydra
    keys = [f"{a}.{b}" for a in ("run", "sweep", "job") for b in hydra[a]] + [
        a for a in hydra if a not in ("run", "sweep", "job")
    ]
    values = {"output_subdir": ".hydra", "job.chdir": "true"}
    refused = []
    for key in keys:
        try:
            (plan if multirun else compose)([f"hydra.{key}={values.get(key, 'x')}"])
        except ConfigError as error:
            if error.key == f"hydra.{key}" and re.search(
                "has no effect|is set by Hydra|another meaning", error.allowed
            ):
                refused.append(key)
    assert sorted({*keys} - {*refused}) == sorted(EFFECTIVE[multirun])


def test_step_sizes_of_a_file_are_not_replaced_by_the_default_ones_of_the_data(mine):
    write(mine, {"experiment/steps": {"client": {"lr": 0.3}, "algorithm": {"eta": 0.7}}})
    settings = compose(["+experiment=steps", "dataset=cifar10", "model=lenet5", "algorithm=fedbuff"])
    assert (settings.parts["client"].config.lr, settings.parts["algorithm"].config.eta) == (0.3, 0.7)
    assert (
        not settings.default_steps
        and compose(["++seed=1", "++client.momentum=0.1", "algorithm=fedavg", "client.local_steps=2"]).default_steps
    )


def test_what_some_rules_lack_is_dropped_from_their_runs_with_one_line():
    jobs = plan(["algorithm=fedbuff,ace", "algorithm.buffer_size=5,10", "seed=0,1"])
    assert len(jobs) == 6 and {job.error for job in jobs} == {None}
    (line,) = describe_planning(jobs)
    assert line.startswith("algorithm.buffer_size: left out of 2 of 6 runs (ace)")


def write_bare(folder, lines=""):
    """Write the yaml of a rule that lists no setting, with more lines. Returns the folder of parts."""
    (folder / "algorithm").mkdir(exist_ok=True)
    (folder / "algorithm/bare.yaml").write_text(f"_target_: asyncfl_bench.algorithms.ace.Ace\n{lines}")
    return folder


@pytest.fixture
def bare(mine):
    write_bare(mine)
    return partial(write_bare, mine)


def test_every_field_of_a_part_can_be_set(bare):
    same = ["algorithm.eta=0.3", "algorithm.cache.precision=bf16"]
    settings = compose(["algorithm=bare", *same])
    rule = settings.parts["algorithm"].config
    assert (rule.eta, rule.cache.precision) == (0.3, "bf16")
    (job,) = plan(["algorithm=bare", *same])
    assert job.settings.identity == settings.identity and "algorithm.eta=0.3" in job.sent
    named = ["algorithm._target_=asyncfl_bench.algorithms.ringmaster.Ringmaster", "algorithm.threshold=3"]
    (job,) = plan(["algorithm=asgd", *named])
    assert job.settings.parts["algorithm"].config.threshold == 3 and f"++{named[1]}" in job.sent


@pytest.mark.slow
def test_a_field_that_no_yaml_lists_is_an_axis_of_a_multirun_and_is_shown(bare, afl_run):
    words = ["--config-dir", str(bare()), "algorithm=bare", *QUICK]
    done = afl_run("-m", *words, "algorithm.eta=0.1,0.3", "progress=false")
    assert done.returncode == 0 and done.stderr.startswith("2 runs, 0 of them"), done.stderr
    assert "eta: 0.3" in afl_run(*words, "algorithm.eta=0.3", "--cfg", "job").stdout
    other = ["hydra/sweeper=basic", "objective=test/accuracy", "output_dir=other", "progress=false"]
    done = afl_run("-m", *words, *other, "algorithm.eta=0.1,0.3")
    assert done.returncode == 0 and len(list(Path("other").glob("bare-*"))) == 2, done.stderr


def test_a_search_takes_the_ranges_that_a_rules_yaml_declares_and_says_so(bare):
    bare("search_space:\n  algorithm.eta: tag(log,interval(0.01,1))\n  concurrency: int(interval(2,9))\n")
    jobs = plan(["sweep=tune", "algorithm=bare,ace", "trials=4"])
    drawn = [{parse_override(text).key for text in job.drawn} for job in jobs]
    assert drawn.count({"algorithm.eta", "concurrency"}) == 4 and drawn.count({"algorithm.eta"}) == 4
    assert describe_planning(jobs) == [
        "search_space of bare: algorithm.eta=tag(log,interval(0.01,1)) concurrency=int(interval(2,9))",
        "search_space of ace: algorithm.eta=tag(log,interval(0.003,3))",
    ]
    fixed = plan(["sweep=tune", "algorithm=bare", "trials=4", "algorithm.eta=0.5"])
    assert {job.settings.parts["algorithm"].config.eta for job in fixed} == {0.5} and len(fixed) == 4
    declared = compose(["algorithm=bare"]).identity
    bare()
    assert compose(["algorithm=bare"]).identity == declared  # the ranges are no settings


def test_a_search_of_a_rule_without_ranges_draws_its_step_sizes_around_the_defaults(bare):
    jobs = plan(["sweep=tune", "algorithm=bare", "trials=4"])
    assert [{parse_override(text).key for text in job.drawn} for job in jobs] == [{"algorithm.eta"}] * 4
    assert describe_planning(jobs) == ["search_space of bare: algorithm.eta=tag(log,interval(0.0447,4.47))"]
    given = "algorithm.c=interval(0.1,1)"
    assert [len(job.drawn) for job in plan(["sweep=tune", "algorithm=bare", "trials=4", given])] == [1] * 4
    assert len(plan(["sweep=tune", "algorithm=bare", "algorithm.c=0.3", "seed=1,2"])) == 2  # the best, again
