"""The lines of a pool: a class's held requests each, and the jobs; whose head may go now.

Puts together who waits (`room`, `jobs`), what is in use (the leases, and slots that failed: the
slew), what a back end asks for (the ceiling), whether one is there (the ramp) and the rule between
the lines (`classes`). Owner: the pool.
"""

from __future__ import annotations

from policy_server.core.leases import LeaseTable
from policy_server.core.limit.ceiling import Ceiling
from policy_server.core.outcome import ShedReason
from policy_server.core.params import PoolParams
from policy_server.core.ramp import Ramp
from policy_server.core.request import JOBS, LINES, Priority, Request
from policy_server.core.room.classes import ONE_SEAT, ClassRule
from policy_server.core.room.jobs import JobLines
from policy_server.core.room.prediction import Predictor
from policy_server.core.room.room import Room
from policy_server.core.slew import Slew


class Lines:
    """Who is next. `jobs_held`: the jobs stay where they are."""

    def __init__(
        self, params: PoolParams, leases: LeaseTable, ceiling: Ceiling, slew: Slew, ramp: Ramp
    ) -> None:
        self.room = Room(params.room)
        self.jobs = JobLines(params.room.tenant_weights)
        self.rule = ClassRule(params.classes, params.jobs_share)
        self.jobs_held = False
        self._leases = leases
        self._ceiling = ceiling
        self._slew = slew
        self._ramp = ramp

    def reconfigure(self, params: PoolParams) -> None:
        """New bounds, weights and shares."""
        self.room.reconfigure(params.room)
        self.jobs.reconfigure(params.room.tenant_weights)
        self.rule = ClassRule(params.classes, params.jobs_share)

    def __contains__(self, uid: str) -> bool:
        return uid in self.room or uid in self.jobs

    def waiting(self) -> list[int]:
        """Lines with someone who may go, most important first; none while no back end is ready."""
        if self._ramp.closed:
            return []
        waiting: list[int] = [*self.room.waiting()]
        if len(self.jobs) and not self.jobs_held:
            waiting.append(JOBS)
        return waiting

    def head(self, line: int) -> Request:
        """The next of a line; IndexError when nobody waits there."""
        return self.jobs.head() if line == JOBS else self.room.head(Priority(line)).request

    def leave(self, uid: str) -> Request | None:
        """Whoever waits under this uid gives the place up; None when nobody does."""
        return self.room.leave(uid) or self.jobs.withdraw(uid)

    def may_go_at_once(self, line: int, seats: int, limit: float, now: float) -> bool:
        """Whether a newcomer in this line, of this weight, would be the next to go."""
        waiting = self.waiting()
        if self._ramp.closed or line in waiting or (line == JOBS and self.jobs_held):
            return False
        need = self._next_seats() if waiting else list(ONE_SEAT)
        need[line] = seats
        contenders = sorted([*waiting, line]) if waiting else [line]
        choice = self._choose(contenders, limit, now, need)
        return choice == line and self._ceiling.allows(self._leases.seats, seats, now)

    def refusal(
        self, request: Request, predicted_s: float | None, forecast: Predictor | None, now: float
    ) -> ShedReason | None:
        """Why a newcomer may not wait, None when it may; no `forecast` = nothing is refused on it.

        While no back end is ready there is nothing to go by: whoever has time may wait.
        """
        if self.room.tenant_full(request):
            return ShedReason.TENANT_LIMIT
        budget_s = request.deadline - now
        if self._ramp.closed:
            return ShedReason.NO_BACKEND if budget_s <= 0.0 else None
        if forecast is not None:
            worth = forecast.worth_waiting(request.priority, predicted_s, budget_s)
        else:
            worth = True
        return None if worth and budget_s > 0.0 else ShedReason.PREDICTED_WAIT

    def choose(self, limit: float, now: float) -> int | None:
        """The line whose next request may go now."""
        return self._choose(self.waiting(), limit, now, self._next_seats())

    def _choose(self, lines: list[int], limit: float, now: float, need: list[int]) -> int | None:
        free = limit - self._slew.cooling(now)
        return self.rule.choose(lines, self._seats(), free, now, need) if free > 0.0 else None

    def prolong(self, request: Request, now: float) -> bool:
        """Whether someone whose time is over waits on, because no back end is ready."""
        patient = self._ramp.patient(request)
        if patient.deadline <= now:
            return False
        self.room.prolong(patient)
        return True

    def rationed_until(self, now: float) -> float | None:
        """When a rate that was asked for, a rise or a ramp may let someone go who waits now."""
        steps = (self._ceiling.ready_at(now), self._slew.next_step(now), self._ramp.next_step(now))
        times = [at for at in steps if at is not None and at > now]
        return min(times) if times and self.waiting() else None

    def accrue(self, limit: float, service_s: float | None, now: float) -> None:
        """Credit those who wait for the time since the last look."""
        waiting = self.waiting()
        if waiting:
            self.rule.accrue(waiting, self._seats(), limit, service_s, now)
        else:
            self.rule.rest(service_s, now)

    def _next_seats(self) -> list[int]:
        """Seats that the next of each line needs."""
        return [*self.room.next_seats(), self.jobs.head().seats if len(self.jobs) else 1]

    def _seats(self) -> list[int]:
        """Seats in use by each line."""
        return [self._leases.seats_of(line) for line in range(LINES)]
