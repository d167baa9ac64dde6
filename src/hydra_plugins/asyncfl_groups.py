"""Yaml files in other folders than Hydra would look in: other places, and groups whose folder has another name.

``sweep=ace/figure2`` is ``sweeps/ace/figure2.yaml``. What a paper has for a profile, an algorithm or a scale is below
``conf/paper/PAPER/``, what a scale, also under one profile only, changes of one sweep is below ``sweeps/PAPER/SWEEP/``.
Each is a group of its own, since config.yaml names a group once only.

Plugins are in this package because Hydra accepts them from nowhere else.
"""

from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

NESTED = ("sweep", "paper")  # groups whose choices may lie in subfolders: ace/figure2
IN_PAPER = ("paper_profile", "paper_algorithm", "paper_scale")
IN_SWEEPS = ("sweep", "sweep_scale", "sweep_profile")


class GroupFolders(FileConfigSource):
    """Those groups of one place (asyncfl_bench.config.places), ``asyncfl://CONF``."""

    def __init__(self, provider: str, path: str):
        from asyncfl_bench.config.places import places

        ConfigSource.__init__(self, provider=provider, path=path)
        self._place = next(place for place in places() if str(place.conf) == self.path)
        self._folders = dict.fromkeys(IN_PAPER, "paper") | dict.fromkeys(IN_SWEEPS, str(self._place.sweeps))

    @staticmethod
    def scheme() -> str:
        return "asyncfl"

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        result = super().load_config(self._placed(config_path))
        if config_path.partition("/")[0] in IN_SWEEPS:
            _keep_choices_apart(result.config)
        return result

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", *NESTED) or super().is_group(self._placed(config_path))

    def is_config(self, config_path: str) -> bool:
        return super().is_config(self._placed(config_path))

    def list(self, config_path, results_filter):
        if config_path == "":
            return ["sweep"]
        if config_path in NESTED:  # for shell completion, which looks for choices in a group's own folder only
            return sorted(self._place.choices(config_path)) if results_filter != ObjectType.GROUP else []
        return super().list(self._placed(config_path), results_filter)

    def _placed(self, config_path: str) -> str:
        group, slash, rest = config_path.partition("/")
        return f"{self._folders[group]}{slash}{rest}" if group in self._folders else "no such folder"


def _keep_choices_apart(config: Any) -> None:
    """Moves the choices of a sweep's file, by `override` or `instead`, to sections that no paper's file changes."""
    from asyncfl_bench.config.choices import INSTEAD, SWEEP_CHOICES, SWEEP_INSTEAD
    from asyncfl_bench.config.settings import PARTS

    written = OmegaConf.to_container(config)
    if not isinstance(written, dict):
        return  # Hydra says what is wrong, here and with another kind of list
    if INSTEAD in written:
        config[SWEEP_INSTEAD] = config.pop(INSTEAD)
    defaults = written.get("defaults")
    entries = [entry for entry in defaults if isinstance(entry, dict)] if isinstance(defaults, list) else []
    choices = {str(key).rpartition("/")[2]: choice for entry in entries for key, choice in entry.items()}
    if own := {group: choice for group, choice in choices.items() if group in PARTS and "${" not in str(choice)}:
        config[SWEEP_CHOICES] = own


class AsyncflSearchPath(SearchPathPlugin):
    """Makes Hydra look there."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from asyncfl_bench.config.places import BY_HAND, given, places

        for number, place in enumerate(places()):
            provider = BY_HAND if place.conf in given() else place.source
            search_path.append(provider, f"asyncfl://{place.conf}")  # first, for another place's folder `sweep`
            if number:  # the first is Hydra's own primary folder
                search_path.append(provider, f"file://{place.conf}")
