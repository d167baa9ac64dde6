"""Where a memory of every client pays: ACE beside vanilla ASGD on a quadratic, with a closed form.

    python examples/memory.py [memory.png]

Client i has F_i(w) = |w - b_i|^2 / 2 and sends w - b_i plus noise. sigma^2 is the noise and zeta^2 the spread of the
b_i around their mean w*, both as squared norms. All n clients are always at work, with the same mean duration.

Closed form, for a small step eta, of the squared error E|w - w*|^2 after a long time. c is the coefficient of
variation of the time between uploads of a client: 1 for exponential delays, 0 for equal ones.

    ASGD   eta (sigma^2 + c^2 zeta^2) / 2     uploads of a client come at random, so its own gradient is noise, too
    ACE    eta (1 + c^2) sigma^2 / 2          a cached sample is in every step until the client reports again

The memory pays where zeta^2 > sigma^2 and delays vary. Runs in seconds.
"""

from __future__ import annotations

import sys

import matplotlib
import numpy as np
import torch

from asyncfl_bench.algorithms.ace import Ace
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import ServerRule
from asyncfl_bench.types import ClientTable, Upload

N, D, STEP = 10, 500, 0.004  # clients, parameters, eta
UPLOADS = 12_000  # a third of them before the error is measured
RATIOS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # zeta^2 / sigma^2
RULES = {"ASGD": Asgd, "ACE": Ace}


def closed_form(rule: str, sigma2: float, zeta2: float, c: float) -> float:
    """Return E|w - w*|^2 of ``rule``."""
    return STEP / 2 * (sigma2 + c**2 * zeta2 if rule == "ASGD" else (1 + c**2) * sigma2)


def arrivals(c: float, random: np.random.Generator) -> np.ndarray:
    """Return the client of each upload: any of them for exponential delays (``c`` = 1), in turn for equal ones (0)."""
    first = np.arange(N)
    later = random.integers(N, size=UPLOADS) if c else np.arange(UPLOADS) % N
    return np.concatenate([first, later])


def measure(rule: str, sigma2: float, zeta2: float, c: float, seed: int = 0) -> float:
    """Return the mean of |w - w*|^2 over the last two thirds of the uploads."""
    random = np.random.default_rng(seed)
    noise = torch.Generator().manual_seed(seed)
    minima_nd = torch.randn(N, D, generator=noise, dtype=torch.float64)
    minima_nd -= minima_nd.mean(dim=0)  # w* = 0
    minima_nd *= (zeta2 / minima_nd.square().sum(dim=1).mean()).sqrt()
    model_d = torch.zeros(D, dtype=torch.float64)
    server: ServerRule = RULES[rule](eta=STEP)
    server.start(model_d, ClientTable(np.ones(N, dtype=int)), "gradient")
    start_nd = model_d.repeat(N, 1)  # the model that a client works on
    errors = []
    for client in arrivals(c, random):
        sample_d = torch.randn(D, generator=noise, dtype=torch.float64) * (sigma2 / D) ** 0.5
        gradient_d = start_nd[client] - minima_nd[client] + sample_d
        server.receive(Upload(int(client), gradient_d, 0, 0, samples=1, local_steps=1))
        start_nd[client] = model_d
        errors.append(float(model_d @ model_d))
    return float(np.mean(errors[len(errors) // 3 :]))


def draw(path: str, measured: dict[tuple[str, float], list[float]]) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for panel, c in zip(panels, (1.0, 0.0), strict=True):
        for rule, color, marker in (("ASGD", "#D55E00", "s"), ("ACE", "#0072B2", "o")):
            formula = [closed_form(rule, 1.0, ratio, c) for ratio in RATIOS]
            panel.plot(RATIOS, formula, color=color, label=f"{rule}, closed form")
            panel.plot(RATIOS, measured[rule, c], marker, color=color, label=f"{rule}, simulated")
        title = "exponential delays" if c else "equal delays"
        panel.set(xscale="log", yscale="log", xlabel="ζ² / σ²", title=title)
    panels[0].set_ylabel("squared error |w − w*|² [σ²]")
    panels[0].legend()
    figure.savefig(path, dpi=120)


def main(path: str) -> dict[tuple[str, float], list[float]]:
    """Write the figure and print simulated errors and closed forms, in units of sigma^2. Returns the simulated ones."""
    measured = {(rule, c): [measure(rule, 1.0, ratio, c) for ratio in RATIOS] for c in (1.0, 0.0) for rule in RULES}
    print(f"| rule | delays | {' | '.join(f'ζ²/σ² = {ratio:g}' for ratio in RATIOS)} |")
    print("| --- | --- |" + " ---: |" * len(RATIOS))
    for (rule, c), errors in measured.items():
        cells = (f"{e:.4f} ({closed_form(rule, 1.0, r, c):.4f})" for r, e in zip(RATIOS, errors, strict=True))
        print(f"| {rule} | {'exponential' if c else 'equal'} | {' | '.join(cells)} |")
    draw(path, measured)
    print(f"written: {path}")
    return measured


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["memory.png"])
