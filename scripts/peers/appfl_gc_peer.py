"""APPFL as in ``appfl_peer.py`` with ``optimize_memory`` on, its default.

It then calls ``gc.collect()`` ten to eleven times per update. Each call goes through all Python objects of the process,
most of which are there once torch and APPFL are imported: seconds per update, so a repeat is five updates. The flag is
set once all clients are on their way, because with it a thousand of them take an hour to get there.
"""

from __future__ import annotations

from collections.abc import Callable

from appfl_peer import LABEL, PACKAGE, further, simulation
from workloads import Workload

__all__ = ["DOES", "LABEL", "PACKAGE", "prepare"]
DOES = {
    "W1": "FedBuff, asynchronous, `optimize_memory` on",
    "W3a": "its FedAsync, asynchronous, `optimize_memory` on",
    "W3f": "FedBuff, asynchronous, `optimize_memory` on",
}
UPDATES = 5


def prepare(name: str, workload: Workload, data: str) -> Callable[[int], int]:
    driver = simulation(workload, data)
    further(driver, workload.updates)
    server, clients = driver.server, driver.clients.values()
    for part in (server, server.aggregator, server.scheduler, *clients, *(client.trainer for client in clients)):
        assert part.optimize_memory is False
        part.optimize_memory = True
    return lambda updates: further(driver, UPDATES)
