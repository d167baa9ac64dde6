from __future__ import annotations

import subprocess
import sys


def test_checking_a_config_needs_neither_torch_nor_data_libraries():
    blocked = ("torch", "torchvision", "sklearn", "pandas", "matplotlib", "wandb", "filelock", "datasets")
    modules = ("datasets", "synthetic", "femnist", "shakespeare", "partition", "models")
    code = "import sys\n"
    code += "".join(f"sys.modules[{name!r}] = None\n" for name in blocked)
    code += "".join(f"import asyncfl_bench.tasks.{name}\n" for name in modules)
    subprocess.run([sys.executable, "-c", code], check=True)
