"""What the server is handed when a piece of work ends: what its client computed, and the facts about it."""

from __future__ import annotations

from ..types import Counters, Delivery, Message, Upload, Work


def upload(work: Work, delivery: Delivery, samples: int, counters: Counters) -> Upload:
    """At the end of a task. samples: that the client holds; counters: as they are when it arrives."""
    assert delivery.vector_d is not None
    return Upload(
        client=work.client,
        vector_d=delivery.vector_d,
        base_iteration=work.iteration,
        staleness=counters.iteration - work.iteration,
        samples=samples,
        local_steps=work.local_steps,
        loss=delivery.loss,
        k=work.k,
        delay=counters.virtual_time - work.start,
        base_d=delivery.base_d,
        outputs_uc=delivery.outputs_uc,
        along_d=delivery.along_d,
    )


def message(work: Work, delivery: Delivery, samples: int, counters: Counters) -> Message:
    """At the end of a stage that is not the task's last."""
    assert delivery.activations is not None and delivery.labels is not None
    return Message(
        client=work.client,
        stage=work.stage,
        k=work.k,
        base_iteration=work.iteration,
        staleness=counters.iteration - work.iteration,
        samples=samples,
        activations=delivery.activations,
        labels=delivery.labels,
        delay=counters.virtual_time - work.start,
    )
