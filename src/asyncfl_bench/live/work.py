"""Work in a client's process, from its vectors to the reply. Importing this does not load torch."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import describe_error
from ..types import Work
from .messages import VECTORS, pack

if TYPE_CHECKING:
    from ..clients.executors import SequentialComputer


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
