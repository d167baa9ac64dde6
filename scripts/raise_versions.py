"""Give the archived runs of FedAC and PORT the results version of the code that made them.

Commit c10aa57b changed the numbers of both rules. A run whose git revision has it as an ancestor gets the rule's
version; an earlier run keeps its own and is not shown.

    python scripts/raise_versions.py results/*/archive
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from asyncfl_bench.config.settings import RULE_VERSIONS
from asyncfl_bench.errors import BenchError
from asyncfl_bench.tracking import archive
from asyncfl_bench.tracking.records import Record

CHANGE = "c10aa57bf2b87c1bd75cc965a916e642ff3a4aa0"


def rewrite_archive(target: str | Path, change: Callable[[Record], Record]) -> int:
    """Write each run of an archive as ``change`` returns it. Identity and name follow from its config.

    ``change`` gets the stored runs, inconsistent ones included. A folder keeps its batches, under new digests
    and without superseded runs. Returns the number of runs. Raises BenchError, without a change, if a file cannot be
    read or two runs get one identity.
    """
    target = Path(target)
    with FileLock(target.with_name(f".{target.name}.lock")):
        changed = {
            file: [change(record) for record in archive.unpack_records(archive.read_table(file), file)]
            for file in archive.archive_files(target)
        }
        records = [record for batch in changed.values() for record in batch]
        if len({(record.identity, record.code) for record in records}) < len(records):
            raise BenchError(f"{target}: two runs would have one identity; the archive is unchanged")
        for file, batch in changed.items():
            if file == target:
                archive.write_archive(batch, target)
            elif archive.add_batch(target, batch) != file:
                file.unlink()
        if target.is_dir():
            (target / archive.SUPERSEDED).unlink(missing_ok=True)
    return len(records)


@functools.cache
def has_change(revision: str) -> bool:
    """Return True if a git revision has the change as an ancestor. A trailing + marks uncommitted edits."""
    asked = ["git", "merge-base", "--is-ancestor", CHANGE, revision.rstrip("+")]
    return subprocess.run(asked, check=False).returncode == 0


def raise_version(record: Record) -> Record:
    """Return the run with the version of its rule, if the change is in its code."""
    version = RULE_VERSIONS.get(record.config["algorithm"]["_target_"])
    if version is None or not has_change(record.summary["git_revision"]):
        return record
    return replace(record, summary=record.summary | {"results_version": version})


def main(archives: list[str]) -> None:
    for target in archives:
        raised: list[str] = []

        def change(record: Record, raised: list[str] = raised) -> Record:
            new = raise_version(record)
            if new is not record:
                raised.append(record.name)
            return new

        print(f"{target}: {rewrite_archive(target, change)} runs, {len(raised)} of them raised")


if __name__ == "__main__":
    main(sys.argv[1:])
