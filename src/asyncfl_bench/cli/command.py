"""The command ``afl-run``: argument handling only. torch is imported after the settings are known to be valid."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..config.composition import asks_for_multirun, chosen_config, compose, expand_overrides, refuse_listed_axis
from ..config.overrides import parse_override, quote_override
from ..config.part_sources import take_folders
from ..config.settings import RootConfig
from ..errors import EXIT_INTERRUPTED, BenchError, ConfigError, InputError
from ..experiment.stopping import end_soon, hurried, stopping_signals
from ..files import expand_home, say, show, to_json_types
from ..multirun import launchers, pending
from ..multirun.axes import SHORT
from ..multirun.decide_words import split_request
from ..multirun.jobs import output_folders, settings_of
from ..multirun.run import closing_line, plan_multirun
from .hydra_flags import FOLDER_FLAGS, HYDRA_FLAGS, run_hydra_flags, unknown_option
from .json_objects import Fields, describe_checks, describe_looks, describe_multirun, describe_plan, describe_run
from .listing import list_runs

if TYPE_CHECKING:
    from ..config import Settings
    from ..experiment import RunResult

_UNREAD = (errno.EPIPE, errno.ENOSPC, errno.EIO)
_JSON = "--json"
_WITHOUT_JSON = (
    *HYDRA_FLAGS,
    *("-h", "--help", "--version", "--sync", "--import-fleet", "--live-app", "--replay", "--repeat"),
)


class JsonObject:
    """The fields that a command adds to its object. is_wanted: the command has ``--json``."""

    def __init__(self, is_wanted: bool):
        self.is_wanted = is_wanted
        self.fields: Fields = {}

    def add(self, describe: Callable[..., Fields], *described: Any) -> None:
        """Add what ``describe(*described)`` returns, if the object is wanted."""
        if self.is_wanted:
            self.fields |= describe(*described)


def main() -> None:
    """Run the command, with its modules loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads sleep instead of spinning
    for number in stopping_signals():
        signal.signal(number, _handle_stop_signal)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without … still gets its text
    try:
        code = _main(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNREAD or error.filename is not None:
            raise
        # the reader of the output left, or it cannot be written: the runs themselves are on disk
        if error.errno == errno.EPIPE:
            code = 0
        else:
            say(f"afl-run: standard output: {error.strerror}")
            code = 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:  # else Python's own end would fail at it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    if hurried.is_set():
        os._exit(code)
    for number in stopping_signals():  # all is done but Python's own end, which may take a while
        signal.signal(number, lambda number, frame: os._exit(code))
    sys.exit(code)


def _handle_stop_signal(number, frame):
    """Let jobs in other processes save themselves at the first Ctrl-C or SIGTERM; do not wait at the second."""
    if pending.state.stopped:
        end_soon()
    else:
        pending.state.stopped = True
        launchers.let_workers_save(launchers.worker_processes(), pending.has_active_runs)
    raise KeyboardInterrupt


def _main(arguments: list[str]) -> int:
    """Run the command and return its exit code. With ``--json`` standard output has one object and nothing else."""
    json_object = JsonObject(is_wanted=_JSON in arguments)
    if not json_object.is_wanted:
        return _run_command(arguments, json_object)
    with redirect_stdout(sys.stderr):
        code = _run_command([text for text in arguments if text != _JSON], json_object)
    show(json.dumps(to_json_types({"exit_code": code, **json_object.fields})))
    return code


def _run_command(arguments: list[str], json_object: JsonObject) -> int:
    try:
        if json_object.is_wanted and (other := [text for text in arguments if text.partition("=")[0] in _WITHOUT_JSON]):
            raise InputError(f"{_JSON}: does not go with {other[0]}; leave out one of the two")
        if "--version" in arguments:
            show(f"afl-run {__version__}")
            return 0
        _check_folder()
        arguments = take_folders(arguments)
        if any(a in ("-h", "--help") for a in arguments):
            from ..config import manual

            words = [a for a in arguments if not a.startswith("-")]
            show(manual.describe_choices(words) if words else manual.overview())
            return 0
        if arguments[:1] == ["--sync"]:
            from ..tracking.trackers_sync import send_offline_runs

            return send_offline_runs(arguments[1:] or ["runs"])
        others = {
            "--import-fleet": _import_fleet,
            "--replay": _replay_run,
            "--repeat": _repeat_run,
            "--live-app": _write_live_app,
        }
        flag, _, name = arguments[0].partition("=") if arguments else ("", "", "")
        names = [name] * bool(name) + arguments[1:]
        if flag in others:
            return others[flag](flag, names)
        if flag == "--list":
            return list_runs(flag, names, json_object.add)
        if "--check" in arguments:
            return _check_contract([a for a in arguments if a != "--check"], json_object)
        if any(a in HYDRA_FLAGS for a in arguments):
            return run_hydra_flags(arguments)
        planned, measured = "--plan" in arguments, "--measure" in arguments
        if measured and not planned:
            raise InputError("--measure goes with --plan")
        multirun, overrides = _split_arguments([a for a in arguments if a not in ("--plan", "--measure")])
        multirun = multirun or asks_for_multirun(overrides)
        if not multirun and any(parse_override(text).section == "decide" for text in overrides):
            allowed = "goes with a multirun: afl-run -m algorithm=ace,mine decide=true, or a sweep"
            raise ConfigError("decide", "true", allowed)
        if planned:
            return _show_plan(overrides, measured, json_object)
        if multirun:
            return _run_multirun(overrides, json_object)
        return _run_single(overrides, json_object)
    except BenchError as error:
        code, problem = error.exit_code, str(error)
    except OSError as error:
        if error.filename is None:
            raise
        code, problem = 1, f"{error.filename}: {error.strerror}"
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
        problem = "interrupted; run the same command again to resume (from the last checkpoint, if there is one)"
    say(f"afl-run: {problem}")
    json_object.fields["error"] = problem
    return code


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError:
        raise ConfigError("afl-run", "", "the current directory is no longer there; change into another one") from None


def _split_arguments(arguments: list[str]) -> tuple[bool, list[str]]:
    """Return (-m given, overrides). ``--resume DIR`` means ``resume=DIR``, ``--archive DIR`` ``archive_dir=DIR``."""
    multirun, overrides = False, []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-m", "--multirun"):
            multirun = True
        elif (flag := word.partition("=")[0]) in FOLDER_FLAGS:
            key, what = FOLDER_FLAGS[flag]
            value = word.partition("=")[2] or (rest.pop(0) if rest else "")
            if not value or value.startswith("-"):
                raise ConfigError(key, value, f"must name {what}: afl-run {flag} DIR")
            if flag == "--archive" and not expand_home(value, flag).is_dir():
                raise ConfigError(flag, value, "no such folder; name one with archives of runs (*.parquet)")
            overrides.append(quote_override(key, value))
        elif word.startswith("-"):
            raise unknown_option(word, rest)
        elif "=" not in word and not word.startswith("~"):
            raise ConfigError(word, "", "must be written key=value, for example algorithm=ace")
        else:
            overrides.append(word)
    return multirun, expand_overrides(overrides)


def _check_single_run(overrides: list[str]) -> None:
    """Raise ConfigError for overrides that are valid only in a multirun."""
    for one in map(parse_override, overrides):
        refuse_listed_axis(one)
        if one.several:
            how = "is a list of values: afl-run -m runs them all"
            if one.draw is not None:
                how = "is a range: afl-run -m ... trials=16 draws values from it"
            raise ConfigError(one.key, ",".join(one.values), how)
        if one.key in SHORT:
            raise ConfigError(one.key, one.text.partition("=")[2], "goes with a search: afl-run sweep=tune, or -m")


def _run_single(overrides: list[str], json_object: JsonObject) -> int:
    _check_single_run(overrides)
    result = _execute(compose(overrides))
    json_object.add(describe_run, result)
    return result.exit_code


def _replay_run(flag: str, names: list[str]) -> int:
    """Run the replay of a live run; print and note whether it gives the same bits. Returns 1 if it does not."""
    if len(names) != 1 or names[0].startswith("-"):
        raise ConfigError(flag, " ".join(names), f"must name one run directory: afl-run {flag} DIR")
    from ..experiment.replay import compare_result, note_comparison, replay_settings

    settings = replay_settings(names[0])
    result = _execute(settings)
    if result.signal is not None:
        return result.exit_code
    live = expand_home(names[0], flag)
    comparison = compare_result(live, result)
    show(comparison)
    note_comparison(live, comparison, settings.identity)
    return 1 if comparison.difference else 0


def _repeat_run(flag: str, names: list[str]) -> int:
    """Run an archived run again and print whether it gives the same numbers. Returns 1 if it does not."""
    overrides = [word for word in names if "=" in word]
    names = [word for word in names if word not in overrides]
    if len(names) != 2 or any(word.startswith("-") for word in (*names, *overrides)):
        example = f"afl-run {flag} results/ace/archive 5b1a564a data_dir=DIR"
        raise ConfigError(flag, " ".join(names), f"must name an archive and the identity of a run: {example}")
    from ..experiment.replay import compare_repetition, find_archived_run, settings_to_repeat

    archive, identity = names
    record = find_archived_run(archive, identity)
    result = _execute(settings_to_repeat(record, archive, overrides))
    if result.signal is not None:
        return result.exit_code
    repetition = compare_repetition(record, result)
    show(repetition)
    return 1 if repetition.difference else 0


def _execute(settings: Settings) -> RunResult:
    """Run and print the closing line."""
    from ..experiment import execute  # imports torch once settings and data are checked

    result = execute(settings, ends_process=True)
    show(closing_line(result, settings.time_unit))
    return result


def _write_live_app(flag: str, names: list[str]) -> int:
    """Write the app of a live run for Flower, and print how to start it."""
    name, *words = names or [""]
    if not name or "=" in name or name.startswith("-"):
        raise ConfigError(flag, name, f"must name a folder: afl-run {flag} FOLDER algorithm=ca2fl n_clients=4")
    multirun, overrides = _split_arguments(words)
    if multirun:
        raise InputError(f"{flag}: writes one run; leave out -m")
    _check_single_run(overrides)
    given = [one.value for one in map(parse_override, overrides) if one.key == "live"] or ["flower"]
    if given != ["flower"]:
        raise ConfigError("live", given[-1], f"must be flower with {flag}, or left out")
    overrides = ["live=flower", *(word for word in overrides if parse_override(word).key != "live")]
    settings = compose(overrides)
    from . import live_app

    show(live_app.write(expand_home(name, flag), overrides, settings.root.n_clients))
    return 0


def _import_fleet(flag: str, names: list[str]) -> int:
    """Write a fleet file of FedScale or FLASH as a file of ours, and print what was written."""
    from ..simulation.foreign_fleets import import_fleet  # brings NumPy

    if len(names) != 1 or not names[0]:
        raise ConfigError(flag, " ".join(names), f"must name one file: afl-run {flag} FILE")
    try:
        show(import_fleet(names[0]))
    except MemoryError:
        raise InputError(f"{names[0]}: has more clients than fit in memory") from None
    return 0


def _run_multirun(overrides: list[str], json_object: JsonObject) -> int:
    request, overrides = split_request(overrides)
    if request is None:
        from ..multirun.stages import run_multirun  # brings NumPy

        code = run_multirun(overrides)
    else:
        from ..multirun.decide import Looks  # brings pandas

        looks = Looks(request, overrides)
        code = looks.run()
        json_object.add(describe_looks, looks)
    json_object.add(lambda: describe_multirun(pending.state.planned, pending.results()))
    return code


def _check_contract(arguments: list[str], json_object: JsonObject) -> int:
    """Check a rule against the contract, and print a line for each check. Returns 1 if the rule breaks the contract."""
    if other := [text for text in arguments if text in ("--plan", "--measure")]:
        raise InputError(f"--check: does not go with {other[0]}; leave out one of the two")
    multirun, overrides = _split_arguments(arguments)
    keys = {parse_override(text).key for text in overrides}
    if multirun or "algorithm" not in keys or keys & {"resume", "sweep", "live"}:
        raise InputError("--check: checks one rule; name it, with settings if need be: afl-run --check algorithm=mine")
    _check_single_run(overrides)
    compose(overrides)
    from ..experiment.contract import check_rule  # torch comes in here, the settings are known to be valid

    checks = []
    for name, problem, what in check_rule(overrides):
        show(f"{'failed' if problem else 'ok':<8}{name:<18}{problem or what}")
        checks.append((name, problem, what))
    json_object.add(describe_checks, checks)
    return int(any(problem for _, problem, _ in checks))


def _show_plan(overrides: list[str], measured: bool, json_object: JsonObject) -> int:
    from ..experiment.preflight import Preflight
    from ..multirun.preview import preview_jobs
    from ..multirun.probe import measure_seconds, try_to_build
    from ..multirun.stages import StagedSearch, stages_or_none

    request, overrides = split_request(overrides)
    stages = stages_or_none(overrides) if request is None else None
    jobs = plan_multirun(overrides)[0] if request is None and stages is None else []
    output_dirs = [Path(RootConfig.output_dir), *output_folders(settings_of(jobs))]
    hydra = chosen_config(overrides).hydra

    def measure_settings(settings: Settings) -> float | None:
        say(f"trying {' on '.join(settings.choices[group] for group in ('algorithm', 'dataset'))} for some seconds")
        return measure_seconds(settings)

    measure, preflight = measure_settings if measured else None, Preflight(try_to_build)
    if request is not None:
        from ..multirun.decide import Looks  # brings pandas

        looks = Looks(request, overrides)
        show(looks.plan(measure, preflight))
        json_object.add(describe_looks, looks)
    elif stages is not None:
        text = StagedSearch(overrides, stages).plan(measure, preflight)
        show(text)
        json_object.add(lambda: {"notes": text.splitlines()})
    else:
        launcher = hydra.launcher if launchers.shares_gpu(hydra) else None
        workers = launchers.workers_of(hydra)
        preview = preview_jobs(jobs, output_dirs, workers, measure, preflight, launcher)
        show(preview)
        json_object.add(describe_plan, preview)
    return 2 if preflight.checked and not preflight.passed else 0
