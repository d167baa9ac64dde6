"""FLGo: asynchronous FedBuff under its own system simulator.

Its clock goes in whole units and it computes at the dispatch. Client latencies are uniform between 1 and twice the
concurrency, so that about one upload arrives per unit, as in our runs. FedBuff with a buffer of one stands for ASGD.
The loop is that of its server's ``run`` without logging, evaluation and checkpoints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from workloads import LEARNING_RATE, Workload, network, samples

PACKAGE = "flgo"
LABEL = "FLGo"
DOES = {
    "W1": "FedBuff, asynchronous",
    "W3a": "FedBuff with M=1, asynchronous",
    "W3f": "FedBuff, asynchronous",
}
# what the generated task reads back from here
train_data = test_data = get_model = None


def prepare(name: str, workload: Workload, data: str) -> Callable[[int], int]:
    global train_data, test_data, get_model
    import flgo
    import flgo.benchmark.toolkits.visualization as drawing
    import flgo.simulator
    from flgo.algorithm import fedbuff
    from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
    from torch.utils.data import TensorDataset

    x, y = samples(data)
    train_data, test_data = TensorDataset(x, y), TensorDataset(x[:100], y[:100])
    get_model = lambda *_, **__: network(workload)  # noqa: E731
    sys.path.insert(0, ".")
    Path("description.py").write_text("from flgo_peer import get_model, test_data, train_data\n", encoding="utf-8")
    benchmark = flgo.gen_benchmark_from_file("made_up_images", "description.py", data_type="cv")
    # newer releases of torch refuse a Subset that overrides __getitem__ alone; this is the line they ask for
    FromDatasetPipe.TaskDataset.__getitems__ = lambda self, indices: [self[i] for i in indices]
    drawing.visualize_by_class = lambda *_: None  # minutes for a thousand clients, and no part of a run
    flgo.gen_task(
        {
            "benchmark": {"name": benchmark},
            "partitioner": {"name": "IIDPartitioner", "para": {"num_clients": workload.n_clients}},
        },
        task_path="task",
    )
    option = {
        "num_rounds": 10**9,
        "proportion": workload.concurrency / workload.n_clients,
        "sample": "uniform",
        "num_steps": 1,
        "batch_size": workload.batch,
        "learning_rate": LEARNING_RATE,
        "algo_para": [workload.buffer / workload.n_clients, 1.0],
        "train_holdout": 0.0,
        "responsiveness": f"UNI-1-{2 * workload.concurrency}",
        "eval_interval": -1,
        "log_level": "ERROR",
        "no_tqdm": True,
    }
    server = flgo.init("task", fedbuff, option, Simulator=flgo.simulator.DefaultSimulator)

    def run(updates: int) -> int:
        done = 0
        while done < updates:
            server.gv.clock.step()
            if server.iterate():
                server.current_round += 1
            done += len(server.selected_clients)  # computed at the dispatch
        return done

    return run
