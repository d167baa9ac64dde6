"""What concerns several groups of settings: the meaning of `auto` and null, and combinations that cannot be.

Each function settles one question and changes the parts' own settings in place; the order in `resolve` is the order in
which later questions need earlier answers. Raises ConfigError.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..errors import ConfigError, check

if TYPE_CHECKING:
    from .settings import Settings


def resolve(settings: Settings) -> None:
    """Checks ``settings`` across groups and puts numbers in the place of every `auto` and null."""
    _check_length(settings)
    _clock_and_clients(settings)
    _client(settings)
    _server_step(settings)
    _first_work(settings)
    _dispatch_moment(settings)
    _step_on(settings)
    _departure(settings)
    _buffer_and_delay_limits(settings)
    _upload(settings)
    _check_that_time_passes(settings)
    settings.parts["diagnostics"].target.check_run(settings)


def _algorithm(settings: Settings) -> str:
    return settings.choices.get("algorithm", "this algorithm")


def _uploads_per_iteration(settings: Settings) -> int:
    """Uploads that one server iteration takes, when none is lost."""
    algorithm, concurrency = settings.parts["algorithm"], settings.root.concurrency
    assert concurrency is not None
    return concurrency if algorithm.target.moves_each_round else getattr(algorithm.config, "buffer_size", 1)


def _check_length(settings: Settings) -> None:
    if settings.choices.get("length") != "long":
        return
    fair = settings.choices.get("profile") == "fair"
    check(not fair, "length", "long", "standard with profile=fair, whose budget is the same for all already")


def _clock_and_clients(settings: Settings) -> None:
    root, delay, n = settings.root, settings.parts["delay"].config, settings.root.n_clients
    factors = getattr(delay, "client_factors", None)
    wanted = f"a number for each of the {n} clients, or null"
    check(factors is None or len(factors) == n, "delay.client_factors", factors, wanted)
    if root.clock == "auto":
        root.clock = "ticks" if delay.unit == "ticks" else "time"
    ok = root.concurrency is None or root.concurrency <= n
    check(ok, "concurrency", root.concurrency, f"at most the number of clients (n_clients={n})")
    if root.concurrency is None:
        root.concurrency = n


def _client(settings: Settings) -> None:
    """Settings of the clients that the algorithm decides."""
    rule, client, algorithm = settings.parts["algorithm"].config, settings.parts["client"].config, _algorithm(settings)
    for key, own in rule.for_clients().items():
        was, value = getattr(client, key), getattr(rule, own)
        said = f"left alone under algorithm={algorithm}: set algorithm.{own}, which decides it ({value:g})"
        check(was in (getattr(type(client)(), key), value), f"client.{key}", was, said)
        setattr(client, key, value)


def _server_step(settings: Settings) -> None:
    """A server step of null is c * sqrt(n / T)."""
    rule, budget = settings.parts["algorithm"].config, settings.budget
    if not hasattr(rule, "total_steps"):
        return
    total = rule.total_steps or budget.server_iterations
    if total is None and budget.uploads is not None:
        total = max(1, budget.uploads // _uploads_per_iteration(settings))
    rule.total_steps = None  # it has said all it can through eta: runs of one eta are the same run
    if rule.eta is None:
        if total is None:
            raise ConfigError("algorithm.eta", None, "c * sqrt(n / T) needs T, algorithm.total_steps; or set a number")
        rule.eta = rule.c * (settings.root.n_clients / total) ** 0.5


def _first_work(settings: Settings) -> None:
    """The first K of rules that decide K themselves."""
    rule = settings.parts["algorithm"].config
    if hasattr(rule, "k_initial"):
        rule.k_initial = rule.k_initial or settings.parts["client"].config.workload.k
        ok = rule.k_max is None or rule.k_initial <= rule.k_max
        check(ok, "algorithm.k_max", rule.k_max, f"at least the first K, which is {rule.k_initial}, or null for no cap")


def _dispatch_moment(settings: Settings) -> None:
    rounds, schedule = settings.parts["algorithm"].target.moves_each_round, settings.parts["schedule"].config
    if schedule.dispatch == "auto":
        schedule.dispatch = "per_round" if rounds else "immediate"
    said = f"auto or per_round for {_algorithm(settings)}, whose server steps once everybody in a round has reported"
    check(schedule.dispatch == "per_round" or not rounds, "schedule.dispatch", schedule.dispatch, said)


def _step_on(settings: Settings) -> None:
    rule, clock = settings.parts["algorithm"].config, settings.root.clock
    if hasattr(rule, "step_on"):
        if rule.step_on == "auto":
            rule.step_on = "tick" if clock == "ticks" else "arrival"
        ok = rule.step_on != "tick" or clock == "ticks"
        check(ok, "algorithm.step_on", rule.step_on, f"arrival or auto: there are no ticks under clock={clock}")


def _departure(settings: Settings) -> None:
    """Clients that stop for good do so at half the budget, if no iteration is named."""
    away, rule, budget = settings.parts["availability"].config, settings.parts["algorithm"].config, settings.budget
    if not hasattr(away, "at_iteration") or away.at_iteration is not None:
        return
    total = budget.server_iterations
    if total is None and budget.uploads is not None and getattr(rule, "step_on", "arrival") == "arrival":
        total = budget.uploads // _uploads_per_iteration(settings)
    if total is None:  # a tick takes as many uploads as happen to arrive
        said = "half the budget is known in server iterations only, or in uploads per arrival; set a number"
        raise ConfigError("availability.at_iteration", None, said)
    away.at_iteration = max(1, total // 2)


def _buffer_and_delay_limits(settings: Settings) -> None:
    rule, concurrency = settings.parts["algorithm"].config, settings.root.concurrency
    assert concurrency is not None
    if hasattr(rule, "tau_c") and rule.tau_c is None:
        rule.tau_c = concurrency
    size = getattr(rule, "buffer_size", 1)
    said = f"at most {concurrency}, the clients in flight, with schedule.dispatch=after_update: it would never fill"
    after_update = settings.parts["schedule"].config.dispatch == "after_update"
    check(not after_update or size <= concurrency, "algorithm.buffer_size", size, said)


def _upload(settings: Settings) -> None:
    client, accepts = settings.parts["client"].config, settings.parts["algorithm"].target.accepts
    if client.upload == "auto":
        client.upload = accepts[0]
    algorithm = _algorithm(settings)
    ok = client.upload in accepts
    check(ok, "client.upload", client.upload, f"one of {', '.join(accepts)} for {algorithm}")
    key, one = ("local_steps", 1) if client.local_epochs is None else ("local_epochs", None)
    value = getattr(client, key)
    said = f"{one or 'null'} for uploads that are gradients ({algorithm}); client.upload=difference allows more"
    check(client.upload == "difference" or value == one, f"client.{key}", value, said)


def _check_that_time_passes(settings: Settings) -> None:
    budget = settings.budget
    only_time = all(v is None for k, v in dataclasses.asdict(budget).items() if k != "virtual_time")
    takes_time = settings.root.clock == "ticks" or settings.parts["delay"].config.takes_time
    said = f"joined by another budget: under delay={settings.choices.get('delay')} virtual time stands still"
    check(takes_time or not only_time, "budget.virtual_time", budget.virtual_time, said)
