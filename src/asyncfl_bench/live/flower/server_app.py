"""The ServerApp, which runs the words of its config over Flower's Grid."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

import flwr.serverapp
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode  # flwr.app does not have it
from flwr.serverapp import ServerApp

from ...errors import BenchError
from ...files import show
from .transport import NodeReply, grids

TTL = 7 * 86400.0  # s; a message that is older is dropped by Flower
GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)


class FlowerGrid:
    """Flower's Grid as a ``transport.MessageGrid``."""

    def __init__(self, grid: flwr.serverapp.Grid):
        self._grid = grid

    def nodes(self) -> set[int]:
        return set(self._grid.get_node_ids())

    def push(self, node: int, kind: str, content: bytes) -> str:
        names = list(self._grid.push_messages([Message(as_record(content), node, kind, ttl=TTL)]))
        if not names or not names[0]:
            raise ConnectionError("Flower took no message to it")
        return names[0]

    def pull(self, message: str) -> NodeReply | None:
        replies = list(self._grid.pull_messages([message]))
        if not replies:
            return None
        (reply,) = replies
        if reply.has_error():
            reason = reply.error.reason or f"error {reply.error.code} of Flower"
            return NodeReply(problem=reason, gone=reply.error.code in GONE)
        return NodeReply(as_bytes(reply.content))


def as_record(content: bytes) -> RecordDict:
    """Return a message's content as an array, which Flower sends in pieces."""
    return RecordDict({"message": ArrayRecord({"bytes": Array(np.frombuffer(content, np.uint8))})})


def as_bytes(record: RecordDict) -> bytes:
    """Return a message's content; no bytes for records that ``as_record`` did not make."""
    try:
        return record["message"]["bytes"].numpy().tobytes()
    except Exception:  # parts of Flower's format raise different errors for damaged content
        return b""


def build_app(run: Callable[..., Any]) -> ServerApp:
    """Return the app. run: asyncfl_bench.run"""
    app = ServerApp()

    @app.main()
    def main(grid: flwr.serverapp.Grid, context: Context) -> None:
        config = context.run_config
        os.chdir(str(config["directory"]))  # the app's folder, to which paths among the words are relative
        grids.append(FlowerGrid(grid))
        try:
            result = run(shlex.split(str(config["words"])), config_dir=shlex.split(str(config["folders"])))
        except BenchError as error:
            problem = str(error)
        else:
            show(f"{result.summary['exit_status']}: {result.directory}")
            if result.ok:
                return
            remedy = "; the same flwr run resumes it" if result.summary["exit_status"] == "interrupted" else ""
            problem = f"{result.summary['error'] or result.summary['exit_status']}{remedy}"
        sys.tracebacklimit = 0  # Flower would log a traceback; the message is enough
        raise BenchError(problem)

    return app
