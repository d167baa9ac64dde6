"""What watches a simulation: diagnostics, traces, tests."""

from __future__ import annotations

from ..types import Counters, Upload, Work


class Observer:
    """Is called with what happens, in that order; must not change it."""

    def dispatched(self, work: Work, model_d) -> None:
        """Work was dispatched; its client starts from ``model_d``, which is only lent."""

    def discarded(self, work: Work) -> None:
        """The work's upload was lost, or its client has left: it will never arrive."""

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
