"""When a run ends."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from ..errors import check
from ..ranges import Checked, above
from ..types import Counters


@dataclass
class BudgetConfig(Checked):
    """When a run ends: whichever limit is reached first. null means no such limit.

    server_iterations  changes of the global model (ACE's first full round is one)
    uploads            uploads that reached the server. ACE's first full round is n and is never cut short, nor is a
                       tick of a rule that steps once per tick
    client_steps       mini-batch steps in delivered work
    virtual_time       seconds or ticks of the virtual clock; what happens at this very time still counts
    """

    server_iterations: Annotated[int | None, above(0, null="for no limit")] = 500
    uploads: Annotated[int | None, above(0, null="for no limit")] = None
    client_steps: Annotated[int | None, above(0, null="for no limit")] = None
    virtual_time: Annotated[float | None, above(0, null="for no limit")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = asdict(self).values()
        check(any(limit is not None for limit in limits), "server_iterations", None, "set, or another budget key be")

    @property
    def only_time(self) -> bool:
        return self.server_iterations is self.uploads is self.client_steps is None

    def used_up(self, used: Counters) -> str | None:
        """The first of the limits on what is counted that is reached, or None."""
        if self.server_iterations is not None and used.iteration >= self.server_iterations:
            return "server_iterations"
        if self.uploads is not None and used.uploads >= self.uploads:
            return "uploads"
        if self.client_steps is not None and used.client_steps >= self.client_steps:
            return "client_steps"
        return None
