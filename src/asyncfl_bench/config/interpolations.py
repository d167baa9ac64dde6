"""Values that stand for others: ``glob(fed*)`` and ``${oc.env:HOME}`` at once, ``${seed}`` in each run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from ..errors import ConfigError, first_line, list_some
from .choices import Composition, groups, options
from .overrides import Override, parse_override, type_text, type_value

# Hydra's folders, with what conf/config.yaml sets
FOLDERS = {"hydra.run.dir": "${output_dir}", "hydra.sweep.dir": "${output_dir}", "hydra.sweep.subdir": "."}


def has_interpolation(node: Any) -> bool:
    """Return True if a text in nested dicts and lists refers to another value."""
    if isinstance(node, Mapping):
        return any(map(has_interpolation, node.values()))
    return any(map(has_interpolation, node)) if isinstance(node, list) else isinstance(node, str) and "${" in node


def expand_overrides(overrides: Iterable[str]) -> list[str]:
    """Return overrides where globs over a group and interpolations that need no config are as if typed in full.

    ``algorithm=glob(fed*)`` lists choices, ``seed=${oc.env:ID}`` has a number. An interpolation that refers to settings
    stays, and one that cannot be resolved, which is refused when it is composed. Raises ConfigError.
    """
    return [_resolve_alone(parse_override(_expand_glob(text))) for text in overrides]


def _expand_glob(text: str) -> str:
    """Raise ConfigError for a glob that no choice matches."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, _, value = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not value.startswith("glob(") or (group := key.lstrip("+")) not in groups():
        return text
    try:
        glob: Any = OverridesParser.create().parse_override(text).value()
        found = glob.filter(options(group))
    except HydraException:
        return text  # refused when it is parsed
    if not found:
        raise ConfigError(key, value, f"must match a choice: {list_some(options(group), f'afl-run --help {group}')}")
    return f"{key}={','.join(found)}"


def _resolve_alone(one: Override) -> str:
    """Return an override with what its interpolations are without a config."""
    from hydra.core.utils import setup_globals

    if "${" not in one.text or one.draw is not None or one.is_deletion:
        return one.text
    setup_globals()
    key, texts = one.key, []
    for text in one.values:
        try:
            tree = OmegaConf.create({"value": parse_override(f"{key}={text}").value})
            value = cast(dict[str, Any], OmegaConf.to_container(tree, resolve=True))["value"]
        except OmegaConfBaseException:
            texts.append(text)
        else:
            texts.append(type_text(key, value).partition("=")[2] if isinstance(value, str) else type_value(key, value))
    return f"{one.text.partition('=')[0]}={','.join(texts)}"


class RunConfig:
    """What is composed for one run, where each interpolation has the value of this run.

    tree    the settings as dicts and lists
    hydra   Hydra's settings, shared by runs of the same files; ``folder`` has those that differ
    refers  True if a setting refers to another one
    added   keys of settings that no yaml file lists, which Hydra takes as ``++key`` only
    Raises ConfigError for an interpolation that cannot be resolved.
    """

    def __init__(
        self, composed: Composition, tree: dict[str, Any], words: Sequence[Override], clock: Any, added: set[str]
    ) -> None:
        """tree: the settings, with interpolations as text; clock: an empty config that keeps ``${now:…}`` of all runs
        equal."""
        self.hydra, self.added = composed.config.hydra, added
        self._composed, self._raw, self._words, self._clock = composed, tree, words, clock
        self._full_configs: dict[int | None, Any] = {}
        self.refers = has_interpolation(tree)
        self.tree = self._resolved_tree() if self.refers else tree

    def folder(self, key: str, number: int | None = None) -> str | None:
        """Return one of Hydra's folders; None if neither a word nor a file names it. number: of the job in its
        multirun.

        Raises ConfigError.
        """
        text = _value_at(self._composed.raw_hydra, key.removeprefix("hydra."))
        if text == FOLDERS[key] and key not in {one.key for one in self._words}:
            return None
        if not has_interpolation(text):
            return str(text)
        with self._resolving(number, key) as full:
            folder = OmegaConf.select(full, key, throw_on_missing=True)
        if folder is None:
            raise ConfigError(key, text, "must be a directory")
        return str(folder)

    def _resolved_tree(self) -> dict[str, Any]:
        with self._resolving(None) as full:
            alone = OmegaConf.masked_copy(full, [*self._raw])  # as a run has it: Hydra removes its own section
            return cast(dict[str, Any], OmegaConf.to_container(alone, resolve=True))

    def _full_config(self, number: int | None) -> Any:
        """Return the config of this run with Hydra's settings."""
        hydra = self._composed.raw_hydra
        style, words = hydra["job"]["config"]["override_dirname"], [one for one in self._words if not one.is_for_hydra]
        shown = sorted(one.text for one in words if one.key not in style["exclude_keys"])
        dirname = style["item_sep"].join(shown).replace("=", style["kv_sep"])
        numbers = {} if number is None else {"num": number, "id": str(number)}
        own = {
            "job": {**hydra["job"], "override_dirname": dirname, **numbers},
            "overrides": {**hydra["overrides"], "task": [one.text for one in words]},
        }
        return OmegaConf.create({**self._raw, "hydra": {**hydra, **own}})

    @contextmanager
    def _resolving(self, number: int | None, key: str = "") -> Iterator[Any]:
        """Yield the config of this run, which ``${hydra:…}`` reads, too. Raises ConfigError for what cannot be
        resolved in the block."""
        from hydra.core.hydra_config import HydraConfig

        if number not in self._full_configs:
            self._full_configs[number] = self._full_config(number)
        full, held = self._full_configs[number], HydraConfig.instance()
        before, held.cfg = held.cfg, full
        OmegaConf.copy_cache(self._clock, full)
        try:
            yield full
        except OmegaConfBaseException as error:
            key = key or str(error.full_key)
            is_unset = isinstance(error, InterpolationToMissingValueError)
            why = "refers to a value that is not set" if is_unset else f"cannot be resolved: {first_line(error)}"
            text = _value_at({**self._raw, "hydra": self._composed.raw_hydra}, key)
            raise ConfigError(key, text, why) from None
        finally:
            OmegaConf.copy_cache(full, self._clock)
            held.cfg = before


def _value_at(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key, or the list or text that holds it."""
    node: Any = tree
    for name in key.replace("[", ".[").split("."):
        node = node[name] if isinstance(node, Mapping) else node
    return node
