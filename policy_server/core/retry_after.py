"""Retry-After as a booking: each shed request gets its own future slot of the drain.

    b      += P(return), and falls by μ_c a second: slots that are booked, up to the cap, by fair
              turns of the tenants (booked.py)
    due    = max(Ŵ + b / μ_c, min(a, 5·Ŵ)),  a = for how long the tenant has been refused
    RA     = clamp(due·(1 + U(0, .25)), min, max)    without a pause;  μ_c ≥ .2/s

so that the shed come back spread out at the rate at which they can be served, instead of all at
once, and after those who wait now. The jitter is ours because SDKs add none; past 60 s some ignore
the header. P(return) is the measured share of shed requests that came back.

Slots and not moments are booked, so that the bookings move up at once when the drain speeds up;
with moments the room stood empty after a burst. The whole Ŵ_c, though the room would take one
sooner (Ŵ_c − φ·D_c): while new ones press, each place that comes free goes to them, and a client
that retries twice has used up both retries before the burst is over. Admitted of those who came
back 60 → 84 %, final refusals 11 → 1 % (scenario 29). An overload of age a lasts, for all that is
known, as long again: without a_c the shed of P1 came back after a second into a room that was
still full, and a lasting overload took 1.38 attempts per call instead of 1.27 (scenario 17).

    kept_c = EWMA(.02) of "a returning client was admitted"
    below .5, while every slot up to the cap is booked and the overload is older than the cap, a
    share 1 − 2·kept_c of the shed is told not to retry (x-should-retry: false)

Before that the longest promises have not come due, and those broken were the short ones of the
first seconds: they say nothing. New replicas may be on their way (scenario 28: all served .75 →
.95).

While promises can't be kept, retries only take the places of new requests: under a lasting
overload most clients are told the truth, and enough still try for the measure to recover.

Ŵ, b and a are those of the tenant that asks; kept is measured for the strangers apart. With those
of the class one flood, or strangers with false retry counts, moved what everybody was told.

Owner: the pool; pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.core.booked import Booked
from policy_server.core.params import RetryAfterParams
from policy_server.core.request import PRIORITIES, Priority
from policy_server.core.room.overload import Overloads
from policy_server.core.sampling import Rng

JITTER = 0.25
MIN_RATE_PER_S = 0.2
MAX_AGE_WAITS = 5.0
UNKNOWN_RATE_PER_S = 1.0  # a pool that has not completed anything yet
FIRST_RETURN_SHARE = 0.8  # before any was seen; SDKs retry twice by default
MIN_RETURN_SHARE = 0.1
RETURN_MEMORY = 200.0  # shed requests
KEPT_WEIGHT = 0.02
KEPT_ENOUGH = 0.5
MAX_REFUSED_SHARE = 0.95  # some always try, or nothing would tell that things are better


@dataclass(frozen=True, slots=True)
class Promise:
    """When to come back, seconds from now; `capped` when the true answer was later than that.

    `should_retry` False: coming back would not help.
    """

    seconds: float
    capped: bool
    should_retry: bool = True


class Bookings:
    """One ticking drain per class. `tenant` "" = a stranger."""

    def __init__(self, params: RetryAfterParams, rng: Rng) -> None:
        self._p = params
        self._rng = rng
        self._booked = [Booked() for _ in PRIORITIES]  # as of `_at`
        self._at = [0.0] * len(PRIORITIES)
        self._rate = [UNKNOWN_RATE_PER_S] * len(PRIORITIES)
        self._kept = [[1.0] * len(PRIORITIES) for _ in (False, True)]  # strangers, tenants
        self._overload = [Overloads() for _ in PRIORITIES]
        self._shed = RETURN_MEMORY * 0.1
        self._returned = FIRST_RETURN_SHARE * self._shed

    def reconfigure(self, params: RetryAfterParams) -> None:
        """New bounds."""
        self._p = params

    def note_return(self) -> None:
        """A client that says it retries came back; it can't be more than were shed."""
        self._returned = min(self._returned + 1.0, self._shed)

    def note_kept(self, priority: Priority, kept: bool, tenant: str = "") -> None:
        """A client of this class that came back as told was admitted, or shed again."""
        of_all = self._kept[bool(tenant)]
        of_all[priority] += KEPT_WEIGHT * (float(kept) - of_all[priority])

    def kept(self, priority: Priority, tenant: str = "") -> float:
        """Share of the promises that were kept lately, 0..1."""
        return self._kept[bool(tenant)][priority]

    def return_share(self) -> float:
        """P(return), 0.1..1."""
        return min(1.0, max(MIN_RETURN_SHARE, self._returned / self._shed))

    def book(
        self,
        priority: Priority,
        predicted_s: float | None,
        rate_per_s: float | None,
        now: float,
        tenant: str = "",
    ) -> Promise:
        """The next free slot for a request of this class that is shed now."""
        self._note_shed()
        self._overload[priority].note(tenant, now)
        predicted = predicted_s or 0.0
        rate = UNKNOWN_RATE_PER_S if rate_per_s is None else rate_per_s
        rate = max(rate, MIN_RATE_PER_S)
        self._rate[priority] = rate
        taken, share = self._taken(priority, tenant, now), self.return_share()
        room = max(0.0, self._p.max_s - predicted) * rate  # up to the cap
        if room > taken:
            self._booked[priority].add(tenant, min(share, room - taken))
        due = predicted + (taken + share) / rate
        due = max(due, self._age_s(priority, tenant, predicted, now))
        capped = due > self._p.max_s
        retry = not capped or self._should_retry(priority, tenant, now)
        return Promise(self._told(due), capped, retry)

    def quote(
        self, priority: Priority, predicted_s: float | None, now: float, tenant: str = ""
    ) -> Promise:
        """When the next slot is free, without taking it."""
        predicted = predicted_s or 0.0
        due = predicted + self._taken(priority, tenant, now) / self._rate[priority]
        due = max(due, self._age_s(priority, tenant, predicted, now))
        return Promise(self._told(due), due > self._p.max_s)

    def _taken(self, priority: Priority, tenant: str, now: float) -> float:
        """Slots that are booked before this tenant's next, at the rate of now."""
        booked = self._booked[priority]
        booked.serve(max(0.0, now - self._at[priority]) * self._rate[priority])
        self._at[priority] = now
        return booked.ahead(tenant)

    def _told(self, due_s: float) -> float:
        raw = due_s * (1.0 + JITTER * self._rng.random())
        return min(max(raw, self._p.min_s), self._p.max_s)

    def _should_retry(self, priority: Priority, tenant: str, now: float) -> bool:
        if self._overload[priority].age_s(tenant, now) <= self._p.max_s:
            return True
        share = 1.0 - self.kept(priority, tenant) / KEPT_ENOUGH
        return share <= 0.0 or self._rng.random() >= min(share, MAX_REFUSED_SHARE)

    def _age_s(self, priority: Priority, tenant: str, predicted_s: float, now: float) -> float:
        return min(self._overload[priority].age_s(tenant, now), MAX_AGE_WAITS * predicted_s)

    def _note_shed(self) -> None:
        self._shed += 1.0
        if self._shed > RETURN_MEMORY:
            self._shed *= 0.5
            self._returned *= 0.5
