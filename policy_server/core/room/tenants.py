"""Fair turns between the tenants of one class: virtual token counters that fade.

    dispatch     counter += (prompt + 2·expected output) / weight
    completion   counter += 2·(actual − expected output) / weight      (core/lengths.py)
    always       counter fades by e^(−t/τ), τ = 30 s
    next         whoever of the waiting tenants has the lowest counter

The counters are those of VTC (Sheng et al. 2024), charged in tokens. VTC lifts a tenant that comes
back to the lowest counter of those who wait; beside one huge backlog that is the backlog's own
counter, and a calm tenant's small burst then takes turns with it. Fading instead bounds the credit
of idling to what a tenant's share of the last half minute would have been: those below their share
go before those above it, and backlogged tenants still come out equal.

All counters fade alike, so their order never changes by itself: they are stored multiplied by
e^(t/τ), and only a charge moves one. Within a tenant the earliest deadline goes first, else the
earliest arrival.

Bounds: only tenants who wait have a line; of the others the last `REMEMBERED` counters are kept.
Owner: the class queue.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from sortedcontainers import SortedDict, SortedList

from policy_server.core.request import Request
from policy_server.core.room.ticket import Ticket

REMEMBERED = 10_000
FADE_S = 30.0
RESCALE = 30.0  # time constants after which the stored numbers are brought down again
CALM = 0.85  # of the heaviest's counter; over 30 s those who use .8 of a fair part are below it
FADED = 1e-3  # tokens: as good as none
MIN_PART = 1e-3
COST_MEMORY = 0.05
NEWEST = 1 << 62  # a sequence after all that were given

Turn = tuple[float, float, int]
"""Order within a tenant: deadline, first arrival, sequence."""


class Costs:
    """What a request of each tenant usually costs, tokens; of the REMEMBERED served last."""

    def __init__(self) -> None:
        self.mean = 0.0
        """Of all; 0 before there was any."""
        self._own: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Tenants whose cost is known."""
        return len(self._own)

    def saw(self, tenant: str, tokens: float) -> None:
        """One of this tenant's goes and will cost `tokens`."""
        own = self._own.get(tenant, tokens)
        self.mean = tokens if not self.mean else self.mean + COST_MEMORY * (tokens - self.mean)
        self._own[tenant] = own + COST_MEMORY * (tokens - own)
        self._own.move_to_end(tenant)
        if len(self._own) > REMEMBERED:
            self._own.popitem(last=False)

    def relative(self, tenant: str) -> float:
        """Of this tenant's, in requests of the mean cost; 1 while nothing is known of it."""
        own = self._own.get(tenant)
        return 1.0 if own is None or self.mean <= 0.0 else own / self.mean


class FairLines:
    """One line per tenant who waits, and whose turn it is. All operations O(log n)."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights: Mapping[str, float] = weights or {}
        self._lines: dict[str, SortedDict[Turn, Ticket]] = {}
        self._turns: SortedList[tuple[float, str]] = SortedList()
        self._counters: OrderedDict[str, float] = OrderedDict()
        self._used = 0.0  # Σ counter · weight: tokens
        self._squared = 0.0  # Σ counter² · weight
        self._waiting = 0.0  # of `_used`, what those in line used
        self.costs = Costs()
        self._epoch: float | None = None

    def __len__(self) -> int:
        """Tenants who wait."""
        return len(self._lines)

    def lines(self) -> dict[str, int]:
        """Requests in line by tenant."""
        return {tenant: len(line) for tenant, line in self._lines.items()}

    def waiting(self, tenant: str) -> int:
        """Requests of this tenant in line."""
        line = self._lines.get(tenant)
        return len(line) if line is not None else 0

    def backwards(self, tenant: str) -> Iterator[Ticket]:
        """This tenant's line from its end; nobody may leave meanwhile."""
        return reversed(self._lines[tenant].values()) if tenant in self._lines else iter(())

    def before(self, request: Request) -> int:
        """How many of its tenant's line go before a newcomer."""
        line = self._lines.get(request.tenant)
        if line is None:
            return 0
        return line.bisect_right(_turn(request, NEWEST)) if request.seniority_s else len(line)

    def push(self, ticket: Ticket) -> None:
        """Take a place in the tenant's line."""
        tenant = ticket.request.tenant
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = SortedDict()
            counter = self._counters.setdefault(tenant, 0.0)
            self._turns.add((counter, tenant))
            self._waiting += counter * self.weights.get(tenant, 1.0)
        line[_turn(ticket.request, ticket.sequence)] = ticket

    def remove(self, ticket: Ticket) -> None:
        """Give the place up; KeyError when there is none."""
        tenant = ticket.request.tenant
        line = self._lines[tenant]
        del line[_turn(ticket.request, ticket.sequence)]
        if not line:
            del self._lines[tenant]
            counter = self._counters[tenant]
            self._turns.remove((counter, tenant))
            self._waiting -= counter * self.weights.get(tenant, 1.0)
            if not self._lines:
                self._waiting = 0.0
            if not counter:
                del self._counters[tenant]  # came and left, and was charged nothing

    def head(self) -> Ticket:
        """Whose turn it is; IndexError when nobody waits."""
        return self._lines[self._turns[0][1]].peekitem(0)[1]

    def leads(self, request: Request) -> bool:
        """Whether a newcomer would be the head."""
        if not self._turns:
            return True
        counter, tenant = self._turns[0]
        if tenant == request.tenant:
            return self.before(request) == 0
        return (
            request.tenant not in self._lines and self._counters.get(request.tenant, 0.0) < counter
        )

    def calm(self, tenant: str) -> bool:
        """Whether this tenant used clearly less than the heaviest of those who wait.

        Or than those use who use the class now, by token: among tenants who come once nobody
        floods, whoever waits.
        """
        if not self._turns or self._used <= FADED:
            return True
        level = max(self._turns[-1][0], self._squared / self._used)
        return self._counters.get(tenant, 0.0) < CALM * level

    @property
    def elsewhere(self) -> float:
        """The part of what was used of late that those used who do not wait now, 0..1."""
        return max(0.0, 1.0 - self._waiting / self._used) if self._used > FADED else 0.0

    def part(self, tenant: str, per_s: float | None, now: float) -> float:
        """The part of the class's drain that a backlog of this tenant may count on, > 0..1.

        What it took of late, at least as much as whoever took the average token, at least all that
        the others leave of `per_s` dispatches per second.
        """
        scale, weight = self._scale(now), self.weights.get(tenant, 1.0)
        used, own = self._used / scale, self._counters.get(tenant, 0.0) / scale * weight
        if used <= FADED:
            return 1.0
        level = max(own, self._squared / self._used / scale * weight)
        fair = level / (used - own + level)
        whole = (per_s or 0.0) * self.costs.mean * FADE_S
        spare = (whole - (used - own)) / whole if whole > 0.0 else 0.0
        return min(1.0, max(fair, spare, MIN_PART))

    def charge(self, tenant: str, tokens: float, now: float) -> None:
        """One of this tenant's goes and will cost `tokens`."""
        self.costs.saw(tenant, tokens)
        self.correct(tenant, tokens, now)

    def correct(self, tenant: str, tokens: float, now: float) -> None:
        """Move the tenant's counter by `tokens`, which may be negative: it cost more or less."""
        weight = self.weights.get(tenant, 1.0)
        cost = tokens / weight * self._scale(now)
        counters = self._counters  # another one after a rescaling
        before = counters.get(tenant, 0.0)
        after = max(0.0, before + cost)
        self._used += (after - before) * weight
        self._squared += (after * after - before * before) * weight
        if tenant in self._lines:
            self._turns.remove((before, tenant))
            self._turns.add((after, tenant))
            self._waiting += (after - before) * weight
        counters[tenant] = after
        counters.move_to_end(tenant)
        if len(counters) > REMEMBERED:
            self._forget()

    def turn(self, tenant: str) -> tuple[float, float] | None:
        """A tenant's counter and the moment as of which it counts; None = never charged."""
        counter = self._counters.get(tenant)
        return None if counter is None or self._epoch is None else (counter, self._epoch)

    def restore(self, tenant: str, tokens: float, epoch: float) -> None:
        """Take back what `turn` gave before a restart; before anyone is in line."""
        if self._epoch is None:
            self._epoch = epoch
        value = tokens * math.exp((epoch - self._epoch) / FADE_S)
        self._count(tenant, self._counters.get(tenant, 0.0), value)
        self._counters[tenant] = value

    def _count(self, tenant: str, before: float, after: float) -> None:
        """A counter moves; keep the sums in step."""
        weight = self.weights.get(tenant, 1.0)
        self._used += (after - before) * weight
        self._squared += (after * after - before * before) * weight

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """New weights from now on; the counters stay."""
        self.weights = weights
        self._rescale(1.0)

    def _scale(self, now: float) -> float:
        """e^(t/τ) since the epoch; moves the epoch before that grows out of hand."""
        if self._epoch is None:
            self._epoch = now
        ages = max(0.0, now - self._epoch) / FADE_S
        if ages > RESCALE:
            self._rescale(math.exp(-ages))
            self._epoch = now
            return 1.0
        return math.exp(ages)

    def _rescale(self, factor: float) -> None:
        faded = ((tenant, value * factor) for tenant, value in self._counters.items())
        kept = [(t, v) for t, v in faded if v > FADED or t in self._lines]
        self._counters = OrderedDict(kept)
        self._used = self._squared = 0.0
        for tenant, value in kept:
            self._count(tenant, 0.0, value)
        self._turns = SortedList((self._counters[tenant], tenant) for tenant in self._lines)
        own = (value * self.weights.get(tenant, 1.0) for value, tenant in self._turns)
        self._waiting = math.fsum(own)

    def _forget(self) -> None:
        """Down to the bound; who waits is kept and looked at again much later."""
        while len(self._counters) > REMEMBERED + len(self._lines):
            oldest = next(iter(self._counters))
            if oldest in self._lines:
                self._counters.move_to_end(oldest)
            else:
                self._count(oldest, self._counters.pop(oldest), 0.0)


def _turn(request: Request, sequence: int) -> Turn:
    # Where strangers share a line nobody may pass by asking for a shorter wait.
    # A ticket counts as if its holder had waited here all the time: seniority, not a longer wait.
    # Nobody stands further back for the time that no back end was there, either.
    earlier_s = request.seniority_s + request.extra_s
    return (
        0.0 if request.shared else request.deadline - earlier_s,
        request.first_arrived,
        sequence,
    )
