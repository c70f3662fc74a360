"""How long a newcomer would wait.

    μ_c  = max(g_c·μ̂, μ̂ − Σ_{more important} λ̂ − Σ_{less important} min(g·μ̂, λ̂))
    Ŵ_c  = (ahead + 1) / μ_c
    Ŵ⁺_c = (ahead + 1 + z·√ahead) / μ_c      it seldom takes longer, z = 1.9
    Ŵ⁻_c = (ahead + 1 − z·√ahead) / μ_c      it seldom takes less

The spread is that of a count: what comes free for a class, and what the more important take, come
as by chance. (σ_E·√ahead / L, the spread of the services themselves, is right only for a class
that gets all there is.) While no rate is known nothing is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from policy_server.core.request import PRIORITIES, Priority
from policy_server.core.room.rates import DrainRate, SteadyRate

Z = 1.9
MIN_CLASS_RATE_PER_S = 1e-3  # of a class without a share that the others crowd out


class Predictor:
    """Ŵ by class. Owner: the pool."""

    def __init__(self, shares: Sequence[float]) -> None:
        self.drain = DrainRate()
        self.cap_per_s = math.inf
        """More than this may not go, whatever comes free: a back end asked for it."""
        self._shares = shares
        self._arrivals = [SteadyRate() for _ in PRIORITIES]

    def reconfigure(self, shares: Sequence[float]) -> None:
        """New guaranteed shares."""
        self._shares = shares

    def note_arrival(self, priority: Priority, now: float) -> None:
        """A request of this class came."""
        self._arrivals[priority].add(now)

    def drain_per_s(self, limit: float, now: float) -> float | None:
        """μ̂, at most what a back end asked for; None while nothing is known."""
        total = self.drain.per_s(limit, now)
        if total is None and math.isinf(self.cap_per_s):
            return None
        return min(self.cap_per_s, math.inf if total is None else total)

    def class_rate(self, priority: Priority, limit: float, now: float) -> float | None:
        """μ_c, requests per second that this class may count on; None while nothing is known."""
        total = self.drain_per_s(limit, now)
        if total is None:
            return None
        taken = 0.0
        for other in PRIORITIES:
            arriving = self._arrivals[other].at(now)
            if other < priority:
                taken += arriving
            elif other > priority:
                taken += min(arriving, self._shares[other] * total)
        return max(self._shares[priority] * total, total - taken, MIN_CLASS_RATE_PER_S)


def wait_s(ahead: float, rate_per_s: float | None, z: float = 0.0) -> float | None:
    """Ŵ behind `ahead` requests at a rate, `z` standard deviations more (or less)."""
    if rate_per_s is None:
        return None
    return max(1.0, ahead + 1.0 + z * math.sqrt(ahead)) / rate_per_s
