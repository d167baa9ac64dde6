"""Computers of client processes that fail as a script says; another process imports them by name."""

from __future__ import annotations

import gc
import os
import struct
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from asyncfl_bench.experiment.build import build_computer


def faulty_build(folder, faults):
    """For Compute. faults: (client, count of its work) -> how it fails, once."""
    return partial(_build, str(folder), faults)


def _build(folder, faults, tree, folders, clients):
    if "start" in faults.values() and _first_time(folder, "start"):
        os._exit(7)
    return Faulty(build_computer(tree, folders, clients), folder, faults)


def _first_time(folder, name):
    try:
        (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Faulty:
    def __init__(self, computer, folder, faults):
        self.computer, self.folder, self.faults = computer, folder, faults

    def begin(self, pieces, start, out_pd, blocks):
        (work,) = pieces
        fault = self.faults.get((work.client, work.count))
        if fault == "hangs":
            time.sleep(600)
        if fault == "raises":
            raise ValueError("no data")
        if fault == "computing":
            os._exit(8)
        if fault == "sending":  # half a message
            (pipe,) = (one for one in gc.get_objects() if type(one) is Connection and not one.closed)
            os.write(pipe.fileno(), struct.pack("!i", 1000) + b"half")
            os._exit(9)
        if fault == "noise":
            (pipe,) = (one for one in gc.get_objects() if type(one) is Connection and not one.closed)
            pipe.send_bytes(b"no message")
        return self.computer.begin(pieces, start, out_pd, blocks)
