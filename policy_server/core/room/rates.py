"""Rates that a forecast can stand on: what arrives, what comes free.

    arrivals   λ̂: events with a fading memory
    drain      μ̂: completions over 20 s (≥ 2 s of data), at least L / mean service; while
               somebody waits all the time every free slot is taken, and the count alone is right

Each is kept over a short and a long memory. The short one alone is noise: where hundreds press to
get in, each chance upswing of the estimate lets a few too many in, and all of them then wait too
long. So the long one counts until the short one is further off than chance explains.
"""

from __future__ import annotations

import math
from collections import deque

DRAIN_MEMORY_S = 20.0
DRAIN_MIN_S = 2.0
BUCKET_S = 0.5
ARRIVAL_MEMORY_S = 10.0
LONG_MEMORY_S = 60.0
SURPRISE = 2.5  # standard deviations that chance does not explain
SERVICE_WEIGHT = 0.05
ENOUGH = 20  # completions whose mean is better than the running one
STALLED_SERVICES = 2.0  # this many mean services without any completion is a stall


class DecayingRate:
    """Events per second with an exponential memory of `memory_s`."""

    def __init__(self, memory_s: float = ARRIVAL_MEMORY_S) -> None:
        self._memory_s = memory_s
        self._value = 0.0
        self._at: float | None = None

    def add(self, now: float, count: float = 1.0) -> None:
        """`count` events happened."""
        if now != self._at:
            self._decay(now)
        self._value += count / self._memory_s

    def at(self, now: float) -> float:
        """The rate now, per second."""
        if now != self._at:
            self._decay(now)
        return self._value

    def _decay(self, now: float) -> None:
        at = self._at
        if at is None:
            self._at = now
        elif now > at:
            self._value *= math.exp((at - now) / self._memory_s)
            self._at = now


class SteadyRate:
    """Events per second: the calm long average, unless the short one shows that it changed."""

    def __init__(self) -> None:
        self._short = DecayingRate(ARRIVAL_MEMORY_S)
        self._long = DecayingRate(LONG_MEMORY_S)

    def add(self, now: float) -> None:
        """An event happened."""
        self._short.add(now)
        self._long.add(now)

    def at(self, now: float) -> float:
        """The rate now, per second."""
        short, long = self._short.at(now), self._long.at(now)
        return steady(short, long, long / (2.0 * ARRIVAL_MEMORY_S))


def steady(short: float, long: float, variance: float) -> float:
    """`long`, unless `short` is further from it than chance explains."""
    return long if (short - long) ** 2 <= SURPRISE * SURPRISE * variance else short


class _Bucket:
    """Completions within `BUCKET_S` from `since` on."""

    __slots__ = ("count", "service_s", "since", "until")

    def __init__(self, since: float) -> None:
        self.since, self.until = since, since + BUCKET_S
        self.count, self.service_s = 0, 0.0


class _Completions:
    """Completions of the last `memory_s` seconds in half-second buckets."""

    def __init__(self, memory_s: float) -> None:
        self.memory_s = memory_s
        self.count = 0
        self.service_s = 0.0
        self._buckets: deque[_Bucket] = deque()
        self._last = _Bucket(-math.inf)

    def add(self, service_s: float, now: float) -> None:
        last = self._last
        if now >= last.until:
            last = self._last = _Bucket(math.floor(now / BUCKET_S) * BUCKET_S)
            self._buckets.append(last)
        last.count += 1
        last.service_s += service_s
        self.count += 1
        self.service_s += service_s
        if self._buckets[0].since < now - self.memory_s:
            self.forget(now)

    def forget(self, now: float) -> None:
        while self._buckets and self._buckets[0].since < now - self.memory_s:
            old = self._buckets.popleft()
            self.count -= old.count
            self.service_s -= old.service_s

    def per_s(self, span_s: float, now: float) -> float:
        self.forget(now)
        return self.count / span_s


class DrainRate:
    """μ̂: how fast slots come free."""

    def __init__(self) -> None:
        self._recent = _Completions(DRAIN_MEMORY_S)
        self._long = _Completions(LONG_MEMORY_S)
        self._since: float | None = None
        self._saturated_since: float | None = None
        self.mean_service_s: float | None = None
        self._assumed: float | None = None
        self._last = float("-inf")
        self._busy_since = float("inf")

    def assume(self, per_s: float) -> None:
        """A rate from before a restart, believed until there is data."""
        self._assumed = per_s if per_s > 0.0 else None

    def busy(self, now: float) -> None:
        """The first slot was taken: from now on silence means a stall."""
        self._busy_since = now

    def idle(self) -> None:
        """The last slot came free: silence means nothing."""
        self._busy_since = float("inf")

    def waiting(self, anyone: bool, now: float) -> None:
        """Somebody waits, so that every slot that comes free is taken; or nobody does."""
        if not anyone:
            self._saturated_since = None
        elif self._saturated_since is None:
            self._saturated_since = now

    def completed(self, service_s: float, now: float) -> None:
        """A slot came free after `service_s`."""
        if self.mean_service_s is None:
            self.mean_service_s = service_s
        else:
            self.mean_service_s += SERVICE_WEIGHT * (service_s - self.mean_service_s)
        self._last = now
        if self._since is None:
            self._since = now
        self._recent.add(service_s, now)
        self._long.add(service_s, now)

    @property
    def sure(self) -> bool:
        """Whether more than a few answers of the last minute tell of the rate, or none at all:
        then it is what was assumed."""
        return self._since is None or self._long.count >= ENOUGH

    def per_s(self, limit: float, now: float) -> float | None:
        """Completions per second; None while nothing is known."""
        if self._since is None or self.mean_service_s is None:
            return self._assumed
        span = min(DRAIN_MEMORY_S, now - self._since)
        counted = self._recent.per_s(span, now) if span >= DRAIN_MIN_S else 0.0
        silent_s = now - max(self._last, self._busy_since)
        if silent_s > STALLED_SERVICES * max(self.mean_service_s, BUCKET_S):
            return min(counted or math.inf, 1.0 / silent_s)  # nothing comes free: no floor
        since = self._saturated_since
        saturated_s = 0.0 if since is None else now - since
        if saturated_s >= DRAIN_MEMORY_S and counted:
            return self._steady(counted, saturated_s, now)
        mean = self.mean_service_s
        if self._recent.count >= ENOUGH:
            mean = self._recent.service_s / self._recent.count
        floor = limit / mean if mean > 0.0 else 0.0
        return max(counted, floor) or self._assumed

    def _steady(self, counted: float, saturated_s: float, now: float) -> float:
        """While every free slot is taken, a count is the rate, and a longer one less noisy."""
        if saturated_s < LONG_MEMORY_S:
            return counted
        long = self._long.per_s(LONG_MEMORY_S, now)
        return steady(counted, long, long / DRAIN_MEMORY_S)
