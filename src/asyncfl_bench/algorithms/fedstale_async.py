"""FedStaleAsync: arriving differences and every client's last difference, with two weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..errors import check
from ..ranges import at_least, one_of
from .common.caches import CachedBufferConfig, CachedBufferRule
from .common.rounds import Weights
from .needs import Needs


@dataclass
class FedStaleAsyncConfig(CachedBufferConfig):
    """
    alpha    weight of arriving differences
    beta     weight of every client's last difference; with p=null and alpha=1, 0 is FedBuff and 1 is CA2FL
    p        participation of clients, in (0, 1]: [0.1] for all, or one number per client; null: M / |K|; [1]: no
             client's rare uploads weigh more
    over     K, the clients in the mean: all | heard: clients with an upload
    weights  s_i of the clients: uniform: 1 | samples: n_i, n_i / sum n over K
    """

    alpha: Annotated[float, at_least(0)] = 1.0
    beta: Annotated[float, at_least(0)] = 0.5
    p: list[float] | None = None
    over: Annotated[str, one_of("all", "heard")] = "all"
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.p is None or (len(self.p) > 0 and all(0 < p <= 1 for p in self.p))
        check(ok, "p", self.p, "a list of numbers in (0, 1], or null")

    def resolve(self, facts) -> None:
        super().resolve(facts)
        ok = self.p is None or len(self.p) in (1, facts.n_clients)
        check(ok, "p", self.p, f"a list of one number or of n_clients={facts.n_clients}, or null")


class FedStaleAsync(CachedBufferRule):
    """FedStaleAsync (2026, released by authors without names), the family of FedStale (Rodio and Neglia 2024,
    arXiv:2405.04171) as an asynchronous rule.

    Rule     state h_i = 0 for every client;  a_i = s_i / sum_K s
             arrival of D_i = local - received:  S <- S + (a_i / p_i) (alpha D_i - beta h_i);  h_i <- D_i;  m <- m + 1
             m = M:  w <- w + eta (beta sum_K a_i h_i + S), with the h_i from before this buffer;  S <- 0, m <- 0
    Upload   difference, shape (d,)
    State    cache (s_i h_i), their running sum, before_d (that sum before this buffer), sum_d (S times sum_K s), count
             (m), heard      Memory cache and 7 d
    Limits   of uniform weights over all clients
               alpha = 1, beta = 0, p = M / n: FedBuff        alpha = beta = 1, p = 1: MIFA
               alpha = beta = 1, p = M / n: CA2FL             a buffer a round, alpha = 1, p known: FedStale
             FedStale with beta = 1 is FedVARP; with all clients in every round it is FedAvg for any beta
    Differs  read in code alone. The released defaults are over=heard, weights=samples, p=[1]; those here are over=all,
             uniform weights and p = M / n, with which FedBuff and CA2FL are special cases. alpha and beta are numbers
             here, there also functions of staleness, whose constants could not be read; p is given and not estimated.
             There a client cannot be twice in a buffer; here it then counts twice, the second time against what it
             sent first

    >>> after_each(FedStaleAsync(buffer_size=1), (0, [2.0]), (1, [4.0]), (0, [0.0]))
    [[2.0], [6.5], [7.0]]
    """

    label = "FedStaleAsync"
    config: FedStaleAsyncConfig
    upload_kinds = ("difference",)
    needs = Needs(linear=True)
    state_names = ("before_d", "sum_d", "count", "heard")
    kept_vectors = 7

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.before_d, self.sum_d = model_d.new_zeros((2, *model_d.shape))
        self.heard = [False] * self.n
        samples_n = [float(samples) for samples in clients.samples_n]
        self.s_n = samples_n if self.config.weights == "samples" else [1.0] * self.n

    def add(self, upload) -> None:
        config, client, s = self.config, upload.client, self.s_n[upload.client]
        often = 1.0 if config.p is None else config.p[client % len(config.p)]  # one number is for all
        fresh_d = upload.vector_d if s == 1 else upload.vector_d * s
        self.sum_d.add_(fresh_d, alpha=config.alpha / often)
        self.sum_d.sub_(self.cache.stored_vector(client), alpha=config.beta / often)
        self.cache.replace(client, fresh_d, self.total)
        self.heard[client] = True

    def step(self) -> None:
        config = self.config
        s_k = [s for s, heard in zip(self.s_n, self.heard, strict=True) if heard or config.over == "all"]
        per_s = self.step_size / sum(s_k)
        self.model_d.add_(self.before_d, alpha=per_s * config.beta)
        self.model_d.add_(self.sum_d, alpha=per_s * len(s_k) / config.buffer_size if config.p is None else per_s)
        self.before_d.copy_(self.total.sum_d)
        self.sum_d.zero_()
