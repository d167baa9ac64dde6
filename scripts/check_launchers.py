"""Starts small multiruns with the launchers named, breaks them, and prints a table of the results (Linux).

python scripts/check_launchers.py cores slurm_local ray_local
python scripts/check_launchers.py slurm    on this machine's cluster, or on one of one node (slurmctld, slurmd, munged)
python scripts/check_launchers.py ray      on two nodes of `ray start`, both on this machine
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from clusters import slurm, two_ray_nodes

AFL_RUN = [sys.executable, "-m", "asyncfl_bench", "-m"]
SMALL = ["scale=smoke", "model=softmax", "progress=false", "algorithm=asgd", "evaluation.every=1000"]
LONG = [*SMALL, "budget.server_iterations=15000", "seed=0,1,2,3"]  # four runs of several seconds
WAIT = 600.0  # seconds for anything that is waited for


CLUSTERS = {
    "slurm": [
        "hydra/launcher=slurm",
        *(f"hydra.launcher.{key}" for key in ("gpus_per_node=null", "mem_gb=null", "cpus_per_task=1")),
        "device=cpu",
    ],
    "ray": ["hydra/launcher=ray_cluster", "device=cpu"],
}


def main(names: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # clusters and sweeps are ended, not left behind
    for name in [name for name in names if name in CLUSTERS]:
        names.remove(name)
        {"slurm": check_slurm, "ray": check_ray}[name]()
        if not names:
            return
    print("| launcher | four runs, s | a run diverges | kill -9 of a run | SIGTERM of the sweep |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for name in names or ["basic", "cores", "slurm_local", "ray_local"]:
        answers = [check(name) for check in (plain, diverging, killed, stopped)]
        print(f"| `{name}` | {' | '.join(answers)} |", flush=True)


def begin(name: str, folder: Path, words: list[str]) -> subprocess.Popen:
    """Start the sweep in a new session, so that its signals do not reach this process."""
    if name == "slurm":
        words = [*words, f"hydra.launcher.name={folder.name}"]
    command = [*AFL_RUN, *words, *CLUSTERS.get(name, [f"hydra/launcher={name}"]), f"output_dir={folder}"]
    with open(folder / "log", "a", encoding="utf-8") as log:
        sweep = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    atexit.register(sweep.terminate)  # where this script is ended before it
    return sweep


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


def check_slurm() -> None:
    """Check Slurm on a shared disk, which all nodes of the cluster must see (TMPDIR)."""
    with slurm():
        report("slurm", {"four runs": plain, "requeued in the middle": requeued, "time limit": out_of_time})


def check_ray() -> None:
    with two_ray_nodes() as lose_one:
        report("ray", {"four runs": plain, "SIGTERM of the sweep": stopped, "a node lost": lambda n: lost(n, lose_one)})


def report(name: str, checks: dict) -> None:
    print(f"| {name} | outcome |\n| --- | --- |", flush=True)
    for title, check in checks.items():
        print(f"| {title} | {check(name)} |", flush=True)


def out_of_time(name: str) -> str:
    """Check that a job at its time limit saves its runs, is queued again and resumes them."""
    with tempfile.TemporaryDirectory() as place:
        times = ["hydra.launcher.timeout_min=3", "hydra.launcher.signal_delay_s=30"]
        sweep = begin(name, Path(place), [*SMALL, "budget.server_iterations=100000000", *times])
        wait_for(place, sweep, lambda: starts(place) == 2)
        (run,) = Path(place).glob("*/metrics.jsonl")
        saved = run.read_text(encoding="utf-8")
        wait_for(place, sweep, lambda: len(run.read_text(encoding="utf-8")) > len(saved))
        assert run.read_text(encoding="utf-8").startswith(saved) and (run.parent / "checkpoint.pt").exists()
        subprocess.run(["scancel", job_of(place)], check=True)
        sweep.wait(WAIT)
        return f"saved at {json.loads(saved.splitlines()[-1])['iteration']} iterations, requeued, resumed from there"


def requeued(name: str) -> str:
    """Check that a run moved by `scontrol requeue` ends with the bits of an undisturbed run."""
    words = [*SMALL, "budget.server_iterations=30000", "trace=true"]
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as alone:
        sweep = begin(name, Path(place), words)
        wait_for(place, sweep, lambda: any(len(p.read_bytes().splitlines()) > 3 for p in metrics(place)))
        subprocess.run(["scontrol", "requeue", job_of(place)], check=True)
        code = sweep.wait(WAIT)
        return f"{starts(place)} starts, {count(place, 'ok')} ok, exit {code}, {compared(place, alone, words)}"


def lost(name: str, lose_one) -> str:
    """Check that the run of a lost node starts again on another node and has the same bits."""
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as alone:
        sweep = begin(name, Path(place), [*LONG, "trace=true"])
        wait_for(place, sweep, lambda: sum(len(p.read_bytes().splitlines()) > 2 for p in metrics(place)) >= 2)
        lose_one()
        code = sweep.wait(WAIT)
        return f"{count(place, 'ok')} of 4 ok, exit {code}, {compared(place, alone, [*LONG, 'trace=true'])}"


def compared(place: str, alone: str, words: list[str]) -> str:
    """Compare logged points, without their seconds, and final weights with those of an undisturbed sweep."""
    begin("basic", Path(alone), words).wait(WAIT)
    different, references = [], sorted(Path(alone).glob("*/model_final.pt"))
    assert references, (Path(alone) / "log").read_text(encoding="utf-8")
    for reference in references:
        run = Path(place) / reference.parent.name
        rows = [
            [json.loads(row) | {"wall_time": 0} for row in (p / "metrics.jsonl").open(encoding="utf-8")]
            for p in (run, reference.parent)
        ]
        weights = [torch.load(p / "model_final.pt", weights_only=True) for p in (run, reference.parent)]
        if rows[0] != rows[1] or not all(torch.equal(weights[0][key], weights[1][key]) for key in weights[1]):
            different.append(run.name)
    return f"different: {', '.join(different)}" if different else "the same bits as one that was left alone"


def metrics(place: str) -> list[Path]:
    return list(Path(place).glob("*/metrics.jsonl"))


def starts(place: str) -> int:
    """Return the number of processes that submitit has started."""
    return sum(
        path.read_text(encoding="utf-8").count("Starting with") for path in Path(place).glob(".submitit/*/*_log.*")
    )


def job_of(place: str) -> str:
    asked = ["squeue", "--me", f"--name={Path(place).name}", "--array", "--noheader", "--format=%i"]
    return subprocess.run(asked, check=True, capture_output=True, encoding="utf-8").stdout.split()[0]


def wait_for(place: str, sweep: subprocess.Popen, happened) -> None:
    until = time.monotonic() + WAIT
    while not happened():
        if sweep.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"what was waited for did not come:\n{(Path(place) / 'log').read_text(encoding='utf-8')}")
        time.sleep(0.5)


def repeated(name: str, place: str) -> str:
    code = begin(name, Path(place), LONG).wait(WAIT)
    return f"{count(place, 'ok')} ok, exit {code}"


def count(place: str, status: str) -> int:
    found = [json.loads(path.read_text(encoding="utf-8"))["exit_status"] for path in Path(place).glob("*/summary.json")]
    return found.count(status)


def named(place: str) -> int:
    """Return the number of runs in the sweep's last list of unfinished runs."""
    return sum(line.startswith("  afl-run") for line in (Path(place) / "log").read_text(encoding="utf-8").splitlines())


def process_at_a_run(place: str, sweep: subprocess.Popen) -> int:
    """Return the process that holds the lock of a run with two evaluations."""
    until = time.monotonic() + WAIT
    while time.monotonic() < until and sweep.poll() is None:
        for metrics in Path(place).glob("*/metrics.jsonl"):
            lock = metrics.parent / ".lock"
            if len(metrics.read_text(encoding="utf-8").splitlines()) < 2 or not lock.exists():
                continue
            inode = str(lock.stat().st_ino)
            for words in map(str.split, Path("/proc/locks").read_text(encoding="utf-8").splitlines()):
                if words[1] == "FLOCK" and words[5].split(":")[2] == inode:
                    return int(words[4])
        time.sleep(0.1)
    raise SystemExit(f"no run started:\n{(Path(place) / 'log').read_text(encoding='utf-8')}")


if __name__ == "__main__":
    main(sys.argv[1:])
