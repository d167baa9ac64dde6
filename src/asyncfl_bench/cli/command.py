"""The command ``afl-run``: argument handling only. torch is imported after the settings are known to be valid."""

from __future__ import annotations

import errno
import math
import os
import shlex
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import __version__
from ..config import places
from ..config.choices import INSTEAD, SWEEP_INSTEAD, groups, hydra_config, instead
from ..config.composition import Compositions, check_composed, check_one_word, compose, plain, replace_limits
from ..config.settings import RootConfig
from ..config.words import quoted, word
from ..errors import EXIT_INTERRUPTED, BenchError, ConfigError, InputError
from ..experiment.stopping import end_soon, hurried, stopping_signals
from ..files import say
from ..multirun import launchers, pending, search
from ..multirun.jobs import Job, asks_for_multirun, check_chosen, placed, plan, sweep_name

if TYPE_CHECKING:
    from ..config import Settings
    from ..experiment import RunResult

_UNREAD = (errno.EPIPE, errno.ENOSPC, errno.EIO)
HYDRA_FLAGS = (
    "--cfg",
    "-c",
    "--info",
    "-i",
    "--shell-completion",
    "-sc",
    "--hydra-help",
    "--resolve",
    "--package",
    "-p",
)


def main() -> None:
    """The command, its modules loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads sleep instead of spinning
    for number in stopping_signals():
        signal.signal(number, _stopped)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without … still gets its text
    try:
        code = _main(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNREAD or error.filename is not None:
            raise
        # nobody reads what is printed, or it cannot be written: the runs themselves are on disk
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


def _stopped(number, frame):
    """The first Ctrl-C or SIGTERM lets jobs in other processes save themselves; a second one does not wait."""
    if pending.state.stopped:
        end_soon()
    else:
        pending.state.stopped = True
        launchers.let_workers_save(launchers.workers_of_joblib(), pending.under_way)
    raise KeyboardInterrupt


def _main(arguments: list[str]) -> int:
    if "--version" in arguments:
        print(f"afl-run {__version__}")
        return 0
    try:
        _check_folder()
        arguments = _with_places(arguments)
        if any(a in ("-h", "--help") for a in arguments):
            from ..config import manual

            words = [a for a in arguments if not a.startswith("-")]
            print(manual.about(words) if words else manual.overview())
            return 0
        if arguments[:1] == ["--sync"]:
            from ..tracking.trackers_sync import send_offline_runs

            return send_offline_runs(arguments[1:] or ["runs"])
        if "--check" in arguments:
            return _check([a for a in arguments if a != "--check"])
        if any(a in HYDRA_FLAGS for a in arguments):
            if {"-m", "--multirun"} & set(arguments) and {"--cfg", "-c", "--info", "-i"} & set(arguments):
                raise ConfigError("-m", "", "does not go with --cfg or --info, which show one run's settings")
            if {"-sc", "--shell-completion"} & set(arguments):
                _complete_places()
            if any(a in ("--cfg", "-c", "--info", "-i") for a in arguments):
                words = [a for a in arguments if "=" in a and not a.startswith("-")]
                Compositions().settings(words)
                arguments = [*(a for a in arguments if a not in words), *instead(words), *words]
            return _hydra(arguments)
        planned, measured = "--plan" in arguments, "--measure" in arguments
        if measured and not planned:
            raise InputError("--measure goes with --plan")
        multirun, overrides = _split([a for a in arguments if a not in ("--plan", "--measure")])
        if planned:
            return _show_plan(overrides, measured)
        if multirun or asks_for_multirun(overrides):
            return run_all(overrides)
        return _single(overrides)
    except BenchError as error:
        say(f"afl-run: {error}")
        return error.exit_code
    except OSError as error:
        if error.filename is None:
            raise
        say(f"afl-run: {error.filename}: {error.strerror}")
        return 1
    except KeyboardInterrupt:
        say("afl-run: stopped; the same command begins anew, or goes on from its last checkpoint")
        return EXIT_INTERRUPTED


def _with_places(arguments: list[str]) -> list[str]:
    """Notes the folders of parts that are named (``--config-dir DIR``, ``hydra.searchpath=[…]``); returns the rest."""
    folders, rest, left = [], [], list(arguments)
    while left:
        one = left.pop(0)
        flag, given, folder = one.partition("=")
        if flag in (places.BY_HAND, "-cd"):
            if not given and (not left or left[0].startswith("-")):
                raise ConfigError(places.BY_HAND, None, "must name a folder: afl-run --config-dir DIR algorithm=mine")
            folders.append(folder if given else left.pop(0))
        elif flag == "hydra.searchpath":
            folders += places.searched(word(one).value)
        else:
            rest.append(one)
    places.use(folders)
    return rest


def _complete_places() -> None:
    """The line to be completed as Hydra knows it: without our own options, whose folders are noted."""
    command, *words = os.environ.get("COMP_LINE", "").split(" ")
    with suppress(ConfigError):  # an option half written
        words = [text for text in _with_places(words) if text not in ("--plan", "--measure", "--resume", "--check")]
    os.environ["COMP_LINE"] = " ".join([command, *words])


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError:
        raise ConfigError("afl-run", "", "the current directory is no longer there; change into another one") from None


def _split(arguments: list[str]) -> tuple[bool, list[str]]:
    """(-m given, overrides). ``--resume DIR`` is another way to write ``resume=DIR``."""
    multirun, overrides = False, []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-m", "--multirun"):
            multirun = True
        elif word == "--resume" or word.startswith("--resume="):
            value = word.partition("=")[2] or (rest.pop(0) if rest else "")
            if not value or value.startswith("-"):
                raise ConfigError("resume", value, "must name a run directory: afl-run --resume DIR")
            overrides.append(quoted("resume", value))
        elif word.startswith("-"):
            raise ConfigError(word, "", "no such option; afl-run --help shows what there is")
        elif "=" not in word and not word.startswith("~"):
            raise ConfigError(word, "", "must be written key=value, for example algorithm=ace")
        else:
            overrides.append(word)
    return multirun, overrides


def _refuse_several(overrides: list[str]) -> None:
    """Raises ConfigError for words of a multirun."""
    for one in map(word, overrides):
        check_one_word(one)
        if one.several:
            how = "is a list of values: afl-run -m runs them all"
            if one.draw is not None:
                how = "is a range: afl-run -m ... trials=16 draws values from it"
            raise ConfigError(one.key, ",".join(one.values), how)
        if one.key in search.SHORT:
            raise ConfigError(one.key, one.text.partition("=")[2], "goes with a search: afl-run sweep=tune, or -m")
        if one.key.startswith(("hydra/launcher", "hydra.launcher", "hydra.sweep")):
            raise ConfigError(one.key, ",".join(one.values), "has no effect on a single run; goes with -m")


def _single(overrides: list[str]) -> int:
    _refuse_several(overrides)
    settings = compose(overrides)
    from ..experiment import execute  # torch comes in here, the settings are known to be valid

    result = execute(settings, ends_process=True)
    print(closing_line(result, settings.time_unit))
    return result.exit_code


def _check(arguments: list[str]) -> int:
    """The contract of server rules, a line for each check. Returns 1 where the rule breaks it."""
    if other := [text for text in arguments if text in ("--plan", "--measure")]:
        raise InputError(f"--check: does not go with {other[0]}; leave out one of the two")
    multirun, overrides = _split(arguments)
    keys = {word(text).key for text in overrides}
    if multirun or "algorithm" not in keys or keys & {"resume", "sweep"}:
        raise InputError("--check: checks one rule; name it, with settings if need be: afl-run --check algorithm=mine")
    _refuse_several(overrides)
    compose(overrides)
    from ..experiment.contract import check_rule  # torch comes in here, the settings are known to be valid

    code = 0
    for name, problem, what in check_rule(overrides):
        print(f"{'failed' if problem else 'ok':<8}{name:<18}{problem or what}", flush=True)
        code = 1 if problem else code
    return code


def closing_line(result: RunResult, time_unit: str) -> str:
    """What came out and where it lies, in one line."""
    summary, status = result.summary, result.summary["exit_status"]
    used = summary["used"]
    if status == "ok":
        said = "done"
        if summary.get("already_complete"):
            source = summary.get("data_source")
            where = f" on {summary['device'].split()[0]}" if summary.get("device") else ""
            said = f"already complete{where}{f' with {source}' if source else ''} (rerun=true runs it again)"
        final, best = (100 * summary[which]["test/accuracy"] for which in ("final", "best"))
        return (
            f"{summary['name']}: {said}, test accuracy {final:.1f} % (best {best:.1f} %) "
            f"after {used['server_iterations']} server iterations, {used['uploads']} uploads, "
            f"virtual time {used['virtual_time']:g} {time_unit}, {summary['wall_seconds']:.1f} s; "
            f"stopped by {summary['stopped_by']}; in {result.directory}"
            + (f"; {summary['warning']}" if summary.get("warning") else "")
        )
    if status == "interrupted":
        problem = f" ({summary['error']})" if summary["error"] else ""
        return (
            f"{summary['name']}: interrupted after {used['server_iterations']} server iterations{problem}; "
            f"go on with: afl-run {shlex.join([*places.words(), '--resume', str(result.directory)])}"
        )
    return f"{summary['name']}: {status}: {summary['error']}; in {result.directory}"


def _show_plan(overrides: list[str], measured: bool) -> int:
    from ..multirun.outlook import outlook
    from ..multirun.trial import seconds_of, server_cost_of
    from ..multirun.workers import workers_of

    jobs = _planned(overrides)[0]
    words = [word(text) for text in overrides]
    places = [RootConfig.output_dir, *(v for one in words if one.key == "output_dir" for v in one.values)]
    hydra = hydra_config(_choosing_words(overrides)).hydra

    def tried(settings: Settings) -> float:
        say(f"trying {' on '.join(settings.choices[group] for group in ('algorithm', 'dataset'))} for some seconds")
        return seconds_of(settings)

    measure = tried if measured else None
    print(outlook(jobs, pending.places_of(jobs), places, workers_of(hydra), measure, server_cost_of))
    return 0


def run_all(overrides: list[str]) -> int:
    """A multirun. Returns the exit code; what came of it is in ``pending.state``."""
    pending.state.current, pending.state.stopped, pending.state.result = [], False, None
    if any(one.key == "hydra/sweeper" and one.values != ("pending_runs",) for one in map(word, overrides)):
        return _other_sweeper(overrides)
    pending.state.planned, folder = _planned(overrides)
    try:
        code = _hydra(["-m", *_choosing_words(overrides), *folder])
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    if any(job.drawn for job in pending.state.planned):
        print(search.best(pending.state.planned, pending.places_of(pending.state.planned)))
    if code == EXIT_INTERRUPTED:
        say("afl-run: stopped; the same command goes on where it was")
    return code


def _choosing_words(overrides: list[str]) -> list[str]:
    """The words by which Hydra chooses its sweeper and launcher, and where these leave their files.

    The other words concern jobs, which are composed by themselves.
    """
    known = {*groups(), "output_dir"}
    return [one.first for one in map(word, overrides) if one.values and (one.key in known or one.of_hydra)]


def _other_sweeper(overrides: list[str]) -> int:
    """A multirun under a sweeper of Hydra's (hydra/sweeper=optuna): it decides what is run, by what jobs return."""
    check_chosen(overrides)
    pending.state.planned, pending.state.worst = [], 0
    try:
        return _hydra(["-m", *overrides]) or pending.state.worst
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _planned(overrides: list[str]) -> tuple[list[Job], list[str]]:
    """(jobs, the words that say where its runs lie). Raises ConfigError."""
    if any(one.key == "resume" and one.text != "resume=null" for one in map(word, overrides)):
        raise ConfigError("resume", overrides, "goes with a single run; a multirun goes on by itself when repeated")
    name = sweep_name(overrides)
    folder = []
    if name is not None and not any(o.startswith("hydra.sweep.dir=") for o in overrides):
        folder = [f"hydra.sweep.dir=${{output_dir}}/{name}"]
    return plan(overrides, folder), folder


def _hydra(arguments: list[str]) -> int:
    """Hands over to Hydra: its launchers for a multirun, its own flags."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    def job(config) -> dict | float:
        """One job of a multirun. Returns its outcome instead of raising, so that the others go on; to another sweeper
        than ours the value of the setting ``objective``, NaN where the run failed."""
        if pending.state.stopped:  # jobs handed to a worker in advance
            raise KeyboardInterrupt
        place, result = HydraConfig.get(), None
        ours = str(place.sweeper._target_).endswith(".PendingRuns")
        try:
            by_hand = (places.BY_HAND, "file")  # in a process of its own nobody has named these yet
            places.use(one.path for one in place.runtime.config_sources if (one.provider, one.schema) == by_hand)
            chosen = place
            if {INSTEAD, SWEEP_INSTEAD} & {*config}:
                config = hydra_config([*place.overrides.hydra, *place.overrides.task])
                chosen = config.hydra
            tree = plain(config)
            replace_limits(tree, place.overrides.task)
            settings = placed(check_composed(tree, chosen), place)
            if not pending.state.current and sys.stderr.isatty():
                settings.root.progress = False  # the bars of several processes would overwrite each other
            from ..experiment import SCHEDULER_SIGNALS, execute

            if not ours:
                search.check_objective(settings)
            result = execute(settings, ends_process=True, alone=False)
            line, code = closing_line(result, settings.time_unit), result.exit_code
            value = result.value(settings.root.objective)
        except BenchError as error:
            line, code, value = f"failed: {error}", error.exit_code, math.nan
        pending.state.worst = max(pending.state.worst, code)
        if not ours:  # ours says one itself, whatever process the run is in
            with suppress(OSError):  # nobody reads any more, but the runs are wanted
                print(line, flush=True)
        number = None if result is None else result.signal
        if number in SCHEDULER_SIGNALS:
            if code == EXIT_INTERRUPTED:
                signal.raise_signal(number)  # the run is saved: the scheduler's handler requeues it
        elif number is not None:
            pending.state.stopped = True
            raise KeyboardInterrupt  # the person who stopped one job, even in its last moments, wants the rest stopped
        return {"code": code, "line": line} if ours else value

    before, sys.argv = sys.argv, ["afl-run", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(places.config_directory()), config_name="config")(job)()
    finally:
        sys.argv = before
    result, problem = pending.state.result, pending.state.problem
    if result is None and problem is not None:
        raise problem
    if result is None:  # one of Hydra's own flags, or another sweeper
        return 0
    if result.interrupted:
        return EXIT_INTERRUPTED
    if said := pending.report(result):
        say(said)
    if problem is not None:
        raise problem
    return 1 if result.failed or result.diverged else 0
