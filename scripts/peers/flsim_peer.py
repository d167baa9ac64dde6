"""FLSim: its asynchronous trainer, which computes at the arrival.

One client starts per unit of virtual time and its work takes `concurrency` units on average, so that many are in
flight. Local work is counted in epochs: every client holds one batch. Metrics and evaluation are off. A repeat is a
whole ``train`` with its own trainer, whose construction is not timed.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
from collections.abc import Callable

from workloads import LEARNING_RATE, Workload, network, one_batch_each, samples

PACKAGE = "flsim"
LABEL = "FLSim"
DOES = {"W1": "FedBuff, asynchronous", "W3a": "its asynchronous SGD", "W3f": "FedBuff, asynchronous"}


def _dataclass_with_shared_defaults(original: Callable) -> Callable:
    """Allow FLSim's dataclass instances as defaults of dataclasses, which Python refuses since 3.11."""

    def dataclass(cls=None, /, **options):
        def decorate(cls):
            for name in inspect.get_annotations(cls):
                default = cls.__dict__.get(name)
                if dataclasses.is_dataclass(default) and not isinstance(default, type):
                    factory = lambda default=default: copy.deepcopy(default)  # noqa: E731
                    setattr(cls, name, dataclasses.field(default_factory=factory))
            return original(cls, **options)

        return decorate if cls is None else decorate(cls)

    return dataclass


def _import_flsim():
    original = dataclasses.dataclass
    dataclasses.dataclass = _dataclass_with_shared_defaults(original)
    try:
        import flsim.configs  # noqa: F401
        from flsim.trainers import async_trainer
    finally:
        dataclasses.dataclass = original
    return async_trainer


def prepare(name: str, workload: Workload, data: str) -> Callable[[int], int]:
    async_trainer = _import_flsim()
    from flsim.clients.base_client import ClientConfig
    from flsim.common.timeout_simulator import NeverTimeOutSimulatorConfig
    from flsim.data.data_provider import FLDataProviderFromList
    from flsim.optimizers.async_aggregators import (
        FedAvgWithLRAsyncAggregatorConfig,
        FedAvgWithLRFedBuffAggregatorConfig,
    )
    from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
    from flsim.utils.async_trainer.training_event_generator import (
        AsyncTrainingEventGeneratorConfig,
        ConstantAsyncTrainingStartTimeDistrConfig,
    )
    from flsim.utils.example_utils import FLModel
    from flsim.utils.timing.training_duration_distribution import PerUserExponentialDurationDistributionConfig
    from omegaconf import OmegaConf

    logging.disable(logging.WARNING)

    class Model(FLModel):
        def fl_create_training_batch(self, batch):
            return batch

    model = Model(network(workload))
    x, y = samples(data)
    users = [[{"features": x_b, "labels": y_b}] for x_b, y_b in one_batch_each(workload, x, y)]
    provider = FLDataProviderFromList(users, [], [], model)
    if workload.buffer == 1:
        aggregator = FedAvgWithLRAsyncAggregatorConfig(lr=1.0)
    else:
        aggregator = FedAvgWithLRFedBuffAggregatorConfig(lr=1.0, buffer_size=workload.buffer)
    events = AsyncTrainingEventGeneratorConfig(
        training_start_time_distribution=ConstantAsyncTrainingStartTimeDistrConfig(training_rate=1.0),
        duration_distribution_generator=PerUserExponentialDurationDistributionConfig(
            training_duration_mean=float(workload.concurrency), training_duration_sd=0.0
        ),
    )

    def trainer(epochs: int):
        config = async_trainer.AsyncTrainerConfig(
            aggregator=aggregator,
            training_event_generator=events,
            client=ClientConfig(epochs=1, optimizer=LocalOptimizerSGDConfig(lr=LEARNING_RATE)),
            timeout_simulator=NeverTimeOutSimulatorConfig(),
            epochs=float(epochs),
            do_eval=False,
            report_train_metrics=False,
            always_keep_trained_model=True,
        )
        return async_trainer.AsyncTrainer(model=model, cuda_enabled=False, **OmegaConf.structured(config))

    def run(updates: int) -> int:
        epochs = -(-updates // workload.n_clients)
        trainer(epochs).train(provider, None, workload.n_clients)
        return epochs * workload.n_clients

    return run
