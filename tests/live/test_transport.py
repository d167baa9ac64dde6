"""Processes of clients, with a thread of the test in the place of each process."""

from __future__ import annotations

import multiprocessing
import os
import struct
import threading
from multiprocessing.connection import Connection

import numpy as np

from asyncfl_bench.live.choice import ProcessesConfig
from asyncfl_bench.live.messages import pack
from asyncfl_bench.live.processes import LocalProcesses
from asyncfl_bench.types import Work


class Process:
    """A process, and the context that makes it."""

    exitcode = None

    def __init__(self, sends=b""):
        self.sends = sends
        self.may_start, self.started, self.killed = threading.Event(), False, threading.Event()
        self.lock = threading.Lock()

    def Pipe(self):
        return multiprocessing.Pipe()

    def Process(self, target, args, daemon):
        self.end = Connection(os.dup(args[0].fileno()))
        return self

    def start(self):
        self.may_start.wait(5)
        self.end.send_bytes(pack({"hello": True}))
        self.started = True
        self.end._send(self.sends)

    def kill(self):
        assert self.started
        with self.lock:  # the timer and the place's thread both kill, and a file must not be closed twice
            self.end.close()
        self.killed.set()

    def join(self, seconds):
        assert self.started

    def is_alive(self):
        return True


def transport_of(process, **settings):
    """The transport of one client, whose thread runs."""
    config = ProcessesConfig(count=1, **settings)
    transport = LocalProcesses(config, None, n_clients=1, identity="mine", largest=1000, report=lambda text: None)
    transport.context, transport.is_open = process, True
    transport._processes[0].thread.start()
    return transport


def test_a_process_that_starts_while_the_run_ends_is_killed_when_it_has_started():
    process = Process()
    transport = transport_of(process)
    while not hasattr(process, "end"):
        pass
    transport.close()
    process.may_start.set()
    transport._processes[0].thread.join(5)
    assert process.killed.is_set() and not transport._processes[0].thread.is_alive()


def loss_of(process, numbers=2, **settings):
    """Why the first piece of work of that process is lost."""
    process.may_start.set()
    transport = transport_of(process, **settings)
    transport.send(Work(0, 0, 0, 0, local_steps=1), [np.zeros(numbers, np.float32), None, None])
    try:
        return transport.replies.get(timeout=5).problem
    finally:
        transport.close()


def test_a_reply_that_is_too_long_is_called_so():
    assert loss_of(Process(struct.pack("!i", 1001))) == "a reply of more than 1000 bytes"


def test_a_process_that_stalls_within_a_message_or_does_not_read_is_killed_at_the_limit():
    for process, numbers in ((Process(struct.pack("!i", 1000) + b"half"), 2), (Process(), 10**6)):
        said = "no upload within live.answer_within=0.05 s"
        assert loss_of(process, numbers, answer_within=0.05) == said and process.killed.is_set()
