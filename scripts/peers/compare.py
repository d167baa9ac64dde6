"""The same work with other simulators beside ours: client updates per second, each beside a bare PyTorch loop.

    python scripts/peers/compare.py --environments ~/peers              install them there, then measure all
    python scripts/peers/compare.py W3a --python flgo=/venv/bin/python  one workload, FLGo in an environment of yours
    python scripts/peers/compare.py --environments ~/peers --out results.md

Every simulator runs in a separate process with one torch thread and takes turns there with a bare loop of the same
network and batch size, which runs before and after each turn; ratio: simulator / bare loop, the median over the
repeats, so above 1 the simulator is faster. Evaluation and logging are off. All train our own network on the same
random images, one local step per client update. What each peer really does is in the table and at the top of
`<name>_peer.py`. A peer that cannot be installed or does not run is a row with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parent
sys.path[:0] = [str(HERE), str(SCRIPTS)]

import benchmark  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

# found to work together in one environment of Python 3.11; what FLSim needs it does not pin itself
COMMON = ("torch==2.15.0", "torchvision==0.29.2", "numpy==2.4.6")
PINS = {
    "flgo": ("flgo==0.4.4",),
    "flsim": ("flsim==0.1.0", "opacus==1.6.0", "hydra-core==1.3.8"),
    "fedlab": ("fedlab==1.3.0",),
    "appfl": ("appfl==1.12.0",),
    "appfl_gc": ("appfl==1.12.0",),
}
INSTALL_SECONDS, RUN_SECONDS = 1800, 900


class Failed(Exception):
    """A peer cannot be measured; the text is the reason."""


def command(words: list[str], seconds: float, environment: dict[str, str] | None = None) -> None:
    """Run a command. Raises Failed with its last line on standard error, or with its time limit."""
    try:
        done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=seconds, env=environment)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"not done after {seconds:.0f} s") from error
    except OSError as error:
        raise Failed(str(error)) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Failed(lines[-1].strip()[:200] if lines else f"exit code {done.returncode}")


def installed(folder: Path, peer: str) -> str:
    """Return the Python of the environment in ``folder`` with ``peer``, which is made if it is missing."""
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not python.exists():
        command([sys.executable, "-m", "venv", str(folder)], INSTALL_SECONDS)
    command([*pip, *COMMON, *PINS[peer]], INSTALL_SECONDS)
    return str(python)


def measured(peer: str, python: str, name: str, data: Path, repeats: int) -> dict:
    """Return the worker's measurements (``worker.py``)."""
    environment = os.environ | {
        "PYTHONPATH": str(SCRIPTS.parent / "src"),  # for the network alone: our package needs no installing there
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        words = [python, str(HERE / "worker.py"), peer, name, str(data), str(answer)]
        command([*words, "--repeats", str(repeats)], RUN_SECONDS, environment)
        return json.loads(answer.read_text(encoding="utf-8"))


def ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"  # 0.00 would tell nothing


def row(name: str, peer: str, found: dict) -> str:
    # a bare loop ran before and after each turn of the simulator
    bare = [statistics.mean(pair) for pair in zip(found["bare"][::2], found["bare"][1::2], strict=True)]
    ratios = [b / p for b, p in zip(bare, found["peer"], strict=True)]
    module = importlib.import_module(f"{peer}_peer")
    updates, steps = (1 / statistics.median(seconds) for seconds in (found["peer"], bare))
    version = f" {found['version']}" if found["version"] else ""
    return (
        f"| {name} | {module.LABEL}{version} | {module.DOES[name]} | {updates:.4g} | {steps:.4g} | "
        f"**{ratio_text(statistics.median(ratios))}** ({ratio_text(min(ratios))} to {ratio_text(max(ratios))}) |"
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help=f"of {', '.join(PINS)}")
    parser.add_argument("--environments", type=Path, metavar="DIR", help="make one there (7 GB) for the rest")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the table there")
    given = parser.parse_args()
    if unknown := set(given.names) - set(WORKLOADS):
        parser.error(f"unknown workload: {', '.join(sorted(unknown))}; known: {', '.join(WORKLOADS)}")
    given.python = dict(word.partition("=")[::2] for word in given.python)
    if unknown := set(given.python) - set(PINS):
        parser.error(f"unknown peer: {', '.join(sorted(unknown))}; known: {', '.join(PINS)}")
    return given


def main() -> None:
    given = options()
    lines = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if given.out:
            given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")

    pythons, reasons = {"ours": sys.executable, **given.python}, {}
    for peer in PINS:
        if peer not in pythons:
            try:
                if given.environments is None:
                    raise Failed(f"no environment: --python {peer}=PATH or --environments DIR")
                pythons[peer] = installed(given.environments.expanduser().resolve() / "peers", peer)
            except Failed as failure:
                reasons[peer] = f"not installed: {failure}"

    say(f"{time.strftime('%Y-%m-%d')}, one torch thread each, medians of {given.repeats} repeats\n")
    say("| | simulator | does | updates/s | bare loop there, steps/s | ratio |")
    say("| --- | --- | --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names or WORKLOADS:
            _, _, shape, number, _ = benchmark.WORKLOADS[name]
            data = benchmark.made_up_images(shape, number, Path(folder))
            for peer in ("ours", *PINS):
                try:
                    if peer in reasons:
                        raise Failed(reasons[peer])
                    say(row(name, peer, measured(peer, pythons[peer], name, data, given.repeats)))
                except Failed as failure:
                    say(f"| {name} | {peer} | {str(failure).replace('|', '/')} | - | - | - |")


if __name__ == "__main__":
    main()
