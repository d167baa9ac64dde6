"""Laws of delay that are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from ..errors import check
from ..randomness import Streams
from ..ranges import NonNegative, Positive, at_least, check_client_numbers, greater_than, one_of, within
from ..types import Facts, Work
from .delay import Delay, DelayConfig, positive_normal


@dataclass
class NoDelayConfig(DelayConfig):
    """
    unit  with the clock of ticks every piece of work takes one tick
    """

    takes_time = False


class NoDelay(Delay):
    """Work takes no time: uploads arrive in order of dispatch."""

    config: NoDelayConfig

    def duration(self, work: Work) -> float:
        return 0.0


@dataclass
class ConstantConfig(DelayConfig):
    """
    mean  units
    """

    mean: NonNegative = 1.0

    timed_by = ("mean",)


class Constant(Delay):
    """Every piece of work takes ``mean``."""

    config: ConstantConfig

    def duration(self, work: Work) -> float:
        return self.config.mean


@dataclass
class UniformConfig(DelayConfig):
    """
    low   units
    high  units, >= low
    """

    low: NonNegative = 0.5
    high: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.high >= self.low, "high", self.high, f"a number >= low (low={self.low})")

    timed_by = ("high",)


class Uniform(Delay):
    """U(low, high), drawn for every piece of work."""

    config: UniformConfig

    def duration(self, work: Work) -> float:
        return float(self._stream(work.client, work.cycle).uniform(self.config.low, self.config.high))


@dataclass
class FixedUniformConfig(UniformConfig):
    """
    whole  true: rounded down to whole units, so that every whole number from low to high - 1 is as likely
    """

    whole: bool = False

    @property
    def takes_time(self) -> bool:
        return self.high > (1 if self.whole else 0)


class FixedUniform(Delay):
    """U(low, high), drawn once for each client: all its work takes the same time, whatever its data and K.

    Source: the latencies of FLGO's mode UNI (WwZzz/easyFL), with which AFBS (Lu et al. 2025) was run.
    """

    config: FixedUniformConfig

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        config = self.config
        latency_n = np.array([streams.speed(client).uniform(config.low, config.high) for client in range(n)])
        return np.floor(latency_n) if config.whole else latency_n

    def duration(self, work: Work) -> float:
        return float(self.speed_n[work.client])


@dataclass
class ExponentialConfig(DelayConfig):
    """
    beta     mean of the exponential part, in units
    compute  fixed part, in units
    clients  exponential: persistent z_i ~ Exp(1) | equal: z_i = 1
    redraw   true: a draw for each piece of work | false: always the mean
    """

    beta: NonNegative = 5.0
    compute: NonNegative = 0.0
    clients: Annotated[str, one_of("equal", "exponential")] = "equal"
    redraw: bool = True

    def idle(self, facts: Facts) -> dict[str, str]:
        why = "with delay.beta=0: nothing is drawn"
        return {} if self.beta else {"clients": why, "redraw": why}

    timed_by = ("beta", "compute")


class Exponential(Delay):
    """compute + Exp(beta z_i).

    z_i = 1 (`clients=equal`: i.i.d.) or z_i ~ Exp(1), drawn once for each client (`clients=exponential`: persistent
    speeds). With `redraw=false` a client's work always takes the mean, compute + beta z_i.
    Source: ACE (arXiv:2511.19066, section 5), which prints only "exponential with mean beta". The presets `exp_beta*`
    have persistent speeds and a tick of computing, which is our reading; `clients=equal` is the literal one
    (docs/explanation/time.md).
    """

    config: ExponentialConfig

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        if self.config.clients == "equal":
            return np.ones(n)
        return np.array([streams.speed(client).exponential() for client in range(n)])

    def duration(self, work: Work) -> float:
        mean = self.config.beta * self.speed_n[work.client]
        extra = self._stream(work.client, work.cycle).exponential() * mean if self.config.redraw else mean
        return float(self.config.compute + extra)


@dataclass
class MixedExponentialConfig(DelayConfig):
    """
    slow_share            share of slow clients
    slow_mean, fast_mean  mean of the exponential part, in units
    compute               fixed part, in units
    """

    slow_share: Annotated[float, within("[0, 1]")] = 0.2
    slow_mean: NonNegative = 5.0
    fast_mean: NonNegative = 0.5
    compute: NonNegative = 0.0

    def idle(self, facts: Facts) -> dict[str, str]:
        if 0 < self.slow_share < 1:
            return {}
        unused = "fast_mean" if self.slow_share else "slow_mean"
        return {unused: f"with delay.slow_share={self.slow_share:g}: no client has it"}

    timed_by = ("slow_mean", "fast_mean", "compute")


class MixedExponential(Delay):
    """compute + Exp(slow_mean) for a fixed random share of slow clients, compute + Exp(fast_mean) for the others.

    Source: the ACE authors' earlier public code (20 % slow, means 5 and 0.5).
    """

    config: MixedExponentialConfig

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        slow = streams.speed().permutation(n)[: round(self.config.slow_share * n)]
        mean_n = np.full(n, self.config.fast_mean)
        mean_n[slow] = self.config.slow_mean
        return mean_n

    def duration(self, work: Work) -> float:
        extra = self._stream(work.client, work.cycle).exponential() * self.speed_n[work.client]
        return float(self.config.compute + extra)


@dataclass
class LogNormalConfig(DelayConfig):
    """
    median         units
    sigma          standard deviation of the logarithm between pieces of work
    clients_sigma  standard deviation of the logarithm between clients
    """

    median: Positive = 1.0
    sigma: NonNegative = 0.5
    clients_sigma: NonNegative = 0.5


class LogNormal(Delay):
    """median * exp(clients_sigma * a_i + sigma * b), a_i ~ N(0, 1) for each client, b ~ N(0, 1) for each work."""

    config: LogNormalConfig

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        factor = [np.exp(self.config.clients_sigma * streams.speed(client).standard_normal()) for client in range(n)]
        return np.array(factor)

    def duration(self, work: Work) -> float:
        spread = np.exp(self.config.sigma * self._stream(work.client, work.cycle).standard_normal())
        return float(self.config.median * self.speed_n[work.client] * spread)


@dataclass
class ParetoConfig(DelayConfig):
    """
    minimum  shortest duration, in units
    shape    of the tail: P(duration > x) = (minimum / x) ** shape; the mean is infinite up to 1, the variance up to 2
    redraw   true: a draw for each piece of work | false: a draw for each client
    """

    minimum: Positive = 1.0
    shape: Annotated[float, at_least(0.1)] = 1.5
    redraw: bool = True


class Pareto(Delay):
    """Pareto(minimum, shape): a heavy tail, so that few pieces of work (or clients) take most of the time."""

    config: ParetoConfig

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        return np.array([1 + streams.speed(client).pareto(self.config.shape) for client in range(n)])

    def duration(self, work: Work) -> float:
        if not self.config.redraw:
            return float(self.config.minimum * self.speed_n[work.client])
        return float(self.config.minimum * (1 + self._stream(work.client, work.cycle).pareto(self.config.shape)))


@dataclass
class ClassesConfig(DelayConfig):
    """
    shares  weights of the classes, > 0, from the fastest to the slowest
    ranges  low, high of every class, in units
    """

    shares: list[float] = field(default_factory=lambda: [3.0, 2.0, 1.0])
    ranges: list[float] = field(default_factory=lambda: [1.0, 2.0, 3.0, 5.0, 5.0, 8.0])

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len(self.shares) > 0 and min(self.shares, default=0) > 0, "shares", self.shares, "a list of numbers > 0")
        allowed = f"{2 * len(self.shares)} numbers >= 0: low, high of every class"
        check(len(self.ranges) == 2 * len(self.shares) and min(self.ranges) >= 0, "ranges", self.ranges, allowed)
        for low, high in zip(self.ranges[::2], self.ranges[1::2], strict=True):
            check(low <= high, "ranges", self.ranges, "pairs with low <= high")


class Classes(Delay):
    """U(low, high) of the client's speed class, drawn for every piece of work.

    A client draws a Dirichlet(shares) vector once; its class is the largest component.
    Source: the simulation in the FADAS authors' code (Wang et al., ICML 2024), presets `fadas_mild`, `fadas_large`.
    """

    config: ClassesConfig

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        return np.array([int(np.argmax(streams.speed(client).dirichlet(self.config.shares))) for client in range(n)])

    def duration(self, work: Work) -> float:
        low, high = self.config.ranges[2 * self.speed_n[work.client] :][:2]
        return float(self._stream(work.client, work.cycle).uniform(low, high))


@dataclass
class RankedClassesConfig(ClassesConfig):
    """
    shares  shares of the clients in each class, up to a common factor
    gamma   weight of chance in the ranking, beside the number of samples; not in the FedEcho paper; null: chance
            alone
    """

    shares: list[float] = field(default_factory=lambda: [6.0, 3.0, 1.0])
    gamma: Annotated[float | None, at_least(0, null="for classes whatever the clients hold")] = 1.0


class RankedClasses(Classes):
    """U(low, high) of the client's speed class, drawn for every piece of work; clients with many samples are slow.

    Clients are ordered by (rank of n_i) / n + gamma u_i, with u_i ~ U(0, 1) drawn once for each client. The last ones
    are the slowest class, those before them the second slowest, and so on. A class has its share of the clients
    rounded down, the slowest class at least one client, and the fastest class the rest.
    Source: FedEcho (Wang, Ma, Chen 2025, arXiv:2511.19966). In the paper classes depend on a client's samples and on
    gamma, a smaller gamma makes the dependence stronger, and at most a tenth of the clients is slowest. The rest is
    ours.
    """

    config: RankedClassesConfig

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        gamma, luck_n = self.config.gamma, np.array([streams.speed(client).random() for client in range(n)])
        rank_n = np.empty(n)
        rank_n[np.lexsort((luck_n, self.samples_n))] = np.arange(1, n + 1)  # chance decides between equals
        order = np.argsort(luck_n if gamma is None else rank_n / n + gamma * luck_n)
        shares = np.array(self.config.shares)
        counts = np.floor(n * shares / shares.sum() + 1e-9).astype(int)  # 0.3 of 10 is 3
        counts[-1] = max(1, counts[-1])
        counts[0] = n - counts[1:].sum()
        class_n = np.empty(n, dtype=int)
        class_n[order] = np.repeat(np.arange(len(counts)), counts)
        return class_n


@dataclass
class WorkAndLinkConfig(DelayConfig):
    """
    seconds_per_sample  of training: a forward and a backward pass
    bandwidth           bytes per second for one model, received and sent
    link_spread         standard deviation of a transmission's random factor around 1
    clients_sigma       spread of the clients' computing speeds: a factor exp(clients_sigma * N(0, 1)) each
    client_factors      each client's slowness in computing, > 0; null: drawn
    """

    seconds_per_sample: NonNegative = 1e-4
    bandwidth: Annotated[float | None, greater_than(0, null="for no transmission time")] = None
    link_spread: NonNegative = 0.3
    clients_sigma: NonNegative = 0.0
    client_factors: list[float] | None = None

    def resolve(self, facts: Facts) -> None:
        check_client_numbers("client_factors", self.client_factors, facts.n_clients)

    def idle(self, facts: Facts) -> dict[str, str]:
        found = {}
        if self.bandwidth is None:
            found["link_spread"] = "with delay.bandwidth=null: transmission takes no time"
        if self.client_factors is not None:
            found["clients_sigma"] = "with delay.client_factors, which are the clients' speeds"
        if not self.seconds_per_sample:
            found |= dict.fromkeys(("clients_sigma", "client_factors"), "with delay.seconds_per_sample=0")
        return found

    timed_by = ("seconds_per_sample", "bandwidth")


class WorkAndLink(Delay):
    """Time of computing and sending: seconds_per_sample * samples + c * model bytes / bandwidth.

    K passes over n_i samples are K n_i samples, so time grows with K and with the client's data. c ~ N(1, link_spread)
    is drawn for every piece of work until it is > 0.
    Source: AsyncFedED (Wang et al. 2022), section 6.1, which has the form and no numbers.
    """

    config: WorkAndLinkConfig

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        given, sigma = self.config.client_factors, self.config.clients_sigma
        if given is not None:
            return np.array(given)
        return np.array([np.exp(sigma * streams.speed(client).standard_normal()) for client in range(n)])

    def duration(self, work: Work) -> float:
        config = self.config
        # a client without samples would report and start again for ever, at one instant
        computing = config.seconds_per_sample * max(1, work.samples) * self.speed_n[work.client]
        if config.bandwidth is None:
            return float(computing)
        factor = positive_normal(self._stream(work.client, work.cycle), config.link_spread)
        return float(computing + factor * self.footprint.client_bytes / config.bandwidth)
