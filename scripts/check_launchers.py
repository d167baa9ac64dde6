"""Starts small multiruns with the launchers named, breaks them, and prints a table of what came of it (Linux).

python scripts/check_launchers.py cores slurm_local ray_local
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

AFL_RUN = [sys.executable, "-m", "asyncfl_bench.cli", "-m"]
SMALL = ["scale=smoke", "model=softmax", "progress=false", "algorithm=asgd", "evaluation.every=1000"]
LONG = [*SMALL, "budget.server_iterations=15000", "seed=0,1,2,3"]  # four runs of several seconds
WAIT = 300.0  # seconds for anything that is waited for


def main(names: list[str]) -> None:
    print("| launcher | four runs, s | a run diverges | kill -9 of a run | SIGTERM of the sweep |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for name in names or ["basic", "cores", "slurm_local", "ray_local"]:
        answers = [check(name) for check in (plain, diverging, killed, stopped)]
        print(f"| `{name}` | {' | '.join(answers)} |", flush=True)


def begin(name: str, folder: Path, words: list[str]) -> subprocess.Popen:
    """The sweep in a session of its own, so that what is sent to it does not reach this process."""
    command = [*AFL_RUN, *words, f"hydra/launcher={name}", f"output_dir={folder}"]
    with open(folder / "log", "a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def plain(name: str) -> str:
    with tempfile.TemporaryDirectory() as place:
        started = time.monotonic()
        code = begin(name, Path(place), LONG).wait(WAIT)
        return f"{time.monotonic() - started:.0f} ({count(place, 'ok')} ok, exit {code})"


def diverging(name: str) -> str:
    with tempfile.TemporaryDirectory() as place:
        words = [*SMALL, "algorithm=fedbuff", "client.lr=1e38,0.05", "seed=0,1"]
        code = begin(name, Path(place), words).wait(WAIT)
        return f"{count(place, 'ok')} of 2 others ok, {named(place)} named, exit {code}"


def killed(name: str) -> str:
    with tempfile.TemporaryDirectory() as place:
        sweep = begin(name, Path(place), LONG)
        os.kill(process_at_a_run(place, sweep), signal.SIGKILL)
        code = sweep.wait(WAIT)
        answer = f"{count(place, 'ok')} of 4 ok, {named(place)} named, exit {code}"
        return f"{answer}; again: {repeated(name, place)}"


def stopped(name: str) -> str:
    with tempfile.TemporaryDirectory() as place:
        sweep = begin(name, Path(place), LONG)
        process_at_a_run(place, sweep)
        sweep.terminate()
        code = sweep.wait(WAIT)
        answer = f"{count(place, 'interrupted')} saved, exit {code}"
        return f"{answer}; again: {repeated(name, place)}"


def repeated(name: str, place: str) -> str:
    code = begin(name, Path(place), LONG).wait(WAIT)
    return f"{count(place, 'ok')} ok, exit {code}"


def count(place: str, status: str) -> int:
    found = [json.loads(path.read_text())["exit_status"] for path in Path(place).glob("*/summary.json")]
    return found.count(status)


def named(place: str) -> int:
    """Runs in the closing list of what did not finish."""
    return sum(line.startswith("  afl-run") for line in (Path(place) / "log").read_text().splitlines())


def process_at_a_run(place: str, sweep: subprocess.Popen) -> int:
    """The process that holds the lock of a run that has evaluated twice."""
    until = time.monotonic() + WAIT
    while time.monotonic() < until and sweep.poll() is None:
        for metrics in Path(place).glob("*/metrics.jsonl"):
            lock = metrics.parent / ".lock"
            if len(metrics.read_text().splitlines()) < 2 or not lock.exists():
                continue
            inode = str(lock.stat().st_ino)
            for words in map(str.split, Path("/proc/locks").read_text().splitlines()):
                if words[1] == "FLOCK" and words[5].split(":")[2] == inode:
                    return int(words[4])
        time.sleep(0.1)
    raise SystemExit(f"no run came under way:\n{(Path(place) / 'log').read_text()}")


if __name__ == "__main__":
    main(sys.argv[1:])
