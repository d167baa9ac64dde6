"""FedLab: synchronous rounds of FedAvg, 20 clients each, one local step.

Its standalone simulation has no asynchronous mode (its asynchronous server lives across processes). Local work is
counted in epochs: every client holds one batch. The loop is that of its ``StandalonePipeline`` without evaluation.
"""

from __future__ import annotations

from collections.abc import Callable

from workloads import LEARNING_RATE, Workload, network, one_batch_each, samples

PACKAGE = "fedlab"
LABEL = "FedLab"
DOES = dict.fromkeys(("W1", "W3a", "W3f"), "FedAvg, **synchronous**, 20 clients a round")
CLIENTS_PER_ROUND = 20


def prepare(name: str, workload: Workload, data: str) -> Callable[[int], int]:
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from torch.utils.data import DataLoader, TensorDataset

    clients = [TensorDataset(x_b, y_b) for x_b, y_b in one_batch_each(workload, *samples(data))]

    class OneBatchEach(FedDataset):
        def get_dataloader(self, id, batch_size, type="train"):
            return DataLoader(clients[id], batch_size=batch_size, shuffle=True)

    handler = SyncServerHandler(network(workload), 10**9, CLIENTS_PER_ROUND / workload.n_clients)
    trainer = SGDSerialClientTrainer(network(workload), workload.n_clients)
    handler.num_clients = workload.n_clients
    trainer.setup_dataset(OneBatchEach())
    trainer.setup_optim(epochs=1, batch_size=workload.batch, lr=LEARNING_RATE)

    def run(updates: int) -> int:
        done = 0
        while done < updates:
            chosen = handler.sample_clients()
            trainer.local_process(handler.downlink_package, chosen)
            for upload in trainer.uplink_package:
                handler.load(upload)
            done += len(chosen)
        return done

    return run
