"""Every part resolves its own `auto` and null; nobody asks a part whether it has a setting."""

import ast
import re
from pathlib import Path

import pytest

from asyncfl_bench.config import compose
from asyncfl_bench.config.settings import PARTS
from asyncfl_bench.errors import ConfigError

PACKAGE = Path(__file__).parents[2] / "src" / "asyncfl_bench"
MINE = """
from dataclasses import dataclass

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.errors import check


@dataclass
class MineConfig(StepConfig):
    warmup: int | None = None
    mode: str = "auto"

    def resolve(self, facts):
        super().resolve(facts)
        self.warmup = self.warmup or facts.concurrency // 2
        if self.mode == "auto":
            self.mode = f"{facts.clock}, {facts.dispatch}, {facts.iterations}, {facts.workload.k}"
        check(self.warmup <= facts.n_clients, "warmup", self.warmup, f"at most n_clients={facts.n_clients}")


class Mine(Asgd):
    Config = MineConfig
"""


def test_a_rule_with_an_auto_and_a_null_of_its_own_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "mine_resolving.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["algorithm=asgd", "algorithm._target_=mine_resolving.Mine", "concurrency=10", "delay=exponential"]
    settings = compose([*words, "budget.server_iterations=null", "budget.uploads=400"])
    config = settings.parts["algorithm"].config
    assert (config.warmup, config.mode) == (5, "time, immediate, 400, 1")
    assert settings.tree["algorithm"]["warmup"] == 5  # what config.yaml and the identity get
    with pytest.raises(ConfigError, match=r"algorithm.warmup=200: must be at most n_clients=100"):
        compose([*words, "+algorithm.warmup=200"])


def asked(tree):
    """(line, expression) of every hasattr, and of getattr by a fixed name or with a default, on a part or its settings.

    A getattr by a variable without a default reads a name that the part declared.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
            subject = ast.unparse(node.args[0])
            last = subject.rpartition(".")[2].strip("_")
            declared = node.func.id == "getattr" and len(node.args) == 2 and not isinstance(node.args[1], ast.Constant)
            if declared:
                continue
            if last in ("rule", "shadow", "config", *PARTS) or "parts[" in subject or ".config" in subject:
                yield node.lineno, ast.unparse(node)


def test_nobody_asks_a_rule_or_a_config_whether_it_has_something():
    asking = "getattr(self._rule, 'x'); hasattr(settings.parts['delay'], 'y'); getattr(self.word, 'z')"
    assert len(list(asked(ast.parse(asking)))) == 2
    for path in PACKAGE.rglob("*.py"):
        if re.search("(?:has|get)attr", text := path.read_text()):  # parsing takes ten times as long
            assert not list(asked(ast.parse(text))), path.relative_to(PACKAGE)
