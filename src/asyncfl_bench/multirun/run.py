"""Entry points of a multirun: ``run_all`` for the command, Hydra's ``main`` and the job in a launcher's process."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from ..config import part_sources
from ..config.check import replace_limits
from ..config.choices import INSTEAD, SWEEP_INSTEAD, composition, to_containers, translate_error
from ..config.composition import FOLDERS, Compositions, check_composed, chosen_config
from ..config.overrides import parse_override
from ..errors import EXIT_INTERRUPTED, BenchError, ConfigError, RunInUse
from ..files import say, show
from . import pending
from .axes import check_objective, sweep_name, text_of_draw
from .jobs import Job, place_run, plan

if TYPE_CHECKING:
    from ..experiment import RunResult

_SHOWN, _SEEDS = 3, 5  # trials of a search that are shown, and seeds that test the best one


def run_all(overrides: list[str]) -> int:
    """Run a multirun and return the exit code. The result is in ``pending.state``."""
    if chosen_config(overrides).hydra.runtime.choices["hydra/sweeper"] != "pending_runs":
        return _run_other_sweeper(overrides)
    jobs, folder = plan_multirun(overrides)
    code = launch_jobs(jobs, overrides, folder)
    if any(job.drawn for job in pending.state.planned):
        show(describe_best_trials(pending.state.planned, pending.finished_paths(pending.state.planned)))
    if code == EXIT_INTERRUPTED:
        say("afl-run: interrupted; run the same command again to resume")
    return code


def launch_jobs(jobs: list[Job], overrides: list[str], folder: list[str]) -> int:
    """Run planned jobs as one multirun and return the exit code, 75 if it was stopped. See ``pending.state``.

    overrides  of the command;  folder  overrides that set the folder of the runs
    Raises ConfigError for a folder that cannot be written.
    """
    from ..experiment.preflight import check_folder

    if first := next((job.settings for job in jobs if job.settings is not None), None):
        check_folder(first)
    _reset_state(jobs)
    # Hydra's sweeper and launcher alone, each at its first value: each job is composed and placed separately
    shared = Compositions()
    first_values = [parse_override(one.text_of_first_value) for one in map(parse_override, overrides) if one.values]
    chosen = [one for one in first_values if one.key == "output_dir" or shared.chooses_files(one)]
    try:
        return run_hydra(["-m", *(one.text for one in chosen if one.key not in FOLDERS), *folder])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def describe_best_trials(jobs: Sequence[Job], found_in: Mapping[str, Path]) -> str:
    """Return the result of a search as text: the best trials, and a command that tests the best one over seeds.

    found_in  see ``pending.finished_paths``
    The text is empty without a search. Trials with fewer finished seeds than others do not compete: a trial that
    diverges for some seeds must not win by its other seeds.
    """
    values: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[str, float]]]] = {}
    last: dict[tuple[str, ...], Job] = {}  # that of the greatest seed
    for job in jobs:
        if job.drawn and job.settings is not None:
            rest = tuple(text for text in job.overrides if text not in job.drawn and not text.startswith("seed="))
            last[rest] = max(job, last.get(rest, job), key=lambda one: one.settings.root.seed if one.settings else 0)
            trials = values.setdefault(rest, {})
            of_trial = trials.setdefault(job.drawn, [])
            result = job.finished_result(found_in, repeated=True)
            value = math.nan if result is None else result.value(job.settings.root.objective)
            if result is not None and not math.isnan(value):
                of_trial.append((result.summary.get("code_digest", ""), value))
    return "\n".join(_describe_trials(rest, last[rest], trials) for rest, trials in values.items())


def _describe_trials(rest: tuple[str, ...], last: Job, trials: dict[tuple[str, ...], list[tuple[str, float]]]) -> str:
    """Return the ranked trials of one search as text, and the command that tests the best one.

    trials  (digest of the user's code, value of the objective) of each seed; of several codes the present one counts
    """
    assert last.settings is not None
    root, code = last.settings.root, last.settings.code_digest
    objective = root.objective
    several = len({found for of in trials.values() for found, _ in of}) > 1
    values = {trial: [value for found, value in of if not several or found == code] for trial, of in trials.items()}
    most = max(map(len, values.values()))
    means = {trial: sum(of) / most for trial, of in values.items() if most and len(of) == most}
    what = " ".join(text for text in rest if text.startswith(("algorithm=", "sweep="))) or "the search"
    lines = [f"\n{what}: {len(means)} of {len(trials)} trials have {objective}"]
    lines += ["  runs of another code of its classes are left out; rerun=true repeats them"] if several else []
    ranked = sorted(means, key=lambda trial: means[trial], reverse=not objective.endswith("loss"))
    lines += [f"  {means[trial]:.4f}  {' '.join(trial)}" for trial in ranked[:_SHOWN]]
    if ranked:
        seeds = ",".join(str(root.seed + 1 + i) for i in range(_SEEDS))
        words = [text for text in last.hydra if not text.startswith("hydra.sweep.")]
        words += [*rest, *ranked[0], f"seed={seeds}", f"hydra.sweep.dir={Path(root.output_dir)}-best"]
        lines.append(
            f"the best on test samples, over seeds it was not chosen by:\n  {part_sources.command_text(['-m', *words])}"
        )
    return "\n".join(lines)


def _reset_state(jobs: list[Job]) -> None:
    pending.state.current, pending.state.stopped, pending.state.result = [], False, None
    pending.state.planned = jobs


def _run_other_sweeper(overrides: list[str]) -> int:
    """Run a multirun under another sweeper (hydra/sweeper=optuna), which chooses runs by the returned values."""
    _reset_state([])
    pending.state.worst = 0
    words = [parse_override(text) for text in overrides]
    first = [f"{one.key}={text_of_draw(one.draw, 0.0)}" if one.draw else one.text_of_first_value for one in words]
    run = Compositions().config(first)
    check_objective(check_composed(run.tree, run.hydra, first))
    marked = [f"++{one.text}" if one.key in run.added else one.text for one in words]  # which Hydra takes as ++key only
    try:
        return run_hydra(["-m", *marked]) or pending.state.worst
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def plan_multirun(overrides: list[str]) -> tuple[list[Job], list[str]]:
    """Return (jobs, overrides that set the folder of the runs). Raises ConfigError."""
    if resumed := [one.value for one in map(parse_override, overrides) if one.key == "resume" and one.value]:
        allowed = "is for a single run without --plan; a repeated multirun resumes by itself"
        raise ConfigError("resume", resumed[0], allowed)
    jobs = plan(overrides, sweep_name(overrides))
    return jobs, [word for job in jobs[:1] for word in job.placing[:1]]


def run_hydra(arguments: list[str]) -> int:
    """Run Hydra with these arguments: a multirun, or one of Hydra's flags. Returns the exit code."""
    import hydra
    from hydra.core.utils import env_override
    from hydra.errors import HydraException

    pending.state.problem = None
    before, sys.argv = sys.argv, ["afl-run", *arguments]
    try:
        with env_override({"HYDRA_FULL_ERROR": "1"}):  # else Hydra prints its errors in several lines, and exits
            hydra.main(version_base="1.3", config_path=str(part_sources.config_directory()), config_name="config")(
                _run_job
            )()
    except HydraException as error:
        raise translate_error(error, [text for text in arguments if "=" in text]) from None
    finally:
        sys.argv = before
    result, problem = pending.state.result, pending.state.problem
    if result is None and problem is not None:
        raise problem
    if result is None:  # one of Hydra's own flags, or another sweeper
        return 0
    if result.interrupted:
        return EXIT_INTERRUPTED
    if said := pending.describe_failures(result):
        say(said)
    if problem is not None:
        raise problem
    return 1 if result.failed or result.diverged else 0


def _run_job(config: DictConfig) -> dict | float:
    """Run one job and return its exit code and closing line. A failed job does not raise, so the others continue.

    Another sweeper than ours gets the value of ``objective``, or NaN if the run failed.
    """
    if pending.state.stopped:  # jobs handed to a worker in advance
        raise KeyboardInterrupt
    from hydra.core.hydra_config import HydraConfig

    from ..experiment import SCHEDULER_SIGNALS, execute

    hydra_config, result, postponed = HydraConfig.get(), None, False
    words: Any = OmegaConf.to_container(hydra_config.overrides)  # not resolved
    ours = str(hydra_config.sweeper._target_).endswith(".PendingRuns")
    try:
        by_hand = (part_sources.BY_HAND, "asyncfl")  # in a new process these are not named yet
        part_sources.use_folders(
            one.path for one in hydra_config.runtime.config_sources if (one.provider, one.schema) == by_hand
        )
        chosen = hydra_config
        if not ours and {INSTEAD, SWEEP_INSTEAD} & {*config}:  # ours has named what these choose
            config = composition([*words["hydra"], *words["task"]]).config
            chosen = config.hydra
        tree = to_containers(config)
        replace_limits(tree, [parse_override(text) for text in words["task"]])
        settings = check_composed(tree, chosen, words["task"])
        place_run(settings, hydra_config.sweep.dir, hydra_config.sweep.subdir)
        if not pending.state.current and sys.stderr.isatty():
            settings.root.progress = False  # the bars of several processes would overwrite each other
        if not ours:
            check_objective(settings)
        result = execute(settings, ends_process=True, alone=False)
        line, code = closing_line(result, settings.time_unit), result.exit_code
        value = result.value(settings.root.objective)
    except BenchError as error:
        line, code, value = f"failed: {error}", error.exit_code, math.nan
        postponed = ours and isinstance(error, RunInUse)
    pending.state.worst = max(pending.state.worst, code)
    if not ours:  # ours says one itself, whatever process the run is in
        with suppress(OSError):  # the reader left, but the runs are wanted
            show(line)
    number = None if result is None else result.signal
    if number in SCHEDULER_SIGNALS:
        if code == EXIT_INTERRUPTED:
            signal.raise_signal(number)  # the run is saved: the scheduler's handler requeues it
    elif number is not None:
        pending.state.stopped = True
        raise KeyboardInterrupt  # the person who stopped one job, even in its last moments, wants the rest stopped
    return {"code": code, "line": line, "postponed": postponed} if ours else value


def closing_line(result: RunResult, time_unit: str) -> str:
    """Return the result of a run and its directory in one line."""
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
            f"resume with: {part_sources.command_text(['--resume', str(result.directory)])}"
        )
    shown = f"{summary['name']}: {status}: {summary['error']}"
    return shown if str(result.directory) in str(summary["error"]) else f"{shown}; in {result.directory}"
