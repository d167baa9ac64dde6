"""Settings for all tests: one thread, no account, nothing written outside the test's own folder."""

import logging
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.pop("ASYNCFL_BENCH_DATA", None)

import gc
import shlex
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

torch.set_num_threads(1)
gc.set_threshold(50_000, 20, 100)  # the heap of a whole session is large, and each full collection walks it


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """Compiled ones are kept here: to compile takes seconds."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, kernels, monkeypatch):
    """Runs go to the test's folder, and no test sees another's home, nor the archives of the checkout."""
    monkeypatch.setattr("asyncfl_bench.tracking.archive.checkout_directory", lambda: None)
    monkeypatch.setattr("asyncfl_bench.config.part_sources._by_hand", [])  # folders that another test named
    monkeypatch.setenv("XDG_CACHE_HOME", str(kernels))
    monkeypatch.setattr("asyncfl_bench.experiment.preflight.SECONDS_TO_ANNOUNCE", 60.0)  # this machine may be busy
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_CONFIG_DIR", "NETRC"):  # tests stream nothing
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no power is cut here, and the disk may be slow


@pytest.fixture
def afl_run(monkeypatch, capsys):
    """``afl_run(*words)``: the command in this process, as its entry point runs it; a tenth of a new process's time.

    Returns what ``subprocess.run`` does: ``returncode``, ``stdout``, ``stderr``.
    """
    from hydra.core.global_hydra import GlobalHydra

    from asyncfl_bench import cli
    from asyncfl_bench.multirun import pending

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["afl-run", *words])
        monkeypatch.setattr(pending, "state", pending.SweepState())
        logger = logging.getLogger()  # hydra's --info shows the messages of all loggers from then on
        before = logger.level, [*logger.handlers]
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        capsys.readouterr()
        try:
            cli.main()
        except SystemExit as end:
            return subprocess.CompletedProcess(words, end.code, *capsys.readouterr())
        finally:
            GlobalHydra.instance().clear()
            logger.level, logger.handlers = before
            logger.manager._clear_cache()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        raise AssertionError("the command ended without an exit code")

    return call


@pytest.fixture
def forgotten_parts(monkeypatch):
    """No test names folders of parts, or imports modules of a user, for another."""
    monkeypatch.setattr("asyncfl_bench.config.part_sources._by_hand", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in ("mine", "lab"):
            del sys.modules[name]


@pytest.fixture
def answer(monkeypatch, afl_run):
    """``answer(command)``: of the command, and the settings and jobs that it would run or launch, noted instead."""
    from asyncfl_bench import experiment
    from asyncfl_bench.cli import command
    from asyncfl_bench.multirun import pending

    noted = SimpleNamespace(settings=None, planned=[])

    def run(settings, group=None, **more):
        noted.settings = settings
        return SimpleNamespace(exit_code=0)

    def launch(arguments):
        noted.planned = list(pending.state.planned)
        return 0

    monkeypatch.setattr(experiment, "execute", run)
    monkeypatch.setattr(command, "closing_line", lambda *result: "")
    monkeypatch.setattr("asyncfl_bench.multirun.run.run_hydra", launch)
    return lambda text: (afl_run(*shlex.split(text)), noted)


@pytest.fixture
def afl_process():
    """``afl_process(*words)``: the same in a process of its own, for what only that shows (mark the test `process`)."""

    def call(*words):
        command = [sys.executable, "-m", "asyncfl_bench", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    return call
