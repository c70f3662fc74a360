"""One pool: its limit, its leases, its room, and the rules between them.

    submit:   go at once when the class rule allows, the back ends ask for no less (core/limit/
              ceiling.py) and nobody of its class waits; else refuse
              what would not be served in time; else wait
    a slot comes free, the limit rises, a timer fires:   dispatch whoever the class rule names,
              at most a batch at once

Invariants: seats in use = the sum over leases; nothing is dispatched while N ≥ L + R; every
submitted request is admitted, shed, cancelled or waiting, and each at most once.
Owner: `Admission`; one writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from policy_server.core.events import (
    Admitted,
    Cancelled,
    Event,
    Lapsed,
    LeaseEnded,
    LimitChanged,
    Prolonged,
    Shed,
    Waiting,
)
from policy_server.core.feedback import Feedback
from policy_server.core.leases import SWEEP_S, Lease, LeaseTable
from policy_server.core.limit.base import Limit
from policy_server.core.outcome import LeaseEnd, ShedReason
from policy_server.core.pacing import ReleasePacer
from policy_server.core.params import LimitParams, PoolParams
from policy_server.core.refusals import Refusals
from policy_server.core.request import JOBS, PRIORITIES, Kind, Request
from policy_server.core.room.door import Door
from policy_server.core.room.lines import Lines
from policy_server.core.room.prediction import Predictor
from policy_server.core.samples import Completion, LoadReport, how_it_ended
from policy_server.core.sampling import Rng
from policy_server.core.usable import Usable
from policy_server.core.weights import Weights

EXPIRED_PER_SWEEP = 256
TURNED_AWAY_PER_SWEEP = 64
NEVER = float("inf")


class Pool:
    """The state machine of one pool. Every method returns what happened, in order."""

    def __init__(self, params: PoolParams, limit: Limit, rng: Rng) -> None:
        self.params = params
        self.feedback = Feedback(params, limit)
        self.usable = Usable(params, limit.current)
        self.leases = LeaseTable()
        self.lines = Lines(params, self.leases, self.usable)
        self.room, self.jobs = self.lines.room, self.lines.jobs
        self.predictor = Predictor([params.classes[p].share for p in PRIORITIES])
        self.door = Door(params, self.room, self.predictor, self.usable.ramp)
        self.refusals = Refusals(params, self.door, rng)
        self.draining = False
        self._pacer = ReleasePacer()
        self._rng = rng
        self.weights = Weights()
        self._sweep_at = 0.0  # long ago
        self._paced = False
        self._rationed_until: float | None = None

    def reconfigure(self, params: PoolParams, make: Callable[[LimitParams], Limit]) -> None:
        """New bounds, budgets and shares from now on; what was learned stays."""
        self.feedback.reconfigure(params, make)
        self.params = params
        self.lines.reconfigure(params)
        self.usable.reconfigure(params)
        self.predictor.reconfigure([params.classes[p].share for p in PRIORITIES])
        self.door.reconfigure(params)
        self.refusals.reconfigure(params)

    # -- arrivals -----------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> list[Event]:
        """Decide on a new, a returning or a re-sent request."""
        if self.feedback.open(now):
            self._sweep_at = now + SWEEP_S
        lease = self.leases.by_uid.get(request.uid)
        if lease is not None:
            return [self._repeat(lease, now)]
        self.lines.note_contact(request.node, now)
        if request.uid in self.lines:
            return self._sent_again(request.uid, now)
        limit = self.limit_now(now)
        request = self.weights.weigh(request, limit)
        self._accrue(limit, now)
        if request.kind is Kind.JOB:
            return self._submit_job(request, limit, now)
        return self._submit(request, limit, now)

    def _submit(self, request: Request, limit: float, now: float) -> list[Event]:
        request, returned = self.room.claim(request)
        request = self.usable.ramp.patient(request)
        if self.draining:
            return [self._shed(request, ShedReason.DRAINING, now, None, returned)]
        asked_for = request if returned else self.refusals.retries.look(request, now)
        # A retry that nobody asked for counts as new, and as the last of all.
        request = asked_for or replace(request, returning=False, invited=False, seniority_s=0.0)
        at_once = self.lines.may_go_at_once(request, limit, now)
        if not at_once and asked_for is None:
            return [self.refusals.over_budget(request, limit, now)]
        if not returned:
            self._note_arrival(request, now)
        if at_once:
            return [self._grant(request, now, queued=returned)]
        events = self._wait(request, now, returned)
        if request.uid not in self.room or self.lines.limit_binds(limit):
            self.feedback.note_waiting()
        return events

    def _sent_again(self, uid: str, now: float) -> list[Event]:
        """Its newer stream takes over the place; the driver knows both. Or it is back after a
        restart, and perhaps a slot was kept for it."""
        if not self.room.places.back(uid, now):
            return []
        ticket = self.room.ticket(uid)
        assert ticket is not None
        if self.draining:
            self.room.leave(uid)
            return [self._shed(ticket.request, ShedReason.DRAINING, now, None, True)]
        events = self.pump(now)
        if uid not in self.room:
            return events
        predicted = self.door.class_wait_s(ticket.request.priority, self.limit_now(now), now)
        return [Waiting(ticket.request, predicted), *events]

    def _note_arrival(self, request: Request, now: float) -> None:
        self.lines.rule.note_arrival(request.priority, now)
        self.predictor.note_arrival(request.priority, now)
        if request.invited:
            self.refusals.bookings.note_return()

    def _submit_job(self, request: Request, limit: float, now: float) -> list[Event]:
        """A job goes when the rule allows, else it waits, however long: its client does not."""
        request = self.usable.ramp.patient(request)
        if self.lines.may_go_at_once(request, limit, now):
            return [self._grant(request, now, queued=False)]
        self.feedback.note_waiting()
        self.jobs.push(request)
        self._rationed_until = self.lines.rationed_until(now)
        return [Waiting(request, None)]

    def _repeat(self, lease: Lease, now: float) -> Event:
        """Envoy sent an admitted request again because the answer was lost: the same answer."""
        self.leases.touch(lease.request.uid, now)
        return Admitted(lease.request, lease.wait_s, lease.wait_s > 0.0, lease.observed, True)

    @property
    def empty(self) -> bool:
        """Whether nobody holds a lease or a place."""
        parts = (self.leases, self.room, self.room.places, self.jobs)
        return not any(len(part) for part in parts)

    @property
    def limit(self) -> Limit:
        """The algorithm and what it has learned."""
        return self.feedback.limit

    def limit_now(self, now: float) -> float:
        """The effective limit: what was learned, less while replicas are new or ask for less."""
        return self.usable.of(self.limit.current, now)

    def _accrue(self, limit: float, now: float) -> None:
        """Credit the waiting for the time since the last look."""
        self.predictor.cap_per_s = self.usable.ceiling.rps(now)
        drain = self.predictor.drain
        drain.waiting(self.room.anyone and len(self.room) > 0, now)
        self.lines.accrue(limit, drain.mean_service_s, now)

    def _wait(self, request: Request, now: float, returned: bool) -> list[Event]:
        predicted, refused = self.door.look(request, self.limit_now(now), now)
        if refused is not None and not returned:
            return [self._shed(request, refused, now, predicted)]
        events: list[Event] = []
        victims = [] if self.room.fits(request) else self.room.victims_for(request)
        if victims is None:
            return [self._shed(request, ShedReason.ROOM_FULL, now, predicted, returned)]
        for victim in [*victims, *(self.room.own_victims(request, victims) or [])]:
            self.room.leave(victim.request.uid)
            events.append(self._shed(victim.request, ShedReason.DISPLACED, now, None, True))
        self.room.enter(request, predicted)
        self._rationed_until = self.lines.rationed_until(now)
        events.append(Waiting(request, predicted))
        return events

    def predicted_waits(self, now: float) -> list[float | None]:
        """Ŵ behind all of a class, seconds; 0 when nobody waits there and one would go at once."""
        limit, waits = self.limit_now(now), list[float | None]()
        for p in PRIORITIES:
            one = Request("", self.params.name, p, now, now)
            goes = not self.room.waits(p) and self.lines.may_go_at_once(one, limit, now)
            waits.append(0.0 if goes else self.door.class_wait_s(p, limit, now))
        return waits

    # -- endings ------------------------------------------------------------------------------

    def _shed(
        self,
        request: Request,
        reason: ShedReason,
        now: float,
        predicted: float | None = None,
        evicted: bool = False,
    ) -> Shed:
        limit = self.limit_now(now)
        return self.refusals.shed(request, reason, limit, now, (predicted, evicted))

    def _grant(
        self, request: Request, now: float, queued: bool, predicted: float | None = None
    ) -> Admitted:
        leases = self.leases
        if not leases.by_uid:
            self.predictor.drain.busy(now)
        if request.invited:
            self.refusals.bookings.note_kept(request.priority, True, request.tenant)
        live, observed = leases.streamed, len(leases.observed)
        observe = request.observable and self.feedback.sampler.flip(
            request.streamed, live, observed, self._rng
        )
        wait = max(0.0, now - request.arrived) if queued else 0.0
        weight = (live + 1) / (observed + 1) if request.streamed else 1.0
        lease = Lease(request, now, observe, weight, now, wait)
        self.lines.note_dispatch(request)
        self.lines.charge(request, self.weights.charge(lease), now)
        leases.grant(lease)
        self.usable.ceiling.take(now)
        self.feedback.granted(lease, leases.seats)
        return Admitted(request, wait, queued, observe, predicted_wait_s=predicted)

    def knows(self, uid: str) -> bool:
        """Whether `uid` waits here or holds a lease."""
        return uid in self.leases.by_uid or uid in self.lines

    def cancel(self, uid: str, now: float) -> list[Event]:
        """The client of a waiting request left, or a waiting job is withdrawn."""
        here = uid in self.lines and not self.room.places.awaited(uid)
        request = self.lines.leave(uid) or self.room.places.claim(uid)
        if request is None:
            return []
        gone = Cancelled(request, max(0.0, now - request.arrived)) if here else Lapsed(request)
        return [gone, *self.pump(now)]

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """The end of an answer, or of a request that never reached the engine."""
        how = how_it_ended(completion)
        ended = self._end_lease(uid, how, completion, now)
        if ended is None:
            return self.cancel(uid, now)
        return [ended, *self.pump(now)]

    def _end_lease(
        self, uid: str, how: LeaseEnd, completion: Completion, now: float
    ) -> LeaseEnded | None:
        lease = self.leases.end(uid)
        if lease is None:
            return None
        self.lines.rule.note_freed(lease.request.seats)
        if not self.leases.by_uid:
            self.predictor.drain.idle()
        off = self.weights.settle(lease, how, completion, now)
        self.lines.correct(lease.request, off, now)
        held = now - lease.granted
        self.feedback.ended(lease, how, completion, now)
        if how is LeaseEnd.UPSTREAM_ERROR:
            mean_s = self.predictor.drain.mean_service_s
            self.usable.slew.failed(lease.request.seats, held, mean_s, now)
        if how is LeaseEnd.COMPLETED and lease.request.kind is Kind.HELD:
            self.refusals.retries.served(lease.request.tenant)
        if how in (LeaseEnd.COMPLETED, LeaseEnd.CLIENT_CANCELLED):
            self.predictor.drain.completed(held, now)
        ttft = None if lease.first_token is None else lease.first_token - lease.granted
        return LeaseEnded(lease.request, how, held, ttft, lease.tpot_s if lease.tokens else None)

    # -- dispatch and time ----------------------------------------------------------------------

    def pump(self, now: float) -> list[Event]:
        """Dispatch whoever may go now, at most a batch."""
        events: list[Event] = []
        self._paced = False
        self.room.pass_by(now)
        limit = self.limit_now(now)
        self._accrue(limit, now)
        if not self.lines.anyone:
            self._rationed_until = None
            return events
        while (choice := self.lines.choose(limit, now)) is not None:
            request = self.lines.head(choice, limit)
            if self.room.places.awaited(request.uid):
                break  # its slot is kept
            if not self.usable.ceiling.allows(self.leases.seats, request.seats, now):
                break
            if not self._pacer.take(now):
                self._paced = True
                break
            predicted = self.room.predicted_wait_s(request.uid)
            self.lines.leave(request.uid)
            if request.deadline <= now and choice != JOBS:
                events.append(self._shed(request, ShedReason.DEADLINE, now, None, True))
            else:
                events.append(self._grant(request, now, queued=True, predicted=predicted))
        if self.lines.limit_binds(limit):
            self.feedback.note_waiting()
        self._rationed_until = self.lines.rationed_until(now)
        return events

    def handle_timer(self, now: float) -> list[Event]:
        """Do all that is due: deadlines, silent leases, the window, the next batch."""
        events: list[Event] = [Lapsed(request) for request in self.room.places.lapsed(now)]
        events += self._expire(now)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            events += self._turn_away(now)
            for uid in self.leases.silent(now, EXPIRED_PER_SWEEP):
                ended = self._end_lease(uid, LeaseEnd.EXPIRED, Completion(0), now)
                if ended is not None:
                    events.append(ended)
        closes_at = self.feedback.due_at()
        if closes_at is not None and now >= closes_at:
            events.append(self._close_window(now))
        return events + self.pump(now)

    def _expire(self, now: float) -> list[Event]:
        events: list[Event] = []
        while (ticket := self.room.expired(now)) is not None:
            request = ticket.request
            awaited = self.room.places.awaited(request.uid)
            if not awaited and not self._pacer.take(now):
                break
            if (patient := self.lines.prolong(request, now)) is not None:
                events.append(Prolonged(patient))
                continue
            self.room.leave(request.uid)
            why = ShedReason.NO_BACKEND if self.usable.ramp.closed else ShedReason.DEADLINE
            events.append(Lapsed(request) if awaited else self._shed(request, why, now, None, True))
        return events

    def _turn_away(self, now: float) -> list[Event]:
        """Tell those who wait in vain, long before their deadline tells them."""
        events: list[Event] = []
        for _ in range(TURNED_AWAY_PER_SWEEP):
            request = self.door.hopeless(self.limit_now(now), now)
            if request is None or not self._pacer.take(now):
                break
            self.room.leave(request.uid)
            events.append(self._shed(request, ShedReason.PREDICTED_WAIT, now, None, True))
        return events

    def next_timer(self) -> float | None:
        """When `handle_timer` should be called next; None when nothing is under way."""
        due = self.feedback.due_at()
        soonest = NEVER if due is None else due
        if self.leases.by_uid and self._sweep_at < soonest:
            soonest = self._sweep_at
        places = self.room.places
        if places.awaiting or places.passed:
            soonest = min(soonest, places.due_at())
        if not self.lines.anyone:
            return soonest if soonest < NEVER else None
        resumes_at = self._pacer.resumes_at()
        deadline = self.room.earliest_deadline() if self.room.held else None
        if deadline is not None:
            soonest = min(soonest, max(deadline, resumes_at))
        if self._paced:
            soonest = min(soonest, resumes_at)
        if self._rationed_until is not None:
            soonest = min(soonest, self._rationed_until)
        return soonest if soonest < NEVER else None

    def _close_window(self, now: float) -> LimitChanged:
        return self._moved(self.feedback.close(self.leases.seats, self.leases.observed, now))

    def _moved(self, moved: LimitChanged) -> LimitChanged:
        if moved.change.limit < moved.previous:
            self.lines.rule.note_cut(self.leases.seats)
        return moved

    # -- signals ------------------------------------------------------------------------------

    def load_report(self, source: str, report: LoadReport, now: float) -> None:
        """An engine says how it is, and what it asks for."""
        self.usable.ceiling.obey(source, report, now - report.age_s)
        self.feedback.load_report(source, report, now)

    def backends(self, ready: int | None, now: float) -> list[Event]:
        """So many back ends are ready (None = nobody knows); the limit follows."""
        moved = self.feedback.rescale(self.usable.tell(ready, now))
        return [self._moved(moved), *self.pump(now)] if moved is not None else self.pump(now)
