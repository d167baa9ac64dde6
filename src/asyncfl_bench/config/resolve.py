"""The meaning of `auto` and null, and refusals of impossible combinations of settings.

Each part resolves its own settings (``resolve`` of its Config) from a few facts about the others. This module has only
the decisions that need several parts. Raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..algorithms.base import StepConfig, TickConfig
from ..data.base import PrivateConfig
from ..errors import check, naming_group
from ..ranges import CheckedSettings
from ..types import Facts

if TYPE_CHECKING:
    from ..algorithms.needs import Needs
    from .settings import Component, RootConfig, Settings

ORDER = (
    "model",
    "delay",
    "schedule",
    "client",
    "algorithm",
    "availability",
    "unlabelled",
)  # later parts need facts about earlier ones


def resolve(settings: Settings) -> None:
    """Check ``settings`` across groups and replace every `auto` and null."""
    root, parts, choices = settings.root, settings.parts, settings.choices
    parts["live"].target.prepare(settings)
    _resolve_clock_and_concurrency(root, parts, settings.needs.cuts, choices)
    needs = settings.needs
    needs_outputs = parts["distillation"].config.takes_place or needs.outputs
    settings.idle |= _resolve_unlabelled(parts, choices, needs_outputs)
    _check_private_samples(parts, choices, settings.evaluation.validation_share)
    if needs.cuts:
        _check_cut_model(parts, choices, needs, root.executor)
    for name in () if needs.cuts else ("messages", "server_steps"):
        allowed = f"null with algorithm={choices.get('algorithm')}, whose clients hold the whole model"
        check((limit := getattr(settings.budget, name)) is None, f"budget.{name}", limit, allowed)
    _check_schedule(root, parts, choices, needs)
    for name in ORDER:
        with naming_group(name):
            parts[name].config.resolve(_facts(settings, needs_outputs))
    takes_time = root.clock == "ticks" or parts["delay"].config.takes_time
    allowed = f"joined by another budget: under delay={choices.get('delay')} virtual time stands still"
    limit = settings.budget.virtual_time
    check(takes_time or not settings.budget.only_time, "budget.virtual_time", limit, allowed)
    reason = parts["model"].config.uncaptured
    allowed = f"sequential or auto with model={choices.get('model')}: no graph takes {reason}"
    check(root.executor != "graph" or reason is None, "executor", "graph", allowed)
    parts["diagnostics"].target.check_run(settings)
    allowed = f"false with heterogeneity={choices.get('heterogeneity')}: clients differ in more than labels"
    follows = parts["heterogeneity"].target.labels_only  # the accuracy of each client, from the labels
    check(follows or not settings.evaluation.clients, "evaluation.clients", True, allowed)
    settings.idle |= _idle_settings(settings.configs, _facts(settings, needs_outputs))


def use_step(settings: Settings, step: float) -> None:
    """Use a step size for the clients' SGD, and for the server if the rule leaves its step open and takes gradients."""
    client, rule = settings.parts["client"].config, settings.parts["algorithm"]
    if client.optimizer == "sgd":
        client.lr = step
    kinds = rule.target.upload_kinds
    gradients = (kinds[0] if client.upload == "auto" else client.upload) == "gradient"
    if gradients and isinstance(rule.config, StepConfig) and rule.config.eta is None:
        rule.config.eta = step


def _resolve_clock_and_concurrency(
    root: RootConfig, parts: Mapping[str, Component], cuts: bool, choices: Mapping[str, str]
) -> None:
    """Set the clock and the concurrency, and check the settings that depend on the clock."""
    if root.clock == "auto":
        root.clock = "ticks" if parts["delay"].config.unit == "ticks" and not cuts else "time"
    allowed = f"time or auto with algorithm={choices.get('algorithm')}: within its work a client waits for the server"
    check(root.clock == "time" or not cuts, "clock", root.clock, allowed)
    whole = root.clock == "ticks" or root.tick_rounding == "down"
    check(whole, "tick_rounding", root.tick_rounding, f"down with clock={root.clock}, which rounds nothing")
    rate, allowed = root.server_seconds_per_sample, "0 with clock=ticks, on which the server acts between ticks"
    check(root.clock == "time" or not rate, "server_seconds_per_sample", rate, allowed)
    if root.concurrency is None:
        root.concurrency = root.n_clients
    allowed = f"at most the number of clients (n_clients={root.n_clients})"
    check(root.concurrency <= root.n_clients, "concurrency", root.concurrency, allowed)
    rule = parts["algorithm"].config
    if isinstance(rule, TickConfig):
        with naming_group("algorithm"):
            rule.resolve_clock(root.clock)


def _resolve_unlabelled(parts: Mapping[str, Component], choices: dict[str, str], needed: bool) -> dict[str, str]:
    """Choose the samples that `auto` stands for. Return the settings without effect, as ``Settings.idle``.

    needed  the run needs samples of the server's own
    Raises ConfigError if it has none.
    """
    part, idle = parts["unlabelled"], {}
    if choices.get("unlabelled") == "auto":
        if not needed and part.config.samples is not None:
            why = f"with algorithm={choices.get('algorithm')}, whose server uses no samples"
            idle["unlabelled.samples"] = f"{why}; unlabelled=held_back takes them from the clients anyway"
        choices["unlabelled"], part.target, part.config = part.target.resolve_choice(part.config, needed)
    who = "distillation" if parts["distillation"].config.takes_place else "algorithm"
    allowed = f"auto, held_back, images, arrays or noise: {who}={choices.get(who)} needs samples of the server's own"
    check(not needed or choices.get("unlabelled") != "none", "unlabelled", "none", allowed)
    return idle


def _check_private_samples(parts: Mapping[str, Component], choices: Mapping[str, str], share: float) -> None:
    """Check that nothing pools samples of clients that have them alone. share: of samples held back to validate"""
    if not isinstance(parts["dataset"].config, PrivateConfig):
        return
    why = f"with dataset={choices.get('dataset')}, whose clients have their own samples only"
    for group, allowed in {"heterogeneity": ("natural",), "unlabelled": ("none", "arrays")}.items():
        check(choices.get(group) in allowed, group, choices.get(group), f"{' or '.join(allowed)} {why}")
    check(not share, "evaluation.validation_share", share, f"0 {why}")
    if not parts["live"].config.computes:
        diagnostics, allowed = choices.get("diagnostics"), ("none", "server_time")
        check(diagnostics in allowed, "diagnostics", diagnostics, f"{' or '.join(allowed)} in live runs {why}")


def _check_cut_model(parts: Mapping[str, Component], choices: Mapping[str, str], needs: Needs, executor: str) -> None:
    """Check what an algorithm whose clients hold a part of the model allows."""
    availability = parts["availability"].target
    for name, refused, allowed in (
        (
            "model",
            not parts["model"].config.can_be_cut,
            "a network of one layer after another, for example mlp, cnn, lenet5, alexnet, vgg16, resnet8 or vit_small,",
        ),
        ("distillation", parts["distillation"].config.takes_place, "none"),
        ("availability", availability.loses_work, "always or dropout"),
        ("availability", availability.ends_for_some and needs.replies_together, "always"),
    ):
        check(not refused, name, choices.get(name), f"{allowed} with algorithm={choices.get('algorithm')}")
    allowed = "auto, native, threads or sequential with a model that is cut"
    check(executor not in ("batched", "graph", "ray"), "executor", executor, allowed)


def _check_schedule(root: RootConfig, parts: Mapping[str, Component], choices: Mapping[str, str], needs: Needs) -> None:
    """Check that the rule allows several pieces of work for a client if the schedule gives them, and that every client
    for which the rule waits sends an upload."""
    name, schedule = choices.get("algorithm"), parts["schedule"].target
    one = needs.cuts or needs.steps_on == "round" or needs.keeps is not None or needs.one_at_a_time
    allowed = f"same_client or random_idle with algorithm={name}, whose clients have one piece of work at a time"
    check(not (one and schedule.queues), "schedule", choices.get("schedule"), allowed)
    allowed = f"always or suspension: algorithm={name} would wait forever for clients that left"
    ends = parts["availability"].target.ends_for_some
    check(not (needs.waits_for and ends), "availability", choices.get("availability"), allowed)
    assert root.concurrency is not None
    heard = needs.waits_for != "all" or root.concurrency >= root.n_clients
    allowed = f"n_clients={root.n_clients} with algorithm={name}, which waits for every client, or schedule=random_idle"
    check(heard or not schedule.some_never, "concurrency", root.concurrency, allowed)


def _facts(settings: Settings, needs_outputs: bool) -> Facts:
    """Return what is known by now."""
    root, parts = settings.root, settings.parts
    rule, client = parts["algorithm"].config, parts["client"].config
    needs = settings.needs
    assert root.concurrency is not None
    workload, on_ticks = client.workload, needs.steps_on == "tick"
    iterations = settings.budget.iterations(
        uploads=None if on_ticks else settings.uploads_per_iteration,  # a tick takes as many as happen to arrive
        steps=None if workload.epochs or needs.chooses_k else workload.k,
        ticks=on_ticks,
    )
    return Facts(
        algorithm=settings.choices.get("algorithm", "this algorithm"),
        n_clients=root.n_clients,
        concurrency=root.concurrency,
        groups=parts["heterogeneity"].config.planted_groups,
        clock=root.clock,
        dispatch=parts["schedule"].config.dispatch,
        queues=parts["schedule"].target.queues,
        rounds=needs.steps_on == "round",
        upload_kinds=parts["algorithm"].target.upload_kinds,
        proximal=_setting_value(rule, needs.proximal),
        first_k=_setting_value(rule, needs.first_k),
        workload=workload,
        one_step=workload.one_step and not needs.chooses_k,
        variates=needs.keeps == "variate",
        lr=client.lr,
        iterations=iterations,
        dataset=settings.choices.get("dataset", ""),
        outputs=needs_outputs,
        cuts=needs.cuts,
        layers=parts["model"].config.layers,
        momentum=client.momentum,
        weight_decay=client.weight_decay,
    )


def _setting_value(config: Any, name: str | None) -> tuple[str, Any] | None:
    """Return the name and the value of a setting; None without a name or without a value yet."""
    value = None if name is None else vars(config)[name]
    return None if name is None or value is None else (name, value)


def _idle_settings(configs: Mapping[str, Any], facts: Facts) -> dict[str, str]:
    """Return the settings without effect in this run: dotted key -> when that is so, and what acts instead."""
    idle = {
        f"{section}.{name}".rstrip("."): why
        for section, config in configs.items()
        if isinstance(config, CheckedSettings)
        for name, why in config.idle(facts).items()
    }
    if not (facts.outputs or facts.cuts):
        idle["server_seconds_per_sample"] = (
            "with a server that computes nothing on samples; distillation=fedecho and algorithms that cut the model do"
        )
    return idle
