"""Flags of Hydra, with the settings that a run would have, and options that name folders."""

from __future__ import annotations

import os
from contextlib import suppress

from ..config.choices import substituted_choices
from ..config.composition import Compositions
from ..config.overrides import parse_override
from ..config.part_sources import take_folders
from ..config.suggestions import suggest_option
from ..errors import ConfigError, InputError, must_be_one_of
from ..files import show
from ..multirun.decide_words import KEYS
from ..multirun.run import run_hydra

FOLDER_FLAGS = {"--resume": ("resume", "a run directory"), "--archive": ("archive_dir", "a folder of archives")}
_CONFIG_FLAGS = ("--cfg", "-c", "--info", "-i")
_COMPLETION_FLAGS = ("-sc", "--shell-completion")
_FLAGS_OF_CONFIG = ("--resolve", "--package", "-p")  # go with --cfg
HYDRA_FLAGS = (*_CONFIG_FLAGS, *_COMPLETION_FLAGS, "--hydra-help", *_FLAGS_OF_CONFIG)
_OWN_FLAGS = ("--plan", "--measure", "--check", "--json", *FOLDER_FLAGS)
_SHOWN = ("job", "hydra", "all")
_FACTS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_SHELLS = tuple(f"{what}={shell}" for what in ("install", "uninstall", "query") for shell in ("bash", "zsh", "fish"))
_VALUES: dict[str, tuple[str, ...]] = {"--cfg": _SHOWN, "-c": _SHOWN, "--info": _FACTS, "-i": _FACTS}
_VALUES |= dict.fromkeys(_COMPLETION_FLAGS, _SHELLS)


def run_hydra_flags(arguments: list[str]) -> int:
    """Run one of Hydra's flags with the settings that a run would have."""
    for number, word in enumerate(arguments):
        if word.startswith("--") and word.partition("=")[0] not in (*HYDRA_FLAGS, "--multirun", "--run"):
            raise unknown_option(word, arguments[number + 1 :])
    arguments = _with_flag_values(arguments)
    shows_config = any(a in _CONFIG_FLAGS for a in arguments)
    if not shows_config and (other := [a for a in arguments if a in _FLAGS_OF_CONFIG]):
        raise InputError(f"{other[0]}: goes with --cfg job")
    if shows_config and {"-m", "--multirun"} & set(arguments):
        raise ConfigError("-m", "", "does not go with --cfg or --info, which show one run's settings")
    if any(a in _COMPLETION_FLAGS for a in arguments):
        asked = [a for a in arguments if a.startswith("query=")]
        if asked and not os.environ.get("COMP_LINE"):
            shell = asked[0].partition("=")[2]
            raise ConfigError("-sc", asked[0], f"is for the shell; afl-run -sc install={shell} prints what it needs")
        # print the words of `decide` that complete the line, and remove those that Hydra does not know from it
        line, *words = os.environ.get("COMP_LINE", "").split(" ")
        with suppress(ConfigError):  # an option half written
            words = [text for text in take_folders(words) if text not in _OWN_FLAGS]
        last = words[-1] if words else ""
        for key in KEYS if last else ():
            if key.startswith(last):
                show(f"{key}=")
        words = [text for text in words[:-1] if text.partition("=")[0] not in KEYS] + words[-1:]
        os.environ["COMP_LINE"] = " ".join([line, *words])
    if shows_config:
        words = [a for a in arguments if "=" in a and not a.startswith("-")]
        budget = Compositions().settings(words).tree["budget"]
        replaced = [f"budget.{key}=null" for key, limit in budget.items() if limit is None]
        rest = [a for a in arguments if a not in words]
        added = Compositions().config(words).added  # which Hydra takes as ++key only
        words = [f"++{word}" if parse_override(word).key in added else word for word in words]
        arguments = [*rest, *substituted_choices(words), *replaced, *words]
    return run_hydra(arguments)


def _with_flag_values(arguments: list[str]) -> list[str]:
    """Return the arguments with a value behind each of Hydra's flags that has one. Raises ConfigError."""
    checked, rest = [], list(arguments)
    while rest:
        checked.append(flag := rest.pop(0))
        value = rest[0] if rest and not rest[0].startswith("-") else ""
        if flag in ("--package", "-p") and not value:
            raise ConfigError(flag, "", f"must name a part of the config: afl-run --cfg job {flag} delay")
        if (known := _VALUES.get(flag)) is None:
            continue
        if value in known:
            checked.append(rest.pop(0))
        elif flag in _CONFIG_FLAGS and (not value or "=" in value):
            checked.append(known[0])
        else:
            raise ConfigError(flag, value, must_be_one_of(value, known))
    return checked


def unknown_option(word: str, rest: list[str]) -> InputError:
    """Return the refusal of an option that there is not, with what to type. rest: the words behind it."""
    return InputError(f"{word}: {suggest_option(word, rest[0] if rest else None, Compositions().config([]).tree)}")
