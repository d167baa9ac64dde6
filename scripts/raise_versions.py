"""Give the archived runs of FedAC and PORT the results version of the code that made them.

Commit c10aa57b changed the numbers of both rules. A run whose git revision has it as an ancestor gets the rule's
version; an earlier run keeps its own and is not shown.

    python scripts/raise_versions.py results/*/archive
"""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import replace

from asyncfl_bench.config.settings import RULE_VERSIONS
from asyncfl_bench.tracking.archive import rewrite_archive
from asyncfl_bench.tracking.records import Record

CHANGE = "c10aa57bf2b87c1bd75cc965a916e642ff3a4aa0"


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
    for archive in archives:
        raised: list[str] = []

        def change(record: Record, raised: list[str] = raised) -> Record:
            new = raise_version(record)
            if new is not record:
                raised.append(record.name)
            return new

        print(f"{archive}: {rewrite_archive(archive, change)} runs, {len(raised)} of them raised")


if __name__ == "__main__":
    main(sys.argv[1:])
