"""Fleets that other simulators published, written as files of ours: ``afl-run --import-fleet FILE``.

FedScale: ``client_device_capacity`` and ``client_behave_trace``, pickles. FLASH: ``state_traces.json``.
"""

from __future__ import annotations

import csv
import io
import math
import pickle
import pickletools
import shlex
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError, InputError, first_line
from ..files import LARGEST_FILE, atomic_write, expand_home, open_regular, parse_json, spreadsheet_cell
from .phones import COLUMNS

_Rows = list[tuple[float, ...]]  # of a client

ALLOWED = "must be client_device_capacity or client_behave_trace of FedScale, or state_traces.json of FLASH"
_DAY = 86400
_TRAINING = 3  # times the work of inference, as FedScale's own simulation has it
_LONGEST_NAME = 200  # letters or digits
_BYTES = 125  # in a kbit
_MESSAGES = {
    "battery_charged_on": ("charged", True),
    "battery_charged_off": ("charged", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
}
_WITHOUT_EFFECT = ("screen_on", "screen_off")


class _Kind(NamedTuple):
    """A kind of file.

    wanted   what each client must have
    convert  returns a client's rows of ``columns``, and the first and last moment of its trace. Raises for other facts
    """

    keys: set[str]
    wanted: str
    columns: tuple[str, ...]
    convert: Callable[[dict], tuple[_Rows, Iterable[float]]]


def import_fleet(name: str) -> str:
    """Write the fleet in file ``name`` to NAME.csv in the current folder. Return what was written and how to use it.

    Raises ConfigError or InputError for a file of another kind, a wrong value, or if NAME.csv exists.
    """
    path = expand_home(name, "--import-fleet")
    if not path.is_file():
        raise ConfigError("--import-fleet", name, f"no such file; {ALLOWED}")
    target = Path(f"{path.stem}.csv")
    if target.exists():
        raise InputError(f"{target}: exists already; move it away, or run the command in another folder")
    devices = _read_devices(path)
    first_keys = next(iter(devices.values())).keys()
    kind = next((kind for kind in _KINDS if kind.keys <= first_keys), None)
    if kind is None:
        raise InputError(f"{path}: {ALLOWED}, found clients with other facts")
    values = (device.get(key) for device in devices.values() for key in kind.keys)
    if sum(len(value) for value in values if isinstance(value, list | str)) > path.stat().st_size:
        raise InputError(f"{path}: must have the times of each client, found the same list at many")
    rows: dict[str, _Rows] = {}
    moments: set[float] = set()
    for client, device in devices.items():
        try:
            rows[client], ends = kind.convert(device)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
            raise InputError(f"{path}, client {client}: must have {kind.wanted}") from None
        moments.update(ends)
    kept = {client: found for client, found in rows.items() if found}
    if not kept:
        raise InputError(f"{path}: must have a client with a session, found none among {len(devices)}")
    words = [f"delay.path={target}"]
    if moments:
        origin, period = 0.0, max(moments)
        if kind.convert is _convert_messages:  # time 0 is midnight before the first message of all clients
            origin = min(moments) // _DAY * _DAY
            period = -((origin - period) // _DAY) * _DAY
        kept = {client: [(begin - origin, stop - origin) for begin, stop in found] for client, found in kept.items()}
        words = ["availability=trace", f"availability.path={target}", f"availability.period={period:.0f}"]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("client", *kind.columns))
    writer.writerows((spreadsheet_cell(client), *map(repr, row)) for client, found in kept.items() for row in found)
    with atomic_write(target) as file:
        file.write(text.getvalue().encode())
    left_out = len(devices) - len(kept)
    note = f"; {left_out} left out: no session, or a message that cannot be read" if left_out else ""
    use = shlex.join(["afl-run", "algorithm=fedasync", "delay=phones", *words, f"n_clients={min(100, len(kept))}"])
    return f"{target}: {len(kept)} clients{note}\nto use it: {use}"


class _PlainUnpickler(pickle.Unpickler):
    """Unpickle containers, numbers and text. A pickle that names a class or a function could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}; only lists, mappings, numbers and text are read")


def _load_pickle(content: bytes) -> Any:
    """Return the value in a pickle of lists, mappings, numbers and text. Raises any exception.

    Tuples and large memo numbers are refused: a nested tuple as a key takes exponential time, a memo number memory.
    """
    for count, (code, argument, _) in enumerate(pickletools.genops(content)):
        if code.name in ("GLOBAL", "STACK_GLOBAL", "INST"):
            break  # the unpickler names what it refuses
        if "TUPLE" in code.name or (code.name.endswith("PUT") and int(argument or 0) > count):
            raise pickle.UnpicklingError(f"it has {code.name}; only lists, mappings, numbers and text are read")
    return _PlainUnpickler(io.BytesIO(content)).load()


def _read_devices(path: Path) -> dict[str, dict]:
    """Return the mapping of clients in a JSON or pickle file. Raises InputError."""
    try:
        with open_regular(path, largest=LARGEST_FILE) as file:
            content = file.read()
        found = parse_json(content.decode()) if content[:1] == b"{" else _load_pickle(content)
        devices = {str(client): device for client, device in found.items()} if isinstance(found, dict) else {}
    except Exception as error:  # a damaged pickle raises almost anything
        reason = getattr(error, "strerror", None) or first_line(error)
        raise InputError(f"{path}: {ALLOWED}; not readable: {reason}") from None
    if not (devices and all(isinstance(device, dict) for device in devices.values())):
        raise InputError(f"{path}: {ALLOWED}, found no mapping of clients")
    named = all(name.isprintable() and 0 < len(name) <= _LONGEST_NAME for name in devices)
    if not named or len(devices) < len(found):
        allowed = f"a whole number or printable text of at most {_LONGEST_NAME} letters"
        raise InputError(f"{path}: each client must have a separate name, {allowed}")
    return devices


def _convert_capacity(device: dict) -> tuple[_Rows, Iterable[float]]:
    """Return the speeds of a client, from milliseconds of inference per sample and kbit/s in both directions."""
    inference, kbits = _numbers([device["computation"], device["communication"]], least=math.ulp(0.0))
    return [(inference * _TRAINING / 1000, kbits * _BYTES, kbits * _BYTES)], ()


def _convert_sessions(device: dict) -> tuple[_Rows, Iterable[float]]:
    """Return the sessions of a client and its finish_time; after the longest the file repeats for all clients."""
    (end,) = _numbers([device["finish_time"]], least=math.ulp(0.0))
    active, inactive = _numbers(device["active"]), _numbers(device["inactive"])
    pairs = zip(active, inactive[: len(active)], strict=True)
    return _join((begin, min(stop, end)) for begin, stop in pairs), [end]


def _convert_messages(device: dict) -> tuple[_Rows, Iterable[float]]:
    """Return the times at which a client charges, is locked and has Wi-Fi, and of its first and last message.

    In seconds since 1970; nothing for a client with a message that cannot be read.
    """
    lines = [line.split("\t") for line in device["messages"].splitlines() if line.strip()]
    state = dict.fromkeys(("charged", "locked", "wifi"), False)
    begin, sessions = None, []
    try:
        timed = sorted(((_seconds(moment), words.strip().lower()) for moment, words in lines), key=lambda one: one[0])
    except (ValueError, OverflowError):
        return [], ()
    for moment, message in timed:
        if message in _MESSAGES:
            key, value = _MESSAGES[message]
            state[key] = value
        elif message not in _WITHOUT_EFFECT and not message.endswith("%"):
            return [], ()
        if begin is None and all(state.values()):
            begin = moment
        elif begin is not None and not all(state.values()):
            sessions.append((begin, moment))
            begin = None
    ends = [timed[0][0], timed[-1][0]] if timed else []
    if begin is not None:
        sessions.append((begin, ends[-1]))
    return _join(sessions), ends


def _seconds(text: str) -> float:
    """Return the seconds since 1970 of a moment, which is in UTC unless it has an offset."""
    moment = datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _join(sessions: Iterable[tuple[float, float]]) -> _Rows:
    """Return the sessions in order; empty ones are dropped and overlapping ones become one."""
    joined: _Rows = []
    for begin, end in sorted(one for one in sessions if one[0] < one[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _numbers(values: Any, least: float = 0.0) -> list[float]:
    """Return finite numbers >= ``least``. Raises for anything else."""
    numbers = [float(value) for value in values]
    if not all(least <= number < math.inf for number in numbers):
        raise ValueError
    return numbers


_KINDS = (
    _Kind({"computation", "communication"}, "computation and communication, numbers > 0", COLUMNS, _convert_capacity),
    _Kind(
        {"active", "inactive", "finish_time"},
        "lists active and inactive of as many numbers >= 0, and a number finish_time > 0",
        ("online", "offline"),
        _convert_sessions,
    ),
    _Kind({"messages"}, "messages, a text with a line for each", ("online", "offline"), _convert_messages),
)
