"""What whoever is refused is told: the reason, when to come back, whether that would help.

Puts together the forecast (room/door.py), the bookings (retry_after.py) and the budget of retries
(retry_budget.py).

A refusal tells of an overload, books a slot and breaks a promise only where someone with a quarter
of the class's patience would have been refused as well. Of a caller that can't wait at all, or of
a tenant at its own bound, nothing follows for others. Owner: the pool.
"""

from __future__ import annotations

from policy_server.core.events import Shed
from policy_server.core.outcome import ShedReason
from policy_server.core.params import PoolParams
from policy_server.core.request import Request
from policy_server.core.retry_after import Bookings, Promise
from policy_server.core.retry_budget import RetryBudget
from policy_server.core.room.door import PHI, STANDING_PART, Door
from policy_server.core.sampling import Rng

OWN_REASONS = frozenset({ShedReason.PREDICTED_WAIT, ShedReason.DEADLINE})
"""Those that a caller who can't wait meets on any busy day."""


class Refusals:
    """The refusals of one pool."""

    def __init__(self, params: PoolParams, door: Door, rng: Rng) -> None:
        self.bookings = Bookings(params.retry_after, rng)
        self.retries = RetryBudget()
        self._params = params
        self._door = door

    def reconfigure(self, params: PoolParams) -> None:
        """New budgets and bounds."""
        self._params = params
        self.bookings.reconfigure(params.retry_after)

    def shed(
        self,
        request: Request,
        reason: ShedReason,
        limit: float,
        now: float,
        how: tuple[float | None, bool],
    ) -> Shed:
        """Refuse a newcomer or evict one who waits. `how`: Ŵ (None = work it out), evicted."""
        predicted, evicted = how
        if predicted is None:
            predicted = self._door.own_wait_s(request, limit, now)
        wait = max(0.0, now - request.arrived)
        if request.or_job and reason is not ShedReason.DRAINING:  # no refusal: it waits elsewhere
            return Shed(request, reason, 0.0, wait, evicted)
        promise = self._promise(request, reason, predicted, limit, now)
        retry, capped = promise.should_retry, promise.capped
        if retry:
            self.retries.invite(request.tenant, now + promise.seconds, now)
        return Shed(request, reason, promise.seconds, wait, evicted, retry, capped, predicted)

    def _tells(self, request: Request, reason: ShedReason, predicted_s: float | None) -> bool:
        """Whether it was refused for more than its own haste or its tenant's own bound."""
        if reason not in OWN_REASONS:
            return reason is not ShedReason.TENANT_LIMIT
        patient_s = STANDING_PART * self._params.classes[request.priority].max_wait_s
        if predicted_s is None or request.budget_s >= patient_s:
            return True
        return predicted_s > PHI * patient_s

    def _promise(
        self,
        request: Request,
        reason: ShedReason,
        predicted_s: float | None,
        limit: float,
        now: float,
    ) -> Promise:
        priority, tenant = request.priority, request.tenant
        if not self._tells(request, reason, predicted_s):
            return self.bookings.quote(priority, predicted_s, now, tenant)
        if request.invited:
            self.bookings.note_kept(priority, False, tenant)
        rate = self._door.class_rate(priority, limit, now)
        return self.bookings.book(priority, predicted_s, rate, now, tenant)

    def over_budget(self, request: Request, limit: float, now: float) -> Shed:
        """No booking: a storm must not push the promises made to others into the future."""
        predicted = self._door.own_wait_s(request, limit, now)
        seconds = self.bookings.quote(request.priority, predicted, now, request.tenant).seconds
        reason = ShedReason.RETRY_BUDGET
        return Shed(request, reason, seconds, 0.0, False, False, False, predicted)
