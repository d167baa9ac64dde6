"""Parts of one's own: from a folder named by hand, and from an installed package."""

import json
import re
import sys
from importlib import metadata

import pytest
import yaml
from tiers import slow

from asyncfl_bench.config import compose, part_sources
from asyncfl_bench.config.choices import choice_file, composition, options
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.multirun.jobs import plan
from asyncfl_bench.papers import paper_pages

GLOBAL = "# @package _global_\n"
RULE = """
from asyncfl_bench.algorithms.asgd import Asgd
class Mine(Asgd):
    '''ASGD under another name.'''
    label = "My rule"
"""
YAML = "# My rule\n_target_: {target}\neta: null # server step > 0\nc: 0.3 # > 0\ntotal_steps: null # T\n"
SWEEP = """# @package _global_
# Mine beside ASGD
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      algorithm: {algorithm},asgd
"""
PAPER = """# @package _global_
# A paper
n_clients: 7 # n
profiles:
  published:
    algorithms:
      my_rule:
        algorithm: {c: 0.7}
"""
PAGES = """
from asyncfl_bench.reports.blocks import Curves
from asyncfl_bench.reports.pages.spec import PageSpec
PAGES = (PageSpec("own/table1", "Own", "shows", ("delay",), (Curves("iteration"),)),)
"""


pytestmark = pytest.mark.usefixtures("forgotten_parts")


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def make_parts(folder):
    """A folder of parts in the current directory, where their class is too."""
    write(folder, {"mine.py": RULE, "parts/algorithm/my_rule.yaml": YAML.format(target="mine.Mine")})
    write(folder, {"parts/sweep/own/two.yaml": SWEEP.format(algorithm="my_rule")})
    write(folder / "parts", {"paper/own.yaml": PAPER, "paper/own/pages.py": PAGES})
    return folder / "parts"


@pytest.fixture
def parts(tmp_path):
    return make_parts(tmp_path)


def compose_parts(folder, files, *words):
    """Compose with a folder of parts in which these files are, too."""
    write(make_parts(folder), files)
    part_sources.use_folders([folder / "parts"])
    return compose(words)


BROKEN = {
    "needs.py": "\nimport not_there\n",
    "typo.py": "def x(:\n",
    "raises.py": "\nraise ValueError('so')\n",
    "leaves.py": "exit(3)\n",
}


def compose_rule(folder, module, target="mine.Mine"):
    """Compose with a class of the module mine or of one that cannot be imported."""
    make_parts(folder)
    write(folder, BROKEN | {"mine.py": module})
    return compose(["algorithm=asgd", f"algorithm._target_={target}"])


SMOKE = f"{GLOBAL}scales:\n  smoke:\n    "


FORGETFUL = "from toy import Forgetful\nclass Mine(Forgetful): pass\n"
LIMITS = (
    "- {rule: my_rule, settings: [], is: asgd, both: [algorithm.eta=0.1], when: always, unless: [UNLESS], to: bits}"
)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that offers parts, as pip leaves it."""
    site = tmp_path / "site"
    entry = f"[{part_sources.ENTRY_POINTS}]\nlab = lab\n"
    write(site, {"lab-1.dist-info/METADATA": "Name: lab\nVersion: 1\n", "lab-1.dist-info/entry_points.txt": entry})
    write(site, {"lab/__init__.py": "", "lab/rule.py": RULE})
    write(site, {"lab/conf/algorithm/labs.yaml": YAML.format(target="lab.rule.Mine")})
    write(site, {"lab/conf/sweep/labs.yaml": SWEEP.format(algorithm="labs")})
    monkeypatch.syspath_prepend(site)
    return site


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--config-dir", "parts"], *slow(["--config-dir=parts"], ["hydra.searchpath=[PARTS]"])]
)
def test_a_rule_of_ones_own_runs_and_is_named_after_its_yaml(words, parts, afl_run):
    words = [word.replace("PARTS", f"file://{parts}") for word in words]
    answer = afl_run(*words, "algorithm=my_rule", "scale=smoke", "model=softmax", "progress=false")
    assert answer.returncode == 0, answer.stderr
    (directory,) = (parts.parent / "runs").iterdir()
    assert directory.name.startswith("my_rule-digits-exp_beta5-seed0-")
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["algorithm"], summary["label"]) == ("my_rule", "My rule")

    from asyncfl_bench.reports.cli import main

    assert main(["runs"]) == 0  # without the folder: what a run is called is in its summary
    assert "| My rule" in (parts.parent / "runs" / "report" / "README.md").read_text()


@pytest.mark.parametrize("words", [["--config-dir", "parts"], *slow(["hydra.searchpath=[PARTS]"])])
def test_a_rule_of_ones_own_is_checked_against_the_contract(words, parts, afl_run, tmp_path):
    write(parts, {"limits.yaml": LIMITS.replace("UNLESS", "algorithm.eta=0.2")})
    words = ["--check", *(word.replace("PARTS", f"file://{parts}") for word in words), "algorithm=my_rule"]
    answer = afl_run(*words, "delay=exponential")
    assert answer.returncode == 0, answer.stdout
    assert [line.partition(" ")[0] for line in answer.stdout.splitlines()] == ["ok"] * 7
    assert "It is asgd: always." in answer.stdout.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir() if path.name == "runs"] == []  # it leaves nothing


@pytest.mark.slow
@pytest.mark.parametrize("words", [["delay=exponential"], *slow([])])
def test_a_check_says_what_a_rule_of_ones_own_does_wrong(words, parts, afl_run):
    write(parts.parent, {"mine.py": FORGETFUL})
    write(parts, {"limits.yaml": LIMITS.replace("UNLESS", "algorithm.eta=0.1")})
    answer = afl_run("--check", "--config-dir", "parts", "algorithm=my_rule", *words)
    assert answer.returncode == 1
    failed = {line[8:26].strip(): line[26:] for line in answer.stdout.splitlines() if line.startswith("failed")}
    assert {*failed} == {"state", "resume", "limit"}
    assert all(problem.endswith("(these attributes differ: velocity_d)") for problem in failed.values())


@pytest.mark.slow
def test_what_a_scale_chooses_for_one_sweep_holds_for_its_runs_on_any_launcher_and_is_shown(parts, afl_run, tmp_path):
    smoke = "scales: {smoke: {instead: {model: softmax, availability: suspension}, n_clients: 6}}\n"
    write(parts, {"sweep/own/two.yaml": SWEEP.format(algorithm="my_rule") + smoke})
    words = ["--config-dir", "parts", "sweep=own/two", "scale=smoke", "algorithm=asgd", "progress=false"]
    of_chosen = "availability.probability=0.25"  # a setting of a part that only the scale chooses
    for launcher in (
        [of_chosen],
        ["hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "seed=1", of_chosen],
        ["hydra/sweeper=basic", "objective=test/accuracy", "-m"],
    ):
        answer = afl_run(*words, *launcher)
        assert answer.returncode == 0, answer.stderr
    made = [yaml.safe_load(path.read_text()) for path in tmp_path.rglob("config.yaml")]
    found = {(one["choices"]["model"], one["n_clients"], one["availability"]["probability"]) for one in made}
    assert found == {("softmax", 6, 0.25), ("softmax", 6, 0.1)}  # 0.1 is the default
    assert "perceptrons.Mlp" not in afl_run(*words, "--cfg", "job").stdout
    assert "perceptrons.Mlp" in afl_run(*words, "model=mlp", "--cfg", "job").stdout


OF_PAPER, OF_SCALE = (f"scales: {{smoke: {{instead: {{model: {name}}}}}}}\n" for name in ("cnn", "lenet5"))
OF_SWEEP = f"{GLOBAL}defaults:\n  - override /paper: own\n  - override /model: softmax\n"


@pytest.mark.parametrize(
    ("paper", "for_scale", "expected"),
    [
        (OF_PAPER, "", "softmax"),
        *slow((OF_PAPER, OF_SCALE, "lenet5"), ("", OF_SCALE, "lenet5"), ("", "", "mlp")),
    ],
)
def test_a_sweeps_choice_wins_over_its_papers_and_that_for_the_scale_over_both(paper, for_scale, expected, parts):
    write(parts, {"paper/own.yaml": GLOBAL + paper, "sweep/own/two.yaml": OF_SWEEP + for_scale})
    part_sources.use_folders([parts])
    assert composition(["sweep=own/two", "scale=smoke"]).config.hydra.runtime.choices.model == expected


def test_a_replaced_part_takes_along_the_settings_that_files_have_for_it(parts):
    sizes = "model: {hidden: [8]}\nclient: {lr: 0.3}\n"
    write(parts, {"paper/own.yaml": f"{GLOBAL}{sizes}scales:\n  smoke: {{instead: {{model: mlp}}}}\n"})
    part_sources.use_folders([parts])
    assert compose(["paper=own", "scale=smoke"]).parts["model"].config.hidden == [8]
    for words in (["paper=own"], ["paper=own", "scale=smoke"]):
        settings = compose([*words, "model=softmax"])
        assert "hidden" not in settings.tree["model"] and settings.parts["client"].config.lr == 0.3
    with pytest.raises(ConfigError, match=r"model.hidden=\[9\]: no such setting of model, except with model="):
        compose(["paper=own", "model=softmax", "model.hidden=[9]"])
    assert compose(["paper=asyncfeded/synthetic", "delay=exponential", "scale=small"])  # its delay has a null there
    short = "_target_: asyncfl_bench.clients.local.LocalTraining\nbatch_size: 7\n"
    write(parts, {"client/short.yaml": short, "client/heir.yaml": "defaults: [sgd]\nbatch_size: 7\n"})
    for name in ("short", "heir"):
        client = compose(["paper=own", f"client={name}"]).parts["client"].config
        assert (client.lr, client.batch_size) == (0.3, 7)
    write(parts, {"paper/wrong.yaml": f"{GLOBAL}model: {{hiddn: [8]}}\n"})
    with pytest.raises(ConfigError, match=r"model.hiddn=\[8\]: is not a setting"):
        compose(["paper=wrong", "model=softmax"])


@pytest.mark.slow
def test_its_sweep_and_its_paper_are_found_too(parts, afl_run):
    words = ["--config-dir", "parts", "sweep=own/two", "scale=smoke", "model=softmax", "progress=false"]
    answer = afl_run(*words)
    assert answer.returncode == 0, answer.stderr
    names = sorted(path.name[:5] for path in (parts.parent / "runs/own/two/published-smoke").glob("*-*"))
    assert names == ["asgd-", "my_ru"]
    part_sources.use_folders([parts])
    settings = compose(["paper=own", "algorithm=my_rule"])
    assert settings.root.n_clients == 7 and settings.parts["algorithm"].config.c == 0.7
    assert "own/table1" in paper_pages() and "ace/figure2" in paper_pages()


def test_help_shows_what_the_folder_has(parts, afl_run):
    shown = afl_run("--help", "--config-dir", "parts").stdout
    assert "my_rule" in shown and str(parts) in shown
    assert "my_rule" not in afl_run("--help").stdout
    assert "algorithm.c=0.3    a number > 0" in afl_run("--help", "algorithm=my_rule", "--config-dir", "parts").stdout


@pytest.mark.slow
def test_an_installed_package_offers_parts_and_is_not_imported_for_a_list(installed, afl_run):
    assert "labs" in options("algorithm") and "lab" not in sys.modules
    assert choice_file("sweep", "labs") == installed / "lab/conf/sweep/labs.yaml"
    assert afl_run("algorithm=labs", "scale=smoke", "model=softmax", "progress=false").returncode == 0
    assert afl_run("sweep=labs", "scale=smoke", "model=softmax", "progress=false").returncode == 0
    assert "from lab: " in afl_run("--help").stdout


def test_installed_packages_are_looked_up_once(installed, monkeypatch):
    looked_up, entry_points = [], metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", lambda **of: looked_up.append(of) or entry_points(**of))
    part_sources._offering_packages.cache_clear()
    assert all([source.label for source in part_sources.part_sources()] == ["asyncfl_bench", "lab"] for _ in range(3))
    assert len(looked_up) == 1


def test_a_package_without_the_folder_is_named_and_left_out(installed, capsys):
    write(installed, {"lab-1.dist-info/entry_points.txt": f"[{part_sources.ENTRY_POINTS}]\nlab = lab.nothing\n"})
    part_sources._offering_packages.cache_clear()
    part_sources._installed_sources.cache_clear()
    assert "labs" not in options("algorithm")
    assert "lab.nothing offers parts, but has no folder conf/; left out" in capsys.readouterr().err


def test_a_class_named_in_the_place_of_the_chosen_one_does_not_run_under_its_name(parts):
    assert compose(["algorithm=asgd", "algorithm._target_=mine.Mine"]).name.startswith("mine-digits-")
    assert compose(["algorithm=asgd"]).name.startswith("asgd-digits-")


def test_an_installed_module_is_not_hidden_by_one_in_the_current_directory(parts):
    write(parts.parent, {"queue.py": "raise RuntimeError('not the standard library')\n"})
    compose(["algorithm=asgd", "algorithm._target_=mine.Mine"])
    assert sys.path.index(str(parts.parent)) == len(sys.path) - 1


LATER = "from __future__ import annotations"
CONFIG = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.ranges import greater_than, at_least, one_of, within
class Mine(Asgd):
    label = "My rule"
    @dataclass
    class Config({base}):
        eta: {eta} = 0.1
"""
BASE = "Asgd.Config"


ROOT = "# @package _global_\n# A file\n"


@pytest.mark.slow
def test_the_name_of_a_choice_in_a_paper_chooses(parts):
    write(parts, {"paper/own.yaml": f"{ROOT}algorithm: fedbuff\nscales: {{smoke: {{dataset: synthetic}}}}\n"})
    part_sources.use_folders([parts])
    settings = compose(["paper=own", "scale=smoke"])
    assert (settings.choices["algorithm"], settings.choices["dataset"]) == ("fedbuff", "synthetic")
    assert compose(["paper=own", "scale=smoke", "algorithm=asgd"]).choices["algorithm"] == "asgd"


@pytest.mark.slow
@pytest.mark.parametrize("given", ["", *slow("algorithm: {eta: 0.1}\n")])
def test_the_name_of_a_choice_in_a_sweep_chooses_and_a_sweep_is_a_multirun(given, parts, afl_run):
    axis = "hydra: {sweeper: {params: {n_clients: '7,8'}}}\n"  # without `mode: MULTIRUN`
    write(parts, {"sweep/own/two.yaml": f"{ROOT}delay: none\nmodel: softmax\n{given}{axis}"})
    answer = afl_run("--config-dir", "parts", "sweep=own/two", "algorithm=asgd", "--plan")
    assert answer.returncode == 0 and answer.stdout.startswith("2 runs, "), answer.stderr
    jobs = plan(["sweep=own/two", "algorithm=asgd"])
    assert [(job.settings.choices["delay"], job.settings.choices["model"]) for job in jobs] == [("none", "softmax")] * 2


@pytest.mark.parametrize("folder", ["parts", "."])
def test_modules_inside_and_beside_the_folder_are_found(folder, parts, tmp_path, monkeypatch):
    (tmp_path / "mine.py").rename(parts.parent / folder / "lab.py")
    write(parts, {"algorithm/my_rule.yaml": YAML.format(target="lab.Mine")})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with part_sources.using_folders([parts]):
        assert compose(["algorithm=my_rule"]).parts["algorithm"].target.__module__ == "lab"


def test_pages_of_a_paper_import_modules_beside_the_folder(parts):
    write(parts, {"lab.py": "TITLE = 'Own'\n", "paper/own/pages.py": "from lab import TITLE\n" + PAGES})
    part_sources.use_folders([parts])
    assert paper_pages()["own/table1"].title == "Own"


def test_text_that_is_not_utf_8_is_answered_where_it_is_chosen_and_shown_elsewhere(parts, afl_run):
    (parts / "algorithm/latin.yaml").write_bytes(b"# d\xe9j\xe0\nc: 1\n")
    answer = afl_run("--config-dir", "parts", "algorithm=latin")
    assert answer.returncode == 2 and "algorithm/latin.yaml: cannot be read: 'utf-8' codec" in answer.stderr
    assert "latin" in afl_run("--config-dir", "parts", "--help", "algorithm").stdout


RAISES = RULE + "    def {method}:\n        return {{}}['nothing'], super().__init__, super().start\n"


@pytest.mark.parametrize(("act", "kind"), [("{}['nothing']", "KeyError"), ("exit('nothing')", "SystemExit")])
def test_an_exception_of_a_rule_names_its_line_and_the_stack_trace(act, kind, parts, afl_run):
    text = RAISES.format(method="receive(self, upload)").replace("{}['nothing']", act)
    write(parts.parent, {"mine.py": text})
    words = ("--config-dir", "parts", "algorithm=my_rule", "scale=smoke", "model=softmax", "progress=false")
    answer = afl_run(*words)
    said = re.search(rf"failed: {kind}: '?nothing'? \(mine.py, line 7\); stack trace in (\S+)\n$", answer.stdout)
    assert answer.returncode == 1 and said, answer.stdout
    assert kind in (parts.parent / said[1]).read_text()


@pytest.mark.slow
def test_a_check_names_the_line_of_an_exception(parts, afl_run):
    text = RAISES.format(method="receive(self, upload)").replace("{}['nothing']", "exit('nothing')")
    write(parts.parent, {"mine.py": text})
    failed = afl_run("--check", "--config-dir", "parts", "algorithm=my_rule", "delay=exponential").stdout
    assert "SystemExit: nothing (mine.py, line 7)" in failed


@pytest.mark.parametrize("method", ["__init__(self, config)", *slow("start(self, *given)")])
def test_an_exception_before_the_run_begins_names_its_line(method, parts, afl_run):
    write(parts.parent, {"mine.py": RAISES.format(method=method)})
    words = ("--config-dir", "parts", "algorithm=my_rule", "scale=smoke", "model=softmax", "progress=false")
    answer = afl_run(*words)
    assert answer.returncode == 2 and answer.stderr == "afl-run: mine.py, line 7: KeyError: 'nothing'\n"
    assert not (parts.parent / "runs").exists()
