"""The door of the room: who may enter, and who has to leave early.

    enter     while Ŵ⁺ ≤ φ·D, φ = .9: who would not be served in time is told at once
    leave     in a sweep: the last of a class, when its deadline can't be met any more even if
              the class got all that comes free (Ŵ⁻ at μ̂): the engine slowed down after it came.
              That others press at the moment is no reason, a burst passes; nor is a restart
    standing  the lowest class has been refused for longer than D: newcomers get D/4 until that
              pauses (controlled delay, after CoDel). The class is served as much as before, its
              requests wait a quarter as long. A line that is never empty is no sign of it: after
              a burst it is long because those come back who were told to, and only a long line
              can take them (scenario 16)

With the wait told by its mean and φ = .9, .9, .5 for P0, P1, P2, 5 % of the accepted P1 and 20 %
of P2 expired in the room; with Ŵ⁺ below 1 %, and those refused are fewer (scenario 15).

While no back end is ready there is nothing to go by: whoever has time may wait.
Owner: the pool.
"""

from __future__ import annotations

from policy_server.core.outcome import ShedReason
from policy_server.core.params import PoolParams
from policy_server.core.ramp import Ramp
from policy_server.core.request import PRIORITIES, Priority, Request
from policy_server.core.room.overload import Overload
from policy_server.core.room.prediction import Predictor, Z, wait_s
from policy_server.core.room.room import Room

PHI = 0.9
STANDING_PART = 0.25
LOWEST = PRIORITIES[-1]
RESENT_S = 3.0  # after a restart: who held a place that was not written yet comes as a newcomer
UNSETTLED_S = 15.0  # after a restart: the limit starts at half, freed slots wait for old places


class Door:
    """Decides over one room."""

    def __init__(self, params: PoolParams, room: Room, predictor: Predictor, ramp: Ramp) -> None:
        self._params = params
        self._ramp = ramp
        self._room = room
        self._predictor = predictor
        self._settled_at = self._resent_until = float("-inf")
        self._overload = Overload()  # of the lowest class

    def reconfigure(self, params: PoolParams) -> None:
        """New budgets."""
        self._params = params

    def look(
        self, request: Request, limit: float, now: float
    ) -> tuple[float | None, ShedReason | None]:
        """Ŵ of this newcomer, and why it can't wait here (None = it may)."""
        rate = self._served_at(request.priority, limit, now)
        ahead = self._room.ahead(request, rate, now)
        refused = self._refuses(request, wait_s(ahead, rate, Z), now)
        return wait_s(ahead, rate), refused

    def _refuses(self, request: Request, latest_s: float | None, now: float) -> ShedReason | None:
        budget_s = self._budget_s(request, now)
        if self._room.own_victims(request) is None:
            return ShedReason.TENANT_LIMIT
        if self._ramp.closed:
            return ShedReason.NO_BACKEND if budget_s <= 0.0 else None
        if budget_s <= 0.0:
            return ShedReason.PREDICTED_WAIT
        if not self._params.early_drop or now < self._resent_until:
            return None
        if latest_s is None or latest_s <= PHI * budget_s:
            return None
        if request.priority is LOWEST and latest_s > PHI * self._short_s():
            self._overload.note(now)
        return ShedReason.PREDICTED_WAIT

    def _budget_s(self, request: Request, now: float) -> float:
        budget_s = request.deadline - now
        if request.priority is not LOWEST:
            return budget_s
        standing = self._overload.age_s(now) > self._params.classes[LOWEST].max_wait_s
        return min(budget_s, self._short_s()) if standing else budget_s

    def _short_s(self) -> float:
        return STANDING_PART * self._params.classes[LOWEST].max_wait_s

    def restarted(self, now: float) -> None:
        """Places were taken over a restart: how fast they drain is not known for a while."""
        self._settled_at, self._resent_until = now + UNSETTLED_S, now + RESENT_S

    def hopeless(self, limit: float, now: float) -> Request | None:
        """Someone who waits in vain, least important first: the last to come of a class."""
        if self._ramp.closed or not self._params.early_drop or now < self._settled_at:
            return None
        if not self._predictor.drain.sure:
            return None  # one slow answer is no reason to send hundreds away who may be served
        for priority in reversed(PRIORITIES):
            if self._room.waits(priority) and self._in_vain(priority, limit, now):
                return self._room.last(priority).request
        return None

    def _in_vain(self, priority: Priority, limit: float, now: float) -> bool:
        request = self._room.last(priority).request
        if self._room.places.awaited(request.uid):
            return False  # its client is not back yet
        drain = self._predictor.drain_per_s(limit, now)
        ahead = self._room.ahead(request, drain, now) - 1.0  # it stands in its own line
        soonest_s = wait_s(max(0.0, ahead), drain, -Z)
        return soonest_s is not None and soonest_s > request.deadline - now

    def class_wait_s(self, priority: Priority, limit: float, now: float) -> float | None:
        """Ŵ behind all who wait in a class; None while no rate is known.

        While no back end is ready, when the first one will probably be."""
        if self._ramp.closed:
            return self._ramp.first_in_s(self._params.classes[priority].max_wait_s, now)
        return wait_s(self._room.counts()[priority], self._served_at(priority, limit, now))

    def own_wait_s(self, request: Request, limit: float, now: float) -> float | None:
        """Ŵ of a newcomer like this one, told as `class_wait_s` is."""
        if self._ramp.closed:
            return self.class_wait_s(request.priority, limit, now)
        rate = self._served_at(request.priority, limit, now)
        return wait_s(self._room.ahead(request, rate, now), rate)

    def _served_at(self, priority: Priority, limit: float, now: float) -> float | None:
        # Nobody knows when the first back end will be there.
        return None if self._ramp.closed else self.class_rate(priority, limit, now)

    def class_rate(self, priority: Priority, limit: float, now: float) -> float | None:
        """μ_c, requests per second; None while no rate is known."""
        return self._predictor.class_rate(priority, limit, now)
