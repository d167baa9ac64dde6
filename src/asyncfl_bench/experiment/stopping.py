"""Stopping a run: the first signal is recorded and the current work named; the second one does not wait."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import EXIT_INTERRUPTED
from ..files import say

SCHEDULER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)  # by which a scheduler announces the end, where it handles them
ONE_REQUEST_SECONDS = 1.0  # a terminal and the process that started this one may both pass on the same Ctrl-C
SECONDS_TO_END = 1.0
_NONE = 0  # no signal has this number


class Stop:
    """Signals received so far (true if there is one), and the name of the work that must end first."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.under_way = "the current mini-batches and a checkpoint"

    def __bool__(self) -> bool:
        return bool(self.received)

    @contextmanager
    def waits_for(self, what: str) -> Iterator[None]:
        before, self.under_way = self.under_way, what
        try:
            yield
        finally:
            self.under_way = before


def stopping_signals() -> list[signal.Signals]:
    """Return the signals by which a person ends a command, with the terminal's end unless it is ignored (nohup)."""
    hung_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hung_up]


_stops_of_threads: list[Stop] = []  # of runs in other threads than the main one, which gets all signals


@contextmanager
def recording_signals(stop: Stop, ends_process: bool = False) -> Iterator[None]:
    """Record stop signals in ``stop`` and answer them at once while the block runs.

    This works while the main thread is busy outside Python. A second signal raises KeyboardInterrupt. In another thread
    the signals are those that the main thread records meanwhile.
    ends_process  the second signal also ends the process soon, for code that lets no exception through
    """
    if threading.current_thread() is not threading.main_thread():
        _stops_of_threads.append(stop)
        try:
            yield
        finally:
            _stops_of_threads.remove(stop)
        return
    announced = [number for number in SCHEDULER_SIGNALS if callable(signal.getsignal(number))]
    heard = [*stopping_signals(), *announced]
    main, first = threading.get_ident(), 0.0
    second_signal, done = threading.Event(), threading.Event()

    def note(number: int) -> None:
        nonlocal first
        if number not in heard or second_signal.is_set():
            return
        if not stop:
            first = time.monotonic()
            for one in (stop, *_stops_of_threads):
                one.received.append(number)
            line = "\n" if sys.stderr is not None and sys.stderr.isatty() else ""  # after a bar and ^C
            say(f"{line}stopping: waiting for {stop.under_way}; a second signal does not wait")
        elif time.monotonic() - first > ONE_REQUEST_SECONDS:
            second_signal.set()
            if ends_process:
                end_soon()
            while not done.wait(0.05):
                signal.pthread_kill(main, number)  # wakes it where it waits for a thread, unless it just begins to

    def handle(number: int, frame: object) -> None:
        if second_signal.is_set() and not done.is_set():
            done.set()
            raise KeyboardInterrupt

    with _forwarding_signals(note):
        before = {number: signal.signal(number, handle) for number in heard}
        # a launcher may have blocked all of them (ignoring_terminal_signals), and stops this process by SIGTERM
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        try:
            yield
        finally:
            done.set()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for number, handler in before.items():
                signal.signal(number, handler)


hurried = threading.Event()  # by a second signal: Python's own end, seconds where torch is loaded, is to be left out


def end_soon() -> None:
    """End the process after ``SECONDS_TO_END``, whatever it is doing then."""
    hurried.set()
    timer = threading.Timer(SECONDS_TO_END, os._exit, (EXIT_INTERRUPTED,))
    timer.daemon = True
    timer.start()


@contextmanager
def _forwarding_signals(note: Callable[[int], None]) -> Iterator[None]:
    """Call ``note`` in a separate thread for each signal with a Python handler, while the block runs."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def forward_signals() -> None:
        with open(reader, "rb", buffering=0) as signals:
            while (number := signals.read(1)[0]) != _NONE:
                note(number)

    thread = threading.Thread(target=forward_signals, name="afl-signals", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writer, bytes([_NONE]))
        thread.join(1.0)  # it may be stuck in writing a line
        os.close(writer)
