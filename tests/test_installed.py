"""The package works from a wheel, away from the repository: conf/ and sweeps/ travel with it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.process]

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_every_yaml_once(unpacked):
    def names(folder):
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.y*ml"))

    for folder in ("conf", "sweeps"):
        assert names(unpacked / "asyncfl_bench" / folder) == names(ROOT / folder) != []


def test_the_wheel_holds_every_file_of_the_package(unpacked):
    def files(package):
        found = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
        return {path for path in found if not {"__pycache__", "conf", "sweeps", "results"} & {*path.parts}}

    own = files(ROOT / "src" / "asyncfl_bench")
    assert files(unpacked / "asyncfl_bench") == own
    assert {".py", ".csv", ".yaml", ".js"} <= {path.suffix for path in own}  # numbers, claims, a page
    assert (unpacked / "asyncfl_bench" / "py.typed").exists()
    bank = unpacked / "asyncfl_bench" / "results" / "bank"
    assert sorted(path.name for path in bank.iterdir()) == ["chosen.yaml", "judged.csv", "targets.csv"]


def test_a_run_works_from_the_wheel_in_another_folder(unpacked, tmp_path):
    # -P and an explicit path: the repository, installed in editable mode, must not be what answers
    program = f"""
import sys
sys.path.insert(0, {str(unpacked)!r})
import asyncfl_bench
assert asyncfl_bench.__file__.startswith({str(unpacked)!r})
from asyncfl_bench.cli.command import _main
small = ["scale=smoke", "model=softmax"]
code = _main(["--help"]) or _main(["sweep=ace/figure2", "scale=medium", "dataset.download=true", "--plan"])
code = code or _main(small) or _main(["sweep=quickstart/six_algorithms", "seed=0", *small])
from asyncfl_bench.reports.cli import main
sys.exit(code or main(["runs"]) or len(asyncfl_bench.load_bank()) % 14)
"""
    answer = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "60 runs, 0 of them finished" in answer.stdout
    assert "\nno archives in results, an installed wheel carries none; --archive DIR names" in answer.stdout
    assert len(list((tmp_path / "runs/quickstart/six_algorithms/published-smoke").glob("*/summary.json"))) == 5
    assert len(list((tmp_path / "runs").glob("*/summary.json"))) == 1  # ACE's, which the sweep need not run again
    assert "delay-adaptive ASGD" in (tmp_path / "runs" / "report" / "README.md").read_text()


def test_the_declared_version_is_that_of_the_package():
    import asyncfl_bench
    from asyncfl_bench.experiment.machine import versions

    assert versions()["asyncfl_bench"] == asyncfl_bench.__version__
