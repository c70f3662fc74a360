"""The ceiling: what the back ends ask for, above all that was learned.

A back end that knows its own trouble says so in its answers: at most so many requests at once, at
most so many per second. That is obeyed at once and let go of slowly:

    asked(t) = value                          for HOLD_S after it was last said
               value · 1.05^(t − HOLD_S)      after that; forgotten at FORGET times the value
    seats    N + s ≤ max(1, least asked(t) over the back ends)
    rate     a token bucket, filled at the least asked(t), BURST_S seconds deep, empty at first

Each back end's newest word replaces its older one, up or down; among several the least counts,
for the pool as a whole. The effective limit is min(L, asked): L goes by its own rules (an ask
looks like a lull to it), so that it is there again when the ask is over.

Invariants: one request may always be in flight (someone has to bring the next word), a rate is
never below MIN_RPS, and no state grows with time. Owner: the pool; pure.
"""

from __future__ import annotations

import math

from policy_server.core.samples import LoadReport

HOLD_S = 10.0  # an engine that still means it answers, and so says it, more often than this
RECOVERY_PER_S = 1.05  # back to 5x in half a minute
FORGET = 100.0  # 95 s after the hold; whatever was asked then binds nothing any more
BURST_S = 0.25  # short enough that a rate is one within any second
MIN_RPS = 0.1  # "0 per second" means: hardly ever
MAX_SOURCES = 64
ONE = 1.0 - 1e-9  # a token, whatever the sums of its parts round to


class Asked:
    """One quantity, asked for by some back ends."""

    def __init__(self) -> None:
        self.said: dict[str, tuple[float, float]] = {}
        """source → (value, when); empty = nothing is asked."""

    def say(self, source: str, value: float, at: float) -> None:
        """A back end asked for `value` at `at`; older than its last word = nothing."""
        last = self.said.get(source)
        if last is not None and at < last[1]:
            return
        if last is None and len(self.said) >= MAX_SOURCES:
            mildest = max(self.said, key=lambda known: self.said[known][0])
            if self.said[mildest][0] <= value:
                return
            del self.said[mildest]
        self.said[source] = (value, at)

    def at(self, now: float) -> float:
        """The least that is asked now; infinite when nothing is."""
        if not self.said:
            return math.inf
        least = math.inf
        for source, (value, when) in list(self.said.items()):
            grown = RECOVERY_PER_S ** max(0.0, min(now - when - HOLD_S, 1e3))
            if grown >= FORGET:
                del self.said[source]
            else:
                least = min(least, value * grown)
        return least


class Ceiling:
    """Both asks of one pool."""

    def __init__(self) -> None:
        self._seats = Asked()
        self._rps = Asked()
        self._tokens = 0.0
        self._filled = 0.0

    def obey(self, source: str, report: LoadReport, at: float) -> None:
        """What a report asks for, said at `at`."""
        if report.asked_seats is not None:
            self.ask_seats(source, report.asked_seats, at)
        if report.asked_rps is not None:
            self.ask_rps(source, report.asked_rps, at)

    def ask_seats(self, source: str, seats: float, at: float) -> None:
        """At most so many at once."""
        self._seats.say(source, max(seats, 1.0), at)

    def ask_rps(self, source: str, rps: float, at: float) -> None:
        """At most so many per second."""
        self._fill(at)
        self._rps.say(source, max(rps, MIN_RPS), at)

    def seats(self, now: float) -> float:
        """Requests that may be in flight; infinite when nobody asks."""
        return self._seats.at(now) if self._seats.said else math.inf

    def rps(self, now: float) -> float:
        """Requests per second that may go; infinite when nobody asks."""
        return self._rps.at(now) if self._rps.said else math.inf

    def allows(self, inflight: int, need: int, now: float) -> bool:
        """Whether a request of `need` seats may go beside `inflight` seats in use."""
        if self._seats.said and inflight and inflight + need > self._seats.at(now):
            return False
        return not self._rps.said or self._fill(now) >= ONE

    def take(self, now: float) -> None:
        """One goes."""
        if self._rps.said and math.isfinite(self._fill(now)):
            self._tokens = max(0.0, self._tokens - 1.0)

    def ready_at(self, now: float) -> float:
        """When the rate allows the next one; `now` when it does already."""
        tokens = self._fill(now)
        return now if tokens >= ONE else now + (1.0 - tokens) / self._rps.at(now)

    def _fill(self, now: float) -> float:
        """The tokens there are now; infinite while no rate is asked."""
        rate = self._rps.at(now)
        if math.isinf(rate):
            self._tokens, self._filled = 0.0, now
            return math.inf
        gained = rate * max(0.0, now - self._filled)
        self._filled = max(self._filled, now)
        self._tokens = min(self._tokens + gained, max(1.0, rate * BURST_S))
        return self._tokens
