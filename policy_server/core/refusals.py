"""What whoever is refused is told: the reason, when to come back, whether that would help.

Puts together the forecast (room/door.py), the bookings (retry_after.py) and the budget of retries
(retry_budget.py). Owner: the pool.
"""

from __future__ import annotations

from policy_server.core.events import Shed
from policy_server.core.outcome import ShedReason
from policy_server.core.params import PoolParams
from policy_server.core.request import Request
from policy_server.core.retry_after import Bookings
from policy_server.core.retry_budget import RetryBudget
from policy_server.core.room.door import Door
from policy_server.core.sampling import Rng


class Refusals:
    """The refusals of one pool."""

    def __init__(self, params: PoolParams, door: Door, rng: Rng) -> None:
        self.bookings = Bookings(params.retry_after, rng)
        self.retries = RetryBudget()
        self._door = door

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
            predicted = self._door.class_wait_s(request.priority, limit, now)
        wait = max(0.0, now - request.arrived)
        if request.or_job and reason is not ShedReason.DRAINING:  # no refusal: it waits elsewhere
            return Shed(request, reason, 0.0, wait, evicted)
        if request.returning:
            self.bookings.note_kept(request.priority, False)
        rate = self._door.class_rate(request.priority, limit, now)
        promise = self.bookings.book(request.priority, predicted, rate, now)
        retry, capped = promise.should_retry, promise.capped
        if retry:
            self.retries.invite(request.tenant, now + promise.seconds, now)
        return Shed(request, reason, promise.seconds, wait, evicted, retry, capped, predicted)

    def over_budget(self, request: Request, limit: float, now: float) -> Shed:
        """No booking: a storm must not push the promises made to others into the future."""
        predicted = self._door.class_wait_s(request.priority, limit, now)
        seconds = self.bookings.quote(request.priority, predicted, now)
        reason = ShedReason.RETRY_BUDGET
        return Shed(request, reason, seconds, 0.0, False, False, False, predicted)
