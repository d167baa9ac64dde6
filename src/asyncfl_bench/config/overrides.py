"""Overrides of the command line, each parsed once: ``delay.beta=10``, ``seed=0,1,2``, ``+hydra.job.env_set.X=1``.

Keys of Hydra's own section that a run or a multirun cannot have are refused, each in one line.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, check, did_you_mean, format_value, must_be_one_of

# launcher preset: (plugin, extra that installs it)
PRESETS = {
    "cores": ("hydra_joblib_launcher", "joblib"),
    "slurm": ("hydra_submitit_launcher", "slurm"),
    "slurm_local": ("hydra_submitit_launcher", "slurm"),
    "ray_local": ("hydra_ray_launcher", "ray"),
    "ray_cluster": ("hydra_ray_launcher", "ray"),
    "gpu": ("asyncfl_gpu", ""),
}
# launchers of Hydra and of the plugins themselves
_OTHER_LAUNCHERS = {"basic", "joblib", "submitit_slurm", "submitit_local", "ray", "ray_aws"}
_PLAIN = re.compile(r"[\w./+-][\w./:+-]*")
MOST_RUNS = 10_000  # of a multirun: one takes some 10 ms to plan
# what Hydra sets itself, or reads for its own help alone
_SET_BY_HYDRA = ("env", "help", "hydra_help", "overrides", "runtime")
_SET_BY_HYDRA_FOR_JOBS = ("job.config_name", "job.id", "job.num", "job.override_dirname")
_OF_SINGLE_RUNS = ("run",)
_OF_MULTIRUNS = ("launcher", "sweep", "sweeper")
# what Hydra does around each job of a multirun alone, with the values that change nothing
_AROUND_JOBS = {"callbacks": {}, "job.env_copy": [], "job.env_set": {}, "verbose": False}
_LOGGING = ("hydra_logging", "job_logging")
_BY_RUN = ("job.name", "run.dir", "sweep.dir", "sweep.subdir")  # resolved for each run
_OF_A_RUN = re.compile(r"\$\{(?!hydra\.(?:sweep\.dir|job\.name|runtime\.\w+)\}|output_dir\})[^:}]*\}")  # ${seed}


@dataclass(frozen=True)
class Override:
    """One override of the command line.

    text     the override as it is written
    key      the setting or group, without ``+``, ``~`` and ``@package``
    values   the listed values, each as it is written alone; none for a deletion
    several  True for a list of values, which only a multirun accepts
    special  True if it adds or deletes a key or names a package, which only Hydra's composition can do
    value    the single value, as Hydra understands it; None for a list and a deletion
    draw     what a search draws from: Hydra's ``interval(a,b)``, ``tag(log,…)`` of it, ``int(…)`` of it with both
             ends, or the texts of ``tag(draw,choice(a,b))``; ``values`` then has its text
    """

    text: str
    key: str
    values: tuple[str, ...]
    several: bool
    special: bool
    value: Any
    draw: Any = None

    @property
    def is_deletion(self) -> bool:
        """Return True for ``~key``."""
        return self.text.startswith("~")

    @property
    def section(self) -> str:
        """First part of the key: ``budget`` of ``budget.uploads``, ``hydra`` of ``hydra/launcher``."""
        return self.key.partition(".")[0].partition("/")[0]

    @property
    def is_for_hydra(self) -> bool:
        """Return True if the key belongs to Hydra: ``hydra.sweep.dir``, ``hydra/launcher``."""
        return self.section == "hydra"

    @property
    def text_of_first_value(self) -> str:
        """Override with the first of the values only, as text."""
        return f"{self.text.partition('=')[0]}={self.values[0]}"


def type_text(key: str, text: str) -> str:
    """Return the override that sets ``key`` to the text as if it was typed: ``4`` is a number, ``[1,2]`` a list."""
    typed = f"{key}={text}"
    try:
        one = parse_override(typed)
    except ConfigError:
        return quote_override(key, text)
    kept = isinstance(one.value, list | dict) or format_value(one.value) == text  # the digits of 007 would be lost
    return typed if kept and not one.several else quote_override(key, text)


def type_value(key: str, value: Any) -> str:
    """Return a Python value as it is typed behind ``key=``. Raises ConfigError for other kinds of values."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of NumPy's or torch's
        value = value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return format_value(value)
    if isinstance(value, (list, tuple, range)):
        return f"[{','.join(type_value(key, one) for one in value)}]"
    if hasattr(value, "__fspath__"):
        value = str(value)
    if not isinstance(value, str):
        allowed = "must be text, a number, true or false, None, or a list of such"
        raise ConfigError(key, type(value).__name__, allowed)
    return value if _PLAIN.fullmatch(value) else quote_override("", value)[1:]


def quote_override(key: str, text: str) -> str:
    """Return the override that sets ``key`` to the text, with quotes around any special signs."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return f"{key}={QuotedString(text, Quote.single).with_quotes()}"


@functools.lru_cache(maxsize=8192)
def parse_override(text: str) -> Override:
    """Parse one override. Raises ConfigError for text that is none, and for a range without values."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Glob
    from hydra.errors import HydraException

    if not isinstance(text, str):
        raise ConfigError("overrides", text, "must be text, for example 'algorithm=ace'")
    try:
        parsed = OverridesParser.create().parse_override(text)
        if isinstance(parsed.value(), Glob):
            raise ConfigError(parsed.key_or_group, text.partition("=")[2], "must list its values, for example 1,2,3")
        if several := parsed.is_sweep_override():
            _check_sweep(parsed)
        draw = _parse_draw(parsed)
        if parsed.is_delete():
            values = []
        elif draw is not None:
            values = [text.partition("=")[2]]
        elif several:
            values = [_element_text(element) for element in parsed.sweep_iterator()]
        else:
            values = [_element_text(parsed._value)]
    except (HydraException, ValueError, ArithmeticError):  # as of more digits than Python converts
        key, _, value = text.partition("=")
        raise ConfigError(key, value, "must be written key=value; quote text with spaces or special signs") from None
    special = parsed.is_add() or parsed.is_force_add() or parsed.is_delete() or parsed.package is not None
    single = None if several or parsed.is_delete() else parsed.value()
    return Override(text, parsed.key_or_group, tuple(values), several, special, single, draw)


def _element_text(element: Any) -> str:
    """Return a parsed value as it is typed. Hydra escapes the signs of ``${seed}``, and a list may hold some."""
    from hydra.core.override_parser.types import Override as Parsed

    if isinstance(element, list):
        return f"[{','.join(map(_element_text, element))}]"
    is_interpolation = isinstance(element, str) and "${" in element
    return element if is_interpolation else str(Parsed._get_value_element_as_str(element))


def _check_sweep(parsed: Any) -> None:
    """Raise ConfigError for an unknown tag, and for a range that lists no value or more than MOST_RUNS."""
    from hydra.core.override_parser.types import IntervalSweep, RangeSweep

    sweep, key, text = parsed.value(), parsed.key_or_group, parsed.input_line.partition("=")[2]
    known = "log" if isinstance(sweep, IntervalSweep) else "draw"
    for tag in sorted(sweep.tags - {known}):
        raise ConfigError(key, text, f"must have no tag but {known}, found {tag}{did_you_mean(tag, [known])}")
    if isinstance(sweep, RangeSweep):
        start, stop, step = sweep.start or 0, sweep.stop or 0, sweep.step
        steps = (stop - start) / step if step else math.nan
        check(0 < steps <= MOST_RUNS, key, text, f"range(start,stop,step) of 1 to {MOST_RUNS} values")


def _parse_draw(parsed: Any) -> Any:
    """Return what a search draws from: Hydra's interval, or texts; None for other overrides.

    Raises ConfigError for an empty range, and for a logarithmic one that is not positive.
    """
    from hydra.core.override_parser.types import IntervalSweep

    sweep = parsed.value() if parsed.is_sweep_override() else None
    if not isinstance(sweep, IntervalSweep):
        is_drawn = sweep is not None and "draw" in sweep.tags
        return tuple(_element_text(element) for element in parsed.sweep_iterator()) if is_drawn else None
    low, high, log = sweep.start, sweep.end, "log" in sweep.tags
    if low is None or high is None or not 0 < high - low < math.inf or (log and low <= 0):
        text = parsed.input_line.partition("=")[2]
        raise ConfigError(parsed.key_or_group, text, f"must have finite ends a < b{', both above 0' if log else ''}")
    return sweep


def describe_multirun(key: str, values: str) -> str:
    """Return what to type for a run of each value. values: separated by commas"""
    return f"afl-run -m {key}={values}, or sweep(...) in Python, runs each"


def flat_items(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value): ``{"client": {"lr": 1}}`` gives ``client.lr``, as in yaml."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def check_hydra_words(overrides: Iterable[str], *, multirun: bool) -> None:
    """Raise ConfigError for an override of Hydra's settings that would have no effect."""
    no_effect = _OF_SINGLE_RUNS if multirun else (*_OF_MULTIRUNS, *_AROUND_JOBS, *_LOGGING)
    kind, other = ("multirun", "hydra.sweep.dir names its folder") if multirun else ("single run", "goes with -m")
    for one in [one for one in map(parse_override, overrides) if one.is_for_hydra]:
        value = one.text.partition("=")[2]
        if _is_below(one, (*_SET_BY_HYDRA, *_SET_BY_HYDRA_FOR_JOBS)):
            raise ConfigError(one.key, value, "is set by Hydra itself; leave it out")
        if _is_below(one, no_effect):
            raise ConfigError(one.key, value, f"has no effect on a {kind}; {other}")
        if multirun and one.key == "hydra.mode" and one.value == "RUN":
            raise ConfigError(one.key, value, "does not go with a multirun; leave it out")
        if _is_below(one, ["searchpath"]):
            raise ConfigError(one.key, value, "from Python, config_dir names the folders")
        if "/" not in one.key and _is_below(one, _LOGGING):
            raise ConfigError(one.key, value, f"is chosen by name: hydra/{one.key.split('.')[1]}=NAME")
        if one.key == "hydra.verbose" and not isinstance(one.value, bool | str | list):
            raise ConfigError(one.key, value, "must be true, false, or names of loggers")
        if _OF_A_RUN.search(one.text) and not _is_below(one, _BY_RUN):
            raise ConfigError(one.key, value, "refers to what differs between runs; write the value")


def check_plugin(one: Override) -> None:
    """Raise ConfigError for a launcher or sweeper that there is not, and for a preset without its plugin."""
    name = ",".join(one.values)
    if one.key == "hydra/launcher":
        if name not in {*PRESETS, *_OTHER_LAUNCHERS}:
            raise ConfigError(one.key, name, must_be_one_of(name, [*PRESETS, "basic"]))
        plugin, extra = PRESETS.get(name, ("", ""))
        if plugin and importlib.util.find_spec(f"hydra_plugins.{plugin}") is None:
            raise ConfigError(one.key, name, f"needs pip install 'asyncfl_bench[{extra}]'")
    elif one.key == "hydra/sweeper":
        from hydra.core.config_store import ConfigStore
        from hydra.core.plugins import Plugins

        Plugins.instance()  # what is installed is known from here on
        known = [entry.removesuffix(".yaml") for entry in ConfigStore.instance().list(one.key)]
        if name not in known:
            others = "others are plugins of Hydra's, to be installed (hydra-optuna-sweeper)"
            raise ConfigError(one.key, name, f"{must_be_one_of(name, known)}; {others}")
    elif (group := one.key.removesuffix("._target_").replace(".", "/")) in ("hydra/launcher", "hydra/sweeper"):
        raise ConfigError(one.key, name, f"is chosen by name: {group}=NAME")


def check_hydra(hydra: Any, *, multirun: bool) -> None:
    """Raise ConfigError for settings of Hydra's, of whatever file, that the run cannot have. hydra: composed."""
    from omegaconf import OmegaConf

    if hydra.job.chdir:
        raise ConfigError("hydra.job.chdir", True, "would give relative paths another meaning in each run; omit it")
    if hydra.output_subdir is not None:
        files = "has no effect: config.yaml in the run directory has all settings; omit it"
        raise ConfigError("hydra.output_subdir", hydra.output_subdir, files)
    for key, default in () if multirun else _AROUND_JOBS.items():
        if (value := OmegaConf.select(hydra, key)) != default:
            raise ConfigError(f"hydra.{key}", value, "has no effect on a single run; goes with -m")


def _is_below(one: Override, keys: Iterable[str]) -> bool:
    """Return True for an override of one of Hydra's sections: ``hydra.launcher.n_jobs`` and ``hydra/launcher``."""
    path = one.key.replace("/", ".")
    return any(path == f"hydra.{key}" or path.startswith(f"hydra.{key}.") for key in keys)


def has_interpolation(node: Any) -> bool:
    """Return True if a text in nested dicts and lists refers to another value."""
    if isinstance(node, Mapping):
        return any(map(has_interpolation, node.values()))
    return any(map(has_interpolation, node)) if isinstance(node, list) else isinstance(node, str) and "${" in node
