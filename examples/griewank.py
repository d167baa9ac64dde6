"""After figure 1 of the AsyncFedED paper (arXiv:2205.13797): four clients on the Griewank function, three server rules.

    python examples/griewank.py [griewank.png]

All four start from one model and arrive in the order 1 to 4; the last is the slowest. Coloured arrows are their local
work, black arrows the steps of the server. Client i descends f plus a slope of its own (data that are not alike). The
paper draws one rule and prints no numbers. The comparison, start, slopes, steps, the 30 local steps of client 4 and
hinge b = 0 are ours (table 3: b = 5, in time). AsyncFedED overshoots at the fourth arrival. Runs in seconds.
"""

from __future__ import annotations

import sys

import matplotlib
import numpy as np
import torch

from asyncfl_bench.algorithms.asyncfeded import AsyncFedEd
from asyncfl_bench.algorithms.base import ServerRule
from asyncfl_bench.algorithms.fedasync import FedAsync
from asyncfl_bench.types import ClientTable, Upload

START = (-1.3, 1.9)
SLOPES = ((0.5, 0.1), (-0.2, -0.5), (0.1, 0.6), (-0.1, 0.0))  # of the four clients
K, STEP = (10, 10, 10, 30), 0.2  # local steps; the slowest client does most
RULES = {
    "AsyncFedED": lambda: AsyncFedEd(lam=5.0, lam_over_eps=1.0, k_initial=10),  # table 4, Synthetic
    "FedAsync+Constant": lambda: FedAsync(alpha=0.1),  # table 2, Synthetic
    "FedAsync+Hinge": lambda: FedAsync(alpha=0.1, staleness_weight="hinge", hinge_a=5.0, hinge_b=0.0),
}


def griewank(w_xd: torch.Tensor) -> torch.Tensor:
    """f = 1 + |w|^2 / 4000 - product of cos(w_j / sqrt(j)), for the vectors in the last dimension."""
    root_d = torch.arange(1, w_xd.shape[-1] + 1, dtype=w_xd.dtype).sqrt()
    return 1 + (w_xd**2).sum(-1) / 4000 - torch.cos(w_xd / root_d).prod(-1)


def local_update(start_d: torch.Tensor, client: int) -> torch.Tensor:
    """Return D_i, K steps of gradient descent on f plus the client's slope."""
    w_d = start_d.clone().requires_grad_()
    slope_d = torch.tensor(SLOPES[client], dtype=w_d.dtype)
    for _ in range(K[client]):
        (gradient_d,) = torch.autograd.grad(griewank(w_d) + slope_d @ w_d, w_d)
        w_d = (w_d - STEP * gradient_d).detach().requires_grad_()
    return (w_d - start_d).detach()


def aggregate(rule: ServerRule, start_d: torch.Tensor, updates: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the global model before and after each arrival, all computed from ``start_d``."""
    model_d = start_d.clone()
    rule.start(model_d, ClientTable(np.ones(len(updates), dtype=int)), "difference")
    models = [model_d.clone()]
    for client, update_d in enumerate(updates):
        steps = K[client]
        rule.receive(Upload(client, update_d, 0, client, samples=1, local_steps=steps, k=steps, base_d=start_d))
        models.append(model_d.clone())
    return models


def draw(path: str, updates: list[torch.Tensor], models: dict[str, list[torch.Tensor]]) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    x, y = np.meshgrid(np.linspace(-4, 2, 121), np.linspace(-1.5, 4, 111))
    height = griewank(torch.from_numpy(np.stack([x, y], axis=-1)))
    figure, panels = plt.subplots(1, len(models), figsize=(5 * len(models), 4.4), sharey=True, layout="constrained")
    arrow = {"angles": "xy", "scale_units": "xy", "scale": 1}
    for panel, (name, of) in zip(panels, models.items(), strict=True):
        panel.contourf(x, y, height, 24, cmap="Greys", alpha=0.6)
        for client, update_d in enumerate(updates):
            panel.quiver(
                *START, *update_d.tolist(), color=f"C{client}", width=0.008, label=f"client {client + 1}", **arrow
            )
        path_nd = torch.stack(of).numpy()
        step_nd = np.diff(path_nd, axis=0)
        panel.quiver(*path_nd[:-1].T, *step_nd.T, color="black", width=0.006, label="server", **arrow)
        panel.set(
            xlim=(-4, 2),
            ylim=(-1.5, 4),
            title=f"{name}: f = {float(griewank(of[-1])):.2f}",
            aspect="equal",
            xlabel="$w_1$",
        )
    panels[0].set_ylabel("$w_2$")
    panels[0].legend(loc="lower left", fontsize=8)
    figure.savefig(path, dpi=120)


def main(path: str) -> dict[str, list[float]]:
    """Write the figure and print f after each arrival. Returns f by rule."""
    start_d = torch.tensor(START, dtype=torch.float64)
    updates = [local_update(start_d, client) for client in range(len(SLOPES))]
    models = {name: aggregate(create(), start_d, updates) for name, create in RULES.items()}
    draw(path, updates, models)
    values = {name: [float(griewank(w_d)) for w_d in of] for name, of in models.items()}
    print("| rule | start | 1 | 2 | 3 | 4 |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, heights in values.items():
        print(f"| {name} | {' | '.join(f'{value:.3f}' for value in heights)} |")
    print(f"written: {path}")
    return values


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["griewank.png"])
