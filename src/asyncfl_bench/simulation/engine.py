"""The event loop: a virtual clock decides which upload arrives next, and a server rule changes the model with it.

The engine depends on no model, data or algorithm. It alone counts server iterations and uploads, computes staleness,
and decides which clients are in flight. The executor computes the work; the order of arrivals does not depend on how,
where or when it does.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import cast

from ..errors import BenchError, wrong_return
from ..randomness import Streams
from ..stateful import Stateful
from ..types import ClientTable, Delivery, Footprint, Recorder, Reply, Work, Workload
from .budget import BudgetConfig, Counters
from .dispatches import Dispatches, Executor, StagedExecutor, build_message, build_upload
from .observer import Observer
from .slots import Slots
from .timeline import Timeline

TICK, ROUND = "tick", "round"  # moments of a rule's own step


class Simulation(Stateful):
    """One run: clients that compute, a virtual clock, a server rule, a budget.

    rule           server rule; its ``start`` is called here
    model_d        (d,) global model, which the rule changes in place
    upload_kind    "gradient" or "difference", the uploads of the executor
    workload       meaning of K, and K if the rule does not choose it
    footprint      of the model that is sent; a dry run computes with a smaller model. None: d parameters
    server_rate    virtual time of the server for a sample that it computes itself (ServerRule.server_samples)
    clock          "time": uploads arrive one by one. "ticks": the rule receives all uploads of a tick in order of
                   dispatch, then ``rule.tick()`` is called once, then free slots are filled
    tick_rounding  "down" or "up": rounding of durations to whole ticks, at least one
    timeline       an empty one; None: the timeline of work whose end is known at its dispatch
    """

    state_names = ("_ends_tick", "_started", "_uploads_without_change", "_uploads_at_this_time")

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
        tick_rounding: str = "down",
        footprint: Footprint | None = None,
        server_rate: float = 0.0,
        timeline: Timeline | None = None,
    ):
        self.rule, self.model_d, self.clients = rule, model_d, clients
        self.executor, self.delay, self.availability = executor, delay, availability
        self.clock, self.budget = clock, budget
        self.observers: list[Observer] = []
        self._server_rate, self._steps_on_ticks = server_rate, rule.needs.steps_on == "tick"
        self.counters = Counters()
        self._timeline = Timeline() if timeline is None else timeline
        self._ends_tick: int | None = None  # sequence number of the tick's last work whose upload arrives
        self._samples_n = [int(s) for s in clients.samples_n]
        self._started = False
        self._uploads_without_change = self._uploads_at_this_time = 0  # of the global model; lost ones included
        footprint = footprint or Footprint(model_d.numel(), model_d.numel())
        numbers = footprint.client_parameters
        self._model_bytes = numbers * model_d.element_size() * (1 + rule.needs.second_vector)
        self._upload_bytes = numbers * 8 if rule.needs.keeps == "previous" else self._model_bytes  # of doubles
        delay.start(clients, streams, footprint)
        availability.start(clients.n, streams)
        schedule.start(clients.n, concurrency, streams.schedule)
        self._slots = Slots(schedule, concurrency)
        rounding = tick_rounding if clock == "ticks" else None
        self._dispatches = Dispatches(rule, workload, self._samples_n, delay, availability, rounding)
        rule.start(model_d, clients, upload_kind)
        if isinstance(rule, Recorder):
            self.counters.uplink_bytes = rule.bytes_before

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Run until the budget is used up. Return the key of the budget that ended it, "no_clients" or "stalled"."""
        while (ended_by := self.step()) is None:
            pass
        return ended_by

    def step(self) -> str | None:
        """Process the next end of work. After the last one of this time the tick ends, and slots are filled.

        Return the reason why the run is over, or None. If the executor raises, for example because it was stopped, the
        state is as before the call and can be saved.
        """
        timeline, alone, begins = self._timeline, False, not self._started
        if begins:
            self._begin_first_round()
        elif not timeline.ending:
            alone = timeline.next_due == math.inf
            if alone and timeline.waiting:
                name, clients = type(self.rule).__name__, ", ".join(map(str, timeline.waiting))
                raise BenchError(f"{name} never replies to clients {clients}, and no other client is in flight")
            if alone and not self._rule_steps_alone():
                return "no_clients"
            if self._budget_ends_before(self.next_time):
                return "virtual_time"
            self._pop_due()
        iteration = self.counters.iteration
        if timeline.ending:
            self._finish(work := timeline.ending[0])
            if timeline.ending:
                # after its last arrival a tick is over in any case
                ended_by = None if self._is_whole(work) else self.exhausted_budget()
                if ended_by is not None:
                    timeline.put_back()
                return ended_by
        if self.clock == "ticks" and self._ends_tick is None and not begins:
            self._step_without_arrival(TICK)
        self._fill_slots()
        # with no client left to report, a rule that leaves the model alone now does so for ever
        return self.exhausted_budget() or ("no_clients" if alone and self.counters.iteration == iteration else None)

    def finish_reason(self) -> str | None:
        """Return the reason why a restored run is over; None if it resumes."""
        return None if self._timeline.ending else self.exhausted_budget()

    @property
    def in_flight(self) -> dict[int, Work]:
        """Work in flight by sequence number, in order of dispatch."""
        return self._timeline.in_flight

    @property
    def dispatches(self) -> int:
        """Number of dispatches so far; each stage of work counts."""
        return self._dispatches.made

    @property
    def next_time(self) -> float:
        """Virtual time of the next arrival or tick; infinite if there is none."""
        if self._timeline.ending or not self._started:
            return self.counters.virtual_time
        # a rule that steps at ticks needs every tick; for other rules empty ticks are skipped
        if self.clock == "ticks" and self._steps_on_ticks:
            return math.floor(self.counters.virtual_time) + 1  # a budget may have ended between two ticks
        return max(self._timeline.next_due, self.counters.virtual_time)  # the server may be busy

    def exhausted_budget(self) -> str | None:
        """Return the key of the budget that is used up, "stalled", or None. Virtual time ends before a later event."""
        many = max(10_000, 100 * self.clients.n, 100 * self.rule.needs.uploads_per_iteration(self.clients.n))
        stands_still = self.budget.only_time and self._uploads_at_this_time >= many
        # after this many uploads without a change of the model or the time the run may never end
        stalled = "stalled" if self._uploads_without_change >= many or stands_still else None
        return self.budget.used_up(self.counters) or stalled

    def _rule_steps_alone(self) -> bool:
        """Return True if the rule's steps at ticks end the run although no client is in flight."""
        bounded = self.budget.server_iterations is not None or self.budget.virtual_time is not None
        return self.clock == "ticks" and self._steps_on_ticks and bounded

    def _budget_ends_before(self, time: float) -> bool:
        """Advance virtual time to ``time``, or only to the end of its budget. Return True for the latter."""
        limit, counters = self.budget.virtual_time, self.counters
        if limit is not None and time > limit:
            counters.virtual_time = max(counters.virtual_time, float(limit))
            return True
        self._uploads_at_this_time = self._uploads_at_this_time + 1 if time == counters.virtual_time else 0
        counters.virtual_time = time
        return False

    def _pop_due(self) -> None:
        """Take the next work to end (time clock), or all work that ends by now (tick clock)."""
        self._timeline.reach(self.counters.virtual_time, whole_tick=self.clock == "ticks")
        if self.clock == "time":
            return
        # the trace shows the tick's step in the row of its last arrival
        self._ends_tick = next((work.sequence for work in reversed(self._timeline.ending) if self._arrives(work)), None)

    def _begin_first_round(self) -> None:
        """Let every client compute once at w0, in no virtual time. Counts n uploads (ACE, Algorithm 1, lines 1-6)."""
        self._started = True
        for client in range(self.clients.n if self.rule.needs.first_round else 0):
            work = self._dispatches.create_instant_work(client, self.counters)
            self._timeline.add_now(work)
            self._dispatch(work)
        if self.clock == "ticks":
            self._ends_tick = self.dispatches - 1

    def _is_whole(self, work: Work) -> bool:
        """Return True if no budget ends between this work and others of its time: in a first round or a rule's tick."""
        return self._steps_on_ticks or not work.takes_slot

    # -- the end of a piece of work --------------------------------------------------------------------------------

    def _arrives(self, work: Work) -> bool:
        return not (work.lost or self.availability.has_left(work.client, self.counters.iteration, work.start))

    def _finish(self, work: Work) -> None:
        """Process the end of the first work in ``ending``: its upload or message arrives, or it is lost."""
        delivery = self.executor.deliver(work) if self._arrives(work) else None
        if delivery is None and not work.lost:
            self.executor.discard(work)
        # nothing has changed yet: the executor may raise
        if delivery is not None and not work.is_last_stage:
            self._receive_message(work, delivery)
            return
        self._timeline.end_first()
        ends_round = self._slots.per_round and work.takes_slot and not self._timeline.busy
        if delivery is None:
            self._drop_lost_work(work)
            if ends_round:
                self._step_without_arrival(ROUND)
        else:
            ends_tick = work.sequence == self._ends_tick
            self._receive(work, delivery, (*[TICK] * ends_tick, *[ROUND] * ends_round))

    def _drop_lost_work(self, work: Work) -> None:
        """Count work whose upload never arrives, and free its slot."""
        for observer in self.observers:
            observer.discarded(work)
        self.counters.discarded += 1
        self._uploads_without_change += 1
        self._slots.note_lost_work(work)

    def _receive(self, work: Work, delivery: Delivery, ends: tuple[str, ...]) -> None:
        """Pass an upload to the rule, then let the rule take its own step at the ``ends`` of this moment."""
        counters, time = self.counters, self.counters.virtual_time
        upload = build_upload(work, delivery, self._samples_n[work.client], counters)
        changed = self._check_changed("receive", self.rule.receive(upload))
        for observer in self.observers:
            observer.received(upload, changed)
        counters.uploads += 1
        counters.uplink_bytes += self._upload_bytes
        counters.client_steps += work.local_steps
        self._uploads_without_change += 1
        if changed:
            self._count_iteration()
        self._slots.note_delivery(work, changed)
        stepped = self._let_rule_step(ends)
        for observer in self.observers:
            observer.arrived(upload, changed or stepped, time)
        if changed:
            self._notify_iteration()
        if stepped:
            self._count_iteration()
            self._notify_iteration()

    # -- the end of a stage ----------------------------------------------------------------------------------------

    def _receive_message(self, work: Work, delivery: Delivery) -> None:
        """Pass a message to the rule, and start the next stage of each client with a reply."""
        counters, time = self.counters, self.counters.virtual_time
        message = build_message(work, delivery, self._samples_n[work.client], counters)
        # may raise Stopped: the rule then gets the same message again
        stepped = self._check_changed("receive_message", self.rule.receive_message(message))
        self._timeline.end_first()
        self._timeline.waiting[work.client] = work
        counters.messages += 1
        counters.server_steps += stepped
        counters.uplink_bytes += message.bytes
        for observer in self.observers:
            observer.message_received(message, stepped, time)
        for client, reply in self.rule.replies():
            work = self._timeline.waiting.pop(client)
            counters.downlink_bytes += reply.bytes
            for observer in self.observers:
                observer.replied(client, reply, counters.virtual_time)
            self._start_next_stage(work, reply)

    def _start_next_stage(self, work: Work, reply: Reply) -> None:
        """Start the next stage of work with the server's reply."""
        work = self._dispatches.create_next_stage(work, self.counters.virtual_time)
        self._timeline.add(work)
        cast(StagedExecutor, self.executor).start_next_stage(work, reply)

    # -- server iterations -----------------------------------------------------------------------------------------

    def _step_without_arrival(self, end: str) -> None:
        """Let the rule take its step at the end of a tick or a round without an arrival."""
        if self._let_rule_step((end,)):
            self._count_iteration()
            self._notify_iteration()

    def _let_rule_step(self, ends: tuple[str, ...]) -> bool:
        """Let the rule take its step at the end of a tick, of a round, or of both. Return True if the model changed."""
        changed = False
        if TICK in ends:
            changed = self._check_changed("tick", self.rule.tick())
            for observer in self.observers:
                observer.ticked(changed)
        if ROUND in ends:
            stepped = self._check_changed("round", self.rule.round())
            for observer in self.observers:
                observer.round_ended(stepped)
            changed = changed or stepped
        return changed

    def _check_changed(self, method: str, changed: bool) -> bool:
        """Return ``changed`` and add the server's computing time. Raises BenchError unless it is True or False."""
        if changed is not True and changed is not False:
            raise wrong_return(self.rule, method, changed, "True if it changed the model, else False")
        if took := self._server_rate * self.rule.server_samples:  # until then the server uses no other upload
            self.counters.virtual_time += took
            self._uploads_at_this_time = 0
        return changed

    def _count_iteration(self) -> None:
        self.counters.iteration += 1
        self._uploads_without_change = 0
        self._slots.note_model_change()

    def _notify_iteration(self) -> None:
        """Notify observers of a server iteration, then cancel work that has become too old."""
        for observer in self.observers:
            observer.iterated(self.counters)
        if self.rule.needs.restart_at is not None:
            self._cancel(self.counters.iteration - self.rule.needs.restart_at)

    def _cancel(self, oldest: int) -> None:
        """Cancel work from model version ``oldest`` or older, except lost work, whose client is away."""
        for work in self._timeline.cancel(oldest, self._arrives):
            if work.sequence == self._ends_tick:
                self._ends_tick = None  # the tick's own step comes without an arrival
            self.executor.discard(work)
            self.counters.cancelled += 1
            self._slots.note_cancelled_work(work)
            for observer in self.observers:
                observer.cancelled(work)

    # -- dispatch --------------------------------------------------------------------------------------------------

    def _fill_slots(self) -> None:
        """Fill free slots with clients of the schedule that have not left, if it is time. Then restart the clients
        whose work was cancelled."""
        restarted = self._slots.clients_to_restart(self._has_left)
        if self._slots.should_fill(self._timeline.busy or bool(restarted)):
            while (client := self._slots.next_client(self._timeline.busy or bool(restarted))) is not None:
                if self._has_left(client):
                    self._slots.schedule.drop_client(client)
                else:
                    self._slots.free -= 1
                    self._begin(client)
        for client in restarted:
            self._begin(client)

    def _has_left(self, client: int) -> bool:
        return self.availability.has_left(client, self.counters.iteration, self.counters.virtual_time)

    def _begin(self, client: int) -> None:
        """Dispatch work that the client begins now, or after its earlier work."""
        now = self.counters.virtual_time
        free_at = max(now, self._timeline.free_at(client, now)) if self._slots.queues else now
        work = self._dispatches.create_work(client, self.counters, free_at)
        self._timeline.add(work)
        self._dispatch(work)

    def _dispatch(self, work: Work) -> None:
        own = self.rule.resumes_from(work.client)
        start_d = self.model_d if own is None else own[1]
        self.counters.downlink_bytes += self._model_bytes if own is None else 0
        if not work.lost:
            self.executor.dispatch(work, start_d)
        for observer in self.observers:
            observer.dispatched(work, start_d)

    # -- state -----------------------------------------------------------------------------------------------------

    def parts(self) -> dict[str, Stateful]:
        """Return the parts with a state; those of rule and executor are saved separately."""
        return {"timeline": self._timeline, "dispatches": self._dispatches, "slots": self._slots}

    def state_dict(self) -> dict:
        return super().state_dict() | {"counters": asdict(self.counters)}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        for name, value in state["counters"].items():
            setattr(self.counters, name, value)
