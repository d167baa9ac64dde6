"""Checks that a rule's state is complete: a copy restored from it must act as the rule does.

Legend: d model parameters.
"""

from __future__ import annotations

import copy
import dataclasses
import io
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import BenchError, lacks_memory, typed_line
from ..files import say
from ..storage import bytes_of
from ..types import Recorder
from . import machine

if TYPE_CHECKING:
    from ..algorithms.base import ServerRule
    from ..types import ClientTable, Upload

FOLLOWED = 20  # changes of the model until the copy is dropped
OFFERED = ("storage", "draws", "server", "part")  # by the run, see equip: no state of the rule
CALLS = ("receive_message", "replies", "tick", "round", "dispatched", "work_for", "resumes_from")  # the copy gets, too
ROOM = 4  # copies of the state that must fit into free memory: what is written, what is read, the copy's, and a reserve


class ProbedRule:
    """A rule, and from time to time a second copy of it that gets the same calls. In all else it is that rule.

    After 1, 2, 4, 8, ... uploads a new copy is restored from the rule's state, as in a resumed run. It is
    followed for ``FOLLOWED`` changes of the model, or until the next copy. Raises BenchError if the copy fails,
    returns other values to the engine, computes another model, bit for bit, or logs other numbers. The rule itself is
    not changed by it.

    name       of the algorithm, for messages
    build      makes a second rule, equipped and not started
    initial_d  makes the (d,) model that a run begins with
    Memory     while a copy is followed that of the rule, and d floats; no copy is made where this does not fit
    """

    def __init__(
        self, rule: ServerRule, name: str, build: Callable[[], ServerRule], initial_d: Callable[[], torch.Tensor]
    ):
        self.rule = rule
        self._name, self._build, self._initial_d = name, build, initial_d
        self._copy: ServerRule | None = None
        self._uploads = self._changes = 0
        self._not_restored: list[str] = []
        self._is_possible = True

    def __getattr__(self, name: str) -> Any:  # only reached for what is not here
        return partial(self._call_both, name) if name in CALLS else getattr(self.__dict__["rule"], name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.rule)  # isinstance asks for it: a SplitRule, a Recorder

    def start(self, model_d: torch.Tensor, clients: ClientTable, upload_kind: str) -> None:
        self._model_d, self._start = model_d, (clients, upload_kind)
        self.rule.start(model_d, clients, upload_kind)

    def receive(self, upload: Upload) -> bool:
        # nothing else of this event has reached the rule, so a checkpoint could have been made here
        if self._is_possible and self._uploads.bit_count() == 1:
            self._restore_copy()
        self._uploads += 1
        return self._call_both("receive", upload)

    def _restore_copy(self) -> None:
        self._copy = None
        state = self.rule.state_dict()
        free = machine.free_memory(str(self._model_d.device))
        if free is not None and ROOM * bytes_of([state, self._model_d]) > free:
            self._stop_comparing()
            return
        try:
            copied, self._copied_d = self._build(), self._initial_d()
            copied.start(self._copied_d, *self._start)
        except BenchError:  # a file for its rows does not fit, say
            self._stop_comparing()
            return
        try:
            self._copied_d.copy_(self._model_d)
            copied.load_state_dict(reload_state(state))
        except Exception as error:
            if not lacks_memory(error):
                raise self._describe_failure(error) from error
            self._stop_comparing()
            return
        self._not_restored = differing_attributes(self.rule, copied)
        self._copy, self._changes = copied, 0

    def _stop_comparing(self) -> None:
        self._is_possible = False
        how = f"afl-run --check algorithm={self._name} does it with a small model"
        say(
            f"algorithm={self._name}: a second copy does not fit into memory, so the rule's state is not checked; {how}"
        )

    def _call_both(self, method: str, *arguments: Any) -> Any:
        call = getattr(self.rule, method)
        if self._copy is None:
            return call(*arguments)
        given = [copy.copy(one) for one in arguments]
        vectors = [one.vector_d for one in arguments if hasattr(one, "vector_d")]
        lent = [(vector, vector.clone()) for vector in vectors]
        answer = call(*arguments)
        for vector, content in lent:
            if not is_same(vector, content):  # the rule computed in it; then so does the copy
                vector.copy_(content)
        try:
            answer_of_copy = getattr(self._copy, method)(*given)
        except Exception as error:
            if not lacks_memory(error):
                raise self._describe_failure(error) from error
            self._copy = None
            self._stop_comparing()
            return answer
        changed = answer is True
        if not is_same(answer, answer_of_copy) or (changed and not self._has_same_results(self._copy)):
            raise BenchError(f"algorithm={self._name}: {describe_difference(self._not_restored)}")
        self._changes += changed
        if self._changes == FOLLOWED:
            self._copy = None
        return answer

    def _has_same_results(self, copied: ServerRule) -> bool:
        """Return True if both have the same model and log the same: ``stats``, and a Recorder's ``decisions``."""
        rule = self.rule
        if not is_same(self._model_d, self._copied_d) or not is_same(rule.stats(), copied.stats()):
            return False
        if rule.needs.second_vector and not is_same(rule.variate_d, copied.variate_d):
            return False
        if isinstance(rule, Recorder) and isinstance(copied, Recorder):
            return is_same(rule.decisions(), copied.decisions())
        return True

    def _describe_failure(self, error: Exception) -> BenchError:
        return BenchError(
            f"algorithm={self._name}: a copy restored from the rule's state failed ({typed_line(error)[:150]}), "
            "and so would a resumed run; save in state_names all that the rule remembers, as tensors, numbers and lists"
        )


def add_probe(
    rule: ServerRule, name: str, build: Callable[[], ServerRule], initial_d: Callable[[], torch.Tensor]
) -> ServerRule:
    """Wrap the rule in a ``ProbedRule`` with the name of the rule's class, which messages show."""
    wrapper: Any = type(type(rule).__name__, (ProbedRule,), {})
    return wrapper(rule, name, build, initial_d)


def describe_difference(not_restored: list[str]) -> str:
    """Return a message for a rule whose restored copy computed different numbers, with the remedy."""
    wrong = "a copy restored from the rule's state does not compute the same, and neither would a resumed run"
    if not_restored:
        return f"{wrong}; add to state_names what it lacks (these attributes differ: {', '.join(not_restored)})"
    return f"{wrong}, though no attribute differs; draw random numbers from self.draws and keep all state in the rule"


def reload_state(state: dict) -> dict:
    """Save the state to memory and load it. Raises torch's error for objects that cannot be saved."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict = torch.load(file, map_location="cpu", weights_only=True)
    return loaded


def differing_attributes(rule: Any, other: Any) -> list[str]:
    """Return the names of attributes in which two rules differ, also those of a rule within a rule."""
    names = []
    for name, value in vars(rule).items():
        if name in OFFERED:
            continue
        if hasattr(value, "receive"):
            names += differing_attributes(value, vars(other)[name])
        else:
            with suppress(Exception):  # objects of other packages may not like to be compared
                if not is_same(value, vars(other).get(name)):
                    names.append(name)
    return names + [name for name in vars(other) if name not in vars(rule)]


def is_same(one: Any, other: Any, above: tuple[int, ...] = ()) -> bool:
    """Return True if both have the same bits. above: objects that refer to these, for circles."""
    if one is other or id(one) in above:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
            return False
        # bytes: where a run diverges, NaN is to be equal to NaN
        one, other = (value.detach().contiguous().view(-1).view(torch.uint8) for value in (one, other))
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    above = (*above, id(one))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key], above) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(is_same(a, b, above) for a, b in zip(one, other, strict=True))
    if isinstance(one, np.random.Generator):
        return is_same(one.bit_generator.state, other.bit_generator.state)
    if isinstance(one, torch.Generator):
        return torch.equal(one.get_state(), other.get_state())
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(is_same(getattr(one, name), getattr(other, name), above) for name in names)
    if hasattr(one, "__dict__") and not callable(one):
        return is_same(vars(one), vars(other), above)
    return bool(one == other) or bool(one != one and other != other)  # NaN
