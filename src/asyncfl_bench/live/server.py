"""The server of a live run: a timeline and a queue of work for the engine, with real ends of work."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..clients.queue import ComputedUpload, WorkQueue
from ..clients.versions import Blocks, ClientVectors
from ..config import Settings
from ..files import say
from ..simulation.recorded import ArrivalRecord, LateLosses
from ..stateful import Stateful
from ..tracking.rundir import UPLOADS_NAME
from ..types import Work
from .record import GRAIN, Clock, RecordFile
from .replies import Inbox
from .threaded_transport import ThreadedTransport
from .uploads import UploadFile, UploadSource

if TYPE_CHECKING:
    from ..clients.executors import SequentialComputer
    from ..clients.queue import PendingUploads, Start


class LiveTimeline(LateLosses):
    """Timeline that waits for the next reply, because ends of work are not known in advance.

    limit  virtual time at which the run ends, or None
    """

    state_names = (*LateLosses.state_names, "_stamp")

    def __init__(self, inbox: Inbox, file: RecordFile, discard: Callable[[Work], None], limit: float | None):
        super().__init__(discard)
        self._inbox, self._file, self._limit, self._clock = inbox, file, limit, Clock()

    def add(self, work: Work) -> None:
        self.in_flight[work.sequence] = work

    def is_lost(self, work: Work) -> bool:
        return self._inbox.is_lost(work)

    @property
    def next_due(self) -> float:
        """Wait for a reply if no end of work is known, and stamp its work as due."""
        if not self._due and len(self.in_flight) > len(self.ending):
            limit = math.inf if self._limit is None else self._limit
            self._inbox.start()
            self._clock.start()
            if (reply := self._inbox.next_reply(lambda: self._clock.seconds_until(limit))) is None:
                return limit + GRAIN
            work = self.in_flight[reply.sequence]
            work.due = self._clock.stamp(reply.received_at)
            self._file.write(work, reply)
            heapq.heappush(self._due, (work.due, work.sequence))
        return super().next_due

    @property
    def _stamp(self) -> float:
        return self._clock.last

    @_stamp.setter
    def _stamp(self, value: float) -> None:
        self._clock.last = value

    def parts(self) -> dict[str, Stateful]:
        return {"file": self._file}


class LiveComputer(UploadSource):
    """Returns received uploads instead of computed ones. file: also stores them; None: no file"""

    def __init__(self, inbox: Inbox, real: SequentialComputer, file: UploadFile | None):
        super().__init__(real)
        self._inbox, self._file = inbox, file

    def begin(self, pieces: list[Work], start: Start, out_pd: torch.Tensor, blocks: Blocks) -> PendingUploads:
        reply = self._inbox.take(pieces[0])
        if self._file is not None:
            self._file.write(pieces[0], reply)
        out_pd[0].copy_(torch.from_numpy(reply.vector_d))
        outputs_uc = None if reply.outputs_uc is None else torch.from_numpy(reply.outputs_uc)
        return lambda: [ComputedUpload(torch.tensor(reply.loss, dtype=torch.float32), None, outputs_uc)]

    def state_dict(self) -> dict:
        return {} if self._file is None else self._file.state_dict()

    def load_state_dict(self, state: dict) -> None:
        if self._file is not None:
            self._file.load_state_dict(state)

    def close(self) -> None:
        super().close()
        if self._file is not None:
            self._file.close()


class LiveQueue(WorkQueue):
    """A queue that sends work at its dispatch. A resumed run sends work in flight again, with the same draws."""

    def __init__(
        self,
        inbox: Inbox,
        real: SequentialComputer,
        memories: ClientVectors | None,
        keeps_base: bool,
        record: RecordFile,
        file: UploadFile | None = None,
    ):
        super().__init__(LiveComputer(inbox, real, file), memories=memories, keeps_base=keeps_base)
        self._inbox, self._record = inbox, record
        inbox.vectors = lambda work: [None if v is None else np.array(v.numpy(), np.float32) for v in self.start(work)]

    def dispatch(self, work: Work, model_d: torch.Tensor) -> None:
        super().dispatch(work, model_d)
        self._inbox.send(work)

    def discard(self, work: Work) -> None:
        self._inbox.forget(work)
        super().discard(work)

    def close(self) -> None:
        try:
            self._inbox.transport.close()
        finally:
            self._record.close()
            super().close()

    def state_dict(self) -> dict:
        return super().state_dict() | {"inbox": self._inbox.state_dict()}

    def load_state_dict(self, state: dict, model_d: torch.Tensor, in_flight: list[Work]) -> None:
        super().load_state_dict(state, model_d, in_flight)
        self._inbox.load_state_dict(state["inbox"], in_flight)


class LiveServer:
    """Builds the parts of a live run that differ from those of a simulation.

    queue   the run's executor
    record  the departures of clients, for the run's availability
    """

    def __init__(
        self,
        settings: Settings,
        transport: ThreadedTransport,
        computer: SequentialComputer,
        memories: ClientVectors | None,
        *,
        d: int,
        shape_uc: tuple[int, int] | None,
        stop: list[int],
    ):
        needs, name = settings.needs, settings.choices.get("algorithm")
        must_stay = f"algorithm={name} waits for every client" if needs.waits_for else ""
        quiet = not settings.root.progress
        self._inbox = Inbox(
            transport,
            d=d,
            shape_uc=shape_uc,
            identity=settings.identity,
            strikes=settings.parts["live"].config.strikes,
            must_stay=must_stay,
            stop=stop,
            report=(lambda text: None) if quiet else say,
        )
        self._file, self._limit = RecordFile(settings.directory), settings.budget.virtual_time
        keeps = settings.parts["live"].config.keep_uploads
        self._uploads = UploadFile(settings.directory / UPLOADS_NAME, d, shape_uc) if keeps else None
        self.queue = LiveQueue(self._inbox, computer, memories, needs.base, self._file, self._uploads)

    @property
    def record(self) -> ArrivalRecord:
        return self._file.record

    def build_timeline(self) -> LiveTimeline:
        return LiveTimeline(self._inbox, self._file, self.queue.discard, self._limit)

    def status(self) -> str:
        """Return the connection status as text, for the line of progress."""
        refused, out = sum(self._inbox.refusals.values()), ", ".join(map(str, sorted(self.record.left_at)))
        return self._inbox.transport.status() + f", out: {out}" * bool(out) + f", {refused} refused" * bool(refused)

    def show_changes(self, show: Callable[[], None]) -> None:
        """Call ``show`` whenever the status changes while the server waits for replies."""
        shown = self.status()

        def look() -> None:
            nonlocal shown
            if (status := self.status()) != shown:
                shown = status
                show()

        self._inbox.on_wait = look

    def summary(self) -> dict:
        """Return facts for summary.json."""
        found = {"refused": dict(self._inbox.refusals), "lost": dict(self._inbox.losses)}
        kept = {} if self._uploads is None else {"kept_bytes": self._uploads.bytes}  # which a replay compares
        return found | {"left": sorted(self.record.left_at), **kept}
