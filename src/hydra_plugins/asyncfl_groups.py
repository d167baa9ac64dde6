"""Groups whose yaml files are in another folder than their name says, for Hydra to find them.

``sweep=ace/figure2`` is ``sweeps/ace/figure2.yaml``. What a paper has for a profile, an algorithm or a scale is below
``conf/paper/PAPER/``; each of the three is a group of its own, since config.yaml names a group once only.

Plugins are in this package because Hydra accepts them from nowhere else.
"""

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin

# group: folder, seen from conf/
FOLDERS = {"sweep": "../sweeps", "paper_profile": "paper", "paper_algorithm": "paper", "paper_scale": "paper"}


class GroupFolders(FileConfigSource):
    """The yaml files of FOLDERS under their groups' names."""

    def __init__(self, provider: str, path: str):
        from asyncfl_bench.config.choices import config_directory

        ConfigSource.__init__(self, provider=provider, path=path)
        self.path = str(config_directory())

    @staticmethod
    def scheme() -> str:
        return "asyncfl"

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        return super().load_config(_placed(config_path))

    def is_group(self, config_path: str) -> bool:
        return super().is_group(_placed(config_path))

    def is_config(self, config_path: str) -> bool:
        return super().is_config(_placed(config_path))

    def list(self, config_path, results_filter):
        return super().list(_placed(config_path), results_filter)


def _placed(config_path: str) -> str:
    group, slash, rest = config_path.partition("/")
    return f"{FOLDERS[group]}{slash}{rest}" if group in FOLDERS else "no such folder"


class AsyncflSearchPath(SearchPathPlugin):
    """Makes Hydra look there."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("asyncfl_bench", "asyncfl://groups")
