"""The event loop: a virtual clock decides which upload arrives next, a server rule says what it does to the model.

The engine knows no model, no data and no algorithm. It alone counts server iterations and uploads, computes
staleness, and decides who is in flight. What a piece of work computes is the executor's business; arrival order
never depends on how, where or when it is computed.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Protocol

from ..errors import BenchError, check
from ..randomness import Streams
from ..ranges import Checked, above
from ..types import ClientTable, Counters, Delivery, Upload, Work, Workload
from .observer import Observer


@dataclass
class BudgetConfig(Checked):
    """When a run ends: whichever limit is reached first. null means no such limit.

    server_iterations  changes of the global model (ACE's first full round is one)
    uploads            uploads that reached the server. ACE's first full round is n and is never cut short, nor is a
                       tick of a rule that steps once per tick
    client_steps       mini-batch steps in delivered work
    virtual_time       seconds or ticks of the virtual clock; what happens at this very time still counts
    """

    server_iterations: Annotated[int | None, above(0, null="for no limit")] = 500
    uploads: Annotated[int | None, above(0, null="for no limit")] = None
    client_steps: Annotated[int | None, above(0, null="for no limit")] = None
    virtual_time: Annotated[float | None, above(0, null="for no limit")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = asdict(self).values()
        check(any(limit is not None for limit in limits), "server_iterations", None, "set, or another budget key be")


class Executor(Protocol):
    """Computes work. The engine gives it every dispatch whose upload will arrive, and later asks once for what was
    computed, or discards the work when its client has left meanwhile."""

    def dispatch(self, work: Work, model_d) -> None: ...

    def deliver(self, work: Work) -> Delivery: ...

    def discard(self, work: Work) -> None: ...


class Simulation:
    """One run's simulated world.

    rule          server rule, already constructed; ``start`` is called here
    model_d       (d,) global model, changed in place by the rule
    clients       ClientTable
    upload_kind   "gradient" or "difference", what the executor returns
    workload      what K means, and K where the rule does not say
    clock         "time": uploads arrive one by one. "ticks": all uploads due at a tick are handed to the rule in order
                  of dispatch, then ``rule.tick()`` is called once, then free slots are handed out again
    """

    def __init__(
        self,
        *,
        rule,
        model_d,
        clients: ClientTable,
        upload_kind: str,
        workload: Workload,
        executor: Executor,
        delay,
        availability,
        schedule,
        clock: str,
        concurrency: int,
        budget: BudgetConfig,
        streams: Streams,
        observers: list[Observer] | None = None,
    ):
        self.rule, self.model_d, self.clients = rule, model_d, clients
        self.executor, self.delay, self.availability, self.schedule = executor, delay, availability, schedule
        self.clock, self.budget, self.observers = clock, budget, list(observers or [])
        self.workload = workload
        self.counters = Counters()
        self.in_flight: dict[int, Work] = {}  # by sequence number
        self.dispatches = 0
        self.free_slots = concurrency
        self._due: list[tuple[float, int]] = []  # heap of (time of arrival, sequence number)
        self._count_n = [0] * clients.n  # dispatches per client
        self._samples_n = [int(s) for s in clients.samples_n]
        self._dispatch_when = schedule.config.dispatch
        self._started = False
        self._moved_in_tick = False  # the model has moved in a tick that the budget cut short
        self._unmoved = 0  # uploads, lost ones included, since the model last changed
        self._at_once = 0  # uploads, lost ones included, since virtual time last moved
        delay.start(clients.n, streams, model_bytes=model_d.numel() * model_d.element_size())
        availability.start(clients.n, streams)
        schedule.start(clients.n, concurrency, streams.schedule)
        rule.start(model_d, clients, upload_kind)

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Runs until the budget is used up; returns the budget key that ended it, "no_clients" or "stalled"."""
        while (ended_by := self.advance()) is None:
            pass
        return ended_by

    def advance(self) -> str | None:
        """One arrival (time clock) or one tick (tick clock). Returns why the run is over, or None."""
        if not self._started:
            return self.begin()
        if self._due:
            return self._advance_tick() if self.clock == "ticks" else self._advance_arrival()
        if not self._moves_alone():
            return "no_clients"
        before = self.counters.iteration
        ended_by = self._advance_tick()
        # with nobody left to report, a rule that stands still now stands still for ever
        return "no_clients" if ended_by is None and self.counters.iteration == before else ended_by

    @property
    def next_time(self) -> float:
        """Virtual time of the next arrival or tick; infinite when nothing is to come."""
        if self.clock == "ticks" and self.rule.moves_each_tick:
            return self.counters.virtual_time + 1
        return self._due[0][0] if self._due else math.inf

    def spent(self) -> str | None:
        """The budget key that is used up, "stalled", or None. Virtual time is up when the next event lies beyond it."""
        used, limit = self.counters, self.budget
        if limit.server_iterations is not None and used.iteration >= limit.server_iterations:
            return "server_iterations"
        if limit.uploads is not None and used.uploads >= limit.uploads:
            return "uploads"
        if limit.client_steps is not None and used.client_steps >= limit.client_steps:
            return "client_steps"
        many = max(10_000, 100 * self.clients.n)
        only_time = limit.server_iterations is limit.uploads is limit.client_steps is None
        if self._unmoved >= many or (only_time and self._at_once >= many):
            return "stalled"  # so many uploads in a row left the model or the time alone that the end may never come
        return None

    def begin(self) -> str | None:
        """The first round, if the rule asks for one, and the first dispatches. Once; ``advance`` does it if need be."""
        if not self._started:
            self._started = True
            if self.rule.first_round:
                self._first_round()
            self._fill_slots()
        return self.spent()

    def _moves_alone(self) -> bool:
        """With nobody in flight, do the rule's own steps at each tick still bring the end nearer?"""
        bounded = self.budget.server_iterations is not None or self.budget.virtual_time is not None
        return self.clock == "ticks" and self.rule.moves_each_tick and bounded

    def _advance_arrival(self) -> str | None:
        time = self._due[0][0]
        if self._beyond(time):
            return "virtual_time"
        self._at_once = self._at_once + 1 if time == self.counters.virtual_time else 0
        self.counters.virtual_time = time
        self._fill_slots(after=self._arrive(self.in_flight.pop(heapq.heappop(self._due)[1])))
        return self.spent()

    def _advance_tick(self) -> str | None:
        # a rule that steps at every tick is asked at every tick; for the others empty ticks cost nothing
        tick = self.next_time
        if self._beyond(tick):
            return "virtual_time"
        self.counters.virtual_time = tick
        moved, self._moved_in_tick = self._moved_in_tick, False
        due = []
        while self._due and self._due[0][0] <= tick:
            due.append(heapq.heappop(self._due))
        # the tick's own step follows its last arrival that counts, so the trace shows it on that row
        arriving = [sequence for _, sequence in due if self._arrives(self.in_flight[sequence])]
        last = arriving[-1] if arriving else None
        for place, (_, sequence) in enumerate(due):
            moved |= self._arrive(self.in_flight.pop(sequence), tick_after=sequence == last)
            # a rule that steps once per tick gets the whole tick; after its last arrival a tick is over in any case
            rest = not self.rule.moves_each_tick and place + 1 < len(due)
            if rest and (ended_by := self.spent()) is not None:
                self._moved_in_tick = moved
                for event in due[place + 1 :]:  # they stay in flight
                    heapq.heappush(self._due, event)
                return ended_by
        if last is None:
            moved |= self._moves_itself(tick=True)
        self._fill_slots(after=moved)
        return self.spent()

    def _beyond(self, time: float) -> bool:
        limit = self.budget.virtual_time
        if limit is not None and time > limit:
            self.counters.virtual_time = float(limit)
            return True
        return False

    def _first_round(self) -> None:
        """Every client computes once at w0; takes no virtual time, counts n uploads (ACE, Algorithm 1, lines 1-6)."""
        works = []
        for client in range(self.clients.n):
            works.append(self._new_work(client))
            self._dispatch(works[-1])
        for place, work in enumerate(works):
            self._arrive(work, tick_after=self.clock == "ticks" and place + 1 == len(works), frees_slot=False)

    # -- one arrival -----------------------------------------------------------------------------------------------

    def _arrives(self, work: Work) -> bool:
        return not (work.lost or self.availability.has_left(work.client, self.counters.iteration, work.start))

    def _arrive(self, work: Work, tick_after: bool = False, frees_slot: bool = True) -> bool:
        """A piece of work is over. True when the global model changed.

        tick_after  this is the tick's last arrival: the tick's own step belongs to it in the trace, as does a round's
                    to the round's last
        """
        round_after = self._dispatch_when == "per_round" and frees_slot and not self.in_flight
        if self._arrives(work):
            return self._receive(work, tick_after, round_after, frees_slot)
        if not work.lost:
            self.executor.discard(work)
        for observer in self.observers:
            observer.discarded(work)
        self.counters.discarded += 1
        self._unmoved += 1
        self.free_slots += frees_slot
        if work.lost:  # it comes back, or is found gone when it is to get its next work
            self.schedule.report(work.client)
        return round_after and self._moves_itself(round_=True)

    def _receive(self, work: Work, tick_after: bool, round_after: bool, frees_slot: bool) -> bool:
        """Hands one finished piece of work to the rule. True when the global model changed."""
        counters = self.counters
        delivery = self.executor.deliver(work)
        upload = Upload(
            client=work.client,
            vector_d=delivery.vector_d,
            base_iteration=work.iteration,
            staleness=counters.iteration - work.iteration,
            samples=self._samples_n[work.client],
            local_steps=work.local_steps,
            loss=delivery.loss,
            k=work.k,
            delay=counters.virtual_time - work.start,
            base_d=delivery.base_d,
        )
        changed = self._moved(self.rule.receive(upload))
        for observer in self.observers:
            observer.received(upload, changed)
        counters.uploads += 1
        counters.client_steps += work.local_steps
        self._unmoved = 0 if changed else self._unmoved + 1
        if changed:
            counters.iteration += 1
        if frees_slot:
            self.free_slots += 1
            self.schedule.report(work.client)
        itself = self._ask(tick_after, round_after)
        for observer in self.observers:
            observer.arrived(upload, changed or itself, counters.virtual_time)
        if changed:
            self._iterated()
        if itself:
            self._count_own_step()
        return changed or itself

    def _moves_itself(self, tick: bool = False, round_: bool = False) -> bool:
        """The rule's own step when no arrival goes with it."""
        if moved := self._ask(tick, round_):
            self._count_own_step()
        return moved

    def _count_own_step(self) -> None:
        self._unmoved = 0
        self.counters.iteration += 1
        self._iterated()

    def _ask(self, tick: bool, round_: bool) -> bool:
        """Asks the rule for its own step at the end of a tick, of a round, or of both, where it takes it in one."""
        changed = False
        if tick:
            changed = self._moved(self.rule.tick())
            for observer in self.observers:
                observer.ticked(changed)
        if round_:
            answer = self._moved(self.rule.round())
            for observer in self.observers:
                observer.round_ended(answer)
            changed = changed or answer
        return changed

    def _moved(self, answer: bool) -> bool:
        if answer is not True and answer is not False:
            raise BenchError(f"{type(self.rule).__name__} answered {answer!r}: a rule says exactly True or False")
        return answer

    def _iterated(self) -> None:
        for observer in self.observers:
            observer.iterated(self.counters)

    # -- dispatch --------------------------------------------------------------------------------------------------

    def _new_work(self, client: int) -> Work:
        count = self._count_n[client]
        self._count_n[client] += 1
        k = self.rule.work_for(client)
        k = self.workload.k if k is None else k
        sequence = self.dispatches
        self.dispatches += 1
        held = self._samples_n[client]
        return Work(
            client,
            sequence,
            count,
            self.counters.iteration,
            local_steps=self.workload.steps(held, k),
            k=k,
            samples=self.workload.samples(held, k),
            # a first round takes no time and no draw: all rules meet the same durations
            cycle=count - self.rule.first_round,
            start=self.counters.virtual_time,
        )

    def _fill_slots(self, after: bool = True) -> None:
        """Fills every free slot for which the schedule has a client that still takes part, if this is the moment.

        after  whether the global model has just changed
        """
        # with nobody in flight neither a flush nor the end of a round is to be waited for any more
        now = self._dispatch_when == "immediate" or (self._dispatch_when == "after_update" and after)
        if self.in_flight and not now:
            return
        while self.free_slots:
            client = self.schedule.next()
            if client is None:
                return
            if self.availability.has_left(client, self.counters.iteration, self.counters.virtual_time):
                continue  # leaves for good: not idle any more
            self.free_slots -= 1
            work = self._new_work(client)
            duration, arrives = self.availability.outcome(work, self.delay.duration(work))
            work.lost = not arrives
            if self.clock == "ticks":
                duration = max(1, math.floor(duration))
            work.due = self.counters.virtual_time + duration
            heapq.heappush(self._due, (work.due, work.sequence))
            self.in_flight[work.sequence] = work
            self._dispatch(work)

    def _dispatch(self, work: Work) -> None:
        if not work.lost:
            self.executor.dispatch(work, self.model_d)
        for observer in self.observers:
            observer.dispatched(work, self.model_d)

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        """Plain containers; the rule's and the executor's states are theirs to save."""
        return {
            "counters": asdict(self.counters),
            "in_flight": [asdict(work) for work in self.in_flight.values()],
            "due": list(self._due),
            "dispatches": self.dispatches,
            "free_slots": self.free_slots,
            "count_n": list(self._count_n),
            "started": self._started,
            "moved_in_tick": self._moved_in_tick,
            "unmoved": self._unmoved,
            "at_once": self._at_once,
            "schedule": self.schedule.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        for name, value in state["counters"].items():
            setattr(self.counters, name, value)
        self.in_flight = {work["sequence"]: Work(**work) for work in state["in_flight"]}
        self._due = [(time, sequence) for time, sequence in state["due"]]
        self.dispatches, self.free_slots = state["dispatches"], state["free_slots"]
        self._count_n = list(state["count_n"])
        self._started, self._unmoved = state["started"], state["unmoved"]
        self._at_once = state.get("at_once", 0)
        self._moved_in_tick = state.get("moved_in_tick", False)  # older checkpoints do not say
        self.schedule.load_state_dict(state["schedule"])
