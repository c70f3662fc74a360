"""The lines of a pool: a class's held requests each, and the jobs; whose head may go now.

Puts together who waits (`room`, `jobs`), what is in use (the leases), what may be (`usable`), the
rule between the lines (`classes`) and what a class keeps free for its calm tenants (`calm`).
Owner: the pool.
"""

from __future__ import annotations

from policy_server.core.leases import LeaseTable
from policy_server.core.limit.vegas import reserve_of
from policy_server.core.params import PoolParams
from policy_server.core.request import JOBS, LINES, Priority, Request
from policy_server.core.room.calm import CalmReserve
from policy_server.core.room.classes import ONE_SEAT, ClassRule, Heads
from policy_server.core.room.jobs import JobLines
from policy_server.core.room.room import Room
from policy_server.core.seats import fitted
from policy_server.core.usable import Usable


class Lines:
    """Who is next. `jobs_held`: the jobs stay where they are; `held`: everybody does."""

    def __init__(self, params: PoolParams, leases: LeaseTable, usable: Usable) -> None:
        self.room = Room(params.room)
        self.jobs = JobLines(params.room.tenant_weights)
        self.rule = ClassRule(params.classes, params.jobs_share)
        self.jobs_held = self.held = False
        self._tickets, self._job_requests = self.room.tickets, self.jobs.requests
        self._calm = CalmReserve()
        self._leases = leases
        self._usable = usable

    def reconfigure(self, params: PoolParams) -> None:
        """New bounds, weights and shares."""
        self.room.reconfigure(params.room)
        self.jobs.reconfigure(params.room.tenant_weights)
        self.rule.reconfigure(params.classes, params.jobs_share)

    def __contains__(self, uid: str) -> bool:
        return uid in self._tickets or uid in self._job_requests

    def restore_job(self, job: Request) -> None:
        """A job that waited before a restart; a `pump` lets the first ones go."""
        if job.uid not in self.jobs:
            self.jobs.push(job)

    def note_contact(self, node: str, now: float) -> None:
        """A request came. After a restart: its Envoy is back, and sends again what it holds."""
        self._leases.note_contact(node, now)
        places = self.room.places
        if places.awaiting or places.passed:
            places.note_contact(now)
            self.room.pass_by(now)

    @property
    def anyone(self) -> bool:
        """Whether anybody stands in any line, whoever may go."""
        return bool(self._tickets or self._job_requests)

    def waiting(self) -> list[int]:
        """Lines with someone who may go, most important first; none while no back end is ready."""
        if not (self._tickets or self._job_requests) or self._usable.ramp.closed or self.held:
            return []
        waiting: list[int] = [*self.room.waiting()]
        if len(self.jobs) and not self.jobs_held:
            waiting.append(JOBS)
        return waiting

    def head(self, line: int, limit: float) -> Request:
        """The next of a line, as it may weigh now; IndexError when nobody waits there."""
        head = self.jobs.head() if line == JOBS else self.room.head(Priority(line)).request
        return fitted(head, limit)

    def leave(self, uid: str) -> Request | None:
        """Whoever waits under this uid gives the place up; None when nobody does."""
        return self.room.leave(uid) or self.jobs.withdraw(uid)

    def charge(self, request: Request, tokens: float, now: float) -> None:
        """Charge its tenant what it will probably cost, tokens."""
        line = self.jobs if request.line == JOBS else self.room
        line.charge(request, tokens, now)

    def correct(self, request: Request, tokens: float, now: float) -> None:
        """So many tokens more (or less than 0) than it was charged for."""
        if tokens:
            line = self.jobs if request.line == JOBS else self.room
            line.correct(request, tokens, now)

    def may_go_at_once(self, request: Request, limit: float, now: float) -> bool:
        """Whether a newcomer would be the next to go."""
        if self._usable.ramp.closed or self.held:
            return False
        if self.anyone:
            goes = self._leads(request) and self._is_next(request, limit, now)
        elif self.jobs_held and request.line == JOBS:
            goes = False
        else:
            goes = self._plenty(request, limit, now) or self._is_next(request, limit, now)
        return goes and self._usable.ceiling.allows(self._leases.seats, request.seats, now)

    def _plenty(self, request: Request, limit: float, now: float) -> bool:
        """Whether it stays below every bound of the class rule; so for most of those who come."""
        free = limit - self._usable.slew.cooling(now)
        return self._leases.seats + request.seats <= free - reserve_of(free)

    def _is_next(self, request: Request, limit: float, now: float) -> bool:
        """Whether the class rule chooses a newcomer who leads its line."""
        line, waiting = request.line, self.waiting()
        if waiting:
            heads, contenders = self._heads(limit, request), sorted({*waiting, line})
        else:
            need = [*ONE_SEAT]
            need[line] = request.seats
            heads, contenders = Heads(need), [line]
        return self._choose(contenders, limit, now, heads) == line

    def _leads(self, request: Request) -> bool:
        if request.line == JOBS:
            return not len(self.jobs) and not self.jobs_held
        return self.room.leads(request)

    def choose(self, limit: float, now: float) -> int | None:
        """The line whose next request may go now."""
        waiting = self.waiting()
        return self._choose(waiting, limit, now, self._heads(limit)) if waiting else None

    def _choose(self, lines: list[int], limit: float, now: float, heads: Heads) -> int | None:
        free = limit - self._usable.slew.cooling(now)
        return self.rule.choose(lines, self._seats(), free, now, heads) if free > 0.0 else None

    def limit_binds(self, limit: float) -> bool:
        """Whether the limit holds someone back, and not only what is kept for calm tenants."""
        waiting = self.waiting()
        if not waiting or self._leases.seats + 1.0 > limit - reserve_of(limit):
            return bool(waiting)
        held_back = self._heads(limit).held_back
        return any(not held_back[line] for line in waiting)

    def note_dispatch(self, request: Request) -> None:
        """This request goes now; it is out of line and not charged yet."""
        if self._tickets and request.line != JOBS and self.room.waits(request.priority):
            self._calm.note_dispatch(request.line, self.room.calm(request))

    def prolong(self, request: Request, now: float) -> Request | None:
        """Someone whose time is over waits on, because no back end is ready: with the new time;
        None when it has to go."""
        patient = self._usable.ramp.patient(request)
        if patient.deadline <= now:
            return None
        self.room.prolong(patient)
        return patient

    def rationed_until(self, now: float) -> float | None:
        """When a rate that was asked for, a rise or a ramp may let someone go who waits now."""
        return self._usable.next_step(now) if self.waiting() else None

    def accrue(self, limit: float, service_s: float | None, now: float) -> None:
        """Credit those who wait for the time since the last look."""
        waiting = self.waiting()
        if waiting:
            self.rule.accrue(waiting, self._seats(), limit, service_s, now)
        else:
            self.rule.rest(service_s, now)

    def _heads(self, limit: float, newcomer: Request | None = None) -> Heads:
        """The next of each line; the newcomer is that of its own."""
        need, held_back, calm = [*ONE_SEAT], [0] * LINES, [False] * LINES
        heads = [self.head(line, limit) for line in self.waiting()]
        if newcomer is not None:
            heads.append(newcomer)
        for request in heads:
            line = request.line
            need[line], kept = request.seats, self._kept_free(line, limit)
            if kept:
                calm[line] = self.room.calm(request)
                held_back[line] = 0 if calm[line] else kept
        return Heads(need, held_back, calm)

    def _kept_free(self, line: int, limit: float) -> int:
        if line == JOBS:
            return 0
        return self._calm.seats(line, self.room.used_elsewhere(Priority(line)), limit)

    def _seats(self) -> list[int]:
        """Seats in use by each line."""
        return self._leases.seats_by_line()
