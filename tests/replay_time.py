"""When uploads arrive and which never do, from the seed and the settings alone, in plain NumPy.

Shares no code with the package. The counter-based streams are made anew from their definition: Philox keyed by the seed
and the stream's name, with the counter's upper words at (count, client).
"""

from __future__ import annotations

import zlib

import numpy as np

N_FLOAT = 4  # bytes of a parameter


def draws(seed: int, name: str, client: int, count: int) -> np.random.Generator:
    key = np.random.SeedSequence([seed, zlib.crc32(name.encode())]).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, count, client]))


def hang(config: dict, client: int, cycle: int) -> float | None:
    """In durations of the work; None when its upload arrives."""
    away = config["availability"]
    if not away["_target_"].endswith("Suspension"):
        return None
    chance, share = draws(config["seed"], "suspension", client, cycle).random(2)
    return away["hang"] * share if chance < away["probability"] else None


def counts_of(config: dict, clients: list[int], first_round: bool, n: int) -> list[int]:
    """For each arrival, which dispatch of its client it was, lost ones counted."""
    done, found = [0] * n, []
    for client in clients:
        while done[client] >= first_round and hang(config, client, done[client] - first_round) is not None:
            done[client] += 1
        found.append(done[client])
        done[client] += 1
    return found


def duration(config: dict, client: int, cycle: int, samples: int, parameters: int) -> float:
    """Of delay=work_and_link with clients of one speed."""
    law, factor = config["delay"], 0.0
    generator = draws(config["seed"], "delay", client, cycle)
    while factor <= 0:
        factor = generator.normal(1, law["link_spread"])
    return law["seconds_per_sample"] * samples + factor * N_FLOAT * parameters / law["bandwidth"]


def arrivals_one_by_one(config, rows, held_n, parameters):
    """(time, delay) of each row where every client starts anew as it reports or comes back; K is the rows'."""
    free, cycles = np.zeros(len(held_n)), [0] * len(held_n)
    for row in rows:
        i, samples = row.client, row.local_steps * held_n[row.client]  # full batches
        while (lost := hang(config, i, cycles[i])) is not None:
            free[i] += duration(config, i, cycles[i], samples, parameters) * (1 + lost)
            cycles[i] += 1
        delay = duration(config, i, cycles[i], samples, parameters)
        free[i] += delay
        cycles[i] += 1
        yield free[i], delay


def arrivals_in_rounds(config, k, held_n, parameters):
    """(time, delay, client) without end, where all start together once everybody has reported or come back."""
    start, cycle = 0.0, 0
    while True:
        delays = [duration(config, i, cycle, k * held, parameters) for i, held in enumerate(held_n)]
        hangs = [hang(config, i, cycle) for i in range(len(held_n))]
        order = np.argsort(delays, kind="stable")
        yield from ((start + delays[i], delays[i], int(i)) for i in order if hangs[i] is None)
        start += max(delay * (1 + (lost or 0.0)) for delay, lost in zip(delays, hangs, strict=True))
        cycle += 1


def ranked_classes(config: dict, held_n: list[int]) -> np.ndarray:
    """(n,) class of each client under delay=ranked_classes, 0 the fastest."""
    law, n = config["delay"], len(held_n)
    luck = [draws(config["seed"], "speed", i, 0).random() for i in range(n)]
    ranks = {i: place + 1 for place, i in enumerate(sorted(range(n), key=lambda i: (held_n[i], luck[i])))}
    keys = luck if law["gamma"] is None else [ranks[i] / n + law["gamma"] * luck[i] for i in range(n)]
    from_slowest = sorted(range(n), key=lambda i: -keys[i])
    found, begin = np.zeros(n, dtype=int), 0
    for number in range(len(law["shares"]) - 1, 0, -1):
        count = int(n * law["shares"][number] / sum(law["shares"]))
        count = max(1, count) if number == len(law["shares"]) - 1 else count
        found[from_slowest[begin : begin + count]] = number
        begin += count
    return found


def class_duration(config: dict, kind: int, client: int, cycle: int) -> float:
    low, high = config["delay"]["ranges"][2 * kind : 2 * kind + 2]
    return low + (high - low) * draws(config["seed"], "delay", client, cycle).random()
