"""The entry point of ``afl-run``, without what the command imports: a Ctrl-C while that loads ends in one line."""

import os
import signal

from ..errors import EXIT_INTERRUPTED


def main() -> None:
    """Exit codes: 0 done, 1 a run failed, 2 usage, 75 interrupted (can be resumed)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit_while_loading)
    from .command import main

    main()


def _exit_while_loading(number: int, frame: object) -> None:
    """Exit at once on a signal before the command is loaded."""
    os.write(2, b"afl-run: stopped before anything was begun\n")
    os._exit(EXIT_INTERRUPTED)  # an exception may be lost in the module that just loads
