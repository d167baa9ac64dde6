"""Compiling C++ source into a library, which is cached for later processes."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import BenchError
from ..files import atomic_write, cache_folder

FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-exceptions", "-fno-rtti")
TIMEOUT_S = 120


def build_library(source: str) -> ctypes.CDLL:
    """Compile ``source`` with the first compiler that succeeds, and load the library.

    Raises the BenchError of the last compiler if all fail. A failure is not tried again in this process.
    """
    commands = find_compilers()
    key = (source, *map(" ".join, commands))
    if key not in _failed:
        for command in commands:
            try:
                return _load_or_compile(command, source)
            except BenchError as error:
                _failed[key] = str(error)
    raise BenchError(_failed[key])


_failed: dict[tuple[str, ...], str] = {}  # source and compilers -> last error


def _load_or_compile(compiler: list[str], source: str) -> ctypes.CDLL:
    """Load the library from the user's cache, or compile and store it. The cache distinguishes processors."""
    command = [*compiler, *FLAGS, "-shared", "-fPIC"]
    key = _digest("\n".join((source, *command, _version(tuple(command)), _processor())).encode())
    folder = cache_folder() / "native"
    try:
        for kept in folder.glob(f"{key}-*.so"):
            # loading a damaged library may end the process, reading a fifo may never end
            if kept.is_file() and _digest(kept.read_bytes()) == kept.stem.rpartition("-")[2]:
                return ctypes.CDLL(str(kept))
        with tempfile.TemporaryDirectory() as own:
            made = _compile(source, command, Path(own))
            library = folder / f"{key}-{_digest(made.read_bytes())}.so"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with atomic_write(library) as file:
                    file.write(made.read_bytes())
            except OSError:  # compiled again next time
                library = made
            return ctypes.CDLL(str(library))
    except OSError as error:
        raise BenchError(str(error)) from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _compile(source: str, command: list[str], folder: Path) -> Path:
    """Compile ``source`` in ``folder``, and return the path of the library."""
    text, made = folder / "network.cpp", folder / "network.so"
    text.write_text(source, encoding="utf-8")
    code, _, stderr = _run_command([*command, "-o", str(made), str(text)])
    if code or not made.exists():
        said = next((line for line in stderr.splitlines() if "error" in line), f"exit status {code}")
        raise BenchError(f"{command[0]} failed: {said[:200]}")
    return made


def _run_command(command: list[str]) -> tuple[int, str, str]:
    """Run a command and return (exit status, output, errors). Raises BenchError if it does not start or end."""
    pipe = subprocess.PIPE
    # a new session: Ctrl-C is for the run only
    options: dict[str, Any] = {"stdout": pipe, "stderr": pipe, "encoding": "utf-8", "errors": "replace"}
    try:
        with subprocess.Popen(command, start_new_session=True, **options) as process:
            try:
                stdout, stderr = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # and its children
                raise BenchError(f"{command[0]} did not end within {TIMEOUT_S} s") from None
    except OSError as error:
        raise BenchError(f"{command[0]}: {error}") from None
    return process.returncode, stdout, stderr


def find_compilers() -> list[list[str]]:
    """Return the commands of the available C++ compilers. Raises BenchError if there is none.

    The list is $CXX alone if it is set. Otherwise it has the compilers of the system and of the package ``ziglang``.
    """
    if chosen := os.environ.get("CXX", "").split():
        return [chosen]
    paths = {os.path.realpath(found): found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))}
    commands = [[path] for path in paths.values()]
    if importlib.util.find_spec("ziglang"):
        commands.append([sys.executable, "-m", "ziglang", "cc"])  # as c++ it would first build a library without need
    if not commands:
        raise BenchError("no C++ compiler was found (pip install 'asyncfl_bench[native]' brings one)")
    return commands


@cache
def _version(command: tuple[str, ...]) -> str:
    return _run_command([*command, "--version"])[1]


@cache
def _processor() -> str:
    """Return a text that differs between processors with different results of ``-march=native``."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()}"
