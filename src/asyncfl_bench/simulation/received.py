"""What the server is handed when a piece of work ends: what its client computed, and the facts about it."""

from __future__ import annotations

from typing import Any

from ..types import Delivery, Message, Upload, Work
from .counters import Counters


def upload(work: Work, delivery: Delivery, samples: int, counters: Counters) -> Upload:
    """At the end of a task. samples: that the client holds; counters: as they are when it arrives."""
    assert delivery.vector_d is not None
    return Upload(
        **_facts(work, samples, counters),
        vector_d=delivery.vector_d,
        local_steps=work.local_steps,
        loss=delivery.loss,
        base_d=delivery.base_d,
        outputs_uc=delivery.outputs_uc,
        along_d=delivery.along_d,
    )


def message(work: Work, delivery: Delivery, samples: int, counters: Counters) -> Message:
    """At the end of a stage that is not the task's last."""
    assert delivery.activations is not None and delivery.labels is not None
    facts = _facts(work, samples, counters)
    return Message(**facts, stage=work.stage, activations=delivery.activations, labels=delivery.labels)


def _facts(work: Work, samples: int, counters: Counters) -> dict[str, Any]:
    """Of both."""
    return {
        "client": work.client,
        "base_iteration": work.iteration,
        "staleness": counters.iteration - work.iteration,
        "samples": samples,
        "k": work.k,
        "delay": counters.virtual_time - work.start,
    }
