"""Suggestions for settings and options that do not exist: ``lr`` is ``client.lr``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import MOST_LISTED, did_you_mean
from .choices import choices_with, groups
from .classes import part_class
from .other_names import other_names, without_marks
from .overrides import flat_items
from .settings import PARTS

USAGE = """\
  afl-run algorithm=ace delay=exp_beta30             one run
  afl-run -m algorithm=ace,fedbuff seed=0,1,2        a grid of runs
  afl-run sweep=ace/figure2 scale=small --plan       what a sweep would run, and how long; --measure tries it
  afl-run -m algorithm=ace,mine decide=true          adds seeds until each pair is decided
  afl-run --resume DIR                               resume an interrupted run
  afl-run sweep=ace/figure2 --archive DIR            finished runs are those in archives below DIR
  afl-run --list [WHERE]                             past runs: state, accuracy, command
  afl-run --replay DIR                               repeat a live run in the simulator; the same bits?
  afl-run --repeat ARCHIVE IDENTITY                  repeat an archived run; the same numbers?
  afl-run --live-app DIR algorithm=ca2fl             write a live run as a Flower app, and how to start it
  afl-run --sync runs                                send what W&B kept offline
  afl-run --import-fleet FILE                        devices of FedScale or FLASH as a file of a fleet
  afl-run --config-dir DIR algorithm=mine            parts of your own, from a folder like conf/
  afl-run --check algorithm=mine                     check a server rule of yours against the contract
  afl-run --help algorithm=ace                       a choice's settings; --help algorithm lists the choices
  afl-run algorithm=ace --cfg job                    show the composed settings, run nothing
  --json behind a run, --plan, --check or --list     one object for a program"""
OPTIONS = [*dict.fromkeys(re.findall("--[a-z-]+", USAGE)), "--version", "--multirun"]


def suggest_setting(key: str, value: str, tree: Mapping[str, Any]) -> str:
    """Return ``lr is client.lr; write client.lr=0.1`` for a key that is not a setting, or an empty string.

    tree  the settings that there are, as nested sections
    The last part of the key is compared with that of every setting, and with names of other tools.
    """
    name = key.rpartition(".")[2]
    plain, settings = without_marks(name), [*groups(), *(path for path in _paths(tree) if path != key)]
    found = [path for path in settings if without_marks(path.rpartition(".")[2]) == plain]
    target = other_names().get(("setting", plain), name)
    if (target == "client.lr" or plain == "lr") and "algorithm.eta" in settings:
        kinds = part_class("algorithm._target_", str(tree["algorithm"]["_target_"])).upload_kinds
        upload = tree["client"].get("upload", "auto")
        if (kinds[0] if upload == "auto" else upload) == "gradient":  # then the local step has no effect
            target, found = "algorithm.eta", ["algorithm.eta"]
    condition = ""
    if not found and (target in settings or "=" in target):
        found = [target]
    elif not found:  # the parts that are chosen do not have it, others may
        group, dot, last = target.rpartition(".")
        owners = {one: choices for one in ([group] if dot else PARTS) if (choices := choices_with(one, last))}
        found = [f"{one}.{last}" for one in owners]
        shown = [f"{one}.{last} with {one}={'|'.join(of[:MOST_LISTED])}" for one, of in owners.items()]
        condition = next((f"{one}={of[0] if len(of) == 1 else 'NAME'} " for one, of in owners.items()), "")
    if not found:
        return ""
    setting, fixed, of_target = found[0].partition("=")
    is_what = " or ".join((shown if condition else found)[:MOST_LISTED])
    return f"{name} is {is_what}; write {condition}{setting}={of_target if fixed else value or 'VALUE'}"


def suggest_option(word: str, following: str | None, tree: Mapping[str, Any]) -> str:
    """Return a suggestion for an option that does not exist: ``write seed=1`` for ``--seed=1``.

    following  the next word of the command line; tree: as in ``suggest_setting``
    """
    name, given, value = word.lstrip("-").partition("=")
    if other := other_names().get(("option", without_marks(name))):
        return f"no such option; write {other}"
    if not given and following and not following.startswith("-") and "=" not in following:
        value = following
    key = name.replace("-", "_")
    if key in (*_paths(tree), *groups()):
        return f"a setting has no dashes; write {key}={value or 'VALUE'}"
    if said := suggest_setting(key, value, tree):
        return f"a setting has no dashes; {said}"
    return f"no such option{did_you_mean(word.partition('=')[0], OPTIONS)}; afl-run --help shows what there is"


def _paths(tree: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys of all settings, without sections."""
    return [key for key, _ in flat_items(tree) if not key.endswith("_target_")]
