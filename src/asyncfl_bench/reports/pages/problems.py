"""Data sets and models that runs used, and whether they used all images of a data set."""

from __future__ import annotations

import itertools

import pandas as pd

from ...config.choices import choice_file, options
from ...config.classes import defaults_of_class
from ...data.datasets import KNOWN
from ...files import read_yaml

_WIDTHS = ("model.width", "model.hidden")


def problems(runs: pd.DataFrame) -> set[str]:
    """``data set with model`` of every run, and what features of the data the model reads, if not the data.

    A network that is narrower than its choice is another model: ``cifar10 with resnet18 of width 4``.
    """
    table = runs.reindex(columns=["dataset", "model", "dataset.features", *_WIDTHS])
    table[[*_WIDTHS]] = table[[*_WIDTHS]].apply(pd.to_numeric, errors="coerce")
    return {
        f"{data} with {_name_model(model, widths)}" + ("" if pd.isna(read) else f" on features of {read}")
        for data, model, read, *widths in table.drop_duplicates().itertuples(index=False)
    }


def _name_model(model: str, widths: list[float]) -> str:
    """Return the model, with its width if that is less than the one of its choice."""
    if pd.isna(widths).all() or model not in options("model"):
        return model
    listed = read_yaml(choice_file("model", model))
    own = defaults_of_class("model", listed["_target_"]) | listed
    for key, width in zip(_WIDTHS, widths, strict=True):
        whole = own.get(key.removeprefix("model."))
        if isinstance(whole, int) and width < whole:
            return f"{model} of width {width:g}"
    return model


def partial_image_sets(runs: pd.DataFrame) -> list[str]:
    """Return the image sets of which not all images were used.

    The file has fewer, a setting asks for fewer, or some training images are held back.
    """
    said = []
    for (name, known), split in itertools.product(KNOWN.items(), ("train", "test")):
        whole, counted = getattr(known, split), f"summary.task.{split}_samples"
        used = pd.to_numeric(runs[counted][runs["dataset"] == name]) if counted in runs else runs.index[:0]
        if used.min() < whole:
            span = " to ".join(dict.fromkeys(f"{count:.0f}" for count in (used.min(), used.max())))
            said.append(f"{span} of {name}'s {whole} {split}{'ing' * (split == 'train')} images")
    return said
