"""What every server rule is, and the small parts several of them share.

Legend: n clients, d model parameters, t server iterations, tau staleness, eta server step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError, check

if TYPE_CHECKING:
    import torch

    from ..types import ClientTable, Upload

STEP_ON = ("auto", "arrival", "tick")  # `auto` is resolved when the run is composed: tick under the tick clock


@dataclass
class RuleConfig:
    """Fields every rule has: its server step.

    eta  server step > 0; null means c * sqrt(n / T) with T the budget's server iterations
    c    the factor in that formula, > 0
    """

    eta: float | None = None
    c: float = 1.0

    def __post_init__(self) -> None:
        check(self.eta is None or self.eta > 0, "eta", self.eta, "a number > 0, or null for c * sqrt(n / T)")
        check(self.c > 0, "c", self.c, "a number > 0")


class ServerRule:
    """Turns uploads into changes of the global model. Knows neither clock, data, model layers nor tracker.

    accepts          kinds of upload it can use, its own kind first
    first_round      asks for one upload of every client at w0 before anything else
    moves_each_tick  takes its step in ``tick`` (tick clock only) instead of in ``receive``
    state_names      attributes that make up its state: tensors, numbers, lists
    """

    Config = RuleConfig
    accepts: tuple[str, ...] = ("difference", "gradient")
    first_round = False
    moves_each_tick = False
    state_names: tuple[str, ...] = ()

    def __init__(self, config: RuleConfig):
        if config.eta is None:
            raise ConfigError("eta", None, "must be resolved to a number before the rule is built")
        self.config = config
        self.moves_each_tick = getattr(config, "step_on", None) == "tick"

    def start(self, model_d: torch.Tensor, clients: ClientTable, upload_kind: str) -> None:
        """Takes the (d,) global model, which it changes in place from now on, and makes its state."""
        if upload_kind not in self.accepts:
            raise ConfigError("client.upload", upload_kind, f"must be one of {', '.join(self.accepts)}")
        self.model_d = model_d
        self.n = clients.n
        # every rule adds step_size * u; a gradient points uphill, a difference downhill
        self.step_size = self.config.eta if upload_kind == "difference" else -self.config.eta

    def receive(self, upload: Upload) -> bool:
        """Uses one upload; exactly True when the global model changed (one server iteration), else exactly False."""
        raise TypeError(f"{type(self).__name__} is a base class")

    def tick(self) -> bool:
        """Called once per tick under the tick clock; True when the global model changed."""
        return False

    def work_for(self, client: int) -> int | None:
        """Called at each dispatch: local steps this client is to do; None means the configured K."""
        return None

    def stats(self) -> dict[str, float]:
        """Cheap numbers about the last server iteration, by metric name."""
        return {}

    def vectors(self, n: int) -> int:
        """Vectors of d floats the rule keeps besides the model: what it costs in memory."""
        return 0

    def parts(self) -> dict:
        """Shared parts with a state of their own, by name."""
        return {}

    def state_dict(self) -> dict:
        state = {name: getattr(self, name) for name in self.state_names}
        return state | {name: part.state_dict() for name, part in self.parts().items()}

    def load_state_dict(self, state: dict) -> None:
        for name in self.state_names:
            mine, saved = getattr(self, name), state[name]
            if hasattr(mine, "copy_"):
                mine.copy_(saved)
            else:
                setattr(self, name, saved)
        for name, part in self.parts().items():
            part.load_state_dict(state[name])


class CompensatedSum:
    """(d,) running sum whose rounding error does not grow with the number of terms.

    Kahan (1965): ``lost_d`` keeps what the last addition rounded away. A sum that thousands of cached vectors enter
    and leave stays within a few units of the last place of the exact one, without ever reading all n of them again.
    Memory: 4 d floats.
    """

    def __init__(self, like_d: torch.Tensor):
        self.sum_d = like_d.new_zeros(like_d.shape)
        self.lost_d = like_d.new_zeros(like_d.shape)
        self._term_d = like_d.new_empty(like_d.shape)
        self._next_d = like_d.new_empty(like_d.shape)

    def add(self, vector_d: torch.Tensor) -> None:
        self._term_d.copy_(vector_d).sub_(self.lost_d)
        self._accumulate()

    def subtract(self, vector_d: torch.Tensor) -> None:
        self._term_d.copy_(vector_d).add_(self.lost_d).neg_()
        self._accumulate()

    def _accumulate(self) -> None:
        next_d = self._next_d
        next_d.copy_(self.sum_d).add_(self._term_d)
        self.lost_d.copy_(next_d).sub_(self.sum_d).sub_(self._term_d)
        self.sum_d, self._next_d = next_d, self.sum_d

    def zero(self) -> None:
        self.sum_d.zero_()
        self.lost_d.zero_()

    def state_dict(self) -> dict:
        return {"sum_d": self.sum_d, "lost_d": self.lost_d}

    def load_state_dict(self, state: dict) -> None:
        self.sum_d.copy_(state["sum_d"])
        self.lost_d.copy_(state["lost_d"])


class VectorCache:
    """The last vector of every client, (n, d), zero before the first one. Memory: n d floats."""

    def __init__(self, n: int, like_d: torch.Tensor):
        self.rows_nd = like_d.new_zeros((n, like_d.numel()))

    def __getitem__(self, client: int) -> torch.Tensor:
        """(d,) view of the client's vector."""
        return self.rows_nd[client]

    def put(self, client: int, vector_d: torch.Tensor) -> None:
        self.rows_nd[client].copy_(vector_d)

    def state_dict(self) -> dict:
        return {"rows_nd": self.rows_nd}

    def load_state_dict(self, state: dict) -> None:
        self.rows_nd.copy_(state["rows_nd"])
