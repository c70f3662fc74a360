"""Pacing: how many waiting requests may be answered at once.

Thousands of held streams answered in one instant make Envoy trip its own flood guards and stall
the event loop, so answers to waiting requests go out in batches of at most `MAX_BATCH` every
`INTERVAL_S` (51,200 per second, far above what one process can write). Requests answered on
arrival are not paced: they are as spread out as they came.
"""

from __future__ import annotations

MAX_BATCH = 256
INTERVAL_S = 0.005


class ReleasePacer:
    """A window of `INTERVAL_S` seconds with room for `MAX_BATCH` answers."""

    def __init__(self, max_batch: int = MAX_BATCH, interval_s: float = INTERVAL_S) -> None:
        self._max_batch = max_batch
        self._interval_s = interval_s
        self._started = float("-inf")
        self._used = 0

    def take(self, now: float) -> bool:
        """Use one answer of this batch; False when it is used up."""
        if now >= self._started + self._interval_s:
            self._started, self._used = now, 0
        if self._used >= self._max_batch:
            return False
        self._used += 1
        return True

    def resumes_at(self) -> float:
        """From when `take` may succeed, monotonic seconds; -inf while the batch has room."""
        if self._used < self._max_batch:
            return float("-inf")
        return self._started + self._interval_s
