"""Progress of a run: a bar on a terminal, occasional plain lines in a log file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_SECONDS_BETWEEN_REDRAWS = 0.1
_QUIET_SECONDS = 10.0  # between lines outside a terminal; shorter runs print nothing


class Progress:
    """Shows the progress of a run. ``update`` takes about a microsecond if it does not draw.

    total   budget in its unit (iterations, uploads, virtual time ...), or None without an end
    label   short name of the run
    stream  output; None for stderr
    done    budget used before this process (a resumed run)
    clock   monotonic seconds
    """

    def __init__(
        self,
        total: int | float | None,
        label: str,
        stream: TextIO | None = None,
        done: int | float = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total, self.label = total, label
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._started, self._done_before = clock(), done
        self._bar: RichProgress | None = None
        self._task: TaskID  # of the bar, set with it
        self._room: int  # columns for the facts beside the bar, set with it
        self._unshown: tuple | None = None
        self._lines_written = 0
        if self._stream is not None and self._stream.isatty() and os.environ.get("TERM") != "dumb":
            self._wait = _SECONDS_BETWEEN_REDRAWS
            self._next = self._started  # the first update is drawn at once
            self._open_bar()
        else:
            self._wait = _QUIET_SECONDS
            self._next = self._started + _QUIET_SECONDS

    def update(
        self,
        done: int | float,
        iteration: int,
        accuracy: float | None,
        virtual_time: float,
        updates_per_second: float,
        note: str = "",
    ) -> None:
        """Record the state and draw it if that is due.

        done      used budget, in the unit of ``total``
        accuracy  share, 0 to 1; None before the first evaluation
        """
        self._unshown = (done, iteration, accuracy, virtual_time, updates_per_second, note)
        now = self._clock()
        if now >= self._next:
            self._next = now + self._wait
            with suppress(OSError, ValueError):  # a closed pipe or a full disk must not end the run
                self._write(now)

    def close(self) -> None:
        """Show the last state, if one was shown before, and restore the terminal. May be called twice."""
        with suppress(OSError, ValueError):
            if self._unshown is not None and (self._bar is not None or self._lines_written):
                self._write(self._clock())
        self._unshown = None
        if self._bar is not None:
            with suppress(OSError, ValueError):
                self._bar.stop()
            self._bar = None

    def _write(self, now: float) -> None:
        """Draw the bar, or write a line. The remaining time is estimated without the earlier part of a resumed run."""
        assert self._unshown is not None
        done, iteration, accuracy, virtual_time, rate, note = self._unshown
        self._unshown = None
        accuracy_text = "-" if accuracy is None else f"{100 * accuracy:.1f} %"
        progress, left = done - self._done_before, clock_text(None)
        if self.total is not None and progress > 0:
            left = clock_text(max(0.0, (self.total - done) * (now - self._started) / progress))
        if self._bar is not None:
            facts = [left, f"iteration {iteration}", f"acc {accuracy_text}", f"t {virtual_time:.4g}", f"{rate:.0f}/s"]
            texts = accumulate([*facts, note] if note else facts, "{}  {}".format)
            shown = [text for text in texts if len(text) <= self._room] or [left]
            self._bar.update(self._task, completed=done, facts=shown[-1])
            self._bar.refresh()
            return
        if self._stream is None:  # a process without standard error
            return
        share = f"{100 * done / self.total:.0f} %, " if self.total else ""
        self._stream.write(
            f"{self.label}: {share}iteration {iteration}, accuracy {accuracy_text}, "
            f"virtual time {virtual_time:.6g}, {rate:.0f} updates/s, {left} left{f'; {note}' if note else ''}\n"
        )
        self._stream.flush()
        self._lines_written += 1

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress

        console = Console(file=self._stream, force_terminal=True)
        wide = console.width >= 100  # a narrow terminal has no room for the bar
        columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), TaskProgressColumn()]
        columns += [BarColumn(bar_width=16)] if wide else []
        columns += [TextColumn("{task.fields[facts]}", markup=False)]
        # no second thread: ``update`` draws the bar
        self._bar = RichProgress(*columns, console=console, auto_refresh=False)
        self._bar.start()
        room = 28 if wide else 15
        label = self.label if len(self.label) <= room else self.label[: room - 1] + "…"
        self._room = console.width - len(label) - len(" 100% ") - (17 if wide else 0)  # 17: the bar and a space
        # rich takes a float here too, as its update() says
        self._task = self._bar.add_task(
            label,
            total=self.total,
            completed=self._done_before,  # type: ignore[arg-type]
            facts="",
        )


def clock_text(seconds: float | None) -> str:
    """Return ``0:02:36``; ``-:--:--`` for None."""
    if seconds is None:
        return "-:--:--"
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}"
