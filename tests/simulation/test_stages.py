"""Tasks of several stages: messages, answers, and the events they make."""

import pytest
import torch
from toy import Scripted, simulate

from asyncfl_bench.algorithms.common.split import SplitRule
from asyncfl_bench.algorithms.common.trial import TrialPart
from asyncfl_bench.simulation.availability import Dropout, DropoutConfig
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.simulation.schedules import RandomIdle, SameClient, ScheduleConfig
from asyncfl_bench.types import Delivery, Reply, Workload


class StagesExecutor:
    """Sends its client's number and the stage; uploads ones."""

    def __init__(self):
        self.calls, self.discarded = [], []

    def dispatch(self, work, model_d):
        self.calls.append(("dispatch", work.client, work.stage))

    def start_next_stage(self, work, reply):
        self.calls.append(("start_next_stage", work.client, work.stage, float(reply.gradient)))

    def deliver(self, work):
        if work.is_last_stage:
            return Delivery(torch.ones(3, dtype=torch.float64), torch.zeros(()))
        said = torch.tensor([[work.client + 0.1 * work.stage]], dtype=torch.float64)
        return Delivery(activations=said, labels=torch.zeros(1).long())

    def discard(self, work):
        self.discarded.append((work.client, work.stage))


class Answering(SplitRule):
    """Answers ``together`` messages at once; steps on every upload."""

    part = TrialPart(3)

    def __init__(self, together=1, silent=False):
        super().__init__()
        self.together, self.silent, self.heard = together, silent, []

    def receive_message(self, message):
        self.heard.append(message)
        return len(self.heard) % self.together == 0

    def replies(self):
        if self.silent or len(self.heard) % self.together:
            return []
        return [(m.client, Reply(10 * m.activations, torch.zeros(()))) for m in self.heard[-self.together :]]

    def receive(self, upload):
        self.model_d.add_(upload.vector_d)
        return True


class Diary(Observer):
    def __init__(self):
        self.rows = []

    def message_received(self, message, stepped, time):
        self.rows.append((time, message.client, message.stage, message.staleness))

    def arrived(self, upload, changed, time):
        self.rows.append((time, upload.client, "upload", upload.staleness))


def staged(durations, rule=None, executor=None, **world):
    diary, delay = Diary(), Scripted(durations)
    world = {"workload": Workload(2), "kind": "difference", "observers": [diary]} | world
    simulation, _, ended_by = simulate(
        rule or Answering(), n=len(durations), delay=delay, executor=executor or StagesExecutor(), **world
    )
    return simulation, diary.rows, ended_by


def test_a_task_of_three_stages_on_a_timeline_worked_out_by_hand():
    """Durations 3 and 4.5 of a whole task are stages of 1 and 1.5."""
    simulation, rows, _ = staged([[3], [4.5]], server_iterations=3)
    assert rows == [
        (1, 0, 0, 0),
        (1.5, 1, 0, 0),
        (2, 0, 1, 0),
        (3, 1, 1, 0),  # dispatched at 1.5, before client 0's last stage at 2
        (3, 0, "upload", 0),
        (4, 0, 0, 0),
        (4.5, 1, "upload", 1),
        (5, 0, 1, 1),
        (6, 1, 0, 0),
        (6, 0, "upload", 1),
    ]
    counters = simulation.counters
    assert (counters.messages, counters.server_steps, counters.uploads, counters.iteration) == (7, 7, 3, 3)
    assert counters.client_steps == 2 * 3
    number = 8  # bytes: the toy's numbers are doubles
    assert counters.uplink_bytes == number * (3 * 3 + 2 * 7)
    assert counters.downlink_bytes == number * (3 * 5 + 7)


def test_the_answer_to_a_message_reaches_its_client_alone():
    executor = StagesExecutor()
    staged([[3], [4.5]], executor=executor, server_iterations=1)
    assert executor.calls[:4] == [
        *(("dispatch", 0, 0), ("dispatch", 1, 0), ("start_next_stage", 0, 1, 0.0)),
        ("start_next_stage", 1, 1, pytest.approx(10.0)),
    ]
    assert ("start_next_stage", 0, 2, pytest.approx(1.0)) in executor.calls


def test_without_delay_clients_take_turns_stage_by_stage():
    _, rows, _ = staged([[0]] * 3, server_iterations=4)
    assert [row[1:3] for row in rows[:9]] == [(c, stage) for stage in (0, 1, "upload") for c in range(3)]


def test_a_law_that_knows_stages_gives_each_its_own_duration():
    class Slowing(Scripted):
        staged = True

        def duration(self, work):
            return float(1 + work.stage)

    diary = Diary()
    simulate(
        *(Answering(),),
        n=1,
        delay=Slowing([]),
        executor=StagesExecutor(),
        workload=Workload(2),
        kind="difference",
        observers=[diary],
        server_iterations=1,
    )
    assert [row[0] for row in diary.rows] == [1, 3, 6]


def test_who_is_not_answered_waits_for_the_message_that_answers_both():
    _, rows, _ = staged([[3], [6]], rule=Answering(together=2), server_iterations=2)
    # client 0 sends at 1 and waits for client 1's message at 2: then stages of 1 and 2 again
    assert rows[:4] == [(1, 0, 0, 0), (2, 1, 0, 0), (3, 0, 1, 0), (4, 1, 1, 0)]


def test_a_round_ends_when_the_last_task_does():
    rule = Answering()
    rule.receive = lambda upload: False
    rounds = []
    rule.round = lambda: rounds.append(True) or True
    schedule = SameClient(ScheduleConfig(dispatch="per_round"))
    _, rows, _ = staged([[3], [6]], rule=rule, schedule=schedule, server_iterations=2)
    assert [time for time, _, stage, _ in rows if stage == "upload"] == [3, 6, 9, 12]
    assert len(rounds) == 2


def test_a_client_that_leaves_in_mid_task_frees_its_place_and_its_state():
    dropout = Dropout(DropoutConfig(share=0.5, at_iteration=1))
    executor = StagesExecutor()
    simulation, rows, _ = staged(
        [[3], [30], [30], [30]],
        executor=executor,
        availability=dropout,
        schedule=RandomIdle(ScheduleConfig()),
        concurrency=3,
        server_iterations=8,
    )
    gone = {client for client in range(4) if dropout.departed_n[client]}
    assert {client for client, _ in executor.discarded} <= gone
    assert simulation.counters.discarded == len(executor.discarded) > 0
    first = next(i for i, row in enumerate(rows) if row[2] == "upload")
    assert not {row[1] for row in rows[first + 1 :]} & gone
