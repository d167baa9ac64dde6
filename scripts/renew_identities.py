"""Gives the runs of archives the identities that today's settings give them: renew_identities.py results/*/runs.parquet

Every record must have the identity that follows from its settings, and today's checks of these settings with the
present paths of moved classes must give its new identity. The first record that fails is named, and its archive stays
as it is. A record without moved classes keeps its identity.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from typing import Any

from asyncfl_bench.config import check_settings, identity_of_tree
from asyncfl_bench.errors import BenchError
from asyncfl_bench.tracking.archive import rewrite_archive
from asyncfl_bench.tracking.records import Record

# class path in archives: where the class is now
MOVED = {
    f"asyncfl_bench.tasks.{former}.{name}": f"asyncfl_bench.{present}.{name}"
    for former, present, names in (
        ("datasets", "data.datasets", "Arrays Digits TorchvisionImages"),
        ("femnist", "data.femnist", "Femnist"),
        ("given", "data.given", "GivenData"),
        ("given", "models.given", "GivenModel"),
        ("models", "models.convolutional", "AlexNet Cnn CnnOnePool LeNet5 ResNet18 Vgg16"),
        ("models", "models.language", "FastText Lstm"),
        ("models", "models.perceptrons", "Mlp Softmax"),
        ("partition", "data.partition", "Clusters Dirichlet Iid Natural Shards"),
        ("pretrained", "models.pretrained", "Bert"),
        ("shakespeare", "data.shakespeare", "Shakespeare"),
        ("synthetic", "data.synthetic", "Synthetic"),
        ("texts", "data.texts", "Texts"),
        ("unlabelled", "data.unlabelled", "Auto HeldBack Images Noise Nothing OtherSplit OwnArray"),
    )
    for name in names.split()
}


def renewed_config(tree: dict[str, Any]) -> dict[str, Any]:
    """The config with the present paths of moved classes."""
    tree = copy.deepcopy(tree)
    for section in tree.values():
        if isinstance(section, dict) and section.get("_target_") in MOVED:
            section["_target_"] = MOVED[section["_target_"]]
    return tree


def renewed(record: Record) -> Record:
    """The record under its new identity. Raises BenchError when one of the two checks fails."""
    recorded = record.summary["identity"]
    if (former := identity_of_tree(record.config)) != recorded:
        raise BenchError(f"{record.name}: its settings give {former}, and {recorded} is recorded")
    config = renewed_config(record.config)
    identity = identity_of_tree(config)
    composed = check_settings(copy.deepcopy(config), dict(config["choices"])).identity
    if composed != identity:
        raise BenchError(f"{record.name}: its settings give {identity}, and {composed} after today's checks")
    name = record.name.removesuffix(recorded) + identity
    experiment = identity_of_tree({**config, "seed": None})
    summary = record.summary | {"name": name, "identity": identity, "experiment": experiment}
    return dataclasses.replace(record, name=name, config=config, summary=summary)


if __name__ == "__main__":
    for archive in sys.argv[1:]:
        print(f"{archive}: {rewrite_archive(archive, renewed)} runs")
