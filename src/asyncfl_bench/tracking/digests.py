"""Digests of a run's files in its summary.json: a flipped bit is found before its number is used.

The entry ``files`` has the SHA-256 of each other file of the run, and of the summary without the digest of itself.
Directories of earlier versions lack the entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import sha256_of, to_json_types

FILES = "files"
SUMMARY_NAME = "summary.json"
_LARGEST = 2**36  # bytes of a file


def sealed_summary(summary: Mapping[str, Any], directory: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the summary as JSON types, with the entry ``files``.

    names  of files that are digested, those that are there; a summary that has the entry keeps the digests in it
    Raises OSError for a file that cannot be read, TypeError for a value that JSON does not have.
    """
    known = summary.get(FILES)
    if known is None:
        known = {name: sha256_of(directory / name) for name in names if (directory / name).is_file()}
    content: Any = to_json_types({**summary, FILES: {**known}})
    content[FILES][SUMMARY_NAME] = _content_digest(content)
    return dict(content)


def describe_changed_file(summary: Mapping[str, Any], directory: Path, names: Sequence[str]) -> str:
    """Return which of the files is not the one that the run wrote, in a few words; empty if none is.

    A file that is missing is not changed, and neither is any file of a summary without digests.
    Raises OSError for a file that cannot be read, or that no run writes.
    """
    if FILES not in summary:
        return ""
    known = summary[FILES]
    if not isinstance(known, dict) or known.get(SUMMARY_NAME) != _content_digest(summary):
        return f"{SUMMARY_NAME} is not the file that the run wrote"
    for name in names:
        if (directory / name).is_file() and known.get(name) != sha256_of(directory / name, _LARGEST):
            return f"{name} is not the file that the run wrote"
    return ""


def _content_digest(summary: Mapping[str, Any]) -> str:
    """Return the digest of a summary, without the digest of itself, whatever its layout in the file."""
    others = {name: digest for name, digest in summary[FILES].items() if name != SUMMARY_NAME}
    return hashlib.sha256(json.dumps({**summary, FILES: others}, sort_keys=True).encode()).hexdigest()
