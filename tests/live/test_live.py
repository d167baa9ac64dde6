"""The same rule serves real clients, and the replay of what its server recorded gives the same bits."""

from __future__ import annotations

import copy
import json
import math
import re
from collections import deque
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from live_clients import LIVE, Threads, computed_replay, live_and_replayed, transport
from tiers import slow
from toy import Recorder

from asyncfl_bench import run
from asyncfl_bench.algorithms.ace import Ace
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import equip
from asyncfl_bench.algorithms.fedbuff import FedBuff
from asyncfl_bench.algorithms.ringmaster import Ringmaster
from asyncfl_bench.clients.executors import SequentialComputer
from asyncfl_bench.clients.queue import ComputedUpload, Computer, WorkQueue
from asyncfl_bench.config import compose, options
from asyncfl_bench.config.composition import Compositions
from asyncfl_bench.errors import BenchError, ConfigError, InputError, Stopped
from asyncfl_bench.experiment import execute
from asyncfl_bench.experiment.replay import compare, replay_settings
from asyncfl_bench.files import to_yaml
from asyncfl_bench.live import replies
from asyncfl_bench.live.choice import MeasuredAvailability, MeasuredDelay
from asyncfl_bench.live.messages import ClientReply
from asyncfl_bench.live.record import GRAIN, Clock, RecordFile
from asyncfl_bench.live.replies import Inbox
from asyncfl_bench.live.server import LiveQueue, LiveTimeline
from asyncfl_bench.live.uploads import StoredUploads, UploadFile
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.availability import AlwaysConfig
from asyncfl_bench.simulation.budget import BudgetConfig
from asyncfl_bench.simulation.delay import DelayConfig
from asyncfl_bench.simulation.engine import Simulation
from asyncfl_bench.simulation.recorded import (
    COLUMNS,
    NAME,
    RecordedAvailability,
    RecordedAvailabilityConfig,
    RecordedDelay,
    RecordedDelayConfig,
)
from asyncfl_bench.simulation.schedules import SameClient, ScheduleConfig, UniformQueue, UniformQueueConfig
from asyncfl_bench.tracking.progress_bar import Progress
from asyncfl_bench.types import ClientTable, Work, Workload

SPLIT = ("gas", "minibatch_sfl", "s2fl", "splitfed")
WAITING = ("ace", "aced", "fedavg", "feddyn", "fedopt", "fedprox", "malenia", "port", "ringleader")
DEPLOYABLE = [name for name in options("algorithm") if name not in SPLIT]
WORDS = ["n_clients=8", "budget.uploads=120", "evaluation.every_uploads=20", "live.answer_within=60"]


class Losing(Threads):
    lose = 0.1


VARIANTS = {
    "ringmaster restart": ["algorithm=ringmaster", "algorithm.restart_at=4"],
    "fedbuff random_idle": ["algorithm=fedbuff", "schedule=random_idle", "concurrency=5"],
    "ca2fl queue": ["algorithm=ca2fl", "schedule=uniform_queue"],
    "fedbuff native": ["algorithm=fedbuff", "executor=native", "model=cnn"],
    "ringleader current": ["algorithm=ringleader", "algorithm.continue_on=current"],
    "ace incremental": ["algorithm=ace", "algorithm.rule=incremental"],
    "fedbuff by time": ["algorithm=fedbuff", "evaluation.every_time=0.02", "budget.virtual_time=0.4"],
    **{f"{name} losing": [f"algorithm={name}", "live.strikes=1000"] for name in ("ace", "fedavg", "fedbuff")},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", [*DEPLOYABLE, *VARIANTS])
def test_a_replay_gives_the_bits_of_a_run_with_clients_that_answer_in_any_order(case, monkeypatch):
    words = VARIANTS.get(case, [f"algorithm={case}"])
    by_time = [word for word in WORDS if "every_uploads" not in word] if "by time" in case else WORDS
    live, comparison = live_and_replayed(monkeypatch, Losing if "losing" in case else Threads, [*by_time, *words])
    least = 2 if case == "malenia" else 5  # the order of the answers sets how many uploads a round of it has
    assert not comparison.difference and comparison.points >= least, comparison
    lost = live.summary["used"]["discarded"]
    assert (lost > 0) == ("losing" in case)
    if "restart" in case:
        assert live.summary["used"]["cancelled"] > 0


class Wordless(Threads):
    """The first reply has no outputs."""

    def reply(self, computer, work, vectors):
        reply = super().reply(computer, work, vectors)
        return replace(reply, outputs_uc=None) if work.sequence == 0 else reply


@pytest.mark.slow
def test_outputs_that_only_a_distillation_needs_are_checked(monkeypatch):
    live, comparison = live_and_replayed(monkeypatch, Wordless, ["algorithm=fedecho", "model=softmax", *WORDS])
    assert live.summary["live"]["refused"] == {"has no outputs": 1} and not comparison.difference


class ThirdRaises(Threads):
    def reply(self, computer, work, vectors):
        if work.client == 3:
            return ClientReply([3], work.sequence, self.identity, problem="no data")
        return super().reply(computer, work, vectors)


@pytest.mark.slow
def test_the_progress_names_a_client_that_is_out_before_the_next_evaluation(monkeypatch):
    shown = []
    monkeypatch.setattr(Progress, "update", lambda self, done, *facts: shown.append((done, facts[-1])))
    words = [*LIVE, "n_clients=8", "budget.uploads=200", "algorithm=asgd", "model=softmax", "evaluation.every=1000"]
    with transport(monkeypatch, ThirdRaises):
        run([*words, "progress=true"])
    first, change, last = shown
    # client 3 can be the first that a loaded machine runs
    assert first == (0, "8 here") and change[0] < 200 and last == (200, "8 here, out: 3") and change[1] == last[1]


@pytest.mark.slow
def test_the_command_says_whether_a_replay_has_the_same_bits(afl_run, monkeypatch):
    words = ["algorithm=asgd", "model=softmax", *WORDS]
    live, _ = live_and_replayed(monkeypatch, Threads, words)
    summary = live.directory / "summary.json"
    bare = json.loads(summary.read_text())
    for _ in range(2):
        again = afl_run("--replay", str(live.directory))
        assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "same bits: model, 120 arrivals, 7 evaluations")
        assert "already complete" not in again.stdout  # data may have changed
        noted = json.loads(summary.read_text())
        same = {"same_bits": True, "arrivals": 120, "points": 7, "difference": "", "remark": ""}
        same |= {"uploads": "computed"}
        assert noted == bare | {"replayed": same | {"identity": noted["replayed"]["identity"]}, "files": noted["files"]}
    record = live.directory / "arrivals.csv"
    *rows, last = record.read_text().splitlines()
    before, time = re.match(r"(.*,)([\d.]+),", last).groups()
    record.write_text("\n".join([*rows, f"{before}{float(time) + 1},"]))  # a second later
    other = afl_run("--replay", str(live.directory))
    assert other.returncode == 2 and "its arrivals.csv is not the file that the run wrote" in other.stderr
    remove_digests(summary)
    other = afl_run("--replay", str(live.directory))
    assert other.returncode == 1 and re.match("first difference: arrival 120, time: ", other.stdout.splitlines()[-1])
    found = json.loads(summary.read_text())["replayed"]
    assert not found["same_bits"] and found["difference"].startswith("arrival 120, time: ")
    assert found["identity"] != noted["replayed"]["identity"]  # the record is a part of it
    record.write_text("\n".join(rows[:60]))
    remove_digests(summary)
    short = afl_run("--replay", str(live.directory))
    assert short.returncode == 1 and "first difference: the replay failed: the record ends here" in short.stdout
    assert json.loads(summary.read_text())["replayed"]["difference"].startswith("the replay failed: the record ends")
    record.write_text("\n".join([*rows[:3], rows[2]]))
    remove_digests(summary)
    broken = afl_run("--replay", str(live.directory))
    assert (broken.returncode, "line 4: is not an arrival of a run of 8 clients" in broken.stderr) == (2, True)
    simulated = next(path for path in live.directory.parent.iterdir() if path != live.directory)
    for words in ([str(simulated)], ["nowhere"], [], ["a", "b"]):
        assert afl_run("--replay", *words).returncode == 2


def remove_digests(summary):
    """Make the summary one of an earlier version."""
    content = json.loads(summary.read_text())
    summary.write_text(json.dumps({key: value for key, value in content.items() if key != "files"}))


def write_live_run(path, digest="d1", loss=1.0):
    """A finished live run of one arrival, by hand."""
    path.mkdir(parents=True)
    settings = compose(["live=processes", "n_clients=8", "algorithm=ca2fl"])
    (path / "config.yaml").write_text(to_yaml(settings.tree))
    (path / "arrivals.csv").write_text(",".join(COLUMNS) + "\n0,0,1.0,1,0,1.0,\n")
    (path / "summary.json").write_text(json.dumps({"exit_status": "ok", "data_digest": digest, "live": {}}))
    (path / "metrics.jsonl").write_text(json.dumps({"test/loss": loss}) + "\n")
    pq.write_table(pa.table({"client": [0]}), path / "trace.parquet")
    torch.save({"weight": torch.zeros(2)}, path / "model_final.pt")
    return path


def test_a_replay_is_computed_again_beside_its_live_run_and_a_difference_names_other_data(tmp_path, monkeypatch):
    live = write_live_run(tmp_path / "runs/live")
    found = replay_settings(live)
    assert found.root.rerun  # a finished replay may be of other data
    monkeypatch.chdir(live)
    assert replay_settings(".").directory == found.directory and found.directory.parent == live.parent
    other = write_live_run(tmp_path / "runs/other", digest="d2", loss=2.0)
    difference = "first difference: evaluation 1, test/loss: 1.0 live, 2.0 replayed"
    said = str(compare(live, other))
    assert said.startswith(f"{difference} (the data differ; live: ")
    same = write_live_run(tmp_path / "runs/same", loss=2.0)
    assert "data differ" not in str(compare(live, same))


DAMAGE = {
    "summary.json": [b"{", b"[]"],
    "trace.parquet": [None, b""],
    "metrics.jsonl": [b"{\n"],
    "model_final.pt": [None, b"garbage"],
}


def test_a_damaged_file_of_a_live_run_is_named_before_anything_is_replayed(tmp_path):
    live = write_live_run(tmp_path / "live")
    for name, contents in DAMAGE.items():
        whole = (live / name).read_bytes()
        for content in contents:
            (live / name).unlink() if content is None else (live / name).write_bytes(content)
            with pytest.raises(ConfigError, match=f"^--replay={live}: its {name} cannot be read$"):
                replay_settings(live)
        (live / name).write_bytes(whole)
    config = (live / "config.yaml").read_text()
    (live / "config.yaml").write_text(config.replace("keep_uploads: false", "keep_uploads: true"))
    (live / "summary.json").write_text('{"exit_status": "ok"}')
    with pytest.raises(ConfigError, match=r"its summary.json cannot be read"):
        replay_settings(live)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ace", "feddyn", "fedecho", "ringmaster restart", "fedbuff losing"])
def test_a_replay_with_kept_uploads_computes_no_work_of_clients(case, monkeypatch):
    words = [*WORDS, *VARIANTS.get(case, [f"algorithm={case}"]), "model=softmax", "live.keep_uploads=true"]
    with transport(monkeypatch, Losing if "losing" in case else Threads):
        live = run([*LIVE, *words])
    uploads, d = live.directory / "uploads.bin", live.summary["parameters"]
    outputs = (uploads.stat().st_size // live.summary["used"]["uploads"] - 12) // 4 - d
    assert (outputs > 0) == (case == "fedecho")
    monkeypatch.setattr(SequentialComputer, "begin", None)
    replayed = execute(replay_settings(live.directory))
    assert replayed.ok, replayed.summary["error"]
    comparison = compare(live.directory, replayed.directory)
    assert str(comparison) == "same bits with kept uploads: model, 120 arrivals, 7 evaluations"
    with pytest.raises(ConfigError, match="live=recorded: must be joined by delay=recorded; afl-run --replay DIR"):
        run(["live=recorded", f"live.path={uploads}", "model=softmax", "n_clients=8"])
    content = uploads.read_bytes()
    uploads.write_bytes(content[:-1] + b"?")
    with pytest.raises(ConfigError, match=r"its uploads.bin is not the file that the run wrote"):
        replay_settings(live.directory)
    uploads.write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=rf"uploads.bin of {len(content)} bytes; found {len(content) // 2} bytes"):
        replay_settings(live.directory)
    uploads.unlink()
    with pytest.raises(ConfigError, match=r"must have its uploads.bin of \d+ bytes; found 0 bytes"):
        replay_settings(live.directory)


class OwnSamples(Threads):
    """Each client's computer has read its own file only."""

    workers, own = 8, True


def write_clients(folder, n=8, classes=10):
    """Files of clients, which lack labels. Returns the (n, classes) samples of each label."""
    draws = np.random.default_rng(5)
    folder.mkdir()
    counts = np.zeros((n, classes), int)
    for client, size in enumerate([90, *(10 + 7 * i for i in range(n - 1)), 90]):
        y = draws.integers(0, 1 + min(client + 2, classes - 1), size)
        name = client if client < n else "test"
        np.savez(folder / f"{name}.npz", x=draws.normal(y[:, None], size=(size, 6)).astype(np.float32), y=y)
        if client < n:
            counts[client] = np.bincount(y, minlength=classes)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("case", ["afbs", "fedavg", "ca2fl native"])
def test_clients_that_have_their_own_samples_only_are_replayed_with_and_without_them(case, monkeypatch, tmp_path):
    folder, (name, *executor) = tmp_path / "local", case.split()
    counts = write_clients(folder)
    words = ["dataset=local", f"dataset.folder={folder}", "dataset.classes=10", "live.keep_uploads=true"]
    words += [f"executor={one}" for one in executor] or ["client.local_epochs=1"]
    with transport(monkeypatch, OwnSamples):
        live = run([*LIVE, *WORDS, *words, f"algorithm={name}", "model=softmax"])
    assert live.summary["task"]["smallest_client"] == 10
    assert str(computed_replay(live.directory)) == "same bits with kept uploads: model, 120 arrivals, 7 evaluations"
    assert np.array_equal(np.load(live.directory / "counts.npy"), counts)
    for client in range(8):
        (folder / f"{client}.npz").unlink()
    replayed = execute(replay_settings(live.directory))
    assert replayed.summary["data_digest"] == live.summary["data_digest"]
    assert not compare(live.directory, replayed.directory).difference


def test_an_upload_file_continues_where_the_checkpoint_is(tmp_path):
    path, pieces = tmp_path / "uploads.bin", [Work(i % 2, i, 0, 0, 1, cycle=i // 2) for i in range(5)]

    def write(file, numbers):
        for i in numbers:
            file.write(pieces[i], ClientReply([i % 2], i, "mine", np.full(3, i, np.float32), float(i)))

    first, real = UploadFile(path, 3, None), SimpleNamespace(vectors=None)
    write(first, range(3))
    state = first.state_dict()
    write(first, range(3, 5))
    path.write_bytes(path.read_bytes() + b"half of")  # of an upload: the server was killed
    with pytest.raises(InputError, match=r"uploads.bin: 127 bytes are not whole uploads of 24 bytes each"):
        StoredUploads(str(path), real, 3, None)
    resumed = UploadFile(path, 3, None)
    resumed.load_state_dict(state)
    write(resumed, range(3, 5))
    kept = StoredUploads(str(path), real, 3, None)
    for i in (4, 0, 3, 1, 2):
        out = torch.empty(1, 3)
        (upload,) = kept.begin([pieces[i]], None, out, None)()
        assert (out.tolist(), float(upload.loss)) == ([[i] * 3], i) and resumed.bytes == path.stat().st_size
    with pytest.raises(BenchError, match="has no upload of client 1 for its work number 2"):
        kept.begin([Work(1, 5, 0, 0, 1, cycle=2)], None, out, None)
    write(resumed, [4])
    with pytest.raises(InputError, match="has an upload twice"):
        StoredUploads(str(path), real, 3, None)
    path.write_bytes(path.read_bytes()[:30])
    lost = UploadFile(path, 3, None)
    lost.load_state_dict(state)
    with pytest.raises(BenchError, match="has 1 of 3 rows; rerun=true starts the run from the beginning"):
        write(lost, [3])


@pytest.mark.parametrize("left", [None, 1, 3])
def test_a_resumed_record_lacks_no_row(tmp_path, left):
    pieces = [Work(i, 0, 0, 0, float(i + 1)) for i in range(4)]
    first, resumed = RecordFile(tmp_path), RecordFile(tmp_path)
    for work in pieces[:3]:
        first.write(work, ClientReply([work.client], 0, vector_d=ONES_D))
    first.close()
    resumed.load_state_dict(first.state_dict())
    path = tmp_path / NAME
    lines = path.read_text().splitlines(keepends=True)
    path.unlink() if left is None else path.write_text("".join(lines[: left + 1]))
    if left == 3:
        resumed.write(pieces[3], ClientReply([3], 0, vector_d=ONES_D))
        assert [line[0] for line in path.read_text().splitlines()[1:]] == ["0", "1", "2", "3"]
    else:
        with pytest.raises(BenchError, match=f"has {left or 0} of 3 rows; rerun=true starts the run from the"):
            resumed.write(pieces[3], ClientReply([3], 0, vector_d=ONES_D))


def test_settings_that_a_replay_could_repeat_are_resolved():
    shared, words = Compositions(), ["live=processes", "n_clients=8", "algorithm=ca2fl"]
    found = shared.settings(words)
    root = found.root
    assert (root.clock, root.executor, root.trace, root.threads) == ("time", "sequential", True, 1)
    assert found.parts["live"].config.count == 8 and found.choices["delay"] == "measured"
    assert found.identity != shared.settings([*words, "live.nap=1"]).identity


@pytest.mark.slow
@pytest.mark.parametrize("name", options("algorithm"))
def test_a_rule_says_by_its_needs_whether_it_can_be_deployed(name):
    words = [f"algorithm={name}", "live=processes"]
    if name in SPLIT:
        with pytest.raises(ConfigError, match=f"algorithm={name}: cannot run with live=processes: its clients would"):
            compose(words)
    elif name in WAITING:
        with pytest.raises(ConfigError, match=r"live.answer_within=null: must be a number of seconds"):
            compose(words)
    else:
        assert compose(words).needs.undeployable is None


# -- a script in the place of clients, without any time ----------------------------------------------------------------

N, D = 4, 3
ONES_D = np.ones(D, np.float32)
TARGETS_ND = np.random.default_rng(7).normal(size=(N, D)).astype(np.float32)


class Quadratic(Computer):
    """Client i's gradient at w is w - target_i."""

    def begin(self, pieces, start, out_pd, blocks):
        start_d = start(pieces[0])[0]
        torch.sub(start_d, torch.from_numpy(TARGETS_ND[pieces[0].client]), out=out_pd[0])
        return lambda: [ComputedUpload(out_pd[0].norm())]


class Scripted:
    """Answers work in the order of a script: each entry picks one in flight, and how its client answers."""

    problem = "ValueError: no data"

    def __init__(self, script):
        self.work, self.left, self.answered = deque(), deque(script), None
        self.here = 0  # replies that need not be waited for

    def start(self, stop):
        pass

    def send(self, work, vectors):
        self.work.append((work, vectors))

    def forget(self, work):
        pass  # its answer comes all the same

    def dismiss(self, client):
        pass

    def receive(self, seconds):
        if not seconds and not self.here:
            return []
        self.here = max(0, self.here - 1)
        number, what = self.left.popleft() if self.left else (0, "upload")
        client = self.work[number % len(self.work)][0].client
        place = [work.client for work, _ in self.work].index(client)  # a client does its work in order
        work, (start_d, *_) = self.work[place]
        vector_d = start_d - TARGETS_ND[work.client]
        loss = float(torch.from_numpy(vector_d).norm())
        reply = ClientReply([work.client], work.sequence, "mine", vector_d, loss)
        others = [other.sequence for other, _ in self.work if other.client != work.client]
        if what == "repeats" and self.answered is not None:
            return [self.answered]
        if what in ("other's", "unknown"):
            number = 10**6 if what == "unknown" or not others else others[0]
            return [replace(reply, sequence=number)]
        del self.work[place]
        if what == "nan":
            reply.vector_d[1] = math.nan
        elif what in LOSING:
            changes = {"shape": vector_d[:-1], "double": vector_d.astype(np.float64), "empty": None}
            problem = self.problem if what == "raises" else ""
            reply = replace(reply, vector_d=changes.get(what, vector_d), problem=problem)
            reply.loss = 1e39 if what == "loss" else loss  # infinite in float32
            reply.identity = "other" if what == "run" else "mine"
        else:
            self.answered = reply
        return [reply]


LOSING = {
    "nan": "upload with numbers that are not finite",
    "shape": "upload of shape (2,) float32, not (3,) float32",
    "double": "upload of shape (3,) float64, not (3,) float32",
    "empty": "has no upload",
    "loss": "loss 1e+39",
    "run": "belongs to run other, not to mine",
    "raises": "ValueError: no data",
}
HARMLESS = {
    "repeats": "repeats number ",
    "other's": "claims number ",
    "unknown": "claims number 1000000, which no work has",
}
RULES = {
    "asgd": lambda: Asgd(eta=0.3),
    "fedbuff": lambda: FedBuff(eta=0.3, buffer_size=2),
    "ace": lambda: Ace(eta=0.3, step_on="arrival"),  # a first round
    "queue": lambda: Asgd(eta=0.3),  # a client may have several pieces of work
    "ringmaster": lambda: Ringmaster(eta=0.3, threshold=2, restart_at=2),  # cancels work
}


class World:
    """One run of a rule: with the script's clients, or without a script as the replay of what is in the folder."""

    def __init__(self, name, folder, script=None, strikes=1000, stop=(), must_stay=""):
        rule, delay = RULES[name](), MeasuredDelay(DelayConfig())
        needs, queue = rule.needs, name == "queue"
        if script is None:
            path = str(folder / "arrivals.csv")
            delay = RecordedDelay(RecordedDelayConfig(path=path))
            availability = RecordedAvailability(RecordedAvailabilityConfig(path=path))
            self.queue = WorkQueue(Quadratic(), keeps_base=needs.base)
            timeline = availability.build_timeline(self.queue.discard, None)
        else:
            self.inbox = Inbox(
                Scripted(script),
                d=D,
                shape_uc=None,
                identity="mine",
                strikes=strikes,
                must_stay=must_stay,
                stop=stop,
                report=lambda text: None,
            )
            file = RecordFile(folder)
            self.queue = LiveQueue(self.inbox, Quadratic(), None, needs.base, file)
            availability = MeasuredAvailability(AlwaysConfig())
            availability.record = file.record
            timeline = LiveTimeline(self.inbox, file, self.queue.discard, None)
        self.recorder, streams = Recorder(), Streams(0)
        self.recorder.simulation = self.simulation = Simulation(
            rule=equip(rule, rule.storage, streams),
            model_d=torch.zeros(D),
            clients=ClientTable(np.ones(N, dtype=int)),
            upload_kind="gradient",
            workload=Workload(),
            executor=self.queue,
            delay=delay,
            availability=availability,
            schedule=UniformQueue(UniformQueueConfig()) if queue else SameClient(ScheduleConfig()),
            clock="time",
            concurrency=N,
            budget=BudgetConfig(server_iterations=None, uploads=14),
            streams=streams,
            timeline=timeline,
        )
        self.simulation.observers.append(self.recorder)

    def state(self):
        parts = {name: getattr(self, name).state_dict() for name in ("simulation", "queue")}
        rule = self.simulation.rule.state_dict()
        return copy.deepcopy(parts | {"rule": rule, "model_d": self.simulation.model_d, "seen": self.recorder.arrivals})

    def load(self, state):
        simulation = self.simulation
        simulation.model_d.copy_(state["model_d"])
        simulation.load_state_dict(state["simulation"])
        simulation.rule.load_state_dict(state["rule"])
        in_flight = [work for work in simulation.in_flight.values() if not work.lost]
        self.queue.load_state_dict(state["queue"], simulation.model_d, in_flight)
        self.recorder.arrivals = list(state["seen"])

    def left_behind(self):
        arrivals = [(a.client, a.base_iteration, a.changed, a.time, a.vector.tobytes()) for a in self.recorder.arrivals]
        return self.simulation.model_d.numpy().tobytes(), arrivals, self.simulation.counters


def play(name, script, folder, saved_at=None, killed_at=None, **options):
    """The world at its end; killed after some events, it resumes from where it was saved."""
    world = World(name, folder, script, **options)
    state, events = world.state(), 0
    while world.simulation.step() is None:
        events += 1
        if events == saved_at:
            state = world.state()
        if events == killed_at and killed_at >= saved_at:
            left = world.inbox.transport.left
            world = World(name, folder, left, **options)
            world.load(state)
    return world


def replay(name, folder, **options):
    world = World(name, folder, **options)
    assert world.simulation.run() == "uploads"
    return world


ENTRIES = st.lists(st.tuples(st.integers(0, N - 1), st.sampled_from(["upload", *LOSING, *HARMLESS])), max_size=24)


@pytest.mark.parametrize("examples", [8, *slow(400)])
def test_any_order_of_uploads_refusals_and_a_killed_server_is_replayed_to_the_bit(examples):
    @given(name=st.sampled_from([*RULES]), script=ENTRIES, saved_at=st.integers(1, 9), killed_at=st.integers(1, 12))
    @settings(max_examples=examples, deadline=None, derandomize=True)
    def check(name, script, saved_at, killed_at):
        with TemporaryDirectory() as place:
            world = play(name, script, Path(place), saved_at, killed_at)
            assert world.simulation.counters.uploads == 14
            assert replay(name, Path(place)).left_behind() == world.left_behind()

    check()


@pytest.mark.parametrize("examples", [8, *slow(50)])
def test_queued_work_of_a_client_that_is_out_is_replayed_to_the_bit(examples):
    @given(script=ENTRIES, saved_at=st.integers(1, 9), killed_at=st.integers(1, 12))
    @example(script=[(0, "nan"), (0, "upload"), (0, "nan")] * 3, saved_at=1, killed_at=0)
    @settings(max_examples=examples, deadline=None, derandomize=True)
    def check(script, saved_at, killed_at):
        with TemporaryDirectory() as place:
            world = play("queue", script, Path(place), saved_at, killed_at, strikes=2)
            replayed = World("queue", Path(place))
            replayed.simulation.run()  # it may end without clients
            assert replayed.left_behind() == world.left_behind()

    check()


class Instant(Scripted):
    """Each client answers 0.25 s after its work was sent, or after its answer before that. now: the time in s"""

    def __init__(self):
        super().__init__([])
        self.now, self.free_at = 0.0, [5.0] * N

    def start(self, stop):
        self.now = max(self.now, 5.0)  # by then all clients are here

    def monotonic(self):
        return self.now

    def send(self, work, vectors):
        self.free_at[work.client] = came = max(self.now, self.free_at[work.client]) + 0.25
        self.work.append((came, work, vectors))

    def receive(self, seconds):
        came, work, (start_d, *_) = min(self.work, key=lambda sent: (sent[0], sent[1].sequence))
        if came > self.now + seconds:
            self.now += seconds
            return []
        self.work = deque(sent for sent in self.work if sent[1] is not work)
        self.now = max(self.now, came)
        return [
            ClientReply([work.client], work.sequence, "mine", start_d - TARGETS_ND[work.client], 0.5, received_at=came)
        ]


@pytest.mark.parametrize("name", ["asgd", "queue", "ringmaster"])
def test_durations_of_the_record_lack_what_the_server_computes(name, tmp_path, monkeypatch):
    world, clients = World(name, tmp_path, []), Instant()
    world.inbox.transport = clients
    world.simulation._timeline._clock = Clock(clients.monotonic)
    monkeypatch.setattr(replies, "time", clients)
    use = world.simulation.rule.receive

    def use_slowly(upload):
        clients.now += 1.0
        return use(upload)

    monkeypatch.setattr(world.simulation.rule, "receive", use_slowly)
    assert world.simulation.run() == "uploads"
    rows = [line.split(",") for line in (tmp_path / "arrivals.csv").read_text().splitlines()[1:]]
    assert len(rows) == 14 and {float(row[2]) for row in rows} == {0.25}
    times = [float(row[5]) for row in rows]
    assert times[:2] == [0.25, 0.25 + GRAIN] and clients.now - times[-1] >= 1.0
    monkeypatch.undo()
    assert replay(name, tmp_path).left_behind() == world.left_behind()


def test_each_wrong_reply_is_refused_with_its_reason_and_no_upload_is_lost(tmp_path):
    script = [entry for what in (*LOSING, *HARMLESS) for entry in ((1, "upload"), (2, what))]
    world = play("asgd", script, tmp_path)
    assert world.inbox.losses == {LOSING["raises"]: 1}  # it refused to work
    refused = world.inbox.refusals + world.inbox.losses
    assert [reason for reason in refused if reason in LOSING.values()] == [*LOSING.values()]
    assert sum(reason.startswith(tuple(HARMLESS.values())) for reason in refused) == len(HARMLESS)
    assert sum(refused.values()) == len(LOSING) + len(HARMLESS)
    used = world.simulation.counters
    assert (used.uploads, used.discarded) == (14, len(LOSING))
    rows = [line.split(",", 6) for line in (tmp_path / "arrivals.csv").read_text().splitlines()]
    assert tuple(rows[0]) == COLUMNS and len(rows) == 1 + 14 + len(LOSING)
    assert {row[6].strip('"') for row in rows if row[3] == "0"} == {*LOSING.values()}
    assert replay("asgd", tmp_path).left_behind() == world.left_behind()


def test_only_its_own_client_may_answer_cancelled_work(tmp_path):
    inbox = World("asgd", tmp_path, []).inbox
    inbox.vectors = lambda work: [np.zeros(D, np.float32), None, None]
    pieces = [Work(client, client, 0, 0, local_steps=1) for client in (0, 1)]
    for work in pieces:
        inbox.send(work)
    inbox.forget(pieces[0])
    for client in (1, 0):
        inbox._receive(ClientReply([client], 0, "mine"))
        assert inbox.refusals == {"repeats number 0": 1}


def test_what_a_client_says_is_one_short_line_of_the_record(tmp_path, monkeypatch):
    monkeypatch.setattr(Scripted, "problem", "no\r\ud800\x1b[2J, " + 999 * "é")
    world = play("asgd", [(0, "raises")], tmp_path)
    assert world.inbox.losses == {"no\\r\\ud800\\x1b[2J, " + 290 * "é": 1}
    assert replay("asgd", tmp_path).left_behind() == world.left_behind()


def test_a_client_with_three_refusals_in_a_row_is_out_and_the_others_go_on(tmp_path):
    script = [(0, "nan")] + [(N - 1, "raises")] * 2  # the same client each time: it is the last one that was given work
    world = play("asgd", script, tmp_path, strikes=3)
    assert world.simulation.counters.discarded == 3
    first = world.recorder.discards[0].client
    assert {work.client for work in world.recorder.discards} == {first}
    assert {arrival.client for arrival in world.recorder.arrivals} == {*range(N)} - {first}
    assert replay("asgd", tmp_path).left_behind() == world.left_behind()
    with pytest.raises(BenchError, match=r"client 0 is out after 3 refused .* ValueError: no data; it waits"):
        play("asgd", script, tmp_path, strikes=3, must_stay="it waits")
    with pytest.raises(BenchError, match=r"client 0 is out, and the first round needs an upload of every client"):
        play("ace", script, tmp_path, strikes=3)


def test_strikes_in_a_row_outlast_a_killed_server(tmp_path):
    world = World("asgd", tmp_path, [(0, "nan"), (N - 1, "raises")], strikes=3)
    while world.simulation.counters.discarded < 2:
        world.simulation.step()
    resumed = World("asgd", tmp_path, [(N - 1, "raises"), (0, "nan")], strikes=3)
    resumed.load(world.state())
    resumed.simulation.run()
    assert resumed.simulation.counters.discarded == 4
    assert {arrival.client for arrival in resumed.recorder.arrivals} == {*range(1, N)}  # the first one is out
    assert replay("asgd", tmp_path).left_behind()[0] == resumed.left_behind()[0]


def test_a_stop_keeps_what_arrived_and_was_not_used(tmp_path):
    stop = []
    world = World("asgd", tmp_path, [(0, "upload"), (0, "nan"), (0, "upload")], stop=stop)
    for _ in range(2):
        world.simulation.step()
    stop.append(2)
    with pytest.raises(Stopped):
        world.simulation.step()
    world.inbox.transport.here = 2  # they came while the server was busy
    resumed = World("asgd", tmp_path, [])
    resumed.load(world.state())
    assert len(resumed.inbox.transport.work) == N - 2  # two need not compute again
    resumed.simulation.run()
    assert (resumed.simulation.counters.uploads, resumed.simulation.counters.discarded) == (14, 1)
    assert replay("asgd", tmp_path).left_behind() == resumed.left_behind()


# -- parts -------------------------------------------------------------------------------------------------------------


@given(
    starts=st.lists(st.floats(0, 2.0**32, allow_nan=False), min_size=2, max_size=30),
    last=st.floats(0, 2.0**32, allow_nan=False),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_stamps_rise_and_their_differences_are_exact(starts, last):
    moments = iter([0.0, *starts])
    clock = Clock(lambda: next(moments))
    clock.last = math.floor(last / GRAIN) * GRAIN
    clock.start()
    stamps = [clock.stamp(next(moments)) for _ in starts]
    assert all(after > before for before, after in pairwise(stamps))
    for start, end in pairwise(stamps):
        assert start + float(repr(end - start)) == end and end - start >= GRAIN
