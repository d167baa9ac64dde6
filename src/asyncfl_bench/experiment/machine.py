"""Facts about the machine a run is on: device, threads, memory, versions, revision."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.settings import RootConfig

THREAD_VARIABLES = ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK")
# setting: a value that needs a GPU, and one that works on a CPU
NEEDS_GPU = {"executor": ("graph", "auto"), "precision": ("tf32", "fp32")}
TF32_FROM = 8  # generation of GPUs, major number of the compute capability
SMALL_MODEL = 1_000_000  # parameters; below, splitting one operation over threads costs more than it gives


def select_device(choice: str) -> str:
    """Return the torch device for ``auto | cpu | cuda | cuda:N``. Raises ConfigError if it does not exist."""
    import torch

    if choice == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if choice.startswith("cuda"):
        if not torch.cuda.is_available():
            raise ConfigError("device", choice, "no usable GPU was found; cpu and auto work here")
        number = choice.partition(":")[2]
        count = torch.cuda.device_count()
        if number and not (number.isdigit() and int(number) < count):
            raise ConfigError("device", choice, f"this machine has cuda:0 to cuda:{count - 1}")
    return choice


def has_gpu() -> bool:
    """Return True if PyTorch can use a GPU."""
    return known_device("auto") is None and select_device("auto") != "cpu"


def known_device(choice: str) -> str | None:
    """Return the device as ``select_device`` does, where that is known without torch; else None."""
    drivers = ("nvidiactl", "kfd", "dxg")  # CUDA, ROCm, a subsystem of Windows
    sure = choice == "cpu" or (choice == "auto" and not any(Path("/dev", name).exists() for name in drivers))
    return "cpu" if sure else None


def device_of_plan(root: RootConfig) -> str | None:
    """Return the device of a run that is not built, with torch where a setting needs a GPU; None: unknown."""
    device = known_device(root.device)
    if device is None and any(getattr(root, name) == value for name, (value, _) in NEEDS_GPU.items()):
        return select_device(root.device)
    return device


def refuse_unsupported(root: RootConfig, device: str | None) -> None:
    """Raise ConfigError for a setting that the device does not have. device: None: unknown"""
    for name, (value, instead) in NEEDS_GPU.items():
        if device == "cpu" and getattr(root, name) == value:
            raise ConfigError(name, value, f"needs a GPU, and the run is on a CPU; {name}={instead} works there")
    if root.precision == "tf32" and device not in (None, "cpu"):
        import torch

        if torch.cuda.get_device_capability(device)[0] < TF32_FROM:
            raise ConfigError("precision", "tf32", f"is not computed by {device_name(device)}; use precision=fp32")


def device_name(name: str) -> str:
    """Return the device's name for people: ``cuda (NVIDIA ...)`` or ``cpu (...)``."""
    if name.startswith("cuda"):
        import torch

        return f"{name} ({torch.cuda.get_device_name(name)})"
    processor = _kernel_fact("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    return f"cpu ({processor}, {os.cpu_count()} cores)"


def kind_of_device(name: object) -> str | None:
    """Return ``CPU`` or the name of the GPU, of a device as ``device_name`` gives it; None for anything else."""
    kind, _, rest = str(name).partition(" (")
    return "CPU" if kind == "cpu" else rest.removesuffix(")") if kind.startswith("cuda") else None


def chosen_kind(choice: str) -> str:
    """Return the kind of the device that ``auto | cpu | cuda | cuda:N`` chooses here; ``GPU`` for one that is not."""
    device = known_device(choice)
    if device is None:
        try:
            device = select_device(choice)
        except ConfigError:
            return "GPU"
    return kind_of_device(device_name(device)) or device


def _kernel_fact(path: str, name: str) -> str | None:
    """Return the text in the first line ``name: …`` of a file of the kernel; None without it."""
    with suppress(OSError):
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            if line.partition(":")[0].strip() == name:
                return line.partition(":")[2].strip()
    return None


@cache
def cpu_facts() -> dict[str, str]:
    """Return the facts behind the last digits of matrix products: the CPU's maker and libraries of torch and NumPy.

    MKL chooses its code by the maker, unless MKL_CBWR chooses it.
    """
    import torch
    from threadpoolctl import threadpool_info

    makers = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
    maker = _kernel_fact("/proc/cpuinfo", "vendor_id") or platform.machine()
    built = torch.__config__.show()
    version = re.search(r"Math Kernel Library Version ([\d.]+)", built)
    blas = re.search(r"BLAS_INFO=(\w+)", built)
    library = f"MKL {version[1]}" if version else blas[1] if blas else "unknown"
    if version and (branch := os.environ.get("MKL_CBWR")):
        library += f", MKL_CBWR={branch}"
    own = [one for one in threadpool_info() if one["user_api"] == "blas" and "numpy" in one["filepath"]]
    numpy = " ".join(str(one.get(key)) for one in own[:1] for key in ("internal_api", "version", "architecture"))
    return {"maker": makers.get(maker, maker), "torch": library, "numpy": numpy or "unknown"}


def describe_machine(summary: Mapping[str, Any]) -> str:
    """Return the machine of a run and how it computed, by its summary, which may lack entries."""
    versions = summary.get("versions") or {}
    cpu = summary.get("cpu") or {}
    facts = [summary.get("device"), cpu.get("maker"), summary.get("executor")]
    facts += [f"{count} thread{'s' * (count != 1)}"] if (count := summary.get("threads")) else []
    facts += [f"{name} {text}" for name in ("torch", "numpy") if (text := versions.get(name))]
    facts += [cpu.get("torch"), cpu.get("numpy")]
    return ", ".join(str(fact) for fact in facts if fact)


def make_deterministic(device_name: str, precision: str = "fp32") -> None:
    """Choose deterministic kernels on a GPU, so that the same settings give the same bits. Call it before CUDA starts.

    precision  of convolutions and recurrent layers, ``fp32`` or ``tf32``; other products are in fp32
    PyTorch warns once of each operation that has no deterministic kernel.
    """
    import torch

    if device_name.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may sum in another order
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = precision == "tf32", False
        # memory is written before it is read: to fill it first takes a launch and a write for each empty tensor
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        warnings.filterwarnings("once", ".* does not have a deterministic implementation", UserWarning, append=True)
        torch.set_deterministic_debug_mode("warn")
    elif torch.is_deterministic_algorithms_warn_only_enabled():  # left by a run on a GPU in this process
        torch.set_deterministic_debug_mode("default")
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


def available_cores(threads: int | None) -> int:
    """Return the number of CPU threads to use: ``threads``, or all that this process and its environment allow."""
    if threads is not None:
        return threads
    granted = [os.environ.get(name, "").partition(",")[0].strip() for name in THREAD_VARIABLES]
    return min([usable_cores(), *(int(number) for number in granted if number.isdecimal() and int(number) > 0)])


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reset_peak_memory(device_name: str) -> None:
    if device_name.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device_name)


def release_memory(device_name: str) -> None:
    """Give memory that no tensor uses back to a GPU, for other processes."""
    if device_name.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()


def peak_memory(device_name: str) -> int:
    """Return peak bytes: of the GPU's allocator since the last reset, or of the whole process on a CPU."""
    if device_name.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device_name))
    # unlike getrusage it does not begin with the size of the process that started this one
    if (peak := _kernel_number("/proc/self/status", "VmHWM")) is not None:
        return peak
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(kilobytes * (1 if platform.system() == "Darwin" else 1024))


def free_memory(device_name: str) -> int | None:
    """Return the free bytes of the device; None if they are unknown.

    For the host: the minimum of the available memory and of the free bytes within the limits of control groups
    (containers, Slurm) and of the address space (``ulimit -v``).
    """
    if device_name.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device_name)[0])
    left = [_kernel_number("/proc/meminfo", "MemAvailable"), _free_in_address_space()]
    left += _free_in_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return min((free for free in left if free is not None), default=None)


def _kernel_number(path: str, name: str) -> int | None:
    """Return the bytes in the line ``name: … kB`` of a file of the kernel; None without this line."""
    fact = _kernel_fact(path, name)
    return None if fact is None else int(fact.split()[0]) * 1024


def _free_in_address_space() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        return max(0, limit - pages * resource.getpagesize())
    return None


def _free_in_groups(own: Path, root: Path) -> Iterator[int]:
    """Yield the free bytes of each limited memory group of this process, for both versions of control groups.

    own   lists this process's groups;  root  where groups are folders
    """
    files = {"": ("memory.max", "memory.current", "inactive_file")}
    files["memory"] = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    try:
        groups = [line.split(":", 2)[1:] for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return
    for kinds, path in groups:
        kind = "memory" if "memory" in kinds.split(",") else kinds
        if kind not in files:
            continue
        limit, used, cached = files[kind]
        inside = root / kind / path.strip("/")
        for folder in (inside, *inside.parents):
            with suppress(OSError, ValueError):  # `max`: no limit; a container does not see what is above its own
                most = int((folder / limit).read_text(encoding="utf-8"))
                lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
                cached_bytes = sum(int(line.split()[1]) for line in lines if line.startswith(f"{cached} "))
                yield max(0, most - int((folder / used).read_text(encoding="utf-8")) + cached_bytes)
            if folder == root:
                break


@cache
def versions() -> dict[str, str]:
    names = ("asyncfl_bench", "torch", "torchvision", "numpy", "hydra-core", "omegaconf", "wandb")
    installed = {"python": platform.python_version()}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


@cache
def git_revision() -> str | None:
    """Return the revision of the code, with ``+`` if it has changes; None outside a checkout."""
    here = Path(__file__).parent
    try:
        revision = _git(here, "rev-parse", "HEAD")
        tracked = _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        return revision + ("+" if tracked and _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=True,
        timeout=10,
    ).stdout.strip()


def existing_folder(path: Path) -> Path:
    """Return the path or the nearest one above it that exists."""
    return next((one for one in (path, *path.parents) if one.exists()), Path("."))
