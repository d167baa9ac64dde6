"""The ClientApp, which Flower starts for each message. It passes the message to the node's permanent worker."""

from __future__ import annotations

import time
from multiprocessing.connection import Client, Connection

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ..messages import pack
from .server_app import as_bytes, as_record

SECONDS_TO_LOAD = 60.0  # until a worker listens
app = ClientApp()


@app.query()
@app.train()
def pass_on(message: Message, context: Context) -> Message:
    """Return the worker's reply. A reply without a number is to the work in the message."""
    try:
        with _connect(str(context.node_config.get("worker", "of node.py"))) as pipe:
            pipe.send_bytes(as_bytes(message.content))
            content = pipe.recv_bytes()
    except (EOFError, OSError) as error:
        content = pack({"problem": f"its worker ended ({type(error).__name__})"})
    return Message(as_record(content), reply_to=message)


def _connect(path: str) -> Connection:
    until = time.monotonic() + SECONDS_TO_LOAD
    while True:
        try:
            return Client(path, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
