"""Base class of observers: diagnostics, traces, and objects passed to ``run(observers=[...])``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..stateful import Stateful
from ..types import Message, Reply, Upload, Work
from .budget import Counters


class Observer(Stateful):
    """Receives the events of a run; each method does nothing until a subclass overrides it.

    Methods are called in the thread of the run, so a slow method slows the run. They must not change their arguments.
    Tensors (``model_d``, and those of ``upload``, ``message`` and ``reply``) are lent: copy a tensor that is kept,
    because its numbers may change after the call. An exception ends the run as failed.
    In a resumed run an observer receives the events after the checkpoint; one of the group ``observers`` then has the
    attributes of ``state_names`` as they were. ``run`` refuses observers for a finished run, which has no more events.

    better  metric of ``measure`` -> ``higher`` or ``lower``, the direction of good values. A page ranks methods only by
            metrics with a direction. Raises ValueError for another word.
    """

    better: Mapping[str, str] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for metric, word in cls.better.items():
            if word not in ("higher", "lower"):
                raise ValueError(f"{cls.__name__}.better: {metric!r} is {word!r}; write 'higher' or 'lower'")

    def dispatched(self, work: Work, model_d) -> None:
        """Work was dispatched, and its client starts from ``model_d``, shape (d,)."""

    def discarded(self, work: Work) -> None:
        """Note that the upload of the work will never arrive: it was lost, or its client has left."""

    def cancelled(self, work: Work) -> None:
        """Note that the work was cancelled because its model was too old (Needs.restart_at). Its client restarts at
        once, so a dispatch follows. By default calls ``discarded``."""
        self.discarded(work)

    def message_received(self, message: Message, stepped: bool, time: float) -> None:
        """Note that the rule used a message of a client that has a part of the model. Replies follow. ``stepped`` is
        True if the server's part of the model changed."""

    def replied(self, client: int, reply: Reply, time: float) -> None:
        """Note that the rule replied to the client's last message at ``time``. The client continues."""

    def received(self, upload: Upload, changed: bool) -> None:
        """Note that the rule used an upload. ``changed`` is True if it changed the model."""

    def ticked(self, changed: bool) -> None:
        """Note the end of a tick. ``changed`` is True if the rule took its own step."""

    def round_ended(self, changed: bool) -> None:
        """Note the end of a round. ``changed`` is True if the rule took its own step."""

    def arrived(self, upload: Upload, changed: bool, time: float) -> None:
        """Note that an upload reached the server at ``time``. ``changed`` is True if it changed the model, or if the
        step of a tick or round followed it."""

    def iterated(self, counters: Counters) -> None:
        """Note a complete server iteration."""

    def measure(self, point: Mapping[str, Any]) -> Mapping[str, float]:
        """Return numbers by name (``gap/train``) that are added to a point. Called at each evaluation.

        point  the line of metrics.jsonl so far. A name that ends in ``accuracy`` is a share, 0 to 1
        """
        return {}

    def evaluated(self, point: Mapping[str, Any]) -> None:
        """Receive an evaluation of the model. ``point`` is a line of metrics.jsonl: ``iteration``, ``uploads``,
        ``virtual_time``, ``test/accuracy`` (a share), ``test/loss`` (nats) and others
        (docs/reference/run_directory.md)."""
