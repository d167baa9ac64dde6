"""What right commands make: some settings of a run, and how many runs a multirun plans. messages.txt has wrong ones."""

import re
import shlex
from pathlib import Path

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from tiers import slow

from asyncfl_bench.cli import command, hydra_flags
from asyncfl_bench.config import choices, compose, overrides
from asyncfl_bench.config.other_names import other_names, without_marks
from asyncfl_bench.config.settings import PARTS
from asyncfl_bench.config.suggestions import OPTIONS
from asyncfl_bench.errors import format_value

RUNS = [
    ("", "algorithm.c=0.2 clock=ticks seed=0 budget.server_iterations=500"),
    ("algorithm=fedbuff", "algorithm.eta=1.0 client.upload=difference"),
    ("algorithm='ace'", "algorithm.step_on=tick"),
    ("seed=3", "seed=3"),
    ("++seed=3", "seed=3"),
    ("sweep=null", "seed=0"),
    ("seed=7 seed=3", "seed=3"),
    ("trace=yes progress=off rerun=1", "trace=true progress=false rerun=true"),
    ("algorithm=fedbuff 'client.lr=\"0.1\"'", "client.lr=0.1"),
    ("algorithm=fedbuff client.lr=1e-3", "client.lr=0.001"),
    ("algorithm=fedbuff client=adamw client.lr=3", "client.lr=3.0 client.optimizer=adamw"),
    ("algorithm=fedbuff client.momentum=0.9 client.local_steps=2", "client.momentum=0.9"),
    ("algorithm=fedbuff algorithm.eta=null algorithm.c=2", "algorithm.eta=0.894427190999915"),
    ("algorithm=fedprox algorithm.mu=0.3 client.local_epochs=2", "client.proximal=0.3"),
    ("algorithm=fedasync algorithm.rho=0.8 client.local_steps=3", "client.proximal=0.8"),
    ("client.upload=difference client.lr=0.5 client.local_steps=3", "client.lr=0.5"),
    ("paper=ace client.momentum=0", "client.momentum=0.0"),
    ("algorithm=fedasync algorithm.staleness_weight=hinge algorithm.hinge_a=2", "algorithm.hinge_a=2.0"),
    ("delay=work_and_link delay.bandwidth=1e6 delay.link_spread=0.5", "delay.link_spread=0.5"),
    ("algorithm=fedbuff algorithm.buffer_size=15000", "algorithm.buffer_size=15000"),
    ("client.batch_size=all", "client.batch_size=all"),
    ("model.hidden=[20,10]", "model.hidden=[20, 10]"),
    ("budget.uploads=5000 algorithm=asgd", "budget.uploads=5000 budget.server_iterations=null"),
    ("budget.uploads=5000 budget.virtual_time=9", "budget.uploads=5000 budget.virtual_time=9.0"),
    ("scale=smoke", "n_clients=10 budget.server_iterations=20"),
    ("device=cuda:1", "device=cuda:1"),
    ("algorithm=gas availability=dropout", "seed=0"),
    ("concurrency=10 algorithm=delay_adaptive_asgd", "algorithm.tau_c=10"),
    ("'output_dir=${oc.env:HOME}/x'", "seed=0"),
    ("algorithm=malenia n_clients=6 concurrency=3 schedule=random_idle clock=time", "concurrency=3"),
    ("algorithm=port n_clients=6 concurrency=3 schedule=same_client clock=time", "concurrency=3"),
]

MULTIRUNS = [
    ("-m", 1),
    ("-m seed=0,1,2", 3),
    ("-m 'seed=range(3)' 'algorithm=choice(ace,asgd)'", 6),
    ("-m algorithm=ace,ace", 1),
    ("-m seed=0,1 hydra/launcher=basic", 2),
    ("-m algorithm=asgd,fedbuff client.lr=0.1,1", 3),  # asgd once: the local step is none of its settings
    ("-m algorithm=fedbuff,ace algorithm.buffer_size=5,10", 3),  # ace once: it has no buffer
    ("-m 'algorithm=glob(ace*)'", 2),
    ("-m budget.uploads=50,100", 2),
    ("-m profile=fair algorithm=ace", 7),
    *slow(("sweep=quickstart/six_algorithms", 18)),
    ("sweep=ace/figure2 scale=medium profile=fair seed=0", 60),  # 5 algorithms with 6 steps of its own, in two cells
]


@pytest.mark.parametrize(
    "command", [f"seed={'9' * 5000}", f"-m trials=4 shard=1/{'9' * 5000} algorithm.c=interval(1,2)"]
)
def test_a_number_of_5000_digits_is_refused(command, answer):
    result, noted = answer(command)
    assert result.returncode == 2 and noted.settings is None and not noted.planned, result.stderr


@pytest.mark.parametrize(("command", "given"), RUNS)
def test_a_right_command_gives_the_run_these_settings(command, given, answer):
    result, noted = answer(command)
    assert result.returncode == 0, result.stderr
    for text in re.findall(r"\S+=(?:\[.*?\]|\S+)", given):
        key, _, value = text.partition("=")
        node = noted.settings.tree
        for part in key.split("."):
            node = node[part]
        assert format_value(node).startswith(value) if "." in value else format_value(node) == value, key


@pytest.mark.parametrize(("command", "planned"), MULTIRUNS)
def test_a_multirun_is_planned(command, planned, answer):
    result, noted = answer(command)
    assert result.returncode == 0 and len(noted.planned) == planned, result.stderr
    assert {job.error for job in noted.planned} == {None}


def test_other_names_are_no_choices_and_stand_for_choices():
    of_choices = {pair: words for pair, words in other_names().items() if pair[0] not in ("setting", "option")}
    options = {group: choices.options(group) for group, _ in of_choices}
    for (group, name), words in of_choices.items():
        key, _, value = words.partition(" ")[0].partition("=")
        known = ["", *options[group]]
        assert name not in map(without_marks, known) and (value in known if key == group else "." in key), name


@pytest.mark.parametrize("command", ["sweep=nothing", "paper=nothing", "qqq=1", "delay=qqq", "+client.qqq=1"])
def test_a_message_lists_at_most_ten_choices(command, answer):
    said = answer(command)[0].stderr
    listed = re.search(r"(?:must be one of|known:) (.*?)(?: and \d+ more|$)", said, re.M)
    assert listed and 1 < len(listed[1].split(", ")) <= 10, said


def test_what_is_without_effect_is_said_by_the_part_it_belongs_to():
    from asyncfl_bench.config import compose

    idle = compose(["algorithm=ace", "model=resnet18"]).idle
    assert {"client.lr", "client.momentum", "model.statistics_rate"} <= set(idle)
    assert {key.partition(".")[0] for key in idle} <= {*PARTS, "evaluation", "server_seconds_per_sample"}


@pytest.mark.parametrize(
    ("words", "runs", "compositions"),
    [
        ("algorithm=ace delay=exp_beta5", 10, 1),
        *slow(("algorithm=ace,asgd", 40, 1 + 4), ("", 100, 1 + 10)),
    ],
)
def test_a_plan_composes_once_for_each_choice_of_groups_and_parses_each_word_once(
    words, runs, compositions, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    composed, parsed = [], []
    compose, parse = hydra.compose, OverridesParser.parse_override
    monkeypatch.setattr(hydra, "compose", lambda *args, **named: composed.append(named) or compose(*args, **named))
    monkeypatch.setattr(OverridesParser, "parse_override", lambda self, text: parsed.append(text) or parse(self, text))
    choices._compose.cache_clear()
    overrides.parse_override.cache_clear()
    assert (
        command._main(
            shlex.split(f"sweep=ace/figure2 scale=medium seed=range(0,5) dataset.download=true {words} --plan")
        )
        == 0
    )
    assert capsys.readouterr().out.startswith(f"{runs} runs, ")
    assert len(composed) == compositions  # of the sweep itself, and of each algorithm and delay
    assert len(parsed) == len({*parsed})


def test_runs_in_several_folders_share_a_composition():
    choices._compose.cache_clear()
    assert [compose([f"output_dir={name}"]).root.output_dir for name in ("one", "two")] == ["one", "two"]
    assert choices._compose.cache_info().misses == 1
    placed = compose(["output_dir=three", "hydra.run.dir=${output_dir}/here"])
    assert str(placed.directory) == "three/here"


def test_a_flag_of_hydras_without_a_value_shows_the_first_one(afl_run):
    assert "eta: " in (shown := afl_run("--cfg", "algorithm=asgd").stdout)
    assert shown == afl_run("--cfg", "job", "algorithm=asgd").stdout
    assert (found := afl_run("--info")).returncode == 0 and "Config search path" in found.stdout


def test_every_option_of_the_command_is_in_the_help_text_from_which_options_are_suggested():
    source = Path(command.__file__).read_text(encoding="utf-8")
    flags = {*re.findall('"(--[a-z-]+)"', source), *hydra_flags.FOLDER_FLAGS}
    assert len(flags) > 12 and not flags - {*OPTIONS}
