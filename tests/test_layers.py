"""Rules of the house, kept by tests."""

import ast
import importlib
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from asyncfl_bench.cli import command
from asyncfl_bench.config import Settings, options

PACKAGE = Path(__file__).parents[1] / "src" / "asyncfl_bench"
ROOT = PACKAGE.parents[1]
TASK = ("data", "kernels", "models")  # the last one imports the others
LAYERS = ("algorithms", "clients", "simulation", *TASK)
MAX_ROOT_MODULES = 8  # beside the folders


@cache
def imports_of(path: Path) -> set[str]:
    """Sub-packages of asyncfl_bench that a module imports."""
    found, depth = set(), len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asyncfl_bench."):
            found.add(node.module.split(".")[1])
    return found


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, a folder's __init__ by the folder's."""
    files = {path.relative_to(PACKAGE.parent).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in files.items()}


def imported_modules(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Those of ``known`` that a module imports, inside functions and for types alone too."""
    tree = ast.parse(path.read_text())
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parents, *(node.module or "").split(".")]).strip(".")
            whole = [f"{source}.{alias.name}" for alias in node.names]
            names += [module if module in known else source for module in whole]
    return {module for module in names if module in known}


@cache
def imports_by_module() -> dict[str, set[str]]:
    known = modules()
    return {name: imported_modules(name, path, known) - {name} for name, path in known.items()}


def test_only_the_parts_of_a_run_and_their_builder_know_live_runs():
    inside = {name for name in imports_by_module() if name.startswith("asyncfl_bench.live")}
    users = {name for name, imported in imports_by_module().items() if imported & inside} - inside
    assert users == {"asyncfl_bench.experiment.build", "asyncfl_bench.experiment.components"}
    used = set().union(*(imports_by_module()[name] for name in inside))
    assert not [name for name in used if name.split(".")[1:2] in (["experiment"], ["cli"], ["algorithms"])]


def test_flower_is_imported_by_its_two_apps_alone():
    folder = PACKAGE / "live" / "flower"
    users = {path for path in PACKAGE.rglob("*.py") if re.search(r"^ *(from|import) flwr", path.read_text(), re.M)}
    assert users == {folder / "client_app.py", folder / "server_app.py"}


def test_all_text_is_printed_by_the_two_functions_that_clean_it():
    paths = [path for path in PACKAGE.parent.rglob("*.py") if path != PACKAGE / "files.py"]
    assert not [path for path in paths if re.search(r"(?<![\w.])print\(", path.read_text())]


def test_no_modules_import_each_other_in_a_circle():
    left = dict(imports_by_module())
    assert left["asyncfl_bench.experiment.execute"] >= {"asyncfl_bench.experiment.build", "asyncfl_bench.errors"}
    assert "asyncfl_bench.storage" in left["asyncfl_bench.algorithms.needs"]  # for a type alone
    while leaves := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in leaves:
            del left[name]
    assert not {name: imported & left.keys() for name, imported in left.items()}


def is_text_in_the_locale(call: ast.Call) -> bool:
    """Whether it reads or writes text in the encoding of the user's locale."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    method = isinstance(call.func, ast.Attribute)  # of a path, whose mode comes first
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    modes = [*call.args[1 - method : 2 - method], *([given["mode"]] if "mode" in given else [])]
    values = [str(mode.value) for mode in modes if isinstance(mode, ast.Constant)]
    opens = name == "open" and len(values) == len(modes) and "b" not in "".join(values)
    text = method and name in ("read_text", "write_text")
    return "encoding" not in given and (opens or text or "text" in given)


def test_text_is_read_and_written_in_utf_8_whatever_the_locale():
    wrong = ["open(p)", "open(p, 'w')", "p.open()", "p.open('a')", "p.read_text()", "run(c, text=True)"]
    right = ["open(p, 'rb')", "p.open('ab')", "p.open(encoding=u)", "write_text(p, s)", "p.read_text(encoding=u)"]
    assert [is_text_in_the_locale(ast.parse(code, mode="eval").body) for code in wrong + right] == [True] * 6 + [
        False
    ] * 5
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")):
        if re.search(r"open\(|_text\(|text=", text := path.read_text(encoding="utf-8")):  # parsing takes longer
            calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            assert not [f"{path.name}:{call.lineno}" for call in calls if is_text_in_the_locale(call)]


def test_few_modules_are_in_the_root_of_the_package():
    assert len({path.name for path in PACKAGE.glob("*.py")} - {"__main__.py"}) <= MAX_ROOT_MODULES


def test_a_run_knows_nothing_of_how_it_was_composed_or_of_the_sweep_it_is_in():
    planning = {"cli", "reports", "multirun"}
    for path in (PACKAGE / "experiment").glob("*.py"):
        assert not imports_of(path) & planning, path.name


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_do_not_import_each_other_but_models_import_data_and_kernels(layer):
    allowed = {layer, *(TASK if layer == "models" else ())}
    for path in (PACKAGE / layer).rglob("*.py"):
        assert not imports_of(path) & (set(LAYERS) - allowed), path.name


def test_the_python_interface_does_not_import_the_command():
    assert "multirun" in imports_of(PACKAGE / "api" / "calls.py")
    for path in (PACKAGE / "api").glob("*.py"):
        assert "cli" not in imports_of(path), path.name


def test_only_the_composition_root_knows_all_parts():
    for layer in (*LAYERS, "tracking", "reports", "diagnostics"):
        for path in (PACKAGE / layer).rglob("*.py"):
            assert not imports_of(path) & {"experiment", "cli"}, path.name


def test_pages_are_made_without_knowing_their_blocks_or_the_browser():
    rooms = {"pages": {"blocks", "browser"}, "blocks": {"browser"}, "browser": {"blocks"}}
    for name, imported in imports_by_module().items():
        room = name.split(".")[2:3] if name.startswith("asyncfl_bench.reports.") else []
        unknown = {f"asyncfl_bench.reports.{other}" for other in (rooms.get(room[0], ()) if room else ())}
        assert not {".".join(module.split(".")[:3]) for module in imported} & unknown, name


def test_server_rules_never_ask_for_the_clock_the_data_or_the_tracker():
    for path in (PACKAGE / "algorithms").rglob("*.py"):
        assert imports_of(path) <= {"errors", "randomness", "ranges", "stateful", "storage", "types"}, path.name


@pytest.mark.parametrize("name", options("algorithm"))
def test_every_algorithm_has_its_file_test_and_docstring(name):
    source = (PACKAGE / "algorithms" / f"{name}.py").read_text()
    for word in ("Rule ", "Upload ", "State ", "Limits ", "arXiv"):
        assert word in source, f"{name}: the docstring lacks {word!r}"
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "algorithms").glob("test_*.py"))
    assert name in tests


def test_scripts_import_names_that_exist():
    for path in (ROOT / "scripts").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asyncfl_bench"):
                module = importlib.import_module(str(node.module))
                for name in (alias.name for alias in node.names if not hasattr(module, alias.name)):
                    importlib.import_module(f"{node.module}.{name}")


def test_the_road_of_a_run_is_short(monkeypatch, tmp_path):
    """From the command to ``build_run``: few modules, and few functions that are handed the whole Settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asyncfl_bench.experiment.build.build_run", lambda settings: pytest.fail("reached"))
    source, handed, entered, imports = f"{PACKAGE.parent}/", set(), set(), 0

    def record(frame, event, _):
        nonlocal imports
        code = frame.f_code
        if code.co_name == "<module>":  # classes and their decorators are built in it
            imports += {"call": 1, "return": -1}.get(event, 0)
        if event != "call" or imports or not code.co_filename.startswith(source):
            return
        module = code.co_filename.removeprefix(source).removesuffix(".py").removeprefix(f"{PACKAGE.name}/")
        entered.add(module)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(isinstance(frame.f_locals.get(name), Settings) for name in arguments if name != "self"):
            handed.add(f"{module}.{code.co_name}")

    sys.setprofile(record)
    try:
        with pytest.raises(pytest.fail.Exception, match="reached"):
            command._main(["dataset=synthetic", "model=softmax", "n_clients=5", "progress=false"])
    finally:
        sys.setprofile(None)
    # the other modules are shared code and the chosen parts
    road = {name for name in entered if name.partition("/")[0] in ("cli", "config", "experiment", "multirun")}
    assert {"config/resolve.resolve", "experiment/preflight.check"} < handed
    assert {"config/check", "experiment/execute", "hydra_plugins/asyncfl_groups", "types"} < entered
    assert len(handed) <= 14, sorted(handed)
    assert len(road) <= 14, sorted(road)
    assert len(entered) <= 41, sorted(entered)
