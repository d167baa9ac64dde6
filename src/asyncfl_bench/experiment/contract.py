"""The contract of server rules as checks, for the rules of this package and for those of others (``afl-run --check``).

Most checks feed a rule of a model of ``D`` parameters by hand; the last two run the simulator.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..algorithms.base import BufferConfig, ServerRule
from ..algorithms.common.split import SplitRule
from ..algorithms.common.trial import TrialPart, TrialServer
from ..config import compose
from ..config.overrides import parse_override
from ..config.part_sources import part_sources
from ..errors import BenchError, ConfigError, InputError, describe_error
from ..files import read_yaml
from ..randomness import Streams
from ..ranges import values_outside
from ..storage import Storage
from ..types import ClientTable, Message, Recorder, Upload
from .build import build_run
from .components import Components
from .state_check import ProbedRule, describe_difference, differing_attributes, is_same, reload_state

D = 7
CLOCKS = ("delay=exponential", "delay=exp_beta5")
LIMITS_NAME = "limits.yaml"
Event = tuple[int, torch.Tensor, int]  # client, (D,) vector, staleness


class BrokenContract(Exception):
    """A violation of the contract, in one line."""


def require(ok: bool, problem: str) -> None:
    """Raise BrokenContract(problem) unless ``ok``."""
    if not ok:
        raise BrokenContract(problem)


# -- a rule by itself -------------------------------------------------------------------------------------------------


class Candidate:
    """A rule under small settings, on one clock.

    words  of the command, the rule's ``algorithm=`` among them. Raises ConfigError for those that cannot work
    """

    def __init__(self, words: list[str], clock: str = CLOCKS[0]):
        self.words = add_defaults(words, clock, "n_clients=5", "heterogeneity=iid")
        self.settings = compose(self.words)
        if isinstance(self.settings.parts["algorithm"].config, BufferConfig):
            self.words = add_defaults(self.words, "algorithm.buffer_size=3")
            self.settings = compose(self.words)
        n = self.settings.root.n_clients
        self.clients = ClientTable(np.full(n, 10), np.eye(n, 3, dtype=int) * 8 + 1)

    def build(self) -> ServerRule:
        """Return an equipped rule that is not started."""
        part: Any = TrialPart(D - 1)
        return self.settings.build_rule(Storage(), Streams(self.settings.root.seed), TrialServer(), part)

    def start(self) -> tuple[ServerRule, torch.Tensor]:
        """Return a started rule and its (D,) model of zeros."""
        rule, model_d = self.build(), torch.zeros(D)
        rule.start(model_d, self.clients, self.settings.parts["client"].config.upload)
        return rule, model_d

    def draw_uploads(self, count: int) -> list[Event]:
        """Return an upload of every client, then ``count`` uploads of random clients."""
        generator, n = np.random.default_rng(0), self.clients.n
        clients = [*range(n), *generator.integers(0, n, count)]
        stale = (0, 1, 2, 3, 60, 1000)  # a rule may drop stale uploads
        return [(int(c), torch.tensor(generator.normal(size=D)).float(), int(generator.choice(stale))) for c in clients]


def add_defaults(words: list[str], *defaults: str) -> list[str]:
    """Add the defaults for settings that the words do not name."""
    keys = {parse_override(text).key for text in words}
    return [*(text for text in defaults if parse_override(text).key not in keys), *words]


def _call_for_bool(method: Callable[..., Any], *arguments: Any) -> bool:
    """Call a method of the rule. Raises BrokenContract unless it returns True or False."""
    answer = method(*arguments)
    require(answer is True or answer is False, f"{method.__name__} must answer exactly True or False, not {answer!r}")
    return answer


def _send_message(rule: ServerRule, client: int, vector_d: torch.Tensor, iteration: int) -> None:
    """Send a message of a client that has a part of the model, and overwrite its tensors after the replies."""
    if isinstance(rule, SplitRule):
        rule.dispatched(client)
        activations, labels = vector_d[:3, None].clone(), torch.tensor([0, 1, 0])
        _call_for_bool(rule.receive_message, Message(client, 0, 1, iteration, 0, 10, activations, labels))
        for _, reply in rule.replies():
            require(bool(torch.isfinite(reply.gradient).all()), "a reply's gradient is not finite")
        activations.fill_(float("nan"))
        labels.fill_(-1)


def _select_clients_part(rule: ServerRule, vector_d: torch.Tensor) -> torch.Tensor:
    """Return the part of a vector that a client uploads."""
    return vector_d[: D - 1] if rule.needs.cuts else vector_d


def deliver_uploads(
    rule: ServerRule, model_d: torch.Tensor, events: list[Event], iteration: int = 0
) -> tuple[list[int], int]:
    """Deliver uploads as the engine does, with a tick after each and a round after every fourth.

    Returns (changes of the model at each upload, the iterations done). Raises BrokenContract.
    """
    changes = []
    for number, (client, vector_d, staleness) in enumerate(events):
        base = max(0, iteration - staleness)
        _send_message(rule, client, vector_d, base)
        upload = Upload(client, _select_clients_part(rule, vector_d.clone()), base, staleness, 10, 1)
        upload.base_d = _select_clients_part(rule, torch.full((D,), 0.05 * staleness))
        upload.second_d = -0.3 * upload.vector_d
        upload.outputs_uc = TrialServer().outputs(vector_d)
        changes.append(0)
        own_steps = (rule.tick, rule.round) if number % 4 == 3 else (rule.tick,)
        calls: list[tuple[Callable[..., bool], tuple[Upload, ...]]] = [(rule.receive, (upload,))]
        calls += [(step, ()) for step in own_steps]
        for method, arguments in calls:
            before_d = model_d.clone()
            changed = _call_for_bool(method, *arguments)
            require(bool(torch.isfinite(model_d).all()), f"{method.__name__} made the model infinite or NaN")
            does = "changed the model" if not changed else "left the model as it was"
            require(changed != torch.equal(before_d, model_d), f"{method.__name__} answered {changed} and {does}")
            changes[-1] += changed
        iteration += changes[-1]
        rule.dispatched(client)
        rule.work_for(client)
    return changes, iteration


# -- checks -----------------------------------------------------------------------------------------------------------


def check_changes(candidate: Candidate) -> None:
    """Check that the rule changes the model, returns exactly when, and stays finite."""
    rule, model_d = candidate.start()
    events = candidate.draw_uploads(40)
    changes, _ = deliver_uploads(rule, model_d, events)
    require(sum(changes) >= 2, f"changed the model less than twice in {len(events)} uploads; a smaller buffer may help")
    require(bool(model_d.any()), "the model is zero as before")
    for name, value in rule.stats().items():
        require("/" in name, f"stats names {name}; write rule/{name}")
        require(math.isfinite(value), f"stats gives {name}={value}, which is not finite")


def check_state(candidate: Candidate) -> None:
    """Check that a copy restored from the saved state computes the same bits and numbers."""
    rule, model_d = candidate.start()
    events = candidate.draw_uploads(60)
    _, iteration = deliver_uploads(rule, model_d, events[:23])
    restored, restored_d = candidate.start()
    restored_d.copy_(model_d)
    restored.load_state_dict(reload_state(rule.state_dict()))
    differing = differing_attributes(rule, restored)
    answers = deliver_uploads(rule, model_d, events[23:], iteration)
    same = answers == deliver_uploads(restored, restored_d, events[23:], iteration) and is_same(model_d, restored_d)
    require(same, describe_difference(differing))
    values: dict[str, tuple[Any, Any]] = {"stats": (rule.stats(), restored.stats())}
    if isinstance(rule, Recorder) and isinstance(restored, Recorder):
        values["decisions"] = rule.decisions(), restored.decisions()
    for what, (said, said_again) in values.items():
        differ = f" (these attributes differ: {', '.join(differing)})" if differing else ""
        require(is_same(said, said_again), f"{what} says something else after a restore; complete state_names{differ}")
    columns = rule.decision_columns if isinstance(rule, Recorder) else ()
    for row in rule.decisions() if isinstance(rule, Recorder) else ():
        ok = len(row) == len(columns)
        require(ok, f"decisions gives {len(row)} numbers for {len(columns)} decision_columns")


def check_borrowed_vectors(candidate: Candidate) -> None:
    """Check that the rule keeps no tensor that belongs to an upload."""
    (rule, model_d), (twin, twin_d) = candidate.start(), candidate.start()
    reused_d, base_d, second_d = (_select_clients_part(rule, torch.zeros(D)) for _ in range(3))
    outputs_uc = torch.zeros(TrialServer.samples, TrialServer.classes)
    for client, vector_d, staleness in candidate.draw_uploads(30):
        for one in (rule, twin):
            _send_message(one, client, vector_d, 0)
        outputs_uc.copy_(TrialServer().outputs(vector_d))
        vector_d = _select_clients_part(rule, vector_d)
        reused_d.copy_(vector_d)
        base_d.fill_(0.05 * staleness)
        second_d.copy_(-0.3 * vector_d)
        lent: dict[str, Any] = {"base_d": base_d, "second_d": second_d, "outputs_uc": outputs_uc}
        kept = {name: tensor.clone() for name, tensor in lent.items()}
        rule.receive(Upload(client, reused_d, 0, staleness, 10, 1, **lent))
        twin.receive(Upload(client, vector_d, 0, staleness, 10, 1, **kept))
        for tensor in (reused_d, *lent.values()):
            tensor.fill_(float("nan"))  # the executor recycles it
        for one in (rule, twin):
            one.tick()
            one.round()
    require(is_same(model_d, twin_d), "uses a vector of an upload after receive has returned; copy what is kept")


def check_determinism(candidate: Candidate) -> None:
    """Check that two rules with the same uploads compute the same bits."""
    (rule, model_d), (twin, twin_d) = candidate.start(), candidate.start()
    events = candidate.draw_uploads(40)
    same = deliver_uploads(rule, model_d, events) == deliver_uploads(twin, twin_d, events) and is_same(model_d, twin_d)
    remedy = "draw random numbers from self.draws, keep no state in the class"
    require(same, f"the same uploads gave another model; {remedy}")


def check_settings(candidate: Candidate) -> None:
    """Check that values outside the declared ranges and unknown settings are refused."""
    outside = values_outside(candidate.settings.parts["algorithm"].target.Config)
    for name, value in {**outside, "no_such_setting": 1}.items():
        key = f"algorithm.{name}"
        try:
            compose([*(text for text in candidate.words if parse_override(text).key != key), f"{key}={value}"])
        except ConfigError as error:
            require(error.key == key, f"{key}={value} is refused as {error.key}; name the setting itself")
            require("\n" not in str(error), f"the message about {key}={value} has several lines")
        else:
            raise BrokenContract(f"{key}={value} is accepted; a __post_init__ must call super().__post_init__()")


# -- runs -------------------------------------------------------------------------------------------------------------


def check_resume(candidate: Candidate) -> None:
    """Check that a run that stops half-way and is restored ends with the same model and counters."""
    with tempfile.TemporaryDirectory() as folder:
        defaults = ["scale=smoke", "budget.uploads=60", "threads=1", "device=cpu"]
        settings = compose([*add_defaults(candidate.words, *defaults), f"output_dir={folder}"])
        whole = build_run(settings)
        whole.simulation.run()
        whole.executor.close()
        half = build_run(settings)
        ended = None
        while ended is None and half.simulation.counters.uploads < whole.simulation.counters.uploads // 2:
            ended = half.simulation.step()
        state = reload_state(half.state_dict())
        half.executor.close()
        resumed = build_run(settings)
        resumed.load_state_dict(state)
        rules: list[Any] = [half.rule, resumed.rule]
        differing = differing_attributes(*(one.rule if isinstance(one, ProbedRule) else one for one in rules))
        if resumed.simulation.finish_reason() is None:
            resumed.simulation.run()
        resumed.executor.close()
        counted, counted_again = whole.simulation.counters, resumed.simulation.counters
        require(counted.iteration > 0, f"no server iteration in {counted.uploads} uploads")
        require(counted == counted_again, f"ended with {counted_again}, uninterrupted with {counted}")
        require(is_same(whole.model_d, resumed.model_d), describe_difference(differing))


@dataclass(frozen=True)
class Limit:
    """A line of a file of limits, see docs/explanation/limits.yaml; lists are words of a command."""

    rule: str
    settings: list[str]
    other: str
    own: list[str]
    both: list[str]
    when: str
    unless: list[str]
    bits: bool

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> Limit:
        """Raise KeyError for a line without one of its names."""
        bits = {"bits": True, "rounding": False}[line["to"]]
        given = line["rule"], line["settings"], line["is"], line.get("with", []), line["both"]
        return cls(*given, line["when"], line["unless"], bits)


def declared_limits(rule: str) -> list[Limit]:
    """Return the rule's limits in the files limits.yaml beside the groups. Raises InputError for a malformed file."""
    found = []
    for path in (source.conf / LIMITS_NAME for source in part_sources()):
        if path.exists():
            try:
                found += [Limit.from_line(line) for line in read_yaml(path)]
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}: not a list of limits as docs/explanation/limits.yaml is: {error}") from None
    return [limit for limit in found if limit.rule == rule]


def check_limit(limit: Limit, run: Callable[..., tuple[tuple[int, int], torch.Tensor]]) -> None:
    """Check that the rule equals the other rule at its limit, and only there.

    run  run(*words) -> ((server iterations, uploads), (d,) the model at the end)
    """
    rule, other = f"algorithm={limit.rule}", f"algorithm={limit.other}"
    counted, model_d = run(rule, *limit.both, *limit.settings)
    counted_other, other_d = run(other, *limit.both, *limit.own)
    require(counted[0] >= 4, f"{counted[0]} server iterations are too few to compare with {limit.other}")
    same = counted == counted_other and (
        torch.equal(model_d, other_d) if limit.bits else relative_distance(model_d, other_d) < 1e-5
    )
    require(same, f"is not {limit.other} with {' '.join(limit.settings) or 'its defaults'}")
    others = [text for text in limit.unless if not text.startswith("algorithm.")]
    elsewhere = run(rule, *limit.both, *limit.settings, *limit.unless)
    unlike = run(other, *limit.both, *limit.own, *others)
    differ = elsewhere[0] != unlike[0] or relative_distance(elsewhere[1], unlike[1]) > 1e-3
    require(differ, f"is {limit.other} also with {' '.join(limit.unless)}")


def relative_distance(one_d: torch.Tensor, other_d: torch.Tensor) -> float:
    """Return the distance of two vectors divided by the norm of the second."""
    return float((one_d - other_d).norm() / other_d.norm())


def run_to_end(*words: str) -> tuple[tuple[int, int], torch.Tensor]:
    """Return ((server iterations, uploads), (d,) the model) at the end of a small run on digits."""
    world = ["model.hidden=[8]", "n_clients=6", "client.batch_size=8", "delay=exponential", "budget.uploads=42"]
    world += ["seed=3", "device=cpu", "threads=1", "executor=sequential"]
    parts: Components = build_run(compose([*world, *words]))
    parts.simulation.run()
    parts.executor.close()
    counters = parts.simulation.counters
    return (counters.iteration, counters.uploads), parts.model_d.clone()


# -- all of them ------------------------------------------------------------------------------------------------------

CHECKS: dict[str, Callable[[Candidate], None]] = {
    "changes": check_changes,
    "state": check_state,
    "borrowed vectors": check_borrowed_vectors,
    "determinism": check_determinism,
    "settings": check_settings,
    "resume": check_resume,
}


def check_rule(words: list[str]) -> Iterator[tuple[str, str | None, str]]:
    """Yield (check, problem or None, what is checked) of each check, on both clocks unless the words name a delay.

    words  of a command. Raises ConfigError or InputError for those that cannot work, before the first check
    """
    clocks = CLOCKS[:1] if any(parse_override(text).key == "delay" for text in words) else CLOCKS
    candidates = [Candidate(words, clock) for clock in clocks]
    rule = candidates[0].settings.choices["algorithm"]
    limits = declared_limits(rule)
    for name, check in CHECKS.items():
        problem = next((said for one in candidates if (said := _run_check(check, one))), None)
        yield name, problem, (check.__doc__ or "").strip()
    for limit in limits:
        yield "limit", _run_check(check_limit, limit, run_to_end), f"It is {limit.other}: {limit.when}."
    if not limits:
        yield "limit", None, f"No {LIMITS_NAME} beside the groups declares a limit of algorithm={rule}."


def _run_check(check: Callable[..., None], *arguments: Any) -> str | None:
    """Run a check. Returns the problem in one line, or None."""
    try:
        check(*arguments)
    except (BrokenContract, BenchError) as broken:
        return str(broken)
    except (Exception, SystemExit) as error:
        return describe_error(error)
    return None
