"""Base classes of parts: the state that a checkpoint holds, nested by part, and attributes that the run sets."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from .errors import PACKAGE, InputError, describe_location, is_built_in


class Stateful:
    """Base class of everything with a state in a checkpoint.

    state_names   attributes that make up the state: tensors, numbers, text, None, and containers of these. A key of the
                  state is the name without leading underscores
    state_device  device of tensors that are in containers; None: where they are loaded
    """

    state_names: tuple[str, ...] = ()
    state_device: Any = None

    def parts(self) -> dict[str, Stateful]:
        """Return the parts with a state by their keys in this state."""
        return {}

    def state_dict(self) -> dict:
        """Return containers that ``torch.load`` accepts with ``weights_only=True``. Containers are copies, tensors are
        those in use."""
        state: dict[str, Any] = {name.lstrip("_"): copy_containers(getattr(self, name)) for name in self.state_names}
        return state | {name: part.state_dict() for name, part in self.parts().items()}

    def load_state_dict(self, state: dict) -> None:
        """Restore ``state_dict``; a tensor is copied into the one in use. KeyError for a key that is missing."""
        for name in self.state_names:
            mine, saved = getattr(self, name), state[name.lstrip("_")]
            if hasattr(mine, "copy_"):
                mine.copy_(saved)
                continue
            value = copy_containers(saved, self.state_device)
            setattr(self, name, type(mine)(value) if isinstance(mine, dict | set | deque) else value)
        for name, part in self.parts().items():
            part.load_state_dict(state[name])


def copy_containers(value: Any, device: Any = None) -> Any:
    """Return the value with copied containers: lists for sets and deques, plain dicts. device: for its tensors."""
    if isinstance(value, dict):
        return {key: copy_containers(one, device) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(copy_containers(one, device) for one in value)
    if isinstance(value, list | deque | set):
        return [copy_containers(one, device) for one in (sorted(value) if isinstance(value, set) else value)]
    return value.to(device) if device is not None and hasattr(value, "copy_") else value


class RunAttributes:
    """Base class of parts with attributes that the run sets. A user's class that assigns one is refused at that line.

    _set_by_run  their names
    _settable    those that may be assigned once the run has set them
    """

    _set_by_run: tuple[str, ...] = ()
    _settable: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not is_built_in(cls):  # an assignment through this takes five times as long
            type.__setattr__(cls, "__setattr__", _set_attribute)


def _set_attribute(part: RunAttributes, name: str, value: object) -> None:
    """Set an attribute. Raises InputError if a user's code assigns one of ``_set_by_run``."""
    if name in part._set_by_run and (present := vars(part).get(name, part)) is not value:  # model_d += u_d is in place
        caller = sys._getframe(1)
        is_ours = caller.f_globals.get("__name__", "").partition(".")[0] == PACKAGE
        if not (is_ours or (name in part._settable and name in vars(part))):
            is_tensor = hasattr(present, "copy_")
            instead = f"change it in place, self.{name}.copy_(...)" if is_tensor else "choose another name"
            location = describe_location(caller.f_code.co_filename, caller.f_lineno)
            raise InputError(f"{location}: self.{name} is set by the run; {instead}")
    object.__setattr__(part, name, value)
