"""Fleets that other simulators published, written as files of ours: ``afl-run --import-fleet FILE``.

FedScale: ``client_device_capacity`` and ``client_behave_trace``, pickles. FLASH: ``state_traces.json``.
"""

from __future__ import annotations

import csv
import io
import math
import pickle
import pickletools
import reprlib
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import ConfigError, InputError, first_line, list_some
from ..files import LARGEST_FILE, atomic_write, expand_home, open_regular, parse_json, spreadsheet_cell
from .phones import COLUMNS

Session = tuple[float, float]
Traces = dict[str, Sequence[tuple[float, ...]]]  # of each client

ALLOWED = "must be client_device_capacity or client_behave_trace of FedScale, or state_traces.json of FLASH"
_DAY = 86400
_TRAINING = 3  # times the work of inference, as FedScale's own simulation has it
_LONGEST_NAME = 200  # letters or digits
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
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
    keys = next(iter(devices.values())).keys()
    kind = next((kind for kind in _KINDS if kind[0] <= keys), None)
    if kind is None:
        raise InputError(f"{path}: {ALLOWED}, found clients with {list_some(map(_shorten, keys)) or 'nothing'}")
    needed, columns, convert = kind
    values = (device.get(key) for device in devices.values() for key in needed)
    if sum(len(value) for value in values if isinstance(value, list | str)) > path.stat().st_size:
        raise InputError(f"{path}: must have the times of each client, found the same list at many")
    rows, period = convert(path, devices)
    kept = {client: found for client, found in rows.items() if found}
    if not kept:
        raise InputError(f"{path}: must have a client with a session, found none among {len(devices)}")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("client", *columns))
    writer.writerows((spreadsheet_cell(client), *map(repr, row)) for client, found in kept.items() for row in found)
    with atomic_write(target) as file:
        file.write(text.getvalue().encode())
    left_out = len(devices) - len(kept)
    note = f"; {left_out} left out: no session, or a message that cannot be read" if left_out else ""
    words = [f"delay.path={target}"]
    if period is not None:
        words = ["availability=trace", f"availability.path={target}", f"availability.period={period:.0f}"]
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
    except Exception as error:  # a damaged pickle raises almost anything
        reason = getattr(error, "strerror", None) or first_line(error)
        raise InputError(f"{path}: {ALLOWED}; not readable: {reason}") from None
    if not (isinstance(found, dict) and found and all(isinstance(one, dict) for one in found.values())):
        raise InputError(f"{path}: {ALLOWED}, found no mapping of clients")
    devices = {_client_name(path, client): device for client, device in found.items()}
    if len(devices) < len(found):
        raise InputError(f"{path}: must have each client once")
    return devices


def _client_name(path: Path, client: Any) -> str:
    """Return the name of a client in the file that is written. Raises InputError."""
    is_word = isinstance(client, str) and client.isprintable() and 0 < len(client) <= _LONGEST_NAME
    if not is_word and not (type(client) is int and abs(client) < 10**_LONGEST_NAME):
        allowed = f"a whole number or printable text of at most {_LONGEST_NAME} letters"
        raise InputError(f"{path}: the name of a client must be {allowed}, found {_shorten(client)}")
    return str(client)


def _shorten(value: Any) -> str:
    """Return a short text for a value of any depth."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # a number of thousands of digits
        return f"a {type(value).__name__}"


def _convert_capacity(path: Path, devices: dict[str, dict]) -> tuple[Traces, float | None]:
    """Return the speeds of clients, from milliseconds of inference per sample and kbit/s in both directions."""
    rows: Traces = {}
    for client, device in devices.items():
        inference, kbits = (_number(path, client, device, key, above=0) for key in ("computation", "communication"))
        rows[client] = [(inference * _TRAINING / 1000, kbits * _BYTES, kbits * _BYTES)]
    return rows, None


def _convert_sessions(path: Path, devices: dict[str, dict]) -> tuple[Traces, float | None]:
    """Return the sessions of clients and the longest finish_time, after which the file repeats for all clients."""
    rows: Traces = {}
    period = 0.0
    for client, device in devices.items():
        end = _number(path, client, device, "finish_time", above=0)
        active, inactive = (_numbers(path, client, device, key) for key in ("active", "inactive"))
        if len(active) > len(inactive):
            count = f"must have as many numbers as active ({len(active)}), found {len(inactive)}"
            raise InputError(f"{path}, client {client}: inactive {count}")
        rows[client] = _join((begin, min(stop, end)) for begin, stop in zip(active, inactive, strict=False))
        period = max(period, end)
    return rows, period


def _convert_messages(path: Path, devices: dict[str, dict]) -> tuple[Traces, float | None]:
    """Return the sessions of clients that charge, are locked and have Wi-Fi, and the length of the trace in whole days.

    Time 0 is midnight before the first message of all clients.
    """
    found: dict[str, list[Session]] = {}
    first, last = float("inf"), 0.0
    for client, device in devices.items():
        if not isinstance(device.get("messages"), str):
            raise InputError(f"{path}, client {client}: messages must be text, a line for each")
        try:
            moments, found[client] = _ready_sessions(device["messages"])
        except (ValueError, OverflowError):
            found[client] = []
            continue
        first, last = min(first, *moments), max(last, *moments)
    origin = first // _DAY * _DAY
    rows: Traces = {
        client: [(begin - origin, end - origin) for begin, end in sessions] for client, sessions in found.items()
    }
    return rows, -(-(last - origin) // _DAY) * _DAY  # whole days


def _ready_sessions(messages: str) -> tuple[Session, list[Session]]:
    """Return the time of the first and the last message, and the intervals of readiness, in seconds since 1970.

    Raises ValueError for a message that cannot be read.
    """
    lines = [line.split("\t") for line in messages.splitlines() if line.strip()]
    timed = sorted(
        ((_seconds(moment), state.strip().lower()) for moment, state in lines), key=lambda message: message[0]
    )
    state = dict.fromkeys(("charged", "locked", "wifi"), False)
    begin, sessions = None, []
    for moment, message in timed:
        if message in _MESSAGES:
            key, value = _MESSAGES[message]
            state[key] = value
        elif message not in _WITHOUT_EFFECT and not message.endswith("%"):
            raise ValueError(message)
        if begin is None and all(state.values()):
            begin = moment
        elif begin is not None and not all(state.values()):
            sessions.append((begin, moment))
            begin = None
    if not timed:
        raise ValueError("no message")
    end = timed[-1][0]
    if begin is not None:
        sessions.append((begin, end))
    return (timed[0][0], end), _join(sessions)


def _seconds(text: str) -> float:
    """Return the seconds since 1970 of a moment, which is in UTC unless it has an offset."""
    moment = datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _join(sessions: Iterable[Session]) -> list[Session]:
    """Return the sessions in order; empty ones are dropped and overlapping ones become one."""
    joined: list[Session] = []
    for begin, end in sorted(one for one in sessions if one[0] < one[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _number(path: Path, client: str, device: dict, key: str, above: float) -> float:
    """Return a finite number > ``above``. Raises InputError that names the client."""
    if not above < (number := _to_float(device.get(key))) < math.inf:
        found = _shorten(device.get(key))
        raise InputError(f"{path}, client {client}: {key} must be a number > {above:g}, found {found}")
    return number


def _numbers(path: Path, client: str, device: dict, key: str) -> list[float]:
    values = device.get(key)
    numbers = [_to_float(value) for value in values] if isinstance(values, list) else [math.nan]
    if not all(0 <= number < math.inf for number in numbers):
        raise InputError(f"{path}, client {client}: {key} must be a list of numbers >= 0, found {_shorten(values)}")
    return numbers


def _to_float(value: Any) -> float:
    """Return a number as a float, NaN for anything else and for a number that is too large."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


_KINDS: tuple[tuple[set[str], tuple[str, ...], Callable[[Path, dict[str, dict]], tuple[Traces, float | None]]], ...] = (
    ({"computation", "communication"}, COLUMNS, _convert_capacity),
    ({"active", "inactive", "finish_time"}, ("online", "offline"), _convert_sessions),
    ({"messages"}, ("online", "offline"), _convert_messages),
)
