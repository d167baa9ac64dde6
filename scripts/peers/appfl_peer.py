"""APPFL: its ``vsim.AsyncSimDriver``, which computes at the dispatch.

FedBuff and, for ASGD, its FedAsync. Clients send differences (``send_gradient``) and ``alpha`` undoes APPFL's weights
of 1/n, so that both move the model as ours do: by the mean of M differences, and by each difference in full. Without
``send_gradient`` both would subtract the present model from an upload and not the one its client had.

A client's step takes between 1 and twice the concurrency units, as for FLGo, and transfers take none. Uploads count as
global epochs there: a repeat moves their target and continues with ``run``. Each client has its own module, as in
APPFL's examples, and a share of the images. Validation and metric are off; log lines are dropped once put together.

``optimize_memory`` is off in the five places that read it; ``appfl_gc_peer.py`` measures it on, as it is by default.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial

from workloads import LEARNING_RATE, Workload, network, samples

PACKAGE = "appfl"
LABEL = "APPFL"
DOES = {
    "W1": "FedBuff, asynchronous, `optimize_memory` off",
    "W3a": "its FedAsync, asynchronous, `optimize_memory` off",
    "W3f": "FedBuff, asynchronous, `optimize_memory` off",
}


def simulation(workload: Workload, data: str):
    """Return APPFL's driver, before its first update."""
    from appfl.agent.sim_client import SimClientAgent
    from appfl.agent.sim_server import SimServerAgent
    from appfl.vsim import AsyncSimDriver, ClientProfile
    from torch.utils.data import TensorDataset

    logging.disable(logging.CRITICAL)
    off = {"optimize_memory": False}
    training = off | {
        "trainer": "VanillaTrainer",
        "mode": "step",
        "num_local_steps": 1,
        "train_batch_size": workload.batch,
        "optim": "SGD",
        "optim_args": {"lr": LEARNING_RATE},
        "loss_fn": "CrossEntropyLoss",
        "send_gradient": True,
        "device": "cpu",
        "logging_output_filename": "",
    }
    server = off | {
        "num_clients": workload.n_clients,
        "num_global_epochs": 0,
        "device": "cpu",
        "scheduler": "AsyncScheduler",
        "scheduler_kwargs": off,
        "aggregator": "FedAsyncAggregator" if workload.buffer == 1 else "FedBuffAggregator",
        "aggregator_kwargs": off | {"K": workload.buffer, "alpha": workload.n_clients / workload.buffer},
        "logging_output_filename": "",
    }

    class Server(SimServerAgent):
        def _load_model(self):
            self.model = network(workload)

    class Client(SimClientAgent):
        def _load_model(self):
            self.model = network(workload)

        def _load_metric(self):
            self.metric = lambda target, output: 0.0

    n, (x, y) = workload.n_clients, samples(data)
    clients = [Client(off | {"train_configs": training}, str(i), TensorDataset(x[i::n], y[i::n])) for i in range(n)]
    draw = random.Random(0)
    return AsyncSimDriver(
        Server({"server_configs": server, "client_configs": {"train_configs": training}}),
        clients,
        {c.get_id(): ClientProfile(draw.uniform(1, 2 * workload.concurrency), bandwidth=0) for c in clients},
        workload.concurrency,
        logging.getLogger(__name__),
        base_step_time=1.0,
    )


def further(driver, updates: int) -> int:
    """Continue until this number of further uploads has arrived. Each dispatches one client, which trains at once."""
    before = len(driver.history)
    driver.server.server_agent_config.server_configs.num_global_epochs += updates
    driver.run()
    return len(driver.history) - before


def prepare(name: str, workload: Workload, data: str) -> Callable[[int], int]:
    return partial(further, simulation(workload, data))
