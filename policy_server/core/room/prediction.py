"""How long a newcomer would wait, and whether that is worth waiting for.

    μ̂   = completions over 20 s (≥ 2 s of data), at least L / mean service
    μ_c  = max(g_c·μ̂, μ̂ − Σ_{more important} λ̂ − Σ_{less important} min(g·μ̂, λ̂))
    Ŵ_c  = (ahead + 1) / μ_c
    refuse on arrival when Ŵ_c > φ_c · D, φ = .9, .9, .5 for P0, P1, P2

φ for P2 is half because long budgets gather long lines: at .9 a quarter of those accepted expired
in the room (algorithms.md §4). While no rate is known nothing is predicted and nothing refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from policy_server.core.request import PRIORITIES, Priority

PHI = (0.9, 0.9, 0.5)
DRAIN_MEMORY_S = 20.0
DRAIN_MIN_S = 2.0
BUCKET_S = 0.5
ARRIVAL_MEMORY_S = 10.0
SERVICE_WEIGHT = 0.05
STALLED_SERVICES = 2.0  # this many mean services without any completion is a stall
MIN_CLASS_RATE_PER_S = 1e-3  # of a class without a share that the others crowd out


class DecayingRate:
    """Events per second with an exponential memory of `memory_s`."""

    def __init__(self, memory_s: float = ARRIVAL_MEMORY_S) -> None:
        self._memory_s = memory_s
        self._value = 0.0
        self._at: float | None = None

    def add(self, now: float, count: float = 1.0) -> None:
        """`count` events happened."""
        self._decay(now)
        self._value += count / self._memory_s

    def at(self, now: float) -> float:
        """The rate now, per second."""
        self._decay(now)
        return self._value

    def _decay(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._value *= math.exp((self._at - now) / self._memory_s)
        self._at = now if self._at is None else max(self._at, now)


class DrainRate:
    """μ̂: how fast slots come free."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, int]] = deque()
        self._total = 0
        self._since: float | None = None
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

    def completed(self, service_s: float, now: float) -> None:
        """A slot came free after `service_s`."""
        if self.mean_service_s is None:
            self.mean_service_s = service_s
        else:
            self.mean_service_s += SERVICE_WEIGHT * (service_s - self.mean_service_s)
        self._last = now
        if self._since is None:
            self._since = now
        slot = math.floor(now / BUCKET_S) * BUCKET_S
        if self._buckets and self._buckets[-1][0] == slot:
            self._buckets[-1] = (slot, self._buckets[-1][1] + 1)
        else:
            self._buckets.append((slot, 1))
        self._total += 1
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] < now - DRAIN_MEMORY_S:
            self._total -= self._buckets.popleft()[1]

    def per_s(self, limit: float, now: float) -> float | None:
        """Completions per second; None while nothing is known."""
        if self._since is None or self.mean_service_s is None:
            return self._assumed
        self._forget(now)
        span = min(DRAIN_MEMORY_S, now - self._since)
        counted = self._total / span if span >= DRAIN_MIN_S else 0.0
        silent_s = now - max(self._last, self._busy_since)
        if silent_s > STALLED_SERVICES * max(self.mean_service_s, BUCKET_S):
            return min(counted or math.inf, 1.0 / silent_s)  # nothing comes free: no floor
        floor = limit / self.mean_service_s if self.mean_service_s > 0.0 else 0.0
        return max(counted, floor) or self._assumed


class Predictor:
    """Ŵ by class. Owner: the pool."""

    def __init__(self, shares: Sequence[float]) -> None:
        self.drain = DrainRate()
        self.cap_per_s = math.inf
        """More than this may not go, whatever comes free: a back end asked for it."""
        self._shares = shares
        self._arrivals = [DecayingRate() for _ in PRIORITIES]

    def reconfigure(self, shares: Sequence[float]) -> None:
        """New guaranteed shares."""
        self._shares = shares

    def note_arrival(self, priority: Priority, now: float) -> None:
        """A request of this class came."""
        self._arrivals[priority].add(now)

    def class_rate(self, priority: Priority, limit: float, now: float) -> float | None:
        """μ_c, requests per second that this class may count on."""
        total = self.drain.per_s(limit, now)
        if total is None and math.isinf(self.cap_per_s):
            return None
        total = min(self.cap_per_s, math.inf if total is None else total)
        taken = 0.0
        for other in PRIORITIES:
            arriving = self._arrivals[other].at(now)
            if other < priority:
                taken += arriving
            elif other > priority:
                taken += min(arriving, self._shares[other] * total)
        return max(self._shares[priority] * total, total - taken, MIN_CLASS_RATE_PER_S)

    def wait_s(self, priority: Priority, ahead: int, limit: float, now: float) -> float | None:
        """Ŵ_c behind `ahead` requests of the class; None while nothing is known."""
        rate = self.class_rate(priority, limit, now)
        if rate is None:
            return None
        return (ahead + 1) / rate

    def worth_waiting(self, priority: Priority, predicted_s: float | None, budget_s: float) -> bool:
        """Whether a newcomer with this budget should enter the room."""
        return predicted_s is None or predicted_s <= PHI[priority] * budget_s
