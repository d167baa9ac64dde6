"""``run`` and ``sweep``: settings are Python values; a data set or network may be an object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..config import compose, part_sources
from ..config.classes import check_members
from ..config.composition import asks_for_multirun, expand_overrides
from ..config.overrides import MOST_RUNS, flat_items, parse_override, type_value
from ..config.part_sources import ConfigDirs
from ..errors import EXIT_INTERRUPTED, ConfigError, check, locating_user_errors

if TYPE_CHECKING:
    from ..experiment import RunResult
    from ..simulation.observer import Observer

Overrides = Iterable[str] | Mapping[str, Any]
_OWN = ("dataset", "model")


def run(
    overrides: Overrides = (),
    /,
    *,
    group: str | None = None,
    observers: Sequence[Observer | str] | Observer | str = (),
    config_dir: ConfigDirs = None,
    **settings: Any,
) -> RunResult:
    """Do one run: ``run(algorithm="ace", seed=3)``, ``run({"algorithm": "ace", "delay.beta": 10})`` or the words of the
    command line, ``run(["algorithm=ace", "seed=3"])``.

    overrides   a list of words or a mapping;  settings  further settings, as ``client={"lr": 0.1}`` for ``client.lr``
    dataset     instead of a name: a pandas frame, a torch Dataset, a pair of either (to train, to test), or arrays
    model       instead of a name: a torch module, or what makes one when called (then ``seed`` draws its weights)
    observers   receive the run's events, see ``Observer``: one or several objects, or names of the group ``observers``
    config_dir  folders of parts of your own, as ``--config-dir``
    group       name under which a tracker groups several runs
    ``progress=False`` keeps it quiet. A finished run of the same settings, and of the same samples and module, is found
    and not run again. Raises ConfigError for settings that cannot work and BenchError for data that cannot be had; a
    run that fails later returns with ``result.ok`` False and the reason in ``result.summary["error"]``.
    """
    with locating_user_errors():
        overrides, settings, nodes, held = _take_objects(overrides, settings)
    with part_sources.using_folders(config_dir):
        if isinstance(observers, str) or not isinstance(observers, Iterable):
            observers = [observers]
        named = [one for one in observers if isinstance(one, str)]
        given = [one for one in observers if not isinstance(one, str)]
        _check_observers(given)
        words = [*list_overrides(overrides, settings), *([f"observers=[{','.join(named)}]"] if named else [])]
        if asks_for_multirun(words):
            sweeps = [word for word in words if word.startswith("sweep=")]
            key, _, value = [*sweeps, "hydra.mode=MULTIRUN"][0].partition("=")
            raise ConfigError(key, value, f"is a multirun: sweep({sweeps or words}) runs it")
        for one in map(parse_override, words):
            if one.section in nodes:
                how = f"does not go with an object as {one.section}; give it to the object itself"
                raise ConfigError(one.key, "", how)
            if one.several:
                axis = ",".join(one.values)
                raise ConfigError(one.key, axis, f"is a list of values: sweep(['{one.key}={axis}']) runs them all")
        with _lending_objects(held):
            settings_ = compose(words, nodes)
            from ..experiment import execute, finished_result

            if given and (earlier := finished_result(settings_)) is not None:
                allowed = f"would hear nothing: the run is finished, in {earlier.directory}; rerun=True runs it again"
                raise ConfigError("observers", [type(one).__name__ for one in given], allowed)
            return execute(settings_, group, given)


def sweep(overrides: Overrides = (), /, *, config_dir: ConfigDirs = None, **settings: Any) -> list[RunResult]:
    """Run a multirun: ``sweep(["sweep=ace/figure2", "scale=small"])``, ``sweep(algorithm=["ace", "asgd"],
    seed=range(3))``.

    A list of values is an axis; for settings that are lists, a list of lists: ``{"model.hidden": [[200], [50]]}``.
    ``decide="mine"`` adds seeds until that method is decided against each other one, ``decide=True`` until all pairs or
    all claims of the sweep are decided (docs/howto/decide.md).
    Launchers, folders and what is printed are those of ``afl-run -m``; runs that are finished are not run again.
    Returns a result for every run, in their order; one that did not finish has ``ok`` False and the reason in its
    ``summary["error"]``. Raises ConfigError for a value that no run can have, KeyboardInterrupt when it was stopped.
    """
    if nodes := _take_objects(overrides, settings)[2]:
        allowed = "must be a name in a sweep, whose runs may be in other processes; run(...) takes objects, one by one"
        raise ConfigError(next(iter(nodes)), "object", allowed)
    with part_sources.using_folders(config_dir):
        from ..multirun.decide_words import split_request
        from ..multirun.pending import results
        from ..multirun.stages import run_multirun

        request, words = split_request(list_overrides(overrides, settings, axes=True))
        if request is None:
            code = run_multirun(words)
        else:
            from ..multirun.decide import Looks  # brings pandas

            code = Looks(request, words).run()
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        return results()


def _check_observers(objects: Iterable[object]) -> None:
    """Raise ConfigError for an object of another class or with a mistake in its members."""
    from ..simulation.observer import Observer

    for kind in map(type, objects):
        check(issubclass(kind, Observer), "observers", kind.__name__, "an object of a class that extends Observer")
        check_members("observers", kind.__name__, kind)


def list_overrides(overrides: Overrides, settings: Mapping[str, Any], *, axes: bool = False) -> list[str]:
    """Return ``["seed=3"]`` for ``["seed=3"]``, ``{"seed": 3}`` or both. axes: a list gives the values of an axis."""
    if isinstance(overrides, str):
        raise ConfigError("overrides", overrides, "must be a list of texts, for example ['algorithm=ace']")
    given = [overrides, settings] if isinstance(overrides, Mapping) else [settings]
    words = [] if isinstance(overrides, Mapping) else list(overrides)
    for key, value in (pair for mapping in given for pair in flat_items(mapping)):
        if axes and isinstance(value, str):
            words.append(f"{key}={value}")  # algorithm="ace,asgd" is an axis too
            continue
        values = value if axes and isinstance(value, (list, tuple, range)) else [value]
        allowed = f"at most {MOST_RUNS} values, each of which is a run"
        check(len(values) <= MOST_RUNS, key, f"{len(values)} values", allowed)
        words.append(f"{key}={','.join(type_value(key, one) for one in values)}")
    return expand_overrides(words)


def _take_objects(
    overrides: Overrides, settings: Mapping[str, Any]
) -> tuple[Overrides, dict[str, Any], dict[str, dict[str, Any]], dict[str, Any]]:
    """Return (overrides, settings) without the objects among them, what stands for these, and what they are.

    The third is by group the section of the config with the object's class and the digest that identifies it, the
    fourth by digest what a run gets. Raises ConfigError or DataError for an object that is neither data nor a network.
    """
    nodes: dict[str, dict[str, Any]] = {}
    held: dict[str, Any] = {}
    rest: list[dict[str, Any]] = []
    for given in (overrides if isinstance(overrides, Mapping) else {}, settings):
        objects = {key: value for key, value in given.items() if key in _OWN and not _is_name(value)}
        rest.append({key: value for key, value in given.items() if key not in objects})
        for group, value in objects.items():
            target: type
            if group == "dataset":
                from ..data.given import GivenData, arrays_of, digest_of_arrays

                target, made = GivenData, arrays_of(value)
                digest = digest_of_arrays(made)
            else:
                from ..models.given import GivenModel, digest_of_network

                target, made, digest = GivenModel, value, digest_of_network(value)
            kind, name = getattr(value, "__name__", type(value).__name__), f"{target.__module__}.{target.__qualname__}"
            nodes[group], held[digest] = {"_target_": name, "digest": digest, "kind": kind}, made
    return (rest[0] if isinstance(overrides, Mapping) else overrides), rest[1], nodes, held


@contextmanager
def _lending_objects(held: Mapping[str, Any]) -> Iterator[None]:
    """Make objects available to runs by their digests while the block is open."""
    if not held:
        yield
        return
    from ..data.given import HELD

    HELD.update(held)
    try:
        yield
    finally:
        for digest in held:
            HELD.pop(digest, None)


def _is_name(value: object) -> bool:
    """Return True for the name or the settings of a choice, or for names; these are no object."""
    if isinstance(value, Mapping):
        return "x_train" not in value and not any(hasattr(one, "shape") for one in value.values())
    return isinstance(value, str)
