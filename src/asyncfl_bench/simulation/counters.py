"""What a run has used so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What a run has used so far. Every line of metrics.jsonl carries these under the same names."""

    iteration: int = 0
    uploads: int = 0
    client_steps: int = 0
    virtual_time: float = 0.0
    discarded: int = 0  # pieces of work whose upload never reached the server
    uplink_bytes: int = 0  # of uploads that reached the server, and of what clients sent before
    downlink_bytes: int = 0  # of models handed to clients, also for work that was lost, and of answers
    messages: int = 0  # of clients that hold a part of the model, before their uploads
    server_steps: int = 0  # changes of the server's part that are no server iteration
    cancelled: int = 0  # pieces of work that were stopped and restarted on a newer model

    @property
    def bytes(self) -> int:
        return self.uplink_bytes + self.downlink_bytes

    def used_of(self, limit: str) -> float:
        """Amount used of a limit of ``budget``, by the limit's name."""
        return self.iteration if limit == "server_iterations" else getattr(self, limit)
