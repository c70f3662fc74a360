"""Lifetimes when the wall clock leaps.

What is kept outlives the process, so its times are the wall clock's. A clock that is set forward by
a day (or a machine that slept) must not end everything that was accepted for a day: for as long
as the lifetime lasts, a leap forward is taken off. What came before the leap lives as long as it
was promised; what came after it is older than the leap by the time its own lifetime ends.

A leap back lengthens lives, and first takes back leaps forward.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LEAP_S = 5.0  # more than a clock is ever slewed between two looks


class LifeClock:
    """Unix seconds to compare the ends of lifetimes with. Look at least every few seconds."""

    def __init__(
        self,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_clock, self._clock = wall_clock, clock
        self._seen = (wall_clock(), clock())
        self._leaps: list[tuple[float, float]] = []  # (monotonic time, seconds), oldest first

    def now(self, lifetime_s: float) -> float:
        """The time for what lives `lifetime_s` at most: leaps of that long ago are forgotten."""
        wall, at = self._wall_clock(), self._clock()
        leap = (wall - self._seen[0]) - (at - self._seen[1])
        self._seen = (wall, at)
        if leap > LEAP_S:
            self._leaps.append((at, leap))
        elif leap < -LEAP_S:
            self._take_back(-leap)
        return wall - sum(leap for since, leap in self._leaps if at - since < lifetime_s)

    def _take_back(self, seconds: float) -> None:
        while self._leaps and seconds > 0.0:
            since, leap = self._leaps.pop()
            if leap > seconds:
                self._leaps.append((since, leap - seconds))
            seconds -= leap
