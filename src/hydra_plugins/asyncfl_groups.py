"""Yaml that Hydra would not find: groups of other sources, the folder ``sweeps/``, and sections of papers and sweeps.

``sweep=ace/figure2`` is ``sweeps/ace/figure2.yaml``. Settings that a file of `paper` or `sweep` has for one profile,
algorithm or scale are in its sections (asyncfl_bench.config.choices). Each kind of section is a group for Hydra.

Plugins are in this package because Hydra accepts them from nowhere else.
"""

import pickle
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath, SearchPathElement
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

PRIMARY = "config"  # the file that lists the groups
NESTED = ("sweep", "paper")  # groups whose choices may be in subfolders: ace/figure2
_pickles: dict[tuple[str, Path, int], bytes] = {}  # a file by source, path and last change: parsing YAML is slow


class GroupFolders(FileConfigSource):
    """The yaml files of one source without their sections, and the sections of all sources, ``asyncfl://CONF``.

    A source is a folder of groups (asyncfl_bench.config.part_sources)."""

    def __init__(self, provider: str, path: str):
        from asyncfl_bench.config.part_sources import part_sources

        ConfigSource.__init__(self, provider=provider, path=path)
        self._source = next(source for source in part_sources() if str(source.conf) == self.path)

    @staticmethod
    def scheme() -> str:
        return "asyncfl"

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        if (settings := _section(config_path)) is not None:
            header: dict[str, str | None] = {"package": "_global_"}
            result = ConfigResult(self.provider, f"{self.scheme()}://{self.path}", OmegaConf.create(settings), header)
            return _with_moved_choices(config_path, result)
        file = Path(self.path, self._normalize_file_name(self._placed(config_path)))
        key = (self.provider, file, file.stat().st_mtime_ns)
        if key not in _pickles:
            _pickles[key] = pickle.dumps(_with_moved_choices(config_path, self._read_file(config_path, file)))
        return pickle.loads(_pickles[key])  # Hydra changes what it gets

    def _read_file(self, config_path: str, file: Path) -> ConfigResult:
        """Return a file without its sections. Raises ConfigError."""
        from asyncfl_bench.config.choices import SECTIONS
        from asyncfl_bench.config.settings import ORIGINS
        from asyncfl_bench.errors import ConfigError, describe_location, locating_yaml_errors

        group, _, choice = config_path.partition("/")
        with locating_yaml_errors(group, choice, file):
            result = super().load_config(self._placed(config_path))
        written: Any = result.config
        if not OmegaConf.is_dict(written):
            write = "write a line KEY: VALUE for each setting"
            raise ConfigError(group, choice, f"{describe_location(file)}: holds a list; {write}")
        if group in ORIGINS and written and result.header["package"] != "_global_":
            raise ConfigError(group, choice, f"{describe_location(file, 1)}: must be the line # @package _global_")
        for section in SECTIONS:
            written.pop(section, None)
        result.config = _with_defaults(group, written)
        return result

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", *NESTED) or super().is_group(self._placed(config_path))

    def is_config(self, config_path: str) -> bool:
        return _section(config_path) is not None or super().is_config(self._placed(config_path))

    def list(self, config_path, results_filter):
        if config_path == "":
            return [*super().list("", results_filter), "sweep"]
        if config_path in NESTED:  # for shell completion, which looks for choices in a group's own folder only
            return sorted(self._source.choices(config_path)) if results_filter != ObjectType.GROUP else []
        return super().list(self._placed(config_path), results_filter)

    def _placed(self, config_path: str) -> str:
        group, slash, rest = config_path.partition("/")
        return f"{self._source.folder(group)}{slash}{rest}" if group in NESTED else config_path


def _section(config_path: str) -> dict[str, Any] | None:
    from asyncfl_bench.config.choices import VARIANTS, variant

    group, _, choice = config_path.partition("/")
    return variant(group, choice) if group in VARIANTS else None


def _with_defaults(group: str, config: Any) -> Any:
    """Return the settings of a file with the defaults that classes declare and the file does not list."""
    from asyncfl_bench.config.classes import class_sections, defaults_of_class
    from asyncfl_bench.config.settings import LISTED, PARTS, ROOT_SECTIONS, RootConfig
    from asyncfl_bench.ranges import default_values

    if group == PRIMARY:
        sections = {name: default_values(schema) for name, schema in ROOT_SECTIONS.items()}
        return OmegaConf.merge(default_values(RootConfig) | sections, config)
    if group not in (*PARTS, *LISTED) or any(isinstance(one, str) for one in config.get("defaults", [])):
        return config  # it changes another choice
    sections = class_sections(group, OmegaConf.to_container(config))
    filled = {key: defaults_of_class(group, str(one["_target_"])) for key, one in sections.items()}
    return OmegaConf.merge(filled.get("", filled), config)


def _with_moved_choices(config_path: str, result: ConfigResult) -> ConfigResult:
    """Return ``result`` with choices of groups in separate sections. Raises ConfigError."""
    group, _, choice = config_path.partition("/")
    if result.header["package"] == "_global_":
        _move_choices(group, choice, result.config)
    if group.startswith("sweep"):
        _keep_choices_apart(result.config)
    return result


def _move_choices(group: str, choice: str, config: Any) -> None:
    """Move ``algorithm: fedbuff``, which is the choice of a group, to the section that chooses.

    Raises ConfigError for several choices, and for one that belongs into the defaults list.
    """
    from asyncfl_bench.config.choices import INSTEAD
    from asyncfl_bench.config.settings import ORIGINS, PARTS
    from asyncfl_bench.errors import ConfigError

    written: Any = OmegaConf.to_container(config)
    found: dict[str, str] = {}
    for name, value in written.items():
        if name not in (*PARTS, *ORIGINS):
            continue
        if name in ORIGINS:
            write = f"below defaults: write the line - override /{name}: {value}"
        elif isinstance(value, list) or (isinstance(value, str) and "," in value):
            values = ",".join(map(str, value)) if isinstance(value, list) else value
            write = f"below params: of sweeper: of hydra: write the line {name}: {values}"
        else:
            found |= {name: value} if isinstance(value, str) and "${" not in value else {}
            continue
        raise ConfigError(group, choice, f"its line {name}: {value} is not a setting; {write}")
    for name in found:
        config.pop(name)
    if found:
        chosen = written.get(INSTEAD)
        config[INSTEAD] = found | chosen if isinstance(chosen, dict) else found


def _keep_choices_apart(config: Any) -> None:
    """Move the choices of a sweep's file, by `override` or `instead`, to sections that no paper's file changes."""
    from asyncfl_bench.config.choices import INSTEAD, SWEEP_CHOICES, SWEEP_INSTEAD
    from asyncfl_bench.config.settings import PARTS

    written: Any = OmegaConf.to_container(config)
    if INSTEAD in written:
        config[SWEEP_INSTEAD] = config.pop(INSTEAD)
    defaults = written.get("defaults")
    entries = [entry for entry in defaults if isinstance(entry, dict)] if isinstance(defaults, list) else []
    choices = {str(key).rpartition("/")[2]: choice for entry in entries for key, choice in entry.items()}
    if own := {group: choice for group, choice in choices.items() if group in PARTS and "${" not in str(choice)}:
        config[SWEEP_CHOICES] = own


class AsyncflSearchPath(SearchPathPlugin):
    """Adds these sources to those that Hydra searches, this package's own before the folder that Hydra itself reads."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from asyncfl_bench.config.part_sources import BY_HAND, named_folders, part_sources

        path, (own, *others) = search_path.get_path(), part_sources()
        at = [number for number, one in enumerate(path) if one.path.removeprefix("file://") == str(own.conf)]
        path.insert(at[0] if at else len(path), SearchPathElement(own.label, f"asyncfl://{own.conf}"))
        for source in others:
            provider = BY_HAND if source.conf in named_folders() else source.label
            search_path.append(provider, f"asyncfl://{source.conf}")
