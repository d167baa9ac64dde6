"""Test clusters on one machine: a Slurm of one node, a Ray of two."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SLURM = """ClusterName=check
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm() -> Iterator[None]:
    """Use this machine's cluster, or start one of one node, without accounting, that ends with the block."""
    if shutil.which("sinfo") and subprocess.run(["sinfo"], capture_output=True).returncode == 0:
        yield
        return
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if missing := [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name, path=path)]:
        raise SystemExit(f"there is no Slurm, nor {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)")
    with tempfile.TemporaryDirectory() as place:
        folder, started = Path(place), []
        host, user, ports = socket.gethostname().partition(".")[0], getpass.getuser(), free_ports(2)
        (folder / "slurm.conf").write_text(
            SLURM.format(host=host, user=user, folder=folder, ports=ports), encoding="utf-8"
        )
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        os.environ |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        files = [f"--{name}={folder / name}" for name in ("pid-file", "log-file", "seed-file")]
        munged = ["munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket"]
        try:
            for command in ([*munged, *files], ["slurmctld", "-D"], ["slurmd", "-D"]):
                with open(folder / f"{command[0]}.log", "w", encoding="utf-8") as log:
                    # not in this session: what ends this script from outside is not to end them before its jobs
                    started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
                time.sleep(2)
            until = time.monotonic() + 60
            while b"idle" not in subprocess.run(["sinfo"], capture_output=True).stdout:
                if time.monotonic() > until:
                    logs = (path.read_text(encoding="utf-8") for path in folder.glob("*.log"))
                    raise SystemExit("Slurm did not come up:\n" + "\n".join(logs))
                time.sleep(1)
            yield
        finally:
            subprocess.run(["scancel", "--me"], capture_output=True)
            until = time.monotonic() + 60  # what is killed on a node that is gone stays there
            while subprocess.run(["squeue", "--me", "-h"], capture_output=True).stdout and time.monotonic() < until:
                time.sleep(1)
            for process in reversed(started):
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


@contextmanager
def two_ray_nodes() -> Iterator[Callable[[], None]]:
    """Start a Ray cluster of two nodes with two cores each, which ends with the block; yield a function that kills a
    node."""
    ray, port = [str(Path(sys.executable).with_name("ray"))], free_ports(1)[0]
    if not Path(ray[0]).exists():
        raise SystemExit("there is no Ray: pip install 'asyncfl_bench[ray]'")
    joins = (["--head", f"--port={port}", "--include-dashboard=false"], [f"--address=127.0.0.1:{port}"])
    nodes = []
    try:
        for words in joins:
            before = raylets()
            subprocess.run([*ray, "start", *words, "--num-cpus=2"], check=True, stdout=subprocess.DEVNULL)
            nodes.append(raylets() - before)
        os.environ["RAY_ADDRESS"] = f"127.0.0.1:{port}"
        yield lambda: [os.kill(pid, signal.SIGKILL) for pid in nodes[1]] and None
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in [pid for node in reversed(nodes) for pid in node]:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(5)


def raylets() -> set[int]:
    """Return the main processes of this machine's Ray nodes."""
    names = {int(path.parent.name): path for path in Path("/proc").glob("[0-9]*/comm")}
    found = set()
    for pid, path in names.items():
        with suppress(OSError):
            if path.read_text(encoding="utf-8").strip() in ("raylet", "gcs_server"):
                found.add(pid)
    return found


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
