"""Work and replies as bytes, and the computation of a reply in a client's process.

There is no pickle, so received bytes are never executed. Importing this does not load torch.
"""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import describe_error
from ..files import clean_text
from ..types import Work

if TYPE_CHECKING:
    from ..clients.executors import SequentialComputer

VECTORS = ("start", "center", "shift")  # sent with work: WorkQueue.start
LONGEST_TEXT = 300  # characters of a client's text
WorkVectors = Sequence[np.ndarray | None]


@dataclass
class ClientReply:
    """An unchecked reply of a client.

    clients   clients of the process that sent it
    sequence  number of the work that it claims to reply to
    identity  of the run that it claims to belong to
    vector_d, loss, outputs_uc  of the upload;  problem: why there is no upload; else empty
    received_at  moment at which it was received (time.monotonic)
    left      the client gets no more work after this loss; set by ``Inbox``
    seconds   time since its client could begin the work; set by ``Inbox``
    """

    clients: Sequence[int]
    sequence: int
    identity: str = ""
    vector_d: np.ndarray | None = None
    loss: float = math.nan
    outputs_uc: np.ndarray | None = None
    problem: str = ""
    received_at: float = field(default_factory=time.monotonic)
    left: bool = False
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.identity, self.problem = foreign_text(self.identity), foreign_text(self.problem)


def foreign_text(text: object) -> str:
    """Return a client's text as one line that is safe for a terminal and a .csv file."""
    return clean_text(str(text)[:LONGEST_TEXT], one_line=True)


def versions() -> dict[str, str]:
    """Return the versions that server and clients should share."""
    return {name: metadata.version(name) for name in ("asyncfl_bench", "torch")}


def pack(facts: dict[str, Any], **arrays: np.ndarray | None) -> bytes:
    """Return facts and the arrays that are not None as bytes."""
    file = io.BytesIO()
    np.savez(file, facts=json.dumps(facts), **{name: one for name, one in arrays.items() if one is not None})  # type: ignore[arg-type]
    return file.getvalue()


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (facts, arrays), which together are at most as large as the content.

    Raises ValueError for content that ``pack`` did not write.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:  # compressed or overlapping files would be larger
            members = archive.infolist()
        plain = all(one.compress_type == zipfile.ZIP_STORED for one in members)
        if not plain or sum(one.file_size for one in members) > len(content):
            raise ValueError
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(str(arrays.pop("facts")))
    except Exception as error:  # of a damaged archive zipfile, NumPy and json each raise their own
        raise ValueError(f"not a message ({type(error).__name__})") from None
    if not isinstance(facts, dict):
        raise ValueError("not a message (no facts)")
    return facts, arrays


def read_reply(content: bytes, clients: Sequence[int], sequence: int) -> ClientReply:
    """Return the reply in the bytes that clients sent. sequence: number of the work, for a reply without one"""
    try:
        facts, arrays = unpack(content)
        number, loss = facts.get("sequence", sequence), facts.get("loss", math.nan)
        return ClientReply(
            clients,
            number if isinstance(number, int) and abs(number) < 2**63 else -1,
            str(facts.get("identity", "")),
            arrays.get("vector"),
            loss if isinstance(loss, float) else math.nan,
            arrays.get("outputs"),
            str(facts.get("problem", "")),
        )
    except ValueError as error:
        return ClientReply(clients, sequence, problem=str(error))


def compute_reply(computer: SequentialComputer, identity: str, work: Work, arrays: dict[str, np.ndarray]) -> bytes:
    """Compute work and return the reply, with the problem if it fails. identity: of the run"""
    import torch

    from ..clients.versions import Blocks

    reply: dict[str, Any] = {"sequence": work.sequence, "identity": identity}
    try:
        start: Any = tuple(torch.from_numpy(arrays[name]) if name in arrays else None for name in VECTORS)
        out_pd = torch.empty(1, len(arrays["start"]))
        (upload,) = computer.begin([work], lambda _: start, out_pd, Blocks())()
        outputs = None if upload.outputs_uc is None else upload.outputs_uc.numpy()
        return pack(reply | {"loss": float(upload.loss)}, vector=out_pd[0].numpy(), outputs=outputs)
    except Exception as error:
        return pack(reply | {"problem": describe_error(error)})


def end_with_parent() -> None:
    """End this process, which may be busy, when its parent is killed. Runs in a thread."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
