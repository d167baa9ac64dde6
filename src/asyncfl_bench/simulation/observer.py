"""What watches a simulation: diagnostics, traces, tests, and whatever is passed to ``run(observers=[...])``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..stateful import Stateful
from ..types import Message, Reply, Upload, Work
from .budget import Counters


class Observer(Stateful):
    """Receives the run's events, in the order of the methods here; does nothing by itself. Derive from it and write
    those that are of interest: all are called in the run's own process and thread, so a slow one slows the run.

    It must change nothing. Tensors (``model_d``, those of ``upload``, ``message`` and ``reply``) are lent: after the
    call they may hold other numbers, so copy what is kept. An exception ends the run as failed. Of a resumed run it
    receives the events from the checkpoint on; an observer of the group ``observers`` then has the attributes of
    ``state_names`` as they were. A finished run has no more events, so ``run`` refuses observers for it.

    better  metric of ``measure`` -> ``higher`` or ``lower``, the values that are good. A page names a best method by a
            metric with a direction alone. Raises ValueError for another word.
    """

    better: Mapping[str, str] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for metric, word in cls.better.items():
            if word not in ("higher", "lower"):
                raise ValueError(f"{cls.__name__}.better: {metric!r} is {word!r}; write 'higher' or 'lower'")

    def dispatched(self, work: Work, model_d) -> None:
        """Work was dispatched; its client starts from ``model_d``, shape (d,)."""

    def discarded(self, work: Work) -> None:
        """The work's upload was lost, or its client has left: it will never arrive."""

    def cancelled(self, work: Work) -> None:
        """The work was stopped because its model was too old (Needs.restart_at). Its client restarts at once,
        which is a dispatch. Who does not tell the two apart hears of it as of a discard."""
        self.discarded(work)

    def message_received(self, message: Message, stepped: bool, time: float) -> None:
        """The rule used a message of a client that holds a part of the model. ``stepped`` is True if the server's part
        of the model changed. Replies follow."""

    def replied(self, client: int, reply: Reply, time: float) -> None:
        """The rule replied to the client's last message at ``time``, and the client continues."""

    def received(self, upload: Upload, changed: bool) -> None:
        """The rule has just used an upload; ``changed`` says whether it moved the model."""

    def ticked(self, changed: bool) -> None:
        """The rule was just asked for a tick's own step; ``changed`` says whether it took one."""

    def round_ended(self, changed: bool) -> None:
        """The rule was just asked for a round's step; ``changed`` says whether it took one."""

    def arrived(self, upload: Upload, changed: bool, time: float) -> None:
        """An upload reached the server at ``time``; ``changed`` says whether the model moved because of it, the
        step of a tick or round included where this was its last arrival."""

    def iterated(self, counters: Counters) -> None:
        """A server iteration is complete."""

    def measure(self, point: Mapping[str, Any]) -> Mapping[str, float]:
        """Return numbers to add to a point by name, ``gap/train``, before it is logged; called at each evaluation.

        point  the line of metrics.jsonl so far. A name ending in ``accuracy`` is a share, 0 to 1.
        """
        return {}

    def evaluated(self, point: Mapping[str, Any]) -> None:
        """The model was evaluated: a line of metrics.jsonl, with ``iteration``, ``uploads``, ``virtual_time``,
        ``test/accuracy`` (a share), ``test/loss`` (nats) and the others of docs/reference/run_directory.md."""
