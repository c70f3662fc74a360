"""How fast the limit may be used: a jump up is spread out, a slot that failed comes back slowly.

    a rise to L from what is used now:  linear within RISE_S; small ones at once
    a failed answer that held its slot for h:  the slot stays taken for min(s − h, COOL_S) more
                                               (s = mean service time)

Seventy waiting requests let go in one instant prefill one behind the other, and the next window
reads that as a queue: the limit is cut for its own jump. And an engine that refuses everything
within a millisecond frees slots as fast: without the second rule it would burn a full room in
seconds; with it failures are taken at the pace at which answers would have been served.

Owner: the pool; pure.
"""

from __future__ import annotations

from collections import deque

RISE_S = 1.0  # a window of the slow start
STEP_S = 0.05  # how often a rise is looked at while somebody waits
SMALL = 0.05  # of the limit: no jump
SMALL_SEATS = 2.0
COOL_S = 2.0  # longer than that an outage is the limit's business
UNKNOWN_SERVICE_S = 1.0


class Slew:
    """What of the limit may be used. Seats, monotonic seconds."""

    def __init__(self, limit: float) -> None:
        self._from = self._to = limit
        self._since = float("-inf")
        self._failed: deque[tuple[float, int]] = deque()  # (until, seats), in order of `until`
        self._cooling = 0

    def begin_at(self, limit: float, now: float) -> None:
        """Use `limit` now and rise from there: after a restart nobody knows what still runs."""
        self._from, self._since = limit, now

    def usable(self, limit: float, now: float) -> float:
        """How much of `limit` may be used now, by answers and by slots that failed."""
        if limit == self._to == self._from:
            return limit
        if limit != self._to:
            self._aim(limit, now)
        return self._risen(now)

    def cooling(self, now: float) -> int:
        """Seats that are still taken by answers that failed."""
        while self._failed and self._failed[0][0] <= now:
            self._cooling -= self._failed.popleft()[1]
        return self._cooling

    def _aim(self, limit: float, now: float) -> None:
        at = self._risen(now)
        jump = limit > at + max(SMALL_SEATS, SMALL * at)
        self._from, self._to, self._since = at if jump else limit, limit, now

    def _risen(self, now: float) -> float:
        share = min(1.0, (now - self._since) / RISE_S)
        return self._from + (self._to - self._from) * share

    def failed(self, seats: int, held_s: float, service_s: float | None, now: float) -> None:
        """An answer failed after `held_s`; the mean one takes `service_s`, None = unknown."""
        rest = (UNKNOWN_SERVICE_S if service_s is None else service_s) - held_s
        if rest <= 0.0:
            return
        until = now + min(rest, COOL_S)
        if self._failed:
            until = max(until, self._failed[-1][0])
        self._failed.append((until, seats))
        self._cooling += seats

    def next_step(self, now: float) -> float | None:
        """When more may be used than now; None when nothing is held back."""
        times = [now + STEP_S] if self._from != self._to and now < self._since + RISE_S else []
        if self._failed:
            times.append(max(self._failed[0][0], now + STEP_S))
        return min(times, default=None)
