"""Data sets and models that runs used, and whether they used all images of a data set."""

from __future__ import annotations

import itertools

import pandas as pd

from ...data.datasets import KNOWN


def problems(runs: pd.DataFrame) -> set[str]:
    """``data set with model`` of every run, and what features of the data the model reads, if not the data."""
    features = runs.get("dataset.features", [None] * len(runs))
    return {
        f"{data} with {model}" + ("" if pd.isna(read) else f" on features of {read}")
        for data, model, read in zip(runs["dataset"], runs["model"], features, strict=True)
    }


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
