"""Work and replies as bytes, without pickle, so that received bytes are never executed."""

from __future__ import annotations

import io
import json
import zipfile
from importlib import metadata
from typing import Any

import numpy as np

VECTORS = ("start", "center", "shift")  # sent with work: WorkQueue.start


def versions() -> dict[str, str]:
    """Return the versions that server and clients should share."""
    return {name: metadata.version(name) for name in ("asyncfl_bench", "torch")}


def pack(facts: dict[str, Any], **arrays: np.ndarray | None) -> bytes:
    """Return facts and the arrays that are not None as bytes."""
    file = io.BytesIO()
    np.savez(file, facts=json.dumps(facts), **{name: one for name, one in arrays.items() if one is not None})  # type: ignore[arg-type]
    return file.getvalue()


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (facts, arrays), which together are at most as large as the content.

    Raises ValueError for content that ``pack`` did not write.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:  # compressed or overlapping files would be larger
            members = archive.infolist()
        plain = all(one.compress_type == zipfile.ZIP_STORED for one in members)
        if not plain or sum(one.file_size for one in members) > len(content):
            raise ValueError
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(str(arrays.pop("facts")))
    except Exception as error:  # of a damaged archive zipfile, NumPy and json each raise their own
        raise ValueError(f"not a message ({type(error).__name__})") from None
    if not isinstance(facts, dict):
        raise ValueError("not a message (no facts)")
    return facts, arrays
